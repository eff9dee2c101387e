"""qkv generate: continue a prompt with a GPT."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qkv.command_line.model_opening import Machine, ModelName, open_model
from qkv.command_line.user_input import (
    check_length,
    note,
    note_unknown,
    read_standard_input,
    read_text,
)
from qkv.generation.generate import context_limit
from qkv.generation.generation_batch import Beyond
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.search_loop import MOST_BEAMS
from qkv.generation.stop import Reason
from qkv.generation.text import TextChunk, prompt_ids, stream_text
from qkv.models import GPT
from qkv.text import Tokenizer
from qkv.text.printable import printable

MOST_TOKENS = 20_000_000
"""Tokens of all samples together: a uniform number is drawn for each before the first."""


def run(
    model: ModelName,
    prompt: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[PROMPT]")
    ] = (),
    file: Path | None = None,
    length: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    min_p: float | None = None,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    samples: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1,
    seed: int | None = None,
    stop: tuple[str, ...] = (),
    beams: int = 0,
    beyond: Beyond = "refuse",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Continue a prompt, and show the tokens as they are generated.

    Without a prompt, standard input is the prompt; at a terminal, or with an empty prompt, the
    model begins a new text after its start or end token. At a terminal the prompt is shown before
    the continuation.

    Args:
        model: A run's folder, a folder of transformers, a GGUF file, or smollm2.
        prompt: The text to continue; several words need no quotes.
        file: Read the prompt from this file. The newline at its end does not count, nor does that
            of a pipe.
        length: Maximum number of new tokens.
        temperature: Above 1 more random, below 1 less; 0 always takes the most probable token.
        top_k: Sample from the k most probable tokens.
        top_p: Sample from the fewest tokens whose probabilities sum to this; 1 for all.
        min_p: Leave out tokens less probable than this times the most probable one.
        repetition: Above 1, tokens already in the text become less probable.
        presence: Subtracted from the logit of each token that was generated before.
        frequency: Subtracted from the logit of a token for each time it was generated before.
        samples: Number of continuations; several are numbered.
        seed: The same seed gives the same text again.
        stop: Strings before which generation stops; the text ends before the first of them.
        beams: Search for the most probable texts with this beam width instead of sampling, and
            show them at the end; sampling parameters have no effect then, and --stop and --beyond
            are refused.
        beyond: When prompt and continuation do not fit into the context: refuse the prompt and end
            the text, or slide, dropping the beginning. With rotary positions also extend: read on,
            further than in training.
        as_json: Print a line of JSON for each text: prompt, sample, text, and the reason why it
            ended.
        machine: Device and precision.
    """
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
    )
    check_length(length)
    check_samples(samples, length)
    check_beams(beams, samples, stop, beyond)

    text = read_prompt(prompt, file)
    opened = open_model(model, machine, GPT)
    note_unknown(opened.tokenizer, [text])
    assert isinstance(opened.model, GPT)
    ids = prompt_ids(opened.tokenizer, text)
    limit = context_limit(opened.model, beyond)
    too_long = limit is not None and len(ids) > limit
    if too_long and beyond == "refuse":
        slide = "" if beams else ", or drop its beginning with --beyond slide"
        raise ValueError(
            f"prompt: {len(ids):,} tokens are more than the model's context of {limit:,}; "
            f"shorten it{slide}"
        )

    if beams:
        chunks = search(opened.model, opened.tokenizer, ids, length, limit, beams, samples)
    else:
        chunks = stream_text(
            opened.model,
            opened.tokenizer,
            [ids],
            length=length,
            sampling_params=params,
            samples=samples,
            seed=seed,
            beyond=beyond,
            stop=stop,
        )
        if too_long and beyond == "slide":
            note(
                f"the prompt has {len(ids):,} tokens, and {limit:,} fit into the context: its "
                "beginning is dropped"
            )

    show_texts(chunks, text, samples, as_json, beams > 0)


def check_samples(samples: int, length: int) -> None:
    if samples > 0 and samples * length > MOST_TOKENS:
        raise ValueError(
            f"samples: {samples:,} of {length:,} tokens each are more than {MOST_TOKENS:,} tokens "
            "at once; ask for fewer, with another seed each time"
        )


def check_beams(beams: int, samples: int, stop: tuple[str, ...], beyond: Beyond) -> None:
    """Refuse a bad beam width, and flags that beam search does not have."""
    if not 0 <= beams <= MOST_BEAMS:
        raise ValueError(f"beams: expected 1 to {MOST_BEAMS:,}, or 0 to sample, not {beams:,}")
    if not beams:
        return
    if stop:
        raise ValueError("stop: beam search has no stop strings; leave one of them out")
    if beyond != "refuse":
        raise ValueError(
            f"beyond: beam search ends where the context does; leave {beyond} or the beams out"
        )
    if not 1 <= samples <= beams:
        raise ValueError(
            f"samples: expected 1 to {beams}, as many as there are beams, not {samples}"
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


def search(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: list[int],
    length: int,
    limit: int | None,
    beams: int,
    samples: int,
) -> Iterator[TextChunk]:
    """The most probable texts by beam search, in a context of `limit` tokens."""
    (hypotheses,) = beam_search(
        model, [prompt], end=tokenizer.end, length=length, beams=beams, n_best=samples
    )

    for row, hypothesis in enumerate(hypotheses):
        size = len(hypothesis.ids)
        reason: Reason = "end"
        if size == length:
            reason = "length"
        elif limit is not None and len(prompt) + size > limit:  # the last token needs no room
            reason = "context"

        yield TextChunk(row, tokenizer.decode(hypothesis.ids), reason)


def show_texts(
    chunks: Iterable[TextChunk], prompt: str, samples: int, as_json: bool, beams: bool
) -> None:
    """Print the first text as it is generated, and each other one when those before it are done."""
    console = Console(highlight=False, soft_wrap=True)
    for row, row_chunks in groupby(in_row_order(chunks), key=lambda chunk: chunk.row):
        if as_json:
            reason = print_json(row, row_chunks, prompt)
        else:
            if samples > 1:
                console.print(f"[dim]sample {row + 1}[/dim]")

            if console.is_terminal:
                console.print(printable(prompt), style="bold", markup=False, end="")

            reason = print_text(row_chunks, console.is_terminal)

        sys.stdout.write("\n")
        sys.stdout.flush()
        if reason == "context":
            without = "without --beams, " if beams else ""
            note(
                "the context is full, so the text ends here; "
                f"{without}--beyond slide continues and drops the beginning"
            )


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
