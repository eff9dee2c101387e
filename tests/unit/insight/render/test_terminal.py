"""Views in the terminal: each has the numbers of the look, and text is never markup."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import get_args

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.capture import unmasked
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look
from qkv.insight.look import look as look_of
from qkv.insight.render.terminal import show
from qkv.insight.render.terminal_cells import BLUES
from qkv.insight.render.views import View, ViewChoice
from qkv.text import train
from support.families import bert, gpt
from support.looks import HOSTILE, look_at, translation

TOKENS = ("the", "quick", "brown", "fox")


def printed(look: Look, width: int = 100, *, colours: bool = False, **how: object) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colours,
        color_system="256" if colours else None,
        highlight=False,
    )
    show(look, console, ViewChoice(**how))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_head_is_its_weights() -> None:
    look = look_at(TOKENS)
    title, _, header, *rows = printed(look, view="head", layer=1, head=2).splitlines()
    assert title == "Self-attention, layer 1, head 2"
    assert header.split() == list(TOKENS)
    weights = look.attention[0].layers[1][2]
    for number, (row, token) in enumerate(zip(rows, TOKENS, strict=True)):
        seen = [f"{weight:.2f}" for weight in weights[number, : number + 1].tolist()]
        assert row.split() == [token, *seen, *["╱"] * (len(TOKENS) - number - 1)]


def test_the_first_token_can_be_left_out() -> None:
    look = look_at(TOKENS)
    weights = look.attention[0].layers[1][2].double()
    _, _, told, _, *rows = printed(
        look, view="head", layer=1, head=2, without_first=True
    ).splitlines()
    assert told == f"Left out: “{TOKENS[0]}”, {float(weights[1:, 0].mean()):.0%} of the weight."
    last = (weights[-1, 1:] / weights[-1, 1:].sum()).tolist()
    assert rows[-1].split() == [TOKENS[-1], "╱", *(f"{weight:.2f}" for weight in last)]


def test_tokens_are_counted_as_an_edit_counts_them() -> None:
    """The numbers beside a head's tokens are those that `qkv edit` takes."""
    tokenizer = train("words", ["the quick brown fox jumps over it"], 40)
    model = gpt(vocabulary=tokenizer.vocabulary)
    with apply_edits(model, [Edit.read("0.0:4>1=off")]):
        look = look_of(model, "the quick brown fox jumps over it", tokenizer=tokenizer)
    _, _, header, *rows = printed(look, 50, view="head", head=0).splitlines()
    assert header.split() == ["0", "1", "2", "3", "4", "5", "6"]
    number, token, *weights = next(row.split() for row in rows if "jumps" in row)
    assert (number, token) == ("4", "jumps")
    assert [position for position in range(5) if weights[position] == "0.00"] == [1]


def test_without_a_head_the_mean_is_shown() -> None:
    look = look_at(TOKENS)
    title, *_, last = printed(look, view="head", layer=-1).splitlines()
    assert title == "Self-attention, layer 1, mean of 3 heads"
    mean = look.attention[0].layers[1].mean(0)[3]
    assert last.split() == ["fox", *(f"{weight:.2f}" for weight in mean.tolist())]


def test_words_are_joined() -> None:
    words = [WholeWord("the", [0]), WholeWord("quickbrown", [1, 2]), WholeWord("fox", [3])]
    look = look_at(TOKENS, words=words)
    *_, last = printed(look, view="head", head=0, words=True).splitlines()
    a, b, c, d = look.attention[0].layers[0][0][3].tolist()
    assert last.split() == ["fox", *(f"{weight:.2f}" for weight in (a, b + c, d))]


def test_all_heads_stand_in_a_grid() -> None:
    look = look_at(TOKENS, layers=3, heads=5)
    _, _, header, *rows = printed(look, colours=True, view="heads").splitlines()
    assert re.sub(r"\x1b\[[\d;]*m", "", header).split() == ["0", "1", "2", "3", "4"]
    pixels = [row for row in rows if "▀" in row]
    assert len(pixels) == 3 * 2  # four rows of a head in two lines
    assert all(row.count("▀") == 5 * 4 for row in pixels)
    assert f"38;5;{BLUES[-1]};48;5;" in pixels[0]  # the first token attends to itself alone


def test_too_many_heads_are_one_cell_each() -> None:
    look = look_at(["w"] * 6, layers=2, heads=16)
    text = printed(look, 60, view="heads")
    assert "entropy" in text
    look = look_at(["w"] * 6, layers=2, heads=4)
    assert f"{float(look.attention[0].entropy[1, 3]):.1f}" in printed(look, view="numbers")


def test_lines_name_the_heaviest_first() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.01, 0.03, 0.96]])
    look = translation(["cats", "chase", "mice"], ["kediler", "fareleri"], weights)
    _, _, first, second = printed(look, view="lines").splitlines()
    assert (first.split()[0], second.split()[0]) == ("kediler", "fareleri")
    assert re.findall(r"(\d+)%\s+(\w+)", first) == [("70", "cats"), ("20", "chase"), ("10", "mice")]
    assert re.findall(r"(\d+)%\s+(\w+)", second) == [("96", "mice")]


def test_next_and_lens_show_the_predictions() -> None:
    look = look_at(TOKENS)
    title, *rows = printed(look, view="next").splitlines()
    assert title == "Predicted next tokens"
    for row, token in zip(rows, TOKENS, strict=True):
        assert re.search(rf"{token} █+ +75% after {token}  12% other", row)
    lens = printed(look, 120, view="lens").splitlines()
    header, embedding, first, last = lens[2:6]
    assert header.split() == list(TOKENS)
    assert embedding.startswith("embedding")
    assert [line.split()[:2] for line in (first, last)] == [["layer", "0"], ["layer", "1"]]
    assert all(f"2 {token}" in last for token in TOKENS)
    assert len({cell_len(line) for line in (embedding, first, last)}) == 1


