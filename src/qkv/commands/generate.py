"""qkv generate: continue a prompt with a GPT."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, open_model
from qkv.command_line.user_input import (
    check_length,
    note,
    note_unknown,
    read_standard_input,
    read_text,
)
from qkv.generation.generate import context_limit
from qkv.generation.generation_batch import Beyond
from qkv.generation.sampling_params import SamplingPenalties, sampling_params_of
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.beams import MOST_BEAMS
from qkv.generation.stop import Reason
from qkv.generation.text import TextChunk, prompt_ids, stream_text
from qkv.models import GPT, RNNLanguageModel
from qkv.text import Tokenizer
from qkv.text.printable import printable

MOST_TOKENS = 20_000_000
"""Tokens of all samples together: a uniform number is drawn for each before the first."""


@dataclass(frozen=True, kw_only=True)
class Generate(SamplingPenalties):
    """Continue a prompt, and show the tokens as they are generated.

    Without a prompt, standard input is the prompt; at a terminal, or with an empty prompt, the
    model begins a new text after its start or end token. At a terminal the prompt is shown before
    the continuation.
    """

    model: ModelName
    """A run's folder, a folder of transformers, a GGUF file, or smollm2."""
    prompt: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[PROMPT]")] = ()
    """The text to continue; several words need no quotes."""
    file: Path | None = None
    """Read the prompt from this file. The newline at its end does not count, nor does that of a
    pipe."""
    length: int = 100
    """Maximum number of new tokens."""
    temperature: float = 0.8
    top_p: float | None = 0.95
    samples: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    """Number of continuations; several are numbered."""
    seed: int | None = None
    """The same seed gives the same text again."""
    stop: tuple[str, ...] = ()
    """Strings before which generation stops; the text ends before the first of them."""
    beams: int = 0
    """Search for the most probable texts with this beam width instead of sampling, and show them at
    the end; sampling parameters have no effect then, and --stop and --beyond are refused."""
    beyond: Beyond = "refuse"
    """When prompt and continuation do not fit into the context: refuse the prompt and end the text,
    or slide, dropping the beginning. With rotary positions also extend: read on, further than in
    training."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a line of JSON for each text: prompt, sample, text, and the reason why it ended."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        check_length(self.length)
        self.check_samples()
        self.check_beams()

        text = read_prompt(self.prompt, self.file)
        model, tokenizer = open_model(self.model, self.machine, GPT, RNNLanguageModel)
        note_unknown(tokenizer, [text])
        ids = prompt_ids(tokenizer, text)
        limit = context_limit(model, self.beyond)
        if limit is not None and len(ids) > limit:
            self.report_long_prompt(len(ids), limit)

        if self.beams:
            chunks = self.search(model, tokenizer, ids, limit)
        else:
            chunks = stream_text(
                model,
                tokenizer,
                [ids],
                length=self.length,
                sampling_params=sampling_params_of(self),
                samples=self.samples,
                seed=self.seed,
                beyond=self.beyond,
                stop=self.stop,
            )

        self.show_texts(chunks, text)

    def check_samples(self) -> None:
        if self.samples > 0 and self.samples * self.length > MOST_TOKENS:
            raise ValueError(
                f"samples: {self.samples:,} of {self.length:,} tokens each are more than "
                f"{MOST_TOKENS:,} tokens at once; ask for fewer, with another seed each time"
            )

    def check_beams(self) -> None:
        """Refuse a bad beam width, and flags that beam search does not have."""
        beams = self.beams
        if not 0 <= beams <= MOST_BEAMS:
            raise ValueError(f"beams: expected 1 to {MOST_BEAMS:,}, or 0 to sample, not {beams:,}")
        if not beams:
            return
        if self.stop:
            raise ValueError("stop: beam search has no stop strings; leave one of them out")
        if self.beyond != "refuse":
            raise ValueError(
                f"beyond: beam search ends where the context does; leave {self.beyond} or the "
                "beams out"
            )
        if not 1 <= self.samples <= beams:
            raise ValueError(
                f"samples: expected 1 to {beams}, as many as there are beams, not {self.samples}"
            )

    def report_long_prompt(self, tokens: int, limit: int) -> None:
        """Refuse a prompt that is longer than the context, or note that its beginning is lost."""
        if self.beyond == "refuse":
            slide = "" if self.beams else ", or drop its beginning with --beyond slide"
            raise ValueError(
                f"prompt: {tokens:,} tokens are more than the model's context of {limit:,}; "
                f"shorten it{slide}"
            )

        note(
            f"the prompt has {tokens:,} tokens, and {limit:,} fit into the context: its "
            "beginning is dropped"
        )

    def search(
        self, model: GPT, tokenizer: Tokenizer, prompt: list[int], limit: int | None
    ) -> Iterator[TextChunk]:
        """The most probable texts by beam search, in a context of `limit` tokens."""
        (hypotheses,) = beam_search(
            model,
            [prompt],
            end=tokenizer.end,
            length=self.length,
            beams=self.beams,
            n_best=self.samples,
        )

        for row, hypothesis in enumerate(hypotheses):
            size = len(hypothesis.ids)
            reason: Reason = "end"
            if size == self.length:
                reason = "length"
            elif limit is not None and len(prompt) + size > limit:  # the last token needs no room
                reason = "context"

            yield TextChunk(row, tokenizer.decode(hypothesis.ids), reason)

    def show_texts(self, chunks: Iterable[TextChunk], prompt: str) -> None:
        """Print the first text as it is generated, and the others in their order."""
        console = Console(highlight=False, soft_wrap=True)
        for row, row_chunks in groupby(in_row_order(chunks), key=lambda chunk: chunk.row):
            if self.as_json:
                reason = print_json(row, row_chunks, prompt)
            else:
                if self.samples > 1:
                    console.print(f"[dim]sample {row + 1}[/dim]")

                if console.is_terminal:
                    console.print(printable(prompt), style="bold", markup=False, end="")

                reason = print_text(row_chunks, console.is_terminal)

            sys.stdout.write("\n")
            sys.stdout.flush()
            if reason == "context":
                without = "without --beams, " if self.beams else ""
                note(
                    "the context is full, so the text ends here; "
                    f"{without}--beyond slide continues and drops the beginning"
                )


def read_prompt(arguments: tuple[str, ...], file: Path | None) -> str:
    """The prompt of the command line, of a file, or of standard input."""
    if arguments and file is not None:
        raise ValueError("file: a prompt is given as well; leave one of them out")
    if arguments:
        return " ".join(arguments)
    if file is not None:
        return read_text(file).removesuffix("\n")
    if sys.stdin.isatty():
        return ""

    text = read_standard_input()
    if not text:
        raise ValueError(
            'prompt: standard input is empty; give a prompt, or "" to begin a new text'
        )

    return text.removesuffix("\n")


def print_json(row: int, chunks: Iterable[TextChunk], prompt: str) -> Reason | None:
    """Print one text as JSON, and return why it ended."""
    text = ""
    reason = None

    for chunk in chunks:
        text += chunk.text
        reason = chunk.reason

    values = {"prompt": prompt, "sample": row + 1, "text": text, "reason": reason}
    sys.stdout.write(json.dumps(values, ensure_ascii=False))

    return reason


def print_text(chunks: Iterable[TextChunk], terminal: bool) -> Reason | None:
    """Print one text as it is generated, and return why it ended."""
    reason = None
    for chunk in chunks:
        reason = chunk.reason
        sys.stdout.write(printable(chunk.text) if terminal else chunk.text)
        sys.stdout.flush()

    return reason


def in_row_order(chunks: Iterable[TextChunk]) -> Iterator[TextChunk]:
    """All chunks of the first row, then all of the second, and so on; early ones are held back."""
    waiting: dict[int, list[TextChunk]] = {}
    row = 0

    for chunk in chunks:
        waiting.setdefault(chunk.row, []).append(chunk)
        while waiting.get(row):
            first = waiting[row].pop(0)
            yield first
            if first.reason is not None:
                row += 1
