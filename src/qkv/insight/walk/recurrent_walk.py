"""Record an RNN in one forward pass, as a chain of steps: embedding, states, context, output."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.inspect.model_input import Reading, Side, hidden
from qkv.insight.walk.stack_walk import ModuleRecorder, required
from qkv.models.model import Model, backbone_of
from qkv.nn.hooks import CapturedValues, capture, hook_points

CONTEXT_POINTS = ("query", "context")


class RecurrentStep(NamedTuple):
    """One step of an RNN's chain, for all tokens of one side."""

    name: str
    """source_embedding, encoder, embedding, query, context, state or hidden."""
    side: Side
    """The tokens that the vectors belong to."""
    vectors: Float[Tensor, "T E"]


def recurrent_steps(model: Model, reading: Reading) -> list[RecurrentStep]:
    """The chain of an RNN, in the order in which it computes.

    The encoder's states belong to the source tokens. Each target token is embedded, the decoder's
    state before it is the query, attention returns the context vector, and the decoder's new state
    becomes, joined with the context, the hidden vector that the output layer reads.
    """
    backbone: Any = backbone_of(model)
    decoder = getattr(backbone, "decoder", None)
    if decoder is None:
        decoder = backbone.layers

    recorder = ModuleRecorder()
    for module in (getattr(backbone, "source_embedding", None), backbone.embedding, decoder):
        recorder.add(module)

    points = [name for name in hook_points(backbone) if name != "logits"]
    with capture(backbone, *points) as captured, recorder.recording():
        hidden(model, reading)

    steps = []
    if reading.source is not None:
        embedded = required(recorder.made(backbone.source_embedding))
        steps.append(RecurrentStep("source_embedding", reading.source, embedded))
        steps.append(RecurrentStep("encoder", reading.source, captured["encoder"][0]))

    text = reading.text
    steps.append(RecurrentStep("embedding", text, required(recorder.made(backbone.embedding))))
    for name in CONTEXT_POINTS:
        if name in captured.every:
            steps.append(RecurrentStep(name, text, all_steps(captured, name)))

    states = torch.cat(recorder.outputs[decoder], dim=1)[0]
    steps.append(RecurrentStep("state", text, states))
    if "context" in captured.every:
        steps.append(RecurrentStep("hidden", text, captured["hidden"][0]))

    return steps


def all_steps(captured: CapturedValues, name: str) -> Float[Tensor, "T E"]:
    """The values of a point that is passed once for each target token."""
    return torch.cat(captured.every[name], dim=1)[0]
