"""Syntax in heads: does a head attend from a word to its syntactic head, for each relation?

For each word a head predicts the other word that gets most of its attention (or that gives most
attention to it: both directions are tried). The baseline is the best fixed offset, such as the
previous word. Head, direction and offset are chosen on one half of the sentences and measured on
the other. Clark et al. (2019) do both on the same sentences, which overestimates the best of many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.bootstrap import ratio_intervals
from qkv.data.batches.framing import encode_texts, word_separator
from qkv.data.sources.conllu import ConlluSentence, ConlluWord
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import hook_layers
from qkv.insight.inspect.model_input import frame_tokens
from qkv.insight.inspect.whole_words import WholeWord, join_words
from qkv.models.model import Model, backbone_of
from qkv.models.sites import attention_sites
from qkv.text.tokenizer import Tokenizer

Direction = Literal["to its head", "from its head"]
DIRECTIONS: tuple[Direction, ...] = ("to its head", "from its head")
FAR = 10
"""Offsets from -FAR to FAR are tried."""
LEAST = 20
"""A relation needs this number of measured words."""
ALL = "all"
LEFT_OUT = ("root", "punct")


class RelationScore(NamedTuple):
    """The best head for one syntactic relation."""

    name: str
    """The relation, such as nsubj; "all" is every relation together."""
    words: int
    """The number of words that it was measured on."""
    layer: int
    head: int
    direction: Direction
    """Whether the dependent attends to its head, or the head to its dependent."""
    accuracy: float
    low: float
    """Lower end of the 95% confidence interval over the sentences."""
    high: float
    """Upper end."""
    offset: int
    """The best fixed offset: -1 is the previous word."""
    baseline: float
    """The accuracy of that offset."""
    gain_low: float
    """Lower end of the 95% confidence interval of accuracy - baseline."""
    gain_high: float
    """Upper end."""

    @property
    def named_head(self) -> str:
        """layer.head with an arrow: from the word to its syntactic head, or back."""
        arrow = "→" if self.direction == "to its head" else "←"
        return f"{self.layer}.{self.head} {arrow}"


class SyntaxResult(NamedTuple):
    """The best heads for all relations."""

    relations: list[RelationScore]
    """The first entry is all relations together, then the most frequent first."""
    sentences: int
    left_out: int
    """The number of sentences that are longer than the model's context."""
    halves: bool
    """True if heads were chosen on one half of the sentences and measured on the other."""

    @property
    def summary(self) -> str:
        """How the heads were measured, for captions."""
        selection = "chosen on the sentences they are measured on"
        if self.halves:
            selection = "chosen on one half, measured on the other"

        summary = f"{self.sentences:,} sentences; head and offset {selection}"
        if self.left_out:
            summary += f"; {self.left_out:,} longer than the context were left out"

        return summary


class Arcs(NamedTuple):
    """Every dependent word, and which heads of the model find its syntactic head."""

    relation: list[str]
    sentence: Int[np.ndarray, "A"]
    offset: Int[np.ndarray, "A"]
    """The position of the syntactic head relative to the word, in words."""
    right: Bool[np.ndarray, "A 2 L H"]
    """Whether the prediction is right, by direction, layer and head."""


