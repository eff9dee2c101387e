"""Checks of exercise 14: the 80/10/10 rule, its loss, and blocks that see both sides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.masked import SHOWN_AS_MASK, SHOWN_AS_RANDOM
from qkv.learn.exercises.beyond.twin_models import expect_integers, randomise
from qkv.learn.exercises.language_model.matching_gpt import matching_gpt
from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    expect_equal,
    expect_gradients,
    expect_shape,
    table,
)
from qkv.nn.attention import Padding
from qkv.training.loss import loss_sum

MASK = 3
SPECIAL = torch.tensor([0, 1, 2, MASK])
"""Padding, start, end and mask."""


def draw_ids(draw: InputDraw, length: int) -> Tensor:
    """Two rows: start, tokens, end, padding; ids from 4 on are tokens of a text."""
    ids = draw.integers(20, 2, length, low=4)
    ids[:, 0] = 1
    ids[0, -1] = 2
    ids[1, -2] = 2
    ids[1, -1] = 0
    return ids


def draw_uniform(draw: InputDraw, *shape: int) -> Tensor:
    """Numbers between 0 and 1 that are not close to a border of the rules."""
    steps = torch.tensor([0.02, 0.07, 0.12, 0.3, 0.5, 0.7, 0.78, 0.82, 0.88, 0.92, 0.98])
    count = int(torch.tensor(shape).prod())
    numbers = steps.repeat(count // len(steps) + 1)[:count]
    return numbers[draw.permutation(count)].view(shape)


@check("choose", "Tokens whose number is below the rate, never special ones")
def chosen_tokens(mine: ModuleType, draw: InputDraw) -> None:
    ids = draw_ids(draw, 4 + draw.size)
    uniform = draw_uniform(draw, *ids.shape)
    uniform[:, 1] = torch.tensor([0.05, 0.95])
    uniform[:, 0] = 0.01
    is_special = torch.isin(ids, SPECIAL)
    for rate in (0.15, 0.6):
        found = mine.choose(ids, SPECIAL, uniform, rate)
        expect_bool(found, ids, "choose")
        special = (found & is_special).nonzero()
        right = (uniform < rate) & ~is_special
        inputs = {"ids": ids, "uniform": uniform}
        if len(special) and torch.equal(found, uniform < rate):
            row, position = special[0].tolist()
            raise Failed(
                f"choose: position {position} of row {row} is chosen, but {ids[row, position]} "
                "is a special token: these are never guessed",
                table("ids", ids),
                table("uniform", uniform),
            )

        expect_equal(
            found,
            right,
            f"choose, rate {rate}",
            {
                "choose: the tokens above the rate are chosen; choose those below it": (
                    (uniform > rate) & ~is_special
                ),
                "choose: special tokens are chosen, and no others": (uniform < rate) & is_special,
                "choose: rate is ignored; it is not always 0.15": (uniform < 0.15) & ~is_special,
                "choose: every token is chosen; only those with a number below the rate are": (
                    ~is_special
                ),
            },
            shape="(B, T)",
            inputs=inputs,
        )


@check("choose", "The special tokens are those that are given")
def other_special_tokens(mine: ModuleType, draw: InputDraw) -> None:
    special = torch.tensor([7, 11])
    ids = torch.tensor([[7, 1, 2, 3, 0, 11]])
    found = mine.choose(ids, special, torch.zeros(1, 6))
    expect_equal(
        found,
        torch.tensor([[False, True, True, True, True, False]]),
        "choose, with the special tokens 7 and 11 and all uniform numbers 0",
        shape="(B, T)",
        inputs={"ids": ids},
    )


@check("corrupt", "80% [mask], 10% a random token, 10% unchanged")
def rule_of_three(mine: ModuleType, draw: InputDraw) -> None:
    T = 4 + 4 * draw.size
    ids = draw_ids(draw, T)
    chosen = draw.integers(4, 2, T) > 0
    uniform = draw_uniform(draw, 2, T)
    # Every rule has a chosen token, so that no two mistakes look alike.
    chosen[0, 1:6] = True
    uniform[0, 1:6] = torch.tensor([0.3, 0.82, 0.88, 0.92, 0.98])
    chosen[1, 1] = False
    uniform[1, 1] = 0.5
    others = draw.integers(300, 2, T, low=200)
    before = ids.clone()
    mask_id = MASK + 20 * draw.size
    found = mine.corrupt(ids, chosen, uniform, others, mask_id)
    expect_integers("corrupt", found)
    if not torch.equal(before, ids):
        raise Failed("corrupt: the ids given to the function were changed; return a new tensor")

    show = partial(shown_ids, ids, others, mask_id)
    is_random = (uniform >= SHOWN_AS_MASK) & (uniform < SHOWN_AS_MASK + SHOWN_AS_RANDOM)
    expect_equal(
        found,
        show(chosen, uniform < SHOWN_AS_MASK, is_random),
        "corrupt",
        corrupt_mistakes(show, chosen, uniform, is_random),
        shape="(B, T)",
        inputs={"ids": ids, "chosen": chosen, "uniform": uniform, "random_ids": others},
    )


def corrupt_mistakes(
    show: Callable[[Tensor, Tensor, Tensor], Tensor],
    chosen: Tensor,
    uniform: Tensor,
    is_random: Tensor,
) -> dict[str, Tensor]:
    """Wrong results by what to tell the student; `show` takes what `shown_ids` takes last."""
    every = torch.ones_like(chosen)
    return {
        "corrupt: every chosen token is shown as [mask]; 10% are random, 10% unchanged": (
            show(chosen, every, ~every)
        ),
        "corrupt: 20% are shown as random tokens; 10% of the chosen stay unchanged": (
            show(chosen, uniform < 0.8, uniform >= 0.8)
        ),
        "corrupt: 20% stay unchanged; 10% of the chosen are shown as random tokens": (
            show(chosen, uniform < 0.8, ~every)
        ),
        "corrupt: tokens that were not chosen are replaced, too": (
            show(every, uniform < 0.8, is_random)
        ),
        "corrupt: the tokens that were not chosen are replaced, and the chosen stay": (
            show(~chosen, uniform < 0.8, is_random)
        ),
        "corrupt: 10% are [mask] and 80% are random; it is the other way round": (
            show(chosen, uniform < 0.1, (uniform >= 0.1) & (uniform < 0.9))
        ),
        "corrupt: the random tokens are those from 0.9 to 1; they are from 0.8 to 0.9": (
            show(chosen, uniform < 0.8, uniform >= 0.9)
        ),
        "corrupt: the random tokens end at 0.95, which makes them 15%; they end at 0.9": (
            show(chosen, uniform < 0.8, (uniform >= 0.8) & (uniform < 0.95))
        ),
        "corrupt: the random tokens end at 0.85, which makes them 5%; they end at 0.9": (
            show(chosen, uniform < 0.8, (uniform >= 0.8) & (uniform < 0.85))
        ),
        "corrupt: 90% are shown as [mask] and none stay unchanged; [mask] ends at 0.8": (
            show(chosen, uniform < 0.9, uniform >= 0.9)
        ),
    }


def shown_ids(
    ids: Tensor, others: Tensor, mask_id: int, chosen: Tensor, as_mask: Tensor, as_random: Tensor
) -> Tensor:
    """The ids, of which those chosen are shown as [mask] or as others."""
    result = ids.clone()
    result[chosen & as_random] = others[chosen & as_random]
    result[chosen & as_mask] = mask_id
    return result


@check("labels", "The id of each chosen token, IGNORE elsewhere")
def labels_of_chosen(mine: ModuleType, draw: InputDraw) -> None:
    T = 4 + draw.size
    ids = draw_ids(draw, T)
    chosen = draw.integers(2, 2, T) > 0
    chosen[:, 1] = torch.tensor([True, False])
    before = ids.clone()
    found = mine.labels(ids, chosen)
    expect_integers("labels", found)
    if not torch.equal(before, ids):
        raise Failed("labels: the ids given to the function were changed; return a new tensor")

    ignore = torch.tensor(IGNORE)
    expect_equal(
        found,
        ids.where(chosen, ignore),
        "labels",
        {
            "labels: the chosen tokens are ignored, and the others have to be guessed": (
                ids.where(~chosen, ignore)
            ),
            "labels: every token is a label; those that were not chosen are IGNORE": ids,
            "labels: a label of 0 is a token like another; use IGNORE": ids * chosen,
            "labels: positions without a label are IGNORE, which is -100": (
                ids.where(chosen, torch.tensor(-1))
            ),
            "labels: shifted by one, as for a GPT; BERT guesses the token at its own position": (
                torch.cat([ids.where(chosen, ignore)[:, 1:], ignore.expand(2, 1)], dim=1)
            ),
        },
        shape="(B, T)",
        inputs={"ids": ids, "chosen": chosen},
    )


@check("masked_loss", "The mean over the chosen positions")
def loss_of_chosen(mine: ModuleType, draw: InputDraw) -> None:
    T = 2 + draw.size
    V = 3 + draw.size
    logits = draw.normal(2, T, V)
    ids = draw.integers(V, 2, T)
    chosen = draw.integers(2, 2, T) > 0
    chosen[:, :2] = torch.tensor([[True, True], [False, True]])
    goal = ids.where(chosen, torch.tensor(IGNORE))
    each = -logits.log_softmax(-1).gather(2, ids.unsqueeze(2)).squeeze(2)
    shifted = -logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    by_row = (each * chosen).sum(1) / chosen.sum(1)
    expect_equal(
        mine.masked_loss(logits, goal),
        library_loss(logits, goal),
        "masked_loss",
        {
            "masked_loss: a sum; divide it by the number of chosen positions": (
                (each * chosen).sum()
            ),
            "masked_loss: divided by all positions; divide by the number of chosen ones": (
                (each * chosen).mean()
            ),
            "masked_loss: shifted by one, as for a GPT; BERT guesses the token at its own "
            "position": shifted[chosen[:, 1:]].mean(),
            "masked_loss: a mean of the means of rows; each chosen token counts the same": (
                by_row.mean()
            ),
        },
        shape="()",
        inputs={"labels": goal, "loss of each position": each},
    )
    expect_gradients(
        lambda scores: mine.masked_loss(scores, goal),
        lambda scores: library_loss(scores, goal),
        {"logits": logits},
        "masked_loss",
    )


@check("masked_loss", "0 if no position was chosen")
def nothing_chosen(mine: ModuleType, draw: InputDraw) -> None:
    logits = draw.normal(1, 2, 3)
    found = mine.masked_loss(logits, torch.full((1, 2), IGNORE))
    expect_shape(found, (), "masked_loss")
    if not torch.isfinite(found):
        raise Failed(
            "masked_loss: NaN if no position is chosen, 0 divided by 0; a short text may have "
            "none, and its loss is 0"
        )

    expect_equal(found, torch.zeros(()), "masked_loss, with no position chosen", shape="()")


def library_loss(logits: Tensor, goal: Tensor) -> Tensor:
    """The library's loss, with logits as features of an output layer that is the identity."""
    total = loss_sum(logits, torch.eye(logits.shape[-1]), None, goal)
    return total / (goal != IGNORE).sum()


