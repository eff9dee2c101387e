"""What a probe is asked: where a word stands, what it is, or what a text is; as ids, places and
answers.

position             windows from the middle of texts, without marks: the place of each token, one
class a place train.conllu:upos    a column of every word: its first piece is asked, or its last of
a model that reads to the right labels.tsv           a class or a number of every text: the mean of
its vectors, or its first or last one
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from qkv.data.batches.framing import Frame
from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.source import open_texts
from qkv.data.tokens.prepare import prepare_texts
from qkv.data.tokens.token_arrays import Tokens
from qkv.insight.probing.activations import ProbeData
from qkv.insight.probing.linear_probe import UNKNOWN
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.configs import Pooling
from qkv.models.registry import Model
from qkv.text.tokenizer import Tokenizer

Measures = tuple[Literal["accuracy", "distance"], ...]
HELD_OUT = 0.1
"""The part of the texts to validate on, and the part to test on, where no files for that are given.
"""
LONGEST = 4096
"""Of a text that a model without a longest one reads."""


@dataclass(frozen=True, eq=False)
class ProbeTask:
    """Texts to train, validate and test probes on. Answers are classes by number, or numbers."""

    name: str
    parts: tuple[ProbeData, ProbeData, ProbeData]
    labels: tuple[str, ...]
    """The classes; none where the answer is a number."""
    measures: Measures
    notes: tuple[str, ...] = ()
    """What a person should know of the data."""

    def __post_init__(self) -> None:
        for part, name in zip(self.parts, ("train", "validate", "test"), strict=True):
            if not len(part.answers):
                raise ValueError(f"{self.name}: there is nothing to {name} on; give more texts")

        if len(np.unique(self.parts[0].answers)) < 2:
            only = self.labels[0] if self.labels else f"{self.parts[0].answers[0]:g}"
            raise ValueError(
                f"{self.name}: every answer is {only!r}; expected two different ones or more"
            )

    def baseline(self) -> dict[Any, float]:
        """The score of who always says the same, whatever is asked: the best that can be said so."""
        training, _, test = (part.answers for part in self.parts)
        made = (
            {"accuracy": float((test == np.bincount(training).argmax()).mean())}
            if self.labels
            else {}
        )
        if "distance" in self.measures:
            made["distance"] = float(np.abs(test - np.median(training)).mean())

        return {measure: made[measure] for measure in self.measures}


def probe_task(
    model: Model,
    tokenizer: Tokenizer,
    target: str,
    *,
    data: Sequence[str] = (),
    validation: Sequence[str] = (),
    test: Sequence[str] = (),
    length: int = 64,
    windows: int = 2000,
    most: int | None = None,
    **columns: Any,
) -> ProbeTask:
    """By the name of a target: position, file.conllu:column, or a table of labelled texts."""
    if target == "position":
        if not data:
            raise ValueError("data: expected texts in which places are asked")

        for name, files in (("validation", validation), ("test", test)):
            if files:
                raise ValueError(
                    f"{name}: of position a part of the data is held out; leave it out"
                )

        return about_position(model, tokenizer, data, length=length, windows=windows)

    if data:
        raise ValueError(f"data: the texts are those of {target}; leave it out")

    file, _, column = target.rpartition(":")
    if ".conllu" in file and column:
        return about_words(
            model, tokenizer, file, column, validation=validation, test=test, most=most
        )

    if ".conllu" in Path(target).name:
        file = target.removesuffix(":")
        raise ValueError(f"target: name a column of {file}, such as {file}:upos")

    return about_texts(
        model, tokenizer, target, validation=validation, test=test, most=most, **columns
    )


# Where a token stands


def about_position(
    model: Model,
    tokenizer: Tokenizer,
    data: Sequence[str],
    *,
    length: int = 64,
    windows: int = 2000,
) -> ProbeTask:
    """Windows of `length` tokens; the last parts of the texts are held out to validate and to test
    on.
    """
    context = model.config.context if not isinstance(model, RNN) else LONGEST
    if not 2 <= length <= context:
        raise ValueError(
            f"length: expected 2 to {context:,} tokens, which the model reads at most, not {length:,}"
        )

    return position_question(prepare_texts(open_texts(data), tokenizer), length, windows)


def position_question(
    tokens: Tokens, length: int, windows: int, held_out: float = HELD_OUT
) -> ProbeTask:
    training, rest = tokens.split(2 * held_out)
    fewer = max(1, round(windows * held_out))
    parts = zip((training, *rest.split(0.5)), (windows, fewer, fewer), strict=True)
    labels = tuple(str(place) for place in range(length))
    # The same windows every time: seeds are of probes.
    made = tuple(windows_of(part, length, count, seed) for seed, (part, count) in enumerate(parts))

    return ProbeTask("position", made, labels, ("distance", "accuracy"))  # type: ignore[arg-type]


def windows_of(tokens: Tokens, length: int, count: int, seed: int = 0) -> ProbeData:
    """So many windows of exactly `length` tokens that begin anywhere but at the beginning of a
    text, and have no marks around them: the first token must not be known for what it is."""
    begins = np.setdiff1d(np.arange(len(tokens) - length + 1), np.append(tokens.ends, 0))
    if not len(begins):
        raise ValueError(
            f"length: a part of the text has {len(tokens):,} tokens, too few for {length:,}; give more"
        )

    drawn = (
        np.random.default_rng(seed)
        .choice(begins, size=min(count, len(begins)), replace=False)
        .tolist()
    )
    ids = [tokens.read(begin, begin + length) for begin in drawn]
    places = [np.arange(length)] * len(ids)

    return ProbeData(ids, places, np.tile(np.arange(length), len(ids)))


# What a word is, what a text is


def about_words(
    model: Model,
    tokenizer: Tokenizer,
    files: str | Path,
    column: str = "upos",
    *,
    validation: Sequence[str] = (),
    test: Sequence[str] = (),
    most: int | None = None,
) -> ProbeTask:
    """A column of CoNLL-U; of `head` the number of words from a word to its head, to the left below
    0, roots left out. `most` sentences are trained on, all unless given."""
    to_right = isinstance(model, GPT) or (
        isinstance(model, TaskModel) and isinstance(model.backbone, GPT)
    )
    to_right = to_right or (isinstance(model, RNN) and not model.config.bidirectional)
    frame = frame_of(model, tokenizer, "tag", "last" if to_right else "first")
    examples = split([str(files)], validation, test, most, task="tag", label=column)
    texts, known, cut = [], [], 0

    for part in examples:
        framed = frame.encode(tokenizer, part)
        texts.append(
            [(without_end(model, each.sequences[0]), each.target_positions) for each in framed]
        )
        # Words that were cut off have no place, and so no tag.
        known.append(
            [
                list(own.label or ())[: len(each.target_positions)]
                for own, each in zip(part, framed, strict=True)
            ]
        )

        cut += framed.words_cut

    notes = (
        (f"{cut:,} words lie beyond {frame.context:,} tokens of their sentence, and are not asked",)
        if cut
        else ()
    )
    name = f"{Path(files).name}:{column}"
    if column == "head":
        return about_heads(name, texts, known, frame.padding, notes)

    labels, answers = numbered(name, [[tag for tags in part for tag in tags] for part in known])
    parts = [
        as_texts(own, answer, frame.padding) for own, answer in zip(texts, answers, strict=True)
    ]

    return ProbeTask(name, in_order(parts), labels, ("accuracy",), notes)


def about_heads(
    name: str, texts: list[Any], heads: list[list[Any]], padding: int, notes: tuple[str, ...]
) -> ProbeTask:
    parts = []
    for own, part in zip(texts, heads, strict=True):
        asked, answers = [], []
        for (ids, places), tags in zip(own, part, strict=True):
            away = np.array([int(head) - number for number, head in enumerate(tags, start=1)])
            rooted = np.array([int(head) == 0 for head in tags], dtype=bool)
            asked.append((ids, places[~rooted]))
            answers.extend(away[~rooted].tolist())

        parts.append(as_texts(asked, np.array(answers, dtype=np.float64), padding))

    return ProbeTask(name, in_order(parts), (), ("distance",), notes)


def about_texts(
    model: Model,
    tokenizer: Tokenizer,
    file: str | Path,
    *,
    validation: Sequence[str] = (),
    test: Sequence[str] = (),
    most: int | None = None,
    text: str | None = None,
    label: str | None = None,
    pooling: Pooling = "mean",
    numbers: bool | None = None,
) -> ProbeTask:
    """A class of each text; or a number, if a person says so or if all labels are numbers and one
    has a fraction.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(
            f"pooling: expected one of {', '.join(get_args(Pooling))}, not {pooling!r}"
        )

    frame = frame_of(model, tokenizer, "classify", pooling)
    examples = split([str(file)], validation, test, most, task="classify", text=text, label=label)
    said = [[str(example.label) for example in part] for part in examples]
    if numbers is None:
        every = set(chain.from_iterable(said))
        numbers = all(map(is_number, every)) and any(not float(each).is_integer() for each in every)

    name = Path(file).name
    if numbers:
        for example in (example for part in examples for example in part):
            if not is_number(str(example.label)):
                raise ValueError(
                    f"{example.where}: expected a number as the label, not {example.label!r}"
                )

        labels: tuple[str, ...] = ()
        answers = [np.array(part, dtype=np.float64) for part in said]
    else:
        labels, answers = numbered(name, said)

    texts = []

    for part, answer in zip(examples, answers, strict=True):
        rows = []
        for framed in frame.encode(tokenizer, part):
            ids = without_end(model, framed.sequences[0])
            rows.append((ids, np.minimum(framed.target_positions, len(ids) - 1)))

        texts.append(as_texts(rows, answer, frame.padding, mean=pooling == "mean"))

    return ProbeTask(name, in_order(texts), labels, ("distance",) if numbers else ("accuracy",))


