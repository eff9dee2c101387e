"""Whatever a person or a model wrote shows as text: nothing of it runs, and nothing of it breaks
the page.
"""

from __future__ import annotations

import pytest

from support.browser_fixtures import Open
from support.look_page import settled
from support.made_looks import HOSTILE, made_look

VIEWS = ("model", "head", "heads", "lines", "next", "lens", "norms", "attribution")
NAME = "<b>x</b></title><script>window.hacked = 1</script>"
SEEN = {
    "\n": "↵",
    "\0": "␀",
    "\u202eevil": "⟨U+202E⟩evil",
    "\u200b": "⟨U+200B⟩",
    "   ": "␣␣␣",
    "": "∅",
    "\u2028": "⟨U+2028⟩",
}


@pytest.mark.parametrize("width", [1200, 380])
def test_nothing_runs_and_nothing_overflows_in_any_view(open_page: Open, width: int) -> None:
    look = made_look(HOSTILE, inside={1, 6}, model=NAME)
    page = open_page(look, width=width)
    scripts = page.evaluate("document.scripts.length")
    for view in VIEWS:
        for words in ("", "&words=1"):
            page.evaluate(f"location.hash = 'view={view}&layer=1&head=1&token=11{words}'")
            settled(page, view=view, **({"words": 1} if words else {}))
            assert page.evaluate("window.hacked") is None
            assert page.evaluate("document.scripts.length") == scripts
            assert (
                page.evaluate("document.querySelectorAll('#qkv img, #qkv script, #qkv b').length")
                == 0
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.inner_text("h1") == NAME
    assert page.title() == f"{NAME}: attention"


def test_a_translation_of_hostile_words(open_page: Open) -> None:
    look = made_look(HOSTILE[:8], source=HOSTILE[8:], depth=1)
    page = open_page(look)
    for view in VIEWS:
        for kind in ("encoder", "decoder", "cross"):
            page.evaluate(f"location.hash = 'view={view}&kind={kind}'")
            settled(page, view=view, kind=kind)
            assert page.evaluate("window.hacked") is None


def test_every_word_is_text_that_can_be_selected(open_page: Open) -> None:
    look = made_look(HOSTILE)
    page = open_page(look, "#view=head")
    expected = [SEEN.get(token, token).replace("\ud800", "\ufffd") for token in HOSTILE]
    shown = [
        text.replace("\ud800", "\ufffd")
        for text in page.locator(".side .piece").all_text_contents()
    ]
    assert shown == expected
    selected = page.evaluate(
        """() => {
          getSelection().selectAllChildren(document.querySelector(".side .strip"));
          return getSelection().toString();
        }"""
    )
    for text in expected:
        assert text in selected.replace("\ud800", "\ufffd")
    labels = page.locator(".row-labels .word").all_text_contents()
    assert labels[:3] == list(HOSTILE[:3])
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.row-labels .word')).userSelect")
        != "none"
    )


def test_a_long_word_is_cut_where_there_is_little_room_and_whole_in_its_title(
    open_page: Open,
) -> None:
    look = made_look(["short", "x" * 10_000, "end"])
    page = open_page(look)
    for view in ("head", "lines", "lens"):
        page.evaluate(f"location.hash = 'view={view}'")
        settled(page, view=view)
        long = page.locator("#view .word", has_text="xxxx").first
        assert long.bounding_box()["width"] < 400
        assert long.get_attribute("title") == "x" * 10_000
        assert page.evaluate("document.documentElement.scrollHeight") < 3000


def test_right_to_left_words_keep_their_direction_and_the_others_theirs(open_page: Open) -> None:
    look = made_look(["שלום", "hello", "مرحبا", "123"])
    page = open_page(look, "#view=next")
    assert page.get_attribute(".strip", "dir") == "rtl"
    directions = page.eval_on_selector_all(
        ".strip .piece", "all => all.map(node => getComputedStyle(node).direction)"
    )
    assert directions == ["rtl", "ltr", "rtl", "ltr"]
    boxes = [piece.bounding_box()["x"] for piece in page.locator(".strip .piece").all()]
    assert boxes == sorted(boxes, reverse=True)


@pytest.mark.parametrize("translation", [False, True])
def test_a_phone_never_scrolls_sideways(open_page: Open, translation: bool) -> None:
    words = [f"word{position}" for position in range(60)]
    look = (
        made_look(words, source=words[:40], heads=16)
        if translation
        else made_look(words, inside={7, 9}, heads=12)
    )
    page = open_page(look, width=380, height=740)
    for number, view in enumerate(VIEWS[1:], start=3):  # the text is too long for the first
        page.keyboard.press(str(number))
        settled(page, view=view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
