"""Batched likelihoods with shared contexts against one request at a time in float64."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.evaluation import likelihood
from qkv.evaluation.likelihood import (
    Request,
    batch_rows,
    build_rows,
    can_share_contexts,
    likelihoods,
    truncate_requests,
    worth_prepacking,
)
from qkv.models import BERT, GPT, BERTConfig, RNNLMConfig, build
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


def one_by_one(model: GPT, request: Request) -> tuple[list[float], bool]:
    ids = torch.tensor([[*request.context, *request.continuation]])
    with torch.no_grad(), unchecked():
        logprobs: Tensor = model(ids[:, :-1])[0].log_softmax(-1)  # (T, V)
    begin = len(request.context) - 1
    token_logprobs = [
        float(logprobs[begin + step, id]) for step, id in enumerate(request.continuation)
    ]
    greedy = all(
        int(logprobs[begin + step].argmax()) == id for step, id in enumerate(request.continuation)
    )
    return token_logprobs, greedy


def sample_requests(seed: int = 0, longest: int = 30) -> list[Request]:
    """Single requests, several options after one context, duplicates, and one input cut twice."""
    draw = random.Random(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(V) for _ in range(draw.randint(low, high)))

    requests = [Request(tokens(1, longest), tokens(1, 6)) for _ in range(12)]
    for _ in range(5):
        context = tokens(8, longest)
        requests += [Request(context, tokens(1, 6)) for _ in range(4)]
    context = tokens(9, 9)
    requests += [Request(context, (id,)) for id in range(4)]
    requests += [Request(context[:5], (*context[5:], 7)), requests[0], requests[14]]
    draw.shuffle(requests)
    return requests


@pytest.mark.parametrize("name", MODELS)
def test_equals_one_request_at_a_time_in_float64(name: str) -> None:
    """A batch holds one row, several, or as many as fit."""
    model = small_gpt(V, **MODELS[name]).double()
    requests = sample_requests()
    expected = [one_by_one(model, request) for request in requests]
    for batch_tokens in (1, 100, None):
        results = likelihoods(model, requests, batch_tokens=batch_tokens)
        for (logprobs, greedy), result in zip(expected, results, strict=True):
            assert result.token_logprobs == pytest.approx(logprobs, abs=1e-9)
            assert result.log_likelihood == pytest.approx(sum(logprobs), abs=1e-9)
            assert result.greedy == greedy


def test_several_cores_find_the_same_and_are_given_back() -> None:
    """Batches run in parallel threads; an error in one ends the call and restores the threads."""
    model, requests = small_gpt(V, position="rotary", kv_heads=2).double(), sample_requests()
    expected = likelihoods(model, requests, batch_tokens=64)
    torch.set_num_threads(3)
    try:
        assert likelihoods(model, requests, batch_tokens=64) == expected
        with pytest.raises(ValueError, match=r"^ids: expected 0 to 59"):
            likelihoods(model, [*requests, Request((V,), (1,))], batch_tokens=64)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.usefixtures("without_shape_checks")
def test_prepacked_weights_give_the_same_results() -> None:
    """Prepacked float32 weights are used on one core and on several, with the same results."""
    model = small_gpt(V, position="rotary")
    requests = sample_requests() + sample_requests(1) + sample_requests(2)
    assert worth_prepacking(model, list(batch_rows(build_rows(requests, share_contexts=True), 48)))
    expected = likelihoods(small_gpt(V, position="rotary").double(), requests)
    for cores in (1, 2):
        torch.set_num_threads(cores)
        try:
            results = likelihoods(model, requests, batch_tokens=48)
        finally:
            torch.set_num_threads(1)
        for one, other in zip(results, expected, strict=True):
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)


def test_some_are_greedy_and_some_are_not() -> None:
    """Continuations of several tokens are greedy exactly if greedy decoding produces them."""
    model = small_gpt(V).double()
    context = (3, 1, 4)
    generated: list[int] = []
    for _ in range(3):
        generated.append(int(model(torch.tensor([[*context, *generated]]))[0, -1].argmax()))
    requests = [
        Request(context, tuple(generated)),
        Request(context, (*generated[:-1], (generated[-1] + 1) % V)),
    ]
    assert [result.greedy for result in likelihoods(model, requests)] == [True, False]


def test_transformer_xl_reads_in_segments() -> None:
    model = small_gpt(V, context=8, memory=8, position="relative").double()
    requests = sample_requests()
    for request, result in zip(requests, likelihoods(model, requests), strict=True):
        ids, state, parts = (
            torch.tensor([[*request.context, *request.continuation]])[:, :-1],
            model.start(),
            [],
        )
        with torch.no_grad(), unchecked():
            for piece in ids.split(8, dim=1):
                parts.append(model.decode(piece, state))
        logprobs = torch.cat(parts, dim=1)[0].log_softmax(-1)[len(request.context) - 1 :]
        token_logprobs = [float(logprobs[step, id]) for step, id in enumerate(request.continuation)]
        assert result.token_logprobs == pytest.approx(token_logprobs, abs=1e-9)


def test_float32_is_near_float64() -> None:
    model, requests = small_gpt(V, position="rotary"), sample_requests()
    results = likelihoods(model, requests)
    exact = likelihoods(small_gpt(V, position="rotary").double(), requests)
    for one, other in zip(results, exact, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)


def test_logits_are_computed_only_for_continuations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are computed for at most LOGITS / V positions at a time."""
    model, requests, sizes = small_gpt(V), sample_requests(), []
    expected = likelihoods(model, requests)
    monkeypatch.setattr(likelihood, "LOGITS", 3 * V)
    logits = model.logits
    model.logits = lambda hidden: sizes.append(hidden.shape[0]) or logits(hidden)  # type: ignore[method-assign]
    results = likelihoods(model, requests)
    assert max(sizes) == 3
    assert sum(sizes) == sum(len(request.continuation) for request in set(requests))
    for one, other in zip(results, expected, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)


