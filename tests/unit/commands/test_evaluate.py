"""qkv evaluate: no result is lost, and output that cannot be written is refused before the work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qkv.commands.evaluate import with_distinct_names
from qkv.evaluation.task_file import EvaluationTask, read_task
from support.command_fixtures import Qkv
from support.small_evaluation import small_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("model") / "gpt")


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two files of minimal pairs of different lengths."""
    monkeypatch.setenv("COLUMNS", "200")
    rows = [
        {"sentence_good": f"the cat sat {n}", "sentence_bad": f"sat the cat {n}"} for n in range(3)
    ]
    files = [tmp_path / "a1.jsonl", tmp_path / "a2.jsonl"]
    for file, some in zip(files, (rows[:1], rows), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in some))

    return files


def perplexity(report: dict[str, Any]) -> float:
    (result,) = report["results"]
    return next(score["value"] for score in result["scores"] if score["name"] == "perplexity")


def test_int8_has_nearly_the_same_perplexity_and_the_same_identity(
    qkv: Qkv, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "my.txt").write_text(
        "the cat sat on the mat. a dog ran to the man, and the man sat down!\n" * 4
    )
    arguments = [
        "evaluate",
        model,
        "--task",
        "perplexity",
        "--data",
        tmp_path / "my.txt",
        "--device",
        "cpu",
    ]

    assert qkv(*arguments, "--out", tmp_path / "plain.json").code == 0
    assert qkv(*arguments, "--out", tmp_path / "bytes.json", "--int8").code == 0
    plain = json.loads((tmp_path / "plain.json").read_text())
    small = json.loads((tmp_path / "bytes.json").read_text())
    assert perplexity(small) == pytest.approx(perplexity(plain), rel=0.02)
    assert perplexity(small) != perplexity(plain)
    assert (plain["models"]["gpt"].pop("int8"), small["models"]["gpt"].pop("int8")) == (False, True)
    assert small["models"] == plain["models"]


@pytest.mark.parametrize("equals", [True, False])
def test_two_tasks_of_one_name_are_two(
    qkv: Qkv, model: Path, pairs: list[Path], tmp_path: Path, equals: bool
) -> None:
    one, two = pairs
    tasks = ["--task", f"blimp={one}", "--task", f"blimp={two}"]
    if not equals:
        tasks = ["--task", "blimp", "--task", "blimp", "--data", str(one), str(two)]

    printed = qkv("evaluate", model, *tasks, "--out", tmp_path / "out.json")
    assert printed.code == 0
    report = json.loads((tmp_path / "out.json").read_text())
    titles = ["blimp (a1.jsonl)", "blimp (a2.jsonl)"]
    assert [(result["task"], result["rows"]) for result in report["results"]] == list(
        zip(titles, (1, 3), strict=True)
    )
    assert list(report["tasks"]) == list(report["data"]) == titles
    assert [list(files) for files in report["data"].values()] == [[str(one)], [str(two)]]
    assert all(title in printed.out for title in titles)


def test_tasks_of_one_name_are_labelled_by_their_files() -> None:
    blimp = read_task("blimp")
    agreement = read_task("agreement")

    def names(*tasks: tuple[EvaluationTask, list[str]]) -> list[str]:
        return [task.name for task, _ in with_distinct_names(tasks)]

    far = names((blimp, ["x/a.jsonl"]), (blimp, ["y/a.jsonl"]))
    assert far == ["blimp (x/a.jsonl)", "blimp (y/a.jsonl)"]
    assert names((blimp, ["a"]), (blimp, ["a"]), (agreement, [])) == ["blimp", "agreement"]
    embedded = agreement.beside(agreement.data)
    assert names((agreement, []), (agreement, [embedded])) == ["agreement"]
    other = names((agreement, []), (agreement, ["agreement.jsonl"]))
    assert other == [f"agreement ({embedded})", "agreement (agreement.jsonl)"]


def test_one_unit_has_no_interval(qkv: Qkv, model: Path, tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("the cat sat on a mat\n")
    (tmp_path / "true.txt").write_text("the cat sat on the mat\n")
    text = ["evaluate", model, "--task", "perplexity", "--data", tmp_path / "true.txt"]
    sentence = ["evaluate", "--task", "translation", "--hypotheses", tmp_path / "output.txt"]
    for arguments in (text, [*sentence, "--data", tmp_path / "true.txt"]):
        printed = qkv(*arguments, "--out", tmp_path / "out.json", "--plot", tmp_path / "out.png")
        assert printed.code == 0
        assert " [-]" in printed.out
        assert "[-]: fewer than 4" in printed.out
        (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
        assert {(score["low"], score["high"]) for score in result["scores"]} == {(None, None)}


@pytest.mark.parametrize("option", ["out", "plot"])
def test_output_that_cannot_be_written_is_refused_first(
    qkv: Qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The model, which does not exist, is not opened."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    at = str(tmp_path)
    paths = {
        "folder.png": "is a folder",
        "file/new/a.png": f"cannot be written: {at}/file is a file",
        "new/a.png": f"cannot be written: no permission to change {at}",
    }
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # as for a user who is not the owner
    for path, reason in paths.items():
        printed = qkv(
            "evaluate", tmp_path / "none", "--task", "agreement", f"--{option}", tmp_path / path
        )
        assert printed.error.startswith(f"qkv: {option}: ")
        assert reason in printed.error
        assert printed.refused

    assert not (tmp_path / "new").exists()


def test_results_are_kept_when_a_later_part_fails(
    qkv: Qkv, model: Path, pairs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    plot = tmp_path / "out.png"
    output = ["--out", out, "--plot", plot]
    blimp = f"blimp={pairs[1]}"
    # A later task, a later model, and a later number of examples.
    cases = [
        (
            [model, "--task", blimp, "--task", "lambada=none.jsonl"],
            "none.jsonl: no such file or folder",
        ),
        ([model, tmp_path / "none", "--task", blimp], f"{tmp_path / 'none'}: "),
        ([model, "--task", blimp, "--shots", "0", "9"], "shots: "),
    ]

    for arguments, sentence in cases:
        printed = qkv("evaluate", *arguments, *output)
        assert printed.refused
        assert f"qkv: {sentence}" in printed.error
        assert "blimp" in printed.out
        report = json.loads(out.read_text())
        assert [result["task"] for result in report["results"]] == ["blimp"]
        assert list(report["data"]) == ["blimp"]
        assert report["failure"].startswith(sentence)
        assert plot.read_bytes().startswith(b"\x89PNG")
        out.unlink()
        plot.unlink()


def test_shots_of_tasks_without_examples(qkv: Qkv, model: Path, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("the cat sat\n")
    mine = tmp_path / "my.txt"
    printed = qkv(
        "evaluate",
        model,
        "--task",
        "perplexity",
        "--data",
        mine,
        "--shots",
        "0",
        "3",
        "--out",
        tmp_path / "o",
    )

    assert "no examples" in printed.out
    (result,) = json.loads((tmp_path / "o").read_text())["results"]
    assert result["shots"] == 0
    printed = qkv(
        "evaluate", "--task", "translation", "--hypotheses", mine, "--data", mine, "--shots", "3"
    )
    assert "qkv: shots: existing translations have no examples" in printed.error
