"""What did a prediction rest on: how far do four ways to explain it agree?"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch

from qkv.data.embedded.everyday_english import english_texts
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.inside.marked_words import PackagedModel, pretrained
from qkv.lab.experiments.inside.token_importance import METHODS, importance, rank_correlation
from qkv.lab.fit import fit_text
from qkv.models import GPTConfig


@cache
def small_model(
    width: int, depth: int, steps: int, seed: int, device: torch.device
) -> PackagedModel:
    """A small GPT of everyday English: trained once in a process, since all arms explain it."""
    config = GPTConfig(width=width, depth=depth, heads=4, context=32)
    options: dict[str, Any] = {"tokenizer": "words", "rate": 3e-3, "validation_batches": 1}
    fitted = fit_text(config, "english", steps, seed=seed, device=device, **options)
    return PackagedModel(fitted.model, fitted.task.tokenizer)


def measure(cell: Cell) -> Measured:
    """The rank correlation of one method with each method, over the tokens of a sentence."""
    size = cell.size
    if size.model == "english":
        subject = small_model(size.width, size.depth, size.steps, cell.seed, cell.device)
    else:
        subject = pretrained(size.model, cell.device)

    agreement: dict[str, list[float]] = {method: [] for method in METHODS}
    for text in Random(cell.seed).sample(english_texts("valid"), size.sentences):
        beginning = " ".join(text.split()[:-1])
        scores = importance(subject, beginning, size.line)
        for method in METHODS:
            agreement[method].append(rank_correlation(scores[cell.arm], scores[method]))

    return {"agreement": {name: statistics.fmean(values) for name, values in agreement.items()}}


def agreement(value: Callable[..., float], method: str) -> float:
    return value(method, "agreement", "ablation")


EXPERIMENT = Experiment(
    name="explain",
    claim="Attention weights show which words a prediction rests on.",
    slides=("004 L107",),
    setup=(
        "A small GPT learns everyday English; held-out sentences lose their last word.",
        "How much does each word matter for the likeliest next one? Four methods tell.",
        "Ablation is what really happens: a word's embedding is replaced by the mean one.",
        "Agreement: the rank correlation over the words of a sentence, averaged over sentences.",
        "Control: words count more, the nearer to the end they stand.",
    ),
    arms=METHODS,
    measure=measure,
    checks=(
        Check(
            "Attention orders the words as ablation does (1 is the same order, 0 no relation)",
            lambda value: agreement(value, "attention"),
            relevant=0.3,
        ),
        Check(
            "It agrees with ablation more than mere nearness to the end does",
            lambda value: agreement(value, "attention") - agreement(value, "nearness to the end"),
            relevant=0.05,
        ),
    ),
    panels=(Panel("agreement", "", "", "rank correlation of two methods", kind="heat"),),
    small=Size(
        seeds=4, minutes=1.5, model="english", width=64, depth=3, steps=400, sentences=50, line=8
    ),
    large=Size(
        seeds=5, minutes=3, model="english", width=256, depth=6, steps=2000, sentences=200, line=16
    ),
    remark="At the small size attention is related to what a prediction rests on (0.39), but no "
    "more than mere nearness to the end (0.51); integrated gradients come closer (0.50). In "
    "SmolLM2 they do not converge within 32 steps: their sum is far from the change of the logit.",
    next_steps=(
        "qkv lab explain --set model=smollm2 --set sentences=10: a pre-trained model",
        "qkv look smollm2 'She opened an account at the' --view attribution",
    ),
)
