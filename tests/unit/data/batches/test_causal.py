"""Causal batches: the target is the next token, and separate documents stay separate."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.causal import CausalData
from support.made_data import make_texts, make_tokens, same_batch

END = 2
TEXTS = [[*range(10, 20), END], [30, END], [*range(40, 63), END], [70, 71, 72, END], [80, END]]


@given(
    step=st.integers(0, 50),
    context=st.integers(1, 20),
    rows=st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_the_target_is_the_next_token(step: int, context: int, rows: int, seed: int) -> None:
    batch = CausalData(make_tokens(list(range(60))), context, rows, seed).batch(step)
    assert batch.ids.shape == batch.targets.shape == (rows, context)
    has_target = batch.targets != IGNORE
    assert torch.equal(
        batch.targets[has_target], (batch.ids + 1)[has_target]
    )  # the text counts upwards
    assert torch.equal(batch.ids, batch.ids[:, :1] + torch.arange(context))
    assert (
        batch.padding_mask is batch.documents is batch.positions is batch.target_positions is None
    )
    assert batch.tokens == rows * context
    assert bool((has_target.int().diff(dim=1) >= 0).all()), (
        "only the first positions of a row lack targets"
    )


@given(
    length=st.integers(2, 60),
    context=st.integers(1, 40),
    rows=st.integers(1, 4),
    ranks=st.integers(1, 3),
    across=st.booleans(),
)
def test_every_token_but_the_first_is_a_target_once_an_epoch(
    length: int, context: int, rows: int, ranks: int, across: bool
) -> None:
    """This holds for data shorter than the context and for any number of ranks."""
    ends = [end for end in (11, 13, 37) if end < length]
    tokens = make_texts([list(range(*part)) for part in pairwise([0, *ends, length])])
    data = CausalData(tokens, context, rows, seed=2, across_documents=across)
    epochs = 2 * rows  # after which an epoch ends with a step
    targets: list[int] = []
    for step in range(epochs * data.windows.count // rows):
        for part in data.batch(step).split(ranks):
            targets += part.targets[part.targets != IGNORE].tolist()
    expected = [token for token in range(1, length) if across or token not in ends]
    assert sorted(targets) == sorted(expected * epochs)


def test_a_text_of_700_tokens_in_a_context_of_256() -> None:
    data = CausalData(make_tokens(list(range(700))), 256, rows=1)
    assert data.steps_per_epoch == 4
    targets = torch.cat([data.batch(step).targets.flatten() for step in range(4)])
    assert sorted(targets[targets != IGNORE].tolist()) == list(range(1, 700))


def test_a_step_is_the_same_computed_directly() -> None:
    tokens = make_texts(TEXTS)
    sequential = CausalData(tokens, 5, 3, seed=1, across_documents=False)
    batches = [sequential.batch(step) for step in range(30)]
    for step in (29, 0, 17):
        assert same_batch(
            CausalData(tokens, 5, 3, seed=1, across_documents=False).batch(step), batches[step]
        )


@given(context=st.integers(1, 60), rows=st.integers(1, 4))
def test_in_order_every_token_but_the_first_is_a_target_once(context: int, rows: int) -> None:
    tokens = [token for text in TEXTS for token in text]
    data = CausalData(make_texts(TEXTS), context, rows)
    batches = list(data.ordered())
    targets = torch.cat([batch.targets[batch.targets != IGNORE] for batch in batches])
    assert targets.tolist() == tokens[1:]
    read = [
        batch.ids.flatten() if batch.padding_mask is None else batch.ids[batch.padding_mask]
        for batch in batches
    ]
    assert torch.cat(read).tolist() == tokens[:-1]
    assert (
        sum(batch.tokens for batch in batches)
        == sum(batch.count for batch in batches)
        == len(tokens) - 1
    )
    assert {batch.ids.shape[1] for batch in batches} == {context}


@given(step=st.integers(0, 50), context=st.integers(1, 30))
def test_separate_documents_are_numbered_and_positions_restart(step: int, context: int) -> None:
    """Each row is checked token by token against the documents of its tokens."""
    origin = {
        token: (number, index)
        for number, text in enumerate(TEXTS)
        for index, token in enumerate(text[:-1])
    }
    batch = CausalData(make_texts(TEXTS), context, 3, across_documents=False).batch(step)
    assert batch.documents is not None
    assert batch.positions is not None
    for ids, targets, documents, positions in zip(
        batch.ids.tolist(),
        batch.targets.tolist(),
        batch.documents.tolist(),
        batch.positions.tolist(),
        strict=True,
    ):
        document = 0
        position = 0
        for index, token in enumerate(ids):
            assert (documents[index], positions[index]) == (document, position)
            if token == END:
                assert targets[index] == IGNORE
                document += 1
                position = 0
            else:
                number, within = origin[token]
                assert targets[index] in (TEXTS[number][within + 1], IGNORE)
                position += 1


def test_without_an_end_token_the_next_document_is_no_target_either() -> None:
    data = CausalData(make_texts([[1, 2, 3], [4, 5, 6, 7]]), 6, 1, across_documents=False)
    (batch,) = data.ordered()
    assert batch.targets.tolist() == [[2, 3, IGNORE, 5, 6, 7]]
    assert batch.documents is not None
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 1]]


def test_across_documents_the_next_document_is_a_target() -> None:
    (batch,) = CausalData(make_texts([[1, 2, END], [4, 5, END]]), 5, 1).ordered()
    assert batch.targets.tolist() == [[2, END, 4, 5, END]]


def test_a_text_shorter_than_the_context_is_one_row_with_padding() -> None:
    batch = CausalData(make_tokens(list(range(5))), 8, 2).batch(0)
    assert batch.ids.tolist() == [[0, 1, 2, 3, 0, 0, 0, 0]] * 2
    assert batch.targets.tolist() == [[1, 2, 3, 4, *[IGNORE] * 4]] * 2
    assert batch.padding_mask is not None
    assert batch.padding_mask.tolist() == [[True] * 4 + [False] * 4] * 2
    with pytest.raises(ValueError, match=r"tokens: expected 2 or more.*not 1"):
        CausalData(make_tokens([5]), 8, 1)
