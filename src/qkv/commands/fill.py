"""qkv fill: predict the masked words of a text with a BERT."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qkv.command_line.model_opening import Machine, ModelName, open_model
from qkv.command_line.terminal_bars import probability_bars
from qkv.command_line.user_input import note_unknown, read_standard_input
from qkv.generation.fill import Guess, fill, masks_of
from qkv.models import BERT

ENGLISH = "english"
"""The name of the small BERT that is trained here."""


def run(
    model: ModelName,
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT]")] = (),
    top: int = 5,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Predict the masked words of a text, each with its probability.

    Args:
        model: The folder of a run or of transformers that holds a BERT; or english, a small BERT
            that is trained on embedded sentences at its first use.
        text: The text, with [mask] for each missing word (default: standard input).
        top: Predictions shown for each mask.
        as_json: Print a line of JSON for each mask, instead of bars.
        machine: Device and precision.
    """
    if not text and sys.stdin.isatty():
        raise ValueError("text: expected a text with [mask] where a word is missing")

    masked = " ".join(text)
    if not text:
        masked = read_standard_input().strip()

    if not masked:
        raise ValueError("text: it is empty; expected a text with [mask] where a word is missing")

    if model == ENGLISH and not Path(model).exists():
        from qkv.lab import fill_model  # it imports the training

        folder = fill_model.trained_bert(Console(highlight=False, stderr=True))
        if folder is None:
            return

        model = str(folder)

    bert, tokenizer = open_model(model, machine, BERT)
    if bert.predicts is None:
        raise ValueError(
            f"model: {model} is an encoder only and predicts no tokens; "
            "`qkv fill english` trains a small BERT that does"
        )

    masks = fill(bert, tokenizer, masked, top=top)
    note_unknown(tokenizer, masks_of(tokenizer).split(masked))
    if as_json:
        print_json(masks)
    else:
        print_bars(masks)


def print_json(masks: list[list[Guess]]) -> None:
    for number, guesses in enumerate(masks, start=1):
        values = [{"text": guess.text, "probability": guess.probability} for guess in guesses]
        print(json.dumps({"mask": number, "guesses": values}, ensure_ascii=False))


def print_bars(masks: list[list[Guess]]) -> None:
    console = Console(highlight=False)
    for number, guesses in enumerate(masks, start=1):
        if len(masks) > 1:
            console.print(f"mask {number}", style="bold")

        console.print(probability_bars(guesses))