def test_the_title_of_predictions_does_not_depend_on_the_mask() -> None:
    """A GPT without its mask predicts next tokens; a BERT's weights on one token are a triangle."""
    tokenizer = train("characters", ["abcdefg"], 100)
    model = gpt(vocabulary=tokenizer.vocabulary)
    with unmasked(model):
        free = look_of(model, "abc", tokenizer=tokenizer)
    assert not free.attention[0].causal
    assert printed(free, view="next").startswith("Predicted next tokens")
    model = bert(vocabulary=tokenizer.vocabulary)
    tokenizer.start = tokenizer.end = None  # no special tokens around a text
    alone = look_of(model, "a", tokenizer=tokenizer)
    assert len(alone.reading.text.ids) == 1
    assert printed(alone, view="next").startswith("Predicted token at each position")


def test_a_translator_s_attribution_has_rows_like_its_attention() -> None:
    look = translation(
        ["cats", "chase"], ["kediler", "kovalar"], torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    )
    text = printed(replace(look, attribution=look.attention[0].layers[0][0]), view="attribution")
    above, below = text.split("Attribution: gradient times input")
    assert (
        above.split()[-6:]
        == below.split()[-6:]
        == ["kediler", "0.70", "0.30", "kovalar", "0.40", "0.60"]
    )


def test_a_long_lens_is_continued_below() -> None:
    tokens = [f"w{position}" for position in range(40)]
    text = printed(look_at(tokens), 80, view="lens")
    assert all(re.search(rf"\b{token}\b", text) for token in tokens)
    assert text.count("embedding") > 1


def test_norms_are_medians() -> None:
    text = printed(look_at(TOKENS), view="norms")
    residual, gradient = text.split("Gradient norm")
    assert re.findall(r"(embedding|layer \d)\s+█+\S*\s+([\d.]+)\s+(\S+) to (\S+)", residual) == [
        ("embedding", "2.5", "1", "4"), ("layer 0", "5", "2", "8"), ("layer 1", "7.5", "3", "12"),
    ]  # fmt: skip
    assert re.findall(r"([\d.]+)\s+(\S+) to (\S+)", gradient) == [
        ("0.02", "0.01", "0.03"), ("0.04", "0.02", "0.06"), ("0.06", "0.03", "0.09"),
    ]  # fmt: skip


def test_entropy_and_distance_by_head() -> None:
    look = look_at(TOKENS)
    text = printed(look, view="numbers")
    entropy, distance = text.split("distance in tokens")
    for numbers, part in (
        (look.attention[0].entropy, entropy),
        (look.attention[0].distance, distance),
    ):
        for layer, row in enumerate(numbers.tolist()):
            (line,) = [line for line in part.splitlines() if line.startswith(f"layer {layer}")]
            assert line.split()[2:] == [f"{value:.1f}" for value in row]
    cross = translation(["a", "b"], ["c"], torch.tensor([[0.5, 0.5]]))
    assert "distance" not in printed(cross, view="numbers")


def test_attribution_is_printed_below_attention() -> None:
    text = printed(look_at(TOKENS), view="attribution", layer=0, head=0)
    above, below = text.split("Attribution: gradient times input")
    assert (
        above.splitlines()[-2].split() == below.splitlines()[-1].split()
    )  # here they are the same numbers


@pytest.mark.parametrize("colours", [True, False])
@pytest.mark.parametrize("width", [140, 40])
@pytest.mark.parametrize("view", get_args(View))
def test_text_is_never_markup_and_no_line_is_too_long(
    view: View, width: int, colours: bool
) -> None:
    hostile = [*HOSTILE, "\x1b[31mred", "line\nbreak", "\u202eturned"]
    text = printed(look_at(hostile), width, colours=colours, view=view)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "\x1b" not in plain
    assert "\u202e" not in plain
    assert all(cell_len(line) <= width for line in plain.splitlines())
    if view in ("head", "lines", "next", "lens"):
        assert "<scr" in plain
        assert "[bo" in plain


@pytest.mark.parametrize("view", get_args(View))
def test_a_single_token_and_a_long_text_are_shown(view: View) -> None:
    assert printed(look_at(["one"]), view=view)
    long = printed(
        look_at([f"w{position}" for position in range(300)], layers=1, heads=1), view=view
    )
    if view == "head":
        assert len(long.splitlines()) < 60
        assert "Each cell: the largest weight among" in long


def test_errors_name_what_is_missing(without_shape_checks: None) -> None:
    look = translation(["a"], ["b"], torch.ones(1, 1))
    for view, message in {
        "model": "model: it was not computed",
        "walk": "walks: they were not computed",
        "next": "next: this model predicts no tokens",
        "lens": "lens: it was not computed",
        "norms": "norms: they were not computed",
        "attribution": "attribution: it was not computed",
        "heart": f"^view: expected one of {', '.join(get_args(View))}, not 'heart'$",
    }.items():
        with pytest.raises(ValueError, match=message):
            printed(look, view=view)
    with pytest.raises(ValueError, match="layer: expected 0 to 0, or -1 for the last, not 1"):
        printed(look, view="head", layer=1)
    with pytest.raises(ValueError, match="head: expected 0 to 0"):
        printed(look, view="head", head=3)
    with pytest.raises(ValueError, match="kind: "):
        printed(look, view="head", kind="self")
