"""Writing: what streams in is what the API says, every token opens, and one goes on from the one
that is chosen.
"""

from __future__ import annotations

import math
from typing import Any

from support.browser_fixtures import Open
from support.playground_page import (
    alike,
    answered,
    bodies,
    completed,
    copied,
    eventually,
    generate,
    link,
    settings_where,
    shown_as,
    stale,
    tokens,
    written,
)

PROMPT = "the cat sat on"
DRAWN = {"temperature": 0.8, "top_p": 0.95, "seed": 7, "max_tokens": 12}
STEPS = [(0.8, "sure"), (0.5, "likely"), (0.2, "open"), (0.05, "unlikely"), (0.0, "rare")]


def test_what_streams_in_is_what_the_api_says_coloured_by_its_probability(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, seed=7, max_tokens=12))
    asked = bodies(page, "/v1/completions")
    generate(page)
    choice, prompt = completed(server, model="gpt", prompt=PROMPT, **DRAWN)
    assert {name: asked[0][name] for name in DRAWN} == DRAWN
    assert tokens(page, ".result .tokens .token.given") == [each["text"] for each in prompt]
    assert tokens(page) == shown_as(page, [each["text"] for each in choice["tokens"]])
    assert page.inner_text(".result .state") == "12 tokens. Maximum number of tokens reached."
    for made, token in zip(
        page.locator(".result .tokens .token:not(.given)").all(), choice["tokens"], strict=True
    ):
        likely = math.exp(token["logprob"])
        step = next(name for least, name in STEPS if likely >= least)
        assert step in made.get_attribute("class").split()
        assert alike([made.get_attribute("aria-label").split(": ")[-1]], [likely])
    assert len(page.locator(".token-legend .token").all()) == len(STEPS)


def test_the_next_token_is_drawn_as_temperature_and_filters_change_it(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, temperature=1, top_p=1))
    rows = page.locator(".two-bars li")
    rows.nth(10).wait_for()
    listed = answered(server, "/v1/next", model="gpt", prompt=PROMPT, top=10)["tokens"]
    shown = page.locator(".two-bars .number").all_inner_texts()
    likely = [each["probability"] for each in listed]
    assert alike(shown, [*likely, 1 - sum(likely)])
    page.fill("#top-k", "3")
    page.keyboard.press("Tab")
    page.locator(".two-bars .out").nth(7).wait_for()
    assert page.locator(".two-bars .number").all_inner_texts()[3:] == ["filtered out"] * 8
    kept = answered(server, "/v1/next", model="gpt", prompt=PROMPT, top=10, top_k=3)["tokens"][:3]
    assert alike(
        page.locator(".two-bars .number").all_inner_texts()[:3],
        [each["probability"] for each in kept],
    )
    page.locator("[aria-label=Temperature]").fill("0")
    page.wait_for_function(
        "() => document.querySelector('.two-bars .number').textContent === '100.0%'"
    )
    assert "filtered out" in rows.nth(1).get_attribute("aria-label")
    settings_where(
        page, lambda chosen: (chosen.get("top_k"), chosen.get("temperature")) == ("3", "0")
    )


def test_a_chosen_alternative_is_gone_on_from_and_undone(visit: Open, server: Any) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, seed=7, max_tokens=8))
    generate(page)
    before = tokens(page)
    choice, prompt = completed(server, model="gpt", prompt=PROMPT, **DRAWN | {"max_tokens": 8})
    token = choice["tokens"][3]
    page.locator(".result .tokens .token:not(.given)").nth(3).click()
    options = page.locator(".card .option")
    options.first.wait_for()
    shown = page.locator(".card .number").all_inner_texts()
    assert alike(shown[:10], [math.exp(each["logprob"]) for each in token["alternatives"]])
    chosen = next(each for each in token["alternatives"] if each["id"] != token["id"])
    asked = bodies(page, "/v1/completions")
    page.click(f".card [data-id='{chosen['id']}']")
    page.wait_for_selector(".result .tokens .token.chosen")
    written(page)
    ids = [each["id"] for each in [*prompt, *choice["tokens"][:3], chosen]]
    assert asked[0]["prompt"] == ids
    on, _ = completed(server, model="gpt", prompt=ids, **DRAWN | {"max_tokens": 8})
    assert tokens(page)[:3] == before[:3]
    assert tokens(page)[4:] == shown_as(page, [each["text"] for each in on["tokens"]])
    state = page.inner_text(".result .state")
    assert state == "8 new tokens after 4 earlier ones. Maximum number of tokens reached."
    seen = tokens(page)
    other = visit(copied(page))  # what was chosen by hand comes with the link
    other.wait_for_selector(".result .tokens .token.chosen")
    assert tokens(other) == seen
    assert other.inner_text(".result .state") == "12 tokens. Restored from the link."
    assert other.evaluate("document.activeElement === document.body")
    kinds = "all => all.map(each => each.className)"
    assert other.eval_on_selector_all(".result .token", kinds) == page.eval_on_selector_all(
        ".result .token", kinds
    )
    page.click("button:text-is('Undo')")
    assert tokens(page) == before


