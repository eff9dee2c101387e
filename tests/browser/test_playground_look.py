"""Look: a text, the attention of its tokens and the next token on one screen, token by token."""

from __future__ import annotations

import itertools
import math
import urllib.parse
from typing import Any

import pytest
import torch

from qkv.generation.sampling import distribution
from support.browser_fixtures import Open
from support.look_page import percents, settled
from support.playground_page import (
    alike,
    answered,
    bodies,
    completed,
    copied,
    eventually,
    generate,
    link,
    painted,
    settings_where,
)

TEXT = "the cat sat on the mat"
REDRAW = """async cases => {
  const { redraw } = await import("/web/sampling_math.js");
  return cases.map(({ known, rest, others, settings }) => redraw(known, rest, others, settings));
}"""


def drawn(page: Any) -> None:
    """Wait until the next-token bars are those of the server."""
    page.wait_for_selector(".distribution:not([aria-busy]) .two-bars li")


def shown_text(page: Any) -> str:
    return str(page.input_value("#look-text"))


def test_look_comes_first_and_shows_text_attention_and_next_token(visit: Open, server: Any) -> None:
    page = visit()
    assert page.get_attribute("#tab-look", "aria-selected") == "true"
    assert page.locator("[role=tab]").first.inner_text() == "Look"
    assert shown_text(page) == "The cat sat on the mat because it was tired"
    assert page.locator(".look-examples button").count() == 3
    page.select_option("#model", "gpt")
    page.fill("#look-text", TEXT)
    settings_where(page, lambda chosen: chosen.get("look_text") == TEXT)
    # Its strip is the last part to change: until then the views are those of the text before.
    eventually(
        page,
        lambda: "".join(page.locator(".attended .keys .piece").all_text_contents()),
        lambda text: text.replace("␣", "") == TEXT.replace(" ", ""),
    )
    drawn(page)

    # The bars are the model's own probabilities, and those after the sampling parameters.
    raw = answered(server, "/v1/next", model="gpt", prompt=TEXT, top=10)["tokens"]
    eventually(
        page,
        lambda: page.locator(".two-bars .raw").all_inner_texts()[:10],
        lambda texts: alike(texts, [math.exp(entry["logprob"]) for entry in raw]),
    )
    sampled = answered(
        server, "/v1/next", model="gpt", prompt=TEXT, top=10, temperature=0.8, top_p=0.95
    )["tokens"]
    kept = [entry["probability"] for entry in sampled if entry["probability"]]
    assert alike(page.locator(".two-bars .number").all_inner_texts()[: len(kept)], kept)

    # The sentence tells the strongest weights of the chosen head for the chosen token.
    settled(page, view="head")
    where = dict(urllib.parse.parse_qsl(page.get_attribute("#qkv", "data-shown").removeprefix("#")))
    site = f"self {where['layer']} {where['head']}"  # a telling head
    page.locator(".attended .keys .piece").nth(3).click()
    settled(page, token=3)
    page.wait_for_selector(f".attended[data-shown='{site} 3']")
    page.focus(".attended-strips")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f".attended[data-shown='{site} 2']")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f".attended[data-shown='{site} 3']")
    settled(page, token=3)
    told = percents(page.inner_text(".attended-sentence"))
    page.wait_for_selector("#qkv .bars li")
    assert told == percents(page.inner_text("#qkv .bars"))[: len(told)]


def test_tokens_are_added_by_next_and_by_bars_undone_and_linked(visit: Open, server: Any) -> None:
    page = visit(link(tab="look", model="gpt", look_text=TEXT, temperature=0))
    asked = bodies(page, "/v1/attention")
    drawn(page)
    choice, read = completed(server, model="gpt", prompt=TEXT, temperature=0, max_tokens=2)
    ids = [entry["id"] for entry in read]
    first, second = choice["tokens"]
    page.click("button:text-is('Next')")
    eventually(page, lambda: shown_text(page), lambda text: text == TEXT + first["text"])
    page.focus(".attended")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(".")
    both = TEXT + first["text"] + second["text"]
    eventually(page, lambda: shown_text(page), lambda text: text == both)
    whole = [*ids, first["id"], second["id"]]
    eventually(page, lambda: [body["text"] for body in asked[-1:]], lambda texts: texts == [whole])

    # A bar appends its token, whatever the sampling parameters say.
    page.wait_for_function(
        "() => document.querySelector('.distribution:not([aria-busy]) .two-bars')"
    )
    listed = answered(server, "/v1/next", model="gpt", prompt=whole, top=3)["tokens"]
    eventually(
        page,
        lambda: page.locator(".two-bars .raw").all_inner_texts()[:3],
        lambda texts: alike(texts, [math.exp(entry["logprob"]) for entry in listed]),
    )
    page.locator(".two-bars .option").nth(2).click()
    settings_where(page, lambda chosen: chosen.get("added", "").endswith(f".{listed[2]['id']}"))
    assert shown_text(page) == both + listed[2]["text"]
    page.click("button:text-is('Undo')")
    eventually(page, lambda: shown_text(page), lambda text: text == both)

    other = visit(copied(page))
    eventually(other, lambda: shown_text(other), lambda text: text == both)
    settled(other, view="head")
    assert other.locator(".attended .piece").count() == len(whole)
    other.select_option("#model", "long")  # another vocabulary: the tokens become text
    settings_where(other, lambda chosen: (chosen["look_text"], chosen.get("added")) == (both, None))
    page.keyboard.press(",")
    page.keyboard.press(",")
    eventually(page, lambda: shown_text(page), lambda text: text == TEXT)
    assert page.locator("button:text-is('Undo')").is_disabled()


