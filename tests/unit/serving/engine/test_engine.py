"""Engine: requests that join and leave at any step get the same tokens as alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.generation import beam_search, generate, row_seeds
from qkv.generation.sampling import distribution
from qkv.generation.sampling_params import SamplingParams, process_logits
from qkv.generation.text import complete, prompt_ids
from qkv.generation.translate import translate
from qkv.models import GPT, RNN, Transformer
from qkv.nn.hooks import add_hook
from qkv.serving.engine import engine, sampler
from qkv.serving.engine.generation_request import RequestRefused
from qkv.text import train
from support.engines import WORDS, Steps
from support.families import GPT_KINDS, RNN_KINDS, TRANSFORMER_KINDS, gpt, rnn, transformer
from support.sentences import SENTENCES

PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8, 9], [10, 11, 12, 1, 2, 3, 4], [6], [1, 2, 3, 4, 5, 6]]
MORE: dict[str, dict[str, Any]] = {
    "transformer-xl": {"position": "relative", "memory": 5, "context": 4}
}


POSITIONWISE = ("activation", "norm", "rms", "product", "no biases")
"""Variants that treat every position alike, so that batching cannot affect them."""


def batch_sensitive(kinds: dict[str, Any]) -> list[str]:
    return [kind for kind in kinds if not kind.startswith(POSITIONWISE)]


def model_of(kind: str) -> GPT:
    return gpt(**(GPT_KINDS | MORE)[kind])


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", batch_sensitive(GPT_KINDS | MORE))
@pytest.mark.parametrize(
    "choice",
    [
        SamplingParams(temperature=0),
        SamplingParams(top_k=9, repetition=1.2),
        SamplingParams(minimum=5),
    ],
)
def test_requests_that_join_and_leave_get_the_same_tokens_as_alone(
    kind: str, choice: SamplingParams
) -> None:
    model = model_of(kind)
    steps = Steps(model, rows=4, tokens=3, cache=1 << 20)
    handles = []
    for number, prompt in enumerate(PROMPTS):
        handles.append(
            steps.request(
                prompt, max_tokens=5 + number % 3, sampling=choice, seed=number, end_ids=(6,)
            )
        )
        steps.step(number % 3)
    steps.finish()
    for number, (prompt, handle) in enumerate(zip(PROMPTS, handles, strict=True)):
        alone = generate(
            model,
            [prompt],
            length=5 + number % 3,
            sampling_params=choice,
            seed=row_seeds(number, 1),
            end=6,
        )
        assert steps.ids(handle) == alone
    assert steps.used == 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", batch_sensitive(TRANSFORMER_KINDS))
def test_translators_get_the_same_tokens_as_alone(kind: str) -> None:
    check_translator(transformer(**TRANSFORMER_KINDS[kind]))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", RNN_KINDS)
def test_rnns_get_the_same_tokens_as_alone(kind: str) -> None:
    check_translator(rnn(**RNN_KINDS[kind]))


def check_translator(model: Transformer | RNN) -> None:
    """Sampling and beam search in one batch give what each gives alone."""
    sources = [[token_id % 6 for token_id in prompt] for prompt in PROMPTS]
    steps, start = Steps(model, rows=12, cache=1 << 20), WORDS.start
    assert start is not None
    drawn, searched = [], []
    for number, source in enumerate(sources):
        drawn.append(
            steps.request(
                source,
                max_tokens=6,
                sampling=SamplingParams(temperature=0.9),
                seed=number,
                end_ids=(2,),
                samples=2,
            )
        )
        steps.step(number % 2)
        searched.append(steps.request(source, max_tokens=7, end_ids=(2,), beams=3, samples=2))
        steps.step(number % 3)
    steps.finish()
    for number, source in enumerate(sources):
        row = torch.tensor([source])
        alone = translate(
            model, row, start=start, end=2, length=6, temperature=0.9, seed=number, samples=2
        )
        assert steps.ids(drawn[number]) == alone
        (best,) = beam_search(model, [source], start=start, end=2, length=7, beams=3, n_best=2)
        expected = [hypothesis.ids for hypothesis in best if hypothesis.ids]
        assert [ids for ids in steps.ids(searched[number]) if ids] == expected
        scores = [chunk.score for chunk in steps.chunks(searched[number])]
        assert scores == pytest.approx([hypothesis.score for hypothesis in best])
    assert steps.used == 0


def test_a_gpt_beam_search_equals_beam_search() -> None:
    model = gpt(position="rotary")
    steps = Steps(model, rows=9, cache=1 << 20)
    handles = [
        steps.request(prompt, max_tokens=6, end_ids=(2,), beams=4, samples=3) for prompt in PROMPTS
    ]
    steps.finish()
    for prompt, handle in zip(PROMPTS, handles, strict=True):
        (best,) = beam_search(model, [prompt], end=2, length=6, beams=4, n_best=3)
        assert [chunk.score for chunk in steps.chunks(handle)] == pytest.approx(
            [hypothesis.score for hypothesis in best]
        )


# The cache


def bytes_for(model: GPT, positions: int) -> int:
    """Bytes of a cache with `positions` positions, besides the scratch block."""
    config = model.config
    return (
        (positions // 16 + 1)
        * 16
        * 2
        * config.depth
        * (config.kv_heads or config.heads)
        * config.width_of_head
        * 8
    )


@pytest.mark.usefixtures("without_shape_checks")
def test_a_full_cache_preempts_the_last_sequence_without_changing_its_tokens() -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=8, cache=bytes_for(model, 96))
    stores = [keys.data_ptr() for keys in steps.engine.runner.pages.keys]
    handles = [
        steps.request(
            [number, 1, 2], max_tokens=40, sampling=SamplingParams(repetition=1.1), seed=number
        )
        for number in range(6)
    ]
    while steps.engine.step():
        assert steps.used <= steps.engine.scheduler.blocks.total == 6
    assert steps.engine.metrics()["preempted"] > 0, "no sequence was preempted"
    for number, handle in enumerate(handles):
        alone = generate(
            model, [[number, 1, 2]], length=40, repetition=1.1, seed=row_seeds(number, 1)
        )
        assert steps.ids(handle) == alone
    assert steps.used == 0
    assert [keys.data_ptr() for keys in steps.engine.runner.pages.keys] == stores
    assert steps.engine.metrics()["cache_bytes"] <= bytes_for(model, 96)


@pytest.mark.usefixtures("without_shape_checks")
def test_prompt_logprobs_are_reported_once_also_after_preemption() -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=8, tokens=5, cache=bytes_for(model, 96))
    handles = [
        steps.request(
            [number, *range(12)], max_tokens=30, logprobs=0, prompt_logprobs=2, seed=number
        )
        for number in range(6)
    ]
    steps.finish()
    assert steps.engine.metrics()["preempted"] > 0
    for number, handle in enumerate(handles):
        (generated,) = generate(model, [[number, *range(12)]], length=30, seed=row_seeds(number, 1))
        assert steps.ids(handle) == [[number, *range(12), *generated]]


def test_a_shared_prefix_is_computed_once() -> None:
    model, prompt = gpt(context=64), [index % 13 for index in range(40)]
    steps = Steps(model, rows=8, cache=bytes_for(model, 1024))
    first = steps.request(prompt, max_tokens=5, seed=1, samples=3)
    steps.finish()
    # Of the other two samples, only what follows the full blocks
    assert steps.engine.counts["prompt_tokens"] == 40 + 2 * 8
    again = steps.request([*prompt, *steps.ids(first)[0], 3], max_tokens=5, seed=2)
    steps.finish()
    assert steps.engine.counts["prompt_tokens"] == 40 + 2 * 8 + 46 - 32
    assert steps.ids(first) == generate(model, [prompt], length=5, seed=1, samples=3)
    longer = [*prompt, *steps.ids(first)[0], 3]
    assert steps.ids(again) == generate(model, [longer], length=5, seed=row_seeds(2, 1))


def test_prefixes_are_not_shared_with_other_heads_off() -> None:
    """An ablated head changes the keys of later layers, so such prefixes are cached separately."""
    model, prompt = gpt(context=64), [index % 13 for index in range(40)]
    steps = Steps(model, rows=8, cache=bytes_for(model, 1024))
    handles = [
        steps.request(prompt, max_tokens=9, sampling=SamplingParams(temperature=0), heads_off=off)
        for off in ((), ((0, 1),), ())
    ]
    steps.finish()
    again = steps.request(
        prompt, max_tokens=9, sampling=SamplingParams(temperature=0), heads_off=((0, 1),)
    )
    steps.finish()
    plain = generate(model, [prompt], length=9, temperature=0)

    def zero_head(value: torch.Tensor, name: str) -> torch.Tensor:
        value = value.clone()
        value[:, 1] = 0
        return value

    with add_hook(model, "stack.blocks.0.attention.heads", zero_head):
        changed = generate(model, [prompt], length=9, temperature=0)
    assert changed != plain
    assert [steps.ids(handle) for handle in handles] == [plain, changed, plain]
    assert steps.ids(again) == changed


# Output


def test_logprobs_equal_those_of_a_full_forward_pass() -> None:
    model = gpt()
    steps = Steps(model, rows=4, tokens=3, cache=1 << 20)
    sampling = SamplingParams(temperature=0.7, top_k=6, frequency=0.3)
    handles = [
        steps.request(
            prompt, max_tokens=4, logprobs=5, prompt_logprobs=3, seed=7, sampling=sampling
        )
        for prompt in PROMPTS[:4]
    ]
    beside = steps.request(PROMPTS[4], max_tokens=4, seed=7)
    steps.finish()
    assert steps.ids(beside) == generate(model, [PROMPTS[4]], length=4, seed=row_seeds(7, 1))
    for prompt, handle in zip(PROMPTS, handles, strict=False):
        tokens = [token for chunk in steps.chunks(handle) for token in chunk.tokens]
        text = [token.id for token in tokens]
        assert text[: len(prompt)] == prompt
        with torch.no_grad():
            logits = model(torch.tensor([text]))[0]
        expected = logits.log_softmax(-1)
        assert tokens[0].logprob is None
        for position in range(1, len(text)):
            assert tokens[position].logprob == pytest.approx(
                float(expected[position - 1, text[position]]), abs=1e-5
            )
            count = 5 if position >= len(prompt) else 3
            values, ids = expected[position - 1].topk(count)
            assert [other.id for other in tokens[position].alternatives] == ids.tolist()
            assert [other.logprob for other in tokens[position].alternatives] == pytest.approx(
                values.tolist(), abs=1e-5
            )
        for position in range(len(prompt), len(text)):
            counts = torch.bincount(
                torch.tensor(text[len(prompt) : position], dtype=torch.int64), minlength=13
            )
            drawn = distribution(
                logits[position - 1 : position] - 0.3 * counts, temperature=0.7, top_k=6
            )[0]
            for other in tokens[position].alternatives:
                assert other.probability == pytest.approx(float(drawn[other.id]), abs=1e-5)


def test_a_prompt_can_be_scored_without_generating() -> None:
    steps = Steps(gpt(), cache=1 << 20)
    handle = steps.request([1, 2, 3], max_tokens=0, prompt_logprobs=0)
    steps.finish()
    assert [token.id for chunk in steps.chunks(handle) for token in chunk.tokens] == [1, 2, 3]
    assert steps.chunks(handle)[-1].reason == "length"
    assert steps.used == 0


@pytest.mark.parametrize("stream", [False, True])
def test_output_ends_before_a_stop_string(stream: bool) -> None:
    tokenizer = train("characters", SENTENCES, 40)
    model = gpt(vocabulary=tokenizer.vocabulary, context=128)
    steps = Steps(model, tokenizer, rows=8, cache=1 << 22)
    how: dict[str, Any] = {"length": 60, "end": (), "seed": 3, "samples": 2}
    stop = complete(model, tokenizer, ["the"], **how)[0][20:23]
    prompt = prompt_ids(tokenizer, "the")
    handle = steps.request(prompt, max_tokens=60, seed=3, samples=2, stop=(stop,), stream=stream)
    steps.finish()
    texts = ["", ""]
    for chunk in steps.chunks(handle):
        texts[chunk.sample] += chunk.text
    assert texts == complete(model, tokenizer, ["the"], stop=[stop], **how)
    assert steps.chunks(handle)[-1].reason in ("stop", "length", "end")
    assert {
        chunk.reason for chunk in steps.chunks(handle) if chunk.sample == 0 and chunk.reason
    } == {"stop"}
    assert len(steps.chunks(handle)) == 2 if not stream else len(steps.chunks(handle)) > 20


def test_a_full_context_ends_a_sequence() -> None:
    model = gpt(context=16)
    steps = Steps(model, cache=1 << 20)
    handle = steps.request([1, 2, 3], max_tokens=100)
    steps.finish()
    (generated,) = steps.ids(handle)
    assert len(generated) == 14  # the last token is never read
    assert steps.chunks(handle)[-1].reason == "context"
    with pytest.raises(ValueError, match=r"prompt: 17 tokens .*context of 16"):
        steps.request([1] * 17, max_tokens=1)


# Aborts and deadlines


def test_an_aborted_request_is_dropped_within_a_step() -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=4, cache=1 << 20)
    stays, goes = (
        steps.request(prompt, max_tokens=30, seed=1, samples=2) for prompt in PROMPTS[:2]
    )
    waits = steps.request(PROMPTS[2], max_tokens=30, seed=1)
    steps.step(5)
    used = steps.used
    goes.abort()
    waits.abort()
    steps.step()
    assert steps.used < used
    running = steps.engine.scheduler.running
    assert not any(sequence.handle in (goes, waits) for sequence in running)
    assert steps.engine.waiting == 0
    steps.finish()
    assert steps.ids(stays) == generate(model, PROMPTS[:1], length=30, seed=1, samples=2)
    assert steps.used == 0
    assert steps.engine.counts["cancelled"] == 2


def test_a_late_request_ends_with_its_tokens_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(engine, "time", clock)
    model = gpt(context=64)
    steps = Steps(model, rows=2, cache=1 << 20)
    late = steps.request(PROMPTS[0], max_tokens=50, seed=1, deadline=101.0)
    steps.step(3)
    waits = steps.request(PROMPTS[0], max_tokens=50, seed=1, samples=2, deadline=101.0)
    searches = steps.request(PROMPTS[0], max_tokens=9, end_ids=(2,), beams=2, deadline=101.0)
    stays = steps.request(PROMPTS[1], max_tokens=5, seed=1)
    clock.now = 102.0
    steps.finish()
    assert steps.chunks(late)[-1].reason == "deadline"
    assert (
        steps.ids(late)[0] == generate(model, PROMPTS[:1], length=50, seed=row_seeds(1, 1))[0][:3]
    )
    assert [chunk.reason for chunk in steps.chunks(waits)] == ["deadline", "deadline"]
    with pytest.raises(RequestRefused, match=r"timeout: .*beam search"):
        steps.chunks(searches)
    assert len(steps.ids(stays)[0]) == 5
    assert steps.used == 0


# Failures


def test_an_exception_in_one_request_does_not_affect_the_others() -> None:
    """A request that reads token 12 fails; the others in its batch get the same tokens as alone."""
    model = gpt(context=64)

    def faulty(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if (inputs[0] == 12).any():
            raise RuntimeError("the twelfth")

    steps = Steps(model, rows=8, cache=1 << 20)
    prompts = [prompt for prompt in PROMPTS if 12 not in prompt]
    handles = [
        steps.request(prompt, max_tokens=9, seed=5, sampling=SamplingParams(forbidden=(12,)))
        for prompt in prompts
    ]
    steps.step(2)
    hook = model.embedding.token.register_forward_pre_hook(faulty)
    bad = steps.request([3, 12], max_tokens=9)
    steps.finish()
    hook.remove()
    with pytest.raises(RuntimeError, match="the twelfth"):
        steps.chunks(bad)
    for prompt, handle in zip(prompts, handles, strict=True):
        alone = generate(model, [prompt], length=9, seed=row_seeds(5, 1), forbidden=(12,))
        assert steps.ids(handle) == alone
    assert steps.used == 0


def test_a_row_with_nan_logits_fails_alone() -> None:
    model = gpt(context=64, tied=False)
    prompts = [prompt for prompt in PROMPTS if 12 not in prompt]
    sampling = SamplingParams(forbidden=(12,))
    expected = []
    for prompt in prompts:
        seeds = row_seeds(5, 1)
        expected.append(generate(model, [prompt], length=9, seed=seeds, sampling_params=sampling))
    with torch.no_grad():
        model.embedding.token.weight[12] = torch.nan
    steps = Steps(model, rows=8, cache=1 << 20)
    bad = steps.request([3, 12], max_tokens=9, seed=5)
    handles = [steps.request(prompt, max_tokens=9, seed=5, sampling=sampling) for prompt in prompts]
    steps.finish()
    assert [steps.ids(handle) for handle in handles] == expected
    with pytest.raises(RuntimeError, match=r"logits: .*broken"):
        steps.chunks(bad)
    assert steps.used == 0


def test_a_fault_affects_neither_searches_nor_sequences_with_penalties() -> None:
    model = gpt(context=64)

    def faulty(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        if (inputs[0] == 12).any():
            raise ValueError("the twelfth")

    steps = Steps(model, rows=16, cache=1 << 20)
    choice = SamplingParams(forbidden=(12,), repetition=1.3, frequency=0.5)
    handles = [
        steps.request(prompt, max_tokens=9, seed=5, sampling=choice) for prompt in PROMPTS[:3]
    ]
    searched = [
        steps.request(
            prompt, max_tokens=9, end_ids=(2,), beams=3, sampling=SamplingParams(forbidden=(12,))
        )
        for prompt in PROMPTS[:3]
    ]
    steps.step(3)
    hook = model.embedding.token.register_forward_pre_hook(faulty)
    bad = steps.request([3, 12], max_tokens=9)
    steps.finish()
    hook.remove()
    with pytest.raises(RuntimeError, match="ValueError"):
        steps.chunks(bad)
    for prompt, handle, search in zip(PROMPTS, handles, searched, strict=False):
        assert steps.ids(handle) == generate(
            model, [prompt], length=9, seed=row_seeds(5, 1), sampling_params=choice
        )
        (best,) = beam_search(model, [prompt], end=2, length=9, beams=3, forbidden=(12,))
        assert steps.chunks(search)[0].score == pytest.approx(best[0].score)
    assert steps.used == 0


def test_a_fault_in_sampling_does_not_affect_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, choice = gpt(context=64), SamplingParams(repetition=1.3, frequency=0.5)
    once: list[int] = []

    def faulty(logits: torch.Tensor, choice: SamplingParams, *rest: Any) -> torch.Tensor:
        if choice.temperature == 0.5 and len(once) < 2:
            once.append(1)
            raise ValueError("once together, once alone")
        return process_logits(logits, choice, *rest)

    monkeypatch.setattr(sampler, "process_logits", faulty)
    steps = Steps(model, rows=8, cache=1 << 20)
    handles = [
        steps.request(prompt, max_tokens=9, seed=5, sampling=choice) for prompt in PROMPTS[:3]
    ]
    steps.step(3)
    bad = steps.request([3], max_tokens=9, sampling=SamplingParams(temperature=0.5))
    steps.finish()
    with pytest.raises(RuntimeError):
        steps.chunks(bad)
    for prompt, handle in zip(PROMPTS, handles, strict=False):
        assert steps.ids(handle) == generate(
            model, [prompt], length=9, seed=row_seeds(5, 1), sampling_params=choice
        )


def test_a_beam_that_cannot_be_forked_ends_its_search_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = transformer()
    steps = Steps(model, rows=12, cache=1 << 20)
    runner = steps.engine.runner
    fork = runner.fork
    forks: list[int] = []

    def faulty(*arguments: Any) -> None:
        forks.append(1)
        if len(forks) == 3:
            raise ValueError("no copy")
        fork(*arguments)

    monkeypatch.setattr(runner, "fork", faulty)
    handles = [steps.request(prompt, max_tokens=7, end_ids=(2,), beams=3) for prompt in PROMPTS[:4]]
    steps.finish()
    failed = 0
    for prompt, handle in zip(PROMPTS, handles, strict=False):
        (best,) = beam_search(model, [prompt], start=WORDS.start, end=2, length=7, beams=3)
        try:
            assert steps.chunks(handle)[0].score == pytest.approx(best[0].score)
        except RuntimeError:
            failed += 1
    assert failed == 1
    assert steps.used == 0
    assert len(steps.engine.scheduler.blocks.slots) == 12


def test_a_beam_search_of_an_rnn_can_fill_the_cache() -> None:
    model = rnn()
    steps = Steps(model, rows=4, cache=5 * 16384)
    handle = steps.request([1, 2, 3], max_tokens=5, end_ids=(2,), beams=4)
    steps.finish()
    (best,) = beam_search(model, [[1, 2, 3]], start=WORDS.start, end=2, length=5, beams=4)
    assert steps.chunks(handle)[0].score == pytest.approx(best[0].score)


@pytest.mark.parametrize(
    ("fields", "field", "keyword"),
    [
        ({"prompt": []}, "prompt", "one token"),
        ({"prompt": [13]}, "prompt", "0 to 12"),
        ({"max_tokens": -1}, "max_tokens", "1 or more"),
        ({"heads_off": ((2, 0),)}, "heads_off", "layer of 0 to 1 and a head of 0 to 3, not 2.0"),
        ({"beams": 3, "stop": ("a",), "end_ids": (2,)}, "beams", "one end id"),
        ({"beams": 99, "end_ids": (2,)}, "beams", "at most 4"),
        ({"max_tokens": 60}, "max_tokens", "4 blocks of the cache, which has 3"),
        ({"sampling": SamplingParams(forbidden=(99,))}, "forbidden", "0 to 12"),
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, Any], field: str, keyword: str) -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=4, cache=bytes_for(model, 48))
    with pytest.raises(ValueError, match=f"{field}: .*{keyword}"):
        steps.request(**({"prompt": [1, 2]} | fields))
    assert not steps.engine.step()
