"""Pre-training: how many labelled sentences does it save?"""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.language.grammar_models import pretrain, tuned_accuracy

COUNTS = (10, 30, 100, 300, 1000)
LEVEL = 0.9
ARMS = ("GPT, pre-trained", "GPT from scratch", "BERT, pre-trained", "BERT from scratch")


def measure(cell: Cell) -> Measured:
    """Pre-train a model or leave it as it begins, then fine-tune it with more and more labels."""
    family = "GPT" if cell.arm.startswith("GPT") else "BERT"
    steps = cell.size.steps if cell.arm.endswith("pre-trained") else 0
    fitted = pretrain(family, cell, steps)
    right = {}
    for count in COUNTS:
        right[count] = tuned_accuracy(fitted, "number", count, cell)

    return {"accuracy": right, "mean accuracy": sum(right.values()) / len(right)}


def gain(family: str) -> Callable[[Callable[..., float]], float]:
    """What pre-training adds to the accuracy, over all numbers of labels."""
    return lambda value: (
        value(f"{family}, pre-trained", "mean accuracy")
        - value(f"{family} from scratch", "mean accuracy")
    )


def labels_needed(value: Callable[..., float], arm: str) -> float:
    """The decimal logarithm of the labels needed for 90%, read off the curve."""
    before = (math.log10(COUNTS[0]), value(arm, "accuracy", COUNTS[0]))
    for count in COUNTS:
        here = (math.log10(count), value(arm, "accuracy", count))
        if here[1] >= LEVEL:
            share = (LEVEL - before[1]) / max(here[1] - before[1], 1e-9)
            return before[0] + max(0.0, share) * (here[0] - before[0])

        before = here

    return before[0]


def saving(family: str) -> Callable[[Callable[..., float]], float]:
    """The factor of labels saved, as a decimal logarithm."""
    return lambda value: (
        labels_needed(value, f"{family} from scratch")
        - labels_needed(value, f"{family}, pre-trained")
    )


EXPERIMENT = Experiment(
    name="pretraining",
    claim="After unsupervised pre-training, a small amount of labelled text is enough.",
    slides=("000 L120", "000 L122", "000 L125"),
    setup=(
        "A GPT learns the next word and a BERT hidden words of 40,000 sentences of the grammar.",
        "Then each learns from 10 to 1,000 labels whether the subject is singular or plural.",
        "From scratch: the same initial weights, labels and steps, without the first stage.",
        "The head reads the mean of the vectors; all weights are trained.",
        "Tested on 2,000 sentences in which no noun met its verb before.",
    ),
    arms=ARMS,
    measure=measure,
    checks=(
        Check("Pre-training improves the GPT", gain("GPT"), relevant=0.05),
        Check("Pre-training improves the BERT", gain("BERT"), relevant=0.05),
        Check("GPT: fewer labels for 90% (log10 of the factor)", saving("GPT"), relevant=0.3),
        Check("BERT: fewer labels for 90% (log10 of the factor)", saving("BERT"), relevant=0.3),
    ),
    panels=(
        Panel(
            "accuracy", "labelled sentences", "accuracy on new combinations", log="x",
            levels={"90%": LEVEL},
        ),
    ),
    small=Size(
        seeds=5, minutes=1.5, steps=300, tuning_steps=100, width=64, depth=2, batch_tokens=1024
    ),
    large=Size(
        seeds=5, minutes=4, steps=1000, tuning_steps=150, width=256, depth=4, batch_tokens=8192
    ),
    remark="All get the same tuning steps and rate. A model from scratch might need fewer labels "
    "with more steps: part of what is saved may be steps. The first command below tells.",
    next_steps=(
        "qkv lab pretraining --set tuning_steps=400: does training from scratch only need time?",
        "qkv lab pretraining --set steps=50: how much pre-training is enough?",
        "qkv finetune --help: the same with a pre-trained model of yours",
    ),
)  # fmt: skip