def test_a_context_with_several_choices_is_read_once() -> None:
    context = tuple(range(20))
    requests = [
        Request(context, (1, 2, 3)),
        Request(context, (4, 5)),
        Request(context, (6,)),
        Request(context, (7,)),
    ]
    (row,) = build_rows(requests, share_contexts=True)
    assert row.stem == context
    assert set(row.branches) == {(1, 2), (4,)}
    apart = build_rows(requests, share_contexts=False)
    assert sorted(len(row.stem) for row in apart) == [20, 21, 22]  # both of one token are one row
    assert (
        len(build_rows([Request((0,), (1, 2, 3)), Request((0,), (4, 5, 6))], share_contexts=True))
        == 2
    )  # nothing to save


def test_batches_hold_every_row_once_and_keep_to_their_size() -> None:
    rows = build_rows(sample_requests(), share_contexts=True)
    all_batches = list(batch_rows(rows, 90))
    assert sorted(map(id, rows)) == sorted(id(row) for batch in all_batches for row in batch)
    for batch in all_batches:
        longest = max(len(row.stem) for row in batch)
        branching = sum(len(branch) for row in batch for branch in row.branches)
        assert len(batch) == 1 or len(batch) * longest + branching <= 90


def test_a_batch_reaches_no_further_than_learned_positions() -> None:
    """A long stem with short options and a short stem with long ones both fill the context."""
    long, short = tuple(range(15)), tuple(range(20, 32))
    requests = [Request(long, (id, id)) for id in range(3)] + [
        Request(short, (id,) * 5) for id in range(3)
    ]
    model = small_gpt(V, context=16).double()
    assert {len(context) + len(continuation) - 1 for context, continuation in requests} == {16}
    assert {bool(row.branches) for row in build_rows(requests, share_contexts=True)} == {True}
    for request, result in zip(requests, likelihoods(model, requests), strict=True):
        assert result.token_logprobs == pytest.approx(one_by_one(model, request)[0], abs=1e-9)
    assert (
        len(list(batch_rows(build_rows(requests, share_contexts=True), 512))) == 1
    )  # without a limit they share a batch


