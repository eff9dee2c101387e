"""The engine: requests join and leave at any step, and each says what it says alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.generation import beam_search, generate, row_seeds, translate
from qkv.generation.sampling import distribution
from qkv.generation.sampling_params import SamplingParams, processed
from qkv.generation.text import complete, prompt_ids
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


ELSEWHERE = (
    "activation",
    "norm",
    "rms",
    "product",
    "no biases",
)  # they do not care whose word it is


def that_matter(kinds: dict[str, Any]) -> list[str]:
    return [kind for kind in kinds if not kind.startswith(ELSEWHERE)]


def model_of(kind: str) -> GPT:
    return gpt(**(GPT_KINDS | MORE)[kind])


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", that_matter(GPT_KINDS | MORE))
@pytest.mark.parametrize(
    "choice",
    [
        SamplingParams(temperature=0),
        SamplingParams(top_k=9, repetition=1.2),
        SamplingParams(minimum=5),
    ],
)
def test_requests_that_come_and_go_do_not_mind_each_other(
    kind: str, choice: SamplingParams
) -> None:
    model = model_of(kind)
    steps = Steps(model, rows=4, tokens=3, cache=1 << 20)
    tickets = []
    for number, prompt in enumerate(PROMPTS):
        tickets.append(
            steps.ask(prompt, length=5 + number % 3, choice=choice, seed=number, ends=(6,))
        )
        steps.step(number % 3)
    steps.finish()
    for number, (prompt, ticket) in enumerate(zip(PROMPTS, tickets, strict=True)):
        alone = generate(
            model, [prompt], length=5 + number % 3, choice=choice, seed=row_seeds(number, 1), end=6
        )
        assert steps.ids(ticket) == alone
    assert steps.used == 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", that_matter(TRANSFORMER_KINDS))
def test_translators_come_and_go_too(kind: str) -> None:
    check_translator(transformer(**TRANSFORMER_KINDS[kind]))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", RNN_KINDS)
def test_and_so_do_recurrent_ones(kind: str) -> None:
    check_translator(rnn(**RNN_KINDS[kind]))


def check_translator(model: Transformer | RNN) -> None:
    """Drawn and searched, side by side, each as alone."""
    sources = [[each % 6 for each in prompt] for prompt in PROMPTS]
    steps, start = Steps(model, rows=12, cache=1 << 20), WORDS.start
    assert start is not None
    drawn, searched = [], []
    for number, source in enumerate(sources):
        drawn.append(
            steps.ask(
                source,
                length=6,
                choice=SamplingParams(temperature=0.9),
                seed=number,
                ends=(2,),
                samples=2,
            )
        )
        steps.step(number % 2)
        searched.append(steps.ask(source, length=7, ends=(2,), beams=3, samples=2))
        steps.step(number % 3)
    steps.finish()
    for number, source in enumerate(sources):
        row = torch.tensor([source])
        alone = translate(
            model, row, start=start, end=2, length=6, temperature=0.9, seed=number, samples=2
        )
        assert steps.ids(drawn[number]) == alone
        (best,) = beam_search(model, [source], start=start, end=2, length=7, beams=3, n_best=2)
        assert [each for each in steps.ids(searched[number]) if each] == [
            each.ids for each in best if each.ids
        ]
        found = [piece.score for piece in steps.pieces(searched[number])]
        assert found == pytest.approx([each.score for each in best])
    assert steps.used == 0


def test_a_search_of_a_gpt_is_beam_search() -> None:
    model = gpt(position="rotary")
    steps = Steps(model, rows=9, cache=1 << 20)
    tickets = [steps.ask(prompt, length=6, ends=(2,), beams=4, samples=3) for prompt in PROMPTS]
    steps.finish()
    for prompt, ticket in zip(PROMPTS, tickets, strict=True):
        (best,) = beam_search(model, [prompt], end=2, length=6, beams=4, n_best=3)
        assert [piece.score for piece in steps.pieces(ticket)] == pytest.approx(
            [each.score for each in best]
        )


# The cache


def bytes_for(model: GPT, places: int) -> int:
    """A cache with so many places, beside the block that is nobody's."""
    config = model.config
    return (
        (places // 16 + 1)
        * 16
        * 2
        * config.depth
        * (config.kv_heads or config.heads)
        * config.width_of_head
        * 8
    )


@pytest.mark.usefixtures("without_shape_checks")
def test_when_the_cache_is_full_the_last_one_gives_way_and_says_the_same() -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=8, cache=bytes_for(model, 96))
    stores = [each.data_ptr() for each in steps.engine.runner.pages.keys]
    tickets = [
        steps.ask([number, 1, 2], length=40, choice=SamplingParams(repetition=1.1), seed=number)
        for number in range(6)
    ]
    while steps.engine.step():
        assert steps.used <= steps.engine.scheduler.blocks.total == 6
    assert steps.engine.numbers()["preempted"] > 0, "nobody had to give way"
    for number, ticket in enumerate(tickets):
        alone = generate(
            model, [[number, 1, 2]], length=40, repetition=1.1, seed=row_seeds(number, 1)
        )
        assert steps.ids(ticket) == alone
    assert steps.used == 0
    assert [each.data_ptr() for each in steps.engine.runner.pages.keys] == stores
    assert steps.engine.numbers()["cache_bytes"] <= bytes_for(model, 96)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_prompt_is_read_aloud_once_also_by_one_that_gave_way() -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=8, tokens=5, cache=bytes_for(model, 96))
    asks = [
        steps.ask([number, *range(12)], length=30, top=0, prompt_top=2, seed=number)
        for number in range(6)
    ]
    steps.finish()
    assert steps.engine.numbers()["preempted"] > 0
    for number, ticket in enumerate(asks):
        (said,) = generate(model, [[number, *range(12)]], length=30, seed=row_seeds(number, 1))
        assert steps.ids(ticket) == [[number, *range(12), *said]]


