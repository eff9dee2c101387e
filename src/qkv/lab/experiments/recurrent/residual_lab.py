"""What are residual connections and norms for, in deep Transformers and in deep RNNs?"""

from __future__ import annotations

from contextlib import nullcontext

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.recurrent import sequence_models as models
from qkv.lab.experiments.recurrent.sequence_models import difference
from qkv.lab.fit import fit, fit_text, validation_loss
from qkv.lab.surgery import without_norm, without_residual

GPT = "GPT"
NO_NORM = "GPT without norm"
NO_RESIDUAL = "GPT without residual"
GRUS = ("GRU", "GRU with residual")
SURGERY = {NO_NORM: without_norm, NO_RESIDUAL: without_residual}
HIGHEST = 20.0
"""The loss that counts for a model whose training failed."""
LOSS = "loss, deep"
GRADIENT = "first block's gradient, deep"
FALL = "fall of the gradient to the first block"


def measure(cell: Cell) -> Measured:
    """Train a shallow and a deep model for equally many steps."""
    _, shallow = train(cell, cell.size.deep // 4)
    gradients, deep = train(cell, cell.size.deep)
    return {
        "loss": {cell.size.deep // 4: shallow, cell.size.deep: deep},
        "gradient": gradients,
        GRADIENT: gradients[1],
        FALL: gradients[max(gradients)] - gradients[1],
        LOSS: deep,
    }


def train(cell: Cell, depth: int) -> tuple[dict[int, float], float]:
    """Each block's gradient at the start, and the loss on held-out text after training."""
    size = cell.size
    sizes = {"context": size.context, "width": size.width, "depth": depth, "heads": 2}
    name, _, residual = cell.arm.partition(" with ")
    config = models.language_model(name, residual=bool(residual), **sizes)
    given = {"seed": cell.seed, "device": cell.device, "batch_tokens": size.rows * size.context}
    model, _, _, task = fit_text(config, "python", 0, validation_batches=1, **given)
    with SURGERY.get(cell.arm, nullcontext)(model):
        gradients = models.block_gradients(model, task.training.batch(0))
        fit(model, task.training.batch, size.steps, rate=size.rate)
        return gradients, min(HIGHEST, validation_loss(model, task, 16))


SMALLER = difference(GRADIENT, GPT, NO_NORM)
FALLS = difference(FALL, NO_NORM)

EXPERIMENT = Experiment(
    name="residual",
    claim="Deep models learn better with residuals and norms; without norms, gradients vanish.",
    slides=("001 L104", "001 L290", "001 L291", "004 L38", "003 L22"),
    setup=(
        "Shallow and deep models predict the next character of Python code.",
        "GPTs lose their residual connections, or their norms; GRUs get residual connections.",
        "The loss on held-out code is compared after equally many steps on the same batches.",
        "The gradient of each block's weights is taken before the first step.",
    ),
    arms=(GPT, NO_NORM, NO_RESIDUAL, *GRUS),
    measure=measure,
    checks=(
        Check("A deep GPT learns more with residuals", difference(LOSS, NO_RESIDUAL, GPT), 0.05),
        Check("A deep GPT learns more with norms", difference(LOSS, NO_NORM, GPT), 0.05),
        Check("A deep GRU learns more with residuals", difference(LOSS, *GRUS), 0.05),
        Check("Without norms its first block's gradient is smaller (decades)", SMALLER, 0.5),
        Check("Without norms it vanishes from block to block (decades, last to first)", FALLS, 0.5),
    ),
    panels=(
        Panel("loss", "depth", "loss on held-out text (nats)", "After training"),
        Panel("gradient", "block", "log10 of the gradient", "Before training, deep models"),
    ),
    small=Size(seeds=4, minutes=2, steps=80, deep=8, width=32, context=64, rows=8, rate=3e-3),
    large=Size(seeds=3, minutes=6, steps=300, deep=24, width=256, context=256, rows=32, rate=1e-3),
    remark="At the small size a model without residuals, but with norms, has a first gradient as "
    "large as one with both, and yet its loss stays near 3.26, shallow or deep: a small gradient "
    "is not the only reason to fail. At the small size the gradient without norms is about 27 "
    "times smaller, but alike in all blocks: it does not vanish from block to block.",
    next_steps=(
        "qkv lab residual --set deep=16: how deep may a model without residuals be?",
        "qkv lab norm-and-warmup: where the norm stands, and what warm-up is for.",
    ),
)
