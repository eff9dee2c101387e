"""qkv translate: lines of files, of a pipe, or as they are typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qkv import storage
from qkv.command_line.model_opening import (
    Machine,
    check_length,
    check_not_read,
    check_place,
    forgiving,
    note_unknown,
    open_model,
    printable,
    read_text,
    standard_input,
    typed_lines,
)
from qkv.generation.translate import Translation, translate_texts
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.whole_words import words_of
from qkv.models import RNN, Transformer
from qkv.text import Tokenizer

LOOKED_AT = 3  # source words that are named for a target word, at most
WORTH_NAMING = 0.1


def run(
    models: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL]")
    ],
    data: tuple[Path, ...] = (),
    text: str | None = None,
    out: Path | None = None,
    beams: int = 4,
    n_best: int = 1,
    length: int | None = None,
    length_penalty: float = 0.6,
    align: Annotated[bool, tyro.conf.arg(name="alignment")] = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Translate line by line: a text, files, what comes through a pipe, or what you type. Lines
    keep their order.

    Args: models: The folder of a run or of transformers; several of one vocabulary translate
        together. data: Files to translate; - is standard input. text: One text to translate. out:
        Write the translations to this file, which is there whole or not at all. beams: So many
        translations are weighed against each other at every word; 1 takes the likeliest word each
        time. n_best: Show so many translations of each line, each as: line ||| translation |||
        score length: At most so many tokens; unless given, twice as many as the source and a few
        more. length_penalty: Above 0 favours longer translations, as in the Transformer's paper; 0
        is the bare probability. align: Say which source words each target word looked at; of the
        best translation. as_json: A line of JSON for each line: source, translations with scores,
        and alignment if asked for. machine: Where and how it computes.
    """
    if not models:
        raise ValueError("model: expected the folder of a translator, or several")

    if length is not None:
        check_length(length)

    if align and len(models) > 1:
        raise ValueError(
            "alignment: one model looks at the source in its own way; expected one model, not several"
        )
    if text is not None and data:
        raise ValueError("text: files are given, too; leave one of them out")
    if text is not None and not text.strip():
        raise ValueError("text: there is nothing to translate; expected a sentence")

    check_place("out", out)
    check_not_read(out, data, "translated")
    typed = text is None and not data and sys.stdin.isatty()
    texts = [] if typed else [text] if text is not None else lines_of(data)
    opened = [open_model(name, machine, Transformer, RNN) for name in models]
    tokenizer = opened[0].tokenizer

    for name, each in zip(models, opened, strict=True):
        if each.tokenizer.fingerprint != tokenizer.fingerprint:
            raise ValueError(
                f"{name}: its tokenizer is not that of {models[0]}; models that translate together share one"
            )

    translators: list[Any] = [each.model for each in opened]
    how: dict[str, Any] = {
        "beams": beams,
        "n_best": n_best,
        "length": length,
        "length_penalty": length_penalty,
    }

    def shown(number: int, source: str, found: list[Translation]) -> str:
        looked = aligned(translators[0], tokenizer, source, found[0]) if align else None
        return (
            as_object(source, found, looked) if as_json else as_text(number, found, n_best, looked)
        )

    if typed:
        for line in typed_lines():
            with forgiving():
                ((_, found),) = translate_texts(translators, tokenizer, [line], **how)
                note_unknown(tokenizer, [line])
                print(printable(shown(1, line, found)), flush=True)

        return

    note_unknown(tokenizer, texts)
    made = [""] * len(texts)

    for place, found in watched(translate_texts(translators, tokenizer, texts, **how), len(texts)):
        made[place] = shown(place + 1, texts[place], found)

    whole = "".join(f"{each}\n" for each in made)
    if out is not None:
        storage.write_text(out, whole)
    else:
        sys.stdout.write(printable(whole) if sys.stdout.isatty() else whole)


def lines_of(files: Sequence[Path]) -> list[str]:
    """All lines; without files, those of standard input."""
    texts = [
        standard_input() if str(file) == "-" else read_text(file) for file in files or [Path("-")]
    ]
    lines = [line for text in texts for line in text.removesuffix("\n").split("\n") if text]
    if not lines:
        where = " and ".join(map(str, files)) if files else "standard input"
        raise ValueError(
            f"{where}: there is nothing to translate; expected a sentence on each line"
        )

    return [line.removesuffix("\r") for line in lines]


def watched(
    found: Iterator[tuple[int, list[Translation]]], total: int
) -> Iterator[tuple[int, list[Translation]]]:
    """With a line of progress, at a terminal."""
    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        yield from progress.track(found, total=total)


# What is shown of a translation

Looked = list[tuple[str, list[tuple[str, float]]]]
"""Each target word, and the source words it looked at with their weights, the heaviest first."""


def aligned(
    model: Transformer | RNN, tokenizer: Tokenizer, source: str, found: Translation
) -> Looked:
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    if not found.ids:
        return []

    device = next(model.parameters()).device
    read, said = [*tokenizer.encode(source), tokenizer.end], found.ids
    weights = alignment(
        model,
        torch.tensor([read], device=device),
        torch.tensor([said], device=device),
        start=tokenizer.start,
    )  # (T, S)

    sources, targets = words_of(tokenizer, read), words_of(tokenizer, said)
    looked: Looked = []

    for target in targets:
        row = weights[target.places].mean(0)  # (S,)
        each = [(source.text or "(end)", float(row[source.places].sum())) for source in sources]
        looked.append((target.text, sorted(each, key=lambda pair: -pair[1])))

    return looked


def as_text(number: int, found: list[Translation], n_best: int, looked: Looked | None) -> str:
    lines = [
        each.text if n_best == 1 else f"{number} ||| {each.text} ||| {each.score:.4f}"
        for each in found
    ]
    width = max((len(word) for word, _ in looked or []), default=0)
    for word, sources in looked or []:
        named = [pair for pair in sources[:LOOKED_AT] if pair[1] >= WORTH_NAMING] or sources[:1]
        lines.append(
            f"    {word:{width}}  "
            + ", ".join(f"{source} {weight:.0%}" for source, weight in named)
        )

    return "\n".join(lines)


def as_object(source: str, found: list[Translation], looked: Looked | None) -> str:
    said: dict[str, Any] = {
        "source": source,
        "translations": [{"text": each.text, "score": each.score} for each in found],
    }
    if looked is not None:
        said["alignment"] = [
            {"word": word, "looked_at": dict_of(sources)} for word, sources in looked
        ]

    return json.dumps(said, ensure_ascii=False)


def dict_of(sources: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "weight": round(weight, 4)} for word, weight in sources]
