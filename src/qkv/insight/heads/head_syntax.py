"""Does a head know grammar? Whether it points from a word to the word that this one hangs on, for
each relation.

A head says, for each word, the other word that gets most of its attention (or gives it most: both
directions are asked). So does the best fixed offset, such as "the word before": a head that knows
no more than that is no better. Head, direction and offset are chosen on one half of the sentences
and measured on the other. Clark et al. 2019 do both on the same ones, which flatters: the best of
many always looks good where it was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.bootstrap import ratio_intervals
from qkv.data.batches.framing import encoded, space_between
from qkv.data.sources.conllu import ConlluSentence, ConlluWord
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.capture import attention_sites
from qkv.insight.inspect.model_input import frame_tokens as marks_of
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.whole_words import WholeWord, join_words
from qkv.models import BERT, GPT
from qkv.models.registry import Model, backbone_of
from qkv.text.tokenizer import Tokenizer

Direction = Literal["to its head", "from its head"]
DIRECTIONS: tuple[Direction, ...] = ("to its head", "from its head")
FAR = 10
"""Offsets from -FAR to FAR are tried."""
LEAST = 20
"""A relation that is met less often is not told of."""
ALL = "all"
LEFT_OUT = ("root", "punct")


class Relation(NamedTuple):
    name: str
    """Such as nsubj; all is every relation together."""
    words: int
    """That it was measured on."""
    layer: int
    head: int
    direction: Direction
    """Who looks: the word at what it hangs on, or that at the word."""
    accuracy: float
    low: float
    high: float
    """Between these it lies 95 times in 100, the sentences being only a sample."""
    offset: int
    """The best fixed one: -1 is the word before."""
    baseline: float
    """Its accuracy."""
    gain_low: float
    gain_high: float
    """Between these lies accuracy - baseline."""


class Syntax(NamedTuple):
    relations: list[Relation]
    """The most frequent first; the first one is all of them together."""
    sentences: int
    left_out: int
    """Sentences longer than the model's context, which were not read."""
    halves: bool
    """Chosen on one half and measured on the other."""


class Arcs(NamedTuple):
    """Every word that hangs on another, and which heads find that one."""

    relation: list[str]
    sentence: Int[np.ndarray, "A"]
    offset: Int[np.ndarray, "A"]
    """Where the word's head is, counted in words from the word itself."""
    right: Bool[np.ndarray, "A 2 L H"]
    """By direction, layer and head."""


