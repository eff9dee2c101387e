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


def test_streamed_tokens_are_those_of_the_api_coloured_by_probability(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, seed=7, max_tokens=12))
    requests = bodies(page, "/v1/completions")
    generate(page)
    choice, prompt = completed(server, model="gpt", prompt=PROMPT, **DRAWN)
    assert {name: requests[0][name] for name in DRAWN} == DRAWN
    assert tokens(page, ".result .tokens .token.given") == [entry["text"] for entry in prompt]
    assert tokens(page) == shown_as(page, [entry["text"] for entry in choice["tokens"]])
    assert page.inner_text(".result .state") == "12 tokens. Maximum number of tokens reached."
    for node, token in zip(
        page.locator(".result .tokens .token:not(.given)").all(), choice["tokens"], strict=True
    ):
        likely = math.exp(token["logprob"])
        step = next(name for least, name in STEPS if likely >= least)
        assert step in node.get_attribute("class").split()
        assert alike([node.get_attribute("aria-label").split(": ")[-1]], [likely])
    assert len(page.locator(".token-legend .token").all()) == len(STEPS)


def test_temperature_and_filters_change_the_next_token_probabilities(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, temperature=1, top_p=1))
    rows = page.locator(".two-bars li")
    rows.nth(10).wait_for()
    listed = answered(server, "/v1/next", model="gpt", prompt=PROMPT, top=10)["tokens"]
    shown = page.locator(".two-bars .number").all_inner_texts()
    likely = [entry["probability"] for entry in listed]
    assert alike(shown, [*likely, 1 - sum(likely)])
    page.fill("#top-k", "3")
    page.keyboard.press("Tab")
    page.locator(".two-bars .out").nth(7).wait_for()
    assert page.locator(".two-bars .number").all_inner_texts()[3:] == ["filtered out"] * 8
    filtered = answered(server, "/v1/next", model="gpt", prompt=PROMPT, top=10, top_k=3)["tokens"][
        :3
    ]
    assert alike(
        page.locator(".two-bars .number").all_inner_texts()[:3],
        [entry["probability"] for entry in filtered],
    )
    page.locator("[aria-label=Temperature]").fill("0")
    page.wait_for_function(
        "() => document.querySelector('.two-bars .number').textContent === '100.0%'"
    )
    assert "filtered out" in rows.nth(1).locator("button").get_attribute("aria-label")
    settings_where(
        page, lambda chosen: (chosen.get("top_k"), chosen.get("temperature")) == ("3", "0")
    )


def test_generation_continues_from_a_chosen_alternative_and_is_undone(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, seed=7, max_tokens=8))
    generate(page)
    before = tokens(page)
    drawn = DRAWN | {"max_tokens": 8, "seed": 7}
    choice, prompt = completed(server, model="gpt", prompt=PROMPT, **drawn)
    token = choice["tokens"][3]
    page.locator(".result .tokens .token:not(.given)").nth(3).click()
    options = page.locator(".card .option")
    options.first.wait_for()
    shown = page.locator(".card .number").all_inner_texts()
    assert alike(shown[:10], [math.exp(entry["logprob"]) for entry in token["alternatives"]])
    chosen = next(entry for entry in token["alternatives"] if entry["id"] != token["id"])
    requests = bodies(page, "/v1/completions")
    page.click(f".card [data-id='{chosen['id']}']")
    page.wait_for_selector(".result .tokens .token.chosen")
    written(page)
    ids = [entry["id"] for entry in [*prompt, *choice["tokens"][:3], chosen]]
    assert requests[0]["prompt"] == ids
    on, _ = completed(server, model="gpt", prompt=ids, **drawn)
    assert tokens(page)[:3] == before[:3]
    all_ids = ids + [entry["id"] for entry in on["tokens"]]
    assert tokens(page) == texts_after(page, server, all_ids, len(prompt))
    state = page.inner_text(".result .state")
    assert state == "8 new tokens after 4 earlier ones. Maximum number of tokens reached."
    shown_tokens = tokens(page)
    other = visit(copied(page))  # a token chosen by hand comes with the link
    other.wait_for_selector(".result .tokens .token.chosen")
    assert tokens(other) == shown_tokens
    assert other.inner_text(".result .state") == "12 tokens. Restored from the link."
    assert other.evaluate("document.activeElement === document.body")
    kinds = "all => all.map(node => node.className)"
    assert other.eval_on_selector_all(".result .token", kinds) == page.eval_on_selector_all(
        ".result .token", kinds
    )
    page.click("button:text-is('Undo')")
    assert tokens(page) == before


def texts_after(page: Any, server: Any, ids: list[int], count: int) -> list[str]:
    """The texts of the ids after the first `count`, each as it is after all those before it."""
    read = answered(server, "/v1/tokenize", model="gpt", ids=ids)["tokens"]
    return shown_as(page, [entry["text"] for entry in read[count:]])


