"""qkv finetune: from the command line to a folder that the other commands use; and what is wrong is
said at once.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

from support.command_fixtures import Qkv
from support.finetuning import make_models, rows_of, write

pytestmark = pytest.mark.usefixtures(
    "without_shape_checks"
)  # tyro's own value for what is not given is no text

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
def bodies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with gpt, bert and transformer, and the files of toy tasks."""
    folder = make_models(tmp_path_factory.mktemp("bodies"))
    for task in ("classify", "tag", "pair", "numbers", "chat"):
        write(task, folder / task, rows_of(task, 64))
        write(task, folder / f"{task}-dev", rows_of(task, 24, seed=1))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "140")


def test_what_it_makes_is_used_by_the_other_commands(
    bodies: Path, tmp_path: Path, qkv: Qkv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bodies)
    out = tmp_path / "run"
    asked = (
        "--task",
        "classify",
        "--data",
        "classify.tsv",
        "--validation",
        "classify-dev.tsv",
        "--out",
        out,
    )
    printed = qkv("finetune", "bert", *asked, *LEARN)
    assert printed.code == 0, printed.error
    assert "64 examples to train on, 24 to validate on, 2 classes: bad, good" in printed.out
    assert "accuracy 1.0000" in printed.out
    assert f"Use it: qkv classify {out}" in printed.out
    assert (out / "confusion.png").stat().st_size > 1000
    assert qkv("classify", out, "warm boats", "stones cold").out.split("\n")[0].startswith("good")
    scored = qkv("classify", out, "--data", bodies / "classify-dev.tsv", "--score")
    assert re.search(r"accuracy\s+(100|1\.0)", scored.out)
    # Nothing need be said again, and it may be said from anywhere.
    monkeypatch.chdir(tmp_path)
    again = qkv("finetune", "--out", out, "--resume")
    assert (again.code, again.error) == (0, "")
    assert "All 24 steps are done" in again.out
    assert "accuracy 1.0000" in again.out
    refused = qkv("finetune", "--out", out, "--resume", "--rank", "3")
    assert refused.error.startswith("qkv: rank: the run in")
    taken = qkv(
        "finetune",
        bodies / "bert",
        "--task",
        "classify",
        "--data",
        bodies / "classify.tsv",
        "--out",
        out,
    )
    assert "holds a run already; add --resume" in taken.error


def test_several_seeds_their_mean_and_their_spread(bodies: Path, tmp_path: Path, qkv: Qkv) -> None:
    asked = (
        "--task",
        "tag",
        "--data",
        bodies / "tag.jsonl",
        "--validation",
        bodies / "tag-dev.jsonl",
    )
    short = (*LEARN[2:], "--epochs", "0.5", "--dropout", "0.3")
    printed = qkv(
        "finetune",
        bodies / "bert",
        *asked,
        "--out",
        tmp_path / "k",
        *short,
        "--seeds",
        "3",
        "--seed",
        "5",
    )
    assert printed.code == 0, printed.error
    told = json.loads((tmp_path / "k" / "seeds.json").read_text())
    assert told["seeds"] == [5, 6, 7]
    scores = [
        json.loads((tmp_path / "k" / f"seed-{seed}" / "scores.json").read_text())
        for seed in (5, 6, 7)
    ]
    for name in ("accuracy", "loss"):
        values = [each["measured"][name] for each in scores]
        assert told["measured"][name] == values
        assert told["spread"][name]["mean"] == pytest.approx(statistics.fmean(values))
        assert told["spread"][name]["deviation"] == pytest.approx(statistics.stdev(values))
        assert f"{statistics.fmean(values):.4f}" in printed.out
    assert len({each["measured"]["loss"] for each in scores}) == 3, "a seed of its own for each"
    again = qkv("finetune", "--out", tmp_path / "k", "--resume")  # how many there are is remembered
    assert again.code == 0, again.error
    assert "Seed 7, 3 of 3" in again.out
    assert json.loads((tmp_path / "k" / "seeds.json").read_text()) == told
    taken = qkv("finetune", bodies / "bert", *asked, "--out", tmp_path / "k", "--seeds", "2")
    assert "holds runs already; add --resume" in taken.error
    assert json.loads((tmp_path / "k" / "seeds.json").read_text()) == told, "nothing is lost"
    inside = qkv(
        "finetune", bodies / "bert", *asked, "--out", tmp_path / "k" / "seed-5", "--seeds", "2"
    )
    assert "holds a run of one seed; choose another folder for several" in inside.error