def test_a_token_of_the_prompt_opens_too_and_going_on_takes_all_ids(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, max_tokens=4))
    generate(page)
    choice, prompt = completed(
        server, model="gpt", prompt=PROMPT, **DRAWN | {"max_tokens": 4, "seed": 0}
    )
    ids = [each["id"] for each in prompt]
    page.locator(".result .tokens .token.given").nth(2).click()
    page.locator(".card .option").first.wait_for()
    listed = answered(server, "/v1/next", model="gpt", prompt=ids[:2], top=10)["tokens"]
    assert alike(
        page.locator(".card .number").all_inner_texts(),
        [math.exp(each["logprob"]) for each in listed],
    )
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.position") == "2"
    asked = bodies(page, "/v1/completions")
    page.click("button:text-is('Continue')")
    page.wait_for_function(
        "() => document.querySelectorAll('.result .tokens .token:not(.given)').length === 8"
    )
    assert asked[0]["prompt"] == ids + [each["id"] for each in choice["tokens"]]
    page.locator(".result .tokens .token.given").first.click()
    page.wait_for_selector("text=The first token has no context")
    page.keyboard.press("Escape")
    page.locator(".result .tokens .token.given").nth(2).click()
    chosen = next(each for each in listed if each["id"] != ids[2])
    page.click(f".card [data-id='{chosen['id']}']")
    page.wait_for_selector(".result .tokens .token.given.chosen")
    written(page)
    assert asked[1]["prompt"] == [*ids[:2], chosen["id"]]
    texts = [each["text"] for each in prompt]
    assert page.input_value("#prompt") == "".join(texts[:2]) + chosen["text"]
    assert page.inner_text(".result .state").startswith(
        "4 tokens. "
    )  # none of which is the prompt's
    assert not stale(page)
    page.click("button:text-is('Undo')")
    assert page.input_value("#prompt") == PROMPT


def test_by_keys_alone(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt", max_tokens=6))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("cats chase")
    page.keyboard.press("Control+Enter")
    page.wait_for_function(
        "() => document.querySelectorAll('.result .tokens .token:not(.given)').length === 6"
    )
    written(page)
    page.locator(".result .tokens .token[tabindex='0']").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    place = int(page.evaluate("document.activeElement.dataset.position"))
    assert place == page.locator(".result .tokens .token").count() - 2
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.locator(".card .option[aria-current]").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".result .tokens .token.chosen")
    written(page)
    assert page.locator(".result .tokens .token.chosen").get_attribute("data-position") == str(
        place
    )


def test_zero_one_and_few_shot(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt"))
    page.click("text=Build a prompt")
    page.click("button:text-is('Antonyms')")
    expected = (
        "Write the opposite of each word.\nhot -> cold\ntall -> short\nearly -> late\nhappy ->"
    )
    assert page.inner_text(".preview") == expected
    page.click("button:text-is('One-shot')")
    page.fill("[aria-label='Example 1: answer']", "<b>icy</b>")
    page.fill("#build-prompt", "big")
    one = "Write the opposite of each word.\nhot -> <b>icy</b>\nbig ->"
    assert page.inner_text(".preview") == one
    page.click("button:text-is('Zero-shot')")
    assert page.inner_text(".preview") == "Write the opposite of each word.\nbig ->"
    page.click("button:text-is('One-shot')")
    page.click("text=Use this prompt")
    assert page.input_value("#prompt") == one
    assert page.locator("#stop").is_visible()  # the answer ends with its line
    assert page.input_value("#stop") == "\\n"
    assert "a line break is a stop sequence" in page.text_content("[role=status].unseen")
    settings_where(page, lambda chosen: chosen.get("prompt") == one)
    page.click("#tab-chat")
    page.click("#tab-fill")
    page.go_back()
    page.wait_for_selector("#tab-chat[aria-selected=true]")
    page.go_back()
    page.wait_for_selector("#tab-write[aria-selected=true]")
    assert page.input_value("#prompt") == one


def test_nothing_is_lost_on_reload_and_a_link_reproduces_the_setting(visit: Open) -> None:
    page = visit(
        link(
            tab="write",
            model="gpt",
            prompt=PROMPT,
            temperature=1.3,
            max_tokens=6,
            stop="\\n",
            off="1.0",
        )
    )
    generate(page)
    said = tokens(page)
    page.fill("#seed", "99")
    page.keyboard.press("Tab")
    expected = {
        "prompt": PROMPT,
        "temperature": "1.3",
        "max_tokens": "6",
        "stop": "\\n",
        "off": "1.0",
        "seed": "99",
    }
    settings_where(page, lambda chosen: expected.items() <= chosen.items())
    address = page.evaluate("location.hash")
    page.reload()
    page.wait_for_selector("#playground[data-state=ready]")
    assert tokens(page) == said
    page.goto(page.url.split("#")[0] + "?")  # as one who has signed in comes back
    page.wait_for_selector("#playground[data-state=ready]")
    assert page.input_value("#seed") == "99"
    other = visit(address)
    asked = bodies(other, "/v1/completions")
    generate(other)
    same = {
        "prompt": PROMPT,
        "temperature": 1.3,
        "seed": 99,
        "stop": ["\n"],
        "heads_off": ["1.0"],
        "model": "gpt",
    }
    assert same.items() <= asked[0].items()


def test_another_text_has_another_seed(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, max_tokens=4))
    generate(page)
    asked = bodies(page, "/v1/completions")
    page.click("button:text-is('Regenerate')")
    page.wait_for_function("() => document.querySelector('#seed').value !== '0'")
    written(page)
    assert str(asked[0]["seed"]) == page.input_value("#seed")
    settings_where(page, lambda chosen: chosen.get("seed") == page.input_value("#seed"))
    said = tokens(page)
    other = visit(copied(page))  # the link writes it again
    other.wait_for_function(
        "() => document.querySelectorAll('.result .tokens .token:not(.given)').length === 4"
    )
    assert tokens(other) == said
    settings_where(other, lambda chosen: "run" not in chosen)
    page.fill("#prompt", "the dog")
    assert stale(page)
    generate(page)
    assert not stale(page)


