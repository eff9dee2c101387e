"""Likelihoods in batches, with shared contexts and few logits, against one request at a time in
float64.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.evaluation import likelihood
from qkv.evaluation.likelihood import (
    Request,
    batches,
    likelihoods,
    rows_of,
    shares_state,
    shortened,
    worth_packing,
)
from qkv.models import BERT, GPT, BERTConfig
from support.shape_checks import unchecked
from support.small_evaluation import small_gpt

V = 60
MODELS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary, grouped": {
        "position": "rotary",
        "kv_heads": 2,
        "norm": "rms",
        "activation": "swiglu",
        "tied": False,
    },
    "sinusoidal": {"position": "sinusoidal"},
    "none": {"position": "none"},
    "alibi": {"position": "alibi"},
    "window": {"window": 5},
    "strided": {"sparse": "strided", "stride": 4},
    "fixed": {"sparse": "fixed", "stride": 4},
}


def naive(model: GPT, request: Request) -> tuple[list[float], bool]:
    ids = torch.tensor([[*request.context, *request.continuation]])
    with torch.no_grad(), unchecked():
        chances: Tensor = model(ids[:, :-1])[0].log_softmax(-1)  # (T, V)
    begin = len(request.context) - 1
    words = [float(chances[begin + step, id]) for step, id in enumerate(request.continuation)]
    greedy = all(
        int(chances[begin + step].argmax()) == id for step, id in enumerate(request.continuation)
    )
    return words, greedy


def some_requests(seed: int = 0, longest: int = 30) -> list[Request]:
    """Alone, with several choices of several lengths, of one word each, repeated, and the same
    input cut elsewhere.
    """
    draw = random.Random(seed)

    def words(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(V) for _ in range(draw.randint(low, high)))

    made = [Request(words(1, longest), words(1, 6)) for _ in range(12)]
    for _ in range(5):
        context = words(8, longest)
        made += [Request(context, words(1, 6)) for _ in range(4)]
    context = words(9, 9)
    made += [Request(context, (id,)) for id in range(4)]
    made += [Request(context[:5], (*context[5:], 7)), made[0], made[14]]
    draw.shuffle(made)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_equals_one_request_at_a_time_in_float64(name: str) -> None:
    """One row in a batch, several, and as many as there is room for."""
    model = small_gpt(V, **MODELS[name]).double()
    asked = some_requests()
    expected = [naive(model, request) for request in asked]
    for batch_tokens in (1, 100, None):
        found = likelihoods(model, asked, batch_tokens=batch_tokens)
        for (words, greedy), answer in zip(expected, found, strict=True):
            assert answer.words == pytest.approx(words, abs=1e-9)
            assert answer.log_probability == pytest.approx(sum(words), abs=1e-9)
            assert answer.greedy == greedy


def test_several_cores_find_the_same_and_are_given_back() -> None:
    """Each reads batches of its own; an error of one is everybody's, and does not wait for the
    rest.
    """
    model, asked = small_gpt(V, position="rotary", kv_heads=2).double(), some_requests()
    expected = likelihoods(model, asked, batch_tokens=64)
    torch.set_num_threads(3)
    try:
        assert likelihoods(model, asked, batch_tokens=64) == expected
        with pytest.raises(ValueError, match=r"^ids: expected 0 to 59"):
            likelihoods(model, [*asked, Request((V,), (1,))], batch_tokens=64)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.usefixtures("without_shape_checks")
def test_packed_matrices_give_the_same() -> None:
    """In float32, where they are packed; some texts are enough for it, on one core and on several."""
    model = small_gpt(V, position="rotary")
    asked = some_requests() + some_requests(1) + some_requests(2)
    assert worth_packing(model, list(batches(rows_of(asked, shares=True), 48)))
    expected = likelihoods(small_gpt(V, position="rotary").double(), asked)
    for cores in (1, 2):
        torch.set_num_threads(cores)
        try:
            found = likelihoods(model, asked, batch_tokens=48)
        finally:
            torch.set_num_threads(1)
        for one, other in zip(found, expected, strict=True):
            assert one.words == pytest.approx(other.words, abs=1e-4)


def test_some_are_greedy_and_some_are_not() -> None:
    """Continuations that the model itself would say are found out as such, also of several words."""
    model = small_gpt(V).double()
    context, said = (3, 1, 4), []
    for _ in range(3):
        said.append(int(model(torch.tensor([[*context, *said]]))[0, -1].argmax()))
    asked = [Request(context, tuple(said)), Request(context, (*said[:-1], (said[-1] + 1) % V))]
    assert [each.greedy for each in likelihoods(model, asked)] == [True, False]


def test_transformer_xl_reads_in_segments() -> None:
    model = small_gpt(V, context=8, memory=8, position="relative").double()
    asked = some_requests()
    for request, answer in zip(asked, likelihoods(model, asked), strict=True):
        ids, state, parts = (
            torch.tensor([[*request.context, *request.continuation]])[:, :-1],
            model.start(),
            [],
        )
        with torch.no_grad(), unchecked():
            for piece in ids.split(8, dim=1):
                parts.append(model.decode(piece, state))
        chances = torch.cat(parts, dim=1)[0].log_softmax(-1)[len(request.context) - 1 :]
        words = [float(chances[step, id]) for step, id in enumerate(request.continuation)]
        assert answer.words == pytest.approx(words, abs=1e-9)


def test_float32_is_near_float64() -> None:
    model, asked = small_gpt(V, position="rotary"), some_requests()
    found = likelihoods(model, asked)
    exact = likelihoods(small_gpt(V, position="rotary").double(), asked)
    for one, other in zip(found, exact, strict=True):
        assert one.words == pytest.approx(other.words, abs=1e-4)


def test_logits_are_computed_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for few places at a time, whatever their number."""
    model, asked, sizes = small_gpt(V), some_requests(), []
    expected = likelihoods(model, asked)
    monkeypatch.setattr(likelihood, "LOGITS", 3 * V)
    logits = model.logits
    model.logits = lambda hidden: sizes.append(hidden.shape[0]) or logits(hidden)  # type: ignore[method-assign]
    found = likelihoods(model, asked)
    assert max(sizes) == 3
    assert sum(sizes) == sum(len(each.continuation) for each in set(asked))
    for one, other in zip(found, expected, strict=True):
        assert one.words == pytest.approx(other.words, abs=1e-5)


