"""Heat maps of coloured cells: the colour is the weight, in every form of the map."""

from __future__ import annotations

import io
import math
import re

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from qkv.insight.render.terminal_cells import BLUES, SHADES, HeatMap, bar, fitted, mosaic, ruler
from support.looks import HOSTILE

WORDS = ("cats", "chase", "mice")
WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.05, 0.35, 0.6]])


def console(width: int = 80, *, colours: bool = True, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(
        file=file, width=width, force_terminal=colours, color_system="256" if colours else None
    )


def lines(shown: HeatMap, on: Console) -> list[list[Segment]]:
    return [list(line) for line in Segment.split_lines(on.render(shown))]


def text(line: list[Segment]) -> str:
    return "".join(segment.text for segment in line)


def ground(segment: Segment) -> int | None:
    return (
        None
        if segment.style is None or segment.style.bgcolor is None
        else segment.style.bgcolor.number
    )


def test_a_cell_has_its_number_and_the_colour_of_its_root() -> None:
    header, *rows = lines(HeatMap(WEIGHTS, WORDS, WORDS), console())
    assert text(header).split() == list(WORDS)
    for row, weights in zip(rows, WEIGHTS.tolist(), strict=True):
        cells = [segment for segment in row if ground(segment) is not None]
        assert [float(cell.text) for cell in cells] == pytest.approx(weights, abs=0.005)
        expected = [BLUES[min(9, int(10 * math.sqrt(weight)))] for weight in weights]
        assert [ground(cell) for cell in cells] == expected
    assert len(set(BLUES)) == len(BLUES)


def test_letters_are_black_on_bright_and_white_on_dark() -> None:
    _, first, *_ = lines(HeatMap(WEIGHTS[:1], WORDS[:1], WORDS), console())
    letters = [segment.style.color.number for segment in first if ground(segment) is not None]
    assert letters == [16, 245, 245]


@pytest.mark.parametrize("colours", [True, False])
@pytest.mark.parametrize("width", [200, 60, 34, 25])
def test_every_line_fits_and_columns_are_aligned(width: int, colours: bool) -> None:
    """Numbers, narrow cells and pooled cells with wide, right-to-left and very long tokens."""
    words = [*HOSTILE, "end"]
    weights = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    shown = [
        text(line)
        for line in lines(HeatMap(weights, words, words, "title"), console(width, colours=colours))
    ]
    assert all(cell_len(line) <= width for line in shown)
    body = [line for line in shown[2:] if not line.startswith("Each cell")]
    assert len({cell_len(line) for line in body}) == 1


def test_narrower_forms_have_the_same_weights() -> None:
    weights = torch.eye(12) * 0.5 + 0.5 / 12
    words = [f"w{position}" for position in range(12)]
    numbered = lines(
        HeatMap(weights, ["word" + name for name in words], ["word" + name for name in words]),
        console(84),
    )
    assert text(numbered[0]).split() == [str(position) for position in range(12)]
    assert [text(line).split()[:2] for line in numbered[1:]] == [
        [str(at), f"word{word}"] for at, word in enumerate(words)
    ]
    assert "0.54" in text(numbered[1])

    narrow = lines(HeatMap(weights, words, words), console(40))
    for position, line in enumerate(narrow[1:]):
        grounds = [
            ground(segment)
            for segment in line
            for _ in range(cell_len(segment.text) // 2)
            if ground(segment)
        ]
        assert grounds.index(BLUES[7]) == position  # the root of 0.54
        assert grounds.count(BLUES[2]) == 11


def test_pooled_cells_have_the_largest_weight_and_a_note() -> None:
    weights = torch.zeros(100, 100)
    weights[99, 3] = 1.0
    names = [f"w{position}" for position in range(100)]
    *shown, note = lines(HeatMap(weights, names, names), console(60))
    several = int(re.findall(r"among (\d+) by \1 tokens", text(note))[0])
    bright = [
        (number, segment)
        for number, line in enumerate(shown)
        for segment in line
        if ground(segment) == BLUES[-1]
    ]
    assert len(bright) == 1
    assert bright[0][0] == 1 + 99 // several  # below the ruler


def test_without_colours_shades_are_characters() -> None:
    weights = torch.tensor([[1.0, 0.25, 0.0]] * 1).repeat(1, 12)  # (1, 36)
    names = [f"{position}" for position in range(36)]
    for encoding, characters in (("utf-8", SHADES[1]), ("ascii", SHADES[0])):
        shown = lines(
            HeatMap(weights, ["row"], names), console(80, colours=False, encoding=encoding)
        )
        (line,) = [text(row) for row in shown if text(row).lstrip().startswith("row")]
        half = characters[int(0.5 * len(characters))]
        assert line.endswith((characters[-1] * 2 + half * 2 + "  ") * 12)


def test_columns_of_another_text_have_a_legend() -> None:
    weights = torch.full((1, 30), 1 / 30)
    names = [f"word{position}" for position in range(30)]
    *_, legend = [text(line) for line in lines(HeatMap(weights, ["row"], names), console(300))]
    assert "row" in legend  # there is room for all names
    shown = " ".join(text(line) for line in lines(HeatMap(weights, ["row"], names), console(90)))
    assert re.search(r"columns: 0 word0 +1 word1 .* 29 word29", shown)


def test_an_ascii_terminal_gets_ascii() -> None:
    plain = console(40, colours=False, encoding="ascii")
    assert fitted("東京", 6, plain) == "??    "
    shown = "\n".join(
        text(line) for line in lines(HeatMap(WEIGHTS, ("a", "東", "…"), WORDS), plain)
    )
    assert shown.isascii()


def test_right_to_left_text_does_not_turn_what_follows() -> None:
    assert fitted("كتاب", 6, console()) == "كتاب\u200e  "
    assert fitted("book", 6, console(), "right") == "  book"


def test_a_mosaic_has_two_rows_in_a_line() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.25, 0.25]])
    first, second = mosaic(weights, 4, console())
    assert [str(span.style) for span in first.spans] == [
        f"color({BLUES[9]}) on color({BLUES[0]})",
        f"color({BLUES[0]}) on color({BLUES[9]})",
    ]
    assert [str(span.style) for span in second.spans] == [f"color({BLUES[5]})"] * 2
    plain = mosaic(weights, 4, console(colours=False))
    assert [line.plain for line in plain] == ["█ ", " █", "▒▒"]


