"""Tied weights: may both embeddings and the output layer be one matrix?"""

from __future__ import annotations

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.learning_curve import tenths
from qkv.lab.fit import fit_text
from qkv.models import TransformerConfig

WAYS = {"three tied": "three", "two tied": "two", "none tied": "none"}
MARGIN = 0.05


def measure(cell: Cell) -> Measured:
    """Train a translator; count its parameters."""
    size = cell.size
    config = TransformerConfig(
        width=size.width, depth=size.depth, heads=4, context=64, dropout=0.0,
        norm_placement="before", tied=WAYS[cell.arm],  # type: ignore[arg-type]
    )  # fmt: skip
    fitted = fit_text(
        config, "turkish", size.steps, seed=cell.seed, device=cell.device, tokenizer="words",
        batch_tokens=size.batch_tokens, rate=3e-3,
    )  # fmt: skip

    parameters = sum(parameter.numel() for parameter in fitted.model.parameters())
    return {
        "loss": fitted.validation_loss,
        "training loss": tenths(fitted.losses),
        "parameters": float(parameters),
    }


EXPERIMENT = Experiment(
    name="tied",
    claim="One matrix for both embeddings and the output layer saves parameters and costs little.",
    slides=("004 L91",),
    setup=(
        "Transformers translate the grammar's English into Turkish, word by word.",
        "Three tied: source embedding, target embedding and output layer are one matrix.",
        "Two tied: the source embedding is a matrix of its own; none tied: three matrices.",
        "Same data, same steps, same learning rate; loss on held-out pairs.",
        f"Costs little: the loss is at most {MARGIN} nats higher than without tying.",
    ),
    arms=tuple(WAYS),
    measure=measure,
    checks=(
        Check(
            "Tying saves two tables of V x E (share of the parameters)",
            lambda value: 1 - value("three tied", "parameters") / value("none tied", "parameters"),
            relevant=0.1,
            exact=True,
        ),
        Check(
            f"Three tied: at most {MARGIN} nats worse than none",
            lambda value: value("three tied", "loss") - value("none tied", "loss"),
            relevant=MARGIN,
            expects="not worse",
        ),
        Check(
            f"Two tied: at most {MARGIN} nats worse than none",
            lambda value: value("two tied", "loss") - value("none tied", "loss"),
            relevant=MARGIN,
            expects="not worse",
        ),
    ),
    panels=(
        Panel("training loss", "step", "training loss", log="y"),
        Panel("loss", "", "held-out loss", "After training", kind="dots"),
        Panel("parameters", "", "parameters", "Exact", kind="dots"),
    ),
    small=Size(seeds=3, minutes=2.3, steps=500, width=64, depth=1, batch_tokens=1024),
    large=Size(seeds=3, minutes=4, steps=1500, width=512, depth=4, batch_tokens=8192),
    remark="At the small size tied models learned more slowly: after 200 steps, one seed was 0.4 "
    "nats behind. "
    "English and Turkish share hardly a word, so each of the untied tables has rows without use.",
    next_steps=("qkv lab tied --set width=128", "qkv lab tied --set steps=200"),
)
