"""Mistakes in `qkv train`: one clear sentence, and a folder in which the right command works."""

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
    """The command line, called in this process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.monkeypatch = monkeypatch
        self.capsys = capsys
        self.folder = folder
        self.text = folder / "text.txt"
        self.text.write_text(TEXT)
        self.out = folder / "run"

    def __call__(self, *arguments: Any) -> tuple[int, str]:
        """The exit status, and everything that was printed."""
        self.monkeypatch.setattr("sys.argv", ["qkv", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as leaving:
            if isinstance(leaving.code, int):
                status = leaving.code
            elif leaving.code is not None:
                status = 1
                print(leaving.code)

        captured = self.capsys.readouterr()
        return status, captured.out + captured.err

    def train(self, *arguments: Any, family: str = "gpt", data: Any = None) -> tuple[int, str]:
        """Train a small model on the text, or on other data."""
        files = data or [self.text]
        return self("train", family, "--data", *files, "--out", self.out, *SMALL, *arguments)

    def fail(self, message: str, *arguments: Any, family: str = "gpt", data: Any = None) -> str:
        """The message is printed, and nothing is in the way of the right command."""
        status, printed = self.train(*arguments, family=family, data=data)
        assert status != 0, printed
        assert re.search(message, plain(printed)), printed
        assert "Traceback" not in printed
        if self.out.exists():
            status, output = self.train()
            assert status == 0, output
            assert (self.out / "model.safetensors").exists()

        return printed


def plain(printed: str) -> str:
    """Printed text in one line, without boxes."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", printed).split())


@pytest.fixture
def qkv(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys, tmp_path)


# Help


@pytest.mark.parametrize("arguments", [["train"], ["train", "--help"], ["train", "-h"]])
def test_help_lists_the_families(arguments: list[str], qkv: Command) -> None:
    status, printed = qkv(*arguments)
    assert status == 0
    for name in TRAINED:
        assert re.search(rf"^  {name} ", printed, re.MULTILINE)

    assert "qkv train gpt --help" in printed


