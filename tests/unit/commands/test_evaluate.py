"""qkv evaluate as it is typed: nothing asked for is lost, and what cannot be kept is refused before
the work begins.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qkv.commands.evaluate import paired
from qkv.evaluation.task_file import read_task
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


def perplexity(found: dict[str, Any]) -> float:
    (result,) = found["results"]
    return next(score["value"] for score in result["scores"] if score["name"] == "perplexity")


def test_int8_has_nearly_the_same_perplexity_and_the_same_identity(
    qkv: Qkv, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "my.txt").write_text(
        "the cat sat on the mat. a dog ran to the man, and the man sat down!\n" * 4
    )
    asked = [
        "evaluate",
        model,
        "--task",
        "perplexity",
        "--data",
        tmp_path / "my.txt",
        "--device",
        "cpu",
    ]
    assert qkv(*asked, "--out", tmp_path / "plain.json").code == 0
    assert qkv(*asked, "--out", tmp_path / "bytes.json", "--int8").code == 0
    plain, small = (
        json.loads((tmp_path / name).read_text()) for name in ("plain.json", "bytes.json")
    )
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
    said = qkv("evaluate", model, *tasks, "--out", tmp_path / "out.json")
    assert said.code == 0
    found = json.loads((tmp_path / "out.json").read_text())
    titles = ["blimp (a1.jsonl)", "blimp (a2.jsonl)"]
    assert [(result["task"], result["rows"]) for result in found["results"]] == list(
        zip(titles, (1, 3), strict=True)
    )
    assert list(found["tasks"]) == list(found["data"]) == titles
    assert [list(files) for files in found["data"].values()] == [[str(one)], [str(two)]]
    assert all(title in said.out for title in titles)


def test_what_tells_tasks_apart() -> None:
    blimp, own = read_task("blimp"), read_task("agreement")
    far = paired([("blimp", blimp, ["x/a.jsonl"]), ("blimp", blimp, ["y/a.jsonl"])], [])
    assert [task.name for task, _ in far] == ["blimp (x/a.jsonl)", "blimp (y/a.jsonl)"]
    same = paired([("blimp", blimp, ["a"]), ("blimp", blimp, ["a"]), ("agreement", own, [])], [])
    assert [task.name for task, _ in same] == ["blimp", "agreement"]
    embedded = own.beside(own.data)
    assert len(paired([("agreement", own, []), ("agreement", own, [embedded])], [])) == 1
    names = [
        task.name
        for task, _ in paired([("agreement", own, []), ("agreement", own, ["agreement.jsonl"])], [])
    ]
    assert names == [f"agreement ({embedded})", "agreement (agreement.jsonl)"]


def test_one_unit_has_no_interval(qkv: Qkv, model: Path, tmp_path: Path) -> None:
    (tmp_path / "said.txt").write_text("the cat sat on a mat\n")
    (tmp_path / "true.txt").write_text("the cat sat on the mat\n")
    text = ["evaluate", model, "--task", "perplexity", "--data", tmp_path / "true.txt"]
    sentence = ["evaluate", "--task", "translation", "--hypotheses", tmp_path / "said.txt"]
    for asked in (text, [*sentence, "--data", tmp_path / "true.txt"]):
        said = qkv(*asked, "--out", tmp_path / "out.json", "--plot", tmp_path / "out.png")
        assert said.code == 0
        assert " [-]" in said.out
        assert "[-]: fewer than 4 parts to draw an interval from" in said.out
        (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
        assert {(score["low"], score["high"]) for score in result["scores"]} == {(None, None)}


@pytest.mark.parametrize("option", ["out", "plot"])
def test_a_place_that_cannot_be_written_is_refused_first(
    qkv: Qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Before the model is opened: there is none."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    at = str(tmp_path)
    places = {
        "folder.png": f"expected the name of a file, and {at}/folder.png is a folder",
        "file/new/a.png": f"{at}/file/new/a.png cannot be written: {at}/file is a file and no folder",
        "new/a.png": f"{at}/new/a.png cannot be written: the folder {at} may not be changed",
    }
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # as for a person who is not the owner
    for place, sentence in places.items():
        said = qkv(
            "evaluate", tmp_path / "none", "--task", "agreement", f"--{option}", tmp_path / place
        )
        assert said.error.endswith(f"qkv: {option}: {sentence}\n")
        assert said.refused
    assert not (tmp_path / "new").exists()


def test_what_is_done_is_kept_when_a_later_part_fails(
    qkv: Qkv, model: Path, pairs: list[Path], tmp_path: Path
) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    kept = ["--out", out, "--plot", plot]
    blimp = f"blimp={pairs[1]}"
    # A later task, a later model, and a later number of examples.
    cases = [
        (
            [model, "--task", blimp, "--task", "lambada=none.jsonl"],
            "none.jsonl: no such file or folder",
        ),
        (
            [model, tmp_path / "none", "--task", blimp],
            f"{tmp_path / 'none'}: there is no such folder",
        ),
        ([model, "--task", blimp, "--shots", "0", "9"], "shots: "),
    ]
    for asked, sentence in cases:
        said = qkv("evaluate", *asked, *kept)
        assert said.refused
        assert f"qkv: {sentence}" in said.error
        assert "blimp" in said.out
        found = json.loads(out.read_text())
        assert [result["task"] for result in found["results"]] == ["blimp"]
        assert list(found["data"]) == ["blimp"]
        assert found["failure"].startswith(sentence)
        assert plot.read_bytes().startswith(b"\x89PNG")
        out.unlink()
        plot.unlink()


def test_shots_where_no_examples_go(qkv: Qkv, model: Path, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("the cat sat\n")
    mine = tmp_path / "my.txt"
    said = qkv(
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
    assert "no examples: they stand before questions" in said.out
    (result,) = json.loads((tmp_path / "o").read_text())["results"]
    assert result["shots"] == 0
    said = qkv(
        "evaluate", "--task", "translation", "--hypotheses", mine, "--data", mine, "--shots", "3"
    )
    assert (
        "qkv: shots: translations that are there already have no examples before them" in said.error
    )
