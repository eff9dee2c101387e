"""A sequence: its statuses, and the text of each of its tokens."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from qkv.generation import SamplingParams, generate
from qkv.serving.engine.block_allocator import BLOCK_SIZE
from qkv.serving.engine.sequence import TRANSITIONS, SequenceStatus
from qkv.serving.engine.sequence_table import CATCH_UP_EVERY
from support.engines import WORDS, Steps
from support.families import gpt
from support.sentences import SENTENCES


def test_only_legal_changes_of_the_status() -> None:
    steps = Steps(gpt(), cache=1 << 20)
    steps.request([1, 2, 3])
    (sequence,) = steps.engine.sequences()
    legal = 0
    for before, after in product(SequenceStatus, repeat=2):
        sequence.status = before
        if after in TRANSITIONS[before]:
            sequence.change_status(after)
            assert sequence.status is after
            legal += 1
            continue
        with pytest.raises(RuntimeError, match=f"from {before.name} to {after.name}"):
            sequence.change_status(after)
        assert sequence.status is before
    assert legal == 7
    assert not TRANSITIONS[SequenceStatus.FINISHED]


def test_a_sequence_that_waits_again_computes_all_its_tokens() -> None:
    steps = Steps(gpt(), cache=1 << 20)
    steps.request([1, 2, 3], max_tokens=9)
    steps.step(3)
    (sequence,) = steps.engine.sequences()
    assert sequence.status is SequenceStatus.DECODE
    sequence.change_status(SequenceStatus.WAITING)
    assert (sequence.computed, sequence.generated) == (0, 3)


def test_a_sequence_catches_up_before_it_ends() -> None:
    """At its end, text and prefix are missing for its last tokens only."""
    model = gpt(vocabulary=WORDS.vocabulary, context=128)
    steps = Steps(model, cache=1 << 22)
    handle = steps.request([1, 2, 3, 4], max_tokens=100, seed=1)
    steps.step()
    (sequence,) = steps.engine.sequences()
    lags = []
    while not sequence.finished:
        lags.append(len(sequence.token_ids) - sequence.text_end)
        blocks = sequence.text_end // BLOCK_SIZE
        assert sequence.known_prefix.blocks in (blocks, blocks - 1)
        steps.step()

    assert max(lags) < CATCH_UP_EVERY
    assert lags.count(0) == 100 // CATCH_UP_EVERY
    (chunk,) = steps.chunks(handle)
    assert chunk.text == WORDS.decode(chunk.token_ids)
    assert len(chunk.token_ids) == 100


def test_a_running_sequence_shares_what_it_has_generated() -> None:
    model = gpt(context=128)
    steps = Steps(model, cache=1 << 22)
    first = steps.request([1, 2, 3, 4], max_tokens=100, seed=1)
    steps.step(80)
    (sequence,) = steps.engine.sequences()
    prompt = sequence.token_ids[:50]
    second = steps.request(prompt, max_tokens=9, sampling=SamplingParams(temperature=0))
    steps.finish()
    assert steps.engine.metrics()["shared_tokens"] == 48
    assert len(steps.ids(first)[0]) == 100
    assert steps.ids(second) == generate(
        model, [prompt], length=9, sampling_params=SamplingParams(temperature=0)
    )
    assert steps.used == 0


@pytest.mark.parametrize("how", [{}, {"echo": True}, {"prompt_logprobs": 1, "samples": 3}])
def test_the_texts_of_tokens_are_the_text(how: dict[str, Any]) -> None:
    model = gpt(vocabulary=WORDS.vocabulary, context=64)
    steps = Steps(model, cache=1 << 22)
    prompt = WORDS.encode(SENTENCES[0])[:4]
    handle = steps.request(prompt, max_tokens=20, logprobs=0, seed=2, **how)
    steps.finish()
    for sample in range(how.get("samples", 1)):
        chunks = [chunk for chunk in steps.chunks(handle) if chunk.sample == sample]
        text = "".join(chunk.text for chunk in chunks)
        tokens = [token for chunk in chunks for token in chunk.tokens]
        ids = [token.id for token in tokens]
        if "echo" in how:
            ids = prompt + ids
        assert text == WORDS.decode(ids)
        assert text.endswith("".join(token.text for token in tokens))
        for token in tokens:
            assert text[token.offset :].startswith(token.text)
        assert [chunk.prompt for chunk in chunks] == [True, False][-len(chunks) :]
