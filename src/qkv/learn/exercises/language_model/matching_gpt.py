"""The library's GPT with the weights of a student's, and small models to generate with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.learn.expectations import InputDraw
from qkv.models import GPT, GPTConfig


def draw_gpt(mine: Any, draw: InputDraw, *, depth: int = 2, context: int | None = None) -> Any:
    """The student's GPT with random weights, also in its norms."""
    size = draw.size
    model = mine.GPT(size + 3, context or size + 3, 4 * size, depth, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * draw.normal(*parameter.shape))

    return model


def matching_gpt(model: Any) -> GPT:
    """The library's GPT with the weights of a student's GPT."""
    vocabulary, width = model.token.weight.shape
    config = GPTConfig(
        vocabulary=vocabulary,
        context=len(model.position.weight),
        width=width,
        depth=len(model.blocks),
        heads=model.blocks[0].attention.heads,
    )
    ours = GPT(config).eval()
    ours.load_state_dict(library_names(model))
    return ours


def library_names(model: Any) -> dict[str, Tensor]:
    """The student's parameters under the names of the library's."""
    tensors = {
        "embedding.token.weight": model.token.weight,
        "embedding.position.weight": model.position.weight,
        **norm_names("stack.norm", model.norm),
    }
    for number, block in enumerate(model.blocks):
        prefix = f"stack.blocks.{number}"
        tensors |= norm_names(f"{prefix}.attention_residual.norm", block.attention_norm)
        tensors |= norm_names(f"{prefix}.feed_forward_residual.norm", block.feed_forward_norm)

        attention = block.attention
        layers = (attention.query, attention.key, attention.value)
        for name in ("weight", "bias"):
            joined = torch.cat([getattr(layer, name) for layer in layers])
            tensors[f"{prefix}.attention.qkv.{name}"] = joined
            tensors[f"{prefix}.attention.output.{name}"] = getattr(attention.output, name)
            for layer in ("up", "down"):
                part = getattr(block.feed_forward, layer)
                tensors[f"{prefix}.feed_forward.{layer}.{name}"] = getattr(part, name)

    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def norm_names(prefix: str, norm: Any) -> dict[str, Tensor]:
    return {f"{prefix}.gain": norm.weight, f"{prefix}.bias": norm.bias}


def peaked_gpt(draw: InputDraw, vocabulary: int, context: int) -> GPT:
    """A GPT of the library whose weights are so large that some tokens are much likelier."""
    model = GPT(GPTConfig(vocabulary=vocabulary, context=context, width=8, depth=1, heads=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * draw.normal(*parameter.shape))

        model.embedding.token.weight.mul_(2)

    return model.eval()


class ChainModel(nn.Module):
    """A model whose next token depends on the last one alone: a table of probabilities (V, V)."""

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__()
        self.probabilities = probabilities

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T)."""
        return torch.log(self.probabilities[ids])


class HistoryModel(nn.Module):
    """A model whose next token depends on all tokens before it, by a table of logits (M, V)."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T)."""
        places = torch.arange(1, ids.shape[1] + 1)
        history = ((2 * ids + 1) * places).cumsum(1)
        return self.logits[history % len(self.logits)]
