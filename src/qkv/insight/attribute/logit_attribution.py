"""Direct logit attribution: a logit as the sum of what each part of the model wrote.

The residual stream of a pre-norm model is a sum: the embedding, the output of every head and of
every feed-forward layer. The final norm only scales this sum (its scale is kept as it was for the
whole), and the output layer is linear; so the logit of a token is a sum with one term for each
part. This is the direct path alone: what a head changes for later layers counts as theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.attribute.residual_writers import pre_norm_stack, scaled_as_in, written_by_heads
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading, hidden
from qkv.models.model import Model, backbone_of
from qkv.nn.linear.frozen_matrix import FrozenMatrix


class LogitParts(NamedTuple):
    """A logit, or the difference of two, as a sum of parts."""

    position: int
    token: int
    """The token id whose logit is explained."""
    against: int | None
    """The token id whose logit is subtracted."""
    total: float
    """The logit or the difference, as the model computes it."""
    embedding: float
    """The token embedding at this position."""
    positional: float
    """The positional encoding that the embedding adds; 0 if attention has the positions."""
    heads: Float[Tensor, "L H"]
    """Each head of the self-attention."""
    cross_heads: Float[Tensor, "L H"] | None
    """For a translator, each head of the cross-attention."""
    attention_bias: Float[Tensor, "L"]
    """The bias of the output projection of each layer's attention."""
    feed_forward: Float[Tensor, "L"]
    """The feed-forward layer of each block, with its bias."""
    bias: float
    """The biases of the final norm and of the output layer."""

    def parts(self) -> list[tuple[str, float]]:
        """Name and value of each part, in the order of the forward pass; they sum to the logit."""
        named = [("embedding", self.embedding), ("position", self.positional)]
        for layer in range(len(self.heads)):
            for head, value in enumerate(self.heads[layer].tolist()):
                named.append((f"head {layer}.{head}", value))

            if self.cross_heads is not None:
                for head, value in enumerate(self.cross_heads[layer].tolist()):
                    named.append((f"cross head {layer}.{head}", value))

            named.append((f"attention bias {layer}", float(self.attention_bias[layer])))
            named.append((f"feed-forward {layer}", float(self.feed_forward[layer])))

        return [*named, ("bias", self.bias)]

    def strongest(self, count: int) -> list[tuple[str, float]]:
        """The parts with the largest absolute values."""
        return sorted(self.parts(), key=lambda part: -abs(part[1]))[:count]


def logit_attribution(
    model: Model,
    reading: Reading,
    position: int = -1,
    token: int | None = None,
    against: int | None = None,
) -> LogitParts:
    """Split the logit of a token, or the difference of two logits, into parts that sum to it.

    Args:
        model: A GPT, or a translator with norms before its sublayers (its decoder is split).
        reading: The text, from `read`.
        position: The position of the prediction; a number below 0 counts from the last.
        token: The token id; default the likeliest.
        against: A token id whose logit is subtracted.

    Returns:
        The parts: embedding, heads, feed-forward layers and biases.

    Raises:
        ValueError: If the model is post-norm, a BERT or an RNN, or has no such position or token.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat sat")
        >>> split = insight.logit_attribution(model, reading)
        >>> split.heads.shape, abs(sum(value for _, value in split.parts()) - split.total) < 1e-4
        (torch.Size([1, 2]), True)
    """
    T = len(reading.text.ids)
    if not -T <= position < T:
        raise ValueError(f"position: expected 0 to {T - 1}, or -1 for the last, not {position}")

    return split_logits(model, reading, [position % T], token, against)[0]


def split_logits(
    model: Model,
    reading: Reading,
    positions: Sequence[int],
    token: int | None = None,
    against: int | None = None,
) -> list[LogitParts]:
    """The parts of a logit at several positions from one forward pass; see `logit_attribution`."""
    backbone: Any = backbone_of(model)
    name, stack = pre_norm_stack(backbone, "logit attribution")
    check_linear_output(backbone)
    for which, id in (("token", token), ("against", against)):
        if id is not None and not 0 <= id < backbone.config.vocabulary:
            raise ValueError(f"{which}: expected 0 to {backbone.config.vocabulary - 1}, not {id}")

    points = [f"{name}.blocks.{len(stack.blocks) - 1}.after"]
    for layer in range(len(stack.blocks)):
        block = f"{name}.blocks.{layer}"
        points += [f"{block}.before", f"{block}.attention.heads", f"{block}.between"]
        if stack.cross:
            points.append(f"{block}.cross_attention.heads")

    result = []
    with torch.no_grad(), without_dropout(model):
        with capture_required(backbone, points) as captured:
            last = hidden(model, reading)[0]  # (T, E)

        for position in positions:
            values = {point: value[0].select(-2, position) for point, value in captured.items()}
            logits = backbone.logits(last[position])
            chosen = int(logits.argmax()) if token is None else token
            split = LogitSplit(backbone, stack, chosen, against)
            split.add_embedding(values[f"{name}.blocks.0.before"], reading.text.ids[position])
            for layer in range(len(stack.blocks)):
                split.add_block(layer, f"{name}.blocks.{layer}", values)

            result.append(split.result(position, values[points[0]], logits))

    return result


