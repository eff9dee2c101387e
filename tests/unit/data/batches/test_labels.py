"""Labels: classes, ids, weights and samples; errors name the file and the line."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.labels import (
    balanced_weights,
    class_names,
    in_order,
    label_numbers,
    label_targets,
    mean_and_deviation,
    sample_examples,
)
from qkv.data.sources.examples import Example


def labelled(labels: list, name: str = "train.tsv") -> list[Example]:
    return [Example(("text",), label, f"{name}:{line}") for line, label in enumerate(labels, 2)]


def refused(message: str) -> Any:
    return pytest.raises(ValueError, match="^" + re.escape(message) + "$")


def test_classes_are_sorted() -> None:
    assert class_names(labelled(["b", "a", "b", "a"]), labelled(["a"]), "classify") == (
        ("a", "b"),
        (),
    )
    assert class_names(labelled(["10", "9", "10", "9"]), [], "pair") == (("9", "10"), ())
    assert in_order({"10", "9", "x"}) == ("10", "9", "x")
    assert class_names(labelled(["0", "3"]), [], "choice") == ((), ())


def test_labels_that_cannot_be_learned() -> None:
    with refused("train.tsv:4: the class 'c' has this one example; add another, or leave it out"):
        class_names(labelled(["a", "b", "c", "a", "b"]), [], "classify")
    with refused("train.tsv:2: expected two classes to train on or more, found only a"):
        class_names(labelled(["a", "a"]), [], "classify")
    with refused("dev.tsv:3: the label 'c' is never seen in training"):
        class_names(
            labelled(["a", "b", "a", "b"]), labelled(["a", "c", "c"], "dev.tsv"), "similarity"
        )
    with refused("train.tsv:2: there is no label"):
        class_names(labelled([None]), [], "classify")


def test_rare_tags_are_noted() -> None:
    training, validation = labelled([("B", "A"), ("A",)]), labelled([("A", "C")], "dev.conllu")
    labels, notes = class_names(training, validation, "tag")
    assert labels == ("A", "B"), "only trained tags are classes"
    assert notes == (
        "dev.conllu:2: the tag C is never seen in training, so its words are not counted",
    )
    assert [ids.tolist() for ids in label_targets(validation, labels, "tag")] == [[0, IGNORE]]
    with refused("train.tsv:2: expected two classes to train on or more, found only A"):
        class_names(labelled([("A", "A")]), [], "tag")


def test_targets() -> None:
    assert list(label_targets(labelled(["b", "a", "b"]), ("a", "b"), "classify")) == [1, 0, 1]
    assert list(label_targets(labelled(["3", "0"]), (), "choice")) == [3, 0]
    tags = label_targets(labelled([("b", "a"), ("b",)]), ("a", "b"), "tag")
    assert [ids.tolist() for ids in tags] == [[1, 0], [1]]
    with refused("train.tsv:3: the label 'c' is not one of the model's: a, b"):
        label_targets(labelled(["a", "c"]), ("a", "b"), "classify")


def test_numbers() -> None:
    numbers = label_numbers(labelled(["1", "2.5", "-1e1"]))
    assert numbers.tolist() == [1.0, 2.5, -10.0]
    assert mean_and_deviation(numbers, "train.tsv") == pytest.approx(
        (np.mean([1, 2.5, -10]), np.std([1, 2.5, -10]))
    )
    with refused("train.tsv: all 2 numbers to train on are 0.5"):
        mean_and_deviation(np.array([0.5, 0.5]), "train.tsv")
    for label in ("nan", "inf", "one", ""):
        with refused(f"train.tsv:3: expected a number as the label, not {label!r}"):
            label_numbers(labelled(["1", label]))


@given(st.lists(st.integers(0, 4), min_size=1))
def test_balanced_classes_count_alike(targets: list[int]) -> None:
    weights = balanced_weights(targets, 5)
    counts = Counter(targets)
    assert [weights[label] * counts[label] for label in counts] == pytest.approx(
        [len(targets) / 5] * len(counts)
    )
    assert all(weights[label] == 1 for label in range(5) if label not in counts)
    assert balanced_weights([targets[:1], np.array(targets[1:], dtype=np.int64)], 5) == weights


@given(st.lists(st.sampled_from("aaabc"), min_size=1, max_size=40), st.integers(0, 9), st.data())
def test_some_examples(labels: list[str], seed: int, data: st.DataObject) -> None:
    examples = labelled(labels)
    most = data.draw(st.integers(1, len(labels)))
    chosen = sample_examples(examples, most, seed)
    assert len({example.where for example in chosen}) == most
    fewer = data.draw(st.integers(1, most))
    assert sample_examples(examples, fewer, seed) == chosen[:fewer]
    counts = Counter(example.label for example in chosen)
    available = Counter(labels)
    for label in available:  # as balanced as the examples allow
        assert counts[label] == available[label] or counts[label] >= max(counts.values()) - 1


def test_some_examples_at_random_keep_the_shape_of_their_numbers() -> None:
    examples = labelled(["0"] * 900 + [f"{number}.5" for number in range(100)])
    chosen = sample_examples(examples, 100, 0, even=False)
    assert 80 <= sum(example.label == "0" for example in chosen) <= 98
    assert sum(example.label == "0" for example in sample_examples(examples, 100, 0)) == 1


def test_some_examples_depend_on_the_seed() -> None:
    examples = labelled(["a", "b"] * 50)
    assert sample_examples(examples, 10, 0) != sample_examples(examples, 10, 1)
    assert (
        sample_examples(examples, 10, 0, even=False)
        == sample_examples(examples, 30, 0, even=False)[:10]
    )
    tagged = labelled([("a", "b")] * 20)
    assert len(set(sample_examples(tagged, 5, 0))) == 5
    for n in (0, 101):
        with refused(f"n: expected 1 to 100, the number of examples, not {n}"):
            sample_examples(examples, n, 0)
