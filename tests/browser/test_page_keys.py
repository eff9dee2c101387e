"""The page by keys and by its address, with joined words, in both themes."""

from __future__ import annotations

import pytest
import torch

from qkv.insight.inspect.whole_words import join_words
from qkv.insight.look import Look
from qkv.insight.render.script_bundle import bundle
from support.browser_fixtures import Open
from support.look_page import settled, state, status
from support.made_looks import CATS, made_look

VIEWS = ("model", "head", "heads", "lines", "next", "lens", "norms", "attribution")
NUMBERS = """async ([words, kind, layer, head]) => {
  MODULES
  const { Store, embedded } = qkv_store;
  const store = new Store(embedded());
  const matrix = await store.matrix(kind, layer, head, words);
  return Array.from({ length: matrix.rows }, (_, row) => [...matrix.row(row)]);
}""".replace("MODULES", bundle("store.js"))


@pytest.fixture(scope="module")
def look() -> Look:
    torch.manual_seed(0)
    return made_look(inside={4, 5}, depth=3, heads=4)


def test_arrows_go_through_heads_and_layers_and_stop_at_the_ends(
    open_page: Open, look: Look
) -> None:
    page = open_page(look, "#view=head&layer=1&head=1")
    for key, layer, head in (
        ("ArrowRight", 1, 2),
        ("ArrowDown", 2, 2),
        ("ArrowDown", 2, 2),
        ("ArrowLeft", 2, 1),
    ):
        page.keyboard.press(key)
        settled(page, layer=layer, head=head)
    assert status(page) == "Layer 2, head 1"
    assert page.input_value("#choose-layer") == "2"
    assert page.get_attribute(".status", "aria-live") == "polite"


def test_numbers_choose_the_view(open_page: Open, look: Look) -> None:
    page = open_page(look)
    for number, view in enumerate(VIEWS, start=2):
        page.keyboard.press(str(number))
        settled(page, view=view)
        assert page.get_attribute("[aria-current=page]", "data-view") == view
        assert page.locator("#view > section").is_visible()


