"""Multi-query and grouped-query attention: what do fewer key and value heads save, and cost?"""

from __future__ import annotations

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import fit, fit_text, validation_loss
from qkv.models import GPTConfig, group_key_value_heads
from qkv.models.model import Model

HEADS = 8
CONVERTED = "converted to 1"
KV_HEADS = {"8 KV heads": 8, "4 KV heads": 4, "2 KV heads": 2, "1 KV head": 1, CONVERTED: HEADS}


def measure(cell: Cell) -> Measured:
    """Train a GPT with few key and value heads, or convert one that has all of them."""
    size = cell.size
    config = GPTConfig(
        context=size.context,
        width=size.width,
        depth=size.depth,
        heads=HEADS,
        kv_heads=KV_HEADS[cell.arm],
    )
    fitted = fit_text(
        config,
        "python",
        size.steps,
        seed=cell.seed,
        device=cell.device,
        batch_tokens=size.batch_tokens,
        rate=size.rate,
    )
    if cell.arm != CONVERTED:
        return {"loss": fitted.validation_loss, "cache": bytes_per_token(fitted.model)}

    # Average the key and value heads, and train for some more steps
    model = group_key_value_heads(fitted.model, 1).to(cell.device)
    at_once = validation_loss(model, fitted.task)
    more = size.steps // 5
    fit(model, lambda step: fitted.task.training.batch(size.steps + step), more, rate=size.rate / 2)
    return {
        "loss": validation_loss(model, fitted.task),
        "loss at once": at_once,
        "cache": bytes_per_token(model),
    }


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
        "Converted: key and value heads of a trained model are averaged into one, and it is",
        "trained for a fifth more steps.",
    ),
    arms=tuple(KV_HEADS),
    measure=measure,
    checks=(
        Check(
            "One key and value head makes the KV cache at least four times smaller",
            lambda value: value("8 KV heads", "cache") / value("1 KV head", "cache") - 4,
            1,
            exact=True,
        ),
        Check(
            "With one key and value head the loss changes by less than 0.1 nats",
            lambda value: value("1 KV head", "loss") - value("8 KV heads", "loss"),
            0.1,
            "same",
        ),
        Check(
            "A converted model is worse at once, and recovers with more training",
            lambda value: value(CONVERTED, "loss at once") - value(CONVERTED, "loss"),
            0.05,
        ),
    ),
    panels=(
        Panel("loss", "", "validation loss (nats)", "Quality", "dots"),
        Panel("cache", "", "bytes a token", "KV cache", "dots"),
    ),
    small=Size(
        seeds=4, minutes=1.5, steps=300, width=64, depth=2, context=64, batch_tokens=1024, rate=3e-3
    ),
    large=Size(
        seeds=4,
        minutes=3,
        steps=1500,
        width=256,
        depth=6,
        context=256,
        batch_tokens=8192,
        rate=1e-3,
    ),
    next_steps=(
        "qkv train gpt --data my.txt --heads 8 --kv-heads 1 --out runs/multi-query",
        "qkv lab kv-heads --seeds 8 --set steps=1000",
    ),
)
