"""Tasks from outside the package: a task file of one's own, and a kind with its own evaluator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.evaluation import Subject, add_kind, evaluate, read_task
from qkv.evaluation.evaluators import EVALUATORS
from qkv.evaluation.intervals import accuracy
from qkv.evaluation.protocol import Evaluation, Measurement
from qkv.evaluation.task_file import KINDS
from qkv.generation.text import complete
from qkv.models import GPT, GPTConfig
from qkv.text import train
from support.command_fixtures import Qkv, models, qkv

__all__ = ["models", "qkv"]

ROWS = [
    {"text": "the cat", "ending": " sat", "other": " ran"},
    {"text": "a dog", "ending": " ran", "other": " sat"},
]
OWN_TASK = """
name = "endings"
kind = "minimal pair"
choices = ["{text}{ending}", "{text}{other}"]
data = "rows.jsonl"
"""
OWN_KIND = """
name = "prompts"
kind = "short"
template = "{text}"
data = "rows.jsonl"
"""


@pytest.fixture
def subject() -> Subject:
    tokenizer = train("byte-pair", ["the cat sat on the mat, a dog ran"], 280)
    config = GPTConfig(vocabulary=tokenizer.vocabulary, context=32, width=8, depth=1, heads=1)
    return Subject("tiny", GPT(config), tokenizer)


def written(folder: Path, task: str) -> Path:
    """The path of a task file with its data beside it."""
    lines = [json.dumps(row) + "\n" for row in ROWS]
    (folder / "rows.jsonl").write_text("".join(lines))
    path = folder / "mine.toml"
    path.write_text(task)
    return path


def evaluate_short(evaluation: Evaluation) -> Measurement:
    """The fraction of greedy continuations of at most twenty characters."""
    rows = evaluation.rows()
    prompts = [row["text"] for row in rows]
    _, model, tokenizer = evaluation.subject
    texts = complete(model, tokenizer, prompts, length=3, temperature=0.0)
    evaluation.progress(len(rows), len(rows))
    scores = (accuracy([len(text) <= 20 for text in texts], "short"),)
    return {"rows": len(rows), "scores": scores, "notes": ("greedy",), "facts": {"texts": texts}}


@pytest.fixture
def short_kind() -> Iterator[None]:
    add_kind("short", evaluate_short, required=("template",), metrics=("short",))
    yield
    del KINDS["short"]
    del EVALUATORS["short"]


def test_a_task_file_of_ones_own(tmp_path: Path, subject: Subject) -> None:
    result = evaluate(read_task(written(tmp_path, OWN_TASK)), subject)
    assert (result.task, result.rows, result.random_baseline) == ("endings", 2, 0.5)
    assert [score.name for score in result.scores] == ["accuracy"]


@pytest.mark.usefixtures("short_kind")
def test_a_kind_of_ones_own(tmp_path: Path, subject: Subject) -> None:
    result = evaluate(read_task(written(tmp_path, OWN_KIND)), subject)
    assert (result.rows, result.notes) == (2, ("greedy",))
    assert [score.name for score in result.scores] == ["short"]
    assert len(result.facts["texts"]) == 2


@pytest.mark.usefixtures("short_kind")
def test_the_command_evaluates_a_kind_of_ones_own(tmp_path: Path, qkv: Qkv, models: Path) -> None:
    path = written(tmp_path, OWN_KIND)
    assert "short" in qkv("evaluate", models / "gpt", "--task", path).out


def test_an_unknown_kind_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kind: expected one of last word, .*, not 'short'"):
        read_task(written(tmp_path, OWN_KIND))


@pytest.mark.usefixtures("short_kind")
def test_a_field_that_the_kind_needs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"template: this field is missing; .*'short'"):
        read_task(written(tmp_path, OWN_KIND.replace('template = "{text}"', "")))
