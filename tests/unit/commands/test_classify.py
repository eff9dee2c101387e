"""qkv classify and qkv tag: the answers of the library, from every input to every output."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from qkv import artifact
from qkv.commands.classify import read_pipe
from qkv.generation.classify import classify
from support.command_fixtures import Qkv
from support.small_task_models import ASKED, LABELS, Small, small_tuned

WORDS = ("the", "cat", "sat")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    for task in ASKED:
        model, tokenizer = small_tuned(task, "gpt" if task in ("pair", "regress") else "bert")
        artifact.save(model, folder / task, tokenizer=tokenizer)

    return {task: folder / task for task in ASKED}


def opened(folder: Path) -> Small:
    model, tokenizer = artifact.load(folder)
    return Small(model, tokenizer)  # type: ignore[arg-type]


def as_table(header: str, separator: str, texts: list[str], labels: Iterable[object]) -> str:
    """A table of two columns."""
    lines = [header]
    for text, label in zip(texts, labels, strict=True):
        lines.append(f"{text}{separator}{label}")

    return "\n".join([*lines, ""])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# Inputs and answers


def test_a_pipe(qkv: Qkv, tuned: dict[str, Path]) -> None:
    texts = ["the cat sat", "mice ran", "don't they?"]
    expected = classify(*opened(tuned["classify"]), texts)
    printed = qkv("classify", tuned["classify"], typed="\n".join(texts))
    rows = [line.split("\t") for line in printed.out.splitlines()]
    for row, text, answer in zip(rows, texts, expected, strict=True):
        assert row == [answer.label, f"{answer.probability:.4f}", text]

    printed = qkv("classify", tuned["classify"], *texts, "--json")
    values = [json.loads(line) for line in printed.out.splitlines()]
    for value, text, answer in zip(values, texts, expected, strict=True):
        assert (value["text"], value["label"]) == (text, answer.label)

    assert values[0]["scores"] == pytest.approx(expected[0].scores, rel=1e-4)
    assert values[0]["probability"] == max(values[0]["scores"].values())


def test_pairs(qkv: Qkv, tuned: dict[str, Path]) -> None:
    (expected,) = classify(*opened(tuned["pair"]), [("the cat sat", "mice")])
    row = f"{expected.label}\t{expected.probability:.4f}\tthe cat sat\tmice\n"
    assert qkv("classify", tuned["pair"], "the cat sat", "--pair", "mice").out == row
    assert qkv("classify", tuned["pair"], typed="the cat sat\tmice\r\n").out == row
    values = json.loads(
        qkv("classify", tuned["pair"], "the cat sat", "--pair", "mice", "--json").out
    )
    assert (values["text"], values["pair"], values["label"]) == (
        "the cat sat",
        "mice",
        expected.label,
    )


def test_numbers(qkv: Qkv, tuned: dict[str, Path]) -> None:
    expected = classify(*opened(tuned["regress"]), ["the cat", ("the cat", "mice")])
    printed = qkv("classify", tuned["regress"], typed="the cat\nthe cat\tmice\n").out.splitlines()
    numbers = [float(row.split("\t")[0]) for row in printed]
    assert numbers == pytest.approx([answer.number for answer in expected], rel=1e-4)
    values = json.loads(qkv("classify", tuned["regress"], "the cat", "--json").out)
    assert values == {"text": "the cat", "number": pytest.approx(expected[0].number, rel=1e-4)}


def test_choices(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    context, *choices = ASKED["choice"][0]
    (expected,) = classify(*opened(tuned["choice"]), [ASKED["choice"][0]])
    assert expected.choice is not None
    row = qkv("classify", tuned["choice"], context, *choices).out.removesuffix("\n").split("\t")
    assert row == [
        str(expected.choice),
        f"{expected.probability:.4f}",
        context,
        choices[expected.choice],
    ]

    line = json.dumps({"context": context, "choices": choices})
    (values,) = map(
        json.loads, qkv("classify", tuned["choice"], "--json", typed=line).out.splitlines()
    )
    assert (values["choice"], values["choices"]) == (expected.choice, choices)
    assert values["scores"] == pytest.approx(expected.scores, rel=1e-4)
    twice = json.loads(
        qkv("classify", tuned["choice"], context, "sat.", "ran.", "sat.", "--json").out
    )
    assert len(twice["scores"]) == 3
    assert sum(twice["scores"]) == pytest.approx(1)


def test_tags(qkv: Qkv, tuned: dict[str, Path]) -> None:
    (expected,) = classify(*opened(tuned["tag"]), [WORDS])
    assert expected.tags is not None
    tags = [tag for _, tag, _ in expected.tags]
    spelled = " ".join(tag.replace(" ", "\u00a0") for tag in tags)
    assert qkv("tag", tuned["tag"], typed="the cat  sat\n").out == f"{spelled}\tthe cat sat\n"
    values = json.loads(qkv("tag", tuned["tag"], "the cat sat", "--json").out)
    assert (values["words"], values["tags"]) == (list(WORDS), tags)


def test_a_slow_pipe_is_answered_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        buffer: Slow

        def __init__(self) -> None:
            self.buffer = self
            self.blocks = [b"one\ntw", b"o\n", b"thr", "ee ü".encode()[:-1], "ü".encode()[1:]]

        def read1(self, size: int) -> bytes:
            return self.blocks.pop(0) if self.blocks else b""

    monkeypatch.setattr(sys, "stdin", Slow())
    blocks = []
    for examples in read_pipe("classify"):
        if examples:
            blocks.append([example.texts[0] for example in examples])

    assert blocks == [["one"], ["two"], ["three ü"]]


def test_files_in_and_out(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    table = tmp_path / "dev.tsv"
    out = tmp_path / "new" / "answers.tsv"
    texts = ["the cat sat", "mice ran on the mat", "they chase"] * 20
    table.write_text(
        "number\tsentence\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(texts))
    )
    printed = qkv("classify", tuned["classify"], "--data", table, "--out", out)
    assert printed.out == ""
    assert out.read_text() == qkv("classify", tuned["classify"], typed="\n".join(texts)).out
    named = qkv("classify", tuned["classify"], "--data", table, "--text", "number").out
    assert [row.split("\t")[2] for row in named.splitlines()] == list(map(str, range(60)))
    before = table.read_text()
    printed = qkv("classify", tuned["classify"], "--data", table, "--out", table)
    assert f"out: {table} is the file to be answered" in printed.error
    assert table.read_text() == before


def test_the_score_of_classes(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    texts = [
        "the cat sat",
        "mice",
        "they chase",
        "on the mat",
        "the mouse ran",
        "don't",
        "said the teacher",
    ]

    labels = [str(answer.label) for answer in classify(*opened(tuned["classify"]), texts)]
    true = list(labels)
    for row in (5, 6):
        true[row] = LABELS[(LABELS.index(labels[row]) + 1) % 3]

    table = tmp_path / "dev.tsv"
    out = tmp_path / "answers.jsonl"
    table.write_text(as_table("sentence\tlabel", "\t", texts, true))
    printed = qkv("classify", tuned["classify"], "--data", table, "--score", "--out", out, "--json")
    assert "5 of 7 right" in printed.out
    assert printed.out.splitlines()[-1] == "accuracy 71.4% [35.9, 91.8], 7 rows; [ ]: 95% interval"
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    pairs = [(answer["label"], answer["true"]) for answer in answers]
    assert pairs == list(zip(labels, true, strict=True))
    table.write_text("sentence\tlabel\nthe cat\tgood\nmice\tugly\n")
    printed = qkv("classify", tuned["classify"], "--data", table, "--score")
    assert f"{table}:3: the label 'ugly'" in printed.error


def test_the_score_of_tags_and_numbers(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    sentences = [["the", "cat"], ["mice", "ran"], ["they", "chase", "mice"], ["the", "mat", "sat"]]
    true = []
    for answer in classify(*opened(tuned["tag"]), sentences):
        true.append([tag for _, tag, _ in answer.tags or ()])

    true[3][1] = "no such tag"
    table = tmp_path / "words.jsonl"
    rows = zip(sentences, true, strict=True)
    table.write_text("\n".join(json.dumps({"words": s, "tags": tags}) for s, tags in rows))
    assert "accuracy 90.0% [" in qkv("tag", tuned["tag"], "--data", table, "--score").out
    printed = qkv("tag", tuned["tag"], "--data", table, "--score")
    assert "10 words of 4 sentences" in printed.out
    assert "1 of 10 words have a tag that the model does not know" in printed.error

    texts = ["the cat sat", "mice", "they chase", "on the mat", "the mouse ran"]
    answers = classify(*opened(tuned["regress"]), texts)
    predicted = np.array([answer.number for answer in answers])
    true_numbers = predicted + np.array([0.5, -0.5, 1.0, 0.0, 0.5])
    numbers = tmp_path / "numbers.csv"
    numbers.write_text(as_table("text,score", ",", texts, true_numbers))
    one, two = qkv("classify", tuned["regress"], "--data", numbers, "--score").out.splitlines()
    assert one.startswith(f"pearson {np.corrcoef(predicted, true_numbers)[0, 1]:.3f} [")
    assert two.startswith("mean absolute error 0.500 [")


# At a terminal


def test_pictures(qkv: Qkv, tuned: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*arguments: str | Path) -> str:
        """The output at a terminal of 80 columns."""
        terminal = Terminal()
        monkeypatch.setenv("TERM", "dumb")  # no colours, and 80 columns
        monkeypatch.setattr(sys, "stdout", terminal)
        printed = qkv(*arguments)
        assert printed.code == 0, printed.error
        return terminal.getvalue()

    (expected,) = classify(*opened(tuned["classify"]), ["the cat sat"])
    lines = shown("classify", tuned["classify"], "the cat sat").splitlines()
    probabilities = sorted(expected.scores.values(), reverse=True)
    for line, probability in zip(lines, probabilities, strict=True):
        assert line.split("%")[0].split()[-1] == f"{probability:.1%}"[:-1]

    assert (
        len(shown("classify", tuned["choice"], "the cat", "sat.", "ran.", "sat.").splitlines()) == 3
    )
    two = shown("classify", tuned["classify"], "the cat sat", "mice " * 30).splitlines()
    assert len(two) == 2
    assert f"{expected.probability:.1%}  the cat sat" in two[0]
    assert len(two[1]) <= 80
    assert two[1].rstrip().endswith("…")

    sentence = (
        "the cat sat on the mat. the cat chases the mouse. the mice ran and they chase the cat on "
        "the mat."
    )
    lines = shown("tag", tuned["tag"], sentence).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines[::2]).split()) == sentence
    tags = [tag for _, tag, _ in classify(*opened(tuned["tag"]), [sentence])[0].tags or ()]
    assert " ".join(" ".join(lines[1::2]).split()) == " ".join(tags)

    # Every tag begins under its word.
    for above, below in zip(lines[::2], lines[1::2], strict=True):
        for word in re.finditer(r"(?:^|(?<=  ))\S", above):
            assert below[word.start()].strip()


# Bad input


@pytest.mark.parametrize(
    ("arguments", "typed", "message"),
    [
        (["classify", "tag", "a"], "", "tag: it tags words: use qkv tag"),
        (["tag", "pair", "a"], "", "pair: its task is pair: use qkv classify"),
        (["classify", "classify"], "", "standard input: it is empty"),
        (["classify", "classify"], "one\n\ntwo\n", "standard input:2: the text is empty"),
        (["classify", "classify"], b"one\n\xff\n", "standard input:2: not UTF-8 text"),
        (["classify", "classify", "one", " "], "", "text 2: it is empty; expected a text"),
        (
            ["classify", "classify", "a", "--pair", "b"],
            "",
            "reads one text at a time (its task is classify)",
        ),
        (["classify", "pair", "a"], "", "pair: this model reads two texts together"),
        (["classify", "pair"], "no tab here\n", "standard input:1: expected two texts with a tab"),
        (["classify", "pair", "--pair", "b"], "", "pair: expected the first text"),
        (["classify", "choice", "a", "b"], "", "text: this model chooses"),
        (["classify", "classify", "a", "--data", "b.tsv"], "", "text: files are given as well"),
        (["classify", "classify", "a", "--score"], "", "score: it is about the rows of --data"),
        (
            ["classify", "classify", "--data", "b.tsv", "--label", "x"],
            "",
            "label: true answers are read with --score",
        ),
        (["classify", "classify", "--data", "no.tsv"], "", "no.tsv: no such file or folder"),
    ],
)
def test_bad_input(
    qkv: Qkv, tuned: dict[str, Path], arguments: list[str], typed: str | bytes, message: str
) -> None:
    command, task, *rest = arguments
    printed = qkv(command, tuned[task], *rest, typed=typed)
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""


def test_columns_that_are_missing(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    table = tmp_path / "dev.tsv"
    table.write_text("review\tstars\ngood\t5\n")
    assert (
        "no column is called sentence or text"
        in qkv("classify", tuned["classify"], "--data", table).error
    )
    assert (
        "label"
        in qkv("classify", tuned["classify"], "--data", table, "--text", "review", "--score").error
    )
    table.write_text("sentence\tlabel\ngood\tgood\n\tbad\n")
    printed = qkv("classify", tuned["classify"], "--data", table, "--score")
    assert printed.out == ""
    assert f"{table}:3: the text is empty; leave the row out" in printed.error


def test_cut_texts_are_noted(qkv: Qkv, tuned: dict[str, Path]) -> None:
    printed = qkv("classify", tuned["classify"], typed="mice " * 60 + "\nmice\n")
    assert len(printed.out.splitlines()) == 2
    assert (
        printed.error
        == "qkv: 1 text was longer than the model's context of 48 tokens and cut to it\n"
    )
    printed = qkv("tag", tuned["tag"], typed="mice " * 60)
    assert printed.out.split("\t")[0].endswith(" _")
    assert "words have no tag" in printed.error


def test_other_families(qkv: Qkv, tuned: dict[str, Path], models: Path) -> None:
    for name in ("gpt", "bert", "one"):
        printed = qkv("classify", models / name, "a")
        assert printed.refused
        assert "it has no task head; qkv finetune" in printed.error

    message = "use qkv classify, or qkv tag"
    assert message in qkv("fill", tuned["classify"], "[mask]").error
    assert message in qkv("generate", tuned["pair"], "a").error
    assert qkv("classify", models / "nothing here", "a").refused