def test_texts_that_begin_alike_are_read_once() -> None:
    model, prompt = gpt(context=64), [each % 13 for each in range(40)]
    steps = Steps(model, rows=8, cache=bytes_for(model, 1024))
    first = steps.ask(prompt, length=5, seed=1, samples=3)
    steps.finish()
    assert (
        steps.engine.counts["prompt_tokens"] == 40 + 2 * 8
    )  # of each other sample, what is behind the full blocks
    again = steps.ask([*prompt, *steps.ids(first)[0], 3], length=5, seed=2)
    steps.finish()
    assert steps.engine.counts["prompt_tokens"] == 40 + 2 * 8 + 46 - 32
    assert steps.ids(first) == generate(model, [prompt], length=5, seed=1, samples=3)
    longer = [*prompt, *steps.ids(first)[0], 3]
    assert steps.ids(again) == generate(model, [longer], length=5, seed=row_seeds(2, 1))


def test_what_is_shared_is_not_what_another_head_made() -> None:
    """With a head off the same prompt has other keys; nothing of it may be taken for the other's."""
    model, prompt = gpt(context=64), [each % 13 for each in range(40)]
    steps = Steps(model, rows=8, cache=bytes_for(model, 1024))
    asked = [
        steps.ask(prompt, length=9, choice=SamplingParams(temperature=0), off=off)
        for off in ((), ((0, 1),), ())
    ]
    steps.finish()
    again = steps.ask(prompt, length=9, choice=SamplingParams(temperature=0), off=((0, 1),))
    steps.finish()
    plain = generate(model, [prompt], length=9, temperature=0)

    def silent(value: torch.Tensor, name: str) -> torch.Tensor:
        value = value.clone()
        value[:, 1] = 0
        return value

    with add_hook(model, "stack.blocks.0.attention.heads", silent):
        changed = generate(model, [prompt], length=9, temperature=0)
    assert changed != plain
    assert [steps.ids(each) for each in asked] == [plain, changed, plain]
    assert steps.ids(again) == changed


# What is said


