"""Lists and strips of tokens: positions, the rest, spaces, direction, and the text as given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from support.browser_fixtures import Open
from support.look_page import settled
from support.made_looks import made_look

SENTENCE = ["the", " cat", " saw", " a", " cat", ".", " It", " ran", " off", " then", ",", " fast"]


def spread_look() -> Any:
    """A head whose last query has twelve different weights."""
    weights = torch.eye(12)
    weights[-1] = torch.arange(1, 13) / torch.arange(1, 13).sum()
    return made_look(SENTENCE, inside={5, 10}, layers=[weights[None]], heads=1, depth=1)


def test_a_list_has_positions_and_ends_with_the_others(open_page: Open) -> None:
    page = open_page(spread_look(), "#view=head", width=900)
    rows = [line.split("\n") for line in page.locator(".bars li").all_inner_texts()]
    assert [row[:2] for row in rows[:3]] == [["␣fast", "·11"], [",", "·10"], ["␣then", "·9"]]
    assert ["␣cat", "·4"] in [row[:2] for row in rows]
    assert rows[-1] == ["others", "12.8%"]  # 4 + 3 + 2 + 1 of 78
    page.keyboard.press("w")
    settled(page, words=1)
    assert page.locator(".bars li .place").first.inner_text() == "·9"  # “then,” begins there


def test_bars_are_long_where_the_list_is_narrow(open_page: Open) -> None:
    page = open_page(spread_look(), "#view=lens", width=1000)
    page.evaluate("document.querySelector('.side').style.width = '272px'")
    box = page.locator(".bars").bounding_box()
    widths = page.eval_on_selector_all(
        ".bars .bar",
        "bars => bars.map(bar => [+bar.style.getPropertyValue('--part'),"
        " bar.getBoundingClientRect().width])",
    )
    assert box["width"] <= 272
    for part, width in widths:
        assert width >= part * 240  # 21% are 50 pixels and not 2


def test_the_strip_has_the_spaces_of_the_text(open_page: Open) -> None:
    page = open_page(spread_look(), "#view=next")
    assert page.inner_text(".strip") == "the cat saw a cat. It ran off then, fast"
    page.click(".strip .piece >> nth=4")
    settled(page, token=4)
    assert page.inner_text(".side h2") == "After ␣cat"


def test_right_to_left_pieces_run_in_their_own_direction(open_page: Open) -> None:
    look = made_look(["see", " של", "ום", " עו", "לם", " end"], inside={2, 4})
    page = open_page(look, "#view=next")
    assert page.get_attribute(".strip", "dir") == "ltr"
    left = [piece.bounding_box()["x"] for piece in page.locator(".strip .piece").all()]
    assert left[0] < left[4] < left[3] < left[2] < left[1] < left[5]


def test_the_heading_quotes_the_texts_as_given(open_page: Open) -> None:
    text = "It's  a (very) odd-\u202etext … “quoted” ."
    page = open_page(replace(made_look(), texts=(text,), model="mine"))
    assert page.inner_text(".top .text") == "It's␣␣a (very) odd-⟨U+202E⟩text … “quoted” ."
    pair = open_page(replace(made_look(causal=False), texts=("one", "two")))
    assert pair.inner_text(".top .text") == "one · two"


def test_every_view_says_what_it_is(open_page: Open) -> None:
    page = open_page(made_look(), "#view=lens")
    assert page.inner_text(".about-view .sentence").startswith("What the model would predict")
    page.locator(".what summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".what[open] .formula")
    formula = page.locator(".what .formula")
    assert formula.inner_text() == "pℓ(v) = softmaxv( norm(hℓ) · uv )"
    assert formula.locator("sub").all_inner_texts() == ["ℓ", "v", "ℓ", "v"]
    assert "residual stream" in (formula.get_attribute("aria-label") or "")
    page.keyboard.press("6")  # keys work while the focus is there, and the text stays open
    settled(page, view="norms")
    assert page.locator(".what[open] .formula").inner_text().startswith("‖h‖")