def test_half_a_character_is_shown_as_the_link_shows_it(visit: Open, server: Any) -> None:
    """Tokens are bytes here: the first half of a character at the end, and then the second."""
    first, second = answered(server, "/v1/tokenize", model="gpt", text="é")["tokens"]
    assert (first["text"], second["text"]) == ("", "é")
    half = {"logprob": -1.5, "probability": 0.2, "token": "?", "text": "\ufffd"}

    def next_halves(route: Any) -> None:
        listed = [{**half, "id": first["id"]}, {**half, "id": second["id"]}]
        route.fulfill(json={"tokens": listed, "rest": 0.2})

    page = visit(
        link(tab="write", model="gpt", prompt=PROMPT, max_tokens=3),
        route=lambda page: page.route("**/v1/next", next_halves),
    )

    def take(which: int, expected: list[str]) -> None:
        count = len(expected)
        # Not while the bars are estimates: they are replaced, and a click could be lost.
        page.locator(".distribution:not([aria-busy]) .two-bars li button").nth(which).click()
        eventually(page, lambda: tokens(page), lambda shown: len(shown) == count)
        assert tokens(page) == expected
        assert_link_shows(page, visit)

    take(0, [""])
    take(0, ["", "\ufffd"])
    take(1, ["", "\ufffd", "é"])
    page.click("button:text-is('Undo')")

    # Generation continues inside the character
    prompt = answered(server, "/v1/tokenize", model="gpt", text=PROMPT)["tokens"]
    ids = [entry["id"] for entry in [*prompt, first, first]]
    page.click("button:text-is('Continue')")
    written(page)
    settings = {"temperature": 0.8, "top_p": 0.95, "seed": 0, "max_tokens": 3}
    on, _ = completed(server, model="gpt", prompt=ids, **settings)
    all_ids = ids + [entry["id"] for entry in on["tokens"]]
    assert tokens(page) == texts_after(page, server, all_ids, len(prompt))
    assert_link_shows(page, visit)


def assert_link_shows(page: Any, visit: Open) -> None:
    """The link of a page shows the tokens that the page shows."""
    other = visit(copied(page))
    other.wait_for_selector(".result .tokens .token.chosen")
    assert tokens(other) == tokens(page)
    assert other.text_content(".result .unseen") == page.text_content(".result .unseen")
    other.close()


def test_prompt_tokens_have_alternatives_and_continuing_sends_all_ids(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, max_tokens=4))
    generate(page)
    choice, prompt = completed(
        server, model="gpt", prompt=PROMPT, **DRAWN | {"max_tokens": 4, "seed": 0}
    )
    ids = [entry["id"] for entry in prompt]
    page.locator(".result .tokens .token.given").nth(2).click()
    page.locator(".card .option").first.wait_for()
    listed = answered(server, "/v1/next", model="gpt", prompt=ids[:2], top=10)["tokens"]
    assert alike(
        page.locator(".card .number").all_inner_texts(),
        [math.exp(entry["logprob"]) for entry in listed],
    )
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.dataset.position === '2'")
    requests = bodies(page, "/v1/completions")
    page.click("button:text-is('Continue')")
    page.wait_for_function(
        "() => document.querySelectorAll('.result .tokens .token:not(.given)').length === 8"
    )
    written(page)  # until then tokens do not open
    assert requests[0]["prompt"] == ids + [entry["id"] for entry in choice["tokens"]]
    page.locator(".result .tokens .token.given").first.click()
    page.wait_for_selector("text=The first token has no context")
    page.keyboard.press("Escape")
    page.locator(".result .tokens .token.given").nth(2).click()
    chosen = next(entry for entry in listed if entry["id"] != ids[2])
    page.click(f".card [data-id='{chosen['id']}']")
    page.wait_for_selector(".result .tokens .token.given.chosen")
    written(page)
    assert requests[1]["prompt"] == [*ids[:2], chosen["id"]]
    texts = [entry["text"] for entry in prompt]
    assert page.input_value("#prompt") == "".join(texts[:2]) + chosen["text"]
    assert page.inner_text(".result .state").startswith("4 tokens. ")  # the prompt does not count
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
    position = int(page.evaluate("document.activeElement.dataset.position"))
    assert position == page.locator(".result .tokens .token").count() - 2
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
        position
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


