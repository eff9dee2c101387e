"""qkv translate: translate a text, files, a pipe, or lines as they are typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from qkv import storage
from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, open_model
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.command_line.user_input import (
    check_length,
    errors_as_notes,
    note_unknown,
    read_text_or_pipe,
    typed_lines,
)
from qkv.generation.translate import Translation, translate_texts
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.whole_words import whole_words
from qkv.models import RNN, Transformer
from qkv.text import Tokenizer
from qkv.text.frame_tokens import translation_ends
from qkv.text.printable import printable

MOST_SOURCES = 3
"""Source words listed for each target word in text output."""
LEAST_WEIGHT = 0.1
"""Attention weight below which a source word is not listed."""

Alignment = list[tuple[str, list[tuple[str, float]]]]
"""Each target word with the source words and their attention weights, the heaviest first."""


@dataclass(frozen=True, kw_only=True)
class Translate:
    """Translate line by line: a text, files, a pipe, or what you type. Lines keep their order."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL]")]
    """The folder of a run or of transformers; several with one vocabulary are an ensemble."""
    data: tuple[Path, ...] = ()
    """Files to translate; - is standard input."""
    text: str | None = None
    """One text to translate."""
    out: Path | None = None
    """Write the translations to this file, which is written completely or not at all."""
    beams: int = 4
    """Beam width; 1 is greedy decoding."""
    n_best: int = 1
    """Translations shown for each line, each as: line ||| translation ||| score"""
    length: int | None = None
    """Maximum number of tokens (default: twice the source's and a few more)."""
    length_penalty: float = 0.6
    """Above 0 favours longer translations, as in the Transformer paper; 0 ranks by log-probability
    alone."""
    align: Annotated[bool, tyro.conf.arg(name="alignment")] = False
    """Show which source words each target word attends to, for the best translation."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a line of JSON for each line: source, translations with scores, and with --alignment
    the alignment."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        self.check_flags()
        check_writable("out", self.out)
        check_not_input(self.out, self.data, "translated")

        # Read all input before the model, so that a missing file is reported at once.
        interactive = self.text is None and not self.data and sys.stdin.isatty()
        texts: list[str] = []
        if self.text is not None:
            texts = [self.text]
        elif not interactive:
            texts = read_lines(self.data)

        translator = LineTranslator(self, *open_ensemble(self.models, self.machine))
        if interactive:
            translator.translate_typed()
        else:
            translator.translate_lines(texts)

    def check_flags(self) -> None:
        """Refuse flags that do not go together before anything is read."""
        if not self.models:
            raise ValueError("models: expected the folder of a translator, or several")

        if self.length is not None:
            check_length(self.length)

        if self.align and len(self.models) > 1:
            raise ValueError("alignment: an ensemble has one per model; expected a single model")
        if self.text is not None and self.data:
            raise ValueError("text: files are given as well; leave one of them out")
        if self.text is not None and not self.text.strip():
            raise ValueError("text: there is nothing to translate; expected a sentence")


def open_ensemble(
    models: Sequence[str], machine: Machine
) -> tuple[list[Transformer | RNN], Tokenizer]:
    """The models and their common tokenizer."""
    opened = [open_model(name, machine, Transformer, RNN) for name in models]
    tokenizer = opened[0].tokenizer

    for name, (_, other) in zip(models, opened, strict=True):
        if other.fingerprint != tokenizer.fingerprint:
            raise ValueError(
                f"{name}: its tokenizer is not that of {models[0]}; models that translate "
                "together share one"
            )

    return [model for model, _ in opened], tokenizer


@dataclass(frozen=True)
class LineTranslator:
    """Models with the flags of their search and of the output."""

    flags: Translate
    models: list[Transformer | RNN]
    tokenizer: Tokenizer

    def translate(self, texts: Sequence[str]) -> Iterator[tuple[int, list[Translation]]]:
        """The best translations of each text with its index, in the order they are finished."""
        flags = self.flags
        return translate_texts(
            self.models,
            self.tokenizer,
            texts,
            beams=flags.beams,
            n_best=flags.n_best,
            length=flags.length,
            length_penalty=flags.length_penalty,
        )

    def format(self, number: int, source: str, translations: list[Translation]) -> str:
        """The output for one line, `number` counted from 1."""
        aligned = None
        if self.flags.align:
            aligned = align_words(self.models[0], self.tokenizer, source, translations[0])

        if self.flags.as_json:
            return as_object(source, translations, aligned)

        return as_text(number, translations, self.flags.n_best, aligned)

    def translate_typed(self) -> None:
        """Translate each line as it is typed."""
        for line in typed_lines():
            with errors_as_notes():
                ((_, translations),) = self.translate([line])
                note_unknown(self.tokenizer, [line])
                print(printable(self.format(1, line, translations)), flush=True)

    def translate_lines(self, texts: list[str]) -> None:
        """Translate all texts and print or write them in their order."""
        note_unknown(self.tokenizer, texts)
        lines = [""] * len(texts)

        with progress_bar("translating") as advance:
            for done, (row, translations) in enumerate(self.translate(texts), start=1):
                lines[row] = self.format(row + 1, texts[row], translations)
                advance(done, len(texts))

        output = "\n".join([*lines, ""])
        if self.flags.out is not None:
            storage.write_text(self.flags.out, output)
        elif sys.stdout.isatty():
            sys.stdout.write(printable(output))
        else:
            sys.stdout.write(output)


def read_lines(files: Sequence[Path]) -> list[str]:
    """All lines of the files; without files, those of standard input."""
    lines: list[str] = []
    for file in files or [Path("-")]:
        text = read_text_or_pipe(file)
        if text:
            lines += text.removesuffix("\n").split("\n")

    if not lines:
        origin = " and ".join(map(str, files)) or "standard input"
        raise ValueError(
            f"{origin}: there is nothing to translate; expected a sentence on each line"
        )

    return [line.removesuffix("\r") for line in lines]


# Output


def align_words(
    model: Transformer | RNN, tokenizer: Tokenizer, source: str, translation: Translation
) -> Alignment:
    """The source words that each target word attends to.

    Weights are summed over the pieces of a source word and averaged over those of a target word.
    """
    start, end = translation_ends(tokenizer)
    if not translation.ids:
        return []

    device = next(model.parameters()).device
    source_ids = [*tokenizer.encode(source), end]
    weights = alignment(
        model,
        torch.tensor([source_ids], device=device),
        torch.tensor([translation.ids], device=device),
        start=start,
    )  # (T, S)

    source_words = whole_words(tokenizer, source_ids)
    aligned: Alignment = []

    for target in whole_words(tokenizer, translation.ids):
        row = weights[target.positions].mean(0)  # (S,)
        sources = []
        for word in source_words:
            sources.append((word.text or "(end)", float(row[word.positions].sum())))

        sources.sort(key=lambda pair: -pair[1])
        aligned.append((target.text, sources))

    return aligned


def as_text(
    number: int, translations: list[Translation], n_best: int, aligned: Alignment | None
) -> str:
    """The translations, one a line, and below them the alignment."""
    lines = []
    for translation in translations:
        line = translation.text
        if n_best > 1:
            line = f"{number} ||| {translation.text} ||| {translation.score:.4f}"

        lines.append(line)

    aligned = aligned or []
    width = max((len(target) for target, _ in aligned), default=0)

    for target, sources in aligned:
        heavy = [pair for pair in sources[:MOST_SOURCES] if pair[1] >= LEAST_WEIGHT]
        listed = ", ".join(f"{word} {weight:.0%}" for word, weight in heavy or sources[:1])
        lines.append(f"    {target:{width}}  {listed}")

    return "\n".join(lines)


def as_object(source: str, translations: list[Translation], aligned: Alignment | None) -> str:
    """One line of JSON."""
    values: dict[str, Any] = {"source": source, "translations": []}
    for translation in translations:
        values["translations"].append({"text": translation.text, "score": translation.score})

    if aligned is not None:
        values["alignment"] = []
        for target, sources in aligned:
            weights = [{"word": word, "weight": round(weight, 4)} for word, weight in sources]
            values["alignment"].append({"word": target, "looked_at": weights})

    return json.dumps(values, ensure_ascii=False)
