"""Framing: special tokens, segments, target positions and truncation as in the papers."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.framing import Frame, cut_pair
from qkv.data.batches.labelled import collate
from qkv.data.sources.examples import TASKS, Example
from qkv.text import Tokenizer, train

PAD, UNKNOWN, START, END, DELIMITER, EXTRACT = 0, 1, 2, 3, 4, 5
IDS = {letter: 10 + i for i, letter in enumerate("abcd")} | {
    "##" + letter: 20 + i for i, letter in enumerate("abcd")
}


def letters(unknown: bool = True) -> Tokenizer:
    """Letters as pieces: first letters are 10 to 13, others 20 to 23; ~ has no token."""
    special = ["[pad]", "[unknown]", "[start]", "[end]", "[delimiter]", "[extract]"]
    vocabulary = {**{name: id for id, name in enumerate(special)}, **IDS}
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[unknown]"))
    inner.normalizer = normalizers.Replace("~", "")
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(
        [AddedToken(name, special=True) for name in special if unknown or name != "[unknown]"]
    )
    return Tokenizer(inner)


TOKENIZER = letters()
GPT: dict[str, Any] = {
    "start": START,
    "delimiter": DELIMITER,
    "extract": EXTRACT,
    "padding": PAD,
    "segments": False,
}
BERT: dict[str, Any] = {
    "start": START,
    "delimiter": END,
    "extract": END,
    "padding": PAD,
    "segments": True,
}


def frame(
    task: str,
    special: dict[str, Any] = GPT,
    context: int = 100,
    pooling: str = "last",
    **changes: Any,
) -> Frame:
    return Frame(**{"task": task, "context": context, "pooling": pooling, **special, **changes})


def example(*texts: str, label: Any = None) -> Example:
    return Example(texts, label, "a.tsv:1")


def rows(frame: Frame, *examples: Example, **answers: Any) -> Batch:
    return collate(list(frame.encode(TOKENIZER, examples)), frame, **answers)


# Frames


def test_one_text() -> None:
    batch = rows(frame("classify"), example("a b"), example("abc d"), targets=[1, 0])
    assert batch.ids.tolist() == [
        [START, 10, 11, EXTRACT, PAD, PAD],
        [START, 10, 21, 22, 13, EXTRACT],
    ]
    assert batch.padding_mask is not None
    assert batch.padding_mask.sum(1).tolist() == [4, 6]
    assert batch.target_positions is not None
    assert batch.target_positions.tolist() == [[3], [5]]
    assert batch.targets.tolist() == [[1], [0]]
    assert batch.segments is None
    assert (batch.group, batch.count, batch.tokens) == (1, 2, 10)


def test_without_a_start_and_without_padding() -> None:
    batch = rows(frame("classify", start=None), example("a b"), example("c d"))
    assert batch.ids.tolist() == [[10, 11, EXTRACT], [12, 13, EXTRACT]]
    assert batch.padding_mask is None
    assert batch.targets.tolist() == [[0], [0]]


def test_a_pair() -> None:
    batch = rows(frame("pair"), example("a b", "c"), targets=[2])
    assert batch.ids.tolist() == [[START, 10, 11, DELIMITER, 12, EXTRACT]]
    assert batch.target_positions is not None
    assert batch.target_positions.tolist() == [[5]]


def test_a_pair_for_bert() -> None:
    batch = rows(frame("pair", BERT, pooling="first"), example("a b", "c"), example("a", "b"))
    assert batch.ids.tolist() == [[START, 10, 11, END, 12, END], [START, 10, END, 11, END, PAD]]
    assert batch.segments is not None
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert batch.target_positions is not None
    assert batch.target_positions.tolist() == [[0], [0]]
    alone = rows(frame("classify", BERT), example("a b"))
    assert alone.segments is not None
    assert alone.segments.tolist() == [[0, 0, 0, 0]]


def test_similarity_reads_both_orders() -> None:
    batch = rows(
        frame("similarity", BERT), example("a b", "c"), example("a", "b"), numbers=[2.5, 1.0]
    )
    assert batch.ids.tolist() == [
        [START, 10, 11, END, 12, END, START, 12, END, 10, 11, END],
        [START, 10, END, 11, END, PAD, START, 11, END, 10, END, PAD],
    ]
    assert batch.segments is not None
    assert batch.segments[0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    assert batch.target_positions is not None
    assert batch.target_positions.tolist() == [[5, 5], [4, 4]]  # inside each sequence
    assert batch.numbers is not None
    assert batch.numbers.tolist() == [[2.5], [1.0]]
    assert batch.targets.tolist() == [[0], [0]]
    assert (batch.group, batch.count) == (2, 2)


def test_choices_of_different_number() -> None:
    batch = rows(
        frame("choice"), example("a", "b", "cc"), example("a", "b", "c", "d"), targets=[1, 2]
    )
    first = [START, 10, DELIMITER, 11, EXTRACT, PAD]
    assert batch.ids.tolist() == [
        [
            *first,
            START,
            10,
            DELIMITER,
            12,
            22,
            EXTRACT,
            *first,
        ],  # its first sequence repeated as the third
        [*first, START, 10, DELIMITER, 12, EXTRACT, PAD, START, 10, DELIMITER, 13, EXTRACT, PAD],
    ]
    assert batch.target_positions is not None
    assert batch.target_positions.tolist() == [[4, 5, -1], [4, 4, 4]]
    assert batch.targets.tolist() == [[1], [2]]
    assert batch.group == 3


@pytest.mark.parametrize(
    ("pooling", "expected"), [("last", [2, 3, 6]), ("first", [1, 3, 4]), ("mean", [1, 3, 4])]
)
def test_a_word_is_tagged_at_its_first_or_its_last_piece(pooling: str, expected: list[int]) -> None:
    framed = frame("tag", pooling=pooling)
    batch = rows(framed, example("ab", "c", "dcb"), example("a"), targets=[[5, 6, 7], [8]])
    assert batch.ids.tolist() == [
        [START, 10, 21, 12, 13, 22, 21, EXTRACT],
        [START, 10, EXTRACT, *[PAD] * 5],
    ]
    assert batch.target_positions is not None
    assert batch.target_positions.tolist() == [expected, [1, 0, 0]]
    assert batch.targets.tolist() == [[5, 6, 7], [8, IGNORE, IGNORE]]
    assert rows(framed, example("ab", "c"), example("a")).targets.tolist() == [[0, 0], [0, IGNORE]]


def test_words_keep_the_space_before_them() -> None:
    """A sentence encoded word by word has the byte pairs of the sentence as one text."""
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "rat"]
    tokenizer = train("byte-pair", [" ".join(words)] * 9, 300)
    framed = frame("tag", start=None).encode(tokenizer, [example(*words)])
    ids = framed[0].sequences[0].tolist()
    assert tokenizer.decode(ids[:-1]) == " ".join(words)
    assert ids[:-1] == tokenizer.encode(" ".join(words))
    ends = [position + 1 for position in framed[0].target_positions.tolist()]
    decoded = [
        tokenizer.decode(ids[begin:end]).strip()
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    assert decoded == words


def test_a_tokenizer_that_puts_a_space_before_every_text() -> None:
    vocabulary = {name: id for id, name in enumerate(["▁", "a", "b", "▁a", "▁b", "ab"])}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁", "b"), ("a", "b")]))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    framed = frame("tag", start=None).encode(Tokenizer(inner), [example("a", "b", "ba")])[0]
    assert framed.sequences[0].tolist() == [3, 4, 4, 1, EXTRACT]
    assert framed.target_positions.tolist() == [0, 1, 3]


# Truncation


def cut_one_by_one(one: int, other: int, room: int) -> tuple[int, int]:
    while one + other > room:
        one, other = (one - 1, other) if one > other else (one, other - 1)
    return one, other


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_of_a_pair_the_longer_text_is_truncated(one: int, other: int, room: int) -> None:
    assert cut_pair(one, other, room) == cut_one_by_one(one, other, room)


def test_truncated_examples_are_counted() -> None:
    pair = frame("pair", context=7).encode(
        TOKENIZER, [example("abcd abcd", "ab"), example("ab", "cd")]
    )
    assert pair[0].sequences[0].tolist() == [START, 10, 21, DELIMITER, 10, 21, EXTRACT]
    assert (pair.cut, pair.lengths.tolist()) == (1, [7, 7])
    single = frame("classify", context=4).encode(TOKENIZER, [example("abcd"), example("ab")])
    assert single[0].sequences[0].tolist() == [START, 10, 21, EXTRACT]
    assert single.cut == 1
    choice = frame("choice", context=6).encode(TOKENIZER, [example("a", "bbbb", "cccc")])
    assert choice.cut == 1  # an example, not its sequences


@pytest.mark.parametrize(("pooling", "target_positions"), [("last", [1, 2]), ("first", [1, 2, 3])])
def test_words_beyond_the_context_have_no_position(
    pooling: str, target_positions: list[int]
) -> None:
    framing = frame("tag", context=5, pooling=pooling)
    framed = framing.encode(TOKENIZER, [example("a", "b", "cd", "a"), example("abcd")])
    assert framed[0].sequences[0].tolist() == [START, 10, 11, 12, EXTRACT]
    assert framed[0].target_positions.tolist() == target_positions
    assert (framed.cut, framed.words_cut) == (2, 4 - len(target_positions) + (pooling == "last"))
    batch = collate(list(framed), framing, targets=[[1, 2, 3, 4], [5]])
    assert batch.targets[0].tolist() == [1, 2, 3][: len(target_positions)]
    assert batch.targets[1, 0] == (IGNORE if pooling == "last" else 5)
    assert collate([framed[1]], framing, targets=[[5]]).targets.shape == (1, 1)


def test_a_word_without_tokens() -> None:
    unknown = frame("tag").encode(TOKENIZER, [example("a", "~", "b")])[0]
    assert unknown.sequences[0].tolist() == [START, 10, UNKNOWN, 11, EXTRACT]
    with pytest.raises(ValueError, match=r"^a\.tsv:1: .*no tokens for '~'"):
        frame("tag").encode(letters(unknown=False), [example("a", "~", "b")])
    with pytest.raises(ValueError, match=r"^a\.tsv:1: .*no tokens for '~ ~'"):
        frame("pair").encode(letters(unknown=False), [example("a", "~ ~")])


def test_a_context_without_room() -> None:
    with pytest.raises(ValueError, match=r"^context: 4 tokens have no room"):
        frame("pair", context=4).encode(TOKENIZER, [])
    with pytest.raises(ValueError, match=r"^context: 2 tokens have no room"):
        frame("classify", context=2).encode(TOKENIZER, [])


# All at once, against plain lists

WORD = st.text("abcd", min_size=1, max_size=4)
TEXT = st.lists(WORD, min_size=1, max_size=4).map(" ".join)


@st.composite
def tasks(draw: st.DrawFn) -> tuple[str, list[Example]]:
    task = draw(st.sampled_from(TASKS))
    texts = {
        "classify": st.tuples(TEXT),
        "regress": st.lists(TEXT, min_size=1, max_size=2).map(tuple),
    }.get(task)
    if task in ("pair", "similarity"):
        texts = st.tuples(TEXT, TEXT)
    elif task == "choice":
        texts = st.lists(TEXT, min_size=3, max_size=5).map(tuple)
    elif task == "tag":
        texts = st.lists(WORD, min_size=1, max_size=6).map(tuple)
    assert texts is not None
    return task, [example(*drawn) for drawn in draw(st.lists(texts, min_size=1, max_size=6))]


def expected_texts(
    task: str, encoded: list[list[int]], context: int
) -> list[tuple[list[int], list[int] | None]]:
    """The first and the second text of each sequence; single texts are truncated."""
    if task == "tag":
        return [(list(chain.from_iterable(encoded))[: context - 2], None)]
    if task == "choice":
        return [(encoded[0], choice) for choice in encoded[1:]]
    if len(encoded) == 1:
        return [(encoded[0][: context - 2], None)]
    if task == "similarity":
        return [(encoded[0], encoded[1]), (encoded[1], encoded[0])]

    return [(encoded[0], encoded[1])]


def expected_ids(
    first: list[int], second: list[int] | None, special: dict[str, Any], context: int
) -> tuple[list[int], int]:
    """The ids of a sequence, and how many of them belong to the second text."""
    if second is None:
        return [START, *first, special["extract"]], 0

    one, two = cut_one_by_one(len(first), len(second), context - 3)
    end = [*second[:two], special["extract"]]

    return [START, *first[:one], special["delimiter"], *end], len(end)


def expected_positions(encoded: list[list[int]], context: int, pooling: str) -> list[int]:
    """The positions of tagged words within the context."""
    positions: list[int] = []
    start = 1
    for pieces in encoded:
        position = start + len(pieces) - 1 if pooling == "last" else start
        if position <= context - 2:
            positions.append(position)

        start += len(pieces)

    return positions


@given(tasks(), st.booleans(), st.integers(5, 20), st.sampled_from(["first", "last"]))
def test_rows_equal_plain_lists(
    drawn: tuple[str, list[Example]], bert: bool, context: int, pooling: str
) -> None:
    task, examples = drawn
    special = BERT if bert else GPT
    batch = rows(frame(task, special, context, pooling), *examples)
    assert batch.target_positions is not None
    T = batch.ids.shape[1] // batch.group
    mask = torch.ones_like(batch.ids) if batch.padding_mask is None else batch.padding_mask

    for row, (texts, _, _) in enumerate(examples):
        encoded = [TOKENIZER.encode(text) for text in texts]
        for number, (first, second) in enumerate(expected_texts(task, encoded, context)):
            ids, seconds = expected_ids(first, second, special, context)
            padding = T - len(ids)
            part = slice(number * T, (number + 1) * T)
            assert batch.ids[row, part].tolist() == ids + [PAD] * padding
            assert mask[row, part].tolist() == [1] * len(ids) + [0] * padding
            if batch.segments is not None:
                segments = [0] * (len(ids) - seconds) + [1] * seconds + [0] * padding
                assert batch.segments[row, part].tolist() == segments
            if task != "tag":
                position = len(ids) - 1 if pooling == "last" else 0
                assert batch.target_positions[row, number] == position

        targets = int((batch.targets[row] != IGNORE).sum())
        if task == "tag":
            positions = expected_positions(encoded, context, pooling)
            filler = [0] * (batch.target_positions.shape[1] - len(positions))
            assert batch.target_positions[row].tolist() == positions + filler
            assert targets == len(positions)
        else:
            assert targets == 1


@given(tasks(), st.integers(1, 7))
def test_the_parts_of_a_batch_are_the_whole(drawn: tuple[str, list[Example]], parts: int) -> None:
    task, examples = drawn
    numbers = None if task == "tag" else [float(i) for i in range(len(examples))]
    whole = rows(frame(task, BERT), *examples, numbers=numbers)
    split = whole.split(parts)
    for name in (
        "ids",
        "target_positions",
        "targets",
        "segments",
        *([] if numbers is None else ["numbers"]),
    ):
        assert torch.equal(torch.cat([getattr(part, name) for part in split]), getattr(whole, name))
    assert {part.group for part in split} == {whole.group}
    assert sum(part.tokens for part in split) == whole.tokens