def test_a_context_with_several_choices_is_read_once() -> None:
    context = tuple(range(20))
    asked = [
        Request(context, (1, 2, 3)),
        Request(context, (4, 5)),
        Request(context, (6,)),
        Request(context, (7,)),
    ]
    (row,) = rows_of(asked, shares=True)
    assert row.stem == context
    assert set(row.branches) == {(1, 2), (4,)}
    apart = rows_of(asked, shares=False)
    assert sorted(len(each.stem) for each in apart) == [20, 21, 22]  # both of one word are one row
    assert (
        len(rows_of([Request((0,), (1, 2, 3)), Request((0,), (4, 5, 6))], shares=True)) == 2
    )  # nothing to save


def test_batches_hold_every_row_once_and_keep_to_their_size() -> None:
    rows = rows_of(some_requests(), shares=True)
    made = list(batches(rows, 90))
    assert sorted(map(id, rows)) == sorted(id(row) for batch in made for row in batch)
    for batch in made:
        longest = max(len(row.stem) for row in batch)
        branching = sum(len(branch) for row in batch for branch in row.branches)
        assert len(batch) == 1 or len(batch) * longest + branching <= 90


def test_a_batch_reaches_no_further_than_learned_positions() -> None:
    """A long stem with short choices and a short stem with long ones, each at the very edge of the
    context.
    """
    long, short = tuple(range(15)), tuple(range(20, 32))
    asked = [Request(long, (id, id)) for id in range(3)] + [
        Request(short, (id,) * 5) for id in range(3)
    ]
    model = small_gpt(V, context=16).double()
    assert {len(context) + len(continuation) - 1 for context, continuation in asked} == {16}
    assert {bool(row.branches) for row in rows_of(asked, shares=True)} == {True}
    for request, answer in zip(asked, likelihoods(model, asked), strict=True):
        assert answer.words == pytest.approx(naive(model, request)[0], abs=1e-9)
    assert (
        len(list(batches(rows_of(asked, shares=True), 512))) == 1
    )  # where positions have no end, they go together


def test_progress_counts_every_distinct_request() -> None:
    asked, heard = some_requests(), []
    likelihoods(
        small_gpt(V), asked, batch_tokens=64, progress=lambda done, all: heard.append((done, all))
    )
    all = len(set(asked))
    assert [of for _, of in heard] == [all] * len(heard)
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert heard[-1] == (all, all)


def test_dropout_is_off_and_comes_back() -> None:
    model = small_gpt(V).train()
    asked = some_requests()
    assert likelihoods(model, asked) == likelihoods(model, asked)
    assert model.training


def test_contexts_are_cut_from_the_left_and_counted() -> None:
    model = small_gpt(V, context=10).double()
    asked = [
        Request(tuple(range(30)), (1, 2, 3)),
        Request((5, 6), (7,)),
        Request(tuple(range(8)), (1, 2, 3)),
    ]
    kept, cut = shortened(asked, model)
    assert cut == 1
    assert kept[0] == Request(
        tuple(range(22, 30)), (1, 2, 3)
    )  # with two words of the continuation, 10 are read
    assert kept[1:] == asked[1:]
    assert likelihoods(model, kept)[0].words == pytest.approx(naive(model, kept[0])[0])


def test_transformer_xl_needs_no_cut() -> None:
    model = small_gpt(V, context=8, memory=8, position="relative")
    asked = [Request(tuple(range(30)), (1, 2, 3))]
    assert shortened(asked, model) == (asked, 0)


def test_padding_between_words_is_left_to_positions_that_can_bear_it() -> None:
    assert {name: shares_state(small_gpt(V, **fields)) for name, fields in MODELS.items()} == {
        name: name in ("learned", "rotary, grouped", "sinusoidal", "none") for name in MODELS
    }


@pytest.mark.usefixtures("without_shape_checks")
def test_faults_are_one_sentence() -> None:
    model = small_gpt(V, context=4)
    with pytest.raises(
        ValueError, match=r"^context: a continuation of 6 words leaves no room in the model's 4"
    ):
        shortened([Request((1,), (1, 2, 3, 4, 5, 6))], model)
    with pytest.raises(ValueError, match=r"^requests: expected one word or more"):
        shortened([Request((), (1,))], model)
    with pytest.raises(TypeError, match=r"^model: expected a GPT"):
        likelihoods(BERT(BERTConfig(vocabulary=9, width=8, depth=1, heads=2)), [])  # type: ignore[arg-type]


@pytest.mark.gpu
def test_bf16_on_a_gpu_is_near_float64() -> None:
    asked = some_requests()
    model = small_gpt(V, position="rotary").to("cuda", torch.bfloat16)
    exact = likelihoods(small_gpt(V, position="rotary").double(), asked)
    for one, other in zip(likelihoods(model, asked), exact, strict=True):
        assert one.words == pytest.approx(other.words, abs=0.05)
