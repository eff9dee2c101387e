"""The view inside the model: the numbers of the API during generation; heads switched off."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch

from support.browser_fixtures import Open
from support.look_page import percents, settled
from support.playground_page import (
    alike,
    answered,
    bodies,
    completed,
    eventually,
    generate,
    link,
    settings_where,
    shown_as,
    tokens,
)

PROMPT = "the cat sat on the mat"


def weights(answer: Any, layer: int, head: int) -> torch.Tensor:
    """One head, from the API's bytes: (T, T)."""
    attention = answer["data"]["attention"][0]
    assert attention["code"] == "linear16"
    numbers = zlib.decompress(base64.b64decode(answer["blocks"][f"self.{layer}.{head}"]))
    return (
        torch.frombuffer(bytearray(numbers), dtype=torch.uint16).float().reshape(attention["shape"])
        / 65535
    )


def test_a_head_of_the_text_on_the_page(visit: Open, server: Any) -> None:
    page = visit(link(tab="write", model="gpt", prompt=PROMPT))
    requests = bodies(page, "/v1/attention")
    page.wait_for_selector(".distribution:not([aria-busy]) .two-bars li")  # it moves what is below
    page.click("text=Look inside the model")
    settled(page, view="heads")
    page.wait_for_function("() => scrollY > 100")  # until the text and the heads are visible
    text, heads = page.locator(".result").bounding_box(), page.locator("#qkv .grid").bounding_box()
    assert (
        0
        <= text["y"]
        < text["y"] + text["height"]
        < heads["y"]
        < heads["y"] + heads["height"]
        < 860
    )
    assert page.locator("#qkv").bounding_box()["width"] > 1150
    assert page.locator("#qkv .cell").count() == 4
    assert page.locator("#qkv h1").count() == 0
    assert page.locator("main").count() == 1
    page.click("#qkv [role=row]:nth-child(3) .cell:nth-child(3)")  # layer 1, head 1
    settled(page, view="head", layer=1, head=1)
    page.wait_for_selector("#qkv .bars li")
    assert requests[-1]["layers"] == [1]  # only when it is shown
    answer = answered(server, "/v1/attention", model="gpt", text=PROMPT, layers=[1])
    last = weights(answer, 1, 1)[-1]
    shown = percents("\n".join(page.locator("#qkv .bars li:not(.others)").all_inner_texts()))
    expected = last.sort(descending=True).values[: len(shown)]
    assert torch.allclose(torch.tensor(shown), expected, atol=6e-4)
    settings_where(
        page, lambda chosen: chosen.get("look", "").startswith("view=head&kind=self&layer=1&head=1")
    )
    again = visit(page.evaluate("location.hash"))
    settled(again, view="head", layer=1, head=1)


def test_the_lens_follows_generation_one_request_at_a_time(visit: Open, server: Any) -> None:
    page = visit(
        link(
            tab="write",
            model="gpt",
            prompt=PROMPT,
            think=1,
            look="view=lens",
            max_tokens=12,
            temperature=0,
        )
    )
    settled(page, view="lens")
    flying = {"now": 0, "most": 0}

    def came(request: Any) -> None:
        if request.url.endswith("/v1/attention"):
            flying["now"] += 1
            flying["most"] = max(flying.values())

    def gone(request: Any) -> None:
        flying["now"] -= request.url.endswith("/v1/attention")

    requests = bodies(page, "/v1/attention")
    page.on("request", came)
    page.on("requestfinished", gone)
    generate(page)
    choice, prompt = completed(server, model="gpt", prompt=PROMPT, temperature=0, max_tokens=12)
    ids = [entry["id"] for entry in [*prompt, *choice["tokens"]]]
    wide = f"{96 * len(ids)}px"  # a column for each token, in the end
    page.wait_for_function(
        "wide => document.querySelector('#qkv .lens').style.width.includes(wide)", arg=wide
    )
    lens = answered(server, "/v1/attention", model="gpt", text=ids, layers=[0], lens=True)["lens"]
    for layer, guesses in enumerate(lens):
        cells = page.locator(f"#qkv [data-layer='{layer}'] .number").all_inner_texts()
        assert cells == [
            f"{100 * entry[0][2]:.0f}%" for entry in guesses[-len(cells) :]
        ]  # it is open at the last token
    last = page.locator("#qkv .lens .chosen")
    assert last.get_attribute("data-position") == str(len(ids) - 1)
    assert last.bounding_box()["x"] + last.bounding_box()["width"] < 1280
    texts = [entry["text"] for entry in requests if isinstance(entry["text"], list)]
    assert texts[-1] == ids  # token for token, and the whole text in the end
    assert all(text == ids[: len(text)] for text in texts)
    assert flying["most"] == 1


