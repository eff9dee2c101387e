"""qkv heads: attention patterns of heads, head ablation, and heads that follow syntax."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    Opened,
    float32_by_default,
    open_model,
)
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.command_line.user_input import note_unknown
from qkv.data.batches.batch import Batch
from qkv.data.sources.conllu import read_sentences
from qkv.data.sources.examples import open_examples
from qkv.data.sources.files import find_files
from qkv.data.sources.source import open_pairs, open_texts
from qkv.insight.heads.head_ablation import AblationValue, ablate
from qkv.insight.heads.head_patterns import head_patterns
from qkv.insight.heads.head_syntax import head_syntax
from qkv.insight.heads.text_batches import (
    batches_from_examples,
    batches_from_pairs,
    batches_from_texts,
)
from qkv.insight.render.head_tables import importance_table, patterns_table, syntax_table
from qkv.insight.render.views import check_ending
from qkv.tables import Table

PASSAGE = 600
"""Characters up to which the lines of a file are read together."""
LIMIT = 32
"""Texts, pairs or examples read by default."""
TEXTS = (
    "The old library on the hill was closed for the winter, but Anna had kept a key to the "
    "old library.",
    "When the river rose, the farmers moved their animals to the hill, and the river took only "
    "the fences.",
    "A good teacher asks a question, waits, and then asks the same question again in other words.",
    "Mr. Green bought three books: one for himself, one for his daughter, and one that nobody "
    "ever read.",
    "The train from Berlin arrives at nine, the train from Vienna at ten, and the train from Rome "
    "not at all.",
    "She said that the results were wrong, and that whoever wrote the report had not read the "
    "results.",
    "If the bread is stale, toast it; if the toast is burnt, give it to the birds; the birds do "
    "not mind.",
    "In the morning the market is full of people, and in the evening the market is full of cats.",
)
PAIRS = "data: a translator reads pairs; give some, such as --data turkish:test"

TextOrPair = str | tuple[str, str]


class HeadResults(NamedTuple):
    """One result: numbers for JSON, a table, and the values and the title of its figure."""

    numbers: Any
    table: Table
    values: Any
    title: str


def run(
    model: ModelName,
    text: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")
    ] = (),
    data: tuple[str, ...] = (),
    without: Annotated[AblationValue | None, tyro.conf.arg(name="ablate")] = None,
    grammar: Annotated[Path | None, tyro.conf.arg(name="syntax")] = None,
    same: bool = False,
    limit: int | None = None,
    plot: Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """What each head does; with --ablate which heads matter; with --syntax which follow syntax.

    qkv heads smollm2

    qkv heads smollm2 --data book.txt --ablate mean --plot heads.png

    qkv heads minilm --syntax dev.conllu.xz --limit 500

    Args:
        model: The folder of a run or of transformers, a GGUF file, or smollm2 or minilm.
        text: Texts to read, or sources to translate (default: a few English sentences).
        data: Files with texts; with pairs for a translator; with labels for the loss of a
            fine-tuned model.
        without: Switch off each head in turn, replacing its output by zeros or by its mean, and
            rank the heads by the change in loss.
        grammar: A CoNLL-U file: measure how often a head attends from a word to its syntactic
            head.
        same: With --syntax: choose the best head on the sentences it is scored on, as Clark et
            al. 2019 do, not on the other half.
        limit: Texts, pairs or examples to read (default 32); with --syntax sentences (default
            all).
        plot: Draw a .png, .svg or .pdf file; with both --ablate and --syntax, one each, with its
            name added.
        as_json: Print a line of JSON with all numbers, instead of tables.
        machine: Device and precision.
    """
    check_flags(text, data, grammar, same, limit)
    check_writable("plot", plot)
    inputs = [Path(name) for name in data]
    if grammar is not None:
        inputs.append(grammar)

    check_not_input(plot, inputs, "read")
    if plot is not None:
        check_ending(plot)

    opened = open_model(model, float32_by_default(machine))
    results: dict[str, HeadResults] = {}
    if without is not None:
        results["ablation"] = measure_ablation(opened, model, without, text, data, limit or LIMIT)

    if grammar is not None:
        results["syntax"] = measure_syntax(opened, model, grammar, limit, not same)

    if not results:
        results["patterns"] = measure_patterns(opened, model, text, data, limit or LIMIT)

    show_results(results, model, plot, as_json)


def check_flags(
    text: tuple[str, ...],
    data: tuple[str, ...],
    grammar: Path | None,
    same: bool,
    limit: int | None,
) -> None:
    """Refuse flags that do not go together before the model is loaded."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected 1 or more, not {limit}")
    if text and data:
        raise ValueError("text: files are given as well; leave one of them out")
    if same and grammar is None:
        raise ValueError("same: it is about syntax; give a CoNLL-U file with --syntax")


def show_results(
    results: dict[str, HeadResults], model: str, plot: Path | None, as_json: bool
) -> None:
    """Print the tables or one line of JSON, and draw a figure for each result."""
    if as_json:
        numbers = {name: result.numbers for name, result in results.items()}
        print(json.dumps({"model": model, **numbers}, ensure_ascii=False))

    for name, result in results.items():
        if not as_json:
            Console(highlight=False).print(result.table)

        if plot is not None:
            path = plot
            if len(results) > 1:
                path = plot.with_stem(f"{plot.stem}-{name}")

            print(draw(name, result, path), file=sys.stderr if as_json else sys.stdout)


