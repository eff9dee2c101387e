"""Perplexity with windows and strides against a plain loop in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from qkv.data.sources.lines import DocumentPart
from qkv.evaluation.likelihood import Request, likelihoods
from qkv.evaluation.perplexity import (
    text_perplexity,
    translation_perplexity,
    window_and_stride,
    windows,
)
from qkv.models import GPT, RNN, RNNConfig, Transformer, TransformerConfig
from qkv.text import Tokenizer
from qkv.text.tokenizer_training import train
from support.shape_checks import unchecked
from support.small_evaluation import TEXT, small_gpt, small_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def token_logprobs(model: GPT, ids: list[int], window: int, stride: int) -> list[float]:
    """One pass per token, in the window whose last `stride` tokens include it."""
    logprobs = []
    for position in range(1, len(ids)):
        end = (
            window
            if position <= window
            else min(len(ids) - 1, window + stride * math.ceil((position - window) / stride))
        )
        end = min(end, len(ids) - 1)
        begin = max(0, end - window)
        with torch.no_grad(), unchecked():
            distribution = model(torch.tensor([ids[begin:position]]))[0, -1].log_softmax(-1)
        logprobs.append(float(distribution[ids[position]]))
    return logprobs


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 8), (16, 5), (16, 1), (48, 24)])
def test_equals_a_plain_loop(tokenizer: Tokenizer, window: int, stride: int) -> None:
    model = small_gpt(tokenizer.vocabulary).double()
    texts = [TEXT[:90], "the cat", "a", "on the mat"]
    assert tokenizer.end is not None
    documents = [[tokenizer.end, *tokenizer.encode(text)] for text in texts]
    logprobs = [value for ids in documents for value in token_logprobs(model, ids, window, stride)]
    result = text_perplexity(
        model, tokenizer, [DocumentPart(text, True) for text in texts], window=window, stride=stride
    )
    perplexity, per_character, per_byte = result.scores
    assert result.scored == result.tokens == len(logprobs) == sum(len(ids) - 1 for ids in documents)
    assert perplexity.value == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))
    assert per_character.value == pytest.approx(-sum(logprobs) / math.log(2) / len("".join(texts)))
    assert per_byte.value == per_character.value  # ASCII
    for score in result.scores:
        assert score.low is not None
        assert score.high is not None
        assert score.low <= score.value <= score.high


def test_a_document_may_come_in_pieces_and_bytes_are_not_characters(tokenizer: Tokenizer) -> None:
    model = small_gpt(tokenizer.vocabulary).double()
    pieces = [DocumentPart("the mäts\n", False), DocumentPart("a dog\n", True)]
    result = text_perplexity(model, tokenizer, pieces)
    whole = text_perplexity(model, tokenizer, [DocumentPart("the mäts\na dog\n", True)])
    assert result.scores[0].value == pytest.approx(whole.scores[0].value)
    assert (result.characters, result.bytes, result.documents) == (15, 16, 1)
    assert result.scores[1].value * 15 == pytest.approx(result.scores[2].value * 16)


@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_limit_scores_the_first_windows_of_all_documents(tokenizer: Tokenizer, limit: int) -> None:
    """The result equals a loop over the first windows, however documents are split into parts."""
    model = small_gpt(tokenizer.vocabulary).double()
    texts = [TEXT[:40], "the cat", TEXT[:70]]
    encoded = [tokenizer.encode(text) for text in texts]
    whole = [window for ids in encoded for window in windows([tokenizer.end or 0, *ids], 8, 4)]
    result = text_perplexity(
        model,
        tokenizer,
        [DocumentPart(text, True) for text in texts],
        window=8,
        stride=4,
        limit=limit,
    )
    scored = sum(len(request.continuation) for request in whole[:limit])
    assert (result.windows, result.scored, result.tokens) == (limit, scored, scored)
    log_likelihood = sum(
        likelihood.log_likelihood for likelihood in likelihoods(model, whole[:limit])
    )
    assert result.scores[0].value == pytest.approx(math.exp(-log_likelihood / scored))

    read = "".join(texts)[: result.characters]
    assert tokenizer.encode("".join(texts))[:scored] == tokenizer.encode(read)
    assert result.scores[1].value == pytest.approx(-log_likelihood / math.log(2) / len(read))
    pieces = [
        DocumentPart(text[part], part.start > 0)
        for text in texts
        for part in (slice(0, 3), slice(3, None))
    ]
    again = text_perplexity(model, tokenizer, pieces, window=8, stride=4, limit=limit)
    assert again == result


def test_limit_reads_no_further_than_it_scores(tokenizer: Tokenizer) -> None:
    def endless() -> Iterator[DocumentPart]:
        while True:
            yield DocumentPart(TEXT, False)

    result = text_perplexity(
        small_gpt(tokenizer.vocabulary), tokenizer, endless(), window=16, stride=8, limit=50
    )
    assert (result.windows, result.tokens, result.documents) == (50, 16 + 49 * 8, 1)


def test_unknown_tokens_are_counted() -> None:
    tokenizer = train("words", ["the cat sat on the mat\n"] * 3, 20)
    model = small_gpt(tokenizer.vocabulary)
    result = text_perplexity(
        model,
        tokenizer,
        [DocumentPart("the zebra sat", True), DocumentPart("zebra on zebra", True)],
    )
    assert (result.unknown, result.tokens) == (3, 6)
    assert text_perplexity(model, tokenizer, [DocumentPart("the cat sat", True)]).unknown == 0
    translator = RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=8))
    assert (
        translation_perplexity(
            translator, tokenizer, [("the cat", "the zebra"), ("zebra", "on")]
        ).unknown
        == 1
    )  # of the targets


def test_windows_score_every_token_once_and_are_full() -> None:
    """The first window scores all of its tokens, the others their last `stride` tokens."""
    ids = list(range(24))
    requests = windows(ids, 10, 4)
    assert [request.continuation for request in requests] == [
        tuple(range(1, 11)),
        tuple(range(11, 15)),
        tuple(range(15, 19)),
        tuple(range(19, 23)),
        (23,),
    ]
    assert requests[1] == Request(tuple(range(4, 11)), tuple(range(11, 15)))
    assert {len(request.context) + len(request.continuation) - 1 for request in requests} == {10}
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
    logprobs: list[float] = []
    start, end = tokenizer.start, tokenizer.end
    assert start is not None
    assert end is not None
    model.eval()
    for source, target in pairs:
        target_ids = [*tokenizer.encode(target), end]
        with torch.no_grad():
            logits = model(
                torch.tensor([[*tokenizer.encode(source), end]]),
                torch.tensor([[start, *target_ids[:-1]]]),
            )
        logprobs += logits[0].log_softmax(-1)[range(len(target_ids)), target_ids].tolist()
    result = translation_perplexity(model, tokenizer, pairs)
    assert result.scored == len(logprobs) == result.tokens + 4
    assert result.scores[0].value == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))


@pytest.mark.usefixtures("without_shape_checks")
def test_faults_are_one_sentence(tokenizer: Tokenizer) -> None:
    model = small_gpt(tokenizer.vocabulary)
    assert window_and_stride(model, None, None) == (48, 24)
    with pytest.raises(
        ValueError, match=r"^window: expected 1 to 48, the model's context, not 49$"
    ):
        window_and_stride(model, 49, None)
    with pytest.raises(ValueError, match=r"^stride: expected 1 to 20, .*not 0$"):
        window_and_stride(model, 20, 0)
    with pytest.raises(ValueError, match=r"^data: .*no tokens"):
        text_perplexity(model, tokenizer, [DocumentPart("", True)])