def test_a_full_context_is_said_and_nothing_is_asked_beyond_it(visit: Open) -> None:
    page = visit(
        link(tab="write", model="gpt", prompt=f"{PROMPT} the mat", max_tokens=200, think=1)
    )
    asked = [bodies(page, path) for path in ("/v1/next", "/v1/attention")]
    page.click("button:text-is('Generate')")
    full = "The model's context of 64 tokens is full."
    page.wait_for_selector(f'.result .state:has-text("{full}")')
    page.wait_for_selector(f'.distribution:has-text("{full} No token can follow.")')
    assert page.locator(".result .tokens .token").count() == 65
    assert page.locator("button:text-is('Continue')").is_disabled()
    assert page.locator("button:text-is('Continue')").get_attribute("title") == full
    page.locator(".result .tokens .token").last.click()
    page.click(".card .option:not([aria-current]) >> nth=0")  # which nobody can read
    page.wait_for_selector(f'.result .state:has-text("0 new tokens after"):has-text("{full}")')
    page.locator(".result .tokens .token").nth(60).click()
    page.click(".card .option:not([aria-current]) >> nth=0")
    page.wait_for_selector(f'.result .state:has-text("4 new tokens after"):has-text("{full}")')
    page.wait_for_selector(
        f'.distribution:not([aria-busy]):has-text("{full} No token can follow.")'
    )
    following, seen = asked
    lengths = lambda bodies: [len(each.get("prompt", each.get("text"))) for each in bodies]  # noqa: E731
    eventually(page, lambda: max(lengths(seen), default=0), lambda longest: longest == 64)
    assert max(lengths(following), default=0) <= 64  # nothing at all where the machine is slow
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("text=Copy link")
    page.wait_for_selector(
        "[role=status].unseen:has-text('Link with the settings copied.')", state="attached"
    )


def test_the_space_before_a_word_is_seen(visit: Open) -> None:
    def named(route: Any) -> None:
        texts = [" Paris", "Paris", "  ", "<b>"]
        chances = {"logprob": -1.5, "probability": 0.2}
        listed = [
            {"id": id, "text": text, "token": text, **chances} for id, text in enumerate(texts)
        ]
        route.fulfill(json={"tokens": listed, "rest": 0.2})

    page = visit(
        link(tab="write", model="gpt", prompt=PROMPT),
        route=lambda page: page.route("**/v1/next", named),
    )
    page.wait_for_selector(".two-bars li")
    assert page.locator(".two-bars .word").all_inner_texts() == ["␣Paris", "Paris", "␣␣", "<b>"]
    assert page.locator(".two-bars .space").count() == 1


def test_a_stop_text_is_none_of_the_text(visit: Open, server: Any) -> None:
    choice, _ = completed(server, model="gpt", prompt=PROMPT, **DRAWN)
    stop = next(each["text"] for each in choice["tokens"][4:] if each["text"].strip())
    stopped, _ = completed(server, model="gpt", prompt=PROMPT, **DRAWN, stop=[stop])
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, seed=7, max_tokens=12, stop=stop))
    generate(page)
    assert stopped["reason"] == "stop"
    assert page.inner_text(".result .state").endswith("Stop sequence reached.")
    plain = page.text_content(".result .unseen")
    assert plain == f"As plain text: {PROMPT}{stopped['text']}"
    assert page.locator(".result .tokens .token.over").count() > 0
