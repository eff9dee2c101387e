from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from qkv import artifact
from qkv.commands.classify import piped
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# What is asked and answered


def test_a_pipe(qkv: Qkv, tuned: dict[str, Path]) -> None:
    texts = ["the cat sat", "mice ran", "don't they?"]
    expected = classify(*opened(tuned["classify"]), texts)
    printed = qkv("classify", tuned["classify"], typed="\n".join(texts))
    rows = [line.split("\t") for line in printed.out.splitlines()]
    assert rows == [
        [each.label, f"{each.probability:.4f}", text]
        for text, each in zip(texts, expected, strict=True)
    ]
    said = [
        json.loads(line)
        for line in qkv("classify", tuned["classify"], *texts, "--json").out.splitlines()
    ]
    assert [each["text"] for each in said] == texts
    assert [each["label"] for each in said] == [each.label for each in expected]
    assert said[0]["scores"] == pytest.approx(expected[0].scores, rel=1e-4)
    assert said[0]["probability"] == max(said[0]["scores"].values())


def test_pairs(qkv: Qkv, tuned: dict[str, Path]) -> None:
    (expected,) = classify(*opened(tuned["pair"]), [("the cat sat", "mice")])
    row = f"{expected.label}\t{expected.probability:.4f}\tthe cat sat\tmice\n"
    assert qkv("classify", tuned["pair"], "the cat sat", "--pair", "mice").out == row
    assert qkv("classify", tuned["pair"], typed="the cat sat\tmice\r\n").out == row
    said = json.loads(qkv("classify", tuned["pair"], "the cat sat", "--pair", "mice", "--json").out)
    assert (said["text"], said["pair"], said["label"]) == ("the cat sat", "mice", expected.label)


def test_numbers(qkv: Qkv, tuned: dict[str, Path]) -> None:
    expected = classify(*opened(tuned["regress"]), ["the cat", ("the cat", "mice")])
    printed = qkv("classify", tuned["regress"], typed="the cat\nthe cat\tmice\n").out.splitlines()
    assert [float(row.split("\t")[0]) for row in printed] == pytest.approx(
        [each.number for each in expected], rel=1e-4
    )
    said = json.loads(qkv("classify", tuned["regress"], "the cat", "--json").out)
    assert said == {"text": "the cat", "number": pytest.approx(expected[0].number, rel=1e-4)}


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
    (said,) = map(
        json.loads, qkv("classify", tuned["choice"], "--json", typed=line).out.splitlines()
    )
    assert (said["choice"], said["choices"]) == (expected.choice, choices)
    assert said["scores"] == pytest.approx(expected.scores, rel=1e-4)
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
    said = json.loads(qkv("tag", tuned["tag"], "the cat sat", "--json").out)
    assert (said["words"], said["tags"]) == (list(WORDS), tags)


def test_a_slow_pipe_is_answered_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        buffer: Slow

        def __init__(self) -> None:
            self.buffer, self.blocks = (
                self,
                [b"one\ntw", b"o\n", b"thr", "ee ü".encode()[:-1], "ü".encode()[1:]],
            )

        def read1(self, size: int) -> bytes:
            return self.blocks.pop(0) if self.blocks else b""

    monkeypatch.setattr(sys, "stdin", Slow())
    found = [[example.texts[0] for example in some] for some in piped("classify")]
    assert [some for some in found if some] == [["one"], ["two"], ["three ü"]]


def test_files_and_what_is_written(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    table, out = tmp_path / "dev.tsv", tmp_path / "made" / "answers.tsv"
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
    assert f"out: {table} is what is to be answered; choose another name" in printed.error
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
    said = [str(each.label) for each in classify(*opened(tuned["classify"]), texts)]
    true = [*said[:5], *(LABELS[(LABELS.index(each) + 1) % 3] for each in said[5:])]
    table, out = tmp_path / "dev.tsv", tmp_path / "answers.jsonl"
    table.write_text(
        "sentence\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in zip(texts, true, strict=True))
    )
    printed = qkv("classify", tuned["classify"], "--data", table, "--score", "--out", out, "--json")
    assert "5 of 7 right" in printed.out
    assert printed.out.splitlines()[-1] == "accuracy 71.4% [35.9, 91.8], 7 rows; [ ]: 95% interval"
    answered = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(each["label"], each["true"]) for each in answered] == list(
        zip(said, true, strict=True)
    )
    table.write_text("sentence\tlabel\nthe cat\tgood\nmice\tugly\n")
    printed = qkv("classify", tuned["classify"], "--data", table, "--score")
    assert f"{table}:3: the label 'ugly' is none of the model's: bad, good, so so" in printed.error


