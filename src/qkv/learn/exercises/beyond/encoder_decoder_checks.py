"""Checks of exercise 13: RNN steps, Bahdanau's attention and a decoder block equal qkv's."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from qkv.learn.exercises.beyond.twin_models import (
    changed_positions,
    library_attention,
    library_decoder_block,
    randomise,
)
from qkv.learn.expectations import (
    Draw,
    Failed,
    check,
    expect_equal,
    expect_gradients,
    expect_results,
    table,
)
from qkv.nn.attention import Causal, Padding, attend
from qkv.nn.block import Block
from qkv.nn.cache.decoder import DecoderState, EncodedSource
from qkv.nn.cache.interface import NO_STATE
from qkv.nn.recurrent import Recurrent
from qkv.training.loss import loss_sum


def draw_cell(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of an RNN: w_x (E, I), w_h (E, E), bias (E,), with I = E + 1."""
    E = draw.size + 1
    return draw.normal(E, E + 1), draw.normal(E, E), draw.normal(E)


def draw_lengths(draw: Draw, longest: int) -> Tensor:
    """The lengths of three rows: 1, some number, and the longest."""
    middle = int(draw.integers(longest + 1, 1, low=1))
    return torch.tensor([1, middle, longest])


@check("rnn_step", "One step: tanh(W_x x + W_h h + b)")
def one_step(mine: ModuleType, draw: Draw) -> None:
    w_x, w_h, bias = draw_cell(draw)
    x = draw.normal(2, w_x.shape[1])
    state = draw.normal(2, len(bias))
    cell = nn.RNNCell(w_x.shape[1], len(bias))
    with torch.no_grad():
        cell.weight_ih.copy_(w_x)
        cell.weight_hh.copy_(w_h)
        cell.bias_ih.copy_(bias)
        cell.bias_hh.zero_()

    expect_equal(
        mine.rnn_step(x, state, w_x, w_h, bias),
        cell(x, state).detach(),
        "rnn_step",
        {
            "rnn_step: tanh is missing": x @ w_x.T + state @ w_h.T + bias,
            "rnn_step: the bias b is missing": torch.tanh(x @ w_x.T + state @ w_h.T),
            "rnn_step: W_h is transposed: W_h h is state @ w_h.T for rows of a batch": torch.tanh(
                x @ w_x.T + state @ w_h + bias
            ),
            "rnn_step: the old state has no influence: W_h h is missing": torch.tanh(
                x @ w_x.T + bias
            ),
            "rnn_step: the old state is added outside of tanh": (
                state + torch.tanh(x @ w_x.T + state @ w_h.T + bias)
            ),
        },
        shape="(B, E)",
        inputs={"x": x, "state": state, "w_h": w_h},
    )


@check("encode", "The state after each token")
def all_states(mine: ModuleType, draw: Draw) -> None:
    w_x, w_h, bias = draw_cell(draw)
    source = draw.normal(2, draw.size + 1, w_x.shape[1])
    right = recurrent_states(source, w_x, w_h, bias)
    expect_equal(
        mine.encode(source, w_x, w_h, bias),
        right,
        "encode",
        {
            "encode: every step begins at h_0 = 0; step s must continue the state of step s - 1": (
                torch.tanh(source @ w_x.T + bias)
            ),
            "encode: the source is read from its end": (
                recurrent_states(source.flip(1), w_x, w_h, bias)
            ),
            "encode: the states are in reverse order": right.flip(1),
            "encode: h_0 is the first state; the result has the states after each token": (
                torch.cat([torch.zeros_like(right[:, :1]), right[:, :-1]], dim=1)
            ),
        },
        shape="(B, S, E)",
        inputs={"source, row 0": source[0]},
    )


@check("encode", "It has a gradient for the source and the weights, through all steps")
def gradient_through_time(mine: ModuleType, draw: Draw) -> None:
    w_x, w_h, bias = draw_cell(draw)
    source = draw.normal(2, draw.size + 1, w_x.shape[1])
    expect_gradients(
        mine.encode,
        recurrent_states,
        {"source": source, "w_x": w_x, "w_h": w_h, "bias": bias},
        "encode",
    )


