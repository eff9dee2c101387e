"""The Sparse Transformer's causal patterns as a few dense attentions, each in PyTorch's CPU kernel.

Positions are regrouped into blocks of `stride`. The keys of a query then fall into parts, each of
which is causal attention, or its mirror image, in a shorter sequence:

    strided   the own block up to the query; of the previous block the offsets after the query's;
              the query's offset in all earlier blocks
    fixed     the own block up to the query; each of the last offsets in all earlier blocks

Every pair of query and key is in one part. The whole is the mean of the parts' outputs, weighted
by their sums of exponentials. The backward pass of a part, given the output and the sums of the
whole, is that part's share of the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

aten = torch.ops.aten

ALL = slice(None)
NOT_FIRST = slice(1, None)
NOT_LAST = slice(None, -1)


@dataclass(frozen=True)
class PatternPart:
    """Some queries, the keys they attend to, and the sequences in which they do.

    Args:
        along: A sequence is the offsets of a block, or an offset in all blocks.
        queries: Which blocks and which offsets.
        keys: Which blocks and which offsets; a single offset serves the queries of all offsets.
        causal: Key s is visible to query t if s <= t, otherwise if s >= t.
    """

    along: Literal["offsets", "blocks"]
    queries: tuple[slice, slice] = (ALL, ALL)
    keys: tuple[slice, slice] = (ALL, ALL)
    causal: bool = True

    def take(
        self, x: Float[Tensor, "B T H D"], which: tuple[slice, slice], stride: int
    ) -> Float[Tensor, "b h t D"]:
        """The sequences of this part: a view where the layout allows it, otherwise a copy."""
        x = select(x, which, stride)  # (B, n, l, H, D)
        if self.along == "offsets":
            return x.flatten(0, 1).transpose(1, 2)  # (B n, H, l, D)

        return x.expand(-1, -1, stride, -1, -1).flatten(2, 3).transpose(1, 2)  # (B, l H, n, D)

    def put_back(
        self, x: Float[Tensor, "b h t D"], B: int, stride: int
    ) -> Float[Tensor, "B n l H D"]:
        """What `take` did, backwards: blocks and offsets again."""
        x = x.transpose(1, 2)  # (b, t, h, D)
        return x.unflatten(0, (B, -1)) if self.along == "offsets" else x.unflatten(2, (stride, -1))

    def added(self, query: Float[Tensor, "b h t D"]) -> Float[Tensor, "t t"] | None:
        """The matrix that hides keys; None for a causal part, where the kernel hides them."""
        if self.causal:
            return None

        t = query.shape[2]
        return query.new_full((t, t), -torch.inf).tril(-1)


def select(
    x: Float[Tensor, "B T H D"], which: tuple[slice, slice], stride: int
) -> Float[Tensor, "B n l H D"]:
    """A view of some blocks, and of some offsets in them."""
    blocks, offsets = which
    return x.unflatten(1, (-1, stride))[:, blocks, offsets]


def parts(T: int, stride: int, summary: int) -> Iterator[PatternPart]:
    """The parts of a pattern, of which the first has all queries; strided has no summary."""
    yield PatternPart("offsets")
    if stride >= T:
        return

    for offset in range(stride - summary, stride):
        yield PatternPart("blocks", (NOT_FIRST, ALL), (NOT_LAST, slice(offset, offset + 1)))

    if not summary:
        yield PatternPart("blocks", (NOT_FIRST, ALL), (NOT_LAST, ALL))
        if stride > 1:
            yield PatternPart("offsets", (NOT_FIRST, NOT_LAST), (NOT_LAST, NOT_FIRST), causal=False)


def whole_blocks(
    x: Float[Tensor, "B T K D"], stride: int, group: int = 1
) -> Float[Tensor, "B L H D"]:
    """All query heads and whole blocks; no query sees the added keys, as they are the last."""
    if group > 1:
        x = x.repeat_interleave(group, dim=2)

    missing = -x.shape[1] % stride
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))

    return x.contiguous()


def forward(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B T K D"],
    value: Float[Tensor, "B T K D"],
    stride: int,
    summary: int,
    scale: float,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H T"]]:
    """The output, and the logarithms of the sums of exponentials."""
    B, T, H, _ = query.shape
    group = H // key.shape[2]
    query = whole_blocks(query, stride)
    key = whole_blocks(key, stride, group)
    value = whole_blocks(value, stride, group)
    output = query
    sums = query

    for number, part in enumerate(parts(T, stride, summary)):
        q = part.take(query, part.queries, stride)
        k = part.take(key, part.keys, stride)
        v = part.take(value, part.keys, stride)
        part_output, part_sums = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, part.causal, attn_mask=part.added(q), scale=scale
        )
        part_output = part.put_back(part_output, B, stride)
        part_sums = part.put_back(part_sums.unsqueeze(-1), B, stride)
        if number == 0:
            output = part_output.flatten(1, 2).contiguous()
            sums = part_sums.flatten(1, 2).contiguous()
            continue

        # The mean of both outputs, weighted by the sums of exponentials.
        target = select(output, part.queries, stride)
        total = select(sums, part.queries, stride)
        target.lerp_(part_output, torch.sigmoid(part_sums - total).to(target.dtype))
        total.copy_(torch.logaddexp(total, part_sums))

    return output[:, :T], sums[:, :T, :, 0].transpose(1, 2)


def backward(
    gradient: Float[Tensor, "B T H D"],
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B T K D"],
    value: Float[Tensor, "B T K D"],
    output: Float[Tensor, "B T H D"],
    sums: Float[Tensor, "B H T"],
    stride: int,
    summary: int,
    scale: float,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B T K D"], Float[Tensor, "B T K D"]]:
    """The gradients of query, key and value: the sums of those of the parts."""
    B, T, H, _ = query.shape
    group = H // key.shape[2]
    by_query = [whole_blocks(x, stride) for x in (gradient, query, output)]
    by_key = [whole_blocks(x, stride, group) for x in (key, value)]
    all_sums = whole_blocks(sums.transpose(1, 2).unsqueeze(-1), stride)  # (B, L, H, 1)
    totals: list[Tensor] = []

    for part in parts(T, stride, summary):
        g, q, o = (part.take(x, part.queries, stride) for x in by_query)
        k, v = (part.take(x, part.keys, stride) for x in by_key)
        part_sums = part.take(all_sums, part.queries, stride).squeeze(-1)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, o, part_sums, 0.0, part.causal, attn_mask=part.added(q), scale=scale
        )
        regrouped = [part.put_back(x, B, stride) for x in gradients]
        if not totals:  # the first part has all queries and all keys
            totals = [x.flatten(1, 2).contiguous() for x in regrouped]
            continue

        for x, total, which in zip(
            regrouped, totals, (part.queries, part.keys, part.keys), strict=True
        ):
            target = select(total, which, stride)  # (B, n, l, H, D)
            target += x if target.shape == x.shape else x.sum(2, keepdim=True)

    dq, dk, dv = (total[:, :T] for total in totals)
    return dq, shared(dk, group), shared(dv, group)


def shared(x: Float[Tensor, "B T H D"], group: int) -> Float[Tensor, "B T K D"]:
    """The gradient of key heads that serve groups of query heads."""
    return x if group == 1 else x.unflatten(2, (-1, group)).sum(3)
