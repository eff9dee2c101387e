"""The full circuits of a head: between tokens of the vocabulary instead of vectors.

QK: the score of a query and a key if the residual stream were the embedding of a token alone. For
the first layer of a model whose embedding has no positions this is the score in any text. OV: how
attending to a token changes the logit of each token, up to the scale of the final norm. Later heads
read more than embeddings, so these are a first guess there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.attribute.logit_attribution import check_linear_output
from qkv.insight.attribute.residual_writers import pre_norm_stack
from qkv.insight.circuits.head_matrices import checked_attention, norm_before
from qkv.models.model import Model, backbone_of
from qkv.nn.linear.linear import linear
from qkv.nn.norm import LayerNorm
from qkv.nn.position import rotate

CHUNK = 512
"""Rows of a circuit that are computed together; each has a number for every token."""


class TokenPair(NamedTuple):
    """A cell of a circuit: two token ids and their number."""

    first: int
    second: int
    value: float


class TokenCircuit(NamedTuple):
    """A matrix between tokens as a product of two narrow ones: left @ right^T."""

    tokens: tuple[int, ...]
    """The token ids of rows and columns."""
    left: Float[Tensor, "N D"]
    right: Float[Tensor, "N D"]

    def row(self, token: int) -> Float[Tensor, "N"]:
        """The numbers of one token with all others, in the order of `tokens`."""
        if token not in self.tokens:
            raise ValueError(
                f"token: {token} is not one of the {len(self.tokens):,} of the circuit"
            )

        return self.right @ self.left[self.tokens.index(token)]

    def largest(self, count: int, token: int | None = None) -> list[TokenPair]:
        """The pairs with the largest numbers, of all tokens or with this one first."""
        if token is None:
            places = self.leading_rows(count)
        else:
            self.row(token)  # raises if there is no such token
            places = [self.tokens.index(token)]

        values = self.left[places] @ self.right.T  # (n, N)
        best, cells = values.flatten().topk(min(count, values.numel()))
        pairs = []
        for value, cell in zip(best.tolist(), cells.tolist(), strict=True):
            row, column = divmod(cell, len(self.tokens))
            pairs.append(TokenPair(self.tokens[places[row]], self.tokens[column], value))

        return pairs

    def leading_rows(self, count: int) -> list[int]:
        """The rows with the largest maxima: the `count` largest numbers are among theirs."""
        maxima = []
        for rows in self.left.split(CHUNK):
            maxima.append((rows @ self.right.T).amax(1))

        return torch.cat(maxima).topk(min(count, len(self.left))).indices.tolist()


class HeadTokens(NamedTuple):
    """The two full circuits of a head."""

    qk: TokenCircuit
    """Rows are queries, columns keys: the score before softmax."""
    ov: TokenCircuit
    """Rows are tokens that are attended to, columns tokens whose logits change."""


@torch.no_grad()
def token_circuits(
    model: Model,
    layer: int,
    head: int,
    tokens: Sequence[int] | None = None,
    *,
    distance: int = 0,
) -> HeadTokens:
    """The full QK and OV circuit of a head, between tokens.

    Args:
        model: A GPT, or a translator with norms before its sublayers (its decoder).
        layer: The layer, from 0.
        head: The head, from 0.
        tokens: Token ids; default the whole vocabulary.
        distance: With rotary positions, how many positions the key lies before the query.

    Returns:
        Both circuits, whose cells are computed on demand.

    Raises:
        ValueError: If the model is post-norm, a BERT or an RNN, joins token and position otherwise
            than by a sum, or has no such head or token.

    Example:
        >>> from qkv import insight, models
        >>> model = models.GPT(models.GPTConfig(vocabulary=9, width=8, heads=2, depth=1))
        >>> circuits = insight.token_circuits(model, 0, 1)
        >>> circuits.qk.row(3).shape, len(circuits.ov.largest(5))
        (torch.Size([9]), 5)
    """
    backbone: Any = backbone_of(model)
    _, stack = pre_norm_stack(backbone, "token circuits")
    check_linear_output(backbone)
    ids = check_tokens(backbone, stack, layer, head, tokens)
    block: Any = stack.blocks[layer]
    attention = checked_attention(block.attention)
    norm = norm_before(block, "attention")
    assert norm is not None

    # What the head reads if the residual stream is a token's embedding
    device = next(model.parameters()).device
    embedded = backbone.embedding.token(torch.tensor(ids, device=device)) * backbone.embedding.scale
    if backbone.embedding.norm is not None:
        embedded = backbone.embedding.norm(embedded)

    read = norm(embedded)  # (N, E)
    query, key, value = (project(attention, read, head, part) for part in range(3))
    query, key = turned(stack, query, distance), turned(stack, key, 0)
    nothing = project(attention, norm(torch.zeros_like(read[:1])), head, 2)  # biases, for all alike

    # What the output layer reads of what the head writes
    D = attention.head_width
    own = torch.zeros(D, attention.heads * D, device=device, dtype=read.dtype)
    own[:, head * D : (head + 1) * D] = torch.eye(D, device=device, dtype=read.dtype)
    written = attention.output(own) - attention.output(torch.zeros_like(own[:1]))  # (D, E)
    centred = written
    if isinstance(stack.norm, LayerNorm):
        centred = written - written.mean(-1, keepdim=True)
    if stack.norm is not None:
        centred = centred * stack.norm.gain.to(centred)

    weight, _ = backbone.output_layer
    logits = linear(centred, weight)[:, list(ids)].T  # (N, D)
    qk = TokenCircuit(ids, (query / math.sqrt(D)).float(), key.float())

    return HeadTokens(qk, TokenCircuit(ids, (value - nothing).float(), logits.float()))


def project(
    attention: Any, read: Float[Tensor, "N E"], head: int, part: int
) -> Float[Tensor, "N D"]:
    """The queries (part 0), keys (1) or values (2) of one head."""
    H, K, D = attention.heads, attention.kv_heads, attention.head_width
    first = (0, H, H + K)[part]
    number = head if part == 0 else head * K // H
    begin = (first + number) * D

    return attention.qkv(read, slice(begin, begin + D))


def turned(stack: Any, vectors: Float[Tensor, "N D"], position: int) -> Float[Tensor, "N D"]:
    """Queries or keys as rotary positions turn them; unchanged by other positions."""
    positions = torch.full((1, len(vectors)), position, device=vectors.device)
    angles = stack.position.angles(positions)
    if angles is None:
        return vectors

    return rotate(vectors[None, None], angles)[0, 0]


def check_tokens(
    backbone: Any, stack: Any, layer: int, head: int, tokens: Sequence[int] | None
) -> tuple[int, ...]:
    """The token ids, after a check of all arguments."""
    depth, heads = len(stack.blocks), stack.config.heads
    if not 0 <= layer < depth:
        raise ValueError(f"layer: expected 0 to {depth - 1}, not {layer}")
    if not 0 <= head < heads:
        raise ValueError(f"head: expected 0 to {heads - 1}, not {head}")
    if backbone.embedding.position is not None and backbone.embedding.join != "sum":
        raise ValueError(
            "token circuits: this model does not add its positions to its tokens, so a token has "
            "no vector of its own; expected a model with join = sum"
        )

    vocabulary = backbone.config.vocabulary
    ids = tuple(range(vocabulary)) if tokens is None else tuple(tokens)
    if not ids or not all(0 <= id < vocabulary for id in ids):
        raise ValueError(f"tokens: expected ids from 0 to {vocabulary - 1}")

    return ids
