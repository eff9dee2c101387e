"""How far back does the gradient reach in an RNN, an LSTM, a GRU and an attention layer?"""

from __future__ import annotations

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.recurrent import sequence_models as models
from qkv.lab.experiments.recurrent.sequence_models import decades, difference
from qkv.lab.fit import fit, fit_text

ATTENTION = "attention"
LARGE = "RNN, recurrent weights x 2"
RECENT = 8


def measure(cell: Cell) -> Measured:
    """The gradient of the loss at the last position with respect to each token before it."""
    size = cell.size
    name = cell.arm.split(",")[0]
    config = models.language_model(name, context=size.context, width=size.width, depth=1, heads=4)
    given = {"seed": cell.seed, "device": cell.device, "batch_tokens": size.rows * size.context}
    model, _, _, task = fit_text(config, "python", 0, validation_batches=1, **given)
    for name, weight in model.named_parameters():
        if cell.arm == LARGE and "weight_hh" in name:
            weight.data.mul_(2)

    held_out = next(iter(task.validation.ordered())).to(cell.device)
    start = models.gradients_back(model, held_out)
    fit(model, task.training.batch, size.steps, rate=size.rate)
    trained = models.gradients_back(model, held_out)
    return {
        "at the start": models.by_distance(start),
        "rise at the start": decades(float(start[-1])) - decades(float(start[1])),
        "trained": models.by_distance(trained),
        "fall after training": decades(float(trained[1])) - decades(float(trained[-1])),
        "share of the recent": float(trained[:RECENT].sum() / trained.sum()),
    }


EXPERIMENT = Experiment(
    name="vanishing",
    claim="Gradients of RNNs vanish or explode with distance; attention's vanish less.",
    slides=("000 L13", "001 L10", "001 L11"),
    setup=(
        "Models with one layer predict the next character of Python code.",
        "The loss of the last character is differentiated at the embedding of each token before.",
        "Shown are decades of the gradient's norm: -3 is a thousandth.",
    ),
    arms=("RNN", "LSTM", "GRU", ATTENTION, LARGE),
    measure=measure,
    checks=(
        Check(
            "A trained RNN's gradient falls by more decades than attention's",
            difference("fall after training", "RNN", ATTENTION),
            2,
        ),
        Check(
            "With recurrent weights twice as large, the gradient of an RNN explodes at the start",
            lambda value: value(LARGE, "rise at the start"),
            1,
        ),
        Check(
            "After training, LSTM and GRU lose fewer decades than an RNN",
            difference("fall after training", "RNN", "LSTM", "GRU"),
            1,
        ),
        Check(
            "An RNN depends on the last 8 tokens more than attention does",
            difference("share of the recent", "RNN", ATTENTION),
            0.1,
        ),
    ),
    panels=(
        Panel("at the start", "steps back", "log10 of the gradient", "Untrained"),
        Panel("trained", "steps back", "log10 of the gradient", "Trained"),
    ),
    small=Size(seeds=5, minutes=1, steps=150, rows=16, context=64, width=64, rate=5e-3),
    large=Size(seeds=3, minutes=3, steps=300, rows=64, context=512, width=512, rate=1e-3),
    remark="Whether a gradient vanishes depends on the weights. At the small size an untrained "
    "RNN with an orthogonal recurrent matrix loses only 2 decades over 63 steps, while LSTM and "
    "GRU lose 8 or more; a possible reason is that their gates begin half open. After training, "
    "the RNN loses 16 decades, the LSTM 9 and the GRU 7.",
    next_steps=(
        "qkv lab vanishing --set context=128: does attention stay level?",
        "qkv lab distance: what the gradient's reach means for learning.",
    ),
)
