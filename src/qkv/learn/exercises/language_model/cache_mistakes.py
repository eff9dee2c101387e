"""What a cached pass returns after known mistakes, computed from the full sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def wrong_rows(attention: Any, x: Tensor, N: int) -> dict[str, Tensor]:
    """The attention of the last N positions with wrong masks.

    Args:
        attention: The student's attention layer.
        x: All positions so far.
        N: How many of them are new.
    """
    T = x.shape[1]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    first = causal.clone()
    first[T - N :] = causal[:N]
    own = causal.clone()
    own[T - N :, : T - N] = False
    new = slice(T - N, T)
    return {
        f"cached_attention: position {T - N} sees position {T - 1}: a causal mask forbids it, "
        "also among new positions": attention(x, causal | (torch.arange(T) >= T - N).unsqueeze(1))[
            :, new
        ],
        "cached_attention: the first N rows of the causal mask; new positions are the last, "
        "so they have its last N rows": attention(x, first)[:, new],
        "cached_attention: the new positions attend to themselves alone, not to the cache": (
            attention(x, own)[:, new]
        ),
    }


@torch.no_grad()
def uncached_logits(model: Any, ids: Tensor, past: int) -> dict[str, Tensor]:
    """The logits of the new tokens after known mistakes.

    Args:
        model: The student's GPT.
        ids: All tokens so far.
        past: How many of them are in the cache.
    """
    texts = {
        "the last norm is missing": pass_over(model, ids, without="norm"),
        "attention_norm is missing: the attention reads the norm of x": pass_over(
            model, ids, without="attention_norm"
        ),
        "feed_forward_norm is missing: the feed-forward layer reads the norm of x": pass_over(
            model, ids, without="feed_forward_norm"
        ),
        "the residual connection round the attention is missing: x + output": pass_over(
            model, ids, without="attention residual"
        ),
        "the residual connection round the feed-forward layer is missing": pass_over(
            model, ids, without="feed-forward residual"
        ),
        "the position embedding is missing": pass_over(model, ids, without="positions"),
    }
    if past:
        again = torch.cat([torch.arange(past), torch.arange(ids.shape[1] - past)])
        texts |= {
            "the positions begin at 0 again; the first new token stands after those of the cache, "
            f"at position {past}": pass_over(model, ids, positions=again),
            "all blocks read the first block's; each block has its own cache": shared_cache(
                model, ids, past
            ),
            "the cache is not used; the new tokens see themselves alone": pass_over(
                model, ids[:, past:]
            ),
        }

    new = ids.shape[1] - past
    return {f"cached_logits: {text}": logits[:, -new:] for text, logits in texts.items()}


def pass_over(
    model: Any, ids: Tensor, *, positions: Tensor | None = None, without: str = ""
) -> Tensor:
    """The logits of a full pass in which something is left out."""
    T = ids.shape[1]
    x = model.token(ids)
    if without != "positions":
        x = x + model.position(torch.arange(T) if positions is None else positions)

    mask = torch.ones(T, T, dtype=torch.bool).tril()
    for block in model.blocks:
        read = x if without == "attention_norm" else block.attention_norm(x)
        output = block.attention(read, mask)
        x = output if without == "attention residual" else x + output
        read = x if without == "feed_forward_norm" else block.feed_forward_norm(x)
        output = block.feed_forward(read)
        x = output if without == "feed-forward residual" else x + output

    if without != "norm":
        x = model.norm(x)

    return x @ model.token.weight.T


def shared_cache(model: Any, ids: Tensor, past: int) -> Tensor:
    """The logits of the new tokens if all blocks read the first block's cache."""
    T = ids.shape[1]
    x = model.token(ids) + model.position(torch.arange(T))
    first = model.blocks[0]
    old = first.attention_norm(x[:, :past])
    x = x[:, past:]
    mask = torch.ones(T, T, dtype=torch.bool).tril()[past:]
    for block in model.blocks:
        attention = block.attention
        new = block.attention_norm(x)
        keys = torch.cat([first.attention.key(old), attention.key(new)], dim=1)
        values = torch.cat([first.attention.value(old), attention.value(new)], dim=1)
        query, key, value = (
            projected.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
            for projected in (attention.query(new), keys, values)
        )
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + attention.output(output.transpose(1, 2).flatten(2))
        x = x + block.feed_forward(block.feed_forward_norm(x))

    return model.norm(x) @ model.token.weight.T


@contextmanager
def count_reads(model: Any) -> Iterator[list[int]]:
    """Record how many positions each block computes keys of."""
    reads = [0]
    handles = []
    for block in model.blocks:
        handles.append(
            block.attention.key.register_forward_pre_hook(
                lambda _, inputs: reads.append(inputs[0].shape[1])
            )
        )

    try:
        yield reads
    finally:
        for handle in handles:
            handle.remove()
