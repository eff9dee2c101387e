"""Checks of exercise 7: norm, feed-forward layer and block equal those of `qkv.nn`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from qkv.learn.expectations import (
    InputDraw,
    check,
    expect_equal,
    expect_gradients,
    expect_untouched,
)
from qkv.nn.attention.mask import as_mask
from qkv.nn.block import Block
from qkv.nn.norm import LayerNorm
from qkv.nn.stack_config import StackConfig

Layer = Callable[[Tensor], Tensor]


def fill(module: nn.Module, draw: InputDraw) -> None:
    """Draw all weights of a module; those of a norm are around 1."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            center = 1.0 if weight.dim() == 1 and name.endswith("weight") else 0.0
            spread = weight.shape[-1] ** 0.5 if weight.dim() > 1 else 2.0
            weight.copy_(center + draw.normal(*weight.shape) / spread)


def misnormed(norm: Any, x: Tensor) -> dict[str, Tensor]:
    """Results of norms with known mistakes, by what to tell the student."""
    gain, bias, eps = norm.weight, norm.bias, norm.eps
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    unbiased = x.var(-1, keepdim=True)
    root = (variance + eps).sqrt()
    across = x - x.mean(-2, keepdim=True)
    root_across = (across.square().mean(-2, keepdim=True) + eps).sqrt()
    mistakes = {
        "LayerNorm: the variance divides by E - 1; var(x) is a mean over E numbers": (
            gain * centred / (unbiased + eps).sqrt() + bias
        ),
        "LayerNorm: eps is added to the root; it belongs to the variance inside it": (
            gain * centred / (variance.sqrt() + eps) + bias
        ),
        "LayerNorm: eps is missing": gain * centred / variance.sqrt() + bias,
        "LayerNorm: divided by the variance; the root is missing": (
            gain * centred / (variance + eps) + bias
        ),
        "LayerNorm: the mean is not subtracted": gain * x / root + bias,
        "LayerNorm: mean and variance run over positions; each vector has its own": (
            gain * across / root_across + bias
        ),
        "LayerNorm: one mean and variance for the whole batch; each vector has its own": (
            gain * (x - x.mean()) / (x.var(correction=0) + eps).sqrt() + bias
        ),
        "LayerNorm: self.weight is not used": centred / root + bias,
        "LayerNorm: self.bias is not used": gain * centred / root,
        "LayerNorm: self.bias is added before the product with self.weight": (
            gain * (centred / root + bias)
        ),
    }
    for other in (1e-3, 1e-6, 1e-8, 1e-12):
        message = f"LayerNorm: eps is {other:.0e}; self.eps says which"
        mistakes[message] = F.layer_norm(x, x.shape[-1:], gain, bias, other)

    return mistakes


@check("LayerNorm", "Each vector has mean 0 and variance 1, then is scaled and shifted")
def layer_norm(mine: ModuleType, draw: InputDraw) -> None:
    width = draw.size + 2
    norm = mine.LayerNorm(width)
    fill(norm, draw)
    gain, bias = norm.weight, norm.bias
    # Usual vectors for mistakes that show in any, then small ones in which eps counts
    for scale, tolerance in ((1.0, 1e-3), (3e-3, 1e-5)):
        x = scale * (draw.normal(2, draw.size, width) + 0.5)
        with expect_untouched("LayerNorm", x=x):
            found = norm(x)

        expect_equal(
            found,
            F.layer_norm(x, (width,), gain, bias, norm.eps),
            "LayerNorm",
            misnormed(norm, x),
            shape="(B, T, E)",
            inputs={"x": x, "weight": gain.unsqueeze(0), "bias": bias.unsqueeze(0)},
            tolerance=tolerance,
        )


@check("LayerNorm", "Any eps, also for a vector of equal numbers")
def epsilon(mine: ModuleType, draw: InputDraw) -> None:
    norm = mine.LayerNorm(draw.size + 1, eps=0.1)
    x = 0.1 * draw.normal(3, draw.size + 1)
    x[0] = 2.0
    expect_equal(
        norm(x),
        F.layer_norm(x, x.shape[-1:], eps=0.1),
        "LayerNorm(width, eps=0.1), of which the first vector has equal numbers: is self.eps used?",
        {
            "LayerNorm: eps is always 1e-5; self.eps says which": (
                F.layer_norm(x, x.shape[-1:], eps=1e-5)
            )
        },
        inputs={"x": x},
    )


