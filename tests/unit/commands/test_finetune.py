"""qkv finetune: its folder works with the other commands, and errors are reported at once."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from support.command_fixtures import Qkv
from support.finetuning import make_models, rows_of, write

# tyro's value for a missing flag does not have the annotated type.
pytestmark = pytest.mark.usefixtures("without_shape_checks")

LEARN = (
    "--epochs",
    "3",
    "--batch",
    "8",
    "--learning-rate",
    "0.01",
    "--device",
    "cpu",
    "--log-every",
    "1000",
)


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with gpt, bert and transformer, and the files of toy tasks."""
    folder = make_models(tmp_path_factory.mktemp("backbones"))
    for task in ("classify", "tag", "pair", "numbers", "chat"):
        write(task, folder / task, rows_of(task, 64))
        write(task, folder / f"{task}-dev", rows_of(task, 24, seed=1))

    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "140")


def test_its_folder_works_with_the_other_commands(
    backbones: Path, tmp_path: Path, qkv: Qkv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(backbones)
    out = tmp_path / "run"
    flags = (
        "--task",
        "classify",
        "--data",
        "classify.tsv",
        "--validation",
        "classify-dev.tsv",
        "--out",
        out,
    )

    printed = qkv("finetune", "bert", *flags, *LEARN)
    assert printed.code == 0, printed.error
    assert "64 examples to train on, 24 to validate on, 2 classes: bad, good" in printed.out
    assert "accuracy 1.0000" in printed.out
    assert f"Use it: qkv classify {out}" in printed.out
    assert (out / "confusion.png").stat().st_size > 1000
    assert qkv("classify", out, "warm boats", "stones cold").out.split("\n")[0].startswith("good")
    scored = qkv("classify", out, "--data", backbones / "classify-dev.tsv", "--score")
    assert re.search(r"accuracy\s+(100|1\.0)", scored.out)
    # --resume needs no other flags, and works from any folder.
    monkeypatch.chdir(tmp_path)
    again = qkv("finetune", "--out", out, "--resume")
    assert (again.code, again.error) == (0, "")
    assert "All 24 steps are done" in again.out
    assert "accuracy 1.0000" in again.out
    refused = qkv("finetune", "--out", out, "--resume", "--rank", "3")
    assert refused.error.startswith("qkv: rank: the run in")
    taken = qkv(
        "finetune",
        backbones / "bert",
        "--task",
        "classify",
        "--data",
        backbones / "classify.tsv",
        "--out",
        out,
    )

    assert "holds a run already; add --resume" in taken.error


def test_mean_and_spread_of_several_seeds(backbones: Path, tmp_path: Path, qkv: Qkv) -> None:
    flags = (
        "--task",
        "tag",
        "--data",
        backbones / "tag.jsonl",
        "--validation",
        backbones / "tag-dev.jsonl",
    )

    short = (*LEARN[2:], "--epochs", "0.5", "--dropout", "0.3")
    printed = qkv(
        "finetune",
        backbones / "bert",
        *flags,
        "--out",
        tmp_path / "k",
        *short,
        "--seeds",
        "3",
        "--seed",
        "5",
    )

    assert printed.code == 0, printed.error
    spread = json.loads((tmp_path / "k" / "seeds.json").read_text())
    assert spread["seeds"] == [5, 6, 7]
    scores = [
        json.loads((tmp_path / "k" / f"seed-{seed}" / "scores.json").read_text())
        for seed in (5, 6, 7)
    ]
    for name in ("accuracy", "loss"):
        values = [score["measured"][name] for score in scores]
        assert spread["measured"][name] == values
        assert spread["spread"][name]["mean"] == pytest.approx(statistics.fmean(values))
        assert spread["spread"][name]["deviation"] == pytest.approx(statistics.stdev(values))
        assert f"{statistics.fmean(values):.4f}" in printed.out

    losses = {score["measured"]["loss"] for score in scores}
    assert len(losses) == 3, "each run has its own seed"
    again = qkv("finetune", "--out", tmp_path / "k", "--resume")  # the number of seeds is stored
    assert again.code == 0, again.error
    assert "Seed 7, 3 of 3" in again.out
    assert json.loads((tmp_path / "k" / "seeds.json").read_text()) == spread
    taken = qkv("finetune", backbones / "bert", *flags, "--out", tmp_path / "k", "--seeds", "2")
    assert "holds runs already; add --resume" in taken.error
    assert json.loads((tmp_path / "k" / "seeds.json").read_text()) == spread, "nothing is lost"
    inside = qkv(
        "finetune", backbones / "bert", *flags, "--out", tmp_path / "k" / "seed-5", "--seeds", "2"
    )
    assert "holds a run of one seed; choose another folder for several" in inside.error


def test_refused_seeds_leave_no_folder(
    backbones: Path, tmp_path: Path, qkv: Qkv, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (
        "--task",
        "tag",
        "--data",
        backbones / "classify.tsv",
        "--out",
        tmp_path / "k",
        "--seeds",
        "2",
    )

    assert qkv("finetune", backbones / "bert", *flags).refused
    assert not (tmp_path / "k").exists()
    monkeypatch.setenv("RANK", "0")
    assert qkv("finetune", backbones / "bert", *flags).error.startswith(
        "qkv: seeds: under torchrun one seed at a time"
    )


def test_a_dry_run_leaves_no_folder(backbones: Path, tmp_path: Path, qkv: Qkv) -> None:
    flags = (
        "--task",
        "classify",
        "--data",
        backbones / "classify.tsv",
        "--out",
        tmp_path / "none",
        "--dry-run",
    )

    printed = qkv(
        "finetune",
        backbones / "gpt",
        *flags,
        "--train",
        "adapters",
        "--rank",
        "1",
        "--device",
        "cpu",
    )

    assert printed.code == 0, printed.error
    assert re.search(r"parameters.*of which [\d,]+ learn \(\d", printed.out)
    assert not (tmp_path / "none").exists()


def test_the_other_kind_of_run_is_not_resumed(backbones: Path, tmp_path: Path, qkv: Qkv) -> None:
    (tmp_path / "run.json").write_text('{"command": "train"}')
    printed = qkv("finetune", "--out", tmp_path, "--resume")
    assert printed.error.startswith(
        f"qkv: out: {tmp_path} holds a run of qkv train; resume it with that"
    )


# Errors are reported before any training, with the file and the line

GOOD_ROWS = (
    "sentence\tlabel\nwarm boats\tgood\ncold boats\tbad\nwarm stones\tgood\ncold stones\tbad\n"
)
PAIRS = "sentence1\tsentence2\tscore\nwarm\tboats\t1.5\ncold\tboats\t0.5\n"
VALIDATED = ("--validation", "{data}")
BAD: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "a label that training has not": (
        "classify",
        GOOD_ROWS,
        ("--validation", "{dev}"),
        r"{dev}:3: the label 'odd'",
    ),
    "an empty sentence": ("classify", GOOD_ROWS + " \tgood\n", (), r"{data}:6: .*empty"),
    "a missing column": ("classify", "sentence\twhat\nwarm\tgood\n", (), r"{data}:1: .*label"),
    "a row with a missing column": ("classify", GOOD_ROWS + "warm rivers\n", (), r"{data}:6: "),
    "a class with one example": (
        "classify",
        GOOD_ROWS + "boats\todd\n",
        VALIDATED,
        r"{data}:6: the class 'odd'",
    ),
    "a single class": (
        "classify",
        "sentence\tlabel\nwarm\tgood\nboats\tgood\n",
        VALIDATED,
        r"{data}:2: expected two classes",
    ),
    "too few": ("classify", GOOD_ROWS, (), r"data: 4 examples .*--validation"),
    "a class with one example, and nothing to validate on": (
        "classify",
        GOOD_ROWS + "boats\todd\n",
        (),
        r"{data}:6: the class 'odd'",
    ),
    "fewer examples than two a class": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--examples", "2"),
        r"examples: 2 are too few for 2 classes",
    ),
    "no number": (
        "regress",
        "sentence\tscore\nwarm\t1\ncold\tlow\n",
        (),
        r"{data}:3: expected a number as the label, not 'low'",
    ),
    "equal numbers": (
        "regress",
        "sentence\tscore\nwarm\t1\ncold\t1\n",
        VALIDATED,
        r"{data}:2: all 2 numbers",
    ),
    "one text of a pair": ("pair", GOOD_ROWS, (), r"{data}:1: .*sentence1 and sentence2"),
    "a metric of another task": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--metric", "pearson"),
        r"metric: classify has loss, accuracy, macro_f1, matthews",
    ),
    "a metric of classes for numbers": (
        "similarity",
        PAIRS,
        (*VALIDATED, "--metric", "accuracy"),
        r"metric: similarity has loss, pearson, mean_absolute_error",
    ),
    "weights for numbers": (
        "similarity",
        PAIRS,
        (*VALIDATED, "--class-weights", "balanced"),
        r"class_weights: .*no classes",
    ),
    "a weight of no class": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--class-weights", "odd=2"),
        r"class_weights: .*bad, good, not 'odd=2'",
    ),
    "a weight that is no number": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--class-weights", "good=much"),
        r"class_weights: .*0 or more, not 'good=much'",
    ),
    "more examples than there are": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--examples", "9"),
        r"examples: .*4 .*9",
    ),
    "a language loss for a BERT": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--language", "0.5"),
        r"language: only a GPT",
    ),
    "a context without room": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--context", "2"),
        r"context: 2 tokens",
    ),
    "an encoder-decoder": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--model", "{models}/transformer"),
        r"model: .*transformer is an encoder-decoder",
    ),
    "no such model": ("classify", GOOD_ROWS, (*VALIDATED, "--model", "{models}/none"), "{models}"),
    "first-token pooling of a causal model": (
        "classify",
        GOOD_ROWS,
        (*VALIDATED, "--model", "{models}/gpt", "--pooling", "first"),
        r"pooling: .*causal",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_errors_are_reported_before_any_training(
    case: str, backbones: Path, tmp_path: Path, qkv: Qkv
) -> None:
    task, content, flags, message = BAD[case]
    data = tmp_path / "data.tsv"
    dev = tmp_path / "dev.tsv"
    out = tmp_path / "run"
    data.write_text(content)
    dev.write_text("sentence\tlabel\nwarm boats\tgood\nboats\todd\n")
    paths = {"data": str(data), "dev": str(dev), "models": str(backbones)}
    arguments = [flag.format(**paths) for flag in flags]
    model = [] if "--model" in arguments else ["--model", backbones / "bert"]
    printed = qkv(
        "finetune",
        *model,
        "--task",
        task,
        "--data",
        data,
        "--out",
        out,
        "--device",
        "cpu",
        *arguments,
    )

    assert printed.refused, printed.out
    expected = message.format(**{name: re.escape(path) for name, path in paths.items()})
    assert re.match(f"qkv: {expected}", printed.error), printed.error
    assert printed.error.count("\n") == 1
    assert [path.name for path in out.iterdir()] == [".lock"]
