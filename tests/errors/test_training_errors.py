"""What a person may do wrong when training: one clear sentence each, and nothing that stands in the
way of the next.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from qkv import cli
from qkv.commands.train import TRAINED
from qkv.models.registry import FAMILIES
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.systems import precision

pytestmark = pytest.mark.usefixtures("without_shape_checks")

TEXT = "the cats chase the mice and the mice see the cats\n" * 40
SMALL = [
    "--width",
    "8",
    "--depth",
    "1",
    "--heads",
    "2",
    "--context",
    "16",
    "--batch-tokens",
    "32",
    "--steps",
    "2",
]


class Command:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.monkeypatch, self.capsys, self.folder = monkeypatch, capsys, folder
        self.text = folder / "text.txt"
        self.text.write_text(TEXT)
        self.out = folder / "run"

    def __call__(self, *words: Any) -> tuple[int, str]:
        """As typed; the exit code, and all that was printed."""
        self.monkeypatch.setattr("sys.argv", ["qkv", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
            if isinstance(leaving.code, str):
                print(leaving.code)
            elif leaving.code is None:
                code = 0
        told = self.capsys.readouterr()
        return code, told.out + told.err

    def refused(self, message: str, *words: Any, family: str = "gpt", data: Any = None) -> str:
        """The sentence is there; and either nothing was written, or the right command then works in
        the same folder.
        """
        data = [self.text] if data is None else data
        code, said = self("train", family, "--data", *data, "--out", self.out, *SMALL, *words)
        assert code not in (0, None), said
        assert re.search(message, " ".join(re.sub(r"[│╭╮╰╯─]", " ", said).split())), said
        assert "Traceback" not in said
        if not self.out.exists():
            return said
        code, works = self("train", "gpt", "--data", self.text, "--out", self.out, *SMALL)
        assert code == 0, works
        assert (self.out / "model.safetensors").exists()
        return said


@pytest.fixture
def qkv(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys, tmp_path)


# Help


@pytest.mark.parametrize("words", [["train"], ["train", "--help"], ["train", "-h"]])
def test_help_names_the_families(words: list[str], qkv: Command) -> None:
    code, said = qkv(*words)
    assert code == 0
    assert all(re.search(rf"^  {name} ", said, re.MULTILINE) for name in TRAINED)
    assert "qkv train gpt --help" in said


@pytest.mark.parametrize("family", TRAINED)
def test_help_shows_every_field_with_its_meaning(
    family: str, qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "COLUMNS", "100"
    )  # with more, boxes stand side by side and share their lines
    code, said = qkv("train", family, "--help")
    assert code == 0
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", said).split())
    for config in (FAMILIES[family][0], DataConfig, OptimizerConfig, RunConfig):
        for field in fields(config):
            flag = field.name.replace("_", "-")
            found = re.search(
                rf"--(no-)?{flag}[ ,:{{](?P<meaning>.{{20,600}}?)(\((default|required)| --)", said
            )
            assert found, f"{field.name} is missing, or has no default"
            assert len(re.findall(r"\b[A-Za-z][a-z]+\b", found["meaning"])) >= 2, (
                f"{field.name} has no meaning"
            )
    assert "Tokens of one update, over all micro-batches and machines" in said
    assert "Updates of the weights." in said
    assert "(default: 1000)" in said


# The command


def test_a_family_that_is_none(qkv: Command) -> None:
    qkv.refused("qkv: train: expected one of gpt, bert, transformer, rnn, not 'gtp'", family="gtp")


def test_a_preset_that_is_none(qkv: Command) -> None:
    qkv.refused(r"qkv: preset: there is no 'gpt-tin'; did you mean gpt-tiny", "--preset", "gpt-tin")


def test_a_preset_of_another_family(qkv: Command) -> None:
    qkv.refused(
        "preset: bert-tiny is of another family; say qkv train bert --preset bert-tiny",
        "--preset",
        "bert-tiny",
    )


def test_a_flag_that_is_none(qkv: Command) -> None:
    said = qkv.refused("--stepz", "--stepz", "3")
    assert "--steps" in said, "what was meant"


def test_no_data(qkv: Command) -> None:
    code, said = qkv("train", "gpt", "--out", qkv.out)
    assert code != 0
    assert "--data" in said
    assert "Traceback" not in said
    assert not qkv.out.exists()


def test_no_folder(qkv: Command) -> None:
    code, said = qkv("train", "gpt", "--data", qkv.text)
    assert code != 0
    assert "--out" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "-1"], "steps: expected 1 or more, not -1"),
        (["--steps", "0"], "steps: expected 1 or more, not 0"),
        (["--steps", "many"], "steps.*many"),
        (["--batch-tokens", "0"], "batch_tokens: expected 1 or more, not 0"),
        (["--micro-batch-tokens", "-5"], "micro_batch_tokens: expected 1 or more, not -5"),
        (["--seed", "-1"], "seed: expected 0 or more, not -1"),
        (["--keep", "0"], "padding_mask: expected 1 or more, or all, not 0"),
        (["--patience", "0"], "patience: expected 1 or more, not 0"),
        (["--spike", "-1"], "spike: expected 0 or more, not -1"),
        (["--learning-rate", "0"], "learning_rate: expected a number above 0, not 0"),
        (["--learning-rate", "-1"], "learning_rate: expected a number above 0, not -1"),
        (["--learning-rate", "nan"], "learning_rate: expected a number above 0, not nan"),
        (["--smoothing", "1"], "smoothing: expected a probability from 0 to below 1, not 1"),
        (["--weight-decay", "-1"], "weight_decay: expected 0 or more, not -1"),
        (["--final-rate", "2"], "final_rate: expected 0 to 1, not 2"),
        (["--clip", "-1"], "clip: expected 0 or more, not -1"),
        (["--held-out", "0"], "held_out: expected a number above 0, not 0"),
        (["--held-out", "1.5"], "held_out: expected a probability from 0 to below 1, not 1.5"),
        (
            ["--schedule", "cosin"],
            "--schedule: expected one of cosine, .*, not 'cosin'; did you mean cosine",
        ),
        (
            ["--precision", "bf17"],
            "--precision: expected one of float32, bf16, fp16, not 'bf17'; did you mean bf16",
        ),
        (["--heads", "3"], "heads.*3"),
        (["--width", "0"], "width: expected 1 or more, not 0"),
        (["--dropout", "1.0"], "dropout: expected a probability from 0 to below 1, not 1"),
        (
            ["--tokenizer", "letters"],
            "tokenizer: 'letters' is neither a file nor a folder, nor one of characters, words",
        ),
        (["--device", "tpu9"], "device.*tpu9"),
        (["--device", "cuda"], "device: there is no GPU here"),
    ],
)
def test_values_that_cannot_be(
    words: list[str], message: str, qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    qkv.refused(message, *words)


def test_a_precision_that_the_machine_cannot_compute_with(
    qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_slowdown", lambda dtype: None)
    qkv.refused(
        "precision: this CPU cannot compute with bf16; use float32",
        "--precision",
        "bf16",
        "--device",
        "cpu",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recompute"], "recompute: an RNN has no blocks to recompute; leave it out"),
        (
            ["--optimizer", "muon"],
            "optimizer: muon is for the matrices of blocks, and an RNN has none; use adamw",
        ),
    ],
)
def test_what_is_for_blocks_is_not_for_an_rnn(words: list[str], message: str, qkv: Command) -> None:
    pairs = qkv.folder / "pairs.tsv"
    pairs.write_text("one\teins\n" * 30)
    code, said = qkv(
        "train", "rnn", "--data", pairs, "--out", qkv.out, "--width", "8", "--steps", "2", *words
    )
    assert code != 0
    assert message in said
    assert not qkv.out.exists()


def test_a_sink_that_is_not_installed(qkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.training.logging.trackers.find_spec", lambda name: None)
    qkv.refused("sinks: wandb needs the package wandb", "--sinks", "wandb")


# The data


def test_a_file_that_is_missing(qkv: Command) -> None:
    qkv.refused(r"missing\.txt", data=[qkv.folder / "missing.txt"])


def test_a_file_that_is_empty(qkv: Command) -> None:
    empty = qkv.folder / "empty.txt"
    empty.touch()
    qkv.refused(r"empty\.txt: .*(empty|no text)", data=[empty])


def test_a_file_of_blanks(qkv: Command) -> None:
    blank = qkv.folder / "blank.txt"
    blank.write_text(" \n \n")
    qkv.refused(r"blank\.txt|context: one row takes", "--tokenizer", "words", data=[blank])


def test_bad_encoding(qkv: Command) -> None:
    latin = qkv.folder / "latin.txt"
    latin.write_bytes(b"first line\nsecond line\nna\xefve\n")
    qkv.refused(r"latin\.txt:3: .*UTF-8", data=[latin])


def test_a_text_shorter_than_one_row_is_told_and_every_checkpoint_can_be_generated_from(
    qkv: Command,
) -> None:
    words = ["--context", "512", "--keep", "all", "--checkpoint-every", "1", "--sample-every", "0"]
    code, said = qkv("train", "gpt", "--data", qkv.text, "--out", qkv.out, *SMALL, *words)
    assert code == 0, said
    assert "that is less than one row of 512 tokens" in said
    for step in range(3):
        code, said = qkv(
            "generate", f"{qkv.out}@{step}", "the cats", "--length", "3", "--device", "cpu"
        )
        assert code == 0, said
    code, said = qkv("generate", f"{qkv.out}@7", "the cats")
    assert code != 0
    assert f"qkv: {qkv.out}@7: there is no checkpoint of step 7; {qkv.out} has 0, 1, 2" in " ".join(
        said.split()
    )


def test_pairs_of_one_column(qkv: Command) -> None:
    code, said = qkv(
        "train", "transformer", "--data", qkv.text, "--out", qkv.out, "--width", "8", "--heads", "2"
    )
    assert code != 0
    assert said.startswith("qkv: ") or "\nqkv: " in said
    assert "Traceback" not in said


def test_no_pair_that_fits(qkv: Command) -> None:
    pairs = qkv.folder / "pairs.tsv"
    pairs.write_text("one two three four five six seven\teins zwei drei vier\n" * 30)
    code, said = qkv(
        "train",
        "transformer",
        "--data",
        pairs,
        "--out",
        qkv.out,
        "--batch-tokens",
        "3",
        "--width",
        "8",
        "--heads",
        "2",
    )
    assert code != 0
    assert "pairs: none fits into 3 tokens" in said
    assert "Traceback" not in said


# The folder


def test_a_folder_that_is_a_file(qkv: Command) -> None:
    file = qkv.folder / "file"
    file.write_text("mine")
    code, said = qkv("train", "gpt", "--data", qkv.text, "--out", file, *SMALL)
    assert code != 0
    assert f"qkv: out: {file} is a file; choose a folder" in said
    code, said = qkv("train", "gpt", "--data", qkv.text, "--out", file / "run", *SMALL)
    assert code != 0
    assert said.strip().splitlines()[-1].startswith("qkv: ")
    assert "Traceback" not in said
    code, said = qkv("train", "gpt", "--out", file, "--resume")
    assert code != 0
    assert "Traceback" not in said


def test_a_run_that_is_there(qkv: Command) -> None:
    code, _ = qkv("train", "gpt", "--data", qkv.text, "--out", qkv.out, *SMALL)
    assert code == 0
    code, said = qkv("train", "gpt", "--data", qkv.text, "--out", qkv.out, *SMALL)
    assert code != 0
    assert f"qkv: out: {qkv.out} holds a run already; add --resume" in said
    code, said = qkv("train", "gpt", "--out", qkv.out, "--resume", "--seed", "5")
    assert code != 0
    assert f"qkv: seed: the run in {qkv.out} has 0, not 5" in said
    code, said = qkv("train", "gpt", "--out", qkv.out, "--resume")
    assert code == 0
    assert "Resuming after step 2 of 2." in said


def test_nothing_to_resume_and_no_data(qkv: Command) -> None:
    code, said = qkv("train", "gpt", "--out", qkv.out, "--resume")
    assert code != 0
    assert "--data" in said
    assert "Traceback" not in said


def test_a_disk_that_is_full(qkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr("qkv.storage.free", lambda folder: 10)
        code, said = qkv("train", "gpt", "--data", qkv.text, "--out", qkv.out, *SMALL)
    assert code != 0
    assert "no room on the disk" in said
    assert "Traceback" not in said
    code, said = qkv("train", "gpt", "--data", qkv.text, "--out", qkv.out, *SMALL)
    assert code == 0, said
