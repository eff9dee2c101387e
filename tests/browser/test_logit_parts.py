"""The parts of a logit below the attribution: the numbers of the look, and heads to open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qkv.insight.attribute.logit_attribution import LogitParts
from qkv.insight.look import Look
from support.browser_fixtures import Open
from support.look_page import settled
from support.made_looks import CATS, made_look


def with_parts(look: Look) -> Look:
    """The look with random parts of each position's logit."""
    cross = None
    if look.reading.source is not None:
        cross = torch.randn(3, 2)
    parts = []
    for position in range(len(CATS)):
        heads, bias, feed_forward = torch.randn(3, 2), torch.randn(3), torch.randn(3)
        total = float(heads.sum() + bias.sum() + feed_forward.sum()) + 0.5
        assert look.next is not None
        token = look.next[position][0].id
        parts.append(
            LogitParts(
                position, token, None, total, 0.25, 0.0, heads, cross, bias, feed_forward, 0.25
            )
        )
    return replace(look, parts=parts)


def titles(page: Any) -> dict[str, float]:
    """The name and the number of each cell of the map."""
    numbers = {}
    for title in page.eval_on_selector_all(".parts-map td", "all => all.map(node => node.title)"):
        name, _, number = title.partition(": ")
        numbers[name] = float(number.replace("−", "-"))
    return numbers


def test_the_parts_of_the_chosen_token(open_page: Open) -> None:
    look = with_parts(made_look())
    assert look.parts is not None
    page = open_page(look, "#view=attribution&token=2")
    split = look.parts[2]
    numbers = titles(page)
    assert len(numbers) == 3 * 4
    for layer in range(3):
        for head in range(2):
            expected = float(split.heads[layer, head])
            assert abs(numbers[f"head {layer}.{head}"] - expected) < 0.006
        assert abs(numbers[f"feed-forward {layer}"] - float(split.feed_forward[layer])) < 0.006
    assert f"{abs(split.total):.2f}" in page.inner_text(".logit-parts .note")
    first = page.inner_text(".parts-list li >> nth=0")
    name, value = split.strongest(1)[0]
    assert f"{abs(value):.2f}" in first
    assert name.replace("attention ", "") in first

    # Another token, then a head
    page.keyboard.press("n")
    settled(page, view="attribution", token="3")
    changed = titles(page)
    assert abs(changed["head 0.0"] - float(look.parts[3].heads[0, 0])) < 0.006
    page.click(".parts-map td[data-layer='1'][data-head='1']")
    settled(page, view="head", layer="1", head="1")


def test_a_head_of_a_translator_is_one_of_its_decoder(open_page: Open) -> None:
    look = with_parts(made_look(source=["Die", " Katze"]))
    page = open_page(look, "#view=attribution&kind=cross&token=2")
    page.click(".parts-map td[data-layer='1'][data-head='1']")
    settled(page, view="head", kind="decoder", layer="1", head="1")


def test_a_look_without_parts(open_page: Open) -> None:
    page = open_page(made_look(), "#view=attribution")
    assert not page.locator(".logit-parts").is_visible()