def is_number(label: str) -> bool:
    try:
        return bool(np.isfinite(float(label)))
    except ValueError:
        return False


def numbered(
    name: str, said: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[Int[np.ndarray, "_"]]]:
    """Classes by number, in the order of their names. One that is never trained on is always wrong."""
    labels = tuple(sorted(set(said[0])))
    if len(labels) < 2:
        raise (
            ValueError(f"{name}: every answer is {labels[0]!r}; expected two classes or more")
            if labels
            else (ValueError(f"{name}: there is nothing to train on"))
        )

    number = {label: place for place, label in enumerate(labels)}

    return labels, [
        np.array([number.get(each, UNKNOWN) for each in part], dtype=np.int64) for part in said
    ]


def as_texts(
    rows: Sequence[tuple[Any, Any]], answers: np.ndarray, padding: int, mean: bool = False
) -> ProbeData:
    return ProbeData(
        [ids for ids, _ in rows], [places for _, places in rows], answers, padding, mean
    )


def in_order(parts: Sequence[ProbeData]) -> tuple[ProbeData, ProbeData, ProbeData]:
    """What is trained on is mixed, so that a block is a sample of it."""
    training, validation, test = parts
    return training.mixed(), validation, test


def split(
    data: Sequence[str],
    validation: Sequence[str],
    test: Sequence[str],
    most: int | None,
    **how: Any,
) -> list[list[Example]]:
    """To train, to validate and to test on: files, or else a part of the texts, the same every
    time.
    """
    if most is not None and most < 1:
        raise ValueError(f"examples: expected 1 or more, not {most}")

    named = {"target": data, "validation": validation, "test": test}
    sources = {name: open_examples(files, **how) for name, files in named.items() if files}
    check_apart({name: [part.name for part in source.parts] for name, source in sources.items()})
    training, *held = ([*sources[name]] if name in sources else [] for name in named)
    order = np.random.default_rng(0).permutation(len(training)).tolist()
    count = max(1, round(HELD_OUT * len(training)))

    for number, files in enumerate((validation, test)):
        if not files:
            held[number] = [training[place] for place in order[:count]]
            order = order[count:]

    if not order:
        raise ValueError(
            f"{data[0]}: {len(training)} texts are too few to hold some out; give validation and test"
        )

    return [[training[place] for place in sorted(order[:most])], *held]


