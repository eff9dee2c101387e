"""Checks of exercise 9: the student's GPT equals the library's with the same weights."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.learn.exercises.language_model.matching_gpt import draw_gpt, matching_gpt
from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    compare,
    expect_equal,
    expect_gradients,
    expect_shape,
    is_close,
    table,
)
from qkv.learn.result_kinds import expect_number
from qkv.training.loss import loss_sum

GIVEN = ("token.", "position.", "blocks.", "norm.")
"""How the names of the given parameters begin."""


@check("hidden", "No position sees a later one")
def hidden_is_causal(mine: ModuleType, draw: InputDraw) -> None:
    model = draw_gpt(mine, draw)
    T = draw.size + 1
    ids = draw.integers(draw.size + 3, 1, T)
    before = model.hidden(ids)
    expect_shape(before, (1, T, 4 * draw.size), "hidden", "(B, T, E)")
    for changed in range(1, T):
        other = ids.clone()
        other[0, changed] = (ids[0, changed] + 1) % (draw.size + 3)
        after = model.hidden(other)
        for position in range(changed):
            if not is_close(after[0, position], before[0, position], 1e-5):
                raise Failed(
                    f"position {position} sees position {changed}: a causal mask forbids it",
                    table("ids", ids),
                    table(f"ids with another token at position {changed}", other),
                    compare("hidden states after and before the change", after[0], before[0], 1e-5),
                )


@check("hidden", "Embeddings, all blocks in turn, the last norm")
def hidden_states(mine: ModuleType, draw: InputDraw) -> None:
    model = draw_gpt(mine, draw)
    ours = matching_gpt(model)
    for T in (draw.size + 2, draw.size + 3):  # at last the whole context
        ids = draw.integers(draw.size + 3, 2, T)
        found = model.hidden(ids)
        with torch.no_grad():
            expect_equal(
                found,
                ours.hidden(ids),
                "hidden",
                hidden_mistakes(model, ids),
                shape="(B, T, E)",
                inputs={"ids": ids},
                tolerance=1e-4,
            )


def hidden_mistakes(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """What hidden returns after known mistakes."""
    T = ids.shape[1]
    context = len(model.position.weight)
    blocks = list(model.blocks)
    first = blocks[:1] * len(blocks)
    mistakes = {
        "hidden is put together well, but a block does not compute what exercise 7 asks for: "
        "run the checks of ex07_block.py again": walk(model, ids),
        "hidden: the position embedding is missing": walk(model, ids, positions=None),
        "hidden: the position embedding is looked up with token ids; "
        "it belongs to the positions 0, 1, 2 ...": walk(model, ids, positions=ids % context),
        "hidden: the token embedding is multiplied by sqrt(E), as in the first Transformer; "
        "a GPT adds it as it is": walk(model, ids, scale=model.token.weight.shape[1] ** 0.5),
        "hidden: the last norm is missing": walk(model, ids, final_norm=False),
        "hidden: the norm comes after every block; it comes once, after the last": walk(
            model, ids, norm_each=True
        ),
        "hidden: the first block is used every time; each block has weights of its own": walk(
            model, ids, blocks=first
        ),
        "hidden: only the last block counts; a block reads what the one before it returns": walk(
            model, ids, blocks=[model.blocks[-1]]
        ),
        "hidden: only the first block counts; is return inside the loop?": walk(
            model, ids, blocks=[model.blocks[0]]
        ),
        "hidden: these are the embeddings without the blocks; "
        "is what a block returns given a name?": walk(model, ids, blocks=[]),
        "hidden: the blocks come in reverse order": walk(model, ids, blocks=blocks[::-1]),
        "hidden: the position embedding is added before every block; it is added once": walk(
            model, ids, positions_each=True
        ),
        "hidden: x is added to what a block returns; the block has done that already": walk(
            model, ids, blocks=[lambda x, mask, block=block: x + block(x, mask) for block in blocks]
        ),
        "hidden: the last norm is not self.norm, which has a weight and a bias": F.layer_norm(
            walk(model, ids, final_norm=False), model.token.weight.shape[1:]
        ),
    }
    if context > T:
        shifted = walk(model, ids, positions=torch.arange(1, T + 1))
        mistakes["hidden: positions are counted from 1; the first position is 0"] = shifted

    return mistakes


DEFAULT = object()


def walk(
    model: Any,
    ids: Tensor,
    *,
    positions: Any = DEFAULT,
    scale: float = 1.0,
    blocks: Any = None,
    norm_each: bool = False,
    positions_each: bool = False,
    final_norm: bool = True,
) -> Tensor:
    """The hidden states by the student's own blocks, with known mistakes."""
    T = ids.shape[1]
    x = scale * model.token(ids)
    where = torch.arange(T) if positions is DEFAULT else positions
    if where is not None:
        x = x + model.position(where)

    for block in model.blocks if blocks is None else blocks:
        if positions_each:
            # The mistake adds it in the loop as well as, or instead of, before it
            x = x + model.position(torch.arange(T))

        x = block(x, torch.ones(T, T, dtype=torch.bool).tril())
        if norm_each:
            x = model.norm(x)

    return model.norm(x) if final_norm and not norm_each else x


