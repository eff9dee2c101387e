"""qkv probe: results, files and progress; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv.commands import probe as command
from support.command_fixtures import Qkv
from support.sentences import SENTENCES

QUICK = ("--seeds", "2", "--epochs", "2")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "a.conllu"
    rows = (
        "1\tthe\t_\tDET\t_\t_\t2\t_\t_\t_\n"
        "2\tcat\t_\tNOUN\t_\t_\t3\t_\t_\t_\n"
        "3\tsat\t_\tVERB\t_\t_\t0\t_\t_\t_\n"
        "4\tdown\t_\tADV\t_\t_\t3\t_\t_\t_\n\n"
    )

    path.write_text(rows * 30)
    return path


def test_the_table_and_the_files(qkv: Qkv, models: Path, sentences: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = qkv("probe", models / "gpt", "--target", f"{sentences}:upos", "--out", out, *QUICK)
    assert printed.code == 0, printed.error
    for name in ("random", "shuffled labels", "embedding", "norm", "validation"):
        assert name in " ".join(printed.out.split())

    notes = printed.error.splitlines()
    assert len(notes) == 4  # reading and probing, of the model and of the random-weight control
    assert all(note.startswith("qkv: ") and note.endswith(" ...") for note in notes)
    assert sorted(path.name for path in out.iterdir()) == [
        "probe.png",
        "probes.safetensors",
        "results.json",
    ]
    results = json.loads((out / "results.json").read_text())
    assert results["labels"] == ["ADV", "DET", "NOUN", "VERB"]
    assert results["texts"] == {"training": 24, "validation": 3, "test": 3}
    assert list((tmp_path / "cache" / "activations").iterdir()) == []


def test_recomputed_activations_give_the_same_scores(
    qkv: Qkv, models: Path, sentences: Path, tmp_path: Path
) -> None:
    arguments = (
        "probe",
        models / "bert",
        "--target",
        f"{sentences}:head",
        "--json",
        "--layers",
        "0",
        "--hidden",
        "4",
    )

    stored = qkv(*arguments, *QUICK)
    recomputed = qkv(*arguments, *QUICK, "--recompute")
    assert (stored.code, recomputed.code) == (0, 0), recomputed.error
    results = json.loads(stored.out)
    assert results["measure"] == "distance"
    assert results["layers"] == ["0"]
    others = json.loads(recomputed.out)["scores"]
    for one, other in zip(results["scores"], others, strict=True):
        assert other["mean"] == pytest.approx(one["mean"], abs=1e-3)


def test_without_a_terminal_progress_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(0, 1000, 12))
    monkeypatch.setattr(command, "monotonic", lambda: float(next(now)))
    with command.progress_of_stages() as stage:
        for name in ("reading", "probing"):
            stage(name, 0.0)
            for _ in range(5):
                stage(name, 0.2)

    assert capsys.readouterr().err.splitlines() == [
        "qkv: reading ...",
        "qkv: reading: 60%",
        "qkv: probing ...",
        "qkv: probing: 60%",
    ]


def test_the_other_targets(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.tsv"
    text = tmp_path / "text.txt"
    rows = [f"{sentence}\t{'ab'[number % 2]}\n" for number, sentence in enumerate(SENTENCES * 2)]
    table.write_text("sentence\tlabel\n" + "".join(rows))
    text.write_text("\n".join(SENTENCES * 10))
    printed = qkv(
        "probe",
        models / "one",
        "--target",
        table,
        "--pooling",
        "first",
        "--no-controls",
        "--json",
        *QUICK,
    )

    assert {score["way"] for score in json.loads(printed.out)["scores"]} == {"model"}
    arguments = (
        "probe",
        models / "gpt",
        "--target",
        "position",
        "--data",
        text,
        "--length",
        "8",
        "--windows",
        "20",
    )

    results = json.loads(qkv(*arguments, "--json", *QUICK).out)
    assert results["baseline"] == {"distance": 2.0, "accuracy": 0.125}
    assert {score["measure"] for score in results["scores"]} == {"distance", "accuracy"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "none.conllu:upos"], "qkv: none.conllu: no such file or folder"),
        (["--target", "FILE"], "qkv: target: name a column of FILE"),
        (["--target", "none.tsv"], "qkv: none.tsv: no such file or folder"),
        (["--target", "FILE:colour"], "colour"),
        (["--target", "FILE:upos", "--layers", "9"], "qkv: layers: "),
        (["--target", "FILE:upos", "--test", "FILE"], "qkv: test: FILE is a file of target"),
        (["--target", "FILE:upos", "--seeds", "0"], "qkv: seeds: expected 1 or more, not 0"),
        (["--target", "FILE:upos", "--out", "FILE"], "FILE is a file, not a folder"),
        (["--target", "position"], "qkv: data: expected texts"),
    ],
)
def test_errors_are_one_sentence(
    qkv: Qkv, models: Path, sentences: Path, arguments: list[str], message: str
) -> None:
    printed = qkv(
        "probe", models / "gpt", *(flag.replace("FILE", str(sentences)) for flag in arguments)
    )
    assert printed.refused
    assert message.replace("FILE", str(sentences)) in printed.error
    assert len(printed.error.strip().splitlines()) == 1