def head_syntax(
    model: Model,
    tokenizer: Tokenizer,
    sentences: Sequence[ConlluSentence],
    progress: Callable[[int, int], None] | None = None,
    *,
    halves: bool = True,
    subtypes: bool = False,
    least: int = LEAST,
) -> SyntaxResult:
    """Find the best head for each syntactic relation, and compare it with the best fixed offset.

    Args:
        model: A GPT or BERT, or a task model with one of them.
        tokenizer: Its tokenizer.
        sentences: Parsed sentences (CoNLL-U). Roots and punctuation are left out.
        progress: Called with the number of finished sentences and of all sentences.
        halves: Choose on every other sentence and measure on the rest.
        subtypes: Treat nsubj:pass and nsubj as different relations.
        least: The number of measured words that a relation needs.

    Returns:
        The best head, its accuracy, and the baseline for each relation.

    Raises:
        ValueError: If no relation is frequent enough, or the model reads two texts.

    Example:
        >>> from qkv.data.sources.conllu import ConlluSentence, ConlluWord
        >>> from qkv import insight, models, text
        >>> cat = ConlluWord(1, "cats", "_", "_", "_", "_", 2, "nsubj", "_", "_", 1)
        >>> sleep = ConlluWord(2, "sleep", "_", "_", "_", "_", 0, "root", "_", "_", 2)
        >>> tokenizer = text.train("words", ["cats sleep"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> sentences = [ConlluSentence((cat, sleep), ())] * 2
        >>> result = insight.head_syntax(model, tokenizer, sentences, least=1)
        >>> [relation.name for relation in result.relations]
        ['all', 'nsubj']
    """
    arcs, count, left_out = find_arcs(model, tokenizer, sentences, progress, subtypes)
    chosen = np.ones(len(arcs.sentence), dtype=bool)
    measured = chosen
    if halves:
        chosen = arcs.sentence % 2 == 0
        measured = ~chosen

    relations = best_heads(arcs, chosen, measured, least)
    if not relations:
        raise ValueError(
            f"sentences: no relation occurs {least} times or more in {count}; give more sentences"
        )

    return SyntaxResult(relations, count, left_out, halves)


def best_heads(
    arcs: Arcs, chosen: Bool[np.ndarray, "A"], measured: Bool[np.ndarray, "A"], least: int
) -> list[RelationScore]:
    """The best head for all relations together, then for each, the most frequent first."""
    names = np.array(arcs.relation)
    counts = Counter(arcs.relation)
    by_frequency = sorted(counts, key=lambda name: (-counts[name], name))
    relations = []

    for name in [ALL, *by_frequency]:
        selected = names == name
        if name == ALL:
            selected = np.ones(len(names), dtype=bool)

        if (selected & measured).sum() >= max(1, least) and (selected & chosen).any():
            relations.append(best_head(name, arcs, selected & chosen, selected & measured))

    return relations


def best_head(
    name: str, arcs: Arcs, chosen: Bool[np.ndarray, "A"], measured: Bool[np.ndarray, "A"]
) -> RelationScore:
    """Choose head, direction and offset on some arcs, and measure them on others."""
    # Choose
    correct = arcs.right[chosen].sum(0)  # (2, L, H)
    direction, layer, head = map(int, np.unravel_index(correct.argmax(), correct.shape))
    frequencies = Counter(arcs.offset[chosen].tolist())
    offsets = [*range(-FAR, 0), *range(1, FAR + 1)]
    offset = max(offsets, key=lambda distance: frequencies[distance])

    # Measure; the intervals resample sentences, since the words of a sentence are not independent.
    right = arcs.right[measured, direction, layer, head]
    fixed = arcs.offset[measured] == offset
    _, unit = np.unique(arcs.sentence[measured], return_inverse=True)
    correct_sums = np.bincount(unit, weights=right)
    gain_sums = np.bincount(unit, weights=right.astype(float) - fixed)
    words = np.bincount(unit).astype(float)[:, None]
    low, high = ratio_intervals(np.stack([correct_sums, gain_sums], axis=1), words)

    return RelationScore(
        name,
        int(measured.sum()),
        layer,
        head,
        DIRECTIONS[direction],
        float(right.mean()),
        float(low[0]),
        float(high[0]),
        offset,
        float(fixed.mean()),
        float(low[1]),
        float(high[1]),
    )