@pytest.mark.parametrize("family", TRAINED)
def test_help_explains_every_field(
    family: str, qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # in more columns boxes stand side by side
    status, printed = qkv("train", family, "--help")
    assert status == 0
    printed = plain(printed)
    for config in (FAMILIES[family][0], DataConfig, OptimizerConfig, RunConfig):
        for field in fields(config):
            flag = field.name.replace("_", "-")
            match = re.search(
                rf"--(no-)?{flag}[ ,:{{](?P<meaning>.{{20,600}}?)(\((default|required)| --)",
                printed,
            )
            assert match, f"{field.name} is missing, or has no default"
            meaning = re.findall(r"\b[A-Za-z][a-z]+\b", match["meaning"])
            assert len(meaning) >= 2, f"{field.name} is not explained"

    assert "Tokens per update, over all micro-batches and machines" in printed
    assert "Updates of the weights." in printed
    assert "(default: 1000)" in printed


# The command


def test_an_unknown_family(qkv: Command) -> None:
    qkv.fail(r"train: expected one of gpt, .*not 'gtp'", family="gtp")


def test_a_misspelt_flag_is_suggested(qkv: Command) -> None:
    assert "--steps" in qkv.fail("--stepz", "--stepz", "3")


@pytest.mark.parametrize(("flag", "missing"), [("--out", "--data"), ("--data", "--out")])
def test_a_missing_flag_is_named(flag: str, missing: str, qkv: Command) -> None:
    value = qkv.text if flag == "--data" else qkv.out
    status, printed = qkv("train", "gpt", flag, value)
    assert status != 0
    assert missing in printed
    assert "Traceback" not in printed
    assert not qkv.out.exists()


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--preset", "gpt-tin", r"preset: .*did you mean gpt-tiny"),
        ("--preset", "bert-tiny", r"preset: .*another family.* bert --preset bert-tiny"),
        ("--steps", "-1", r"steps: .*1 or more"),
        ("--steps", "0", r"steps: .*1 or more"),
        ("--steps", "many", r"steps.*many"),
        ("--batch-tokens", "0", r"batch_tokens: .*1 or more"),
        ("--micro-batch-tokens", "-5", r"micro_batch_tokens: .*1 or more"),
        ("--seed", "-1", r"seed: .*0 or more"),
        ("--keep", "0", r"keep: .*1 or more, or all"),
        ("--patience", "0", r"patience: .*1 or more"),
        ("--spike", "-1", r"spike: .*0 or more"),
        ("--learning-rate", "0", r"learning_rate: .*above 0"),
        ("--learning-rate", "-1", r"learning_rate: .*above 0"),
        ("--learning-rate", "nan", r"learning_rate: .*above 0"),
        ("--smoothing", "1", r"smoothing: .*probability"),
        ("--weight-decay", "-1", r"weight_decay: .*0 or more"),
        ("--final-rate", "2", r"final_rate: .*0 to 1"),
        ("--clip", "-1", r"clip: .*0 or more"),
        ("--held-out", "0", r"held_out: .*above 0"),
        ("--held-out", "1.5", r"held_out: .*probability"),
        ("--schedule", "cosin", r"--schedule: .*not 'cosin'; did you mean cosine"),
        ("--precision", "bf17", r"--precision: .*not 'bf17'; did you mean bf16"),
        ("--heads", "3", r"heads.*3"),
        ("--width", "0", r"width: .*1 or more"),
        ("--dropout", "1.0", r"dropout: .*probability"),
        ("--tokenizer", "letters", r"tokenizer: 'letters' .*nor one of characters, words"),
        ("--device", "tpu9", r"device.*tpu9"),
        ("--device", "cuda", r"device: there is no GPU"),
    ],
)
def test_invalid_values(
    flag: str, value: str, message: str, qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    qkv.fail(message, flag, value)


def test_fp8_needs_a_gpu_and_a_gpt(qkv: Command) -> None:
    qkv.fail(r"fp8: expected a GPU with FP8, not cpu", "--fp8", "--device", "cpu", "--width", "16")
    qkv.fail(r"fp8: expected a gpt", "--fp8", "--device", "cpu", family="bert")


@pytest.mark.parametrize(
    ("width", "choices"), [("20", "choose 16 or 32"), ("8", "choose 16"), ("100", "96 or 112")]
)
def test_fp8_needs_a_width_that_its_products_take(qkv: Command, width: str, choices: str) -> None:
    message = rf"fp8: expected a width that is a multiple of 16, not {width}; .*{choices}, or leave"
    qkv.fail(message, "--fp8", "--width", width, "--heads", "2")


def test_a_precision_that_the_cpu_cannot_compute(
    qkv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_slowdown", lambda dtype: None)
    qkv.fail(r"precision: .*bf16; use float32", "--precision", "bf16", "--device", "cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recompute"], "recompute: an RNN has no blocks"),
        (["--optimizer", "muon"], "optimizer: muon is for the matrices of blocks"),
    ],
)
def test_options_of_blocks_with_an_rnn(arguments: list[str], message: str, qkv: Command) -> None:
    pairs = qkv.folder / "pairs.tsv"
    pairs.write_text("one\teins\n" * 30)
    size = ["--width", "8", "--steps", "2"]
    status, printed = qkv("train", "rnn", "--data", pairs, "--out", qkv.out, *size, *arguments)
    assert status != 0
    assert message in printed
    assert not qkv.out.exists()


