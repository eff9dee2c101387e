"""Prompts with examples as on the slide, and whether a model answers them word for word."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qkv.evaluation.likelihood import Row, read_batch, token_log_probabilities
from qkv.generation.text import prompt_ids
from qkv.lab.experiments.inside.marked_words import PackagedModel
from qkv.models import GPT

Pair = tuple[str, str]
ARROW = " =>"
TASKS = {
    "antonyms": "Give the opposite of the word:",
    "plurals": "Give the plural of the word:",
    "capitals": "Give the capital of the country:",
    "french": "Translate English to French:",
}
"""The task description of each list of words."""


def prompt(task: str, examples: Sequence[Pair]) -> str:
    """The description and the examples, a line each; a question follows on the next line."""
    lines = [task]
    for question, answer in examples:
        lines.append(f"{question}{ARROW} {answer}")

    return "\n".join(lines) + "\n"


@torch.no_grad()
def right_answers(
    subject: PackagedModel, before: str, questions: Sequence[Pair]
) -> tuple[list[float], list[float]]:
    """Ask every question after the same prompt, which is read once.

    Args:
        subject: A model that predicts the next token.
        before: The description and the examples.
        questions: Questions with their answers.

    Returns:
        For each question 1 if greedy decoding gives the answer and then ends the line, else 0; and
        the mean log-probability of the answer's tokens.

    Raises:
        ValueError: If the model is not a GPT.
    """
    model, tokenizer = subject
    if not isinstance(model, GPT):
        raise ValueError("model: expected one that predicts the next token, as smollm2")

    stem = tuple(prompt_ids(tokenizer, before))
    branches = []
    answers = []
    for question, answer in questions:
        asked = tokenizer.encode(f"{question}{ARROW}")
        continuation = [*tokenizer.encode(f"{question}{ARROW} {answer}"), *tokenizer.encode("\n")]
        branches.append(tuple(continuation))
        answers.append(range(len(asked), len(continuation)))

    device = next(model.parameters()).device
    hidden, starts, _ = read_batch(model, [Row(stem, tuple(branches), ())], device)  # (n, E)
    right = []
    likelihood = []
    for branch, span in zip(branches, answers, strict=True):
        first = starts[0, branch]
        predicting = hidden[first + span.start - 1 : first + span.stop - 1]
        targets = torch.tensor(branch[span.start :], device=device)
        logprobs, greedy = token_log_probabilities(model, predicting, targets)
        right.append(float(greedy.all()))
        likelihood.append(float(logprobs.mean()))

    return right, likelihood