def test_log_probabilities_are_those_of_a_whole_pass() -> None:
    model = gpt()
    steps, choice = (
        Steps(model, rows=4, tokens=3, cache=1 << 20),
        SamplingParams(temperature=0.7, top_k=6, frequency=0.3),
    )
    asked = [
        steps.ask(prompt, length=4, top=5, prompt_top=3, seed=7, choice=choice)
        for prompt in PROMPTS[:4]
    ]
    beside = steps.ask(PROMPTS[4], length=4, seed=7)
    steps.finish()
    assert steps.ids(beside) == generate(model, [PROMPTS[4]], length=4, seed=row_seeds(7, 1))
    for prompt, ticket in zip(PROMPTS, asked, strict=False):
        said = [each for piece in steps.pieces(ticket) for each in piece.said]
        text = [each.id for each in said]
        assert text[: len(prompt)] == prompt
        with torch.no_grad():
            logits = model(torch.tensor([text]))[0]
        expected = logits.log_softmax(-1)
        assert said[0].logprob is None
        for place in range(1, len(text)):
            assert said[place].logprob == pytest.approx(
                float(expected[place - 1, text[place]]), abs=1e-5
            )
            count = 5 if place >= len(prompt) else 3
            values, ids = expected[place - 1].topk(count)
            assert [each.id for each in said[place].alternatives] == ids.tolist()
            assert [each.logprob for each in said[place].alternatives] == pytest.approx(
                values.tolist(), abs=1e-5
            )
        for place in range(len(prompt), len(text)):
            heard = torch.bincount(
                torch.tensor(text[len(prompt) : place], dtype=torch.int64), minlength=13
            )
            drawn = distribution(logits[place - 1 : place] - 0.3 * heard, temperature=0.7, top_k=6)[
                0
            ]
            for each in said[place].alternatives:
                assert each.probability == pytest.approx(float(drawn[each.id]), abs=1e-5)


def test_a_prompt_may_be_read_without_a_word() -> None:
    steps = Steps(gpt(), cache=1 << 20)
    ticket = steps.ask([1, 2, 3], length=0, prompt_top=0)
    steps.finish()
    assert [each.id for piece in steps.pieces(ticket) for each in piece.said] == [1, 2, 3]
    assert steps.pieces(ticket)[-1].reason == "length"
    assert steps.used == 0


@pytest.mark.parametrize("stream", [False, True])
def test_texts_end_before_a_stop_string(stream: bool) -> None:
    tokenizer = train("characters", SENTENCES, 40)
    model = gpt(vocabulary=tokenizer.vocabulary, context=128)
    steps = Steps(model, tokenizer, rows=8, cache=1 << 22)
    how: dict[str, Any] = {"length": 60, "end": (), "seed": 3, "samples": 2}
    stop = complete(model, tokenizer, ["the"], **how)[0][20:23]
    prompt = prompt_ids(tokenizer, "the")
    ticket = steps.ask(prompt, length=60, seed=3, samples=2, stop=(stop,), stream=stream)
    steps.finish()
    texts = ["", ""]
    for piece in steps.pieces(ticket):
        texts[piece.row] += piece.text
    assert texts == complete(model, tokenizer, ["the"], stop=[stop], **how)
    assert steps.pieces(ticket)[-1].reason in ("stop", "length", "end")
    assert {piece.reason for piece in steps.pieces(ticket) if piece.row == 0 and piece.reason} == {
        "stop"
    }
    assert len(steps.pieces(ticket)) == 2 if not stream else len(steps.pieces(ticket)) > 20


def test_a_full_context_ends_a_text() -> None:
    model = gpt(context=16)
    steps = Steps(model, cache=1 << 20)
    ticket = steps.ask([1, 2, 3], length=100)
    steps.finish()
    (said,) = steps.ids(ticket)
    assert len(said) == 14  # the last word needs no place
    assert steps.pieces(ticket)[-1].reason == "context"
    with pytest.raises(ValueError, match="17 tokens are more than the model's context of 16"):
        steps.ask([1] * 17, length=1)


# Who leaves


def test_a_client_that_is_gone_leaves_within_a_step() -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=4, cache=1 << 20)
    stays, goes = (steps.ask(prompt, length=30, seed=1, samples=2) for prompt in PROMPTS[:2])
    waits = steps.ask(PROMPTS[2], length=30, seed=1)
    steps.step(5)
    used = steps.used
    goes.cancel()
    waits.cancel()
    steps.step()
    assert steps.used < used
    assert not any(text.ticket in (goes, waits) for text in steps.engine.scheduler.running)
    assert steps.engine.waiting == 0
    steps.finish()
    assert steps.ids(stays) == generate(model, PROMPTS[:1], length=30, seed=1, samples=2)
    assert steps.used == 0
    assert steps.engine.counts["cancelled"] == 2


