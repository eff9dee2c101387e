"""Perplexity with windows and strides against a plain loop in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from qkv.data.sources.lines import DocumentPart
from qkv.evaluation.likelihood import Request, likelihoods
from qkv.evaluation.perplexity import of_pairs, of_texts, window_and_stride, windows
from qkv.models import GPT, RNN, RNNConfig, Transformer, TransformerConfig
from qkv.text import Tokenizer
from qkv.text.tokenizer_training import train
from support.shape_checks import unchecked
from support.small_evaluation import TEXT, small_gpt, small_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def surprise(model: GPT, ids: list[int], window: int, stride: int) -> list[float]:
    """Word after word: its window is the one whose last `stride` words it is among."""
    words = []
    for place in range(1, len(ids)):
        end = (
            window
            if place <= window
            else min(len(ids) - 1, window + stride * math.ceil((place - window) / stride))
        )
        end = min(end, len(ids) - 1)
        begin = max(0, end - window)
        with torch.no_grad(), unchecked():
            chances = model(torch.tensor([ids[begin:place]]))[0, -1].log_softmax(-1)
        words.append(float(chances[ids[place]]))
    return words


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 8), (16, 5), (16, 1), (48, 24)])
def test_equals_a_plain_loop(tokenizer: Tokenizer, window: int, stride: int) -> None:
    model = small_gpt(tokenizer.vocabulary).double()
    texts = [TEXT[:90], "the cat", "a", "on the mat"]
    assert tokenizer.end is not None
    documents = [[tokenizer.end, *tokenizer.encode(text)] for text in texts]
    words = [word for ids in documents for word in surprise(model, ids, window, stride)]
    found = of_texts(
        model, tokenizer, [DocumentPart(text, True) for text in texts], window=window, stride=stride
    )
    perplexity, per_character, per_byte = found.scores
    assert found.scored == found.tokens == len(words) == sum(len(ids) - 1 for ids in documents)
    assert perplexity.value == pytest.approx(math.exp(-sum(words) / len(words)))
    assert per_character.value == pytest.approx(-sum(words) / math.log(2) / len("".join(texts)))
    assert per_byte.value == per_character.value  # ASCII
    for score in found.scores:
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.value <= score.high


def test_a_document_may_come_in_pieces_and_bytes_are_not_characters(tokenizer: Tokenizer) -> None:
    model = small_gpt(tokenizer.vocabulary).double()
    pieces = [DocumentPart("the mäts\n", False), DocumentPart("a dog\n", True)]
    found = of_texts(model, tokenizer, pieces)
    whole = of_texts(model, tokenizer, [DocumentPart("the mäts\na dog\n", True)])
    assert found.scores[0].value == pytest.approx(whole.scores[0].value)
    assert (found.characters, found.bytes, found.documents) == (15, 16, 1)
    assert found.scores[1].value * 15 == pytest.approx(found.scores[2].value * 16)


@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_limit_scores_the_first_windows_of_all_documents(tokenizer: Tokenizer, limit: int) -> None:
    """Exactly as a loop over the first windows does, however the documents are cut into pieces."""
    model = small_gpt(tokenizer.vocabulary).double()
    texts = [TEXT[:40], "the cat", TEXT[:70]]
    encoded = [tokenizer.encode(text) for text in texts]
    whole = [each for ids in encoded for each in windows([tokenizer.end or 0, *ids], 8, 4)]
    found = of_texts(
        model,
        tokenizer,
        [DocumentPart(text, True) for text in texts],
        window=8,
        stride=4,
        limit=limit,
    )
    scored = sum(len(each.continuation) for each in whole[:limit])
    assert (found.windows, found.scored, found.tokens) == (limit, scored, scored)
    log_probability = sum(each.log_probability for each in likelihoods(model, whole[:limit]))
    assert found.scores[0].value == pytest.approx(math.exp(-log_probability / scored))

    read = "".join(texts)[: found.characters]
    assert tokenizer.encode("".join(texts))[:scored] == tokenizer.encode(read)
    assert found.scores[1].value == pytest.approx(-log_probability / math.log(2) / len(read))
    pieces = [
        DocumentPart(text[part], part.start > 0)
        for text in texts
        for part in (slice(0, 3), slice(3, None))
    ]
    again = of_texts(model, tokenizer, pieces, window=8, stride=4, limit=limit)
    assert again == found


def test_limit_reads_no_further_than_it_scores(tokenizer: Tokenizer) -> None:
    def endless() -> Iterator[DocumentPart]:
        while True:
            yield DocumentPart(TEXT, False)

    found = of_texts(
        small_gpt(tokenizer.vocabulary), tokenizer, endless(), window=16, stride=8, limit=50
    )
    assert (found.windows, found.tokens, found.documents) == (50, 16 + 49 * 8, 1)


def test_unknown_words_are_counted() -> None:
    tokenizer = train("words", ["the cat sat on the mat\n"] * 3, 20)
    model = small_gpt(tokenizer.vocabulary)
    found = of_texts(
        model,
        tokenizer,
        [DocumentPart("the zebra sat", True), DocumentPart("zebra on zebra", True)],
    )
    assert (found.unknown, found.tokens) == (3, 6)
    assert of_texts(model, tokenizer, [DocumentPart("the cat sat", True)]).unknown == 0
    translator = RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=8))
    assert (
        of_pairs(translator, tokenizer, [("the cat", "the zebra"), ("zebra", "on")]).unknown == 1
    )  # of the targets


def test_windows_score_every_word_once_and_are_full() -> None:
    """The sliding-window protocol: the first scores all of its words, the others their last
    `stride`.
    """
    ids = list(range(24))
    made = windows(ids, 10, 4)
    assert [each.continuation for each in made] == [
        tuple(range(1, 11)), tuple(range(11, 15)), tuple(range(15, 19)), tuple(range(19, 23)), (23,),
    ]  # fmt: skip
    assert made[1] == Request(tuple(range(4, 11)), tuple(range(11, 15)))
    assert {len(each.context) + len(each.continuation) - 1 for each in made} == {10}
    assert windows([1, 2], 10, 4) == [Request((1,), (2,))]
    assert windows([1], 10, 4) == []


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_targets_given_their_sources(tokenizer: Tokenizer, family: str) -> None:
    V = tokenizer.vocabulary
    model: Transformer | RNN
    if family == "transformer":
        model = Transformer(TransformerConfig(vocabulary=V, width=16, depth=1, heads=2)).double()
    else:
        model = RNN(RNNConfig(vocabulary=V, width=16, attention="additive")).double()
    pairs = [
        ("the cat", "a man sat"),
        ("a", "mat"),
        ("the dog ran to the man", "the the the"),
        ("who?", "a dog"),
    ]
    words = []
    start, end = tokenizer.start, tokenizer.end
    assert start is not None
    assert end is not None
    model.eval()
    for source, target in pairs:
        asked = [*tokenizer.encode(target), end]
        with torch.no_grad():
            logits = model(
                torch.tensor([[*tokenizer.encode(source), end]]),
                torch.tensor([[start, *asked[:-1]]]),
            )
        words += logits[0].log_softmax(-1)[range(len(asked)), asked].tolist()
    found = of_pairs(model, tokenizer, pairs)
    assert found.scored == len(words) == found.tokens + 4
    assert found.scores[0].value == pytest.approx(math.exp(-sum(words) / len(words)))


@pytest.mark.usefixtures("without_shape_checks")
def test_faults_are_one_sentence(tokenizer: Tokenizer) -> None:
    model = small_gpt(tokenizer.vocabulary)
    assert window_and_stride(model, None, None) == (48, 24)
    with pytest.raises(
        ValueError, match=r"^window: expected 1 to 48, the model's context, not 49$"
    ):
        window_and_stride(model, 49, None)
    with pytest.raises(
        ValueError, match=r"^stride: expected 1 to 20, the words that are read at once, not 0$"
    ):
        window_and_stride(model, 20, 0)
    with pytest.raises(ValueError, match=r"^data: there is no word in it$"):
        of_texts(model, tokenizer, [DocumentPart("", True)])
