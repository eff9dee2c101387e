"""A student's files up to her own GPT, in a folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

MASKS = """
import torch


def causal_mask(T):
    return torch.ones(T, T, dtype=torch.bool).tril()


def masked_attend(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1).nan_to_num()
    return weights @ value, weights
"""
MULTI_HEAD = """
from ex04_masks import masked_attend
from torch import nn


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    def __init__(self, width, heads, kv_heads=None):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads or heads
        shared = width // heads * self.kv_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, shared)
        self.value = nn.Linear(width, shared)
        self.output = nn.Linear(width, width)
        self.weights = nn.Identity()

    def forward(self, x, mask=None):
        query = split_heads(self.query(x), self.heads)
        group = self.heads // self.kv_heads
        key = split_heads(self.key(x), self.kv_heads).repeat_interleave(group, dim=1)
        value = split_heads(self.value(x), self.kv_heads).repeat_interleave(group, dim=1)
        _, weights = masked_attend(query, key, value, mask)
        return self.output(merge_heads(self.weights(weights) @ value))
"""
BLOCK = """
import torch
from ex05_multi_head import MultiHeadAttention
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        variance = x.var(-1, keepdim=True, unbiased=False)
        return self.weight * (x - x.mean(-1, keepdim=True)) / (variance + 1e-5).sqrt() + self.bias


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        x = self.up(x)
        return self.down(x * 0.5 * (1 + torch.erf(x / 2**0.5)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_norm = LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width)
        self.feed_forward_norm = LayerNorm(width)

    def forward(self, x, mask=None):
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.feed_forward(self.feed_forward_norm(x))
"""
GPT = """
import torch
from ex04_masks import causal_mask
from ex07_block import Block, LayerNorm
from torch import nn


class GPT(nn.Module):
    def __init__(self, vocabulary, context, width, depth, heads):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = LayerNorm(width)

    def hidden(self, ids):
        T = ids.shape[1]
        x = self.token(ids) + self.position(torch.arange(T, device=ids.device))
        mask = causal_mask(T).to(ids.device)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)

    def forward(self, ids):
        return self.hidden(ids) @ self.token.weight.T
"""
FILES = {
    "ex04_masks": MASKS,
    "ex05_multi_head": MULTI_HEAD,
    "ex07_block": BLOCK,
    "ex09_gpt": GPT,
    "mine": "from ex09_gpt import GPT\n",
}


def write_own_gpt(folder: Path, **changes: str) -> Path:
    """Write her files, some of them changed, and return the path of mine.py."""
    forget_students()
    for name, text in (FILES | changes).items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")

    return folder / "mine.py"


def forget_students() -> None:
    """Let files of an earlier test not be imported in place of those of this one."""
    for name in list(sys.modules):
        if re.fullmatch(r"ex\d\d_\w+", name):
            del sys.modules[name]