@check("LayerNorm", "The gradients of x, weight and bias")
def norm_gradients(mine: ModuleType, draw: InputDraw) -> None:
    width = draw.size + 1
    norm = mine.LayerNorm(width)
    right = LayerNorm(width)

    def of_student(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional_call(norm, {"weight": weight, "bias": bias}, (x,))

    def of_library(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional_call(right, {"gain": weight, "bias": bias}, (x,))

    inputs = {
        "x": draw.normal(2, draw.size, width),
        "weight": draw.normal(width),
        "bias": draw.normal(width),
    }
    expect_gradients(of_student, of_library, inputs, "LayerNorm")


@check("FeedForward", "GELU between two linear layers")
def feed_forward(mine: ModuleType, draw: InputDraw) -> None:
    width, hidden = draw.size + 1, 3 * draw.size + 2
    layer = mine.FeedForward(width, hidden)
    fill(layer, draw)
    x = 2 * draw.normal(2, draw.size, width)
    inner = layer.up(x)
    right = layer.down(F.gelu(inner))
    with expect_untouched("FeedForward", x=x):
        found = layer(x)

    expect_equal(
        found,
        right,
        "FeedForward",
        {
            "FeedForward: this GELU is the approximation with tanh; the exact one is the default "
            "of F.gelu": layer.down(F.gelu(inner, approximate="tanh")),
            "FeedForward: the activation is ReLU; here it is GELU": layer.down(F.relu(inner)),
            "FeedForward: the activation is SiLU; here it is GELU": layer.down(F.silu(inner)),
            "FeedForward: without an activation two linear layers are one linear layer": (
                layer.down(inner)
            ),
            "FeedForward: an activation comes after the last layer, too": F.gelu(right),
            "FeedForward: x is added; the residual connection belongs to the block": x + right,
        },
        shape="(B, T, E)",
        inputs={"x": x},
    )
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def of_student(x: Tensor, *values: Tensor) -> Tensor:
        weights = dict(zip(parameters, values, strict=True))
        return functional_call(layer, weights, (x,))

    def of_library(x: Tensor, *values: Tensor) -> Tensor:
        weights = dict(zip(parameters, values, strict=True))
        inner = F.linear(x, weights["up.weight"], weights["up.bias"])
        return F.linear(F.gelu(inner), weights["down.weight"], weights["down.bias"])

    expect_gradients(of_student, of_library, {"x": x, **parameters}, "FeedForward")


def draw_block(mine: ModuleType, draw: InputDraw) -> tuple[Any, Tensor, Tensor]:
    """The student's block with drawn weights, an input and a causal mask."""
    heads = min(draw.size, 3)
    width = heads * (4 + draw.size % 2)
    block = mine.Block(width, heads)
    fill(block, draw)
    x = 1 + 2 * draw.normal(1 if draw.size == 1 else 2, draw.size, width)
    mask = torch.ones(draw.size, draw.size, dtype=torch.bool).tril()
    return block, x, mask


def library_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A student's weights of a block under the library's names."""
    renamed = {}
    for name, weight in weights.items():
        layer, _, kind = name.rpartition(".")
        if layer.endswith("_norm"):
            kind = "gain" if kind == "weight" else kind
            layer = layer.replace("_norm", "_residual.norm")
        if layer not in ("attention.query", "attention.key", "attention.value"):
            renamed[f"{layer}.{kind}"] = weight

    for kind in ("weight", "bias"):
        names = [f"attention.{part}.{kind}" for part in ("query", "key", "value")]
        renamed[f"attention.qkv.{kind}"] = torch.cat([weights[name] for name in names])

    return renamed


def library(block: Any) -> Block:
    """The library's block with the student's weights."""
    width = block.attention.query.in_features
    right = Block(StackConfig(width=width, heads=block.attention.heads))
    right.load_state_dict(library_names(dict(block.named_parameters())))
    return right


def misbuilt(block: Block, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Results of blocks whose parts are joined in another way, by what to tell the student."""
    norm1: Layer = block.attention_residual.norm
    norm2: Layer = block.feed_forward_residual.norm
    ffn: Layer = block.feed_forward

    def attention(y: Tensor) -> Tensor:
        return block.attention(y, mask=mask)[0]

    right = x + attention(norm1(x))
    alone = attention(norm1(x))
    after = norm1(x + attention(x))
    copied = norm1(x) + attention(norm1(x))
    raw = x + attention(x)
    swapped = x + attention(norm2(x))
    late = x + norm1(attention(x))
    first = x + ffn(norm2(x))
    return {
        "Block: this is post-norm, norm(x + layer(x)); pre-norm is x + layer(norm(x))": (
            norm2(after + ffn(after))
        ),
        "Block: the residual connection around attention is missing: x + ...": (
            alone + ffn(norm2(alone))
        ),
        "Block: the residual connection around the feed-forward layer is missing: x + ...": (
            ffn(norm2(right))
        ),
        "Block: both residual connections are missing: x + ...": ffn(norm2(alone)),
        "Block: the results are added to a normalised copy of x; the residual connection adds "
        "them to x itself": norm2(copied) + ffn(norm2(copied)),
        "Block: attention is added to a normalised copy of x; the residual connection adds it to "
        "x itself": copied + ffn(norm2(copied)),
        "Block: the feed-forward result is added to a normalised copy of x": (
            norm2(right) + ffn(norm2(right))
        ),
        "Block: attention and feed-forward run in parallel; the second reads what the first made": (
            right + ffn(norm2(x))
        ),
        "Block: attention_norm is used twice; feed_forward_norm comes before the feed-forward": (
            right + ffn(norm1(right))
        ),
        "Block: attention_norm and feed_forward_norm are swapped": swapped + ffn(norm1(swapped)),
        "Block: the feed-forward layer reads x without a norm": right + ffn(right),
        "Block: attention reads x without a norm": raw + ffn(norm2(raw)),
        "Block: neither layer has a norm": raw + ffn(raw),
        "Block: the result of the feed-forward layer is normalised; its input should be": (
            right + norm2(ffn(right))
        ),
        "Block: the results of both layers are normalised; their inputs should be": (
            late + norm2(ffn(late))
        ),
        "Block: the second residual connection adds the x of the beginning; it adds the x that "
        "attention has changed": x + ffn(norm2(right)),
        "Block: feed-forward comes before attention": first + attention(norm1(first)),
    }


@check("Block", "x + Attention(LayerNorm(x)), then x + FFN(LayerNorm(x))")
def pre_norm(mine: ModuleType, draw: InputDraw) -> None:
    block, x, _ = draw_block(mine, draw)
    with expect_untouched("Block", x=x):
        found = block(x)

    right = library(block)
    expect_equal(
        found,
        right(x),
        "the output of the block",
        misbuilt(right, x, None),
        shape="(B, T, E)",
        inputs={"x": x},
        tolerance=5e-5,
    )


@check("Block", "The mask reaches the attention")
def mask_passed(mine: ModuleType, draw: InputDraw) -> None:
    block, x, mask = draw_block(mine, draw)
    right = library(block)
    expect_equal(
        block(x, mask),
        right(x, mask=as_mask(mask)),
        "the output of the block with a causal mask",
        {
            "Block: position 0 sees position 1: a causal mask forbids it; does the attention "
            "get the mask?": right(x)
        },
        shape="(B, T, E)",
        inputs={"mask": mask},
        tolerance=5e-5,
    )


@check("Block", "The gradients of x and of all weights")
def block_gradients(mine: ModuleType, draw: InputDraw) -> None:
    block, x, mask = draw_block(mine, draw)
    right = library(block)
    parameters = {name: value.detach() for name, value in block.named_parameters()}

    def of_student(x: Tensor, *values: Tensor) -> Tensor:
        weights = dict(zip(parameters, values, strict=True))
        return functional_call(block, weights, (x, mask))

    def of_library(x: Tensor, *values: Tensor) -> Tensor:
        weights = library_names(dict(zip(parameters, values, strict=True)))
        return functional_call(right, weights, (x,), {"mask": as_mask(mask)})

    expect_gradients(of_student, of_library, {"x": x, **parameters}, "Block", tolerance=1e-3)