def test_a_tracker_that_is_not_installed(qkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.training.logging.trackers.find_spec", lambda name: None)
    qkv.fail("sinks: wandb needs the package wandb", "--sinks", "wandb")


# The data


@pytest.mark.parametrize(
    ("name", "content", "tokenizer", "message"),
    [
        ("missing.txt", None, "byte-pair", r"missing\.txt"),
        ("empty.txt", b"", "byte-pair", r"empty\.txt: .*(empty|no text)"),
        ("blank.txt", b" \n \n", "words", r"blank\.txt|context: one row takes"),
        ("latin.txt", b"first\nsecond\nna\xefve\n", "byte-pair", r"latin\.txt:3: .*UTF-8"),
    ],
)
def test_files_that_cannot_be_used(
    name: str, content: bytes | None, tokenizer: str, message: str, qkv: Command
) -> None:
    file = qkv.folder / name
    if content is not None:
        file.write_bytes(content)

    qkv.fail(message, "--tokenizer", tokenizer, data=[file])


def test_a_text_shorter_than_a_row_is_noted_and_every_checkpoint_generates(qkv: Command) -> None:
    status, printed = qkv.train(
        "--context", 512, "--keep", "all", "--checkpoint-every", 1, "--sample-every", 0
    )
    assert status == 0, printed
    assert "that is less than one row of 512 tokens" in printed
    for step in range(3):
        options = ["--length", "3", "--device", "cpu"]
        status, printed = qkv("generate", f"{qkv.out}@{step}", "the cats", *options)
        assert status == 0, printed

    status, printed = qkv("generate", f"{qkv.out}@7", "the cats")
    assert status != 0
    assert f"there is no checkpoint of step 7; {qkv.out} has 0, 1, 2" in plain(printed)


def test_pairs_with_one_column(qkv: Command) -> None:
    size = ["--width", "8", "--heads", "2"]
    status, printed = qkv("train", "transformer", "--data", qkv.text, "--out", qkv.out, *size)
    assert status != 0
    assert printed.startswith("qkv: ") or "\nqkv: " in printed
    assert "Traceback" not in printed


def test_pairs_that_do_not_fit_into_a_batch(qkv: Command) -> None:
    pairs = qkv.folder / "pairs.tsv"
    pairs.write_text("one two three four five six seven\teins zwei drei vier\n" * 30)
    size = ["--batch-tokens", "3", "--width", "8", "--heads", "2"]
    status, printed = qkv("train", "transformer", "--data", pairs, "--out", qkv.out, *size)
    assert status != 0
    assert "pairs: none fits into 3 tokens" in printed
    assert "Traceback" not in printed


# The folder


def test_a_file_in_place_of_the_folder(qkv: Command) -> None:
    file = qkv.folder / "file"
    file.write_text("mine")
    status, printed = qkv("train", "gpt", "--data", qkv.text, "--out", file, *SMALL)
    assert status != 0
    assert f"qkv: out: {file} is a file; choose a folder" in printed

    status, printed = qkv("train", "gpt", "--data", qkv.text, "--out", file / "run", *SMALL)
    assert status != 0
    assert printed.strip().splitlines()[-1].startswith("qkv: ")
    assert "Traceback" not in printed

    status, printed = qkv("train", "gpt", "--out", file, "--resume")
    assert status != 0
    assert "Traceback" not in printed


def test_a_folder_that_has_a_run(qkv: Command) -> None:
    status, _ = qkv.train()
    assert status == 0
    status, printed = qkv.train()
    assert status != 0
    assert f"qkv: out: {qkv.out} holds a run already; add --resume" in printed

    status, printed = qkv("train", "gpt", "--out", qkv.out, "--resume", "--seed", "5")
    assert status != 0
    assert f"qkv: seed: the run in {qkv.out} has 0, not 5" in printed

    status, printed = qkv("train", "gpt", "--out", qkv.out, "--resume")
    assert status == 0
    assert "Resuming after step 2 of 2." in printed


def test_nothing_to_resume_and_no_data(qkv: Command) -> None:
    status, printed = qkv("train", "gpt", "--out", qkv.out, "--resume")
    assert status != 0
    assert "--data" in printed
    assert "Traceback" not in printed


def test_a_full_disk(qkv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr("qkv.storage.free", lambda folder: 10)
        status, printed = qkv.train()

    assert status != 0
    assert "no room on the disk" in printed
    assert "Traceback" not in printed
    status, printed = qkv.train()
    assert status == 0, printed