def test_a_reload_and_a_link_restore_text_and_settings(visit: Open) -> None:
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
    before = tokens(page)
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
    assert tokens(page) == before
    page.goto(page.url.split("#")[0] + "?")  # as after signing in
    page.wait_for_selector("#playground[data-state=ready]")
    assert page.input_value("#seed") == "99"
    other = visit(address)
    requests = bodies(other, "/v1/completions")
    generate(other)
    same = {
        "prompt": PROMPT,
        "temperature": 1.3,
        "seed": 99,
        "stop": ["\n"],
        "heads_off": ["1.0"],
        "model": "gpt",
    }
    assert same.items() <= requests[0].items()


def test_regenerating_takes_another_seed(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, max_tokens=4))
    generate(page)
    requests = bodies(page, "/v1/completions")
    page.click("button:text-is('Regenerate')")
    page.wait_for_function("() => document.querySelector('#seed').value !== '0'")
    written(page)
    assert str(requests[0]["seed"]) == page.input_value("#seed")
    settings_where(page, lambda chosen: chosen.get("seed") == page.input_value("#seed"))
    before = tokens(page)
    other = visit(copied(page))  # the link generates it again
    # A seed may draw the end of text early.
    eventually(other, lambda: tokens(other), lambda shown: len(shown) == len(before))
    written(other)
    assert tokens(other) == before
    settings_where(other, lambda chosen: "run" not in chosen)
    page.fill("#prompt", "the dog")
    assert stale(page)
    generate(page)
    assert not stale(page)


def longest(requests: list[dict[str, Any]], field: str) -> int:
    """The largest length of a field among requests."""
    return max((len(request[field]) for request in requests), default=0)


def test_a_full_context_is_shown_and_nothing_is_requested_beyond_it(visit: Open) -> None:
    page = visit(
        link(tab="write", model="gpt", prompt=f"{PROMPT} the mat", max_tokens=200, think=1)
    )
    requests = [bodies(page, path) for path in ("/v1/next", "/v1/attention")]
    page.click("button:text-is('Generate')")
    full = "The model's context of 64 tokens is full."
    page.wait_for_selector(f'.result .state:has-text("{full}")')
    page.wait_for_selector(f'.distribution:has-text("{full} No token can follow.")')
    assert page.locator(".result .tokens .token").count() == 65
    assert page.locator("button:text-is('Continue')").is_disabled()
    assert page.locator("button:text-is('Continue')").get_attribute("title") == full
    page.locator(".result .tokens .token").last.click()
    page.click(".card .option:not([aria-current]) >> nth=0")  # which is beyond the context
    page.wait_for_selector(f'.result .state:has-text("0 new tokens after"):has-text("{full}")')
    page.locator(".result .tokens .token").nth(60).click()
    page.click(".card .option:not([aria-current]) >> nth=0")
    page.wait_for_selector(f'.result .state:has-text("4 new tokens after"):has-text("{full}")')
    page.wait_for_selector(
        f'.distribution:not([aria-busy]):has-text("{full} No token can follow.")'
    )
    next_requests, attention_requests = requests
    eventually(page, lambda: longest(attention_requests, "text"), lambda length: length == 64)
    assert longest(next_requests, "prompt") <= 64  # 0 on a slow machine
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("text=Copy link")
    page.wait_for_selector(
        "[role=status].unseen:has-text('Link with the settings copied.')", state="attached"
    )


def test_leading_spaces_are_visible(visit: Open) -> None:
    def named(route: Any) -> None:
        texts = [" Paris", "Paris", "  ", "<b>"]
        probabilities = {"logprob": -1.5, "probability": 0.2}
        listed = [
            {"id": id, "text": text, "token": text, **probabilities}
            for id, text in enumerate(texts)
        ]
        route.fulfill(json={"tokens": listed, "rest": 0.2})

    page = visit(
        link(tab="write", model="gpt", prompt=PROMPT),
        route=lambda page: page.route("**/v1/next", named),
    )
    page.wait_for_selector(".two-bars li")
    assert page.locator(".two-bars .word").all_inner_texts() == ["␣Paris", "Paris", "␣␣", "<b>"]
    assert page.locator(".two-bars .space").count() == 1


def test_a_stop_sequence_is_not_part_of_the_text(visit: Open, server: Any) -> None:
    choice, _ = completed(server, model="gpt", prompt=PROMPT, **DRAWN)
    stop = next(entry["text"] for entry in choice["tokens"][4:] if entry["text"].strip())
    stopped, _ = completed(server, model="gpt", prompt=PROMPT, **DRAWN, stop=[stop])
    page = visit(link(tab="write", model="gpt", prompt=PROMPT, seed=7, max_tokens=12, stop=stop))
    generate(page)
    assert stopped["reason"] == "stop"
    assert page.inner_text(".result .state").endswith("Stop sequence reached.")
    plain = page.text_content(".result .unseen")
    assert plain == f"As plain text: {PROMPT}{stopped['text']}"
    assert page.locator(".result .tokens .token.over").count() > 0
