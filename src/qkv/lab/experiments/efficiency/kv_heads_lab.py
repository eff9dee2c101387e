"""Multi-query and grouped-query attention: what do fewer key and value heads save, and cost?"""

from __future__ import annotations

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import Fitted, fit, fit_text, validation_loss
from qkv.models import GPTConfig, group_key_value_heads
from qkv.models.model import Model

HEADS = 8
KV_HEADS = {"8 KV heads": 8, "4 KV heads": 4, "2 KV heads": 2, "1 KV head": 1}
MARGIN = 0.05


def measure(cell: Cell) -> Measured:
    """Train a GPT with few key and value heads; convert the one that has all of them."""
    size = cell.size
    config = GPTConfig(
        context=size.context, width=size.width, depth=size.depth, heads=HEADS,
        kv_heads=KV_HEADS[cell.arm],
    )  # fmt: skip
    fitted = fit_text(
        config, "python", size.steps, seed=cell.seed, device=cell.device,
        batch_tokens=size.batch_tokens, validation_batches=size.validation_batches, rate=size.rate,
    )  # fmt: skip

    measured = {"loss": fitted.validation_loss, "cache": bytes_per_token(fitted.model)}
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


@torch.no_grad()
def bytes_per_token(model: Model) -> float:
    """What the KV cache grows by for each token."""
    tokens = torch.zeros(1, 4, dtype=torch.long, device=next(model.parameters()).device)
    state = model.start()
    model.decode(tokens, state)
    total = 0
    for layer in state.buffers:
        for stored in state.read(layer):  # keys and values, (B, K, S, D)
            total += stored.numel() * stored.element_size()

    return total / tokens.shape[1]


EXPERIMENT = Experiment(
    name="kv-heads",
    claim="Query heads can share keys and values: the KV cache shrinks, and the model hardly gets "
    "worse.",
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
        Check(
            "One key and value head saves KV cache (share of the bytes)",
            lambda value: 1 - value("1 KV head", "cache") / value("8 KV heads", "cache"),
            relevant=0.5,
            exact=True,
        ),
        Check(
            f"One key and value head: at most {MARGIN} nats worse than 8",
            lambda value: value("8 KV heads", "loss") + MARGIN - value("1 KV head", "loss"),
            relevant=0.01,
        ),
        Check(
            "A converted model recovers with more training",
            lambda value: (
                value("8 KV heads", "conversion", "averaged")
                - value("8 KV heads", "conversion", "trained on")
            ),
            relevant=0.05,
        ),
    ),
    panels=(
        Panel("loss", "", "held-out loss (nats)", "Quality", "dots"),
        Panel("cache", "", "bytes a token", "KV cache, counted", "dots"),
        Panel("conversion", "", "held-out loss (nats)", "8 heads converted to 1", "dots"),
    ),
    small=Size(
        seeds=4, minutes=1, steps=200, width=64, depth=2, context=64, batch_tokens=1024,
        validation_batches=30, rate=3e-3,
    ),
    large=Size(
        seeds=5, minutes=4, steps=1500, width=256, depth=6, context=256, batch_tokens=8192,
        validation_batches=20, rate=1e-3,
    ),
    next_steps=(
        "qkv train gpt --data my.txt --heads 8 --kv-heads 1 --out runs/multi-query",
        "qkv lab kv-heads --seeds 8 --set steps=1000: does the difference grow with training?",
    ),
)  # fmt: skip
