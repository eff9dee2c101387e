"""qkv heads: what the heads of a model do, which of them it misses, and which grammar they know."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    Opened,
    check_not_read,
    check_place,
    finely,
    note_unknown,
    open_model,
)
from qkv.data.batches.batch import Batch
from qkv.data.sources.conllu import read_sentences
from qkv.data.sources.examples import open_examples
from qkv.data.sources.files import find_files
from qkv.data.sources.source import open_pairs, open_texts
from qkv.insight.heads.head_ablation import How, ablate
from qkv.insight.heads.head_patterns import head_patterns
from qkv.insight.heads.head_syntax import syntax
from qkv.insight.heads.text_batches import batches_of, batches_of_examples, batches_of_pairs
from qkv.insight.render.figures.figure_style import check_ending
from qkv.insight.render.figures.head_figures import draw_importance, draw_patterns, draw_syntax
from qkv.insight.render.head_tables import importance_table, patterns_table, syntax_table
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.tables import Table

PASSAGE = 600  # characters: the lines of a file are read together up to so many
TEXTS = (
    "The old library on the hill was closed for the winter, but Anna had kept a key to the old library.",
    "When the river rose, the farmers moved their animals to the hill, and the river took only the fences.",
    "A good teacher asks a question, waits, and then asks the same question again in other words.",
    "Mr. Green bought three books: one for himself, one for his daughter, and one that nobody ever read.",
    "The train from Berlin arrives at nine, the train from Vienna at ten, and the train from Rome not at all.",
    "She said that the results were wrong, and that whoever wrote the report had not read the results.",
    "If the bread is stale, toast it; if the toast is burnt, give it to the birds; the birds do not mind.",
    "In the morning the market is full of people, and in the evening the market is full of cats.",
)
PAIRS = "data: a translator reads pairs; give some, such as --data turkish:test"
Advance = Callable[[int, int], None]


class HeadResults(NamedTuple):
    """What was found, in the three ways in which it may be asked for."""

    numbers: Any
    table: Table
    draw: Callable[[Path], Path]


def run(
    model: ModelName,
    text: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")
    ] = (),
    data: tuple[str, ...] = (),
    without: Annotated[How | None, tyro.conf.arg(name="ablate")] = None,
    grammar: Annotated[Path | None, tyro.conf.arg(name="syntax")] = None,
    same: bool = False,
    limit: int | None = None,
    plot: Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """What each head does; with --ablate which heads the model misses; with --syntax which grammar
    they know.

    qkv heads smollm2

    qkv heads smollm2 --data book.txt --ablate mean --plot heads.png

    qkv heads minilm --syntax dev.conllu.xz --limit 500

    Args: model: The folder of a run or of transformers, a GGUF file, or smollm2 or minilm. text:
        Texts to read, or sources to translate; a few English sentences unless given. data: Files
        with texts; for a translator with pairs; for the loss of a fine-tuned model with labels.
        without: Put out every head in turn, by zeros or by its mean, and rank them by the change of
        the loss. grammar: A CoNLL-U file: does a head point from a word to the word that this one
        hangs on? same: With syntax: choose the best head where it is measured, as Clark et al. 2019
        do, not on the other half. limit: Read so many texts, pairs or examples, 32 unless given;
        with syntax so many sentences, all unless given. plot: Draw a .png, .svg or .pdf file; of
        two questions, one each, with its name added. as_json: A line of JSON with all numbers,
        instead of tables. machine: Where and how it computes.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected 1 or more, not {limit}")
    if text and data:
        raise ValueError("text: files are given, too; leave one of them out")
    if same and grammar is None:
        raise ValueError("same: it is about syntax; give a CoNLL-U file with --syntax")

    check_place("plot", plot)
    check_not_read(plot, [*map(Path, data), *([] if grammar is None else [grammar])], "read")
    if plot is not None:
        check_ending(plot)

    opened = open_model(model, finely(machine), GPT, BERT, Transformer, RNN, TaskModel)
    found: dict[str, HeadResults] = {}
    if without is not None:
        found["ablation"] = ablated(opened, model, without, text, data, limit or 32)

    if grammar is not None:
        found["syntax"] = parsed(opened, model, grammar, limit, not same)

    if not found:
        found["roles"] = played(opened, model, text, data, limit or 32)

    if as_json:
        print(
            json.dumps(
                {"model": model, **{name: each.numbers for name, each in found.items()}},
                ensure_ascii=False,
            )
        )

    for name, answer in found.items():
        if not as_json:
            Console(highlight=False).print(answer.table)

        if plot is not None:
            out = answer.draw(plot if len(found) == 1 else plot.with_stem(f"{plot.stem}-{name}"))
            print(out, file=sys.stderr if as_json else sys.stdout)


