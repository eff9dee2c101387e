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
    rows = "1\tthe\t_\tDET\t_\t_\t2\t_\t_\t_\n2\tcat\t_\tNOUN\t_\t_\t3\t_\t_\t_\n3\tsat\t_\tVERB\t_\t_\t0\t_\t_\t_\n"
    rows += "4\tdown\t_\tADV\t_\t_\t3\t_\t_\t_\n\n"
    path.write_text(rows * 30)
    return path


def test_a_table_and_all_that_is_kept(
    qkv: Qkv, models: Path, sentences: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    printed = qkv("probe", models / "gpt", "--target", f"{sentences}:upos", "--out", out, *QUICK)
    assert printed.code == 0, printed.error
    for name in (
        "random model",
        "shuffled labels",
        "embedding",
        "norm",
        "the best on the validation part",
    ):
        assert name in " ".join(printed.out.split())
    assert printed.error.splitlines() == [
        "qkv: the model reads ...",
        "qkv: probes of the model ...",
        "qkv: the random model reads ...",
        "qkv: probes of the random model ...",
    ]
    assert sorted(path.name for path in out.iterdir()) == [
        "probe.png",
        "probes.safetensors",
        "results.json",
    ]
    told = json.loads((out / "results.json").read_text())
    assert told["labels"] == ["ADV", "DET", "NOUN", "VERB"]
    assert told["texts"] == {"training": 24, "validation": 3, "test": 3}
    assert list((tmp_path / "cache" / "activations").iterdir()) == []


def test_json_with_vectors_computed_again(
    qkv: Qkv, models: Path, sentences: Path, tmp_path: Path
) -> None:
    words = (
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
    printed = [qkv(*words, *QUICK, *way) for way in ((), ("--recompute",))]
    assert [each.code for each in printed] == [0, 0], printed
    kept, again = (json.loads(each.out) for each in printed)
    assert kept["measure"] == "distance"
    assert kept["layers"] == ["0"]
    for one, other in zip(kept["scores"], again["scores"], strict=True):
        assert other["mean"] == pytest.approx(one["mean"], abs=1e-3)


def test_without_a_terminal_long_work_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(0, 1000, 12))
    monkeypatch.setattr(command, "monotonic", lambda: float(next(now)))
    with command.watched() as stage:
        for what in ("the model reads", "probes of the model"):
            stage(what, 0.0)
            for _ in range(5):
                stage(what, 0.2)
    assert capsys.readouterr().err.splitlines() == [
        "qkv: the model reads ...", "qkv: the model reads: 60%",
        "qkv: probes of the model ...", "qkv: probes of the model: 60%",
    ]  # fmt: skip


def test_the_other_targets(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    table, text = tmp_path / "labels.tsv", tmp_path / "text.txt"
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
    words = (
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
    found = json.loads(qkv(*words, "--json", *QUICK).out)
    assert found["baseline"] == {"distance": 2.0, "accuracy": 0.125}
    assert {score["measure"] for score in found["scores"]} == {"distance", "accuracy"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "none.conllu:upos"], "qkv: none.conllu: no such file or folder"),
        (["--target", "FILE"], "qkv: target: name a column of FILE, such as FILE:upos\n"),
        (["--target", "none.tsv"], "qkv: none.tsv: no such file or folder"),
        (["--target", "FILE:colour"], "colour"),
        (
            ["--target", "FILE:upos", "--layers", "9"],
            "qkv: layers: expected some of embedding, 0, norm, not '9'",
        ),
        (
            ["--target", "FILE:upos", "--test", "FILE"],
            "qkv: test: FILE is a file of target, too; expected texts that",
        ),
        (["--target", "FILE:upos", "--seeds", "0"], "qkv: seeds: expected 1 or more, not 0"),
        (["--target", "FILE:upos", "--out", "FILE"], "FILE is a file and no folder"),
        (["--target", "position"], "qkv: data: expected texts in which places are asked"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    qkv: Qkv, models: Path, sentences: Path, words: list[str], message: str
) -> None:
    printed = qkv(
        "probe", models / "gpt", *(word.replace("FILE", str(sentences)) for word in words)
    )
    assert printed.refused
    assert message.replace("FILE", str(sentences)) in printed.error
    assert len(printed.error.strip().splitlines()) == 1
