"""qkv lens: train a tuned lens, and read a text with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, Opened, open_float32
from qkv.command_line.output_checks import check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.command_line.user_input import note_unknown
from qkv.commands.heads import passages
from qkv.generation.fill import Guess
from qkv.insight.inspect.logit_lens import logit_lens
from qkv.insight.inspect.model_input import read
from qkv.insight.lenses.lens_training import POSITIONS, TrainedLens, train_lens
from qkv.insight.lenses.tuned_lens import TunedLens, tuned_lens
from qkv.insight.render.head_tables import head_table, numbers
from qkv.tables import Table
from qkv.text.printable import printable

OptionalText = Annotated[str | None, tyro.conf.Positional]


@dataclass(frozen=True, kw_only=True)
class Lens:
    """Train a tuned lens: for each layer a translator after which the output layer can read it.

    qkv lens smollm2 --data book.txt --out lens.safetensors

    qkv lens smollm2 "The capital of France is" --lens lens.safetensors

    With a text: the likeliest next tokens after each layer, by logit lens and by tuned lens.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2."""
    text: OptionalText = None
    """A text to read with a trained lens."""
    lens: Path | None = None
    """With a text: the file of a trained lens."""
    data: tuple[str, ...] = ()
    """Files with texts to train on."""
    out: Path | None = None
    """The file for the trained lens."""
    steps: int = 250
    """Training steps."""
    positions: int = POSITIONS
    """Positions of each step, all of one text; more need more time."""
    limit: int = 200
    """Passages of the data that are read."""
    seed: int = 0
    """For the order of the texts; the same seed gives the same lens."""
    position: int = -1
    """With a text: the position whose prediction is shown (default: the last)."""
    top: int = 4
    """With a text: tokens of each layer."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one line of JSON, instead of a table."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        if self.text is not None:
            self.read_text(self.text)
        else:
            self.train()

    def train(self) -> None:
        """Train a lens and write it."""
        if not self.data or self.out is None:
            raise ValueError(
                "data: give --data and --out to train a lens, or a text and --lens to read with one"
            )
        if self.limit < 1:
            raise ValueError(f"limit: expected 1 or more, not {self.limit}")

        check_writable("out", self.out)
        model, tokenizer = open_float32(self.model, self.machine)
        texts = list(islice(passages(self.data), self.limit))
        note_unknown(tokenizer, texts)
        with progress_bar("training") as advance:
            trained = train_lens(
                model,
                tokenizer,
                texts,
                steps=self.steps,
                positions=self.positions,
                seed=self.seed,
                advance=advance,
            )

        trained.lens.save(self.out)
        if self.as_json:
            values = {
                "model": self.model,
                "logit_lens": trained.logit_lens.tolist(),
                "tuned_lens": trained.tuned.tolist(),
            }
            print(json.dumps(values, ensure_ascii=False))
            return

        Console(highlight=False).print(divergence_table(trained))
        print(self.out)

    def read_text(self, text: str) -> None:
        """The predictions after each layer by both lenses."""
        if self.lens is None or self.data or self.out is not None:
            raise ValueError(
                "lens: a text is read with a trained lens; give --lens, and --data and --out only "
                "without a text"
            )

        lens = TunedLens.load(self.lens)
        opened = open_float32(self.model, self.machine)
        reading = read(*opened, text)
        T = len(reading.text.ids)
        if not -T <= self.position < T:
            raise ValueError(
                f"position: expected 0 to {T - 1}, or -1 for the last, not {self.position}"
            )

        plain = logit_lens(*opened, reading, top=self.top)
        tuned = tuned_lens(*opened, reading, lens, top=self.top)
        self.show(opened, plain, tuned)

    def show(
        self, opened: Opened, plain: list[list[list[Guess]]], tuned: list[list[list[Guess]]]
    ) -> None:
        """A row for each layer, with the guesses of both lenses."""
        if self.as_json:
            values = {
                "model": self.model,
                "logit_lens": [guesses_object(layer[self.position]) for layer in plain],
                "tuned_lens": [guesses_object(layer[self.position]) for layer in tuned],
            }
            print(json.dumps(values, ensure_ascii=False))
            return

        table = head_table(False, numbers("after"), "logit lens", "tuned lens")
        table.caption = "the likeliest tokens after each layer; both are the model's own at the end"
        for layer in range(len(plain)):
            cells = [guesses_text(lens[layer][self.position]) for lens in (plain, tuned)]
            table.add_row(layer_name(layer), *cells)

        Console(highlight=False).print(table)


def divergence_table(trained: TrainedLens) -> Table:
    """How far each layer's prediction is from the model's own, by both lenses."""
    table = head_table(False, numbers("after"), numbers("logit lens"), numbers("tuned lens"))
    table.caption = "KL divergence from the model's own prediction, in nats, on texts held out"
    rows = zip(trained.logit_lens.tolist(), trained.tuned.tolist(), strict=True)
    for layer, (plain, tuned) in enumerate(rows):
        table.add_row(layer_name(layer), f"{plain:.3f}", f"{tuned:.3f}")

    return table


def layer_name(layer: int) -> str:
    return "embedding" if layer == 0 else f"layer {layer - 1}"


def guesses_text(guesses: list[Guess]) -> str:
    """Tokens with their probabilities."""
    return "   ".join(f"{printable(guess.text)}\u00a0{guess.probability:.0%}" for guess in guesses)


def guesses_object(guesses: list[Guess]) -> list[dict[str, object]]:
    return [guess._asdict() for guess in guesses]
