"""Which models know where a token stands? A probe at every layer (Haviv et al., 2022)."""

from __future__ import annotations

from typing import Any

import torch

from qkv.insight.probing.probe_tasks import position_task
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.inside import position_probes
from qkv.lab.experiments.inside.position_probes import BIDIRECTIONAL
from qkv.lab.fit import fit
from qkv.models import build
from qkv.training.run_config import DataConfig
from qkv.training.setup.training_task import assemble

NONE = "causal, none"
ACCURACY, DISTANCE = "best accuracy, linear", "best distance, hidden layer"


def measure(cell: Cell) -> Measured:
    """Train a model, fix its weights, and train probes for the position on every layer."""
    size = cell.size
    shape = {"width": size.width, "depth": size.depth, "heads": 4, "context": size.context}
    data = DataConfig(data=("python",), tokenizer="characters")
    options: dict[str, Any] = {"batch_tokens": size.tokens, "seed": cell.seed}
    task = assemble(position_probes.position_config(cell.arm, **shape), data, **options)
    torch.manual_seed(cell.seed)
    model = build(task.config).to(cell.device)
    fit(model, task.training.batch, size.steps, rate=0.2 / size.width, seed=cell.seed)

    # Windows of held-out text without a start token, which would reveal the first position
    held_out: Any = assemble(
        position_probes.position_config(NONE, **shape), data, **options
    ).validation
    probes = position_task(held_out.tokens, size.context, size.windows, held_out=0.2)
    return position_probes.probe_positions(model, probes, seed=cell.seed, hidden=size.width)


EXPERIMENT = Experiment(
    name="positions",
    claim="A causal model without positional encoding knows positions; a bidirectional one cannot.",
    slides=("001 L238", "001 L254", "001 L259", "001 L262", "001 L277", "004 L95"),
    setup=(
        "Small language models of Python code that differ in their positional encoding or mask.",
        "Their weights are fixed; a probe at every layer predicts the position of each token.",
        "Probes are linear with softmax, as on the slide, or have a hidden layer; held-out text.",
        "Each seed is a new model; the layer that counts is chosen on validation windows.",
    ),
    arms=position_probes.ARMS,
    measure=measure,
    checks=(
        Check(
            "A linear probe finds more positions in the causal model than in the bidirectional one",
            lambda value: value(NONE, ACCURACY) - value(BIDIRECTIONAL, ACCURACY),
            relevant=0.02,
        ),
        Check(
            "A probe with a hidden layer comes nearer to the true position there",
            lambda value: value(BIDIRECTIONAL, DISTANCE) - value(NONE, DISTANCE),
            relevant=0.5,
        ),
        Check(
            "In the bidirectional model the linear probe guesses",
            lambda value: value(BIDIRECTIONAL, ACCURACY) - value(BIDIRECTIONAL, "chance"),
            0.02,
            "same",
        ),
    ),
    panels=(
        Panel("accuracy, linear", "layer", "right positions", "linear probe", log="y"),
        Panel("distance, linear", "layer", "distance", "linear probe"),
        Panel("accuracy, hidden layer", "layer", "right positions", "one hidden layer", log="y"),
        Panel("distance, hidden layer", "layer", "distance", "one hidden layer"),
    ),
    small=Size(
        seeds=4, minutes=3, width=64, depth=2, context=16, steps=400, tokens=1024, windows=1000
    ),
    large=Size(
        seeds=3, minutes=5, width=256, depth=8, context=64, steps=1000, tokens=16384, windows=1000
    ),
    remark="It knows little: a linear probe finds 11% of 16 positions (chance 6%), but is hardly "
    "nearer (4.9 places off against 5.0); with a hidden layer it is 3.9 off against 4.9.",
    next_steps=(
        "qkv lab positions --set context=64 --set steps=2000: longer texts, longer training",
        "qkv probe smollm2 --target position --data english: does a pre-trained model know it?",
    ),
)
