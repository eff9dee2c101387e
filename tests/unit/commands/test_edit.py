"""qkv edit: predictions before and after, as a table and JSON; bad input."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from qkv import artifact
from qkv.commands.edit import effect_table
from qkv.insight.inspect.attention_edits import Edit
from qkv.insight.inspect.model_input import Reading, Side, read
from qkv.insight.intervene.edit_effects import EditEffects, edit_effects
from qkv.insight.intervene.steering import Steering, steering_direction
from support.command_fixtures import Qkv

TEXT = "the cat sat"


def test_before_and_after(qkv: Qkv, models: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    edits = [Edit(0, 1), Edit.read("0.0:2>1=0.9")]
    expected = edit_effects(model, tokenizer, read(model, tokenizer, TEXT), edits, top=2, length=3)
    arguments = [
        "edit",
        models / "gpt",
        TEXT,
        "--change",
        "0.1=off",
        "--change",
        "0.0:2>1=0.9",
        "--top",
        2,
        "--length",
        3,
    ]

    printed = qkv(*arguments)
    assert printed.code == 0, printed.error
    assert "0.1=off, 0.0:2>1=0.9" in printed.out
    assert (
        f"loss of the text: {expected.loss_before:.3f} before, {expected.loss_after:.3f} after"
        in printed.out
    )
    assert "before: " in printed.out
    values = json.loads(qkv(*arguments, "--json").out)
    assert values["changes"] == ["0.1=off", "0.0:2>1=0.9"]
    assert values["moved"] == pytest.approx(expected.moved.tolist(), abs=1e-6)
    assert values["after"]["text"] == expected.text_after
    assert expected.after is not None
    guesses = [guess["text"] for guess in values["after"]["likeliest"][1]]
    assert guesses == [guess.text for guess in expected.after[1]]


def test_a_bert_and_a_translator(qkv: Qkv, models: Path) -> None:
    printed = qkv("edit", models / "bert", "the [mask] sat", "--change", "0.*=uniform")
    assert printed.code == 0, printed.error
    assert "before: " not in printed.out
    printed = qkv(
        "edit", models / "one", "--source", TEXT, "--change", "cross:0.0=off", "--length", 4
    )
    assert printed.code == 0, printed.error
    assert "after: " in printed.out


def change(moved: list[float]) -> EditEffects:
    ids = tuple(range(len(moved)))
    side = Side(ids, tuple(f"word{id}" for id in ids), ())
    return EditEffects(
        Reading(side), (Edit(0, 0),), None, None, torch.tensor(moved), None, None, None, None
    )


def bars(moved: list[float]) -> tuple[list[int], str]:
    """The lengths of the bars, and the whole output."""
    console = Console(file=io.StringIO(), width=100)
    console.print(effect_table(change(moved), blocks=True))
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    return [line.count("█") for line in output.splitlines() if "word" in line], output


def test_a_small_change_has_a_small_bar() -> None:
    lengths, output = bars([0.0, 0.00004])
    assert lengths == [0, 0]
    assert not set(output) & set("▏▎▍▌▋▊▉█")
    assert "a full bar is 0.10" in " ".join(output.split())
    assert bars([0.05, 0.1])[0] == [5, 10]
    lengths, output = bars([0.05, 0.5, 1.0])
    assert lengths == [0, 5, 10]
    assert "a full bar is 1.00" in " ".join(output.split())


def test_markup_is_shown_as_text(qkv: Qkv, models: Path) -> None:
    printed = qkv(
        "edit", models / "gpt", "[bold red]x[/]\x1b[31m", "--change", "0.1=off", "--length", 0
    )
    assert printed.code == 0, printed.error
    assert "\x1b[31m" not in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt", TEXT], "change: expected one or more"),
        (["gpt", TEXT, "--change", "loud"], "change: "),
        (["gpt", TEXT, "--change", "0.0:4"], "in quotation marks"),
        (["gpt", TEXT, "--change", "0.0:2>99=off"], "there is no token 99"),
        (["gpt", TEXT, "--change", "1.0=off"], "change: 1.0=off: expected a layer"),
        (["gpt", TEXT, "--change", "0.2=off"], "change: 0.2=off: expected a head"),
        (["gpt", TEXT, "--change", "0.0:1>2=off"], "change: "),
        (["one", "--source", TEXT, "--change", "0.0=off"], "cross:0.0=off"),
        (["gpt", TEXT, "--change", "0.0=off", "--top", "0"], "top: expected 1 or more, not 0"),
        (
            ["gpt", TEXT, "--change", "0.0=off", "--length", "-1"],
            "length: expected 0 or more, not -1",
        ),
        (["gpt", "--change", "0.0=off"], "text: there is nothing to read"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], message: str) -> None:
    printed = qkv("edit", models / arguments[0], *arguments[1:])
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""


def test_steering(qkv: Qkv, models: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    steering = Steering(0, steering_direction(model, tokenizer, "mice ran", TEXT, 0), -2.0)
    reading = read(model, tokenizer, TEXT)
    expected = edit_effects(model, tokenizer, reading, [], length=3, steering=steering)
    flags = ["--steer-to", "mice ran", "--steer-from", TEXT, "--steer-layer", 0]
    printed = qkv(
        "edit", models / "gpt", TEXT, *flags, "--steer-strength", -2, "--length", 3, "--json"
    )
    assert printed.code == 0, printed.error
    values = json.loads(printed.out)
    assert values["changes"] == ["steered after layer 0 with strength -2"]
    assert values["moved"] == pytest.approx(expected.moved.tolist(), abs=1e-5)
    assert values["after"]["text"] == expected.text_after
    missing = qkv("edit", models / "gpt", TEXT, "--steer-to", "mice ran")
    assert "expected --steer-to, --steer-from and --steer-layer together" in missing.error