@check("forward", "The output layer is the token embedding")
def tied_output(mine: ModuleType, draw: InputDraw) -> None:
    model = draw_gpt(mine, draw)
    T = draw.size + 2
    ids = draw.integers(draw.size + 3, 2, T)
    found = model(ids)
    expect_shape(found, (2, T, draw.size + 3), "logits", "(B, T, V)")
    for name, _ in model.named_parameters():
        if not name.startswith(GIVEN):
            raise Failed(
                f"forward: the parameter {name} is new; the output layer is tied, so its matrix is "
                "self.token.weight and it has no other parameter"
            )

    again = model(ids)
    if not is_close(found, again, 1e-5):
        raise Failed(
            "forward: two passes over the same ids give different logits; is a layer made anew in "
            "forward? The output layer is tied to self.token.weight",
            compare("logits of the first and the second pass", found, again, 1e-5),
        )

    with torch.no_grad():
        hidden = model.hidden(ids)
        logits = matching_gpt(model)(ids)
        expect_equal(
            found,
            logits,
            "logits",
            {
                "forward: these are probabilities, after a softmax; the logits come before it": (
                    logits.softmax(-1)
                ),
                "forward: these are log-probabilities; the logits come before a softmax": (
                    logits.log_softmax(-1)
                ),
                "forward: the logits are divided by sqrt(E)": logits / hidden.shape[-1] ** 0.5,
                "forward: the last norm is applied twice; hidden has applied it already": (
                    model.norm(hidden) @ model.token.weight.T
                ),
            },
            shape="(B, T, V)",
            inputs={"ids": ids},
            tolerance=1e-4,
        )


@check("forward", "The token embedding gets its gradient from both ends")
def forward_gradients(mine: ModuleType, draw: InputDraw) -> None:
    model = draw_gpt(mine, draw)
    ours = matching_gpt(model)
    ids = draw.integers(draw.size + 3, 2, draw.size + 2)
    weights = draw.normal(2, draw.size + 2, draw.size + 3)

    logits = model(ids)
    if not logits.requires_grad:
        raise Failed("forward: the logits have no gradient: were they detached?")

    (logits * weights).sum().backward()
    (ours(ids) * weights).sum().backward()
    last_norm = ours.stack.norm
    assert last_norm is not None
    pairs = {
        "self.token.weight": (model.token.weight, ours.embedding.token.weight),
        "self.position.weight": (model.position.weight, ours.embedding.position.weight),
        "self.norm.weight": (model.norm.weight, last_norm.gain),
    }
    for name, (mine_weight, our_weight) in pairs.items():
        found = torch.zeros_like(mine_weight) if mine_weight.grad is None else mine_weight.grad
        expected = our_weight.grad
        assert expected is not None
        if not is_close(found, expected, 1e-3):
            raise Failed(
                f"forward: the logits are right, but the gradient of {name} is not; "
                "is something detached?",
                compare(f"gradient of {name}", found, expected, 1e-3),
            )


