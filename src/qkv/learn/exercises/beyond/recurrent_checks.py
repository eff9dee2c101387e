"""Checks of exercise 13, first half: an RNN, its bottleneck, Bahdanau's attention, the loss."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from qkv.learn.exercises.beyond.decoder_references import (
    library_bahdanau,
    library_loss,
    recurrent_states,
    right_scores_first,
)
from qkv.learn.exercises.beyond.twin_models import draw_lengths, expect_integers
from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    expect_dtype,
    expect_equal,
    expect_gradients,
    table,
)
from qkv.learn.result_kinds import expect_results


def draw_cell(draw: InputDraw) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of an RNN: w_x (E, I), w_h (E, E), bias (E,), with I = E + 1."""
    E = draw.size + 1
    return draw.normal(E, E + 1), draw.normal(E, E), draw.normal(E)


@check("rnn_step", "One step: tanh(W_x x + W_h h + b)")
def one_step(mine: ModuleType, draw: InputDraw) -> None:
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
def all_states(mine: ModuleType, draw: InputDraw) -> None:
    w_x, w_h, bias = draw_cell(draw)
    source = draw.normal(2, draw.size + 2, w_x.shape[1])
    right = recurrent_states(source, w_x, w_h, bias)
    found = mine.encode(source, w_x, w_h, bias)
    expect_dtype(found, source.dtype, "encode")
    expect_equal(
        found,
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
def gradient_through_time(mine: ModuleType, draw: InputDraw) -> None:
    w_x, w_h, bias = draw_cell(draw)
    source = draw.normal(2, draw.size + 2, w_x.shape[1])
    expect_gradients(
        mine.encode,
        recurrent_states,
        {"source": source, "w_x": w_x, "w_h": w_h, "bias": bias},
        "encode",
    )


@check("bottleneck", "The state after the last token of each row")
def last_state(mine: ModuleType, draw: InputDraw) -> None:
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
def shorter_rows(mine: ModuleType, draw: InputDraw) -> None:
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


def draw_attention(draw: InputDraw) -> dict[str, Tensor]:
    """State, states and the weights of the additive score; E = size + 1."""
    E = draw.size + 1
    return {
        "state": draw.normal(3, E),
        "states": draw.normal(3, draw.size + 2, E),
        "w_query": draw.normal(E + 1, E),
        "w_key": draw.normal(E + 1, E),
        "v": draw.normal(E + 1),
    }


def call_bahdanau(mine: ModuleType, values: dict[str, Tensor], lengths: Tensor) -> Any:
    """The student's context and weights."""
    names = ("state", "states", "w_query", "w_key", "v")
    state, states, *others = (values[name] for name in names)
    found = mine.bahdanau(state, states, lengths, *others)
    expect_results(found, ("the context (B, E)", "the weights (B, S)"), "bahdanau")
    return found


@check("bahdanau", "The weights: a softmax of the additive scores over the tokens of the source")
@right_scores_first
def additive_weights(mine: ModuleType, draw: InputDraw) -> None:
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
            "bahdanau: the score is a dot product; here it is additive": (
                (values["states"] @ values["state"].unsqueeze(2))
                .squeeze(2)
                .masked_fill(~is_token, -torch.inf)
                .softmax(-1)
            ),
            "bahdanau: the scores of padding are set to 0, which is a score like another; use "
            "minus infinity": (scores * is_token).softmax(-1),
        },
        shape="(B, S)",
        inputs={"lengths": lengths.unsqueeze(0), "scores": scores.detach()},
    )


@check("bahdanau", "The context: the states of the encoder, summed with the weights")
@right_scores_first
def context_vector(mine: ModuleType, draw: InputDraw) -> None:
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
@right_scores_first
def bahdanau_gradients(mine: ModuleType, draw: InputDraw) -> None:
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
def shifted_target(mine: ModuleType, draw: InputDraw) -> None:
    start = 1
    target = draw.integers(10, 2, draw.size + 1, low=2)
    before = target.clone()
    found = mine.teacher_forcing(target, start)
    expect_results(found, ("what it reads (B, T)", "what it must say (B, T)"), "teacher_forcing")
    first = torch.full((2, 1), start)
    expect_integers("teacher_forcing", *found)
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
def loss_of_tokens(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 2
    V = draw.size + 3
    logits = draw.normal(3, T, V)
    target = draw.integers(V, 3, T)
    lengths = draw_lengths(draw, T)
    each = -logits.log_softmax(-1).gather(2, target.unsqueeze(2)).squeeze(2)
    is_token = torch.arange(T) < lengths.unsqueeze(1)
    by_row = (each * is_token).sum(1) / lengths
    one_more = torch.arange(T) <= lengths.unsqueeze(1)
    shifted = -logits[:, :-1].log_softmax(-1).gather(2, target[:, 1:].unsqueeze(2)).squeeze(2)
    expect_equal(
        mine.target_loss(logits, target, lengths),
        library_loss(logits, target, lengths),
        "target_loss",
        {
            "target_loss: padding counts; take the mean over tokens only": each.mean(),
            "target_loss: one position of padding counts in each row; the last token of row b is "
            "token lengths[b] - 1": each[one_more].mean(),
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