def test_sampling_parameters_redraw_without_a_request(visit: Open) -> None:
    page = visit(link(tab="look", model="bert", look_text=TEXT))
    cases = []
    expected = []
    torch.manual_seed(1)
    choices = itertools.product((0.3, 0.8, 1.0, 1.7), (0, 3, 50), (1.0, 0.9, 0.5), (0.0, 0.2))
    for (temperature, top_k, top_p, min_p), size in itertools.product(choices, (40, 2000)):
        logits = 3 * torch.randn(1, size, dtype=torch.float64)
        probability = logits.softmax(-1)[0].sort(descending=True)
        count = min(size, 200)
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        known = probability.values[:count].tolist()
        rest = float(probability.values[count:].sum())
        cases.append({"known": known, "rest": rest, "others": size - count, "settings": settings})
        filters = {"top_k": top_k or None, "top_p": top_p, "min_p": min_p or None}
        exact = distribution(logits, temperature=temperature, **filters)[0]
        expected.append(exact[probability.indices])

    results = page.evaluate(REDRAW, cases)
    certain = 0
    for result, case, reference in zip(results, cases, expected, strict=True):
        count = len(case["known"])
        if case["others"] == 0 or 0 < case["settings"]["top_k"] <= count:
            assert result["exact"]
        if result["exact"]:
            certain += 1
            assert torch.allclose(
                torch.tensor(result["drawn"], dtype=torch.float64), reference[:count], atol=1e-5
            )
            assert abs(result["rest"] - float(reference[count:].sum())) < 1e-4
    assert certain > 0.75 * len(results)
    (greedy,) = page.evaluate(
        REDRAW, [cases[0] | {"settings": cases[0]["settings"] | {"temperature": 0}}]
    )
    assert (greedy["drawn"][0], sum(greedy["drawn"]), greedy["rest"]) == (1, 1, 0)


def test_a_slider_moves_the_bars_at_once(visit: Open) -> None:
    page = visit(link(tab="look", model="gpt", look_text=TEXT, top_p=1, top_k=5))
    drawn(page)
    requests = bodies(page, "/v1/next")
    before = page.locator(".two-bars .number").all_inner_texts()
    raw = page.locator(".two-bars .raw").all_inner_texts()
    page.locator("[aria-label=Temperature]").fill("2")
    assert page.locator(".two-bars .number").all_inner_texts() != before
    page.locator("[aria-label=Top-k]").fill("2")
    assert page.locator(".two-bars .out").count() == 9
    assert page.locator(".two-bars .raw").all_inner_texts() == raw
    assert requests == []


