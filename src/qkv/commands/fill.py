"""qkv fill: a BERT guesses the words that are masked in a text."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    note_unknown,
    open_model,
    printable,
    standard_input,
)
from qkv.generation.fill import Guess, fill, masks_of
from qkv.insight.render.terminal_cells import bar
from qkv.models import BERT
from qkv.tables import Table


def run(
    model: ModelName,
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT]")] = (),
    top: int = 5,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Guess the masked words of a text, each with its probability.

    Args:
        model: The folder of a run or of transformers that holds a BERT.
        text: The text, with [mask] for each missing word; what comes through a pipe unless given.
        top: So many guesses for each mask.
        as_json: A line of JSON for each mask, instead of a picture.
        machine: Where and how it computes.
    """
    if not text and sys.stdin.isatty():
        raise ValueError("text: expected a text with [mask] where a word is missing")

    asked = " ".join(text) if text else standard_input().strip()
    if not asked:
        raise ValueError("text: it is empty; expected a text with [mask] where a word is missing")

    opened = open_model(model, machine, BERT)
    assert isinstance(opened.model, BERT)
    found = fill(opened.model, opened.tokenizer, asked, top=top)
    note_unknown(opened.tokenizer, masks_of(opened.tokenizer).split(asked))
    if as_json:
        for number, guesses in enumerate(found, start=1):
            said = [{"text": each.text, "probability": each.probability} for each in guesses]
            print(json.dumps({"mask": number, "guesses": said}, ensure_ascii=False))

        return

    console = Console(highlight=False)

    for number, guesses in enumerate(found, start=1):
        if len(found) > 1:
            console.print(f"mask {number}", style="bold")

        console.print(bars(guesses))


def bars(guesses: list[Guess]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(no_wrap=True)

    for guess in guesses:
        table.add_row(
            Text(printable(guess.text)),
            f"{guess.probability:.1%}",
            Text(bar(guess.probability), style="cyan"),
        )

    return table