def test_what_is_late_ends_with_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(engine, "time", clock)
    model = gpt(context=64)
    steps = Steps(model, rows=2, cache=1 << 20)
    late = steps.ask(PROMPTS[0], length=50, seed=1, deadline=101.0)
    steps.step(3)
    waits = steps.ask(PROMPTS[0], length=50, seed=1, samples=2, deadline=101.0)
    searches = steps.ask(PROMPTS[0], length=9, ends=(2,), beams=2, deadline=101.0)
    stays = steps.ask(PROMPTS[1], length=5, seed=1)
    clock.now = 102.0
    steps.finish()
    assert steps.pieces(late)[-1].reason == "deadline"
    assert (
        steps.ids(late)[0] == generate(model, PROMPTS[:1], length=50, seed=row_seeds(1, 1))[0][:3]
    )
    assert [piece.reason for piece in steps.pieces(waits)] == ["deadline", "deadline"]
    with pytest.raises(RequestRefused, match="the time was over before the search was"):
        steps.pieces(searches)
    assert len(steps.ids(stays)[0]) == 5
    assert steps.used == 0


# When something fails


def test_an_exception_inside_one_request_does_not_touch_the_others() -> None:
    """Whoever reads the token 12 fails; all others, in the same batch, say what they say alone."""
    model = gpt(context=64)

    def faulty(module: torch.nn.Module, given: tuple[torch.Tensor]) -> None:
        if (given[0] == 12).any():
            raise RuntimeError("the twelfth")

    steps = Steps(model, rows=8, cache=1 << 20)
    prompts = [prompt for prompt in PROMPTS if 12 not in prompt]
    asked = [
        steps.ask(prompt, length=9, seed=5, choice=SamplingParams(forbidden=(12,)))
        for prompt in prompts
    ]
    steps.step(2)
    hook = model.embedding.token.register_forward_pre_hook(faulty)
    bad = steps.ask([3, 12], length=9)
    steps.finish()
    hook.remove()
    with pytest.raises(RuntimeError, match="the twelfth"):
        steps.pieces(bad)
    for prompt, ticket in zip(prompts, asked, strict=True):
        alone = generate(model, [prompt], length=9, seed=row_seeds(5, 1), forbidden=(12,))
        assert steps.ids(ticket) == alone
    assert steps.used == 0


def test_a_row_without_a_likeliest_word_fails_alone() -> None:
    model = gpt(context=64, tied=False)
    prompts = [prompt for prompt in PROMPTS if 12 not in prompt]
    how: dict[str, Any] = {"choice": SamplingParams(forbidden=(12,))}
    expected = [generate(model, [each], length=9, seed=row_seeds(5, 1), **how) for each in prompts]
    with torch.no_grad():
        model.embedding.token.weight[12] = torch.nan
    steps = Steps(model, rows=8, cache=1 << 20)
    bad = steps.ask([3, 12], length=9, seed=5)
    asked = [steps.ask(prompt, length=9, seed=5, **how) for prompt in prompts]
    steps.finish()
    assert [steps.ids(ticket) for ticket in asked] == expected
    with pytest.raises(RuntimeError, match="no likeliest word"):
        steps.pieces(bad)
    assert steps.used == 0


def test_a_fault_touches_neither_searches_nor_those_that_must_not_repeat_themselves() -> None:
    model = gpt(context=64)

    def faulty(module: torch.nn.Module, given: tuple[torch.Tensor]) -> None:
        if (given[0] == 12).any():
            raise ValueError("the twelfth")

    steps = Steps(model, rows=16, cache=1 << 20)
    choice = SamplingParams(forbidden=(12,), repetition=1.3, frequency=0.5)
    asked = [steps.ask(prompt, length=9, seed=5, choice=choice) for prompt in PROMPTS[:3]]
    searched = [
        steps.ask(prompt, length=9, ends=(2,), beams=3, choice=SamplingParams(forbidden=(12,)))
        for prompt in PROMPTS[:3]
    ]
    steps.step(3)
    hook = model.embedding.token.register_forward_pre_hook(faulty)
    bad = steps.ask([3, 12], length=9)
    steps.finish()
    hook.remove()
    with pytest.raises(
        RuntimeError, match="ValueError"
    ):  # whatever it was, it is no fault of the client's
        steps.pieces(bad)
    for prompt, ticket, search in zip(PROMPTS, asked, searched, strict=False):
        assert steps.ids(ticket) == generate(
            model, [prompt], length=9, seed=row_seeds(5, 1), choice=choice
        )
        (best,) = beam_search(model, [prompt], end=2, length=9, beams=3, forbidden=(12,))
        assert steps.pieces(search)[0].score == pytest.approx(best[0].score)
    assert steps.used == 0


