"""Evaluation: perplexity, BLEU, few-shot tasks and their confidence intervals."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.evaluation.bleu import TranslationScores, bleu
    from qkv.evaluation.evaluate import EvaluationResult, evaluate
    from qkv.evaluation.evaluators import add_kind
    from qkv.evaluation.intervals import Score
    from qkv.evaluation.perplexity import Perplexity, text_perplexity, translation_perplexity
    from qkv.evaluation.protocol import Protocol, Subject
    from qkv.evaluation.task_file import EvaluationTask, read_task
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = [
    "EvaluationResult",
    "EvaluationTask",
    "Perplexity",
    "Protocol",
    "Score",
    "Subject",
    "TranslationScores",
    "add_kind",
    "bleu",
    "evaluate",
    "read_task",
    "text_perplexity",
    "translation_perplexity",
]
