"""Sentences with a marked word, read by a pre-trained model: vectors, attention, nearest means."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv import artifact
from qkv.data.embedded.everyday_english import english_texts
from qkv.data.embedded.word_senses import agent_sentences
from qkv.data.sources.examples import Example
from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.model_input import Reading, make_side
from qkv.insight.probing.activations import ProbeData, activations
from qkv.insight.probing.probe_tasks import frame_of, without_end
from qkv.models.model import Model
from qkv.text.tokenizer import Tokenizer

OWN = "head of this meaning"
OTHER = "head of the other meaning"
SHARED = "head of all other words"
MEAN = "mean of all heads"
AGENT = "head chosen on other words"
BEFORE = "the same head on the word before"


class PackagedModel(NamedTuple):
    """A pre-trained model with its tokenizer."""

    model: Model
    tokenizer: Tokenizer


class TokenizedSentence(NamedTuple):
    """The ids of a sentence, and the positions of the pieces of each of its words."""

    ids: Int[np.ndarray, "T"]
    words: list[range]


@cache
def pretrained(name: str, device: torch.device) -> PackagedModel:
    """Load a model once in a process: minilm, smollm2 or a folder.

    Raises:
        ValueError: If the model is in a package that is not installed; it names the command.
    """
    model, tokenizer = artifact.load(name)
    if tokenizer is None:
        raise ValueError(f"model: {name} has no tokenizer; expected minilm or smollm2")

    return PackagedModel(model.to(device).eval(), tokenizer)


# What the model reads


def tokenize_words(subject: PackagedModel, texts: Sequence[str]) -> list[TokenizedSentence]:
    """The sentences as the model reads them, with the pieces of each word of `text.split()`."""
    frame = frame_of(subject.model, subject.tokenizer, "tag", "first")
    examples = [Example(tuple(text.split()), None, text) for text in texts]
    sentences = []
    for framed in frame.encode(subject.tokenizer, examples):
        starts = framed.target_positions.tolist()
        ends = [*starts[1:], len(framed.sequences[0]) - 1]
        ids = without_end(subject.model, framed.sequences[0])
        sentences.append(TokenizedSentence(ids, list(map(range, starts, ends))))

    return sentences


def word_vectors(
    subject: PackagedModel, sentences: Sequence[TokenizedSentence], words: Sequence[int]
) -> dict[str, Float[Tensor, "N E"]]:
    """The vector of one word of each sentence (its last piece), for each layer."""
    positions = []
    for sentence, word in zip(sentences, words, strict=True):
        positions.append(np.array([sentence.words[word][-1]]))

    ids = [sentence.ids for sentence in sentences]
    data = ProbeData(ids, positions, np.zeros(len(ids), dtype=np.int64))
    with activations(subject.model, [data], keep="memory") as (vectors,):
        layers = vectors.layers
        blocks = [vectors.read(block, layers) for block in range(len(vectors.blocks))]

    return dict(zip(layers, torch.cat(blocks, dim=1), strict=True))


def attention_to(
    subject: PackagedModel,
    sentences: Sequence[TokenizedSentence],
    queries: Sequence[int],
    keys: Sequence[int],
) -> Float[Tensor, "N L H"]:
    """The weight from the last piece of one word to all pieces of another, in every head."""
    rows = []
    for sentence, query, key in zip(sentences, queries, keys, strict=True):
        reading = Reading(make_side(subject.tokenizer, sentence.ids.tolist()))
        (attention,) = capture_attention(subject.model, reading, overview=False)
        weights = torch.stack(list(attention.layers.values()))  # (L, H, T, T)
        to = sentence.words[key]
        rows.append(weights[:, :, sentence.words[query][-1], to.start : to.stop].sum(-1))

    return torch.stack(rows)


# Heads


def first_head(weights: Float[Tensor, "N L H"]) -> tuple[int, int]:
    """Layer and number of the first head with a mean weight above a half, or of the strongest.

    The first one counts: later layers read vectors into which words were mixed already.
    """
    mean = weights.mean(0)
    above = (mean > 0.5).flatten().nonzero().flatten().tolist()
    layer, head = divmod((above or [int(mean.argmax())])[0], mean.shape[1])
    return layer, head


def head_for_word_before(subject: PackagedModel, count: int) -> tuple[int, int]:
    """The `first_head` from a word to the one before it, chosen on sentences of everyday English.

    Args:
        subject: The model.
        count: Number of sentences; of each the word in the middle is read.
    """
    texts = english_texts("valid")[:count]
    middles = [len(text.split()) // 2 for text in texts]
    tokens = tokenize_words(subject, texts)
    return first_head(attention_to(subject, tokens, middles, [word - 1 for word in middles]))


def weights_on_agents(subject: PackagedModel, words: int) -> dict[str, list[float]]:
    """The weight from a word such as "run" to who runs, by a head that other words chose.

    Args:
        subject: The model.
        words: Number of words, with three sentences each.

    Returns:
        For each word the weight of the head that has the highest mean for the other words, of that
        head on the word before, and of all heads on average.
    """
    sentences = agent_sentences()[: 3 * words]
    tokens = tokenize_words(subject, [sentence.text for sentence in sentences])
    places = [sentence.index for sentence in sentences]
    agents = [sentence.cue for sentence in sentences]
    names = [sentence.word for sentence in sentences]
    on_agent = attention_to(subject, tokens, places, agents).flatten(1)
    before = attention_to(subject, tokens, places, [place - 1 for place in places]).flatten(1)

    found: dict[str, list[float]] = {AGENT: [], BEFORE: [], MEAN: []}
    for number, name in enumerate(numbered(names)):
        head = on_agent[numbered(names) != name].mean(0).argmax()
        found[AGENT].append(float(on_agent[number, head]))
        found[BEFORE].append(float(before[number, head]))
        found[MEAN].append(float(on_agent[number].mean()))

    return {weight: means_by(values, names) for weight, values in found.items()}


def weights_of_chosen(
    weights: Float[Tensor, "N LH"], meanings: Sequence[tuple[str, str]]
) -> dict[str, list[float]]:
    """The weight of some heads on the cue in each sentence; they are chosen on other sentences.

    Args:
        weights: The weight of each head on the cue.
        meanings: The word of each sentence, and its meaning.

    Returns:
        For each sentence the weight of the head that has the highest mean among the others of its
        meaning, of its word's other meaning, and of all other words; and the mean of all heads.
    """
    words = numbered([word for word, _ in meanings])
    numbers = numbered(meanings)
    found: dict[str, list[float]] = {OWN: [], OTHER: [], SHARED: [], MEAN: []}
    for number, row in enumerate(weights):
        same = numbers == numbers[number]
        chosen = {OWN: same.clone(), OTHER: (words == words[number]) & ~same}
        chosen[OWN][number] = False
        chosen[SHARED] = words != words[number]
        for name, among in chosen.items():
            found[name].append(float(row[weights[among].mean(0).argmax()]))

        found[MEAN].append(float(row.mean()))

    return found


# Nearest means


def nearest_mean(
    vectors: Float[Tensor, "N E"], labels: Bool[Tensor, "N"], held_out: Int[Tensor, "N"]
) -> list[float]:
    """Whether each vector is nearer to the mean of its own label than to that of the other.

    Args:
        vectors: The vectors, which are divided by their length first.
        labels: Which of two labels each has.
        held_out: The fold of each vector: the means are those of the other folds.

    Returns:
        1 for a right answer, 0 for a wrong one, 0.5 if both means are equally near.
    """
    vectors = F.normalize(vectors.double().cpu(), dim=-1)
    right = []
    for vector, label, fold in zip(vectors, labels, held_out, strict=True):
        known = held_out != fold
        distances = []
        for chosen in (labels == label, labels != label):
            distances.append(float((vector - vectors[known & chosen].mean(0)).norm()))

        nearer = distances[1] - distances[0]
        right.append(0.5 if abs(nearer) < 1e-9 else float(nearer > 0))

    return right


def accuracy_with(
    subject: PackagedModel,
    changes: Sequence[Sequence[Edit]],
    sentences: Sequence[TokenizedSentence],
    places: Sequence[int],
    words: Sequence[str],
    labels: Bool[Tensor, "N"],
) -> dict[int, list[float]]:
    """Right answers by word after each layer, on average over several ways to change the model."""
    right: dict[str, list[list[float]]] = {}
    for edits in changes:
        with apply_edits(subject.model, edits):
            vectors = word_vectors(subject, sentences, places)

        for layer, by_sentence in vectors.items():
            answers = nearest_mean(by_sentence, labels, numbered(words))
            right.setdefault(layer, []).append(means_by(answers, words))

    return {x: torch.tensor(answers).mean(0).tolist() for x, answers in enumerate(right.values())}


def told_apart(vectors: Float[Tensor, "N E"], meanings: Sequence[tuple[str, str]]) -> list[float]:
    """Whether each vector is nearer to the others of its meaning than to its word's other meaning.

    Args:
        vectors: The vectors of the words.
        meanings: The word of each sentence, and its meaning; each word has two.

    Returns:
        The answers of `nearest_mean`, with each sentence held out in its turn.
    """
    right = [0.0] * len(meanings)
    for name in dict.fromkeys(word for word, _ in meanings):
        chosen = [n for n, (word, _) in enumerate(meanings) if word == name]
        labels = torch.tensor([meanings[n] == meanings[chosen[0]] for n in chosen])
        answers = nearest_mean(vectors[chosen], labels, torch.arange(len(chosen)))
        for number, answer in zip(chosen, answers, strict=True):
            right[number] = answer

    return right


def numbered(keys: Sequence[Hashable]) -> Int[Tensor, "N"]:
    """Each key as a number: 0 for the first one, 1 for the next new one ..."""
    order = list(dict.fromkeys(keys))
    return torch.tensor([order.index(key) for key in keys])


def means_by(values: Sequence[float], keys: Sequence[Hashable]) -> list[float]:
    """The mean of the values of each key, in the order in which the keys come first."""
    found: dict[Hashable, list[float]] = {}
    for value, key in zip(values, keys, strict=True):
        found.setdefault(key, []).append(value)

    return list(map(statistics.fmean, found.values()))
