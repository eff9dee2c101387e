"""Transformer-XL: does the memory of earlier segments help?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import fit_text
from qkv.models import GPTConfig
from qkv.models.model import Model

ARMS = {"no memory": 0, "memory of 1 segment": 1, "memory of 2 segments": 2}
PLACES = (0, 8, 16, 32)
"""Where the groups of positions begin that are told apart."""


def measure(cell: Cell) -> Measured:
    """The loss by position in a segment, on the same tokens for every arm."""
    size = cell.size
    memory = ARMS[cell.arm] * size.context
    config = GPTConfig(
        context=size.context,
        width=size.width,
        depth=size.depth,
        heads=4,
        position="relative",
        memory=memory,
    )
    fitted = fit_text(
        config,
        "python",
        size.steps,
        seed=cell.seed,
        device=cell.device,
        batch_tokens=size.batch_tokens,
        validation_batches=1,
        rate=3e-3,
    )
    length = 3 * size.context
    tokens = torch.as_tensor(fitted.task.validation.tokens[: size.texts * length + 1])
    ids = tokens[:-1].long().view(size.texts, length).to(cell.device)
    targets = tokens[1:].long().view(size.texts, length).to(cell.device)

    losses = last_segment_losses(fitted.model, ids, targets, size.context, memory > 0)  # (B, T)
    by_place = {}
    for begin, end in zip(PLACES, (*PLACES[1:], size.context), strict=True):
        by_place[begin] = float(losses[:, begin:end].mean())

    return {"loss": by_place, "all": float(losses.mean())}


@torch.no_grad()
def last_segment_losses(
    model: Model, ids: Tensor, targets: Tensor, context: int, remembers: bool
) -> Tensor:
    """The loss of each token of the third segment, after two that a memory may hold."""
    state = model.start()
    for begin in range(0, ids.shape[1], context):
        if not remembers:
            state = model.start()

        logits = model.logits(model.decoder_hidden(ids[:, begin : begin + context], state=state))

    return F.cross_entropy(logits.transpose(1, 2), targets[:, -context:], reduction="none")


EXPERIMENT = Experiment(
    name="segments",
    claim="A memory of earlier segments (Transformer-XL) helps where a segment's own context is "
    "short.",
    slides=("002 L92",),
    setup=(
        "GPTs with relative positions read Python code in segments, character by character.",
        "With a memory, each layer also attends to its inputs of one or two earlier segments.",
        "All predict the same tokens: those of the third segment of held-out texts.",
        "The loss is shown by position in the segment: at its start, only a memory knows more.",
    ),
    arms=tuple(ARMS),
    measure=measure,
    checks=(
        Check(
            "A memory of two segments lowers the loss of the first 8 tokens",
            lambda value: value("no memory", "loss", 0) - value("memory of 2 segments", "loss", 0),
            0.02,
        ),
        Check(
            "A memory of one segment lowers the loss of the first 8 tokens",
            lambda value: value("no memory", "loss", 0) - value("memory of 1 segment", "loss", 0),
            0.02,
        ),
    ),
    panels=(
        Panel("loss", "position in the segment", "loss (nats)", "Loss of the third segment"),
        Panel("all", "", "loss (nats)", "All positions", "dots"),
    ),
    small=Size(
        seeds=4, minutes=2, steps=300, width=64, depth=2, context=64, batch_tokens=1536, texts=64
    ),
    large=Size(
        seeds=4, minutes=4, steps=2000, width=192, depth=4, context=64, batch_tokens=6144, texts=256
    ),
    next_steps=(
        "qkv train gpt --position relative --memory 128 --carry-memory --data my.txt --out runs/xl",
    ),
)
