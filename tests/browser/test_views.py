"""Every view draws the numbers of the look: pixels and texts are compared with it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.insight.inspect.whole_words import join_words
from qkv.lab import matrices
from support.browser_fixtures import Open
from support.look_page import cell_size, near, percents, pixel, ramp, settled, shades, status
from support.made_looks import CATS, made_look

CAT = ["cats", "chase", "mice", "[end]"]
KEDI = ["[start]", "kediler", "fareler", "i", "kovalar"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scale", ["root", "linear", "log"])
def test_the_heat_map_has_the_colour_of_every_weight(
    open_page: Open, theme: str, scale: str
) -> None:
    look = made_look()
    page = open_page(look, f"#view=head&layer=1&head=1&scale={scale}", theme=theme)
    weights = look.attention[0].layers[1][1]
    cell = cell_size(page, len(CATS))
    for row in range(len(CATS)):
        for column in range(len(CATS)):
            *colour, opaque = pixel(
                page, "canvas.cells", (column + 0.12) * cell, (row + 0.12) * cell
            )
            if column > row:
                assert opaque < 255  # hatched: the mask is not a weight of 0
            else:
                expected = ramp(float(weights[row, column]), dark=theme == "dark", scale=scale)
                assert near(tuple(colour), expected)


def test_the_status_names_query_key_and_weight_of_a_cell(open_page: Open) -> None:
    look = made_look()
    page = open_page(look, "#view=head&layer=2&head=0")
    cell = cell_size(page, len(CATS))
    page.hover("canvas.cells", position={"x": 1.5 * cell, "y": 6.5 * cell})
    weight = float(look.attention[0].layers[2][0, 6, 1])
    assert status(page) == f"Layer 2, head 0: “quick” → “cats”: {100 * weight:.1f}%"
    page.hover("canvas.cells", position={"x": 6.5 * cell, "y": 1.5 * cell})
    assert "hidden by the causal mask" in status(page)


def test_the_page_of_the_mask_opens_with_both_matrices_side_by_side(open_page: Open) -> None:
    both = matrices.quick_brown_heads()
    page = open_page(matrices.as_look("mask", matrices.quick_brown_side(), both))
    assert page.inner_text("nav [aria-current]") == "Side by side"
    assert page.locator(".pair h2").all_inner_texts() == list(both)
    left, right = (
        box for box in (heat.bounding_box() for heat in page.locator(".pair canvas.cells").all())
    )
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    assert page.locator(".pair .row-labels").all_inner_texts() == ["the\nquick\nbrown"] * 2

    page.locator(".pair canvas.cells").first.hover(
        position={"x": 0.9 * left["width"], "y": 0.5 * left["height"]}
    )
    free, masked = (float(attention.weights[1, 2]) for attention in both.values())
    assert (
        status(page) == f"“quick” → “brown”: without a mask, {100 * free:.1f}%; "
        f"with a causal mask, {masked:.0f}%"
    )
    page.click("nav >> text=Lines")
    settled(page, view="lines")
    assert page.locator("#choose-head option").all_inner_texts() == list(both)
    assert "without a mask" in status(page).lower()


def test_a_pinned_row_lists_and_shades_the_keys(open_page: Open) -> None:
    look = made_look()
    page = open_page(look, "#view=head&layer=0&head=0")
    cell = cell_size(page, len(CATS))
    page.mouse.move(0, 0)
    page.click("canvas.cells", position={"x": 0.5 * cell, "y": 4.5 * cell})
    settled(page, token=4)
    row = look.attention[0].layers[0][0, 4]
    assert page.inner_text(".side h2") == f"{CATS[4]} attends to"
    assert percents(page.inner_text(".bars")) == pytest.approx(
        row[:5].sort(descending=True).values.tolist(), abs=6e-4
    )
    shaded = shades(page, ".side .piece")
    assert shaded[int(row.argmax())] == "rgb({}, {}, {})".format(*ramp(float(row.max())))
    assert shaded[7] == ""


def test_the_heat_map_zooms_and_moves(open_page: Open) -> None:
    look = made_look([f"word{position}" for position in range(200)], depth=1, heads=1)
    page = open_page(look, "#view=head")
    weights = look.attention[0].layers[0][0]
    box = page.locator("canvas.cells").bounding_box()
    x, y = 0.3 * box["width"], 0.6 * box["height"]

    def under_the_mouse() -> tuple[int, int]:
        """The query and the key that the page names there."""
        page.mouse.move(box["x"] + x, box["y"] + y)
        row, column = map(int, re.findall(r"“word(\d+)”", status(page)))
        return row, column

    def has_its_colour(row: int, column: int) -> bool:
        left, top = page.evaluate(
            "() => new DOMMatrix(document.querySelector('.spot').style.transform)"
            ".toFloat32Array().slice(12, 14)"
        )
        return near(
            pixel(page, "canvas.cells", left + 5, top + 5)[:3], ramp(float(weights[row, column]))
        )

    assert under_the_mouse() == pytest.approx((120, 60), abs=1)
    page.keyboard.down("Control")
    for _ in range(4):
        page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("() => parseFloat(document.querySelector('.spot').style.width) > 14")
    settled(page, view="head")
    assert under_the_mouse() == pytest.approx((120, 60), abs=1)
    cell = page.evaluate("parseFloat(document.querySelector('.spot').style.width)")
    before = under_the_mouse()
    settled(page, view="head")
    assert has_its_colour(*before)
    page.mouse.down()
    page.mouse.move(box["x"] + x + 2 * cell, box["y"] + y + 3 * cell, steps=4)
    page.mouse.up()
    settled(page, view="head")
    assert under_the_mouse() == (before[0] - 3, before[1] - 2)
    settled(page, view="head")
    assert has_its_colour(before[0] - 3, before[1] - 2)
    page.keyboard.press("0")
    settled(page, view="head")
    page.mouse.move(0, 0)
    assert under_the_mouse() == pytest.approx((120, 60), abs=1)


def test_one_strong_cell_is_visible_when_zoomed_out(open_page: Open) -> None:
    T = 1500
    weights = torch.full((1, T, T), 1e-4)
    weights[0, 1100, 333] = 1
    look = made_look([f"w{position}" for position in range(T)], causal=False, layers=[weights])
    page = open_page(look, "#view=head&scale=root", height=600)
    page.wait_for_selector(".busy", state="hidden")
    settled(page, view="head")
    cell = cell_size(page, T)
    assert cell < 0.5
    around = [
        pixel(page, "canvas.cells", 333.5 * cell + x, 1100.5 * cell + y)[:3]
        for x in (-1, 0, 1)
        for y in (-1, 0, 1)
    ]
    assert any(near(value, ramp(1.0)) for value in around)


def test_all_heads_at_a_glance(open_page: Open) -> None:
    look = made_look(depth=3, heads=4)
    page = open_page(look)
    assert page.locator(".cell").count() == 12
    overview = look.attention[0].overview
    for layer, head in ((0, 0), (1, 3), (2, 2)):
        cell = f".grid > div:nth-child({layer + 2}) button:nth-of-type({head + 1})"
        colours = page.eval_on_selector(
            f"{cell} canvas",
            "canvas => [...canvas.getContext('2d')"
            ".getImageData(0, 0, canvas.width, canvas.height).data]",
        )
        for position, weight in enumerate(overview[layer, head].flatten().tolist()):
            row, column = divmod(position, len(CATS))
            *colour, opaque = colours[4 * position : 4 * position + 4]
            assert opaque == (0 if column > row else 255)  # the mask is hatched
            assert column > row or near(tuple(colour), ramp(weight))
    for number, digits in (("entropy", 2), ("distance", 1)):
        page.get_by_role("button", name=number.title()).first.click()
        settled(page, glance=number)
        shown = page.eval_on_selector_all(
            ".cell", "cells => cells.map(cell => cell.dataset.number)"
        )
        assert shown == [
            f"{value:.{digits}f}" for value in getattr(look.attention[0], number).flatten().tolist()
        ]
    page.click(".cell >> nth=6")
    settled(page, view="head", layer=1, head=2)


def test_lines_run_between_queries_and_keys(
    open_page: Open,
) -> None:
    straight = torch.eye(8).unsqueeze(0)
    crossed = straight.flip(-1)
    look = made_look(causal=False, layers=[torch.cat([straight, crossed])])
    page = open_page(look, "#view=lines&layer=0&head=0")
    height = page.evaluate(
        "parseFloat(document.querySelector('.frame').style.getPropertyValue('--height'))"
    )
    width = page.locator(".frame").bounding_box()["width"]
    blue, orange = (0x00, 0x72, 0xB2, 255), (0xD5, 0x5E, 0x00, 255)
    for row in range(8):
        assert near(pixel(page, ".frame canvas", width / 2, (row + 0.5) * height), blue, 3)
        assert pixel(page, ".frame canvas", width / 2, (row + 1) * height)[3] == 0
    page.click("[aria-label='Head 1']")
    settled(page, kept="0.1")
    assert page.inner_text(".chips").split("\n") == ["layer 0, head 0", "layer 0, head 1", "×"]
    apart = min(4, height / 4)  # two heads run side by side: where both begin, one above the other
    for side, colour in ((-apart / 2, blue), (apart / 2, orange)):
        assert near(pixel(page, ".frame canvas", width * 0.27, 0.5 * height + side), colour, 60)
    page.hover(".words.left .row >> nth=2")
    settled(page, kept="0.1")
    linked = page.eval_on_selector_all(
        ".words.right .row", "rows => rows.map(row => row.lastChild.textContent)"
    )
    assert [position for position, text in enumerate(linked) if text] == [2, 5]
    assert pixel(page, ".frame canvas", width / 2, 6.5 * height)[3] == 0


def test_an_encoder_decoder_has_three_kinds_and_its_source_on_the_left(open_page: Open) -> None:
    look = made_look(KEDI, inside={3}, source=CAT)
    page = open_page(look)
    assert page.inner_text("[aria-label='Kind of attention']").split() == [
        "Encoder",
        "Decoder",
        "Cross",
    ]
    page.keyboard.press("5")
    settled(page, view="lines", kind="cross")
    text = [*KEDI[1:], "[end]"]  # a row is a generated token
    assert [
        page.locator(f".words.{side} .word").all_inner_texts() for side in ("left", "right")
    ] == [CAT, text]
    for kind, attention in zip(("encoder", "decoder", "cross"), look.attention, strict=True):
        page.evaluate(f"location.hash = 'view=head&kind={kind}&layer=1&head=1'")
        settled(page, view="head", kind=kind)
        rows = page.locator(".row-labels .word").all_inner_texts()
        assert rows == list(attention.rows.tokens)
        cell = cell_size(page, len(rows))
        *colour, _ = pixel(page, "canvas.cells", 0.12 * cell, (len(rows) - 0.88) * cell)
        assert near(tuple(colour), ramp(float(attention.layers[1][1, -1, 0])))


@pytest.mark.parametrize("causal", [True, False])
def test_predicted_next_tokens(open_page: Open, causal: bool) -> None:
    look = made_look(causal=causal)
    assert look.next is not None
    page = open_page(look, "#view=next")
    page.click(".strip .piece >> nth=2")
    settled(page, token=2)
    assert page.inner_text(".side h2") == ("After chase" if causal else "At the position of chase")
    shown = [line.split("\n") for line in page.locator(".bars li").all_inner_texts()]
    assert [text for text, _ in shown] == [guess.text for guess in look.next[2]]
    assert [float(probability[:-1]) for _, probability in shown] == pytest.approx(
        [100 * guess.probability for guess in look.next[2]], abs=0.051
    )
    parts = page.eval_on_selector_all(
        ".bars .bar", "bars => bars.map(bar => bar.getBoundingClientRect().width)"
    )
    first, second = look.next[2][:2]
    assert parts[1] / parts[0] == pytest.approx(second.probability / first.probability, rel=0.05)
    assert page.locator(".bars .real").count() == causal  # the likeliest is always the next token


def test_what_is_predicted_does_not_depend_on_the_mask(
    open_page: Open,
) -> None:
    """A GPT without its mask predicts next tokens; a BERT of one token does not."""
    page = open_page(replace(made_look(causal=False), bidirectional=False), "#view=next")
    assert page.inner_text("nav [data-view=next]") == "Next token"
    page = open_page(replace(made_look(["alone"]), bidirectional=True), "#view=next")
    assert page.inner_text(".side h2") == "At the position of alone"


def test_the_lens_has_every_layer_and_position(open_page: Open) -> None:
    look = made_look()
    assert look.lens is not None
    page = open_page(look, "#view=lens")
    for layer, positions in enumerate(look.lens):
        for position, guesses in enumerate(positions):
            cell = page.locator(f"[data-layer='{layer}'][data-position='{position}']")
            assert cell.inner_text().split("\n") == [
                guesses[0].text,
                f"{round(100 * guesses[0].probability)}%",
            ]
    page.hover("[data-layer='0'][data-position='3']")
    assert page.inner_text(".side h2") == "After the embedding, following un"
    assert [line.split("\n")[0] for line in page.locator(".bars li").all_inner_texts()] == [
        guess.text for guess in look.lens[0][3]
    ]


def test_norms_of_the_residual_stream_and_the_gradient(open_page: Open) -> None:
    look = made_look()
    assert look.norms is not None
    assert look.norms.gradient is not None
    page = open_page(look, "#view=norms&token=5")
    names = (
        page.locator("figure").nth(1).locator("text.tick[text-anchor=middle]").all_text_contents()
    )
    assert names == ["embedding", "layer 0", "layer 1", "layer 2"]
    for number, layers in enumerate((look.norms.residual, look.norms.gradient)):
        values = torch.stack(layers)[:, 5]
        circles = page.locator("figure").nth(number).locator("circle")
        assert [
            float(value.split(": ")[1]) for value in circles.all_text_contents()
        ] == pytest.approx(values.tolist(), rel=1e-3)
        heights = torch.tensor(
            [float(circles.nth(position).get_attribute("cy") or "nan") for position in range(4)]
        )
        steps, logarithms = heights.diff(), values.log().diff()
        assert (steps * logarithms.sum()).allclose(logarithms * steps.sum(), atol=1e-2)
    page.evaluate("location.hash = 'view=norms&token=7'")
    settled(page, token=7)
    drawn = [page.locator("figure").nth(number).locator("circle").count() for number in (0, 1)]
    assert drawn == [4, 0]  # the last position has no loss
    assert "NaN" not in page.inner_html("#view")
    low = page.locator("figure").nth(1).locator("path.all").get_attribute("d") or ""
    heights = torch.tensor([float(value) for value in re.findall(r",([\d.]+)", low)])
    known, least = torch.stack(look.norms.gradient)[:, :-1], 300 - 28
    values = torch.cat([known.amax(1), known.amin(1).flip(0)])
    part = (values * 1.15 / known.min()).log() / (1.15**2 * known.max() / known.min()).log()
    assert heights.allclose(least - (least - 14) * part, atol=0.2)


def test_attribution_beside_attention(open_page: Open) -> None:
    look = made_look(inside={4, 5})
    assert look.attribution is not None
    page = open_page(look, "#view=attribution&layer=1&head=0&token=6&words=1")
    words = look.reading.text.words
    for number, weights in enumerate((look.attention[0].layers[1][0], look.attribution)):
        row = join_words(weights, words, words)[4].tolist()
        colour = shades(page, f".pair > div:nth-child({number + 1}) .piece")
        expected = [
            "" if weight**0.5 < 0.004 else "rgb({}, {}, {})".format(*ramp(weight)) for weight in row
        ]
        for one, other in zip(colour, expected, strict=True):
            assert bool(one) == bool(other)
            if one:
                assert near(*(tuple(map(int, value[4:-1].split(","))) for value in (one, other)), 3)


def test_a_notebook_shows_the_page_in_a_frame(
    open_page: Open, browser: Any, tmp_path: Path
) -> None:
    look = made_look()
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><p>In [1]:</p>{look._repr_html_()}", encoding="utf-8"
    )
    page = open_page(look)
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".cell >> nth=3").click()
    frame.locator("#qkv[data-shown*='view=head&']").wait_for()  # the canvas is there before
    assert frame.locator("canvas.cells").is_visible()
    assert frame.locator(".row-labels .word").all_inner_texts() == CATS


def test_a_text_of_one_token(open_page: Open) -> None:
    page = open_page(made_look(["alone"], depth=1, heads=1))
    for number, view in enumerate(
        ("model", "head", "heads", "lines", "next", "lens", "norms", "attribution"), start=2
    ):
        page.keyboard.press(str(number))
        settled(page, view=view)
        assert "alone" in page.inner_text("#view") or view == "heads"
