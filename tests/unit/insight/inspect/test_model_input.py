"""A text as each family reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.inspect.model_input import hidden, ids_of, logits, read, readable
from qkv.models import BERT, GPT, BERTConfig, GPTConfig
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
    found = read(model, pairs, text)
    assert list(found.text.ids) == pairs.encode(text)
    assert "↵" in "".join(found.text.tokens)
    assert "".join(found.text.tokens).replace("↵", "").replace("␣", "") == text.replace(
        " ", ""
    ).replace("\n", "")
    assert [place for word in found.text.words for place in word.places] == list(
        range(len(found.text.ids))
    )
    assert "unbelievable" in [word.text for word in found.text.words]
    assert_close(logits(model.eval(), found), model(torch.tensor([pairs.encode(text)])))


def test_a_bert_reads_one_text_or_two_and_masks(pieces: Tokenizer) -> None:
    model = BERT(BERTConfig(vocabulary=pieces.vocabulary, **SMALL)).eval()
    one = read(model, pieces, "the cat sat")
    assert (one.text.ids[0], one.text.ids[-1]) == (pieces.start, pieces.end)
    assert one.text.tokens[0] == pieces.token(pieces.start)
    assert one.segments is None
    assert one.rows == one.text  # it says what stands there
    two = read(model, pieces, "the cat sat", "mice ran")
    boundary = two.text.ids.index(pieces.end) + 1
    assert two.segments == (0,) * boundary + (1,) * (len(two.text.ids) - boundary)
    row = torch.tensor([list(two.text.ids)])
    assert_close(hidden(model, two), model.hidden(row, segments=torch.tensor([list(two.segments)])))
    masked = read(model, pieces, "the [mask] sat")
    assert pieces.mask in masked.text.ids
    assert masked.text.tokens[masked.text.ids.index(pieces.mask)] == pieces.token(pieces.mask)


def test_pieces_are_shown_without_their_marks(pieces: Tokenizer) -> None:
    inside = next(id for id in range(pieces.vocabulary) if pieces.token(id).startswith("##"))
    assert readable(pieces, inside) == pieces.token(inside)[2:]


@pytest.mark.parametrize("task", ASKED)
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_fine_tuned_model_reads_with_the_marks_of_its_task(task: str, family: str) -> None:
    small = small_tuned(task, family)
    texts = ASKED[task][0]
    found = read(small.model, small.tokenizer, *([" ".join(texts)] if task == "tag" else texts))
    head = small.model.config.head
    assert found.text.ids[-1] == head.extract
    if task in ("classify", "regress"):  # the answer from this reading is the model's answer
        asked = torch.tensor([[len(found.text.ids) - 1 if head.pooling == "last" else 0]])
        score = small.model.scores(hidden(small.model, found), asked, None, 1)
        expected = alone(small, texts)
        score = small.model.in_units(score) if head.numbers else score
        assert_close(score.flatten().double(), expected.flatten(), rtol=0, atol=1e-4)


def test_a_translator_reads_a_pair_or_translates_itself() -> None:
    tokenizer = train("words", SENTENCES, 80)
    for make in (transformer, rnn):
        model = make(vocabulary=tokenizer.vocabulary).float()
        found = read(model, tokenizer, source="the cat sat", target="mice ran")
        assert found.source is not None
        assert found.source.ids == (*tokenizer.encode("the cat sat"), tokenizer.end)
        assert found.text.ids == (tokenizer.start, *tokenizer.encode("mice ran"))
        assert found.rows.ids == (
            *tokenizer.encode("mice ran"),
            tokenizer.end,
        )  # what each place chooses
        assert found.rows.tokens[:2] == ("mice", "ran")
        given = ids_of(model, found)
        assert_close(hidden(model, found), model.forced(given["source"], given["target"]))
        own = read(model, tokenizer, "the cat sat")
        assert own.source == found.source
        assert own.text.ids[0] == tokenizer.start
        assert tokenizer.end not in own.text.ids
        assert own.rows.ids == (*own.text.ids[1:], tokenizer.end)


WRONG: list[tuple[Any, tuple[str, ...], dict[str, str], str]] = [
    (gpt, (), {}, r"text: there is nothing to read"),
    (gpt, ("  ",), {}, r"text: there is nothing to read"),
    (gpt, ("a", "b"), {}, r"text: a GPT reads one text, not 2"),
    (gpt, ("a",), {"source": "b"}, r"source: a GPT reads one text"),
    (bert, ("a", "b", "c"), {}, r"text: a BERT reads one text or two, not 3"),
    (transformer, (), {}, r"source: a translator reads a source"),
    (transformer, (), {"source": " "}, r"source: there is nothing to read"),
    (transformer, (), {"source": "a", "target": ""}, r"target: there is nothing to read"),
]


@pytest.mark.parametrize(("make", "texts", "how", "message"), WRONG)
def test_what_cannot_be_read(
    make: Any, texts: tuple[str, ...], how: dict[str, str], message: str
) -> None:
    tokenizer = train("words", SENTENCES, 80)
    with pytest.raises(ValueError, match=message):
        read(make(vocabulary=tokenizer.vocabulary), tokenizer, *texts, **how)


def test_no_longer_than_the_context() -> None:
    """Of a Transformer-XL that is one segment."""
    tokenizer = train("words", SENTENCES, 80)
    rotary = {"position": "rotary", "context": 4}
    for make, how in (
        (gpt, rotary),
        (gpt, {"position": "relative", "memory": 4, "context": 4}),
        (bert, rotary),
    ):
        model = make(vocabulary=tokenizer.vocabulary, **how)
        assert len(read(model, tokenizer, "the cat").text.ids) <= 4
        with pytest.raises(
            ValueError, match=r"text: \d tokens are more than the model's context of 4; shorten it"
        ):
            read(model, tokenizer, "the cat sat on the mat")