def test_progress_counts_every_distinct_request() -> None:
    requests = sample_requests()
    calls: list[tuple[int, int]] = []
    likelihoods(
        small_gpt(V),
        requests,
        batch_tokens=64,
        progress=lambda done, total: calls.append((done, total)),
    )
    total = len(set(requests))
    assert [of for _, of in calls] == [total] * len(calls)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (total, total)


def test_dropout_is_off_and_comes_back() -> None:
    model = small_gpt(V).train()
    requests = sample_requests()
    assert likelihoods(model, requests) == likelihoods(model, requests)
    assert model.training


def test_contexts_are_truncated_from_the_left_and_counted() -> None:
    model = small_gpt(V, context=10).double()
    requests = [
        Request(tuple(range(30)), (1, 2, 3)),
        Request((5, 6), (7,)),
        Request(tuple(range(8)), (1, 2, 3)),
    ]
    fitting, truncated = truncate_requests(requests, model)
    assert truncated == 1
    assert fitting[0] == Request(
        tuple(range(22, 30)), (1, 2, 3)
    )  # 10 tokens are read, two of them of the continuation
    assert fitting[1:] == requests[1:]
    assert likelihoods(model, fitting)[0].token_logprobs == pytest.approx(
        one_by_one(model, fitting[0])[0]
    )


def test_transformer_xl_needs_no_truncation() -> None:
    model = small_gpt(V, context=8, memory=8, position="relative")
    requests = [Request(tuple(range(30)), (1, 2, 3))]
    assert truncate_requests(requests, model) == (requests, 0)


def test_only_positions_that_allow_padding_between_tokens_share_contexts() -> None:
    assert {
        name: can_share_contexts(small_gpt(V, **fields)) for name, fields in MODELS.items()
    } == {name: name in ("learned", "rotary, grouped", "sinusoidal", "none") for name in MODELS}


@pytest.mark.usefixtures("without_shape_checks")
def test_faults_are_one_sentence() -> None:
    model = small_gpt(V, context=4)
    with pytest.raises(ValueError, match=r"^context: a continuation of 6 tokens .*no room"):
        truncate_requests([Request((1,), (1, 2, 3, 4, 5, 6))], model)
    with pytest.raises(ValueError, match=r"^requests: .*one token"):
        truncate_requests([Request((), (1,))], model)
    with pytest.raises(TypeError, match=r"^model: expected a GPT"):
        likelihoods(BERT(BERTConfig(vocabulary=9, width=8, depth=1, heads=2)), [])  # type: ignore[arg-type]


@pytest.mark.gpu
def test_bf16_on_a_gpu_is_near_float64() -> None:
    requests = sample_requests()
    model = small_gpt(V, position="rotary").to("cuda", torch.bfloat16)
    exact = likelihoods(small_gpt(V, position="rotary").double(), requests)
    for one, other in zip(likelihoods(model, requests), exact, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=0.05)


def test_an_rnn_language_model_has_likelihoods() -> None:
    """They are the log-softmax of its logits, also for several continuations of one context."""
    torch.manual_seed(0)
    model = build(RNNLMConfig(vocabulary=11, width=8, depth=2, context=16)).eval()
    requests = [
        Request((1, 2, 3), (4, 5)),
        Request((1, 2, 3), (6,)),
        Request((1, 2, 3), (7, 8, 9)),
        Request((5,), (4,)),
    ]

    for request, result in zip(requests, likelihoods(model, requests), strict=True):
        ids = torch.tensor([request.context + request.continuation])
        logprobs = model(ids).log_softmax(-1)[0, len(request.context) - 1 : -1]
        expected = logprobs.gather(1, torch.tensor(request.continuation).unsqueeze(1)).flatten()
        assert result.token_logprobs == pytest.approx(expected.tolist(), abs=1e-5)
