"""Missing views have a reason; each view has its status line; pages open at their beginning."""

from __future__ import annotations

from dataclasses import replace

from support.browser_fixtures import Open
from support.look_page import settled, status
from support.made_looks import CATS, made_look, recurrent_look

VIEWS = ("model", "head", "heads", "lines", "next", "lens", "norms", "attribution")


def test_missing_views_have_a_reason(open_page: Open) -> None:
    full = made_look()
    look = type(full)(full.model, full.reading, [], full.next, None, None)
    page = open_page(look)
    assert page.locator(".strip .piece").count() == len(CATS)
    assert page.locator("nav [data-view]").count() == 9
    available = page.locator("nav [data-view]:not([aria-disabled])")
    assert available.all_inner_texts() == ["Next token"]
    before = status(page)
    lens = page.locator("[data-view=lens]")
    reason = "It was not requested: use qkv look … --view lens"
    assert lens.get_attribute("title") == reason
    lens.hover()
    assert status(page) == reason
    page.mouse.move(0, 0)
    assert status(page) == before
    lens.focus()
    assert status(page) == reason
    available.focus()
    assert status(page) == before
    for choose in (lambda: lens.click(force=True), lambda: page.keyboard.press("7")):
        page.evaluate("document.querySelector('.status').textContent = ''")
        choose()
        assert status(page) == reason
        assert page.get_attribute("[aria-current=page]", "data-view") == "next"


def test_an_rnn_s_lens_is_its_output(open_page: Open) -> None:
    page = open_page(recurrent_look(), "#view=lens&token=1")
    assert page.locator(".lens-layer[role=rowheader]").all_inner_texts() == ["output"]
    assert page.inner_text(".side h2") == "At the output, following kediler"
    assert page.inner_text(".top .text") == "cats chase → kediler kovalar"
    assert page.get_attribute("[data-view=norms]", "title") == "An RNN has no residual stream"


def test_each_view_has_its_status_line(open_page: Open) -> None:
    page = open_page(made_look(), "#view=heads&layer=0&head=0")
    starts = [
        "The text is 8 tokens",
        "Layer 0, head 0",
        "Layer 0, head 0: entropy",
        "Layer 0, head 0",
        "After “mice”",
        "After layer 2, “mice”",
    ]
    starts += [
        "Median of the positions: the residual stream norm rises",
        "“mice”: largest attention: “",
    ]
    for order in (range(8), reversed(range(8))):
        for number in order:
            page.keyboard.press(str(number + 2))
            settled(page, view=VIEWS[number])
            assert status(page).startswith(starts[number])
            assert status(page) == starts[number] or number not in (1, 3)


def test_views_open_at_their_beginning_and_the_lens_at_the_last_token(open_page: Open) -> None:
    look = made_look([f"jumping{position}" for position in range(60)])
    page = open_page(
        replace(look, norms=look.norms and look.norms._replace(gradient=None)),
        "#view=lens",
        height=500,
    )
    chosen = page.locator(".lens .chosen")
    assert [chosen.get_attribute(f"data-{name}") for name in ("layer", "position")] == ["3", "59"]
    cell, table = chosen.bounding_box(), page.locator(".scroller.deep").bounding_box()
    for start, size in (("x", "width"), ("y", "height")):
        assert table[start] <= cell[start]
        assert cell[start] + cell[size] <= table[start] + table[size] + 1
    page.keyboard.press("ArrowLeft")
    settled(page, view="lens", token=58)
    page.keyboard.press("?")
    top = page.evaluate("document.querySelector('dialog').scrollTop")
    assert (top, page.locator("#help-title").bounding_box()["y"] > 0) == (0, True)
    page.keyboard.press("Escape")
    page.keyboard.press("8")
    settled(page, view="norms")
    assert page.locator("figure").bounding_box()["width"] <= 640
    page.keyboard.press("3")
    settled(page, view="head")
    cut = """all => all.filter(
      node => node.scrollHeight > node.clientHeight || node.scrollWidth > node.clientWidth
    ).length"""
    assert page.eval_on_selector_all(".heat .word", cut) == 0  # no letter is cut off