def test_models_that_do_not_continue_a_text(visit: Open, server: Any) -> None:
    page = visit(link(tab="look", model="bert", look_text=TEXT))
    settled(page, view="head")
    drawn(page)
    answer = answered(server, "/v1/attention", model="bert", text=TEXT, layers=[0], top=10)
    last = answer["next"][-1]
    assert len(last) == 10
    assert alike(page.locator(".two-bars .raw").all_inner_texts()[:10], [p for _, _, p in last])
    assert page.inner_text("#next-title") == "Predicted token"
    assert page.locator(".two-bars .number:visible").count() == 0  # nothing is sampled
    assert not page.locator("button:text-is('Next')").is_visible()
    assert page.locator(".two-bars .option").count() == 0

    # With a mask the prediction is the one at the mask.
    masked = "the [mask] sat on the mat"
    page.fill("#look-text", masked)
    eventually(
        page,
        lambda: page.inner_text(".distribution > .note"),
        lambda text: text == "At the position of [mask]",
    )
    answer = answered(server, "/v1/attention", model="bert", text=masked, layers=[0], top=10)
    at_mask = answer["next"][answer["data"]["sides"][0]["tokens"].index("[mask]")]
    assert alike(page.locator(".two-bars .raw").all_inner_texts()[:10], [p for _, _, p in at_mask])

    page.select_option("#model", "translator")
    settled(page, view="head", kind="cross")
    requests = bodies(page, "/v1/attention")
    page.fill("#look-source", "the cat chases the mouse")
    page.fill("#look-target", "kediler fareleri")
    eventually(page, lambda: requests, lambda sent: bool(sent) and "target" in sent[-1])
    page.locator(".attended .strip:visible").nth(1).wait_for()
    assert page.locator(".attended .strip:visible").count() == 2
    settings_where(page, lambda chosen: chosen.get("look_target") == "kediler fareleri")

    # A bar ends the target with its token; Undo takes it back.
    eventually(
        page,
        lambda: page.inner_text(".distribution > .note"),
        lambda text: text == "After fareleri",
    )
    answer = answered(
        server,
        "/v1/attention",
        model="translator",
        source="the cat chases the mouse",
        target="kediler fareleri",
        layers=[0],
    )
    number, guess = next(
        (number, guess)
        for number, guess in enumerate(answer["next"][-1])
        if not guess[0].startswith("[")
    )
    page.locator(".two-bars .option").nth(number).click()
    settings_where(page, lambda chosen: chosen.get("look_target") == f"kediler fareleri {guess[0]}")
    page.click("button:text-is('Undo')")
    settings_where(page, lambda chosen: chosen.get("look_target") == "kediler fareleri")

    page.select_option("#model", "tuned")  # attention alone, and why it says so
    settled(page, view="head", kind="self")
    assert not page.locator(".aside").is_visible()
    page.click("button[data-view=attribution]")
    settled(page, view="attribution")


def test_attribution_is_computed_by_the_server(visit: Open, server: Any) -> None:
    page = visit(link(tab="look", model="long", look_text=TEXT))
    settled(page, view="head")
    page.click("button[data-view=attribution]")
    settled(page, view="attribution")
    answer = answered(
        server, "/v1/attention", model="long", text=TEXT, layers=[0], attribution=True
    )
    assert "attribution" in answer["blocks"]
    assert page.locator("#qkv canvas.cells").count() == 2
    assert "largest attribution" in page.inner_text(".status")
    position = answer["parts"]["positions"][-1]
    note = page.inner_text(".logit-parts .note")
    assert f"sum to {'−' if position['total'] < 0 else '+'}{abs(position['total']):.2f}" in note
    page.fill("#look-text", "the cat " * 30)
    page.wait_for_selector("button[data-view=attribution][aria-disabled]")
    why = page.get_attribute("button[data-view=attribution]", "title")
    assert why.startswith("Limited to 48 tokens here; this text has ")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (390, 844)])
def test_one_screen_and_nothing_moves_between_tabs(visit: Open, width: int, height: int) -> None:
    page = visit(link(tab="look", model="gpt", look_text=TEXT), width=width)
    page.set_viewport_size({"width": width, "height": height})
    settled(page, view="head")
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 1440:
        for part in (".attended", "#qkv canvas.cells", ".two-bars", ".sampling", "#look-text"):
            box = page.locator(part).bounding_box()
            assert 0 <= box["y"] < box["y"] + box["height"] <= height, part

    places = set()
    for tab in page.locator("[role=tab]").all():
        tab.click()
        painted(page)
        places.add(frame(page))
    assert len(places) == 1


def frame(page: Any) -> str:
    """Where the tabs, the model and the panel are; a narrow list of tabs scrolls sideways."""
    places = page.evaluate(
        """() => {
          const boxes = [...document.querySelectorAll("[role=tab], #model, .gate")]
            .map((node) => node.getBoundingClientRect());
          const tabs = boxes.filter((box, index) => index > 0 && index < boxes.length - 1);
          return boxes.map(({ y }) => y).concat(tabs.map(({ x }) => x - tabs[0].x));
        }"""
    )
    return str(places)