@check("next_token_loss", "Position t predicts the token at t + 1")
def shifted_loss(mine: ModuleType, draw: InputDraw) -> None:
    B, T, V = 2, draw.size + 2, draw.size + 3
    logits = 2 * draw.normal(B, T, V)
    ids = draw.integers(V, B, T)

    def loss(first: slice, second: slice, scores: Tensor = logits) -> Tensor:
        return F.cross_entropy(scores[:, first].reshape(-1, V), ids[:, second].reshape(-1))

    right = library_loss(logits, ids)
    all_but_last, all_but_first = slice(None, -1), slice(1, None)
    probabilities = logits.softmax(-1)
    expect_equal(
        mine.next_token_loss(logits, ids),
        right,
        "next_token_loss",
        {
            "next_token_loss: the shift is missing: position t predicts the token at t, "
            "which it has read already": loss(slice(None), slice(None)),
            "next_token_loss: logits and ids are both shifted, so position t still predicts the "
            "token at t; leave out the last position of the logits and the first of the ids": loss(
                all_but_first, all_but_first
            ),
            "next_token_loss: the last position of both is left out, so position t still predicts "
            "the token at t; of the ids, leave out the first": loss(all_but_last, all_but_last),
            "next_token_loss: shifted by two: position t predicts the token at t + 2": loss(
                slice(None, -2), slice(2, None)
            ),
            "next_token_loss: shifted in the wrong direction: position t predicts the token "
            "before it": loss(all_but_first, all_but_last),
            "next_token_loss: the last position predicts the first token; it has no next token "
            "and no loss": F.cross_entropy(logits.reshape(-1, V), ids.roll(-1, 1).reshape(-1)),
            "next_token_loss: a sum over all positions, not their mean": right * B * (T - 1),
            "next_token_loss: a sum over positions, divided by B alone": right * (T - 1),
            "next_token_loss: the sum is divided by B T, but only B (T - 1) positions have a "
            "next token": right * (T - 1) / T,
            "next_token_loss: the softmax is taken of probabilities, so a softmax twice; "
            "F.cross_entropy takes logits": loss(all_but_last, all_but_first, probabilities),
            "next_token_loss: only the first sequence of the batch counts": library_loss(
                logits[:1], ids[:1]
            ),
            "next_token_loss: the sign is wrong; the loss is -log of a probability": -right,
            "next_token_loss: this is the perplexity; the loss is its logarithm": right.exp(),
        },
        inputs={"ids": ids, "logits of the first sequence": logits[0]},
    )


def library_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean over all targets of the library's loss."""
    V = logits.shape[-1]
    targets = ids[:, 1:]
    return loss_sum(logits[:, :-1], torch.eye(V), None, targets) / targets.numel()


@check("next_token_loss", "It has a gradient for the logits")
def loss_gradient(mine: ModuleType, draw: InputDraw) -> None:
    ids = draw.integers(draw.size + 3, 2, draw.size + 2)
    logits = draw.normal(2, draw.size + 2, draw.size + 3)
    expect_gradients(
        lambda scores: mine.next_token_loss(scores, ids).reshape(1),
        lambda scores: library_loss(scores, ids).reshape(1),
        {"the logits": logits},
        "next_token_loss",
    )


@check("perplexity", "V if all V tokens are equally likely")
def perplexity_of_loss(mine: ModuleType, draw: InputDraw) -> None:
    V = 3 * draw.size
    uniform = torch.tensor(float(V)).log()
    for loss in (uniform, draw.normal(1)[0].abs()):
        expect_number(
            mine.perplexity(loss),
            float(loss.exp()),
            f"the perplexity of a loss of {float(loss):.3g}",
            {
                "perplexity: the loss is in natural logarithms, not to the base 2": float(2**loss),
                "perplexity: exp of the loss, not of minus the loss": float((-loss).exp()),
            },
        )


@check("count_parameters", "As many as the GPT has")
def parameters_of_sizes(mine: ModuleType, draw: InputDraw) -> None:
    V, context, E, depth = 2 * draw.size + 5, draw.size + 2, 2 * draw.size, draw.size
    model = mine.GPT(V, context, E, depth, 2)
    right = sum(parameter.numel() for parameter in model.parameters())
    expect_number(
        mine.count_parameters(V, context, E, depth),
        right,
        f"the number of parameters with V = {V}, context = {context}, E = {E}, depth = {depth}",
        {
            "count_parameters: the output layer is counted, too; it is tied, "
            "the token embedding once more": right + V * E,
            "count_parameters: the biases of the linear layers are missing": right - 9 * E * depth,
            "count_parameters: the norms of the blocks are missing": right - 4 * E * depth,
            "count_parameters: the last norm is missing": right - 2 * E,
            "count_parameters: all norms are missing": right - 4 * E * depth - 2 * E,
            "count_parameters: the position embedding is missing": right - context * E,
            "count_parameters: only one block is counted": right
            - (depth - 1) * (12 * E * E + 13 * E),
        },
        tolerance=1e-9,
    )