def can_split_logits(model: Model) -> bool:
    """Whether the logits of a model are a sum of parts."""
    try:
        pre_norm_stack(backbone_of(model), "")
        check_linear_output(backbone_of(model))
    except ValueError:
        return False

    return model.task is None


class LogitSplit:
    """Collects the vectors that are added to the residual stream, then projects them."""

    def __init__(self, model: Any, stack: Any, token: int, against: int | None) -> None:
        self.model = model
        self.stack = stack
        self.token = token
        self.against = against
        self.vectors: list[Tensor] = []
        """Embedding and position; then each layer's heads, bias and feed-forward."""

    def add_embedding(self, first: Float[Tensor, "E"], id: int) -> None:
        """Split the residual stream before the first block into token and position."""
        embedding = self.model.embedding
        token = first
        if embedding.position is not None and embedding.join == "sum" and embedding.norm is None:
            ids = torch.tensor(id, device=first.device)
            token = embedding.token(ids) * embedding.scale

        self.vectors += [token, first - token]

    def add_block(self, layer: int, name: str, values: dict[str, Tensor]) -> None:
        """Split what a block adds."""
        block = self.stack.blocks[layer]
        bias = torch.zeros_like(self.vectors[0])
        for part in ("attention", "cross_attention"):
            heads = values.get(f"{name}.{part}.heads")
            if heads is not None:
                written, output_bias = written_by_heads(getattr(block, part), heads.unsqueeze(1))
                self.vectors += list(written[:, 0])
                bias = bias + output_bias

        last = len(self.stack.blocks) - 1
        after = values.get(f"{name}.after")
        if layer < last:
            after = values[name.removesuffix(str(layer)) + f"{layer + 1}.before"]

        assert after is not None
        self.vectors += [bias, after - values[f"{name}.between"]]

    def result(self, position: int, whole: Float[Tensor, "E"], logits: Tensor) -> LogitParts:
        """The logits of all vectors with the scale of the final norm frozen."""
        norm = self.stack.norm
        vectors = torch.stack(self.vectors).double()  # (N, E)
        scaled = scaled_as_in(norm, vectors, whole.double())
        direction = output_direction(self.model, self.token, self.against)  # (E,)
        parts = scaled @ direction  # (N,)

        # One bias for the final norm and the output layer
        constant = torch.zeros_like(whole).double()
        if norm is not None and getattr(norm, "bias", None) is not None:
            constant = norm.bias.double()

        _, output_bias = self.model.output_layer
        bias = float(constant @ direction)
        total = float(logits[self.token])
        if output_bias is not None:
            bias += float(output_bias[self.token])
        if self.against is not None:
            total -= float(logits[self.against])
            if output_bias is not None:
                bias -= float(output_bias[self.against])

        H = self.stack.config.heads
        kinds = 1 + self.stack.cross
        layers = parts[2:].unflatten(0, (len(self.stack.blocks), kinds * H + 2))
        return LogitParts(
            position,
            self.token,
            self.against,
            total,
            float(parts[0]),
            float(parts[1]),
            layers[:, :H].float().cpu(),
            layers[:, H : 2 * H].float().cpu() if self.stack.cross else None,
            layers[:, -2].float().cpu(),
            layers[:, -1].float().cpu(),
            bias,
        )


def output_direction(backbone: Any, token: int, against: int | None) -> Float[Tensor, "E"]:
    """The row of the output layer for a token, minus that of the other token, in float64."""
    weight, _ = backbone.output_layer

    def row(id: int) -> Tensor:
        if isinstance(weight, FrozenMatrix):
            return weight.lookup(torch.tensor(id)).double()

        return weight[id].double()

    if against is None:
        return row(token)

    return row(token) - row(against)


def check_linear_output(backbone: Any) -> None:
    """Raise if the logits are not a linear function of the hidden states."""
    if backbone.predicts is None or backbone.predicts == "masked":
        raise ValueError(
            "logit attribution: a BERT's head is not linear, or predicts nothing, so its logits "
            "are not a sum of parts; expected a GPT or a translator"
        )
