"""qkv compare as it is typed: both ways are asked the same rows, nothing found is lost, bad data is
told at once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qkv as package
from qkv.commands import compare
from qkv.evaluation.evaluate import Protocol, Subject, evaluate
from qkv.evaluation.intervals import wilson
from qkv.evaluation.task_file import read_task
from qkv.models import GPT
from qkv.models.task_model import TaskModel
from support.command_fixtures import Qkv
from support.sentences import SENTENCES

QUICK = ("--steps", "2", "--epochs", "1", "--batch", "4", "--device", "cpu")


def table(path: Path, begin: int, rows: int) -> Path:
    lines = [f"{SENTENCES[(begin + n) % len(SENTENCES)]} {n}\t{n % 2}" for n in range(rows)]
    path.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def asked(tmp_path: Path) -> list[str | Path]:
    """What is the same in every comparison."""
    train, dev = table(tmp_path / "train.tsv", 0, 12), table(tmp_path / "dev.tsv", 3, 9)
    return ["--task", "sst-2", "--data", train, "--validation", dev, *QUICK]


def found(out: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The points without how long they took."""
    points = json.loads((out / "results.json").read_text())["points"]
    for point in points:
        assert point.pop("seconds") > 0
    return {(point["way"], point["examples"], point["seed"]): point for point in points}


