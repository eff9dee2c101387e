from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from qkv.data.sources.examples import Example
from qkv.generation.classify import STRETCH, Answer, answers, classify
from qkv.models import BERT, BERTConfig, TaskModel
from support.small_task_models import ASKED, LABELS, Small, alone, small_tuned

KINDS = [
    *((task, family, None, False) for task in ASKED for family in ("gpt", "bert")),
    ("classify", "bert", "mean", False),
    ("classify", "gpt", "mean", False),
    ("tag", "bert", "mean", False),
    ("similarity", "bert", None, True),
]


def said(answer: Answer, task: str) -> object:
    """What is compared: numbers only."""
    if answer.tags is not None:
        return [probability for *_, probability in answer.tags]
    if answer.number is not None:
        return [answer.number]
    return list(answer.scores.values()) if isinstance(answer.scores, dict) else answer.scores


@pytest.mark.parametrize(("task", "family", "pooling", "numbers"), KINDS)
def test_answers_are_those_of_each_example_alone(
    task: str, family: str, pooling: str | None, numbers: bool
) -> None:
    small = small_tuned(task, family, pooling=pooling, numbers=numbers)
    precise = Small(deepcopy(small.model).double(), small.tokenizer)
    for texts, answer in zip(ASKED[task], classify(*precise, ASKED[task]), strict=True):
        scores = alone(small, texts)
        if precise.model.config.head.numbers:
            assert answer == Answer(number=answer.number)
            assert answer.number == pytest.approx(float(scores), rel=1e-9)
            continue
        probability = scores.softmax(-1)
        if task == "tag":
            assert answer.tags is not None
            assert [token for token, *_ in answer.tags] == list(texts)
            assert [tag for _, tag, _ in answer.tags] == [
                LABELS[best] for best in scores.argmax(-1).tolist()
            ]
            assert [item for *_, item in answer.tags] == pytest.approx(
                probability.amax(-1).tolist(), rel=1e-9
            )
            continue
        best = int(scores.argmax())
        of_each = probability.tolist()
        expected = of_each if task == "choice" else dict(zip(LABELS, of_each, strict=True))
        assert answer.scores == pytest.approx(expected, rel=1e-9)
        assert answer.probability == pytest.approx(float(probability.max()), rel=1e-9)
        assert (answer.choice, answer.label) == (
            (best, None) if task == "choice" else (None, LABELS[best])
        )


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("task", ASKED)
def test_the_batch_does_not_matter(task: str, family: str) -> None:
    """The answer to an example does not depend on its neighbours or on the order."""
    small = small_tuned(task, family)
    options = ASKED[task] * 3
    expected = [said(item, task) for item in classify(*small, ASKED[task])] * 3
    for rows in (1, 2, 5, 32):
        actual = [said(item, task) for item in classify(*small, options, rows=rows)]
        for one, other in zip(actual, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4)


def test_choices_with_the_same_text_are_two() -> None:
    small = small_tuned("choice", "gpt")
    (actual,) = classify(*small, [("the cat", "sat.", "ran.", "sat.")])
    assert isinstance(actual.scores, list)
    assert len(actual.scores) == 3
    assert actual.scores[0] == pytest.approx(actual.scores[2])
    assert sum(actual.scores) == pytest.approx(1)


def test_numbers_far_from_zero_differ() -> None:
    """As seconds since 1970 are, which float32 has only every 128th of."""
    small = small_tuned("regress", "bert")
    head = replace(small.model.config.head, offset=1_700_000_006.0, scale=3.75)
    far = TaskModel(replace(small.model.config, head=head)).eval()
    far.load_state_dict(small.model.state_dict())
    near = [(answer.number - 3.0) / 2.0 for answer in classify(*small, ASKED["regress"])]  # type: ignore[operator]
    numbers = [answer.number for answer in classify(far, small.tokenizer, ASKED["regress"])]
    assert numbers == pytest.approx(
        [1_700_000_006.0 + 3.75 * item for item in near], rel=0, abs=1e-5
    )
    assert numbers[0] != numbers[1]


def test_an_endless_stream_is_answered_stretch_by_stretch() -> None:
    model, tokenizer = small_tuned("classify", "bert")
    read = []

    def endless() -> Iterator[Example]:
        while True:
            read.append(len(read))
            yield Example((["mice", "the cat sat on the mat"][len(read) % 2],), None, "here")

    actual = answers(model, tokenizer, endless(), rows=2)
    first = [next(actual).probability for _ in range(4)]
    assert len(read) == 2 * STRETCH
    assert first[0] == pytest.approx(first[2])
    assert first[1] == pytest.approx(first[3])
    assert first[0] != pytest.approx(first[1])


def test_dropout_is_off_and_comes_back() -> None:
    model, tokenizer = small_tuned("classify", "bert")
    expected = classify(model, tokenizer, ["the cat"])
    model.train()
    model.backbone.stack.blocks[0].eval()
    assert classify(model, tokenizer, ["the cat"]) == expected
    assert model.training
    assert not model.backbone.stack.blocks[0].training
    assert all(weight.grad is None for weight in model.parameters())


def test_what_is_cut_is_counted() -> None:
    calls: list[tuple[int, int]] = []
    model, tokenizer = small_tuned("tag", "bert", context=8)
    examples = [
        Example(("the",) * 9, None, "here"),
        Example(("the",) * 2, None, "here"),
        Example(("mice",) * 9, None, ""),
    ]
    actual = list(
        answers(model, tokenizer, examples, rows=1, cut=lambda *counts: calls.append(counts))
    )
    read = [len(item.tags or ()) for item in actual]
    assert read[1] == 2
    assert all(0 < count <= 6 for count in (read[0], read[2]))
    assert calls == [(2, 18 - read[0] - read[2])]
    calls.clear()
    assert (
        len(
            list(answers(model, tokenizer, examples[1:2], cut=lambda *counts: calls.append(counts)))
        )
        == 1
    )
    assert not calls


def test_words_may_come_in_one_string() -> None:
    small = small_tuned("tag", "gpt")
    assert classify(*small, ["the  teacher said"]) == classify(*small, [["the", "teacher", "said"]])


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("classify", " ", "text 2: it is empty; expected a text"),
        ("classify", ("a", "b"), "text 2: this model reads one text at a time, not 2"),
        ("pair", "a", "text 2: this model reads two texts together; give the second one, too"),
        ("similarity", ("a", "b", "c"), "text 2: this model reads two texts together"),
        ("similarity", ("a", ""), "text 2: it is empty; expected a text"),
        (
            "choice",
            ("a", "b"),
            "text 2: this model chooses; expected a context and two choices or more",
        ),
        ("regress", ("a", "b", "c"), "text 2: this model reads one text or two, not 3"),
        ("tag", "", "text 2: it is empty; expected a text"),
    ],
)
def test_texts_that_the_task_does_not_have(
    task: str, text: str | tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        classify(*small_tuned(task, "bert"), [ASKED[task][0], text])


def test_models_that_were_not_taught() -> None:
    _, tokenizer = small_tuned("tag", "bert")
    bare = BERT(BERTConfig(vocabulary=tokenizer.vocabulary, width=16, depth=1, heads=2))
    with pytest.raises(TypeError, match="expected one with a task head, as qkv finetune makes it"):
        classify(bare, tokenizer, ["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows: expected 1 or more, not 0"):
        classify(*small_tuned("classify", "gpt"), ["a"], rows=0)
    with torch.no_grad():
        assert classify(*small_tuned("classify", "gpt"), []) == []
