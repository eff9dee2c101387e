"""qkv heads: attention patterns of heads, head ablation, and heads that follow syntax."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console

from qkv.checkpoint import CHECKPOINTS, steps_in
from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, Opened, open_float32
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.command_line.user_input import Texts, note_unknown
from qkv.data.batches.batch import Batch
from qkv.data.sources.conllu import read_sentences
from qkv.data.sources.examples import open_examples
from qkv.data.sources.files import find_files
from qkv.data.sources.source import open_pairs, open_texts
from qkv.evaluation.report import finite
from qkv.insight.heads.head_ablation import AblationValue, ablate
from qkv.insight.heads.head_history import head_history
from qkv.insight.heads.head_patterns import head_patterns
from qkv.insight.heads.head_syntax import head_syntax
from qkv.insight.heads.text_batches import (
    batches_from_examples,
    batches_from_pairs,
    batches_from_texts,
)
from qkv.insight.render.head_tables import (
    history_table,
    importance_table,
    patterns_table,
    syntax_table,
)
from qkv.insight.render.views import check_ending
from qkv.tables import Table
from qkv.training.logging.metrics import METRICS_FILE, read_metrics

PASSAGE = 600
"""Characters up to which the lines of a file are read together."""
LIMIT = 32
"""Texts, pairs or examples read by default."""
TEXTS = tuple(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines())
"""English sentences that are read by default."""
PAIRS = "data: a translator reads pairs; give some, such as --data turkish:test"

TextOrPair = str | tuple[str, str]


class HeadResults(NamedTuple):
    """One result: numbers for JSON, a table, and the values and the title of its figure."""

    numbers: Any
    table: Table
    values: Any
    title: str


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What each head does; with --ablate which heads matter; with --syntax which follow syntax.

    qkv heads smollm2

    qkv heads smollm2 --data book.txt --ablate mean --plot heads.png

    qkv heads minilm --syntax dev.conllu.xz --limit 500

    qkv heads runs/mine --checkpoints --plot history.png
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or smollm2 or minilm."""
    text: Texts = ()
    """Texts to read, or sources to translate (default: a few English sentences)."""
    data: tuple[str, ...] = ()
    """Files with texts; with pairs for a translator; with labels for the loss of a fine-tuned
    model."""
    without: Annotated[AblationValue | None, tyro.conf.arg(name="ablate")] = None
    """Switch off each head in turn, replacing its output by zeros or by its mean, and rank the
    heads by the change in loss."""
    grammar: Annotated[Path | None, tyro.conf.arg(name="syntax")] = None
    """A CoNLL-U file: measure how often a head attends from a word to its syntactic head."""
    same: bool = False
    """With --syntax: choose the best head on the sentences it is scored on, as Clark et al. 2019
    do, not on the other half."""
    checkpoints: bool = False
    """Measure the patterns at every checkpoint of a run, which `qkv train --keep all` keeps: how
    its heads came to be."""
    limit: int | None = None
    """Texts, pairs or examples to read (default 32); with --syntax sentences (default all)."""
    plot: Path | None = None
    """Draw a .png, .svg or .pdf file; with both --ablate and --syntax, one each, with its name
    added."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a line of JSON with all numbers, instead of tables."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        self.check_flags()
        if self.checkpoints:
            self.show_results({"history": self.measure_history()})
            return

        opened = open_float32(self.model, self.machine)
        results: dict[str, HeadResults] = {}
        if self.without is not None:
            results["ablation"] = self.measure_ablation(opened, self.without)

        if self.grammar is not None:
            results["syntax"] = self.measure_syntax(opened, self.grammar)

        self.show_results(results or {"patterns": self.measure_patterns(opened)})

    def check_flags(self) -> None:
        """Refuse bad flags before the model is loaded."""
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit: expected 1 or more, not {self.limit}")
        if self.text and self.data:
            raise ValueError("text: files are given as well; leave one of them out")
        if self.same and self.grammar is None:
            raise ValueError("same: it is about syntax; give a CoNLL-U file with --syntax")

        if self.checkpoints and (self.without is not None or self.grammar is not None):
            raise ValueError("checkpoints: it measures patterns; leave --ablate and --syntax out")

        if self.plot is not None:
            check_writable("plot", self.plot)
            check_not_input(self.plot, [*map(Path, self.data), self.grammar], "read")
            check_ending(self.plot)

    def show_results(self, results: dict[str, HeadResults]) -> None:
        """Print the tables or one line of JSON, and draw a figure for each result."""
        if self.as_json:
            numbers = {name: result.numbers for name, result in results.items()}
            print(json.dumps({"model": self.model, **numbers}, ensure_ascii=False))

        for name, result in results.items():
            if not self.as_json:
                Console(highlight=False).print(result.table)

            if self.plot is not None:
                path = self.plot
                if len(results) > 1:
                    path = path.with_stem(f"{path.stem}-{name}")

                print(draw(name, result, path), file=sys.stderr if self.as_json else sys.stdout)

    # The three measurements

    def measure_patterns(self, opened: Opened) -> HeadResults:
        """How far each head shows each known attention pattern."""
        texts = self.read_texts(opened)
        with progress_bar("reading") as advance:
            patterns = head_patterns(opened.model, opened.tokenizer, texts, advance)

        numbers = []
        for site in patterns:
            values: dict[str, Any] = {"attention": site.kind}
            for pattern, scores in site.scores.items():
                values[pattern] = {"scores": scores.tolist(), "uniform": site.uniform[pattern]}

            numbers.append(values)

        title = f"What heads do: {self.model}"
        return HeadResults(numbers, patterns_table(patterns), patterns, title)

    def measure_history(self) -> HeadResults:
        """The patterns at every checkpoint of a run."""
        run = Path(self.model)
        steps = steps_in(run / CHECKPOINTS)
        if not steps:
            raise ValueError(
                f"checkpoints: {self.model} has none; name the folder of a run that was trained "
                "with --checkpoint-every and --keep all"
            )

        def models() -> Iterator[tuple[int, Any]]:
            for step in steps:
                yield step, open_float32(f"{run}@{step}", self.machine).model

        last = open_float32(f"{run}@{steps[-1]}", self.machine)
        texts = self.read_texts(last)
        with progress_bar("measuring checkpoints") as advance:
            histories = head_history(
                models(), last.tokenizer, texts, lambda done: advance(done, len(steps))
            )

        numbers = []
        for history in histories:
            values: dict[str, Any] = {"attention": history.kind, "steps": history.steps}
            if history.repeated is not None:
                values["repeated_loss"] = history.repeated.tolist()

            values["scores"] = {name: found.tolist() for name, found in history.scores.items()}
            numbers.append(values)

        title = f"How heads came to be: {run.name}"
        drawn = (histories, loss_curve(run))
        return HeadResults(numbers, history_table(histories), drawn, title)

    def measure_ablation(self, opened: Opened, how: AblationValue) -> HeadResults:
        """How much the loss changes without each head."""
        batches = self.read_batches(opened)
        with progress_bar("switching off each head") as advance:
            ablation = ablate(opened.model, batches, how, advance)

        numbers = {
            "how": how,
            "measure": ablation.measure,
            "unchanged": ablation.unchanged,
            "texts": ablation.texts,
            "heads": [finite(head._asdict()) for head in ablation.ranked()],
        }
        title = f"Which heads matter: {self.model}"
        return HeadResults(numbers, importance_table(ablation), ablation, title)

    def measure_syntax(self, opened: Opened, file: Path) -> HeadResults:
        """How often the best head for each dependency relation attends to the syntactic head."""
        (source, *others) = find_files(str(file), piped="conllu")
        if others or source.format != "conllu":
            raise ValueError(f"syntax: expected one .conllu file, compressed or not, not {file}")

        sentences = list(islice(read_sentences(source), self.limit))
        with progress_bar("reading") as advance:
            scores = head_syntax(*opened, sentences, advance, halves=not self.same)

        numbers = {
            "sentences": scores.sentences,
            "halves": scores.halves,
            "relations": [finite(relation._asdict()) for relation in scores.relations],
        }
        title = f"Heads and grammar: {self.model}"
        return HeadResults(numbers, syntax_table(scores), scores, title)

    # The texts

    def read_texts(self, opened: Opened) -> list[TextOrPair]:
        """Texts, or pairs for a translator; words that the model does not know are noted."""
        texts: Iterable[TextOrPair] = self.text or TEXTS
        if self.data and opened.model.has_source:
            texts = open_pairs(self.data)
        elif opened.model.has_source and opened.model.stacks and not self.text:
            raise ValueError(PAIRS)
        elif self.data:
            texts = passages(self.data)

        chosen = list(islice(texts, self.limit or LIMIT))
        singles: list[str] = []
        for item in chosen:
            singles += [item] if isinstance(item, str) else item

        note_unknown(opened.tokenizer, singles)

        return chosen

    def read_batches(self, opened: Opened) -> list[Batch]:
        """The batches on which the loss is measured."""
        model, tokenizer = opened
        if model.task is not None:
            if not self.data:
                raise ValueError(
                    "data: the loss of a fine-tuned model needs labelled texts; name a file with "
                    "some"
                )

            examples = islice(open_examples(self.data, model.task.task), self.limit or LIMIT)
            return batches_from_examples(model, tokenizer, list(examples))

        if model.has_source and not self.data:
            raise ValueError(PAIRS)

        texts = self.read_texts(opened)
        if model.has_source:
            pairs = [pair for pair in texts if not isinstance(pair, str)]
            return batches_from_pairs(tokenizer, pairs)

        batches = batches_from_texts(model, tokenizer, list(map(str, texts)))
        if not batches:
            raise ValueError("text: it has no token to predict; expected a longer one")

        return batches


def draw(name: str, result: HeadResults, path: Path) -> Path:
    """Draw the figure of a result; importing matplotlib takes long."""
    from qkv.insight.render.figures import figure_style, head_figures
    from qkv.insight.render.method_figures.history_figure import history_figure

    figures: dict[str, Callable[[Any, str], Any]] = {
        "patterns": head_figures.patterns_figure,
        "ablation": head_figures.importance_figure,
        "syntax": head_figures.syntax_figure,
        "history": lambda values, title: history_figure(*values, title),
    }
    return figure_style.save(lambda: figures[name](result.values, result.title), path)


def loss_curve(run: Path) -> tuple[list[int], list[float]] | None:
    """The training loss by step, or None if the run has no metrics; a rewound step counts once."""
    if not (run / METRICS_FILE).is_file():
        return None

    losses: dict[int, float] = {}
    for row in read_metrics(run):
        if isinstance(row.get("loss"), float):
            losses[int(row["step"])] = row["loss"]

    return list(losses), list(losses.values())


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
