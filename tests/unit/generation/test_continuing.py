"""Several prompts, samples and sequences beyond the context: rows are independent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.generation import GeneratedToken, generate, row_seeds, stream
from qkv.models import GPT, GPTConfig
from support.families import GPT_KINDS, gpt, words

pytestmark = pytest.mark.usefixtures(
    "without_shape_checks"
)  # test_decode checks those of every kind
PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8, 9], [10, 11, 12, 1, 2, 3, 4]]
MORE: dict[str, dict[str, Any]] = {
    "transformer-xl": {"position": "relative", "memory": 5, "context": 4}
}


def model_of(kind: str) -> GPT:
    return gpt(**(GPT_KINDS | MORE)[kind])


@pytest.mark.parametrize("kind", [*GPT_KINDS, *MORE])
def test_prompts_of_different_lengths_do_not_mind_each_other(kind: str) -> None:
    model, seeds = model_of(kind), row_seeds(4, 4)
    for how in ({"temperature": 0}, {"end": 6}):
        together = generate(model, PROMPTS, length=8, seed=seeds, **how)
        alone = [
            generate(model, [row], length=8, seed=[seed], **how)[0]
            for row, seed in zip(PROMPTS, seeds, strict=True)
        ]
        assert together == alone


@pytest.mark.parametrize("kind", [*GPT_KINDS, *MORE])
def test_samples_are_rows_of_their_own(kind: str) -> None:
    model, seeds = model_of(kind), row_seeds(9, 12)
    actual = generate(model, PROMPTS, length=7, samples=3, seed=9)
    repeated = [row for row in PROMPTS for _ in range(3)]
    assert actual == generate(model, repeated, length=7, seed=seeds)
    assert generate(model, PROMPTS, length=7, samples=3, seed=9, end=5) == [
        row[: row.index(5)] if 5 in row else row for row in actual
    ]
    assert len({tuple(row) for row in actual}) > 8  # samples of a prompt differ


def by_whole_passes(model: GPT, text: list[int], length: int, context: int) -> list[int]:
    """Greedy decoding where a full context forgets all but its last half."""
    window, generated = list(text), []
    for _ in range(length):
        if len(window) > context:
            window = window[-(context // 2) :]
        word = int(model(torch.tensor([window]))[0, -1].argmax())
        window.append(word)
        generated.append(word)
    return generated


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi", "sinusoidal", "none"])
def test_a_sliding_text_forgets_its_beginning(position: str) -> None:
    model = gpt(position=position, context=8)
    for prompt in ([1], [1, 2, 3, 4, 5, 6, 7], [3, 1, 4, 1, 5, 9, 2, 6]):
        with torch.no_grad():
            right = by_whole_passes(model, prompt, 30, 8)
        assert generate(model, [prompt], length=30, temperature=0, beyond="slide") == [right]


def test_a_sliding_prompt_keeps_its_end() -> None:
    model, prompt = gpt(position="learned", context=8), [*range(12), 5, 3]
    for length, remaining in ((2, 6), (3, 5), (30, 4)):
        actual = generate(model, [prompt], length=length, temperature=0, beyond="slide")
        assert actual == generate(
            model, [prompt[-remaining:]], length=length, temperature=0, beyond="slide"
        )


@pytest.mark.parametrize("beyond", ["refuse", "slide"])
def test_a_long_neighbour_does_not_end_a_short_text(beyond: Any) -> None:
    model, prompts = gpt(position="learned", context=12), [[1] * 12, [2], [3] * 7]
    seeds = row_seeds(0, 3)
    together = generate(model, prompts, length=60, seed=seeds, beyond=beyond)
    alone = [
        generate(model, [row], length=60, seed=[seed], beyond=beyond)[0]
        for row, seed in zip(prompts, seeds, strict=True)
    ]
    assert together == alone
    assert [len(row) for row in together] == ([1, 12, 6] if beyond == "refuse" else [60, 60, 60])


def test_every_row_has_the_reason_why_it_ended() -> None:
    model = gpt(position="learned", context=12)
    prompts = [[1] * 10, [2], [3], [4]]
    stop = lambda row, ids: row >= 12 and len(ids) == 2  # noqa: E731
    events = list(stream(model, prompts, length=6, seed=5, end=[0, 1, 2], samples=4, stop=stop))
    last: dict[int, GeneratedToken] = {}
    generated: dict[int, list[int]] = {row: [] for row in range(16)}
    for event in events:
        assert event.row not in last  # nothing after the end
        if event.reason is not None:
            last[event.row] = event
        if event.id is not None:
            generated[event.row].append(event.id)
    assert sorted(last) == list(range(16))
    assert {event.reason for event in last.values()} == {"end", "stop", "length", "context"}
    for row, event in last.items():
        assert (event.id is None) == (event.reason == "end")
        if event.reason == "context":
            assert row < 4
            assert len(generated[row]) == 3
        if event.reason == "length":
            assert len(generated[row]) == 6
        if event.reason == "stop":
            assert row >= 12
            assert len(generated[row]) == 2
    assert not any({0, 1, 2} & set(row) for row in generated.values())


def test_what_is_streamed_is_what_is_returned() -> None:
    model = gpt()
    for how in ({"seed": 1}, {"temperature": 0, "end": 3}, {"seed": 2, "samples": 2, "top_k": 4}):
        generated: dict[int, list[int]] = {row: [] for row in range(4 * how.get("samples", 1))}
        for word in stream(model, PROMPTS, length=9, **how):
            if word.id is not None:
                generated[word.row].append(word.id)
        assert list(generated.values()) == generate(model, PROMPTS, length=9, **how)


def test_a_closed_stream_restores_the_mode_of_the_model() -> None:
    model = gpt(dropout=0.5).train()
    words_of = stream(model, PROMPTS, length=20, seed=0)
    next(words_of)
    words_of.close()
    assert all(module.training for module in model.modules())


def test_wrong_arguments_are_refused_before_the_first_token() -> None:
    with pytest.raises(ValueError, match="length: expected 1 token or more"):
        stream(gpt(), PROMPTS, length=0)  # not only when the stream is read


def test_broken_weights_are_an_error() -> None:
    model = gpt()
    with torch.no_grad():
        model.embedding.token.weight[3] = float("nan")
    with pytest.raises(ValueError, match="logits: a row has no likeliest token"):
        generate(model, [[1, 2], [3]], length=5)


def test_an_empty_list_of_prompts_is_refused() -> None:
    assert generate(gpt(), words(0, 3), length=4, samples=3) == []


def test_in_float32_and_with_packed_weights_rows_do_not_mind_each_other() -> None:
    """In float32, where the kernels of a batch add in another order than those of a row."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=500, context=128, width=96, depth=3, heads=6)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4  # a model that has opinions
    prompts = [torch.randint(500, (length,)).tolist() for length in (3, 17, 1, 40, 9, 9)]
    for how in ({"temperature": 0}, {"end": 6}, {"top_p": 0.9, "repetition": 1.2}):
        seeds = row_seeds(1, 6)
        together = generate(model, prompts, length=30, seed=seeds, **how)
        alone = [
            generate(model, [row], length=30, seed=[seed], **how)[0]
            for row, seed in zip(prompts, seeds, strict=True)
        ]
        assert together == alone