def test_a_knocked_out_head_changes_the_text_and_what_differs_is_marked(
    visit: Open, server: Any
) -> None:
    page = visit(
        link(tab="write", model="gpt", prompt=PROMPT, think=1, seed=3, max_tokens=10, temperature=1)
    )
    generate(page)
    settled(page, view="heads")
    page.click("#qkv .cell >> nth=1")
    settled(page, view="head", layer=0, head=1)
    page.click("text=Switch layer 0, head 1 off")
    page.wait_for_selector(".sides:not([hidden]):not([aria-busy])")
    how = {"temperature": 1.0, "top_p": 0.95, "seed": 3, "max_tokens": 10}
    whole, read = completed(server, model="gpt", prompt=PROMPT, **how)
    without, _ = completed(server, model="gpt", prompt=PROMPT, heads_off=["0.1"], **how)
    sides = [f".sides > :nth-child({number}) .tokens .token" for number in (1, 2)]
    assert tokens(page, sides[0]) == shown_as(page, [entry["text"] for entry in whole["tokens"]])
    assert tokens(page, sides[1]) == shown_as(page, [entry["text"] for entry in without["tokens"]])
    assert whole["text"] != without["text"]
    marked = page.eval_on_selector_all(
        sides[1], "all => all.map(node => node.classList.contains('differs'))"
    )
    same = [entry["id"] for entry in without["tokens"]]
    unmarked = [id for id, differs in zip(same, marked, strict=True) if not differs]
    left = iter(entry["id"] for entry in whole["tokens"])
    assert all(id in left for id in unmarked)  # unmarked tokens are in both texts, in this order
    assert any(marked)
    assert page.inner_text(".sides > :nth-child(2) h3") == "Without layer 0, head 1"
    assert page.inner_text(".knockout > .note") == f"{sum(marked)} of 10 tokens differ."
    assert page.inner_text(".other-heads") == "Generated with all heads on."  # the text above
    assert page.inner_text(".actions > .note") == "Layer 0, head 1 is switched off."
    generate(page)
    assert page.locator(".other-heads").is_hidden()
    page.click("[data-view=heads]")
    settled(page, view="heads")
    page.wait_for_selector("#qkv .cell.crossed")  # with the response for the heads that are on
    assert page.locator("#qkv .cell.crossed").count() == 1
    assert "switched off" in page.get_attribute("#qkv .cell.crossed", "aria-label")
    page.wait_for_selector(".distribution:not([aria-busy])")
    ids = [entry["id"] for entry in [*read, *without["tokens"]]]
    listed = answered(
        server,
        "/v1/next",
        model="gpt",
        prompt=ids,
        top=10,
        heads_off=["0.1"],
        temperature=1.0,
        top_p=0.95,
    )
    assert alike(
        page.locator(".two-bars .number").all_inner_texts()[:1],
        [listed["tokens"][0]["probability"]],
    )
    settings_where(page, lambda chosen: chosen.get("off") == "0.1")
    page.click("#qkv [data-at='1.0']", modifiers=["Shift"])
    page.wait_for_selector("#qkv .cell.crossed[data-at='1.0']")
    page.click("[aria-label='Switch layer 1, head 0 on']")
    page.focus("#qkv [data-at='0.1']")
    page.keyboard.press("x")  # on again
    page.wait_for_selector(".sides", state="hidden")
    settings_where(page, lambda chosen: "off" not in chosen)


def test_a_translation_has_cross_attention(visit: Open, server: Any) -> None:
    page = visit(link(tab="translate", model="translator", text="cats chase mice", think=1))
    requests = bodies(page, "/v1/attention")
    settled(page, view="heads", kind="cross")
    page.click("#panel button:text-is('Translate')")
    page.wait_for_selector(".aligned-word")
    page.wait_for_function("() => document.querySelector('#qkv')")
    response = answered(
        server, "/v1/translate", model="translator", text="cats chase mice", beams=4, n_best=3
    )
    best = response["translations"][0][0]["text"]
    eventually(
        page,
        lambda: [body.get("target") for body in requests[-1:]],
        lambda targets: targets == [best],
    )
    settled(page, view="heads", kind="cross")
    assert not page.locator(".knockout").is_visible()
