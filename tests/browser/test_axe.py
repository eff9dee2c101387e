"""No view and no tab breaks a rule of axe: light, dark and with forced colours."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import torch

from qkv.insight.look import Look, look
from qkv.models import GPT, GPTConfig
from qkv.text import train
from support.axe import violations
from support.browser_fixtures import Open
from support.look_page import settled, views
from support.made_looks import made_look
from support.playground_page import link
from support.sentences import SENTENCES

TOKENS = [" the", " cat", "s", " \ufe0f", " cat", " שלום", "x" * 60, ".", "  ", "<b>"]
THEMES = ("light", "dark", "forced")
MODELS = {
    "look": "gpt",
    "write": "gpt",
    "chat": "chat",
    "translate": "translator",
    "fill": "bert",
    "classify": "tuned",
}
SETTINGS = {
    "prompt": "the cat",
    "text": "the cat",
    "masked": "the [mask] sat",
    "said": '["the cat sat"]',
    "talk": '[{"role": "user", "content": "the cat"}]',
    "think": 1,
    "run": 1,
}
NEXT = ".distribution:not([aria-busy]) .two-bars li"
RESULTS = {
    "look": NEXT,
    "write": f".split:has(.result .tokens[aria-busy=false] .token) {NEXT}",  # it is written
    "chat": ".talk .turn",
    "translate": ".aligned-word",
    "fill": ".masks .bar",
    "classify": ".sheet .bar",
}


def tabs() -> list[str]:
    """The tabs of the playground."""
    code = files("qkv.serving").joinpath("web", "models.js").read_text(encoding="utf-8")
    listed = re.search(r"TABS = \{(.+?)\n\};", code, re.DOTALL)
    assert listed is not None

    return re.findall(r"^  (\w+): \[", listed[1], re.MULTILINE)


def themed(page: Any, theme: str) -> None:
    """Light, dark, or the colours of a high-contrast theme; nothing moves while axe looks."""
    colours = "dark" if theme == "forced" else theme
    forced = "active" if theme == "forced" else "none"
    page.emulate_media(color_scheme=colours, forced_colors=forced, reduced_motion="reduce")
    # The page learns of it with its next frame, and draws its shades again in the same event.
    page.wait_for_selector(f"html[data-theme={colours}]")


def small_look() -> Look:
    """A look at a small GPT with everything that a page can show."""
    torch.manual_seed(0)
    tokenizer = train("byte-pair", SENTENCES, 300)
    size = {"vocabulary": tokenizer.vocabulary, "context": 32}
    model = GPT(GPTConfig(width=16, depth=2, heads=2, position="rotary", **size))
    return look(model.eval(), "The cat sat, it  sat.", tokenizer=tokenizer, attribution=True)


def test_every_view_of_the_look_page(open_page: Open) -> None:
    page = open_page(small_look(), "#view=head")
    page.click(".what summary")  # its text is part of every view
    found = {}
    for theme in THEMES:
        themed(page, theme)
        for number, view in enumerate(views(), start=1):
            page.keyboard.press(str(number))
            settled(page, view=view)
            found[view, theme] = violations(page)

        page.keyboard.press("?")
        found["help", theme] = violations(page)
        page.keyboard.press("Escape")

    assert {name: broken for name, broken in found.items() if broken} == {}


def test_odd_tokens(open_page: Open) -> None:
    page = open_page(made_look(TOKENS, inside={2, 7}, depth=4, heads=3), "#view=head")
    found = {}
    for theme in THEMES:
        themed(page, theme)
        for view in ("head", "lines", "next", "lens"):
            page.keyboard.press(str(views().index(view) + 1))
            settled(page, view=view)
            found[view, theme] = violations(page)

    assert {name: broken for name, broken in found.items() if broken} == {}


def test_every_step_of_the_walk(open_page: Open) -> None:
    page = open_page(made_look(), "#view=walk&layer=0&head=0")
    found = {}
    for theme in THEMES:
        themed(page, theme)
        for step in range(1, len(page.query_selector_all(".pips > *")) + 1):
            page.evaluate(f"location.hash = 'view=walk&layer=0&head=0&token=4&step={step}'")
            settled(page, step=step, token=4)
            found[step, theme] = violations(page)

    assert len(found) >= 24
    assert {name: broken for name, broken in found.items() if broken} == {}


def test_every_tab_of_the_playground(visit: Open) -> None:
    found = {}
    for tab in tabs():
        page = visit(link(tab=tab, model=MODELS.get(tab, ""), **SETTINGS))
        if tab != "chat":
            page.wait_for_selector("#qkv[data-shown]")  # the view inside the model
        if tab in RESULTS:
            page.wait_for_selector(RESULTS[tab])

        for theme in THEMES:
            themed(page, theme)
            found[tab, theme] = violations(page)

    assert {name: broken for name, broken in found.items() if broken} == {}


def test_forced_colours_keep_bars_shades_and_choices(open_page: Open) -> None:
    page = open_page(made_look(heads=4), "#view=next&token=3")
    themed(page, "forced")
    colours = """selector => {
      const style = getComputedStyle(document.querySelector(selector));
      return [style.backgroundColor, style.color];
    }"""
    paper = page.evaluate(colours, "body")[0]
    assert page.evaluate(colours, ".bars .bar")[0] not in (paper, "rgba(0, 0, 0, 0)")
    shaded = page.evaluate(colours, ".piece[style*=background]")
    assert shaded[0] == page.eval_on_selector(
        ".piece[style*=background]", "node => node.style.backgroundColor"
    )
    chosen = page.evaluate(colours, "nav [aria-current]")
    other = page.evaluate(colours, "nav [data-view]:not([aria-current])")
    assert chosen[0] != other[0]
    marked = "getComputedStyle(document.querySelector('.piece.marked')).outlineStyle"
    assert page.evaluate(marked) == "solid"