def test_a_fault_in_choosing_changes_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    model, choice = gpt(context=64), SamplingParams(repetition=1.3, frequency=0.5)
    once: list[int] = []

    def faulty(logits: torch.Tensor, choice: SamplingParams, *rest: Any) -> torch.Tensor:
        if choice.temperature == 0.5 and len(once) < 2:
            once.append(1)
            raise ValueError("once together, once alone")
        return processed(logits, choice, *rest)

    monkeypatch.setattr(sampler, "processed", faulty)
    steps = Steps(model, rows=8, cache=1 << 20)
    asked = [steps.ask(prompt, length=9, seed=5, choice=choice) for prompt in PROMPTS[:3]]
    steps.step(3)
    bad = steps.ask([3], length=9, choice=SamplingParams(temperature=0.5))
    steps.finish()
    with pytest.raises(RuntimeError):
        steps.pieces(bad)
    for prompt, ticket in zip(PROMPTS, asked, strict=False):
        assert steps.ids(ticket) == generate(
            model, [prompt], length=9, seed=row_seeds(5, 1), choice=choice
        )


def test_a_beam_that_cannot_be_copied_ends_its_search_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = transformer()
    steps = Steps(model, rows=12, cache=1 << 20)
    runner = steps.engine.runner
    copy, count = runner.branch, []

    def faulty(*given: Any) -> None:
        count.append(1)
        if len(count) == 3:
            raise ValueError("no copy")
        copy(*given)

    monkeypatch.setattr(runner, "branch", faulty)
    asked = [steps.ask(prompt, length=7, ends=(2,), beams=3) for prompt in PROMPTS[:4]]
    steps.finish()
    failed = 0
    for prompt, ticket in zip(PROMPTS, asked, strict=False):
        (best,) = beam_search(model, [prompt], start=WORDS.start, end=2, length=7, beams=3)
        try:
            assert steps.pieces(ticket)[0].score == pytest.approx(best[0].score)
        except RuntimeError:
            failed += 1
    assert failed == 1
    assert steps.used == 0
    assert len(steps.engine.scheduler.slots) == 12


def test_a_search_of_an_rnn_may_fill_the_cache() -> None:
    model = rnn()
    steps = Steps(model, rows=4, cache=5 * 16384)
    ticket = steps.ask([1, 2, 3], length=5, ends=(2,), beams=4)
    steps.finish()
    (best,) = beam_search(model, [[1, 2, 3]], start=WORDS.start, end=2, length=5, beams=4)
    assert steps.pieces(ticket)[0].score == pytest.approx(best[0].score)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"prompt": []}, "prompt: expected one token or more"),
        ({"prompt": [13]}, "prompt: expected ids from 0 to 12"),
        ({"length": -1}, "max_tokens: expected 1 or more"),
        ({"off": ((2, 0),)}, "heads_off: expected a layer of 0 to 1 and a head of 0 to 3, not 2.0"),
        ({"beams": 3, "stop": ("a",), "ends": (2,)}, "beams: a search has one end"),
        ({"beams": 99, "ends": (2,)}, "beams: expected at most 4"),
        ({"length": 60}, "max_tokens: prompt and answer need 4 blocks of the cache, and it has 3"),
        ({"choice": SamplingParams(forbidden=(99,))}, "forbidden: expected an id from 0 to 12"),
    ],
)
def test_what_cannot_be_asked(how: dict[str, Any], message: str) -> None:
    model = gpt(context=64)
    steps = Steps(model, rows=4, cache=bytes_for(model, 48))
    with pytest.raises(ValueError, match=message):
        steps.ask(**({"prompt": [1, 2]} | how))
    assert not steps.engine.step()
