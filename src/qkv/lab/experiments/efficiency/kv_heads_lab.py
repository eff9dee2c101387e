"""Multi-query and grouped-query attention: what do fewer key and value heads save, and cost?"""

from __future__ import annotations

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.efficiency import efficiency_measures as measures
from qkv.lab.experiments.efficiency.efficiency_measures import ITSELF, hardly_worse
from qkv.lab.fit import Fitted, fit, validation_loss
from qkv.models import group_key_value_heads

HEADS = 8
ALL = "8 KV heads"
KV_HEADS = {ALL: 8, "4 KV heads": 4, "2 KV heads": 2, "1 KV head": 1, ITSELF: 8}
MARGIN = 0.05


def measure(cell: Cell) -> Measured:
    """Train a GPT with few key and value heads; convert the one that has all of them."""
    window = 1 if cell.arm == ITSELF else None
    fitted = measures.fit_python(cell, heads=HEADS, kv_heads=KV_HEADS[cell.arm], window=window)
    if cell.arm == ITSELF:
        return {"loss": fitted.validation_loss}

    cache = measures.cache_bytes_per_token(fitted.model)
    measured = {"loss": fitted.validation_loss, "cache": cache}
    if KV_HEADS[cell.arm] < HEADS:
        return measured

    return {**measured, "conversion": conversion(cell, fitted)}


def conversion(cell: Cell, fitted: Fitted) -> dict[str, float]:
    """Losses of a model whose key and value heads are averaged into one, and trained on."""
    size = cell.size
    model = group_key_value_heads(fitted.model, 1).to(cell.device)
    losses = {"8 heads": fitted.validation_loss}
    losses["averaged"] = validation_loss(model, fitted.task, size.validation_batches)

    def batch(step: int) -> object:
        return fitted.task.training.batch(size.steps + step)

    fit(model, batch, size.steps // 10, rate=size.rate / 2, seed=cell.seed)
    losses["trained on"] = validation_loss(model, fitted.task, size.validation_batches)
    return losses


EXPERIMENT = Experiment(
    name="kv-heads",
    claim="Query heads can share keys and values: the cache shrinks, the model hardly gets worse.",
    slides=("003 L180", "003 L182", "003 L186"),
    setup=(
        "GPTs with 8 query heads and 8, 4, 2 or 1 heads for keys and values read Python code.",
        "The same tokens, steps and seeds for all; the loss is that of held-out code.",
        "Cache: bytes that the KV cache grows by for each token, counted.",
        f"Hardly worse: the loss is at most {MARGIN} nats higher than with 8 heads.",
        "Conversion: the 8 heads are averaged into one, then trained on for a tenth of the steps.",
    ),
    arms=tuple(KV_HEADS),
    measure=measure,
    checks=(
        measures.saves("1 KV head", ALL, "cache"),
        hardly_worse("1 KV head", ALL, MARGIN),
        hardly_worse("2 KV heads", ALL, MARGIN),
        Check(
            "A model converted to one head recovers with more training",
            lambda of: of(ALL, "conversion", "averaged") - of(ALL, "conversion", "trained on"),
            relevant=0.05,
        ),
        measures.attention_is_used(ALL),
    ),
    panels=(
        Panel("loss", "", "held-out loss (nats)", "Quality", "dots"),
        Panel("cache", "", "bytes a token", "KV cache, counted", "dots"),
        Panel("conversion", "", "held-out loss (nats)", "8 heads converted to 1", "dots"),
    ),
    small=Size(
        seeds=4, minutes=1, steps=300, width=64, depth=2, context=64, batch_tokens=512,
        validation_batches=30, rate=3e-3,
    ),
    large=Size(
        seeds=3, minutes=4, steps=1500, width=256, depth=6, context=256, batch_tokens=8192,
        validation_batches=20, rate=1e-3,
    ),
    remark="A model that has learned little cannot lose much: the last check tells whether other "
    "tokens matter. At the small size, in one run, a converted model won most of its loss back.",
    next_steps=(
        "qkv train gpt --data my.txt --heads 8 --kv-heads 1 --out runs/multi-query",
        "qkv lab kv-heads --seeds 8 --set steps=1000: does the difference grow with training?",
    ),
)  # fmt: skip