def test_seeds_that_are_refused_leave_nothing(
    bodies: Path, tmp_path: Path, qkv: Qkv, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (
        "--task",
        "tag",
        "--data",
        bodies / "classify.tsv",
        "--out",
        tmp_path / "k",
        "--seeds",
        "2",
    )
    assert qkv("finetune", bodies / "bert", *asked).refused
    assert not (tmp_path / "k").exists()
    monkeypatch.setenv("RANK", "0")
    assert qkv("finetune", bodies / "bert", *asked).error.startswith(
        "qkv: seeds: under torchrun one seed at a time"
    )


def test_a_dry_run_leaves_nothing(bodies: Path, tmp_path: Path, qkv: Qkv) -> None:
    asked = (
        "--task",
        "classify",
        "--data",
        bodies / "classify.tsv",
        "--out",
        tmp_path / "none",
        "--dry-run",
    )
    printed = qkv(
        "finetune", bodies / "gpt", *asked, "--train", "adapters", "--rank", "1", "--device", "cpu"
    )
    assert printed.code == 0, printed.error
    assert re.search(r"parameters.*of which [\d,]+ learn \(\d", printed.out)
    assert not (tmp_path / "none").exists()


def test_the_other_kind_of_run_is_not_resumed(bodies: Path, tmp_path: Path, qkv: Qkv) -> None:
    (tmp_path / "run.json").write_text('{"command": "train"}')
    printed = qkv("finetune", "--out", tmp_path, "--resume")
    assert printed.error.startswith(
        f"qkv: out: {tmp_path} holds a run of qkv train; resume it with that"
    )


# What is wrong is said before any training, with the file and the line

GOOD_ROWS = (
    "sentence\tlabel\nwarm boats\tgood\ncold boats\tbad\nwarm stones\tgood\ncold stones\tbad\n"
)
PAIRS = "sentence1\tsentence2\tscore\nwarm\tboats\t1.5\ncold\tboats\t0.5\n"
BAD: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "a label never seen": (
        "classify", GOOD_ROWS, ("--validation", "{dev}"), r"{dev}:3: the label 'odd' is never seen in training",
    ),
    "an empty sentence": ("classify", GOOD_ROWS + " \tgood\n", (), r"{data}:6: the text is empty; leave the row out"),
    "a missing column": ("classify", "sentence\twhat\nwarm\tgood\n", (), r"{data}:1: .*label"),
    "a row with a missing column": ("classify", GOOD_ROWS + "warm rivers\n", (), r"{data}:6: "),
    "a class with one example": (
        "classify", GOOD_ROWS + "boats\todd\n", ("--validation", "{data}"),
        r"{data}:6: the class 'odd' has this one example; add another, or leave it out",
    ),
    "a single class": (
        "classify", "sentence\tlabel\nwarm\tgood\nboats\tgood\n", ("--validation", "{data}"),
        r"{data}:2: expected two classes to train on or more, found only good",
    ),
    "too few": ("classify", GOOD_ROWS, (), "data: 4 examples are too few to hold some out; give --validation"),
    "a class with one example, and nothing to validate on": (
        "classify", GOOD_ROWS + "boats\todd\n", (), r"{data}:6: the class 'odd' has this one example; add another",
    ),
    "fewer examples than two a class": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--examples", "2"),
        "examples: 2 are too few for 2 classes; expected 4 or more",
    ),
    "no number": (
        "regress", "sentence\tscore\nwarm\t1\ncold\tlow\n", (), r"{data}:3: expected a number as the label, not 'low'",
    ),
    "numbers all alike": (
        "regress", "sentence\tscore\nwarm\t1\ncold\t1\n", ("--validation", "{data}"),
        r"{data}:2: all 2 numbers to train on are 1",
    ),
    "one text of a pair": ("pair", GOOD_ROWS, (), r"{data}:1: no columns are called sentence1 and sentence2"),
    "a metric of another task": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--metric", "pearson"),
        "metric: classify has loss, accuracy, macro_f1, matthews, not pearson",
    ),
    "a metric of classes for numbers": (
        "similarity", PAIRS, ("--validation", "{data}", "--metric", "accuracy"),
        "metric: similarity has loss, pearson, mean_absolute_error, not accuracy",
    ),
    "weights for numbers": (
        "similarity", PAIRS, ("--validation", "{data}", "--class-weights", "balanced"),
        "class_weights: similarity with numbers has no classes; leave them out",
    ),
    "a weight of no class": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--class-weights", "odd=2"),
        "class_weights: expected balanced, or label=weight of bad, good, not 'odd=2'",
    ),
    "a weight that is none": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--class-weights", "good=much"),
        "class_weights: expected a weight of 0 or more, not 'good=much'",
    ),
    "more examples than there are": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--examples", "9"),
        "examples: there are 4 to train on, not 9",
    ),
    "words of a BERT": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--language", "0.5"), "language: only a GPT predicts",
    ),
    "no room": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--context", "2"), "context: 2 tokens have no room for words",
    ),
    "an encoder-decoder": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--model", "{models}/transformer"),
        "model: .*transformer is an encoder-decoder; classify expects a GPT or a BERT",
    ),
    "no such model": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--model", "{models}/none"), "{models}/none",
    ),
    "a causal first word": (
        "classify", GOOD_ROWS, ("--validation", "{data}", "--model", "{models}/gpt", "--pooling", "first"),
        "pooling: the first word of a causal model has read nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_wrong_is_said_before_any_training(
    case: str, bodies: Path, tmp_path: Path, qkv: Qkv
) -> None:
    task, content, flags, said = BAD[case]
    data, dev, out = tmp_path / "data.tsv", tmp_path / "dev.tsv", tmp_path / "run"
    data.write_text(content)
    dev.write_text("sentence\tlabel\nwarm boats\tgood\nboats\todd\n")
    places = {"data": str(data), "dev": str(dev), "models": str(bodies)}
    words = [word.format(**places) for word in flags]
    model = [] if "--model" in words else ["--model", bodies / "bert"]
    printed = qkv(
        "finetune", *model, "--task", task, "--data", data, "--out", out, "--device", "cpu", *words
    )
    assert printed.refused, printed.out
    expected = said.format(**{name: re.escape(place) for name, place in places.items()})
    assert re.match(f"qkv: {expected}", printed.error), printed.error
    assert printed.error.count("\n") == 1
    assert [path.name for path in out.iterdir()] == [".lock"]
