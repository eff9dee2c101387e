"""Checks of exercise 5: heads are split as in `qkv.nn.attention`, and attention equals its own."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    expect_equal,
    expect_gradients,
    expect_untouched,
    table,
)
from qkv.learn.run_checks import describe_error
from qkv.nn.attention.multi_head import MultiHeadAttention


def draw_layer(mine: ModuleType, draw: InputDraw, heads: int, kv_heads: int) -> Any:
    """The student's layer with drawn weights, of which no two are alike."""
    head_width = 2 + draw.size % 2
    layer = mine.MultiHeadAttention(heads * head_width, heads, kv_heads)
    fill(layer, draw)
    return layer


def fill(module: nn.Module, draw: InputDraw) -> None:
    """Draw all weights of a module."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(draw.normal(*weight.shape) / weight.shape[-1] ** 0.5)


def draw_input(draw: InputDraw, layer: Any) -> Tensor:
    """A batch (B, T, E); the first is one sequence of one position."""
    return draw.normal(1 if draw.size == 1 else 2, draw.size, layer.query.in_features)


def draw_mask(draw: InputDraw, batch: int, length: int) -> Tensor:
    """A causal mask in which the last sequence does not see its last position: (B, 1, T, T)."""
    mask = torch.ones(length, length, dtype=torch.bool).tril().repeat(batch, 1, 1, 1)
    if length > 1:
        mask[-1, :, :, -1] = False

    return mask


def library_weights(layer: Any) -> dict[str, Tensor]:
    """The student's weights under the library's names."""
    projections = [layer.query, layer.key, layer.value]
    return {
        "qkv.weight": torch.cat([one.weight for one in projections]),
        "qkv.bias": torch.cat([one.bias for one in projections]),
        "output.weight": layer.output.weight,
        "output.bias": layer.output.bias,
    }


def library(layer: Any) -> MultiHeadAttention:
    """The library's layer with the student's weights."""
    right = MultiHeadAttention(layer.query.in_features, heads=layer.heads, kv_heads=layer.kv_heads)
    right.load_state_dict(library_weights(layer))
    return right


def altered(layer: Any, x: Tensor, mask: Tensor | None, mistake: str) -> Tensor:
    """What the layer returns if its forward pass makes a mistake."""
    heads, kv_heads = layer.heads, layer.kv_heads
    if mistake == "one head":
        heads = kv_heads = 1

    query = layer.query(x).unflatten(-1, (heads, -1)).transpose(1, 2)
    key = layer.key(x).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
    value = layer.value(x).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
    if mistake == "value from key":
        value = key
    if mistake == "value from x":
        value = x.unflatten(-1, (kv_heads, -1)).transpose(1, 2)

    group = heads // kv_heads
    in_groups = [number // group for number in range(heads)]
    in_turn = [number % kv_heads for number in range(heads)]
    key = key[:, in_turn if mistake in ("in turn", "keys in turn") else in_groups]
    value = value[:, in_turn if mistake in ("in turn", "values in turn") else in_groups]
    if mistake == "swapped":
        query, key = key, query

    if mistake == "always causal":
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()

    divisors = {"sqrt(E)": x.shape[-1], "no scale": 1}
    scores = query @ key.transpose(-2, -1) / divisors.get(mistake, query.shape[-1]) ** 0.5
    if mask is not None and mistake != "no mask":
        scores = scores.masked_fill(~mask, -torch.inf)

    output = scores.softmax(-2 if mistake == "over queries" else -1) @ value
    if mistake == "merged":
        return layer.output(output.reshape(x.shape))

    joined = output.transpose(1, 2).flatten(2)
    if mistake == "not projected":
        return joined

    projected: Tensor = layer.output(joined)
    return x + projected if mistake == "residual" else projected


def counted(*shape: int) -> Tensor:
    """The numbers 0, 1, 2, ..., so that a table shows where each of them goes."""
    return torch.arange(math.prod(shape), dtype=torch.float32).view(shape)


@check("split_heads", "Head h gets D numbers of each vector, from h D on")
def split(mine: ModuleType, draw: InputDraw) -> None:
    batch, length, heads, head_width = min(draw.size, 2), draw.size + 1, draw.size, draw.size + 2
    x = counted(batch, length, heads * head_width)
    right = x.unflatten(-1, (heads, head_width)).transpose(1, 2)
    found = mine.split_heads(x, heads)
    swapped = (batch, length, heads, head_width)
    if isinstance(found, Tensor) and found.shape == swapped != right.shape:
        raise Failed(
            f"split_heads: the shape is (B, T, H, D) = {swapped}: positions come before heads; "
            f"expected (B, H, T, D) = {tuple(right.shape)}"
        )

    expect_equal(
        found,
        right,
        f"split_heads, {heads} heads",
        {
            "split_heads mixes positions: view(B, H, T, D) reads the numbers in memory order; "
            "cut each vector first, then let heads and positions change places": (
                x.reshape(batch, heads, length, head_width)
            ),
            f"split_heads: head 0 gets every {ordinal(heads)} number of a vector; "
            f"expected the first D = {head_width}": (
                x.reshape(batch, length, head_width, heads).permute(0, 3, 1, 2)
            ),
        },
        shape="(B, H, T, D)",
        inputs={"x": x},
    )


@check("merge_heads", "The parts of a vector side by side, head 0 first")
def merge(mine: ModuleType, draw: InputDraw) -> None:
    batch, length, heads, head_width = min(draw.size, 2), draw.size + 1, draw.size, draw.size + 2
    x = counted(batch, heads, length, head_width)
    shape = (batch, length, heads * head_width)
    right = x.transpose(1, 2).reshape(shape)
    # In both orders in which the numbers may lie in memory
    for parts in (right.unflatten(-1, (heads, -1)).transpose(1, 2), x):
        expect_equal(
            mine.merge_heads(parts),
            right,
            f"merge_heads, {heads} heads",
            {
                "merge_heads mixes positions: let heads and positions change places before you "
                "join heads and D": x.reshape(shape),
                "merge_heads takes turns: a number of head 0, then one of head 1; expected all "
                "of head 0 first": x.permute(0, 2, 3, 1).reshape(shape),
                "merge_heads: the mean of the heads; expected their numbers side by side": (
                    x.mean(1).repeat(1, 1, heads)
                ),
            },
            shape="(B, T, H D)",
            inputs={"x of head 0": x[0, 0], "x of the last head": x[0, -1]},
        )


@check("MultiHeadAttention", "Multi-head: K = H, each query head has its own keys and values")
def multi_head(mine: ModuleType, draw: InputDraw) -> None:
    layer = draw_layer(mine, draw, draw.size, draw.size)
    x = draw_input(draw, layer)
    named = {
        "MultiHeadAttention: this is one head over the whole width; split queries, keys and "
        "values into heads": "one head",
        "MultiHeadAttention: the joined heads are returned; self.output comes last": (
            "not projected"
        ),
        "MultiHeadAttention: queries and keys are swapped": "swapped",
        "MultiHeadAttention: the values are the keys; self.value(x) makes them": "value from key",
        "MultiHeadAttention: the values are x itself; self.value(x) makes them": "value from x",
        "MultiHeadAttention: the scores are divided by sqrt(E); a head is D wide": "sqrt(E)",
        "MultiHeadAttention: the scores are not divided by sqrt(D)": "no scale",
        "MultiHeadAttention: x is added; the residual connection belongs to the block": "residual",
        "MultiHeadAttention: the softmax runs over queries; weights of a query sum to 1 over "
        "keys": "over queries",
        "MultiHeadAttention: the heads are joined with positions mixed; use merge_heads": "merged",
        "MultiHeadAttention: position 0 does not see position 1, although no mask is given; only "
        "a given mask forbids positions": "always causal",
    }
    with expect_untouched("MultiHeadAttention", x=x):
        found = layer(x)

    expect_equal(
        found,
        library(layer)(x)[0],
        f"the output, H = K = {layer.heads}",
        {message: altered(layer, x, None, mistake) for message, mistake in named.items()},
        shape="(B, T, E)",
        inputs={"x": x},
    )


@check("MultiHeadAttention", "The mask is obeyed in every head")
def masked(mine: ModuleType, draw: InputDraw) -> None:
    length = draw.size + 1
    layer = draw_layer(mine, draw, 2, 2)
    x = draw.normal(2, length, layer.query.in_features)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    expect_equal(
        layer(x, causal),
        library(layer)(x, mask=causal)[0],
        "the output with a causal mask",
        {
            "MultiHeadAttention: position 0 sees position 1: a causal mask forbids it; "
            "is the mask passed on?": altered(layer, x, None, "no mask")
        },
        shape="(B, T, E)",
        inputs={"mask": causal},
    )

    mask = draw_mask(draw, 2, length)
    expect_equal(
        layer(x, mask),
        library(layer)(x, mask=mask)[0],
        "the output with a mask (B, 1, T, T), another for each sequence",
        shape="(B, T, E)",
        inputs={"mask of sequence 0": mask[0, 0], "mask of sequence 1": mask[1, 0]},
    )


@check("MultiHeadAttention", "Grouped-query and multi-query: K < H, groups share keys and values")
def grouped(mine: ModuleType, draw: InputDraw) -> None:
    for heads, kv_heads in ((2, 1), (4, 2), (6, 2), (6, 3)):
        layer = draw_layer(mine, draw, heads, kv_heads)
        x = draw.normal(2, draw.size + 1, layer.query.in_features)
        try:
            found = layer(x)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError):
                raise

            raise Failed(
                f"H = {heads}, K = {kv_heads}: are keys and values split into self.kv_heads and "
                f"repeated to H heads? {describe_error(error, Path(str(mine.__file__)))}"
            ) from error

        expect_equal(
            found,
            library(layer)(x)[0],
            f"the output, H = {heads} query heads, K = {kv_heads} key-value heads",
            {
                f"H = {heads}, K = {kv_heads}: key-value heads are handed out in turn, 0 1 0 1; "
                "neighbouring query heads share one, 0 0 1 1": altered(layer, x, None, "in turn"),
                f"H = {heads}, K = {kv_heads}: the keys are right, but query heads get the values "
                "of the wrong head": altered(layer, x, None, "values in turn"),
                f"H = {heads}, K = {kv_heads}: the values are right, but query heads get the keys "
                "of the wrong head": altered(layer, x, None, "keys in turn"),
            },
            shape="(B, T, E)",
            inputs={"x": x},
        )


@check("MultiHeadAttention", "The weights pass through self.weights")
def weights_seen(mine: ModuleType, draw: InputDraw) -> None:
    layer = draw_layer(mine, draw, 4, 2)
    x = draw_input(draw, layer)
    mask = draw_mask(draw, len(x), draw.size)
    seen: list[Tensor] = []
    with layer.weights.register_forward_hook(lambda _layer, _in, output: seen.append(output)):
        plain = layer(x, mask)

    if not seen:
        raise Failed("no attention weights pass through self.weights: call self.weights(weights)")
    if len(seen) > 1:
        raise Failed(f"self.weights is called {len(seen)} times; expected once, for all heads")

    expect_equal(
        seen[0],
        library(layer)(x, mask=mask, need_weights=True)[1],
        "what passes through self.weights",
        shape="(B, H, T, T)",
        inputs={"mask": mask[0, 0]},
    )

    # Without weights, only the bias of the output layer is left.
    with layer.weights.register_forward_hook(lambda _layer, _in, output: 0 * output):
        found = layer(x, mask)

    expect_equal(
        found,
        layer.output.bias.expand_as(plain),
        "the output if self.weights returns zeros",
        {
            "the output is not computed from what self.weights returns: a head cannot be "
            "knocked out there": plain
        },
        shape="(B, T, E)",
    )


@check("MultiHeadAttention", "The gradients of x and of all weights")
def gradients(mine: ModuleType, draw: InputDraw) -> None:
    layer = draw_layer(mine, draw, 4, 2)
    right = library(layer)
    x = draw_input(draw, layer)
    mask = draw_mask(draw, len(x), draw.size)
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}

    def of_student(x: Tensor, *values: Tensor) -> Tensor:
        by_name = dict(zip(weights, values, strict=True))
        return functional_call(layer, by_name, (x, mask))

    def of_library(x: Tensor, *values: Tensor) -> Tensor:
        by_name = dict(zip(weights, values, strict=True))
        joined = {"output.weight": by_name["output.weight"], "output.bias": by_name["output.bias"]}
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}" for part in ("query", "key", "value")]
            joined[f"qkv.{kind}"] = torch.cat([by_name[name] for name in names])

        return functional_call(right, joined, (x,), {"mask": mask})[0]

    expect_gradients(of_student, of_library, {"x": x, **weights}, "MultiHeadAttention")


@check("cache_numbers", "What a KV cache keeps")
def cache(mine: ModuleType, draw: InputDraw) -> None:
    length, depth, kv_heads, head_width = draw.size + 2, draw.size, draw.size + 4, 16 * draw.size
    found = mine.cache_numbers(length, depth, kv_heads, head_width)
    right = 2 * depth * length * kv_heads * head_width
    if found == right:
        return

    sizes = torch.tensor([length, depth, kv_heads, head_width, right])
    shown = table("length, depth, K, D, right", sizes.unsqueeze(1))
    known = {
        right / 2: "the values are kept as well as the keys",
        right / depth: "that is one layer; there are depth of them",
        right / length: "that is one position; all of them are kept",
        right * 3 / 2: "queries are not kept: nobody asks for them again",
    }
    if found in known:
        raise Failed(f"cache_numbers: {found}, not {right}: {known[found]}", shown)

    raise Failed(f"cache_numbers: {found}, not {right}", shown)


def ordinal(number: int) -> str:
    """2nd, 3rd, 5th ..."""
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