def test_enter_opens_the_head_that_has_the_focus(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=heads&layer=0&head=0")
    page.focus(".cell[aria-current]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    settled(page, layer=1, head=1)
    assert "Layer 1, head 1" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    settled(page, view="head", layer=1, head=1)
    assert page.evaluate("document.activeElement.className") == "cells"  # its keys work


def test_cells_by_keys(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=head&layer=0&head=3")
    page.focus("canvas.cells")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowRight")
    weight = float(look.attention[0].layers[0][3, 2, 1])
    assert status(page) == f"Layer 0, head 3: “chase” → “cats”: {100 * weight:.1f}%"
    page.keyboard.press("Enter")
    settled(page, token=2)
    page.keyboard.press("n")
    settled(page, token=3)
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('token')")


def test_where_there_are_no_heads_arrows_go_through_words_and_the_lens(
    open_page: Open, look: Look
) -> None:
    assert look.lens is not None
    page = open_page(look, "#view=next&token=1")
    page.keyboard.press("ArrowRight")
    settled(page, token=2)
    page.keyboard.press("7")
    settled(page, view="lens")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    settled(page, token=1)
    guess = look.lens[2][1][0]
    assert status(page) == f"After layer 1, “cats”: “{guess.text}”, {100 * guess.probability:.1f}%"
    assert page.get_attribute(".lens .chosen", "data-layer") == "2"


def test_the_lens_of_a_long_text_opens_at_the_chosen_word(open_page: Open) -> None:
    page = open_page(made_look([f"w{position}" for position in range(250)]), "#view=lens&token=200")
    cell, room = (
        page.locator(".lens .chosen").bounding_box(),
        page.locator(".scroller").bounding_box(),
    )
    assert page.get_attribute(".lens .chosen", "data-position") == "200"
    assert room["x"] + 90 < cell["x"] < cell["x"] + cell["width"] < room["x"] + room["width"]
    assert page.locator(".lens-cell").count() < 200  # only visible columns have cells


def test_help_and_keeping_a_head(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=lines&layer=0&head=0")
    page.keyboard.press("?")
    assert "next layer" in page.inner_text("dialog[open]")
    page.keyboard.press("ArrowDown")  # the open dialog takes the keys
    page.keyboard.press("Escape")
    assert state(page)["layer"] == "0"
    page.keyboard.press("k")
    page.keyboard.press("ArrowDown")
    settled(page, layer=1, kept="0.0")
    assert page.locator(".chips li").all_inner_texts() == ["layer 1, head 0", "layer 0, head 0\n×"]


@pytest.mark.parametrize("words", [False, True])
def test_the_page_has_the_weights_and_joins_them_as_the_library_does(
    open_page: Open, look: Look, words: bool
) -> None:
    page = open_page(look)
    attention = look.attention[0]
    for layer, head in ((0, 0), (2, 3)):
        weights = torch.tensor(page.evaluate(NUMBERS, [words, "self", layer, head]))
        expected = attention.layers[layer][head]
        if words:
            expected = join_words(expected, attention.rows.words, attention.columns.words)
        assert weights.shape == expected.shape
        assert (weights - expected).abs().max() < 5e-5


def test_words_of_a_translation(open_page: Open) -> None:
    look = made_look(["[start]", "kedi", "ler", "i"], inside={2, 3}, source=["the", "cat", "s"])
    cross = look.attention[2]
    page = open_page(look)
    weights = torch.tensor(page.evaluate(NUMBERS, [True, "cross", 1, 1]))
    assert weights.allclose(
        join_words(cross.layers[1][1], cross.rows.words, cross.columns.words), atol=5e-5
    )


def test_w_turns_pieces_into_words(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=head")
    labels = page.locator(".row-labels .word")
    assert labels.all_inner_texts() == CATS
    page.keyboard.press("w")
    settled(page, words=1)
    assert labels.all_inner_texts() == ["the", "cats", "chase", "unbelievably", "quick", "mice"]
    page.keyboard.press("5")
    settled(page, view="lines")
    assert page.locator(".words.left .word").all_inner_texts()[3] == "unbelievably"


def test_an_address_shows_the_same_again(open_page: Open, look: Look) -> None:
    address = (
        "#view=lines&kind=self&layer=2&head=3&words=1&token=3&kept=0.1+1.2&scale=linear&theme=dark"
    )
    page = open_page(look, address)
    assert page.evaluate("document.querySelector('#qkv').dataset.shown") == address
    assert page.locator(".chips li").count() == 3
    assert page.locator(".words .own .word").all_inner_texts() == ["unbelievably"]
    page.keyboard.press("3")
    settled(page, view="head")
    assert state(page)["view"] == "head"


def test_a_long_text_has_the_scale_for_faint_weights(open_page: Open) -> None:
    page = open_page(made_look([f"w{position}" for position in range(300)], depth=1, heads=1))
    assert page.input_value("#scale") == "log"


def test_an_address_that_makes_no_sense_shows_what_there_is(open_page: Open, look: Look) -> None:
    page = open_page(
        look, "#view=nothing&kind=other&layer=99&head=-1&token=1e9&kept=9.9+x&theme=pink"
    )
    assert page.locator(".cell").count() == 12
    assert page.input_value("#choose-layer") == "2"


def test_where_it_opens_may_be_asked_for(open_page: Open, look: Look) -> None:
    page = open_page(look, layer=-1, head=(2, 0), words=True, view="lines")
    assert page.input_value("#choose-layer") == "2"
    assert page.locator(".chips li").all_inner_texts() == ["layer 2, head 2", "layer 2, head 0\n×"]
    assert page.locator(".words.left .row").count() == 6


def test_dark_and_light(open_page: Open, look: Look) -> None:
    def lightness() -> list[float]:
        return [
            sum(
                map(
                    int,
                    page.evaluate(f"getComputedStyle(document.documentElement).{name}")[4:-1].split(
                        ","
                    ),
                )
            )
            / 765
            for name in ("backgroundColor", "color")
        ]

    for theme in ("dark", "light"):
        page = open_page(look, theme=theme)
        paper, ink = lightness()
        assert (paper < 0.2 < 0.8 < ink) if theme == "dark" else (ink < 0.2 < 0.8 < paper)
        page.keyboard.press("t")
        settled(page, theme="light" if theme == "dark" else "dark")
        assert lightness()[0] == pytest.approx(1 - paper, abs=0.15)


def test_every_control_has_a_name(open_page: Open, look: Look) -> None:
    page = open_page(look)
    nameless = """() => [...document.querySelectorAll(
        "button, select, input, canvas:not([aria-hidden]), [tabindex]"
      )]
      .filter(node => !node.getAttribute("aria-label") && !node.textContent.trim())
      .filter(node => !node.labels?.length)
      .map(node => node.outerHTML)"""
    for number, view in enumerate(VIEWS, start=2):
        page.keyboard.press(str(number))
        settled(page, view=view)
        assert [node for node in page.evaluate(nameless) if 'id="view"' not in node] == []
