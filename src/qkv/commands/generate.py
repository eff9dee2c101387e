"""qkv generate: a GPT goes on from a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    check_length,
    note,
    note_unknown,
    open_model,
    printable,
    read_text,
    standard_input,
)
from qkv.generation.generate import limit_of
from qkv.generation.generation_batch import Beyond, Reason
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.search_loop import MOST_BEAMS
from qkv.generation.text import TextChunk, prompt_ids, stream_text
from qkv.models import GPT
from qkv.text import Tokenizer

MOST_TOKENS = 20_000_000  # every one has its chance, drawn before the first is said


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
    """Go on from a prompt, and show the words as they come.

    Without a prompt, what comes through a pipe is the prompt; without that, or with an empty one,
    the model begins a new text, after its start or end token. At a terminal the prompt is shown
    before what is said.

    Args: model: A run's folder, a folder of transformers, a GGUF file, or smollm2. prompt: The text
        to go on from; several words need no quotes. file: Take the prompt from this file. The
        newline at its end does not count, nor does that of a pipe. length: At most so many tokens.
        temperature: Above 1 bolder, below 1 more careful; 0 is always the likeliest word. top_k:
        Draw from so many of the likeliest words. top_p: Draw from the fewest, likeliest first,
        whose probabilities sum to this; 1 for all. min_p: Leave out words less likely than this
        times the likeliest. repetition: Above 1, words that stand there already get less likely.
        presence: Taken off the logit of each word that was said already. frequency: Taken off the
        logit of a word for each time it was said. samples: So many texts; they are numbered. seed:
        The same seed gives the same texts again. stop: Texts before which to stop; what follows the
        first of them is never shown. beams: Instead of drawing words, search with so many beams for
        the likeliest texts, which are shown at the end; what is said above of drawing does not
        count then, and stop and beyond are refused. beyond: When prompt and text do not fit into
        the context: refuse the prompt and end the text, or slide: forget the beginning. With rotary
        positions also extend: read on, further than in training. as_json: A line of JSON for each
        text: prompt, sample, text, and the reason why it ended. machine: Where and how it computes.
    """
    choice = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
    )

    check_length(length)
    if samples > 0 and samples * length > MOST_TOKENS:
        raise ValueError(
            f"samples: {samples:,} of {length:,} tokens each are more than {MOST_TOKENS:,} tokens at once; ask for "
            "fewer, with another seed each time"
        )
    if not 0 <= beams <= MOST_BEAMS:
        raise ValueError(
            f"beams: expected 1 to {MOST_BEAMS:,}, or 0 to draw words instead, not {beams:,}"
        )
    if beams and stop:
        raise ValueError("stop: a search with beams has no stop strings; leave one of them out")
    if beams and beyond != "refuse":
        raise ValueError(
            f"beyond: a search with beams ends where the context does; leave {beyond} or the beams out"
        )
    if beams and not 1 <= samples <= beams:
        raise ValueError(
            f"samples: expected 1 to {beams}, as many as there are beams, not {samples}"
        )

    text = wanted(" ".join(prompt) if prompt else None, file)
    opened = open_model(model, machine, GPT)
    note_unknown(opened.tokenizer, [text])
    assert isinstance(opened.model, GPT)
    ids, limit = prompt_ids(opened.tokenizer, text), limit_of(opened.model, beyond)
    size = len(ids)
    if beyond == "refuse" and limit is not None and size > limit:
        slide = "" if beams else ", or let its beginning be forgotten with --beyond slide"
        raise ValueError(
            f"prompt: {size:,} tokens are more than the model's context of {limit:,}; shorten it{slide}"
        )

    if beams:
        found = likeliest(opened.model, opened.tokenizer, ids, length, limit, beams, samples)
        show(found, text, samples, as_json, True)
        return

    how: dict[str, Any] = {
        "choice": choice,
        "samples": samples,
        "seed": seed,
        "beyond": beyond,
        "stop": stop,
    }

    spoken = stream_text(opened.model, opened.tokenizer, [ids], length=length, **how)
    if beyond == "slide" and limit is not None and size > limit:
        note(
            f"the prompt has {size:,} tokens, and {limit:,} fit into the context: its beginning is forgotten"
        )

    show(spoken, text, samples, as_json)


def wanted(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise ValueError("file: the prompt was given, too; leave one of them out")
    if prompt is not None:
        return prompt
    if file is not None:
        return read_text(file).removesuffix("\n")
    if sys.stdin.isatty():
        return ""

    text = standard_input()
    if not text:
        raise ValueError(
            'prompt: standard input is empty; give a prompt, or "" to begin a new text'
        )

    return text.removesuffix("\n")


def likeliest(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: list[int],
    length: int,
    limit: int | None,
    beams: int,
    samples: int,
) -> Iterator[TextChunk]:
    """By beam search, in a model whose context has room for `limit` tokens."""
    (found,) = beam_search(
        model, [prompt], end=tokenizer.end, length=length, beams=beams, n_best=samples
    )
    for row, hypothesis in enumerate(found):
        said = len(hypothesis.ids)
        reason: Reason = "end"
        if said == length:
            reason = "length"
        elif (
            limit is not None and len(prompt) + said > limit
        ):  # as in a draw, the last word needs no place
            reason = "context"

        yield TextChunk(row, tokenizer.decode(hypothesis.ids), reason)


def show(
    pieces: Iterable[TextChunk], prompt: str, samples: int, as_json: bool, beams: bool = False
) -> None:
    """The first text as it comes, and each other one when those before it are whole."""
    console = Console(highlight=False, soft_wrap=True)
    for row, spoken in groupby(in_order(pieces), key=lambda piece: piece.row):
        if not as_json and samples > 1:
            console.print(f"[dim]sample {row + 1}[/dim]")

        if not as_json and console.is_terminal:
            console.print(printable(prompt), style="bold", markup=False, end="")

        text, reason = "", None
        for piece in spoken:
            text, reason = text + piece.text, piece.reason
            if not as_json:
                sys.stdout.write(printable(piece.text) if console.is_terminal else piece.text)
                sys.stdout.flush()

        if as_json:
            line = {"prompt": prompt, "sample": row + 1, "text": text, "reason": reason}
            sys.stdout.write(json.dumps(line, ensure_ascii=False))

        sys.stdout.write("\n")
        sys.stdout.flush()
        if reason == "context":
            without = "without --beams, " if beams else ""
            note(
                f"the context is full, so the text ends here; {without}--beyond slide goes on and forgets the beginning"
            )


def in_order(pieces: Iterable[TextChunk]) -> Iterator[TextChunk]:
    """All of the first row, then all of the second, and so on; what comes too early waits."""
    waiting: dict[int, list[TextChunk]] = {}
    row = 0

    for piece in pieces:
        waiting.setdefault(piece.row, []).append(piece)
        while waiting.get(row):
            first = waiting[row].pop(0)
            yield first
            row += first.reason is not None