def test_the_score_of_tags_and_numbers(qkv: Qkv, tuned: dict[str, Path], tmp_path: Path) -> None:
    sentences = [["the", "cat"], ["mice", "ran"], ["they", "chase", "mice"], ["the", "mat", "sat"]]
    found = classify(*opened(tuned["tag"]), sentences)
    true = [[tag for _, tag, _ in each.tags or ()] for each in found]
    true[3][1] = "no such tag"
    table = tmp_path / "words.jsonl"
    rows = [
        json.dumps({"words": words, "tags": tags})
        for words, tags in zip(sentences, true, strict=True)
    ]
    table.write_text("\n".join(rows))
    assert "accuracy 90.0% [" in qkv("tag", tuned["tag"], "--data", table, "--score").out
    printed = qkv("tag", tuned["tag"], "--data", table, "--score")
    assert "10 words of 4 sentences" in printed.out
    assert "1 of 10 words have a tag that the model does not know" in printed.error

    texts = ["the cat sat", "mice", "they chase", "on the mat", "the mouse ran"]
    said = np.array([each.number for each in classify(*opened(tuned["regress"]), texts)])
    true_numbers = said + np.array([0.5, -0.5, 1.0, 0.0, 0.5])
    numbers = tmp_path / "numbers.csv"
    numbers.write_text(
        "text,score\n" + "".join(f"{a},{b}\n" for a, b in zip(texts, true_numbers, strict=True))
    )
    one, two = qkv("classify", tuned["regress"], "--data", numbers, "--score").out.splitlines()
    assert one.startswith(f"pearson {np.corrcoef(said, true_numbers)[0, 1]:.3f} [")
    assert two.startswith("mean absolute error 0.500 [")


# At a terminal


def test_pictures(qkv: Qkv, tuned: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*words: str | Path) -> str:
        terminal = Terminal()
        monkeypatch.setenv("TERM", "dumb")  # no colours, and 80 columns
        monkeypatch.setattr(sys, "stdout", terminal)
        printed = qkv(*words)
        assert printed.code == 0, printed.error
        return terminal.getvalue()

    (expected,) = classify(*opened(tuned["classify"]), ["the cat sat"])
    lines = shown("classify", tuned["classify"], "the cat sat").splitlines()
    assert [line.split("%")[0].split()[-1] for line in lines] == [
        f"{each:.1%}"[:-1] for each in sorted(expected.scores.values(), reverse=True)
    ]
    assert (
        len(shown("classify", tuned["choice"], "the cat", "sat.", "ran.", "sat.").splitlines()) == 3
    )
    two = shown("classify", tuned["classify"], "the cat sat", "mice " * 30).splitlines()
    assert len(two) == 2
    assert f"{expected.probability:.1%}  the cat sat" in two[0]
    assert len(two[1]) <= 80
    assert two[1].rstrip().endswith("…")

    sentence = "the cat sat on the mat. the cat chases the mouse. the mice ran and they chase the cat on the mat."
    lines = shown("tag", tuned["tag"], sentence).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines[::2]).split()) == sentence
    tags = [tag for _, tag, _ in classify(*opened(tuned["tag"]), [sentence])[0].tags or ()]
    assert " ".join(" ".join(lines[1::2]).split()) == " ".join(tags)
    for above, below in zip(
        lines[::2], lines[1::2], strict=True
    ):  # every tag begins under its word
        assert all(
            below[at].strip()
            for at, sign in enumerate(above)
            if sign.strip() and (not at or above[at - 2 : at] == "  ")
        )


# What is wrong


@pytest.mark.parametrize(
    ("words", "typed", "message"),
    [
        (["classify", "tag", "a"], "", "tag: it tags words: use qkv tag"),
        (["tag", "pair", "a"], "", "pair: its task is pair: use qkv classify"),
        (["classify", "classify"], "", "standard input: it is empty; expected a text on each line"),
        (
            ["classify", "classify"],
            "one\n\ntwo\n",
            "standard input:2: the text is empty; leave the line out",
        ),
        (["classify", "classify"], b"one\n\xff\n", "standard input:2: not UTF-8 text"),
        (["classify", "classify", "one", " "], "", "text 2: it is empty; expected a text"),
        (
            ["classify", "classify", "a", "--pair", "b"],
            "",
            "reads one text at a time (its task is classify)",
        ),
        (
            ["classify", "pair", "a"],
            "",
            "pair: this model reads two texts together; give the second one with --pair",
        ),
        (
            ["classify", "pair"],
            "no tab here\n",
            "standard input:1: expected two texts with a tab between them, not 1",
        ),
        (["classify", "pair", "--pair", "b"], "", "pair: expected the first text, too"),
        (
            ["classify", "choice", "a", "b"],
            "",
            "text: this model chooses; expected a context and two choices or more",
        ),
        (
            ["classify", "classify", "a", "--data", "b.tsv"],
            "",
            "text: files are given, too; leave one of them out",
        ),
        (
            ["classify", "classify", "a", "--score"],
            "",
            "score: it is about the rows of --data, which is not given",
        ),
        (
            ["classify", "classify", "--data", "b.tsv", "--label", "x"],
            "",
            "label: true answers are read with --score",
        ),
        (["classify", "classify", "--data", "no.tsv"], "", "no.tsv: no such file or folder"),
    ],
)
def test_bad_input(
    qkv: Qkv, tuned: dict[str, Path], words: list[str], typed: str | bytes, message: str
) -> None:
    verb, task, *rest = words
    printed = qkv(verb, tuned[task], *rest, typed=typed)
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


def test_what_is_cut_is_said(qkv: Qkv, tuned: dict[str, Path]) -> None:
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
        assert (
            "it was not taught to answer; qkv finetune puts a head on a GPT or a BERT"
            in printed.error
        )
    message = "a fine-tuned model answers with its head: use qkv classify, or qkv tag"
    assert message in qkv("fill", tuned["classify"], "[mask]").error
    assert message in qkv("generate", tuned["pair"], "a").error
    assert qkv("classify", models / "nothing here", "a").refused