def test_bars_and_rulers() -> None:
    assert [bar(1.0), bar(0.5), bar(0.0)] == ["█" * 40, "█" * 20, ""]
    assert bar(0.5 + 1 / 80) == "█" * 20 + "▌"
    assert bar(0.5, 10, blocks=False) == "#####"
    assert ruler(3, 4).split() == ["0", "1", "2"]
    assert ruler(12, 2).split() == ["0", "2", "4", "6", "8", "10"]
    line = ruler(12, 2)
    assert [line.index(number) for number in ("2", "4", "6", "8")] == [4, 8, 12, 16]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "shift_jis", "utf-8"])
def test_text_never_controls_the_terminal_in_any_encoding(encoding: str) -> None:
    for word in (
        "\x1b[31mred",
        "a\x9b2Jb",
        "\u202eturned",
        "two\nlines\tmore",
        "\x07",
        "東京タワー",
    ):
        for width in (1, 4, 12):
            shown = fitted(word, width, console(encoding=encoding))
            assert cell_len(shown) == width
            assert shown.encode(encoding)
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", shown)
    assert fitted("\x1b[31mred", 8, console(encoding="ascii")) == "?[31mred"


def test_every_form_can_be_written_to_an_ascii_terminal() -> None:
    """Also a title that is too long, and cells that stand for several tokens."""
    on = console(40, colours=False, encoding="ascii")
    words = [f"w{position}" for position in range(60)]
    on.print(HeatMap(torch.eye(60), words, words, "a title " * 10))
    on.file.flush()
