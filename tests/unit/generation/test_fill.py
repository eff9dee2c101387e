"""Filling masks: guesses are the model's probabilities at the masks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from qkv import artifact
from qkv.generation.fill import fill, masked_ids
from qkv.models import BERT, GPT, BERTConfig, GPTConfig
from qkv.text import Kind, Tokenizer, train
from support.sentences import SENTENCES, SIZES

WORDS = train("words", SENTENCES, 60)


def bert(tokenizer: Tokenizer, **changes: Any) -> BERT:
    config = {
        "vocabulary": tokenizer.vocabulary,
        "context": 32,
        "width": 16,
        "depth": 2,
        "heads": 2,
    } | changes
    return BERT(BERTConfig(**config))


def test_the_guesses_are_the_models_probabilities() -> None:
    model = bert(WORDS)  # in training mode, but masks are filled without dropout
    actual = fill(model, WORDS, "the [mask] sat on the [mask].", top=4)
    ids = [2, *WORDS.encode("the"), 4, *WORDS.encode("sat on the"), 4, *WORDS.encode("."), 3]
    assert model.training
    with torch.no_grad():
        probability = model.eval()(torch.tensor([ids]))[0].double().softmax(-1)
    for guesses, position in zip(actual, (2, 6), strict=True):
        expected, chosen = probability[position].topk(4)
        assert [guess.id for guess in guesses] == chosen.tolist()
        assert [guess.probability for guess in guesses] == pytest.approx(
            expected.tolist(), rel=1e-5
        )
        assert [guess.text for guess in guesses] == [
            WORDS.decode([id]) or WORDS.token(id) for id in chosen.tolist()
        ]


@pytest.mark.parametrize("spelled", ["[mask]", "[MASK]", "<mask>", "<|mask|>"])
def test_a_mask_is_spelled_as_one_likes(spelled: str) -> None:
    assert masked_ids(WORDS, f"the {spelled} sat") == masked_ids(WORDS, "the [mask] sat")


@pytest.mark.parametrize("kind", SIZES)
def test_the_tokens_around_a_mask_are_those_of_the_whole_text(kind: Kind) -> None:
    """In training a mask replaces a token with the space that is part of it."""
    tokenizer = train(kind, SENTENCES, SIZES[kind])
    whole = tokenizer.encode("the cat sat, the mice ran.")
    hidden = tokenizer.encode("the cat,")[
        len(tokenizer.encode("the")) : -len(tokenizer.encode(","))
    ]
    if kind == "characters":
        hidden = hidden[1:]
    ids = masked_ids(tokenizer, "the [mask] sat, the mice ran.")[1:-1]
    position = ids.index(tokenizer.mask)
    assert [*ids[:position], *hidden, *ids[position + 1 :]] == whole


def test_berts_own_files(tmp_path: Path) -> None:
    """The frame is [CLS] ... [SEP], and the guesses are those of `transformers`."""
    words = ["i", "took", "my", "dog", "cat", "for", "a", "walk", ".", "##s"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    theirs = BertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    model, tokenizer = artifact.load(tmp_path)
    assert isinstance(model, BERT)
    assert tokenizer is not None
    (guesses,) = fill(model, tokenizer, "I took my [mask]s for a walk.", top=15)
    ids = BertTokenizer.from_pretrained(tmp_path)(
        "I took my [MASK] s for a walk.", return_tensors="pt"
    )
    with torch.no_grad():
        expected = theirs(**ids).logits[0, 4].softmax(-1)
    assert len(guesses) == 15
    for guess in guesses:
        assert guess.probability == pytest.approx(float(expected[guess.id]), rel=1e-4)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1, rel=1e-5)


def test_room_for_more_tokens_than_there_are() -> None:
    model = bert(WORDS, vocabulary=WORDS.vocabulary + 9)
    (guesses,) = fill(model, WORDS, "[mask]", top=1000)
    assert len(guesses) == WORDS.vocabulary


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        (
            "the cat",
            5,
            "text: there is no mask in it to fill; write [mask] where a word is missing",
        ),
        ("", 5, "text: there is no mask in it to fill; write [mask] where a word is missing"),
        ("[mask]", 0, "top: expected 1 or more, not 0"),
        (
            "the [mask]" + " cat" * 40,
            5,
            "text: 44 tokens are more than the model's context of 32; shorten it",
        ),
    ],
)
def test_bad_input(text: str, top: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        fill(bert(WORDS), WORDS, text, top=top)


@pytest.mark.usefixtures("without_shape_checks")
def test_models_and_tokenizers_that_cannot_fill_masks() -> None:
    gpt = GPT(GPTConfig(vocabulary=60, context=8, width=8, depth=1, heads=1))
    with pytest.raises(TypeError, match=r"model: .*guesses"):
        fill(gpt, WORDS, "[mask]")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mlm_head: .*encoder"):
        fill(bert(WORDS, mlm_head=False, pooler=False, next_sentence=False), WORDS, "[mask]")
    without = Tokenizer(WORDS.inner)
    without.mask = None
    with pytest.raises(ValueError, match="tokenizer: it has no mask token"):
        fill(bert(WORDS), without, "[mask]")
