"""Evaluate one model on one task: scores with confidence intervals and the protocol used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.evaluation.evaluators import EVALUATORS, evaluate_likelihoods
from qkv.evaluation.intervals import Score
from qkv.evaluation.likelihood import Progress, ignore_progress
from qkv.evaluation.protocol import Evaluation, Protocol, Subject, supports_few_shot
from qkv.evaluation.task_file import KINDS, EvaluationTask
from qkv.nn.config import documented

ZERO_SHOT = Protocol()


@documented
@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The scores of one model on one task, and how they were obtained.

    Example:
        >>> from qkv.evaluation.intervals import accuracy
        >>> score = accuracy([True, True, False, True])
        >>> result = EvaluationResult(
        ...     task="lambada", model="tiny", shots=0, rows=4, scores=(score,)
        ... )
        >>> result.scores[0].value
        0.75
    """

    task: str
    """Name of the task."""
    model: str
    """Name of the model."""
    shots: int
    """Examples in each prompt."""
    rows: int
    """Number of questions, pairs or windows."""
    scores: tuple[Score, ...]
    """One score for each metric."""
    notes: tuple[str, ...] = ()
    """The protocol in plain words, and what was truncated or left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The protocol and its counts as values, and generated texts."""
    random_baseline: float | None = None
    """The expected accuracy of guessing at random; None where there are no options."""
    seconds: float = 0.0
    """Time of the evaluation."""


def evaluate(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str] = (),
    protocol: Protocol = ZERO_SHOT,
    progress: Progress = ignore_progress,
) -> EvaluationResult:
    """Evaluate a model on a task.

    Args:
        task: The task, such as `read_task("lambada")`.
        subject: The model under test.
        data: Files, folders, globs or hf:names with the task's data; by default the task's own.
        protocol: Few-shot examples, limits and decoding; by default zero-shot on all rows.
        progress: Called with the number of finished items and the total.

    Returns:
        The scores with 95% confidence intervals, and notes on the protocol.

    Raises:
        ValueError: If there is no data, the data do not fit the task, or the model cannot do it.

    Example:
        >>> import torch
        >>> from qkv.evaluation import read_task
        >>> from qkv.models import GPT, GPTConfig
        >>> from qkv.text import train
        >>> _ = torch.manual_seed(0)
        >>> tokenizer = train("byte-pair", ["the cat sat on the mat"], 264)
        >>> config = GPTConfig(vocabulary=tokenizer.vocabulary, width=8, depth=1, heads=1)
        >>> subject = Subject("tiny", GPT(config), tokenizer)
        >>> result = evaluate(read_task("agreement"), subject, protocol=Protocol(limit=4))
        >>> result.rows, result.random_baseline
        (4, 0.5)
    """
    start = time.perf_counter()
    data = data or embedded_data(task)
    shots = protocol.shots if supports_few_shot(task, subject.model) else 0
    evaluator = EVALUATORS.get(task.kind, evaluate_likelihoods)
    measurement = evaluator(Evaluation(task, subject, data, protocol, progress))

    # Keep the metrics that the task reports; "accuracy by bytes" counts as accuracy.
    measurement["scores"] = tuple(
        score for score in measurement["scores"] if score.name.partition(" by ")[0] in task.metrics
    )
    if shots != protocol.shots:
        measurement["notes"] += (
            "no examples: they precede questions, not texts to predict or to translate",
        )

    seconds = time.perf_counter() - start
    return EvaluationResult(
        task=task.name, model=subject.name, shots=shots, seconds=seconds, **measurement
    )


def embedded_data(task: EvaluationTask) -> list[str]:
    """The data file that comes with a task; raises if it has none."""
    if task.data:
        return [task.beside(task.data)]

    needs = f"a table with {', '.join(task.columns)} as columns"
    if KINDS[task.kind].running_text or task.kind == "translation":
        needs = "files of text"

    raise ValueError(f"data: the task {task.name} has none of its own; give --data FILE, {needs}")
