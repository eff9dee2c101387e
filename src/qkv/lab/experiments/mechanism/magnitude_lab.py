"""Do large embeddings make the gradient vanish, and does layer norm prevent it?"""

from __future__ import annotations

from contextlib import nullcontext
from math import log10

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.mechanism.small_models import BehindTask, answer_error, answer_logits
from qkv.lab.fit import accuracy, fit
from qkv.lab.surgery import without_norm
from qkv.models import GPT, GPTConfig
from qkv.nn.stack_config import NormPlacement

SQUARED = "no norm, squared error"
ARMS = ("norm after", "norm before", "no norm", "norm after, squared error", SQUARED)


def train(cell: Cell, magnitude: int) -> tuple[float, float]:
    """The gradient at the logits before training, and the accuracy after it."""
    torch.manual_seed(cell.seed)
    task = BehindTask(cell.seed)
    squared = "squared" in cell.arm
    place: NormPlacement = "before" if cell.arm == "norm before" else "after"
    sizes = {"width": cell.size.width, "depth": cell.size.depth, "heads": 2, "context": 8}
    model = GPT(GPTConfig(vocabulary=18, tied=False, norm_placement=place, **sizes))
    for table in model.embedding.parameters():
        table.data *= magnitude / table.data.std()

    model.to(cell.device)
    with without_norm(model) if "no norm" in cell.arm else nullcontext():
        logits = answer_logits(model, task.test)
        (gradient,) = torch.autograd.grad(answer_error(logits, task.test, squared), logits)
        first = len(gradient) * float(gradient.norm(dim=-1).mean())

        def loss(pairs: torch.Tensor) -> torch.Tensor:
            return answer_error(answer_logits(model, pairs), pairs, squared)

        fit(model, task.batch, cell.size.steps, rate=3e-3, loss=loss)
        with torch.no_grad():
            logits = answer_logits(model, task.test)

    return max(1e-12, min(1e12, first)), accuracy(logits, task.test[:, 0].to(cell.device))


def measure(cell: Cell) -> Measured:
    """Train with embeddings of each magnitude."""
    found = {magnitude: train(cell, magnitude) for magnitude in (1, 10, 100, 1000)}
    gradients = {magnitude: pair[0] for magnitude, pair in found.items()}
    return {"gradient": gradients, "accuracy": {key: pair[1] for key, pair in found.items()}}


def vanishes(says: str, arm: str) -> Check:
    return Check(says, lambda of: log10(of(arm, "gradient", 1) / of(arm, "gradient", 1000)), 0.5)


EXPERIMENT = Experiment(
    name="magnitude",
    claim="Large embeddings saturate the last softmax: its gradient vanishes, without layer norm.",
    slides=("001 L283", "001 L288", "001 L299"),
    setup=(
        'A classification: who is behind, in "the dog is behind the cat", among 12 nouns?',
        "GPTs whose embeddings have numbers of standard deviation 1, 10, 100 and 1,000.",
        "Layer norm after each sublayer, before each, or none; cross-entropy or squared error.",
        "Before training: the gradient at the logits; after it: the accuracy with new pairs.",
    ),
    arms=ARMS,
    measure=measure,
    checks=(
        vanishes("Cross-entropy: from 1 to 1,000 the gradient falls (log10)", "no norm"),
        vanishes("Squared error: from 1 to 1,000 the gradient falls (log10)", SQUARED),
        Check(
            "Without norm, large embeddings train more slowly",
            lambda of: of("no norm", "accuracy", 1) - of("no norm", "accuracy", 1000),
            relevant=0.2,
        ),
        Check(
            "Layer norm after each sublayer prevents it",
            lambda of: of("norm after", "accuracy", 1000) - of("no norm", "accuracy", 1000),
            relevant=0.2,
        ),
    ),
    panels=(
        Panel("gradient", "magnitude", "norm", "Gradient at the logits", log="xy"),
        Panel("accuracy", "magnitude", "accuracy", "After training", log="x"),
    ),
    small=Size(seeds=5, minutes=1.2, steps=200, width=32, depth=2),
    large=Size(seeds=3, minutes=3, steps=150, width=128, depth=6),
    remark="The derivative of a saturated softmax vanishes, but the gradient of cross-entropy does "
    "not: for a wrong answer it is near -1 at the right token's logit. With squared error it does "
    "vanish. At the small size large embeddings train slowly with either, and norms before the "
    "sublayers do not help: they may not, since the residual stream stays as large as it was.",
    next_steps=("qkv lab residual: norms and depth.", "qkv lab norm-and-warmup"),
)