def expect_bool(found: Any, ids: Tensor, what: str) -> None:
    """Fail unless a result is a bool tensor with one value for each id."""
    expect_shape(found, tuple(ids.shape), what, "(B, T)")
    if found.dtype != torch.bool:
        raise Failed(f"{what}: expected bool, True or False, not {found.dtype}")


@check("bidirectional_mask", "All tokens on both sides, no padding")
def tokens_on_both_sides(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 3
    ids = draw_ids(draw, T)
    for padding in (0, 2):
        found = mine.bidirectional_mask(ids, padding)
        if isinstance(found, Tensor) and found.shape == (T, T):
            raise Failed(
                "bidirectional_mask: this mask is the same for all rows, but they have different "
                "padding; expected (B, 1, 1, T)"
            )

        expect_shape(found, (2, 1, 1, T), "bidirectional_mask", "(B, 1, 1, T)")
        if found.dtype != torch.bool:
            raise Failed(f"bidirectional_mask: expected bool, not {found.dtype}")

        right = (ids != padding)[:, None, None]
        expect_equal(
            found,
            right,
            f"bidirectional_mask, padding {padding}",
            {
                "bidirectional_mask: True for padding; True is where a query may attend": ~right,
                "bidirectional_mask: padding can be seen": torch.ones_like(right),
                "bidirectional_mask: padding is not always id 0; compare with the number given": (
                    (ids != 0)[:, None, None]
                ),
            },
            inputs={"ids": ids},
        )


def new_bert(mine: ModuleType, draw: InputDraw) -> Any:
    """A small BERT with random weights."""
    model = mine.BERT(20, draw.size + 4, 4 * draw.size, 1 + draw.size // 3, 2)
    randomise(model, draw)
    return model


@check("BERT", "Every position sees the tokens on both sides, and no padding")
@torch.no_grad()
def sees_both_sides(mine: ModuleType, draw: InputDraw) -> None:
    model = new_bert(mine, draw)
    ids = draw_ids(draw, draw.size + 3)[1:]  # the row with padding
    end = ids.shape[1] - 2
    before = model.hidden(ids)
    expect_shape(before, (1, ids.shape[1], 4 * draw.size), "BERT.hidden", "(B, T, E)")

    # Another token at the end is seen from the start.
    other = ids.clone()
    other[0, end] = 19
    change = (model.hidden(other) - before).abs().amax(2)[0]
    if change[0] < 1e-6:
        raise Failed(
            f"position 0 does not see position {end}: that is the causal mask of a GPT; BERT "
            "reads both sides",
            table("ids", ids),
        )

    # Another vector of padding is not seen, by any token.
    model.token.weight[0] += torch.linspace(-1, 1, 4 * draw.size)
    change = (model.hidden(ids) - before).abs().amax(2)[0]
    if change[:-1].max() > 1e-6:
        raise Failed(
            f"position 0 sees position {end + 1}, which is padding: hand the bidirectional mask "
            "to the blocks",
            table("ids", ids),
        )


@check("BERT", "The vectors of a GPT whose blocks see both sides")
@torch.no_grad()
def equals_stack(mine: ModuleType, draw: InputDraw) -> None:
    model = new_bert(mine, draw)
    ids = draw_ids(draw, draw.size + 3)
    twin = matching_gpt(model)
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    x = twin.embedding(ids, positions)
    for padding in (0, 2):
        mask = Padding(ids != padding)
        expect_equal(
            model.hidden(ids, padding),
            twin.stack(x, positions, mask=mask),
            f"BERT.hidden, padding {padding}",
            {
                "BERT: the padding given to hidden is ignored": (
                    twin.stack(x, positions, mask=Padding(ids != 0))
                ),
                "BERT: the positions are missing": (
                    twin.stack(twin.embedding.token(ids), positions, mask=mask)
                ),
                "BERT: the last norm is missing": without_norm(twin, x, mask),
            },
            shape="(B, T, E)",
            tolerance=1e-4,
        )


@check("BERT", "Every parameter gets a gradient")
def bert_gradients(mine: ModuleType, draw: InputDraw) -> None:
    model = new_bert(mine, draw)
    model(draw_ids(draw, draw.size + 3)).square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise Failed(f"BERT: {name} gets no gradient: it would never be trained")


def without_norm(twin: Any, x: Tensor, mask: Padding) -> Tensor:
    """The output of the last block, before the norm."""
    for block in twin.stack.blocks:
        x = block(x, mask=mask)

    return x
