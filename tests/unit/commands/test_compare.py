"""qkv compare: both ways use the same rows, no result is lost, bad data is reported at once."""

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
def flags(tmp_path: Path) -> list[str | Path]:
    """The flags that every comparison has."""
    train = table(tmp_path / "train.tsv", 0, 12)
    dev = table(tmp_path / "dev.tsv", 3, 9)
    return ["--task", "sst-2", "--data", train, "--validation", dev, *QUICK]


def points_of(out: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The measurements without their durations."""
    points = json.loads((out / "results.json").read_text())["points"]
    for point in points:
        assert point.pop("seconds") > 0

    return {(point["way"], point["examples"], point["seed"]): point for point in points}


def test_both_ways_use_the_same_rows(
    qkv: Qkv, models: Path, flags: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "out"
    numbers = ("--shots", "0", "2", "--examples", "all", "4", "--seeds", "2", "--limit", "7")
    printed = qkv("compare", models / "gpt", *flags, *numbers, "--out", out, "--keep")
    assert printed.code == 0, printed.error
    points = points_of(out)
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
            point = points["fine-tuned", examples, seed]
            folder = out / "runs" / f"{examples}-{seed}"
            counts = point["confusion"]
            assert point["accuracy"] == pytest.approx((counts[0][0] + counts[1][1]) / 7)
            assert isinstance(package.load(folder).model, TaskModel)
            assert json.loads((folder / "scores.json").read_text())["confusion"] == counts

    whole = json.loads((out / "results.json").read_text())["compared"]
    for row in whole:
        accuracies = []
        for key, point in points.items():
            if key[:2] == (row["way"], row["examples"]):
                accuracies.append(point["accuracy"])

        assert row["mean"] == pytest.approx(sum(accuracies) / len(accuracies))
        assert (row["low"], row["high"]) == pytest.approx(wilson(7 * row["mean"], 7))
        assert (row["spread"] is None) == (len(accuracies) == 1)

    rows = [line.split("│")[1:3] for line in printed.out.splitlines() if line.startswith("│")]
    assert [(way.strip(), int(examples)) for way, examples in rows] == [way[:2] for way in ways]
    assert (out / "comparison.png").stat().st_size > 1000
    assert "7 of 7: fine-tuned with 12 examples, seed 1" in printed.error


def test_a_stopped_comparison_continues_and_grows(
    qkv: Qkv, models: Path, flags: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends like one that was never stopped, and nothing is measured twice."""
    numbers = ("--shots", "1", "--examples", "4", "8")
    started: list[int | None] = []
    real = compare.finetune

    def stopping(tune: Any, *others: Any, **options: Any) -> Any:
        started.append(tune.examples)
        if started == [4, 8]:
            raise KeyboardInterrupt

        return real(tune, *others, **options)

    monkeypatch.setattr(compare, "finetune", stopping)
    out = tmp_path / "out"
    whole = tmp_path / "whole"
    stopped = qkv("compare", models / "gpt", *flags, *numbers, "--out", out)
    assert stopped.code == 130
    assert set(points_of(out)) == {("prompted", 1, 0), ("fine-tuned", 4, 0)}
    assert "fine-tuned" in stopped.out  # the table of the results so far
    assert qkv("compare", models / "gpt", *flags, *numbers, "--out", out).code == 0
    assert started == [4, 8, 8]
    assert qkv("compare", models / "gpt", *flags, *numbers, "--out", whole).code == 0
    assert points_of(out) == points_of(whole)
    assert not (out / "runs").exists()
    started.clear()
    assert (
        qkv("compare", models / "gpt", *flags, *numbers, "--shots", "0", "1", "--out", out).code
        == 0
    )
    assert started == []
    assert set(points_of(out)) == {*points_of(whole), ("prompted", 0, 0)}


def test_an_interrupted_run_is_no_result(
    qkv: Qkv, models: Path, flags: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C lets training save its state and return; the folder of the run stays."""
    real = compare.finetune

    def unfinished(*arguments: Any, **options: Any) -> Any:
        tuning = real(*arguments, **options)
        assert tuning is not None
        return tuning._replace(outcome=replace(tuning.outcome, finished=False))

    monkeypatch.setattr(compare, "finetune", unfinished)
    printed = qkv(
        "compare",
        models / "gpt",
        *flags,
        "--shots",
        "0",
        "--examples",
        "4",
        "--out",
        tmp_path / "out",
    )

    assert printed.code == 130
    assert set(points_of(tmp_path / "out")) == {("prompted", 0, 0)}
    assert (tmp_path / "out" / "runs" / "4-0").is_dir()


def test_a_bert_is_only_fine_tuned(
    qkv: Qkv, models: Path, flags: list[str | Path], tmp_path: Path
) -> None:
    printed = qkv(
        "compare",
        models / "bert",
        *flags,
        "--examples",
        "4",
        "--train",
        "head",
        "--out",
        tmp_path / "out",
    )

    assert printed.code == 0, printed.error
    assert "it is only fine-tuned" in printed.error
    assert set(points_of(tmp_path / "out")) == {("fine-tuned", 4, 0)}


def test_another_comparison_is_refused_in_the_same_folder(
    qkv: Qkv, models: Path, flags: list[str | Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    one = ("--shots", "0", "--examples", "--out")
    assert qkv("compare", models / "gpt", *flags, *one, out).code == 0
    before = points_of(out)
    for more, name in ((["--limit", "5"], "limit"), (["--learning-rate", "1e-3"], "training")):
        printed = qkv("compare", models / "gpt", *flags, *one, out, *more)
        assert f"qkv: out: {out} holds a comparison with another {name}" in printed.error

    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nanother one\t1\nand one more\t0\n")
    assert (
        "holds a comparison with another validation"
        in qkv("compare", models / "gpt", *flags, *one, out).error
    )
    assert points_of(out) == before
    (out / "results.json").write_text("{")
    assert (
        "holds no comparison that can be continued"
        in qkv("compare", models / "gpt", *flags, *one, out).error
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
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
        (["--task", "lambada"], "task: expected one with classes"),
        (["--task", "french"], "task: expected one with classes"),
        (["--data", "{at}/none.tsv"], "{at}/none.tsv: "),
        (["--data", "{at}/odd.tsv"], "{at}/odd.tsv:3: answer: expected 0, 1, not 'x'"),
        (["--data", "{at}/one.tsv"], "{at}/one.tsv:5: "),
        (["--validation", "{at}/empty.tsv"], "{at}/empty.tsv:2: the text is empty"),
    ],
)  # fmt: skip
def test_errors_are_reported_before_any_work(
    qkv: Qkv, flags: list[str | Path], tmp_path: Path, wrong: list[str], message: str
) -> None:
    """The model, which does not exist, is not opened."""
    (tmp_path / "odd.tsv").write_text("sentence\tlabel\na b\t1\nc d\tx\n")
    (tmp_path / "one.tsv").write_text("sentence\tlabel\na\t0\nb\t0\nc\t0\nd\t1\n")
    (tmp_path / "empty.tsv").write_text("sentence\tlabel\n \t1\n")
    arguments = [flag.format(at=tmp_path) for flag in wrong]
    printed = qkv("compare", tmp_path / "no model", *flags, *arguments, "--out", tmp_path / "out")
    assert printed.refused
    assert message.format(at=tmp_path) in printed.error
    assert not (tmp_path / "out").exists()


def test_two_texts_are_a_pair() -> None:
    columns = compare.columns_of(read_task("rte"))
    assert columns == ("sentence1", "sentence2", "label")
    assert columns.task == "pair"
    assert compare.columns_of(read_task("sst-2")).task == "classify"


def test_default_numbers_are_limited_by_the_data() -> None:
    default = compare.EXAMPLES
    assert compare.training_sizes(default, 40, 2, "a.tsv") == [8, 32, 40]
    assert compare.training_sizes(default, 1000, 5, "a.tsv") == [32, 128, 1000]
    assert compare.training_sizes((), 40, 2, "a.tsv") == []
    assert compare.training_sizes(("all", "32", "40"), 40, 2, "a.tsv") == [32, 40]


def test_few_examples_get_more_epochs() -> None:
    with pytest.raises(ValueError, match=r"^steps: .*1 or more"):
        compare.Training(steps=0)

    training = compare.Training(epochs=3, steps=100, batch=32)
    assert [training.epochs_of(n) for n in (8, 32, 128, 67349)] == [100, 100, 25, 3]