# The three questions


def played(
    opened: Opened, name: str, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> HeadResults:
    texts = texts_of(opened, text, data, limit)
    with advancing("reading") as advance:
        found = head_patterns(opened.model, opened.tokenizer, texts, advance)

    numbers = [
        {
            "attention": each.kind,
            **{
                role: {"scores": scores.tolist(), "even": each.even[role]}
                for role, scores in each.scores.items()
            },
        }
        for each in found
    ]

    return HeadResults(
        numbers,
        patterns_table(found),
        lambda out: draw_patterns(found, out, f"What heads do: {name}"),
    )


def ablated(
    opened: Opened, name: str, how: How, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> HeadResults:
    asked = batches(opened, text, data, limit)
    with advancing("without each head") as advance:
        found = ablate(opened.model, asked, how, advance)

    numbers = {
        "how": how,
        "measure": found.measure,
        "unchanged": found.unchanged,
        "texts": found.texts,
        "heads": [
            {field: known(value) for field, value in each._asdict().items()}
            for each in found.ranked()
        ],
    }

    title = f"Which heads matter: {name}"

    return HeadResults(
        numbers, importance_table(found), lambda out: draw_importance(found, out, title)
    )


def parsed(opened: Opened, name: str, file: Path, limit: int | None, halves: bool) -> HeadResults:
    (found_file, *others) = find_files(str(file), piped="conllu")
    if others or found_file.format != "conllu":
        raise ValueError(f"syntax: expected one .conllu file, perhaps compressed, not {file}")

    sentences = list(islice(read_sentences(found_file), limit))

    with advancing("reading") as advance:
        found = syntax(opened.model, opened.tokenizer, sentences, advance, halves=halves)

    numbers = {
        "sentences": found.sentences,
        "halves": found.halves,
        "relations": [
            {field: known(value) for field, value in each._asdict().items()}
            for each in found.relations
        ],
    }

    return HeadResults(
        numbers,
        syntax_table(found),
        lambda out: draw_syntax(found, out, f"Heads and grammar: {name}"),
    )


def known(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    return None if isinstance(value, float) and math.isnan(value) else value


# What is read


def texts_of(
    opened: Opened, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> list[str | tuple[str, str]]:
    """As given, or a few sentences. Which of their words the model does not know is said."""
    found: list[str | tuple[str, str]] = []
    if data and isinstance(opened.model, Transformer | RNN):
        found += islice(open_pairs(data), limit)
    elif isinstance(opened.model, Transformer) and not text:
        raise ValueError(PAIRS)
    else:
        found += islice(passages(data) if data else text or TEXTS, limit)

    note_unknown(
        opened.tokenizer,
        [each for one in found for each in ([one] if isinstance(one, str) else one)],
    )

    return found


def passages(data: tuple[str, ...]) -> Iterator[str]:
    """The lines of each text, together up to a few hundred characters."""
    held = ""
    for piece, ends in open_texts(data):
        for line in piece.splitlines(keepends=True):
            held += line
            if len(held) >= PASSAGE:
                yield held.strip()
                held = ""

        if ends and held.strip():
            yield held.strip()

        held = "" if ends else held


def batches(
    opened: Opened, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> list[Batch]:
    """What the model is asked, and measured by."""
    model, tokenizer = opened.model, opened.tokenizer
    if isinstance(model, TaskModel):
        if not data:
            raise ValueError(
                "data: the loss of a fine-tuned model needs texts with labels; name a file that has some"
            )

        examples = list(islice(open_examples(data, model.config.head.task), limit))
        return batches_of_examples(model, tokenizer, examples)

    if isinstance(model, Transformer | RNN):
        if not data:
            raise ValueError(PAIRS)

        pairs = [each for each in texts_of(opened, text, data, limit) if not isinstance(each, str)]
        return batches_of_pairs(tokenizer, pairs)

    texts = [str(each) for each in texts_of(opened, text, data, limit)]
    made = batches_of(model, tokenizer, texts)
    if not made:
        raise ValueError("text: it has no word that could be asked for; expected a longer one")

    return made


@contextmanager
def advancing(label: str) -> Iterator[Advance]:
    """A line of progress, at a terminal."""
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