def check_apart(files: Mapping[str, Sequence[str]]) -> None:
    """No file is for two things: who has learned a text, or was chosen by it, is not tested on it."""
    seen: dict[tuple[int, int] | str, str] = {}
    for use, names in files.items():
        for name in names:
            found = (
                os.stat(name) if os.path.exists(name) else None
            )  # else of the hub, or standard input
            first = seen.setdefault((found.st_dev, found.st_ino) if found else name, use)
            if first != use:
                raise ValueError(
                    f"{use}: {name} is a file of {first}, too; expected texts that are in one of them"
                )


def frame_of(model: Model, tokenizer: Tokenizer, task: str, pooling: str) -> Frame:
    """How the model reads a text: as its head was taught to, or with the marks of its family."""
    if isinstance(model, TaskModel):
        return Frame(**{**model.config.frame, "task": task, "pooling": pooling, "segments": False})

    end = next(id for id in (tokenizer.end, tokenizer.padding, 0) if id is not None)
    starts = isinstance(model, BERT) or (isinstance(model, GPT) and tokenizer.starts_texts)
    context = model.config.context if not isinstance(model, RNN) else LONGEST
    if isinstance(model, Transformer) and model.config.position != "learned":
        context = max(context, LONGEST)

    return Frame(
        task=task, start=tokenizer.start if starts else None, delimiter=end, extract=end,
        padding=next(id for id in (tokenizer.padding, end) if id is not None),
        segments=False, context=context, pooling=pooling,
    )  # fmt: skip


def without_end(model: Model, ids: Int[np.ndarray, "_"]) -> Int[np.ndarray, "_"]:
    """A bare GPT reads no mark after a text: its last word is the one that has read all."""
    return ids[:-1] if isinstance(model, GPT) else ids
