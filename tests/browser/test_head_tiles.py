"""All heads as named tiles on one screen; what is left out, means, sums and a second head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.insight.heads.head_names import telling_heads
from qkv.insight.look import Look
from qkv.lab import matrices
from support.browser_fixtures import Open
from support.look_page import cell_size, near, percents, pixel, ramp, settled, status
from support.made_looks import CATS, made_look

TOKENS = ["A", "cat", "sat", "near", "one", "mat", "while", "he", "slept", "."]
T = len(TOKENS)
BOXES = """cells => cells.map(cell => {
  const {left, top, right, bottom} = cell.getBoundingClientRect();
  return [left, top, right, bottom];
})"""


def planted(target: Any, share: float = 0.9) -> Tensor:
    """Each query gives a share of its weight to one key, and the rest to all that it sees."""
    seen = torch.ones(T, T).tril()
    weights = (1 - share) * seen / seen.sum(-1, keepdim=True)
    for row in range(T):
        weights[row, min(row, target(row))] += share
    return weights


@pytest.fixture(scope="module")
def look() -> Look:
    """Two layers: previous, first; subject, and a head without a name."""
    previous = planted(lambda row: max(0, row - 1))
    first = planted(lambda row: 0)
    subject = planted(lambda row: 1, share=0.7)
    uniform = planted(lambda row: row, share=0.0)
    layers = [torch.stack([previous, first]), torch.stack([subject, uniform])]
    return made_look(TOKENS, layers=layers)


@pytest.mark.parametrize(("depth", "heads"), [(30, 9), (12, 12), (24, 16)])
def test_all_heads_are_on_one_screen(open_page: Open, depth: int, heads: int) -> None:
    torch.manual_seed(0)
    page = open_page(made_look(TOKENS, depth=depth, heads=heads), width=1440, height=900)
    boxes = torch.tensor(page.eval_on_selector_all(".cell", BOXES)).view(depth, heads, 4)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert boxes.min() >= 0
    assert boxes[..., 2].max() <= 1440
    assert boxes[..., 3].max() <= 900
    assert (boxes[..., 2] - boxes[..., 0]).min() >= 20
    assert (boxes[:, 1:, 0] >= boxes[:, :-1, 2]).all()  # side by side
    down = boxes[1:, :, 1] >= boxes[:-1, :, 3]
    further = boxes[1:, :, 0] > boxes[:-1, -1:, 2]
    assert (down | further).all()  # the next layer is below, or begins another column


def test_tiles_have_names_to_sort_and_filter_by(open_page: Open, look: Look) -> None:
    page = open_page(look, width=1440, height=900)
    assert page.get_attribute(".cell[aria-current]", "data-at") == "1.0"  # the telling head
    assert page.locator(".tag .name").all_inner_texts() == ["prev", "first", "subj", ""]
    weight = float(look.attention[0].layers[1][0, 2:, 1].mean())
    assert page.inner_text(".side .says") == (
        f"Nearly every token looks at “cat” (mean {weight:.0%}): a subject head."
    )
    assert "subject (cat)" in (page.get_attribute("[data-at='1.0']", "aria-label") or "")
    chips = page.locator(".names button").all_inner_texts()
    assert chips == ["subject 1", "previous 1", "first 1"]

    page.click(".names button >> nth=1")
    settled(page, only="previous")
    pale = page.eval_on_selector_all(".cell.other", "cells => cells.map(cell => cell.dataset.at)")
    assert pale == ["0.1", "1.0", "1.1"]
    page.click("text=By how telling")
    settled(page, sort="telling")
    assert page.locator(".cell:visible").count() == 1
    page.click(".names button >> nth=1")
    page.wait_for_function("() => !location.hash.includes('only')")
    order = page.eval_on_selector_all(
        ".cell",
        "cells => cells.toSorted((a, b) => a.style.gridColumn.localeCompare(b.style.gridColumn))"
        ".map(cell => cell.dataset.at)",
    )
    assert order == ["1.0", "0.0", "1.1", "0.1"]  # subject, previous, no name, at rest
    page.focus(".cell[aria-current]")
    page.keyboard.press("ArrowRight")
    settled(page, layer=0, head=0)
    page.keyboard.press("Enter")
    settled(page, view="head", layer=0, head=0)
    page.keyboard.press("Shift+ArrowDown")  # the focus is in the map
    assert status(page).startswith("Layer 0, head 0: “A” → “A”")
    assert "a previous-token head" in page.inner_text(".side .says")


def test_the_first_token_is_left_out_and_the_rest_rescaled(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=head&layer=0&head=1&without=1&token=9")
    weights = look.attention[0].layers[0][1].double()
    rest = weights[:, 1:] / weights[:, 1:].sum(1, keepdim=True)
    cell = cell_size(page, T)
    for row, column in ((5, 1), (9, 4), (9, 9)):
        *colour, _ = pixel(page, "canvas.cells", (column + 0.12) * cell, (row + 0.12) * cell)
        assert near(tuple(colour), ramp(float(rest[row, column - 1])))
    assert page.locator(".column-labels .left").all_inner_texts() == ["A"]
    share = float(weights[1:, 0].mean())
    told = f"Left out: “A” takes {100 * share:.0f}% of the weight of this head."
    assert told in page.inner_text(".side")
    expected = rest[9].sort(descending=True).values[:8].tolist()
    assert percents(page.inner_text(".bars"))[:8] == pytest.approx(expected, abs=1e-3)
    page.click("nav [data-view=lines]")
    settled(page, view="lines", without=1)
    assert told in page.inner_text("#view")
    page.click("nav [data-view=heads]")
    settled(page, view="heads", without=1)
    assert "of the weight of all heads" in page.inner_text("#view .note")
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 9, 10, 1).data]"
    last = page.eval_on_selector("[data-at='0.1'] canvas", pixels)
    assert last[3] == 0  # hatched
    assert near(tuple(last[8:11]), ramp(float(rest[9, 1])), 10)  # 8 bits
    page.click("text=Leave out “A”")
    page.wait_for_function("() => !location.hash.includes('without')")


def test_means_sums_and_a_second_head(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=head&layer=0&head=0&sums=1")
    layers = look.attention[0].layers
    sums = layers[0][0].sum(0)
    label = page.get_attribute(".sum-below", "aria-label") or ""
    largest = int(sums.argmax())
    assert f"“{TOKENS[largest]}” {float(sums[largest]):.2f}" in label
    for mean, weights in (
        ("layer", layers[0].mean(0)),
        ("all", torch.cat([layers[0], layers[1]]).mean(0)),
    ):
        page.select_option("#choose-mean", mean)
        settled(page, mean=mean)
        cell = cell_size(page, T)
        page.mouse.move(0, 0)
        page.hover("canvas.cells", position={"x": 2.5 * cell, "y": 8.5 * cell})
        assert status(page).endswith(f"“slept” → “sat”: {100 * float(weights[8, 2]):.1f}%")

    page.select_option("#choose-mean", "")
    page.click("text=Compare")
    settled(page, compare="1.0")  # the telling one
    assert page.locator("canvas.cells").count() == 2
    left, right = (box.bounding_box() for box in page.locator("canvas.cells").all())
    assert left["y"] == pytest.approx(right["y"], abs=2)
    assert left["x"] + left["width"] < right["x"]
    assert right["x"] + right["width"] <= 1200
    cell = left["height"] / T
    page.hover("canvas.cells >> nth=0", position={"x": 1.5 * cell, "y": 8.5 * cell})
    one, two = float(layers[0][0, 8, 1]), float(layers[1][0, 8, 1])
    assert status(page).endswith(f"{100 * one:.1f}%; layer 1, head 0: {100 * two:.1f}%")
    page.click("text=Difference")
    settled(page, difference=1)
    second = "canvas.cells[aria-label^='The second']"
    point = ((1 + 0.12) * cell, (8 + 0.12) * cell)
    red, _, blue, _ = pixel(page, second, *point)
    assert red > blue  # orange: the second head gives more


def test_a_threshold_hides_lines_and_tells_how_many(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=lines&layer=1&head=0&least=30")
    weights = look.attention[0].layers[1][0]
    drawn, lines = int((weights > 0.3).sum()), int((weights > 0.005).sum())
    assert f"{drawn} of {lines} lines: weights of 30.0% and more." in page.inner_text("#view")
    page.fill("#least", "90")
    settled(page, least=90)
    assert f"{int((weights > 0.9).sum())} of {lines} lines" in page.inner_text("#view")


def test_the_wheel_scrolls_the_page_and_maps_stay_readable(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=head", width=720, height=450)  # 1440 x 900 at 200%
    assert cell_size(page, T) >= 22
    before = page.evaluate("document.querySelector('.plot').style.cssText")
    box = page.locator("canvas.cells").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.wheel(0, 200)
    page.wait_for_function("() => scrollY > 0")
    assert cell_size(page, T) == pytest.approx(box["height"] / T)
    assert page.evaluate("document.querySelector('.plot').style.cssText") == before
    page.click("[aria-label^='Zoom in']")
    page.wait_for_function("() => document.querySelector('canvas.cells').style.cursor === 'grab'")
    page.keyboard.press("0")
    page.wait_for_function(
        "() => document.querySelector('canvas.cells').style.cursor === 'crosshair'"
    )
    for width, height in ((1024, 768), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_function(
            "() => document.querySelector('canvas.cells').getBoundingClientRect().bottom"
            " <= innerHeight"
        )


def test_maps_share_one_resize_listener(open_page: Open) -> None:
    """Four maps are built: two side by side, one of the head, one of a second head."""
    both = matrices.quick_brown_heads()
    page = open_page(matrices.as_look("mask", matrices.quick_brown_side(), both))
    session = page.context.new_cdp_session(page)
    window = session.send("Runtime.evaluate", {"expression": "window"})["result"]["objectId"]
    found = session.send("DOMDebugger.getEventListeners", {"objectId": window})["listeners"]
    assert [listener["type"] for listener in found].count("resize") <= 2


def test_two_models_are_side_by_side(open_page: Open, look: Look) -> None:
    other = made_look(TOKENS, depth=1, heads=3, model="another")
    page = open_page(look, against=other, width=1440)
    assert page.locator("canvas.cells").count() == 2
    head = (telling_heads(other.of())[0][1] + 1) % 3  # another than the one that is shown first
    page.select_option("[aria-label='Second head']", f"head {head}")
    page.wait_for_function(f"() => location.hash.includes('compare=0.{head}')")
    settled(page, compare=f"0.{head}")
    cell = cell_size(page, T)
    page.hover("canvas.cells >> nth=0", position={"x": 1.5 * cell, "y": 8.5 * cell})
    weight = float(other.attention[0].layers[0][head, 8, 1])
    assert status(page).endswith(f"; another, layer 0, head {head}: {100 * weight:.1f}%")
    with pytest.raises(ValueError, match=r"^against: another reads the text as 8 tokens"):
        open_page(look, against=made_look(CATS, model="another"))