def test_both_ways_are_asked_the_same_rows(
    qkv: Qkv, models: Path, asked: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "out"
    numbers = ("--shots", "0", "2", "--examples", "all", "4", "--seeds", "2", "--limit", "7")
    said = qkv("compare", models / "gpt", *asked, *numbers, "--out", out, "--keep")
    assert said.code == 0, said.error
    points = found(out)
    ways = [("prompted", 0, 1), ("prompted", 2, 2), ("fine-tuned", 4, 2), ("fine-tuned", 12, 2)]
    assert set(points) == {
        (way, examples, seed) for way, examples, seeds in ways for seed in range(seeds)
    }
    assert {point["rows"] for point in points.values()} == {7}
    model, tokenizer = package.load(models / "gpt")
    assert isinstance(model, GPT)
    for seed in range(2):
        protocol = Protocol(shots=2, seed=seed, limit=7, examples=(str(tmp_path / "train.tsv"),))
        right = evaluate(
            read_task("sst-2"),
            Subject("gpt", model, tokenizer),
            [str(tmp_path / "dev.tsv")],
            protocol,
        )
        assert points["prompted", 2, seed]["accuracy"] == right.scores[0].value
        for examples in (4, 12):
            point, folder = (
                points["fine-tuned", examples, seed],
                out / "runs" / f"{examples}-{seed}",
            )
            counts = point["confusion"]
            assert point["accuracy"] == pytest.approx((counts[0][0] + counts[1][1]) / 7)
            assert isinstance(package.load(folder).model, TaskModel)
            assert json.loads((folder / "scores.json").read_text())["confusion"] == counts
    whole = json.loads((out / "results.json").read_text())["compared"]
    for each in whole:
        own = [
            point["accuracy"]
            for key, point in points.items()
            if key[:2] == (each["way"], each["examples"])
        ]
        assert each["mean"] == pytest.approx(sum(own) / len(own))
        assert (each["low"], each["high"]) == pytest.approx(wilson(7 * each["mean"], 7))
        assert (each["spread"] is None) == (len(own) == 1)
    rows = [line.split("│")[1:3] for line in said.out.splitlines() if line.startswith("│")]
    assert [(way.strip(), int(examples)) for way, examples in rows] == [each[:2] for each in ways]
    assert (out / "comparison.png").stat().st_size > 1000
    assert "7 of 7: fine-tuned with 12 examples, seed 1" in said.error


def test_what_was_stopped_goes_on_and_grows(
    qkv: Qkv, models: Path, asked: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was never stopped; and nothing is measured twice."""
    numbers = ("--shots", "1", "--examples", "4", "8")
    begun: list[int | None] = []
    real = compare.finetune

    def stopping(tune: Any, *others: Any, **how: Any) -> Any:
        begun.append(tune.examples)
        if begun == [4, 8]:
            raise KeyboardInterrupt
        return real(tune, *others, **how)

    monkeypatch.setattr(compare, "finetune", stopping)
    out, whole = tmp_path / "out", tmp_path / "whole"
    stopped = qkv("compare", models / "gpt", *asked, *numbers, "--out", out)
    assert stopped.code == 130
    assert set(found(out)) == {("prompted", 1, 0), ("fine-tuned", 4, 0)}
    assert "fine-tuned" in stopped.out  # the table of what is known
    assert qkv("compare", models / "gpt", *asked, *numbers, "--out", out).code == 0
    assert begun == [4, 8, 8]
    assert qkv("compare", models / "gpt", *asked, *numbers, "--out", whole).code == 0
    assert found(out) == found(whole)
    assert not (out / "runs").exists()
    begun.clear()
    assert (
        qkv("compare", models / "gpt", *asked, *numbers, "--shots", "0", "1", "--out", out).code
        == 0
    )
    assert begun == []
    assert set(found(out)) == {*found(whole), ("prompted", 0, 0)}


def test_a_run_that_was_stopped_half_way_is_no_result(
    qkv: Qkv, models: Path, asked: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C lets training save its state and return: the run's folder stays, to be gone on with."""
    real = compare.finetune

    def unfinished(*given: Any, **how: Any) -> Any:
        tuning = real(*given, **how)
        assert tuning is not None
        return tuning._replace(outcome=replace(tuning.outcome, finished=False))

    monkeypatch.setattr(compare, "finetune", unfinished)
    said = qkv(
        "compare",
        models / "gpt",
        *asked,
        "--shots",
        "0",
        "--examples",
        "4",
        "--out",
        tmp_path / "out",
    )
    assert said.code == 130
    assert set(found(tmp_path / "out")) == {("prompted", 0, 0)}
    assert (tmp_path / "out" / "runs" / "4-0").is_dir()


def test_a_bert_is_only_fine_tuned_and_says_so(
    qkv: Qkv, models: Path, asked: list[str | Path], tmp_path: Path
) -> None:
    said = qkv(
        "compare",
        models / "bert",
        *asked,
        "--examples",
        "4",
        "--train",
        "head",
        "--out",
        tmp_path / "out",
    )
    assert said.code == 0, said.error
    assert "a BERT says no next word, so it cannot be prompted; it is only fine-tuned" in said.error
    assert set(found(tmp_path / "out")) == {("fine-tuned", 4, 0)}


def test_another_question_does_not_go_into_the_same_folder(
    qkv: Qkv, models: Path, asked: list[str | Path], tmp_path: Path
) -> None:
    out, one = tmp_path / "out", ("--shots", "0", "--examples", "--out")
    assert qkv("compare", models / "gpt", *asked, *one, out).code == 0
    before = found(out)
    for more, name in ((["--limit", "5"], "limit"), (["--learning-rate", "1e-3"], "training")):
        said = qkv("compare", models / "gpt", *asked, *one, out, *more)
        assert (
            said.error
            == f"qkv: out: {out} holds a comparison with another {name}; name another folder\n"
        )
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nanother one\t1\nand one more\t0\n")
    assert (
        "holds a comparison with another validation"
        in qkv("compare", models / "gpt", *asked, *one, out).error
    )
    assert found(out) == before
    (out / "results.json").write_text("{")
    assert (
        "holds no comparison that can be gone on with"
        in qkv("compare", models / "gpt", *asked, *one, out).error
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds", "0"], "seeds: expected 1 or more, not 0"),
        (["--limit", "0"], "limit: expected 1 or more, not 0"),
        (["--shots", "-1"], "shots: expected 0 or more, not -1"),
        (["--shots", "--examples"], "shots: expected numbers of shots, of examples, or both"),
        (["--examples", "some"], "examples: expected 1 or more, or all, not 'some'"),
        (["--examples", "0"], "examples: expected 1 or more, or all, not '0'"),
        (["--examples", "13"], "examples: {at}/train.tsv has only 12 rows, not 13"),
        (["--examples", "3"], "examples: 3 are too few for 2 classes; expected 4 or more"),
        (["--shots", "13"], "shots: {at}/train.tsv has only 12 rows, not 13"),
        (["--task", "lambada"], "task: expected one with classes, such as sst-2 or rte, not lambada, of kind last"),
        (["--task", "french"], "task: expected one with classes, such as sst-2 or rte, not french, of kind line"),
        (["--data", "{at}/none.tsv"], "{at}/none.tsv: "),
        (["--data", "{at}/odd.tsv"], "{at}/odd.tsv:3: answer: expected 0, 1, not 'x'"),
        (["--data", "{at}/one.tsv"], "{at}/one.tsv:5: the class '1' has this one example; add another"),
        (["--validation", "{at}/empty.tsv"], "{at}/empty.tsv:2: the text is empty; leave the row out"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_any_work(
    qkv: Qkv, asked: list[str | Path], tmp_path: Path, flags: list[str], message: str
) -> None:
    """The model is not even opened: there is none."""
    (tmp_path / "odd.tsv").write_text("sentence\tlabel\na b\t1\nc d\tx\n")
    (tmp_path / "one.tsv").write_text("sentence\tlabel\na\t0\nb\t0\nc\t0\nd\t1\n")
    (tmp_path / "empty.tsv").write_text("sentence\tlabel\n \t1\n")
    given = [flag.format(at=tmp_path) for flag in flags]
    said = qkv("compare", tmp_path / "no model", *asked, *given, "--out", tmp_path / "out")
    assert said.refused
    assert message.format(at=tmp_path) in said.error
    assert not (tmp_path / "out").exists()


def test_two_texts_are_a_pair() -> None:
    columns = compare.columns_of(read_task("rte"))
    assert columns == ("sentence1", "sentence2", "label")
    assert columns.task == "pair"
    assert compare.columns_of(read_task("sst-2")).task == "classify"


def test_the_usual_numbers_are_taken_as_far_as_there_are_so_many() -> None:
    usual = compare.EXAMPLES
    assert compare.numbers(usual, 40, 2, "a.tsv") == [8, 32, 40]
    assert compare.numbers(usual, 1000, 5, "a.tsv") == [32, 128, 1000]
    assert compare.numbers((), 40, 2, "a.tsv") == []
    assert compare.numbers(("all", "32", "40"), 40, 2, "a.tsv") == [32, 40]


def test_few_examples_are_seen_more_often() -> None:
    with pytest.raises(ValueError, match=r"^steps: expected 1 or more, not 0$"):
        compare.Training(steps=0)
    training = compare.Training(epochs=3, steps=100, batch=32)
    assert [training.epochs_of(n) for n in (8, 32, 128, 67349)] == [100, 100, 25, 3]
