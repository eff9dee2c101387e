"""Text generation: streamed text equals returned text, and no stop string is part of it."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors

from qkv.generation import generate
from qkv.generation.stop import StopStringFilter, overlap
from qkv.generation.text import complete, prompt_ids, stream_text
from qkv.models import GPT, GPTConfig
from qkv.text import Tokenizer, train
from qkv.text.frame_tokens import start_id
from support.sentences import SENTENCES

TEXT = ["abcdefghij klm. abc abd. xyz"] * 5


def gpt(tokenizer: Tokenizer, **changes: int) -> GPT:
    torch.manual_seed(0)
    config = {
        "vocabulary": tokenizer.vocabulary,
        "context": 64,
        "width": 16,
        "depth": 1,
        "heads": 2,
    } | changes
    return GPT(GPTConfig(**config)).eval()


@pytest.fixture(scope="module", params=["characters", "byte-pair", "words"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(request.param, SENTENCES, 300)


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return train("characters", TEXT, 40)


def test_streamed_text_is_returned_text_and_decoded_ids(tokenizer: Tokenizer) -> None:
    model, options = gpt(tokenizer), {"length": 30, "seed": 3, "samples": 2}
    prompts = [SENTENCES[0], "the cat sat on"]
    generated = generate(
        model, [tokenizer.encode(prompt) for prompt in prompts], end=tokenizer.end, **options
    )
    texts = [""] * 4
    ended = set()
    for piece in stream_text(model, tokenizer, prompts, **options):
        assert piece.row not in ended
        texts[piece.row] += piece.text
        if piece.reason is not None:
            ended.add(piece.row)
    assert ended == {0, 1, 2, 3}
    assert texts == complete(model, tokenizer, prompts, **options)
    assert texts == [tokenizer.decode(ids) for ids in generated]


def test_a_prompt_of_ids(tokenizer: Tokenizer) -> None:
    model = gpt(tokenizer)
    ids = tokenizer.encode(SENTENCES[0])
    assert complete(model, tokenizer, [ids], length=9, seed=1) == complete(
        model, tokenizer, [SENTENCES[0]], length=9, seed=1
    )


# Stop strings


@given(st.data())
def test_stop_strings(characters: Tokenizer, data: st.DataObject) -> None:
    """The text ends before the first of them that is whole, however it is cut into pieces."""
    text = data.draw(st.text(alphabet="ab.", max_size=30))
    stops = data.draw(st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=3))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    text_filter = StopStringFilter(characters, stops)
    generated = []
    for begin, end in pairwise([0, *cuts, len(text)]):
        if not text_filter.stopped:
            text_filter.add_text(text[begin:end])
            generated.append(text_filter.take())
    text_filter.close()
    generated.append(text_filter.take())
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    assert "".join(generated) == expected
    assert text_filter.stopped == bool(ends)


def test_text_that_may_begin_a_stop_string_is_held_back(characters: Tokenizer) -> None:
    text_filter = StopStringFilter(characters, ["abc"])
    generated = []
    for id in characters.encode("xababdab"):
        text_filter.add_token(id)
        generated.append(text_filter.take())
    text_filter.close()
    assert generated == ["x", "", "", "ab", "", "abd", "", ""]
    assert text_filter.take() == "ab"


@pytest.mark.parametrize(
    ("text", "stop", "size"),
    [("ab", "abc", 2), ("abc", "abc", 0), ("xa", "abc", 1), ("", "a", 0), ("aa", "aab", 2)],
)
def test_overlap(text: str, stop: str, size: int) -> None:
    assert overlap(text, stop) == size


def test_a_model_stops_there(tokenizer: Tokenizer) -> None:
    model = gpt(tokenizer)
    options = {"length": 40, "seed": 5, "samples": 3}
    whole = complete(model, tokenizer, ["the cat"], **options)
    stop = whole[0][len(whole[0]) // 2 :][:3]
    pieces = list(stream_text(model, tokenizer, ["the cat"], stop=[stop], **options))
    texts = ["".join(piece.text for piece in pieces if piece.row == row) for row in range(3)]
    assert texts == [text.partition(stop)[0] for text in whole]
    reasons = {piece.row: piece.reason for piece in pieces if piece.reason}
    assert [reasons[row] == "stop" for row in range(3)] == [stop in text for text in whole]
    assert texts[0] != whole[0]


# How a text begins


def test_an_empty_prompt_begins_where_texts_begin(characters: Tokenizer) -> None:
    """In training, texts follow one another with an end token: a text begins after it."""
    assert prompt_ids(characters, "") == [characters.end]
    model = gpt(characters)
    assert characters.end is not None
    (ids,) = generate(model, [[characters.end]], length=9, end=characters.end, seed=1)
    assert complete(model, characters, [""], length=9, seed=1) == [characters.decode(ids)]


def with_special_tokens(*names: str) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    inner.add_special_tokens(list(names))
    return inner


def test_where_others_texts_begin() -> None:
    assert start_id(Tokenizer(with_special_tokens("<s>", "</s>"))) == 2
    assert start_id(Tokenizer(with_special_tokens("</s>"))) == 2
    assert start_id(Tokenizer(with_special_tokens())) is None
    with pytest.raises(ValueError, match=r"prompt: .*tokenizer"):
        prompt_ids(Tokenizer(with_special_tokens()), "")


def test_a_start_id_where_the_tokenizer_asks_for_one() -> None:
    inner = with_special_tokens("<s>", "</s>")
    assert prompt_ids(Tokenizer(inner), "ab") == [0, 1]
    assert prompt_ids(Tokenizer(inner, {"add_bos_token": True}), "ab") == [2, 0, 1]
    assert prompt_ids(Tokenizer(inner, {"add_bos_token": True}), "") == [2]
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 2)]
    )
    assert prompt_ids(Tokenizer(inner), "ab") == [2, 0, 1]  # as in Llama 3's tokenizer.json
    assert prompt_ids(Tokenizer(inner, {"add_bos_token": False}), "ab") == [0, 1]


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": [""]}, "stop: expected a text of one character or more, not an empty one"),
        (
            {"prompts": ["abc" * 30]},
            "prompts: 90 tokens are more than the model's context of 64; shorten the prompt",
        ),
        (
            {"temperature": -1.0},
            "temperature: expected 0 (always the likeliest token) or more, not -1.0",
        ),
        ({"samples": 0}, "samples: expected 1 or more, not 0"),
        ({"samples": -3}, "samples: expected 1 or more, not -3"),
        ({"samples": 1_000_000}, "samples: 1,000,000 of each of 1 prompts are more than"),
        ({"length": 0}, "length: expected 1 token or more, not 0"),
        ({"prompts": [[1, 4000]]}, "4000"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input(characters: Tokenizer, changes: dict[str, object], message: str) -> None:
    options = {"prompts": ["abc"], "length": 5} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        complete(gpt(characters), characters, **options)  # type: ignore[arg-type]


def test_a_long_prompt_may_lose_its_beginning(characters: Tokenizer) -> None:
    model = gpt(characters)
    long, options = "abcdefghij" * 9, {"length": 20, "seed": 1}
    assert complete(model, characters, [long], beyond="slide", **options) == complete(
        model, characters, [long[-44:]], **options
    )