def draw(name: str, result: HeadResults, path: Path) -> Path:
    """Draw the figure of a result; importing matplotlib takes long."""
    from qkv.insight.render.figures import figure_style, head_figures

    figures: dict[str, Callable[[Any, str], Any]] = {
        "patterns": head_figures.patterns_figure,
        "ablation": head_figures.importance_figure,
        "syntax": head_figures.syntax_figure,
    }
    return figure_style.save(lambda: figures[name](result.values, result.title), path)


# The three measurements


def measure_patterns(
    opened: Opened, name: str, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> HeadResults:
    """How far each head shows each known attention pattern."""
    texts = read_texts(opened, text, data, limit)
    with progress_bar("reading") as advance:
        patterns = head_patterns(opened.model, opened.tokenizer, texts, advance)

    numbers = []
    for site in patterns:
        values: dict[str, Any] = {"attention": site.kind}
        for pattern, scores in site.scores.items():
            values[pattern] = {"scores": scores.tolist(), "uniform": site.uniform[pattern]}

        numbers.append(values)

    return HeadResults(numbers, patterns_table(patterns), patterns, f"What heads do: {name}")


def measure_ablation(
    opened: Opened,
    name: str,
    how: AblationValue,
    text: tuple[str, ...],
    data: tuple[str, ...],
    limit: int,
) -> HeadResults:
    """How much the loss changes without each head."""
    batches = read_batches(opened, text, data, limit)
    with progress_bar("switching off each head") as advance:
        ablation = ablate(opened.model, batches, how, advance)

    numbers = {
        "how": how,
        "measure": ablation.measure,
        "unchanged": ablation.unchanged,
        "texts": ablation.texts,
        "heads": [without_nan(head._asdict()) for head in ablation.ranked()],
    }
    return HeadResults(numbers, importance_table(ablation), ablation, f"Which heads matter: {name}")


def measure_syntax(
    opened: Opened, name: str, file: Path, limit: int | None, halves: bool
) -> HeadResults:
    """How often the best head for each dependency relation attends to the syntactic head."""
    (source, *others) = find_files(str(file), piped="conllu")
    if others or source.format != "conllu":
        raise ValueError(f"syntax: expected one .conllu file, compressed or not, not {file}")

    sentences = list(islice(read_sentences(source), limit))

    with progress_bar("reading") as advance:
        scores = head_syntax(opened.model, opened.tokenizer, sentences, advance, halves=halves)

    numbers = {
        "sentences": scores.sentences,
        "halves": scores.halves,
        "relations": [without_nan(relation._asdict()) for relation in scores.relations],
    }
    return HeadResults(numbers, syntax_table(scores), scores, f"Heads and grammar: {name}")


def without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """The values with None for NaN, which JSON does not have."""
    known = dict(values)
    for name, value in values.items():
        if isinstance(value, float) and math.isnan(value):
            known[name] = None

    return known


# The texts


def read_texts(
    opened: Opened, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> list[TextOrPair]:
    """Texts, or pairs for a translator; words that the model does not know are noted."""
    texts: list[TextOrPair] = []
    if data and opened.model.has_source:
        texts += islice(open_pairs(data), limit)
    elif opened.model.has_source and opened.model.stacks and not text:
        raise ValueError(PAIRS)
    elif data:
        texts += islice(passages(data), limit)
    else:
        texts += (text or TEXTS)[:limit]

    singles: list[str] = []
    for item in texts:
        singles += [item] if isinstance(item, str) else item

    note_unknown(opened.tokenizer, singles)

    return texts


def passages(data: tuple[str, ...]) -> Iterator[str]:
    """The lines of each text, joined up to a few hundred characters."""
    passage = ""
    for piece, ends in open_texts(data):
        for line in piece.splitlines(keepends=True):
            passage += line
            if len(passage) >= PASSAGE:
                yield passage.strip()
                passage = ""

        if not ends:
            continue

        if passage.strip():
            yield passage.strip()

        passage = ""


def read_batches(
    opened: Opened, text: tuple[str, ...], data: tuple[str, ...], limit: int
) -> list[Batch]:
    """The batches on which the loss is measured."""
    model, tokenizer = opened
    if model.task is not None:
        if not data:
            raise ValueError(
                "data: the loss of a fine-tuned model needs labelled texts; name a file with some"
            )

        examples = list(islice(open_examples(data, model.task.task), limit))
        return batches_from_examples(model, tokenizer, examples)

    if model.has_source and not data:
        raise ValueError(PAIRS)

    texts = read_texts(opened, text, data, limit)
    if model.has_source:
        return batches_from_pairs(tokenizer, [pair for pair in texts if not isinstance(pair, str)])

    batches = batches_from_texts(model, tokenizer, [str(item) for item in texts])
    if not batches:
        raise ValueError("text: it has no token to predict; expected a longer one")

    return batches
