"""Does attention know the order of tokens? Not without positions or a causal mask."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.mechanism import small_models as small
from qkv.lab.fit import accuracy, fit
from qkv.lab.surgery import unmasked_training
from qkv.models import GPT, GPTConfig

ARMS: dict[str, Any] = {"no positions": "none", "learned": "learned", "sinusoidal": "sinusoidal"}
MASKED = "causal mask only"


def measure(cell: Cell) -> Measured:
    """Learn who is behind whom; compare the vectors of a sentence, shuffled before and after."""
    task = small.BehindTask(cell.seed)
    sizes = {"width": cell.size.width, "depth": cell.size.depth, "heads": 2, "context": 8}
    position = ARMS.get(cell.arm, "none")
    config = GPTConfig(vocabulary=18, position=position, scaled_embedding=True, **sizes)
    model = GPT(config).to(cell.device)

    def loss(pairs: torch.Tensor) -> torch.Tensor:
        return small.answer_error(small.answer_logits(model, pairs), pairs)

    with nullcontext() if cell.arm == MASKED else unmasked_training(model), torch.no_grad():
        with torch.enable_grad():
            fit(model, task.batch, cell.size.steps, rate=3e-3, loss=loss)

        choices = small.answer_logits(model, task.test).gather(1, task.test.to(cell.device))
        shuffled, vectors = small.shuffled_vectors(model, cell.seed, cell.device)
        return {
            "accuracy": accuracy(choices, torch.zeros(len(choices)).long().to(cell.device)),
            "difference": float((shuffled - vectors).norm() / vectors.norm()) + 1e-9,
            "weight gap": small.weight_gap(model, cell.device) + 1e-9,
        }


def above_chance(arm: str) -> Check:
    return Check(f"{arm}: who is behind is known", lambda of: of(arm, "accuracy") - 0.5, 0.25)


def no_order(says: str, measure: str) -> Check:
    return Check(says, lambda of: of("no positions", measure), 1e-4, "same")


EXPERIMENT = Experiment(
    name="order",
    claim="Attention without positions and mask reads a set: the order of tokens changes nothing.",
    slides=("002 L34", "002 L77", "000 L87", "001 L241", "001 L254"),
    setup=(
        'Sentences as "the dog is behind the cat", with 12 nouns: which of the two is behind?',
        "The test has pairs of nouns that training had not, each in both orders.",
        "Three models without a mask: no positions, learned, sinusoidal; one with a mask only.",
        "Then: the tokens' vectors if they are shuffled before the model or after it;",
        'and the weights from dog to each "big" in "the big dog saw the big cat".',
    ),
    arms=(*ARMS, MASKED),
    measure=measure,
    checks=(
        Check(
            "Without positions, exactly half of the answers are right",
            lambda of: of("no positions", "accuracy") - 0.5,
            relevant=0.05,
            expects="same",
        ),
        no_order("Without positions, shuffled tokens keep their vectors", "difference"),
        no_order('Without positions, dog attends equally to both "big"', "weight gap"),
        *(above_chance(arm) for arm in ("learned", "sinusoidal", MASKED)),
    ),
    panels=(
        Panel("accuracy", y="accuracy", title="Who is behind?", levels={"chance": 0.5}),
        Panel("difference", y="relative distance", title="Shuffled before or after", log="y"),
        Panel("weight gap", y="difference", title="Weights on both big", log="y"),
    ),
    small=Size(seeds=5, minutes=0.4, steps=300, width=32, depth=2),
    large=Size(seeds=5, minutes=2, steps=600, width=128, depth=6),
    remark="A causal mask is enough to know the order, as the lecture says later: the first big "
    "comes before dog, the second after it.",
    next_steps=("qkv lab positions: which models know absolute positions?", "qkv lab joins"),
)
