"""The input of each architecture: ids, special tokens, readable tokens and whole words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.inspect.model_input import (
    frame_tokens,
    hidden,
    ids_of,
    leading_spaces,
    logits,
    read,
    readable_token,
)
from qkv.models import (
    BERT,
    GPT,
    BERTConfig,
    GPTConfig,
    HeadConfig,
    TaskModel,
    TaskModelConfig,
)
from qkv.text import Tokenizer, train
from support.families import bert, gpt, rnn, transformer
from support.sentences import SENTENCES
from support.small_task_models import ASKED, alone, small_tuned

SMALL = {"width": 16, "depth": 1, "heads": 2, "context": 64}


@pytest.fixture(scope="module")
def pairs() -> Tokenizer:
    return train("byte-pair", SENTENCES, 300)


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return train("word-piece", SENTENCES, 120)


def test_a_gpt_reads_a_text(pairs: Tokenizer) -> None:
    model = GPT(GPTConfig(vocabulary=pairs.vocabulary, **SMALL))
    text = "the cats chase mice\nand unbelievable things"
    result = read(model, pairs, text)
    assert list(result.text.ids) == pairs.encode(text)
    assert "↵" in "".join(result.text.tokens)
    assert "".join(result.text.tokens).replace("↵", "").replace("␣", "") == text.replace(
        " ", ""
    ).replace("\n", "")
    positions = [position for word in result.text.words for position in word.positions]
    assert positions == list(range(len(result.text.ids)))
    assert "unbelievable" in [word.text for word in result.text.words]
    assert_close(logits(model.eval(), result), model(torch.tensor([pairs.encode(text)])))


def test_a_bert_reads_one_text_or_two_and_masks(pieces: Tokenizer) -> None:
    model = BERT(BERTConfig(vocabulary=pieces.vocabulary, **SMALL)).eval()
    one = read(model, pieces, "the cat sat")
    assert (one.text.ids[0], one.text.ids[-1]) == (pieces.start, pieces.end)
    assert one.text.tokens[0] == pieces.token(pieces.start)
    assert one.segments is None
    assert one.rows == one.text  # a BERT predicts the token itself
    two = read(model, pieces, "the cat sat", "mice ran")
    boundary = two.text.ids.index(pieces.end) + 1
    assert two.segments == (0,) * boundary + (1,) * (len(two.text.ids) - boundary)
    row = torch.tensor([list(two.text.ids)])
    assert_close(hidden(model, two), model.hidden(row, segments=torch.tensor([list(two.segments)])))
    masked = read(model, pieces, "the [mask] sat")
    assert pieces.mask in masked.text.ids
    assert masked.text.tokens[masked.text.ids.index(pieces.mask)] == pieces.token(pieces.mask)


def test_leading_spaces_complete_the_readable_tokens(pairs: Tokenizer, pieces: Tokenizer) -> None:
    text = "the cats chase  mice, mice"
    ids = pairs.encode(text)
    spaces = leading_spaces(pairs, ids)
    exact = [" " * spaces.get(id, 0) + readable_token(pairs, id) for id in ids]
    assert "".join(exact).replace("␣", " ") == text
    assert any(spaces.values())
    assert leading_spaces(pieces, pieces.encode(text)) == {}  # word pieces have no spaces
    assert leading_spaces(pairs, [pairs.vocabulary + 7]) == {}


def test_parts_of_a_character_are_shown_as_their_bytes(pairs: Tokenizer) -> None:
    tokens = [readable_token(pairs, id) for id in pairs.encode("☺é")]
    assert tokens == ["⟨E2⟩", "⟨98⟩", "⟨BA⟩", "⟨C3⟩", "⟨A9⟩"]


def test_pieces_are_shown_without_continuation_prefix(pieces: Tokenizer) -> None:
    inside = next(id for id in range(pieces.vocabulary) if pieces.token(id).startswith("##"))
    assert readable_token(pieces, inside) == pieces.token(inside)[2:]


@pytest.mark.parametrize("task", ASKED)
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_task_model_reads_with_the_special_tokens_of_its_task(task: str, family: str) -> None:
    small = small_tuned(task, family)
    texts = ASKED[task][0]
    result = read(small.model, small.tokenizer, *([" ".join(texts)] if task == "tag" else texts))
    head = small.model.config.head
    assert result.text.ids[-1] == head.extract
    if task in ("classify", "regress"):  # the scores are the model's own
        position = len(result.text.ids) - 1 if head.pooling == "last" else 0
        rows = torch.tensor([[position]])
        score = small.model.scores(hidden(small.model, result), rows, None, 1)
        if head.numbers:
            score = small.model.in_units(score)
        expected = alone(small, texts)
        assert_close(score.flatten().double(), expected.flatten(), rtol=0, atol=1e-4)


def test_a_translator_reads_a_pair_or_translates_itself() -> None:
    tokenizer = train("words", SENTENCES, 80)
    for make in (transformer, rnn):
        model = make(vocabulary=tokenizer.vocabulary).float()
        result = read(model, tokenizer, source="the cat sat", target="mice ran")
        assert result.source is not None
        assert result.source.ids == (*tokenizer.encode("the cat sat"), tokenizer.end)
        assert result.text.ids == (tokenizer.start, *tokenizer.encode("mice ran"))
        predicted = (*tokenizer.encode("mice ran"), tokenizer.end)
        assert result.rows.ids == predicted
        assert result.rows.tokens[:2] == ("mice", "ran")
        arguments = ids_of(model, result)
        expected = model.hidden(arguments["source"], arguments["target"])
        assert_close(hidden(model, result), expected)
        translated = read(model, tokenizer, "the cat sat")
        assert translated.source == result.source
        assert translated.text.ids[0] == tokenizer.start
        assert tokenizer.end not in translated.text.ids
        assert translated.rows.ids == (*translated.text.ids[1:], tokenizer.end)


WRONG: list[tuple[Any, tuple[str, ...], dict[str, str], str]] = [
    (gpt, (), {}, r"text: .*nothing to read"),
    (gpt, ("  ",), {}, r"text: .*nothing to read"),
    (gpt, ("a", "b"), {}, r"text: .*one text, not 2"),
    (gpt, ("a",), {"source": "b"}, r"source: .*one text"),
    (bert, ("a", "b", "c"), {}, r"text: .*one text or two, not 3"),
    (transformer, (), {}, r"source: .*translator"),
    (transformer, (), {"source": " "}, r"source: .*nothing to read"),
    (transformer, (), {"source": "a", "target": ""}, r"target: .*nothing to read"),
]


@pytest.mark.parametrize(("make", "texts", "options", "message"), WRONG)
def test_invalid_texts_are_refused(
    make: Any, texts: tuple[str, ...], options: dict[str, str], message: str
) -> None:
    tokenizer = train("words", SENTENCES, 80)
    with pytest.raises(ValueError, match=message):
        read(make(vocabulary=tokenizer.vocabulary), tokenizer, *texts, **options)


def test_a_text_longer_than_the_context_is_refused() -> None:
    """The context of a Transformer-XL is one segment."""
    tokenizer = train("words", SENTENCES, 80)
    rotary = {"position": "rotary", "context": 4}
    for make, options in (
        (gpt, rotary),
        (gpt, {"position": "relative", "memory": 4, "context": 4}),
        (bert, rotary),
    ):
        model = make(vocabulary=tokenizer.vocabulary, **options)
        assert len(read(model, tokenizer, "the cat").text.ids) <= 4
        with pytest.raises(ValueError, match=r"text: .*context of 4"):
            read(model, tokenizer, "the cat sat on the mat")


# Special tokens around a text

WORDS = train("words", SENTENCES, 80)
SIZE: dict[str, Any] = {"vocabulary": 80, "context": 40}


def task_model() -> TaskModel:
    end = WORDS.end or 0
    head = HeadConfig(
        task="classify", labels=("a", "b"), start=3, delimiter=end, extract=end, padding=0
    )
    return TaskModel(TaskModelConfig(backbone=gpt(**SIZE).config, head=head))


@pytest.mark.parametrize(
    "make", [lambda: gpt(**SIZE), lambda: bert(**SIZE), lambda: transformer(**SIZE), task_model]
)
@pytest.mark.parametrize("starts", [False, True])
def test_frame_tokens_are_those_that_read_puts_around_a_text(make: Any, starts: bool) -> None:
    text = "the cat sat"
    model = make()
    tokenizer = Tokenizer(WORDS.inner, {"add_bos_token": starts})
    assert tokenizer.adds_start_token == starts
    frames = frame_tokens(model, tokenizer)
    if "self" in frames:
        sides = {"self": read(model, tokenizer, text).text}
    else:
        reading = read(model, tokenizer, source=text, target=text)
        assert reading.source is not None
        sides = {"encoder": reading.source, "decoder": reading.text}
    assert frames.keys() == sides.keys()
    for kind, frame in frames.items():
        assert tuple(frame.around(tokenizer.encode(text))) == sides[kind].ids


def test_an_rnn_has_no_frame_tokens() -> None:
    with pytest.raises(ValueError, match=r"model: .*RNN"):
        frame_tokens(rnn(), WORDS)