def find_arcs(
    model: Model,
    tokenizer: Tokenizer,
    sentences: Sequence[ConlluSentence],
    progress: Callable[[int, int], None] | None = None,
    subtypes: bool = False,
) -> tuple[Arcs, int, int]:
    """Run the model on every sentence; also return the numbers of read and of too long ones."""
    backbone = backbone_of(model)
    if model.has_source:
        raise ValueError(
            "model: syntax is measured in a model that reads one text; expected a GPT or a BERT"
        )

    relations: list[str] = []
    sentence_numbers: list[int] = []
    offsets: list[int] = []
    right: list[Bool[np.ndarray, "A 2 L H"]] = []
    count = left_out = 0

    with torch.no_grad(), without_dropout(model):
        for sentence in sentences:
            if progress is not None:
                progress(count + left_out + 1, len(sentences))

            ids, words = encode_sentence(model, tokenizer, sentence)
            if len(ids) > backbone.config.context:
                left_out += 1
                continue

            count += 1
            dependents = dependents_of(sentence)
            if not dependents:
                continue

            predicted = predicted_words(model, ids, words)  # (2, L, H, W)
            own = torch.tensor([word.id - 1 for word in dependents])  # (A,)
            heads = torch.tensor([head_of(word, sentence) - 1 for word in dependents])
            right.append((predicted[..., own] == heads).movedim(-1, 0).numpy())  # (A, 2, L, H)
            offsets += (heads - own).tolist()
            sentence_numbers += [count] * len(dependents)
            relations += [relation_of(word, subtypes) for word in dependents]

    if not right:
        raise ValueError(
            "sentences: no word has a syntactic head; expected CoNLL-U with heads and relations"
        )

    arcs = Arcs(relations, np.array(sentence_numbers), np.array(offsets), np.concatenate(right))
    return arcs, count, left_out


def dependents_of(sentence: ConlluSentence) -> list[ConlluWord]:
    """The words with a syntactic head, without punctuation."""
    dependents = []
    for word in sentence.words:
        if word.head and relation_of(word) not in LEFT_OUT:
            dependents.append(word)

    return dependents


def relation_of(word: ConlluWord, subtypes: bool = False) -> str:
    """The relation of a word, such as nsubj, or with its subtype nsubj:pass."""
    if subtypes:
        return word.deprel

    return word.deprel.split(":")[0]


def head_of(word: ConlluWord, sentence: ConlluSentence) -> int:
    """The id of a word's syntactic head; raises if the sentence has no such word."""
    assert word.head is not None
    if word.head > len(sentence.words):
        raise ValueError(
            f"line {word.line}: the head of word {word.id} is word {word.head}, which does not "
            "exist"
        )

    return word.head


def predicted_words(
    model: Model, ids: list[int], words: Sequence[WholeWord]
) -> Int[Tensor, "2 L H W"]:
    """For each word the word that each head points to, in both directions; -1 for none."""
    (site,) = attention_sites(model)
    predicted = torch.zeros(2, site.depth, site.heads, len(words), dtype=torch.int64)

    def store(weights: Float[Tensor, "1 H T S"], name: str, layer: int) -> None:
        """Hook: the word that each word attends to most, and the one that attends to it most."""
        # Between whole words; special tokens are left out, and so is a word's attention to itself.
        joined = join_words(weights[0].float(), words, words)  # (H, W, W)
        joined.diagonal(dim1=1, dim2=2).zero_()
        for direction, attention in enumerate((joined, joined.mT)):
            most, word = attention.max(-1)  # (H, W)
            predicted[direction, layer] = torch.where(most > 0, word, -1).cpu()

    with hook_layers(model, site, "weights", store):
        backbone_of(model).hidden(torch.tensor([ids], device=next(model.parameters()).device))

    return predicted


def encode_sentence(
    model: Model, tokenizer: Tokenizer, sentence: ConlluSentence
) -> tuple[list[int], list[WholeWord]]:
    """The ids of a sentence with its special tokens, and the positions of each word.

    Each word is encoded by itself, after a space unless the file has SpaceAfter=No.
    """
    space = word_separator(tokenizer)
    spelled = []
    needs_space = False
    for word in sentence.words:
        form = word.form
        if needs_space:
            form = space + form

        spelled.append((form, f"line {word.line}"))
        needs_space = "SpaceAfter=No" not in word.misc.split("|")

    frame = frame_tokens(model, tokenizer)["self"]
    ids = list(frame.before)
    words = []
    for word, pieces in zip(sentence.words, encode_texts(tokenizer, spelled), strict=True):
        words.append(WholeWord(word.form, list(range(len(ids), len(ids) + len(pieces)))))
        ids += pieces

    return [*ids, *frame.after], words
