"""Checks of exercise 13, second half: cross-attention and the decoder's block equal qkv's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.learn.exercises.beyond.decoder_references import VARIANTS, run_sublayers
from qkv.learn.exercises.beyond.twin_models import (
    changed_positions,
    draw_lengths,
    library_attention,
    library_decoder_block,
    randomise,
)
from qkv.learn.expectations import Failed, InputDraw, check, expect_equal, expect_gradients, table
from qkv.nn.attention import Causal, Padding
from qkv.nn.cache.decoder import DecoderState, EncodedSource
from qkv.nn.cache.interface import NO_STATE


@check("CrossAttention", "One output for each position of the decoder")
def output_shape(mine: ModuleType, draw: InputDraw) -> None:
    width = 2 * draw.size
    attention = mine.CrossAttention(width, 2)
    x = draw.normal(2, 3, width)
    source = draw.normal(2, 5, width)
    found = attention(x, source)
    if isinstance(found, Tensor) and found.shape == source.shape:
        raise Failed(
            "CrossAttention: one output for each token of the source; queries come from the "
            "decoder (x), keys and values from the source"
        )
    if isinstance(found, tuple):
        raise Failed("CrossAttention: return the output alone, without the weights")


@check("CrossAttention", "Queries from the decoder, keys and values from the source")
def equals_attention(mine: ModuleType, draw: InputDraw) -> None:
    width = 2 * draw.size
    attention = mine.CrossAttention(width, 2)
    randomise(attention, draw)
    right = library_attention(attention, 2)
    one_head = library_attention(attention, 1)
    x = draw.normal(2, 3, width)
    source = draw.normal(2, 3, width)

    def values_of_decoder() -> Tensor:
        query, key, _ = right.project(x, source, None, NO_STATE)
        _, _, value = right.project(x, x, None, NO_STATE)
        heads, _ = right.attend(query, key, value, None, None)
        return right.output(heads.transpose(1, 2).flatten(2))

    def without_output() -> Tensor:
        query, key, value = right.project(x, source, None, NO_STATE)
        heads, _ = right.attend(query, key, value, None, None)
        return heads.transpose(1, 2).flatten(2)

    def unprojected_values() -> Tensor:
        query, key, _ = right.project(x, source, None, NO_STATE)
        (value,) = right.split(source, 2)
        heads, _ = right.attend(query, key, value, None, None)
        return right.output(heads.transpose(1, 2).flatten(2))

    with torch.no_grad():
        expect_equal(
            attention(x, source),
            right(x, source)[0],
            "CrossAttention",
            {
                "CrossAttention: keys and values come from x: that is self-attention": (
                    right(x)[0]
                ),
                "CrossAttention: queries come from the source: nothing of the decoder is in it": (
                    right(source)[0]
                ),
                "CrossAttention: x and source are exchanged; queries come from x": (
                    right(source, x)[0]
                ),
                "CrossAttention: the values come from x; they belong to the keys, the source": (
                    values_of_decoder
                ),
                "CrossAttention: the values are the source itself; project them by self.value": (
                    unprojected_values
                ),
                "CrossAttention: all heads are one; split query, key and value into heads": (
                    one_head(x, source)[0]
                ),
                "CrossAttention: the output projection is missing": without_output,
            },
            shape="(B, T, E)",
            tolerance=1e-4,
        )


@check("CrossAttention", "It has a gradient for the decoder and for the source")
def cross_gradients(mine: ModuleType, draw: InputDraw) -> None:
    width = 2 * draw.size
    attention = mine.CrossAttention(width, 2)
    randomise(attention, draw)
    right = library_attention(attention, 2)
    expect_gradients(
        attention,
        lambda x, source: right(x, source)[0],
        {"x": draw.normal(2, 3, width), "source": draw.normal(2, 4, width)},
        "CrossAttention",
        tolerance=1e-3,
    )


@check("CrossAttention", "Padding of the source is not seen")
def source_padding(mine: ModuleType, draw: InputDraw) -> None:
    width = 2 * draw.size
    attention = mine.CrossAttention(width, 2)
    randomise(attention, draw)
    x = draw.normal(2, draw.size, width)
    source = draw.normal(2, draw.size + 2, width)
    is_token = torch.arange(draw.size + 2) < draw.size + 1
    mask = is_token.expand(2, 1, 1, -1)
    if changed_positions(lambda values: attention(x, values, mask), source, draw.size + 1):
        raise Failed(
            f"CrossAttention sees position {draw.size + 1} of the source, which is padding: "
            "hand the mask to masked_attend",
            table("mask, True for tokens", mask[:, 0, 0]),
        )
    with torch.no_grad():
        expect_equal(
            attention(x, source, mask),
            library_attention(attention, 2)(x, source, mask=Padding(mask[:, 0, 0]))[0],
            "CrossAttention, with a mask",
            shape="(B, T, E)",
            tolerance=1e-4,
        )


def new_block(mine: ModuleType, draw: InputDraw) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A student's block with random weights; x (3, T, E), source (3, S, E), lengths (3,)."""
    width = 2 * draw.size + 2  # a norm of two numbers is always -1 and 1
    block = mine.DecoderBlock(width, 2)
    randomise(block, draw)
    source = draw.normal(3, draw.size + 2, width)
    return block, draw.normal(3, draw.size + 1, width), source, draw_lengths(draw, draw.size + 2)


@check("DecoderBlock", "Self-attention is causal")
def causal_target(mine: ModuleType, draw: InputDraw) -> None:
    block, x, source, lengths = new_block(mine, draw)
    last = draw.size
    seen = changed_positions(lambda values: block(values, source, lengths), x, last)
    for position in seen:
        if position < last:
            raise Failed(
                f"position {position} of the target sees position {last}: "
                "a decoder's self-attention needs the causal mask"
            )


@check("DecoderBlock", "Every position sees all tokens of the source, and no padding")
def visible_source(mine: ModuleType, draw: InputDraw) -> None:
    block, x, source, _ = new_block(mine, draw)
    S = source.shape[1]
    lengths = torch.full((3,), S - 1)
    for token in range(S):
        seen = changed_positions(lambda values: block(x, values, lengths), source, token)
        if token == S - 1 and seen:
            raise Failed(
                f"the target sees position {token} of the source, which is padding: rows have "
                f"{S - 1} tokens"
            )
        if token < S - 1 and len(seen) < x.shape[1]:
            blind = min(set(range(x.shape[1])) - set(seen))
            raise Failed(
                f"position {blind} of the target does not see token {token} of the source: "
                "cross-attention has no causal mask, and its output is added to x"
            )


@check("DecoderBlock", "Three times x + sublayer(norm(x))")
def equals_block(mine: ModuleType, draw: InputDraw) -> None:
    block, x, source, lengths = new_block(mine, draw)
    right = library_decoder_block(block, heads=2)
    padding = torch.arange(source.shape[1]) < lengths.unsqueeze(1)

    def reference(x: Tensor, source: Tensor) -> Tensor:
        state = DecoderState(EncodedSource(source, padding), NO_STATE)
        return right(x, mask=Causal(), state=state)

    with torch.no_grad():
        mistakes = {
            text: run_sublayers(right, x, source, Padding(padding), variant)
            for variant, text in VARIANTS.items()
        }
        expect_equal(
            block(x, source, lengths),
            reference(x, source),
            "DecoderBlock",
            mistakes,
            shape="(B, T, E)",
            tolerance=1e-4,
        )

    expect_gradients(
        lambda x, source: block(x, source, lengths),
        reference,
        {"x": x, "source": source},
        "DecoderBlock",
        tolerance=1e-2,
    )
