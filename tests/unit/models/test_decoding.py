"""Decoding with a state equals the forward pass of the whole sequence."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.models import GPT, RNN, GPTConfig, Transformer
from qkv.nn.attention import Explicit, all_of
from qkv.nn.cache import KeyValueCache, SegmentMemory
from qkv.nn.hooks import add_hook
from support.families import (
    GPT_KINDS,
    RNN_KINDS,
    RNN_LM_KINDS,
    TRANSFORMER_KINDS,
    gpt,
    rnn,
    rnn_lm,
    sources,
    transformer,
    words,
)
from support.shape_checks import unchecked

B, T, S = 3, 9, 6
SPLITS = [[5, 1, 1, 2], [9], [4, 5], [1] * 9, [0, 3, 0, 6]]
"""Shapes are checked in the first one alone: it has a prompt, single tokens and several at a time.
"""
REORDERED = torch.tensor([2, 0, 0, 1])


@pytest.mark.parametrize("kind", GPT_KINDS)
def test_cached_gpt_equals_uncached(kind: str) -> None:
    model = gpt(**GPT_KINDS[kind])
    ids = words(B, T)
    right = model(ids)
    for number, split in enumerate(SPLITS):
        state = model.start()
        assert isinstance(state, KeyValueCache)
        with unchecked() if number else nullcontext():
            steps = [model.decode(piece, state) for piece in ids.split(split, dim=1)]

        assert_close(torch.cat(steps, dim=1), right)
        assert state.length == T


@pytest.mark.parametrize("kind", GPT_KINDS)
def test_reordered_gpt_equals_reordered_rows(kind: str) -> None:
    model = gpt(**GPT_KINDS[kind])
    ids = words(B, 5)
    more = words(len(REORDERED), 3)
    state = model.start()
    model.decode(ids, state)
    state.reorder(REORDERED)
    assert_close(model.decode(more, state), model(torch.cat([ids[REORDERED], more], dim=1))[:, 5:])


def assert_cached_equals_uncached(model: Transformer | RNN) -> None:
    source = sources(model.config, B, S)
    target = words(B, T)
    padding_mask = torch.arange(S) < torch.tensor([[6], [2], [4]])
    for source_padding_mask in (None, padding_mask):
        right = model(source, target, source_padding_mask=source_padding_mask)
        for number, split in enumerate(SPLITS):
            state = model.start(source, source_padding_mask)
            with unchecked() if number else nullcontext():
                steps = [model.decode(piece, state) for piece in target.split(split, dim=1)]

            assert_close(torch.cat(steps, dim=1), right)
            assert state.length == T


def assert_reordered_equals_reordered_rows(model: Transformer | RNN) -> None:
    source = sources(model.config, B, S)
    target = words(B, 5)
    more = words(len(REORDERED), 3)
    padding_mask = torch.arange(S) < torch.tensor([[6], [2], [4]])
    state = model.start(source, padding_mask)
    model.decode(target, state)
    state.reorder(REORDERED)
    right = model(
        source[REORDERED],
        torch.cat([target[REORDERED], more], dim=1),
        source_padding_mask=padding_mask[REORDERED],
    )
    assert_close(model.decode(more, state), right[:, 5:])


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_cached_transformer_equals_uncached(kind: str) -> None:
    assert_cached_equals_uncached(transformer(**TRANSFORMER_KINDS[kind]))


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_reordered_transformer_equals_reordered_rows(kind: str) -> None:
    assert_reordered_equals_reordered_rows(transformer(**TRANSFORMER_KINDS[kind]))


def test_a_transformer_may_be_reordered_before_its_first_token() -> None:
    model = transformer()
    source = words(B, S)
    target = words(len(REORDERED), 3)
    padding_mask = torch.arange(S) < torch.tensor([[6], [2], [4]])
    state = model.start(source, padding_mask)
    state.reorder(REORDERED)
    right = model(source[REORDERED], target, source_padding_mask=padding_mask[REORDERED])
    assert_close(model.decode(target, state), right)


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_rows_that_share_a_source_equal_rows_with_their_own(kind: str) -> None:
    """Before the first token and later, with one or several tokens at a time."""
    model = transformer(**TRANSFORMER_KINDS[kind])
    source = sources(model.config, B, S)
    target = words(2 * B, 3)
    more = words(2 * B, 2)
    padding_mask = torch.arange(S) < torch.tensor([[6], [2], [4]])
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    moved = torch.tensor([1, 0, 3, 3, 4, 5])
    state = model.start(source, padding_mask)
    state.reorder(rows)
    assert state.source.shared == 2
    assert_close(
        model.decode(target, state),
        model(source[rows], target, source_padding_mask=padding_mask[rows]),
    )
    state.reorder(moved)
    right = model(
        source[rows],
        torch.cat([target[moved], more], dim=1),
        source_padding_mask=padding_mask[rows],
    )[:, 3:]
    assert_close(
        torch.cat([model.decode(token, state) for token in more.split(1, dim=1)], dim=1), right
    )


@pytest.mark.parametrize("kind", RNN_KINDS)
def test_cached_rnn_equals_uncached(kind: str) -> None:
    assert_cached_equals_uncached(rnn(**RNN_KINDS[kind]))


@pytest.mark.parametrize("kind", RNN_KINDS)
def test_reordered_rnn_equals_reordered_rows(kind: str) -> None:
    assert_reordered_equals_reordered_rows(rnn(**RNN_KINDS[kind]))


@pytest.mark.parametrize("kind", RNN_LM_KINDS)
def test_an_rnn_language_model_reads_on_as_in_one_pass(kind: str) -> None:
    model = rnn_lm(**RNN_LM_KINDS[kind])
    ids = words(B, T)
    right = model(ids)
    for split in SPLITS:
        state = model.start()
        steps = [model.decode(piece, state) for piece in ids.split(split, dim=1)]
        assert_close(torch.cat(steps, dim=1), right)
        assert state.length == T

    more = words(len(REORDERED), 3)
    state.reorder(REORDERED)
    again = model(torch.cat([ids[REORDERED], more], dim=1))[:, T:]
    assert_close(model.decode(more, state), again)


@pytest.mark.parametrize(
    "position", ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
)
def test_cached_gpt_with_left_padding_equals_each_row_alone(position: str) -> None:
    """This is how prompts of different lengths are continued in one batch."""
    model = gpt(position=position)
    lengths = [5, 2, 4]
    prompts = [words(1, n) for n in lengths]
    more = words(B, 3)
    ids = torch.zeros(B, 5, dtype=torch.long)
    padding_mask = torch.zeros(B, 5, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, 5 - lengths[row] :] = prompt
        padding_mask[row, 5 - lengths[row] :] = True

    state = model.start()
    steps = [model.decode(ids, state, padding_mask)]
    for token in more.split(1, dim=1):
        padding_mask = torch.cat([padding_mask, torch.ones(B, 1, dtype=torch.bool)], dim=1)
        steps.append(model.decode(token, state, padding_mask))

    actual = torch.cat(steps, dim=1)
    for row, prompt in enumerate(prompts):
        alone = model(torch.cat([prompt, more[row : row + 1]], dim=1))
        assert_close(actual[row, 5 - lengths[row] :], alone[0])


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "none"])
def test_cached_transformer_with_left_padded_targets_equals_each_row_alone(position: str) -> None:
    """This is how translations with different prefixes are continued in one batch."""
    model = transformer(position=position)
    source = words(B, S)
    target = words(B, T)
    begins = [0, 3, 1]
    padding_mask = torch.arange(T) >= torch.tensor(begins).unsqueeze(1)
    state = model.start(source)
    steps = [model.decode(target[:, :5], state, padding_mask[:, :5])]
    steps += [
        model.decode(target[:, t : t + 1], state, padding_mask[:, : t + 1]) for t in range(5, T)
    ]
    actual = torch.cat(steps, dim=1)
    for row, begin in enumerate(begins):
        assert_close(
            actual[row, begin:], model(source[row : row + 1], target[row : row + 1, begin:])[0]
        )


@pytest.mark.parametrize("window", [None, 3])
def test_packed_texts_can_be_continued_from_a_state(window: int | None) -> None:
    """`documents` covers all positions so far, `positions` only the new ones."""
    model = gpt(window=window)
    ids = words(1, 8)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    right = model(ids, documents=documents, positions=positions)
    state = KeyValueCache()
    first = model(ids[:, :5], documents=documents[:, :5], positions=positions[:, :5], state=state)
    rest = model(ids[:, 5:], documents=documents, positions=positions[:, 5:], state=state)
    assert_close(torch.cat([first, rest], dim=1), right)


# Transformer-XL


def in_segments(model, ids: torch.Tensor, split: list[int]) -> torch.Tensor:
    state = model.start()
    assert isinstance(state, SegmentMemory)
    return torch.cat([model.decode(piece, state) for piece in ids.split(split, dim=1)], dim=1)


@pytest.mark.parametrize("norm_placement", ["before", "after"])
@pytest.mark.parametrize("window", [None, 4])
def test_a_memory_that_holds_all_equals_one_pass(norm_placement: str, window: int | None) -> None:
    model = gpt(position="relative", memory=T, norm_placement=norm_placement, window=window)
    ids = words(B, T)
    right = model(ids)
    for split in SPLITS:
        assert_close(in_segments(model, ids, split), right)


@pytest.mark.parametrize("memory", [1, 2, 5])
@pytest.mark.parametrize("split", [[3, 3, 3], [4, 5], [1] * 9, [2, 6, 1]])
@pytest.mark.parametrize("kind", [{}, {"window": 3}, {"sparse": "strided", "stride": 3}])
def test_a_short_memory_equals_a_pass_that_sees_as_far(
    memory: int, split: list[int], kind: dict[str, Any]
) -> None:
    """In every layer, a token attends to its segment so far and `memory` positions before it."""
    model = gpt(position="relative", memory=memory, **kind)
    ids = words(B, T)
    allowed = torch.zeros(T, T, dtype=torch.bool)
    begin = 0
    for length in split:
        for q in range(begin, begin + length):
            allowed[q, max(0, begin - memory) : q + 1] = True

        begin += length

    positions = torch.arange(T).unsqueeze(0)
    mask = all_of(Explicit(allowed), model.config.sparsity())
    hidden = model.stack(model.embedding(ids, positions), positions, mask=mask)
    assert_close(in_segments(model, ids, split), model.logits(hidden))


def test_no_gradient_flows_into_the_memory() -> None:
    model = gpt(position="relative", memory=4)
    ids = words(B, T)
    state = model.start()
    first = model.embedding(ids[:, :4], torch.arange(4).unsqueeze(0)).detach().requires_grad_()
    positions = torch.arange(T).unsqueeze(0)
    model.stack(first, positions[:, :4], state=state)
    second = model.embedding(ids[:, 4:], positions[:, 4:]).detach().requires_grad_()
    model.stack(second, positions[:, 4:], state=state).sum().backward()
    assert first.grad is None
    assert second.grad is not None
    assert second.grad.any()


def test_the_memory_changes_the_logits() -> None:
    model = gpt(position="relative", memory=4)
    ids = words(B, T)
    other = ids.clone()
    other[:, 2] = (other[:, 2] + 1) % 13
    one = in_segments(model, ids, [4, 5])
    two = in_segments(model, other, [4, 5])
    assert not torch.allclose(one[:, 4:], two[:, 4:])


def test_reordered_memory_equals_reordered_rows() -> None:
    model = gpt(position="relative", memory=3)
    ids = words(B, 5)
    more = words(len(REORDERED), 3)
    state = model.start()
    fresh = model.start()
    model.decode(ids, state)
    state.reorder(REORDERED)
    model.decode(ids[REORDERED], fresh)
    assert_close(model.decode(more, state), model.decode(more, fresh))


@pytest.mark.parametrize("memory", [2, 3, 20])
def test_left_padding_with_a_memory_equals_each_row_alone(memory: int) -> None:
    model = gpt(position="relative", memory=memory)
    padding_mask = torch.arange(T) >= torch.tensor([[0], [2], [5]])
    ids = words(B, T)
    state = model.start()
    steps = []
    captured = 0
    for piece in ids.split([6, 1, 2], dim=1):
        captured += piece.shape[1]
        steps.append(model.decode(piece, state, padding_mask[:, :captured]))

    actual = torch.cat(steps, dim=1)
    for row, begin in enumerate([0, 2, 5]):
        split = [6 - begin, 1, 2]
        assert_close(actual[row, begin:], in_segments(model, ids[row : row + 1, begin:], split)[0])


def test_a_pass_that_broke_off_does_not_count() -> None:
    """After an interrupted pass, the same tokens can be given again."""
    model = gpt(depth=3)
    ids = words(2, 6)
    state = model.start()
    for stop in (0, 5):  # before anything is remembered, and later

        def fail(value: torch.Tensor, name: str) -> None:
            raise KeyboardInterrupt

        with (
            add_hook(model, "stack.blocks.1.attention.query", fail),
            pytest.raises(KeyboardInterrupt),
        ):
            model.decode(ids[:, stop:], state)

        with (
            add_hook(model, "stack.blocks.1.feed_forward.hidden", fail),
            pytest.raises(KeyboardInterrupt),
        ):
            model.decode(ids[:, stop:], state)

        if stop == 0:
            model.decode(ids[:, :5], state)

    assert state.length == 5
    assert_close(model.decode(ids[:, 5:], state), model(ids)[:, 5:])


def test_a_memory_whose_pass_broke_off_is_refused() -> None:
    model = gpt(depth=2, position="relative", memory=4)
    ids = words(1, 3)
    state = model.start()

    def fail(value: torch.Tensor, name: str) -> None:
        raise KeyboardInterrupt

    with add_hook(model, "stack.blocks.0.after", fail), pytest.raises(KeyboardInterrupt):
        model.decode(ids, state)

    with pytest.raises(ValueError, match=r"state: .*earlier"):
        model.decode(ids, state)


def test_transformer_xl_decodes_padded_rows_longer_than_a_segment() -> None:
    config = GPTConfig(
        vocabulary=10, context=4, memory=4, width=8, heads=2, depth=2, position="relative"
    )
    model = GPT(config).double().eval()
    ids = torch.randint(10, (2, 6))
    padding_mask = torch.ones(2, 6, dtype=torch.bool)
    padding_mask[0, :2] = False
    whole = model.decode(ids, model.start(), padding_mask)
    state = model.start()
    parts = [model.decode(ids[:, :4], state, padding_mask[:, :4])]
    parts.append(model.decode(ids[:, 4:], state, padding_mask))
    assert_close(whole, torch.cat(parts, dim=1))