def recurrent_states(source: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> Tensor:
    """The outputs of the library's RNN with these weights."""
    layer = Recurrent("rnn", w_x.shape[1], len(bias), depth=1)
    weights = {
        "cells.weight_ih_l0": w_x,
        "cells.weight_hh_l0": w_h,
        "cells.bias_ih_l0": bias,
        "cells.bias_hh_l0": torch.zeros_like(bias),
    }
    states: Tensor = torch.func.functional_call(layer, weights, (source,))[0]
    return states


@check("bottleneck", "The state after the last token of each row")
def last_state(mine: ModuleType, draw: Draw) -> None:
    S = draw.size + 2
    states = draw.normal(3, S, 2)
    lengths = draw_lengths(draw, S)
    rows = torch.arange(3)
    expect_equal(
        mine.bottleneck(states, lengths),
        states[rows, lengths - 1],
        "bottleneck",
        {
            "bottleneck: this is the state after the padding; row b ends after lengths[b] tokens": (
                states[:, -1]
            ),
            "bottleneck: off by one: the last token of row b is token lengths[b] - 1": (
                states[rows, lengths.clamp(max=S - 1)]
            ),
            "bottleneck: this is the first state; it has read one token only": states[:, 0],
            "bottleneck: a mean over states is not what an RNN hands over; take the last one": (
                torch.stack([states[row, : lengths[row]].mean(0) for row in range(3)])
            ),
        },
        shape="(B, E)",
        inputs={"lengths": lengths.unsqueeze(0), "states of row 0": states[0]},
    )


@check("bottleneck", "Padding changes nothing, for lengths that are all shorter than S")
def shorter_rows(mine: ModuleType, draw: Draw) -> None:
    S = draw.size + 2
    states = draw.normal(2, S, 2)
    lengths = torch.tensor([S - 1, 1])
    try:
        found = mine.bottleneck(states, lengths)
    except IndexError as error:
        raise Failed(f"bottleneck: {error}; token lengths[b] - 1 is the last one") from None

    expect_equal(
        found,
        torch.stack([states[0, S - 2], states[1, 0]]),
        "bottleneck",
        {
            "bottleneck: off by one: the last token of row b is token lengths[b] - 1": (
                torch.stack([states[0, S - 1], states[1, 1]])
            ),
        },
        inputs={"lengths": lengths.unsqueeze(0)},
    )


# Bahdanau's attention


def draw_attention(draw: Draw) -> dict[str, Tensor]:
    """State, states and the weights of the additive score; E = size + 1."""
    E = draw.size + 1
    return {
        "state": draw.normal(3, E),
        "states": draw.normal(3, draw.size + 2, E),
        "w_query": draw.normal(E, E),
        "w_key": draw.normal(E, E),
        "v": draw.normal(E),
    }


def library_bahdanau(values: dict[str, Tensor], lengths: Tensor, **options: Any) -> Any:
    """Context and weights by the library's attention with the student's additive score."""
    additive = import_module("ex02_scores").additive

    def score(query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = additive(query, key, values["w_query"], values["w_key"], values["v"])
        return scores

    states = values["states"]
    padding = Padding.of_lengths(lengths, states.shape[1])
    settings = {"mask": padding, "score": score, "need_weights": True} | options
    context, weights = attend(values["state"].unsqueeze(1), states, states, **settings)
    assert weights is not None
    return context.squeeze(1), weights.squeeze(1)


def call_bahdanau(mine: ModuleType, values: dict[str, Tensor], lengths: Tensor) -> Any:
    """The student's context and weights."""
    names = ("state", "states", "w_query", "w_key", "v")
    state, states, *others = (values[name] for name in names)
    found = mine.bahdanau(state, states, lengths, *others)
    expect_results(found, ("the context (B, E)", "the weights (B, S)"), "bahdanau")
    return found


@check("bahdanau", "The weights: a softmax of the additive scores over the tokens of the source")
def additive_weights(mine: ModuleType, draw: Draw) -> None:
    values = draw_attention(draw)
    lengths = draw_lengths(draw, draw.size + 2)
    _, found = call_bahdanau(mine, values, lengths)
    _, right = library_bahdanau(values, lengths)
    _, unmasked = library_bahdanau(values, lengths, mask=None)
    _, scores = library_bahdanau(values, lengths, mask=None, normalise="none")
    is_token = torch.arange(draw.size + 2) < lengths.unsqueeze(1)
    expect_equal(
        found,
        right,
        "bahdanau, the weights",
        {
            "bahdanau: padding has weights; they must be 0 behind the last token": unmasked,
            "bahdanau: the weights of padding are set to 0 after the softmax, so that a row does "
            "not sum to 1; mask the scores before": unmasked * is_token,
            "bahdanau: the softmax is over the rows of the batch, not over the source tokens": (
                scores.masked_fill(~is_token, -torch.inf).softmax(0)
            ),
            "bahdanau: these are the scores; the softmax is missing": scores,
            "bahdanau: the scores of padding are set to 0, which is a score like another; use "
            "minus infinity": (scores * is_token).softmax(-1),
        },
        shape="(B, S)",
        inputs={"lengths": lengths.unsqueeze(0), "scores": scores.detach()},
    )


@check("bahdanau", "The context: the states of the encoder, summed with the weights")
def context_vector(mine: ModuleType, draw: Draw) -> None:
    values = draw_attention(draw)
    lengths = draw_lengths(draw, draw.size + 2)
    found, _ = call_bahdanau(mine, values, lengths)
    right, weights = library_bahdanau(values, lengths)
    states = values["states"]
    expect_equal(
        found,
        right,
        "bahdanau, the context",
        {
            "bahdanau: this is the state with the largest weight; the context is a sum of all": (
                states[torch.arange(3), weights.argmax(1)]
            ),
            "bahdanau: the context sums the encoder's states, not the decoder's state": (
                values["state"]
            ),
            "bahdanau: the sum is divided by S; the weights sum to 1 already": (
                right / states.shape[1]
            ),
        },
        shape="(B, E)",
        inputs={"weights": weights.detach(), "states of row 0": states[0]},
    )


@check("bahdanau", "It has a gradient for state, states and the weights of the score")
def bahdanau_gradients(mine: ModuleType, draw: Draw) -> None:
    values = draw_attention(draw)
    lengths = draw_lengths(draw, draw.size + 2)

    def context(*tensors: Tensor) -> Tensor:
        found: Tensor = call_bahdanau(mine, dict(zip(values, tensors, strict=True)), lengths)[0]
        return found

    def reference(*tensors: Tensor) -> Tensor:
        right: Tensor = library_bahdanau(dict(zip(values, tensors, strict=True)), lengths)[0]
        return right

    expect_gradients(context, reference, values, "bahdanau")


# Teacher forcing


@check("teacher_forcing", "The target shifted right goes in, the target comes out")
def shifted_target(mine: ModuleType, draw: Draw) -> None:
    start = 1
    target = draw.integers(10, 2, draw.size + 1, low=2)
    before = target.clone()
    found = mine.teacher_forcing(target, start)
    expect_results(found, ("what it reads (B, T)", "what it must say (B, T)"), "teacher_forcing")
    first = torch.full((2, 1), start)
    if not torch.equal(before, target):
        raise Failed("teacher_forcing: the target itself was changed; make a new tensor")
    if isinstance(found[0], Tensor) and torch.equal(found[0], target):
        raise Failed(
            "teacher_forcing: the decoder reads at position t the token it must say there; "
            "shift the target right by one",
            table("target", target),
        )

    expect_equal(
        found[0],
        torch.cat([first, target[:, :-1]], dim=1),
        "teacher_forcing, what the decoder reads",
        {
            "teacher_forcing: shifted left: the decoder reads the token after the one it says": (
                torch.cat([target[:, 1:], first], dim=1)
            ),
            "teacher_forcing: the first token wraps around from the end; it is the start token": (
                target.roll(1, dims=1)
            ),
        },
        shape="(B, T)",
        inputs={"target": target},
    )
    expect_equal(
        found[1],
        target,
        "teacher_forcing, what the decoder must say",
        {
            "teacher_forcing: the labels are shifted, too; at position t it must say token t": (
                torch.cat([first, target[:, :-1]], dim=1)
            ),
        },
        shape="(B, T)",
        inputs={"target": target},
    )


@check("target_loss", "The mean over all tokens, without padding")
def loss_of_tokens(mine: ModuleType, draw: Draw) -> None:
    T = draw.size + 2
    V = draw.size + 3
    logits = draw.normal(3, T, V)
    target = draw.integers(V, 3, T)
    lengths = draw_lengths(draw, T)
    each = -logits.log_softmax(-1).gather(2, target.unsqueeze(2)).squeeze(2)
    is_token = torch.arange(T) < lengths.unsqueeze(1)
    by_row = (each * is_token).sum(1) / lengths
    shifted = -logits[:, :-1].log_softmax(-1).gather(2, target[:, 1:].unsqueeze(2)).squeeze(2)
    expect_equal(
        mine.target_loss(logits, target, lengths),
        library_loss(logits, target, lengths),
        "target_loss",
        {
            "target_loss: padding counts; take the mean over tokens only": each.mean(),
            "target_loss: a sum over tokens; divide it by their number": (each * is_token).sum(),
            "target_loss: divided by B T, padding included; divide by the number of tokens": (
                (each * is_token).mean()
            ),
            "target_loss: a mean of the means of rows; each token counts the same": by_row.mean(),
            "target_loss: shifted once more; teacher_forcing has shifted the input already": (
                shifted[is_token[:, 1:]].mean()
            ),
        },
        shape="()",
        inputs={"lengths": lengths.unsqueeze(0), "loss of each position": each},
    )
    expect_gradients(
        lambda scores: mine.target_loss(scores, target, lengths),
        lambda scores: library_loss(scores, target, lengths),
        {"logits": logits},
        "target_loss",
    )


def library_loss(logits: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
    """The library's loss, with logits as features of an output layer that is the identity."""
    is_token = torch.arange(target.shape[1]) < lengths.unsqueeze(1)
    targets = target.where(is_token, torch.tensor(-100))
    return loss_sum(logits, torch.eye(logits.shape[-1]), None, targets) / lengths.sum()


# The Transformer's decoder


@check("CrossAttention", "One output for each position of the decoder")
def output_shape(mine: ModuleType, draw: Draw) -> None:
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
def equals_attention(mine: ModuleType, draw: Draw) -> None:
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
                "CrossAttention: all heads are one; split query, key and value into heads": (
                    one_head(x, source)[0]
                ),
                "CrossAttention: the output projection is missing": without_output,
            },
            shape="(B, T, E)",
            tolerance=1e-4,
        )


@check("CrossAttention", "Padding of the source is not seen")
def source_padding(mine: ModuleType, draw: Draw) -> None:
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


def new_block(mine: ModuleType, draw: Draw) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A student's block with random weights; x (3, T, E), source (3, S, E), lengths (3,)."""
    width = 2 * draw.size + 2  # a norm of two numbers is always -1 and 1
    block = mine.DecoderBlock(width, 2)
    randomise(block, draw)
    source = draw.normal(3, draw.size + 2, width)
    return block, draw.normal(3, draw.size + 1, width), source, draw_lengths(draw, draw.size + 2)


@check("DecoderBlock", "Self-attention is causal")
def causal_target(mine: ModuleType, draw: Draw) -> None:
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
def visible_source(mine: ModuleType, draw: Draw) -> None:
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
def equals_block(mine: ModuleType, draw: Draw) -> None:
    block, x, source, lengths = new_block(mine, draw)
    right = library_decoder_block(block, heads=2)
    padding = torch.arange(source.shape[1]) < lengths.unsqueeze(1)
    state = DecoderState(EncodedSource(source, padding), NO_STATE)
    with torch.no_grad():
        mistakes = {
            text: run_sublayers(right, x, source, Padding(padding), variant)
            for variant, text in VARIANTS.items()
        }
        expect_equal(
            block(x, source, lengths),
            right(x, mask=Causal(), state=state),
            "DecoderBlock",
            mistakes,
            shape="(B, T, E)",
            tolerance=1e-4,
        )


VARIANTS = {
    "no residual": "DecoderBlock: the residual x + ... is missing",
    "no cross residual": "DecoderBlock: the residual around cross-attention is missing",
    "post-norm": "DecoderBlock: the norm comes after the sum; here it is x + sublayer(norm(x))",
    "no norm": "DecoderBlock: no norm before the sublayers; it is x + sublayer(norm(x))",
    "cross first": "DecoderBlock: cross-attention comes before self-attention; it is the second",
    "cross last": "DecoderBlock: feed-forward comes before cross-attention; it is the last",
    "normalised source": "DecoderBlock: the source is normalised by cross_norm; that is for x",
    "same norm": "DecoderBlock: cross-attention uses attention_norm; it has its own, cross_norm",
    "no cross norm": "DecoderBlock: cross-attention reads x without cross_norm",
}
"""What the student is told of a decoder block that is put together in a wrong way."""


def run_sublayers(
    block: Block, x: Tensor, source: Tensor, padding: Padding, variant: str
) -> Tensor:
    """The library's decoder block, put together as in a known mistake."""
    norms = {
        "self": block.attention_residual.norm,
        "cross": block.cross_attention_residual.norm,
        "feed": block.feed_forward_residual.norm,
    }
    if variant == "normalised source":
        source = norms["cross"](source)

    def self_attention(y: Tensor) -> Tensor:
        output: Tensor = block.attention(y, mask=Causal())[0]
        return output

    def cross_attention(y: Tensor) -> Tensor:
        output: Tensor = block.cross_attention(y, source, mask=padding)[0]
        return output

    sublayers: dict[str, Any] = {
        "self": self_attention,
        "cross": cross_attention,
        "feed": block.feed_forward,
    }
    orders = {"cross first": ("cross", "self", "feed"), "cross last": ("self", "feed", "cross")}
    for name in orders.get(variant, ("self", "cross", "feed")):
        norm: Any = norms[name]
        if variant == "no norm" or (name, variant) == ("cross", "no cross norm"):
            norm = torch.nn.Identity()
        if (name, variant) == ("cross", "same norm"):
            norm = norms["self"]

        if variant == "post-norm":
            x = norm(x + sublayers[name](x))
        elif variant == "no residual" or (name, variant) == ("cross", "no cross residual"):
            x = sublayers[name](norm(x))
        else:
            x = x + sublayers[name](norm(x))

    return x