def test_nothing_moves_when_the_models_are_known(visit: Open) -> None:
    held: list[Any] = []
    page = visit(
        link(tab="look", model="gpt"),
        route=lambda page: page.route("**/v1/models", lambda route: held.append(route)),
        state="waiting",
    )
    page.wait_for_selector("text=Loading the list of models …")
    before = frame(page)
    eventually(page, lambda: held, bool)[0].continue_()
    page.wait_for_selector("#playground[data-state=ready]")
    assert frame(page) == before


def test_a_link_keeps_the_probabilities_of_a_text_after_heads_are_switched_off(
    visit: Open, server: Any
) -> None:
    page = visit(link(tab="write", model="gpt", prompt=TEXT, max_tokens=4, temperature=1))
    generate(page)
    labels = "all => all.map(node => node.ariaLabel)"
    before = page.eval_on_selector_all(".result .token", labels)
    page.evaluate("hash => location.hash = hash", page.evaluate("location.hash") + "&off=0.1")
    page.wait_for_selector(".other-heads:text-is('Generated with all heads on.')")
    address = copied(page)
    assert "on_off=none*4" in urllib.parse.unquote(address)
    other = visit(address)
    other.wait_for_selector(".result .state:has-text('Restored from the link.')")
    assert other.eval_on_selector_all(".result .token", labels) == before
    assert other.inner_text(".other-heads") == "Generated with all heads on."

    # Tokens that were generated with other heads keep their probabilities, too.
    page.click("button:text-is('Continue')")
    page.wait_for_selector(".result .state:has-text('4 new tokens after 4 earlier ones.')")
    before = page.eval_on_selector_all(".result .token", labels)
    address = copied(page)
    assert "on_off=none*4;0.1*4" in urllib.parse.unquote(address)
    other = visit(address)
    other.wait_for_selector(".result .state:has-text('Restored from the link.')")
    assert other.eval_on_selector_all(".result .token", labels) == before

    # A bar of the next-token distribution appends its token.
    drawn(page)
    label = page.locator(".two-bars .option").first.get_attribute("aria-label")
    page.locator(".two-bars .option").first.click()
    page.wait_for_selector(".result .token.chosen")
    last = page.locator(".result .token").last.get_attribute("aria-label")
    assert label.removeprefix("Add ").split(": ")[0] == last.split(": ")[0]
    page.click("button:text-is('Undo')")
    assert page.eval_on_selector_all(".result .token", labels) == before


def test_zero_one_and_few_shots_side_by_side(visit: Open, server: Any) -> None:
    page = visit(link(tab="write", model="long"))
    page.click("text=Build a prompt")
    page.click("button:text-is('Antonyms')")
    page.click("button:text-is('Compare zero, one and few shots')")
    page.locator(".shot").nth(2).wait_for()
    prompts = page.locator(".shot .preview").all_inner_texts()
    assert [prompt.count(" -> ") for prompt in prompts] == [0, 1, 3]
    assert all(prompt.endswith("happy ->") for prompt in prompts)
    for number, prompt in enumerate(prompts):
        listed = answered(server, "/v1/next", model="long", prompt=prompt, top=5)["tokens"]
        shown = page.locator(f".shot:nth-child({number + 1}) .number").all_inner_texts()
        assert alike(shown, [math.exp(entry["logprob"]) for entry in listed])
    page.fill("#build-prompt", "big")
    page.wait_for_selector(".shots.stale")


def test_half_a_character_is_added_as_a_link_adds_it(visit: Open, server: Any) -> None:
    """Tokens are bytes here: a first half, another first half, and the second half."""
    first, second = answered(server, "/v1/tokenize", model="gpt", text="é")["tokens"]
    half = {"logprob": -1.5, "probability": 0.2, "token": "?", "text": "\ufffd"}

    def next_halves(route: Any) -> None:
        listed = [{**half, "id": first["id"]}, {**half, "id": second["id"]}]
        route.fulfill(json={"tokens": listed, "rest": 0.2})

    page = visit(
        link(tab="look", model="gpt", look_text=TEXT),
        route=lambda page: page.route("**/v1/next", next_halves),
    )
    drawn(page)
    added: list[str] = []
    for which, text in ((0, ""), (0, "\ufffd"), (1, "\ufffdé")):
        added.append(str([first, second][which]["id"]))
        ids = ".".join(added)
        page.locator(".distribution:not([aria-busy]) .two-bars .option").nth(which).click()
        settings_where(page, lambda chosen, ids=ids: chosen.get("added") == ids)
        assert shown_text(page) == TEXT + text
        other = visit(copied(page))
        eventually(
            other,
            lambda other=other: shown_text(other),
            lambda shown, text=text: shown == TEXT + text,
        )
        other.close()