def syntax(
    model: Model,
    tokenizer: Tokenizer,
    sentences: Sequence[ConlluSentence],
    progress: Callable[[int, int], None] | None = None,
    *,
    halves: bool = True,
    subtypes: bool = False,
    least: int = LEAST,
) -> Syntax:
    """The best head for each relation against the best fixed offset. Root and punctuation are left
    out.

    With `halves` both are chosen on every other sentence and measured on the rest. With `subtypes`
    nsubj:pass is another relation than nsubj.
    """
    arcs, count, left_out = find_arcs(model, tokenizer, sentences, progress, subtypes)
    chosen = arcs.sentence % 2 == 0 if halves else np.ones(len(arcs.sentence), dtype=bool)
    measured = ~chosen if halves else chosen
    names = np.array(arcs.relation)
    frequent = [
        name
        for name, _ in sorted(counted(arcs.relation).items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    found = []

    for name in [ALL, *frequent]:
        own = np.ones(len(names), dtype=bool) if name == ALL else names == name
        if (own & measured).sum() >= max(1, least) and (own & chosen).any():
            found.append(relation(name, arcs, own & chosen, own & measured))

    if not found:
        raise ValueError(
            f"sentences: no relation is met {least} times or more in {count}; give more sentences"
        )

    return Syntax(found, count, left_out, halves)


def counted(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in set(names)}


def relation(
    name: str, arcs: Arcs, chosen: Bool[np.ndarray, "A"], measured: Bool[np.ndarray, "A"]
) -> Relation:
    heads = arcs.right[chosen].sum(0)  # (2, L, H)
    direction, layer, head = (int(each) for each in np.unravel_index(heads.argmax(), heads.shape))
    tried = [each for each in range(-FAR, FAR + 1) if each]
    offset = max(tried, key=lambda each: int((arcs.offset[chosen] == each).sum()))
    right = arcs.right[measured, direction, layer, head]
    fixed = arcs.offset[measured] == offset
    # The words of a sentence are right or wrong together, so sentences are what is drawn for the
    # interval.
    _, unit = np.unique(arcs.sentence[measured], return_inverse=True)
    sums = [np.bincount(unit, weights=each) for each in (right, right.astype(float) - fixed)]
    low, high = ratio_intervals(np.stack(sums, axis=1), np.bincount(unit).astype(float)[:, None])
    ends = (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))

    return Relation(
        name, int(measured.sum()), layer, head, DIRECTIONS[direction], float(right.mean()), *ends[0], offset,
        float(fixed.mean()), *ends[1],
    )  # fmt: skip


def find_arcs(
    model: Model,
    tokenizer: Tokenizer,
    sentences: Sequence[ConlluSentence],
    progress: Callable[[int, int], None] | None = None,
    subtypes: bool = False,
) -> tuple[Arcs, int, int]:
    """Let the model read every sentence; also how many were read, and how many were too long."""
    backbone = backbone_of(model)
    if not isinstance(backbone, GPT | BERT):
        raise ValueError(
            "model: syntax is asked of a model that reads one text; expected a GPT or a BERT"
        )

    (place,) = attention_sites(model)
    device = next(model.parameters()).device
    relations: list[str] = []
    numbers: list[int] = []
    offsets: list[int] = []
    right: list[Bool[np.ndarray, "A 2 L H"]] = []
    count = left_out = 0

    with torch.no_grad(), without_dropout(model):
        for sentence in sentences:
            if progress is not None:
                progress(count + left_out + 1, len(sentences))

            ids, words = framed(model, tokenizer, sentence)
            if len(ids) > backbone.config.context:
                left_out += 1
                continue

            count += 1
            hanging = [
                word
                for word in sentence.words
                if word.head and word.deprel.split(":")[0] not in LEFT_OUT
            ]
            if not hanging:
                continue

            pointed = torch.zeros(2, place.depth, place.heads, len(words), dtype=torch.int64)
            with ExitStack() as listening:
                for layer in range(place.depth):
                    hear = partial(point, words=words, into=pointed[:, layer])
                    listening.enter_context(
                        require_hook(model, place.hook_point(layer, "weights"), hear, heads=place.heads)
                    )

                backbone.hidden(torch.tensor([ids], device=device))

            dependents = torch.tensor([word.id - 1 for word in hanging])  # (A,)
            heads = torch.tensor([head_of(word, sentence) - 1 for word in hanging])
            right.append((pointed[..., dependents] == heads).movedim(-1, 0).numpy())  # (A, 2, L, H)
            relations += [
                word.deprel if subtypes else word.deprel.split(":")[0] for word in hanging
            ]
            offsets += (heads - dependents).tolist()
            numbers += [count] * len(hanging)

    if not right:
        raise ValueError(
            "sentences: no word of them hangs on another; expected CoNLL-U with heads and relations"
        )

    return (
        Arcs(relations, np.array(numbers), np.array(offsets), np.concatenate(right)),
        count,
        left_out,
    )


def head_of(word: ConlluWord, sentence: ConlluSentence) -> int:
    assert word.head is not None
    if word.head > len(sentence.words):
        raise ValueError(
            f"line {word.line}: word {word.id} hangs on word {word.head}, and there is none"
        )

    return word.head


def point(
    weights: Float[Tensor, "1 H T S"],
    name: str,
    *,
    words: Sequence[WholeWord],
    into: Int[Tensor, "2 H W"],
) -> None:
    """The other word that each word looks at most, and the one that looks at it most; -1 where
    there is none.
    """
    joined = join_words(
        weights[0].float(), words, words
    )  # (H, W, W): from words to words, the marks left out
    joined = joined.masked_fill(torch.eye(len(words), dtype=torch.bool, device=joined.device), 0)

    for direction, seen in enumerate((joined, joined.transpose(-2, -1))):
        most, place = seen.max(-1)  # (H, W)
        into[direction] = torch.where(most > 0, place, -1).cpu()


def framed(
    model: Model, tokenizer: Tokenizer, sentence: ConlluSentence
) -> tuple[list[int], list[WholeWord]]:
    """The ids of a sentence, and which of them are whose. Each word is encoded by itself, with a
    space before it unless the file says that there is none."""
    space, spelled = space_between(tokenizer), []
    for number, word in enumerate(sentence.words):
        joined = number and "SpaceAfter=No" in sentence.words[number - 1].misc.split("|")
        spelled.append(
            (word.form if joined or not number else space + word.form, f"line {word.line}")
        )

    before, after = marks_of(model, tokenizer)["self"]
    ids, words = [*before], []

    for word, pieces in zip(sentence.words, encoded(tokenizer, spelled), strict=True):
        words.append(WholeWord(word.form, list(range(len(ids), len(ids) + len(pieces)))))
        ids += pieces

    return [*ids, *after], words
