"""Steering: add a direction to the residual stream, such as "more French".

The direction is the difference of two prompts: the mean residual stream of one after a layer, minus
that of the other. Added to every position with a strength, it moves what the model writes towards
the first prompt. 0 changes nothing, and a negative strength moves away from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import capture_required, require_hook
from qkv.insight.inspect.model_input import Reading, hidden, read
from qkv.models.model import Model
from qkv.models.sites import output_stack
from qkv.text.tokenizer import Tokenizer


class Steering(NamedTuple):
    """A direction, the layer after which it is added, and its strength."""

    layer: int
    direction: Float[Tensor, "E"]
    strength: float = 1.0

    def __str__(self) -> str:
        return f"steered after layer {self.layer} with strength {self.strength:g}"


def steering_direction(
    model: Model, tokenizer: Tokenizer, plus: str, minus: str, layer: int
) -> Float[Tensor, "E"]:
    """The difference of two prompts' residual streams: the mean of one minus that of the other.

    In a causal model the first token is left out of a prompt of several tokens: it sees only
    itself, so it says nothing about the prompt, and its residual stream is often far larger.

    Args:
        model: A model that reads one text.
        tokenizer: Its tokenizer.
        plus: The prompt to steer towards.
        minus: The prompt to steer away from.
        layer: The layer after which the residual streams are compared.

    Returns:
        The direction, for `steer`.

    Raises:
        ValueError: If the model reads a source, or has no such layer, or a prompt is empty.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> insight.steering_direction(model, tokenizer, "the cat", "the mat", layer=0).shape
        torch.Size([8])
    """
    point = residual_point(model, layer)
    means = []
    for name, prompt in (("plus", plus), ("minus", minus)):
        if not prompt.strip():
            raise ValueError(f"{name}: it is empty; expected a prompt")

        reading = read_prompt(model, tokenizer, prompt, name)
        means.append(mean_residual(model, reading, point))

    return means[0] - means[1]


def read_prompt(model: Model, tokenizer: Tokenizer, prompt: str, name: str) -> Reading:
    """The reading of a prompt; errors about the text name the argument."""
    try:
        return read(model, tokenizer, prompt)
    except ValueError as error:
        message = str(error)
        if message.startswith("text: "):
            message = f"{name}: {message.removeprefix('text: ')}"

        raise ValueError(message) from None


def mean_residual(model: Model, reading: Reading, point: str) -> Float[Tensor, "E"]:
    """The mean over the positions of a text; a causal model's first one is left out."""
    with torch.no_grad(), without_dropout(model), capture_required(model, [point]) as captured:
        hidden(model, reading)

    vectors = captured[point][0]  # (T, E)
    if model.is_causal and len(vectors) > 1:
        vectors = vectors[1:]

    return vectors.mean(0)


@contextmanager
def steer(
    model: Model, direction: Float[Tensor, "E"], layer: int, strength: float = 1.0
) -> Iterator[None]:
    """Add a direction to the residual stream at every position, while the context is open.

    Args:
        model: The model.
        direction: The direction, such as that of `steering_direction`.
        layer: The layer after which it is added.
        strength: Its factor; 0 changes nothing.

    Returns:
        A context manager that stops steering at its end.

    Raises:
        ValueError: If the model has no such layer, the direction does not have its width, or the
            strength is not finite.

    Example:
        >>> import torch
        >>> from qkv.insight import steer
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=9, width=8, heads=2, depth=2)).eval()
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> plain = model(ids)
        >>> with steer(model, torch.ones(8), layer=0, strength=0.0):
        ...     same = model(ids)
        >>> torch.equal(plain, same)
        True
    """
    point = residual_point(model, layer)
    width = model.config.width
    if direction.shape != (width,):
        raise ValueError(
            f"direction: expected {width} numbers, the model's width, not {tuple(direction.shape)}"
        )
    if not math.isfinite(strength):
        raise ValueError(f"strength: expected a finite number, not {strength}")

    def add_direction(x: Float[Tensor, "B T E"], name: str) -> Float[Tensor, "B T E"]:
        return x + strength * direction.to(x)

    with require_hook(model, point, add_direction):
        yield


def residual_point(model: Model, layer: int) -> str:
    """The hook point of the residual stream after a layer.

    Raises:
        ValueError: If the model does not read a single text, or has no such layer.
    """
    named_stack = output_stack(model)
    if named_stack is None:
        raise ValueError("model: an RNN has no residual stream to steer; expected a Transformer")
    if model.has_source:
        raise ValueError("model: a translator cannot be steered; expected a model of one text")

    name, stack = named_stack
    depth = len(stack.blocks)
    if not 0 <= layer < depth:
        raise ValueError(f"layer: expected 0 to {depth - 1}, not {layer}")

    return f"{name}.blocks.{layer}.after"
