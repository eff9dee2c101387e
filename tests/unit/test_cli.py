"""The command line: what starts without torch, messages of wrong usage, closed pipes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import qkv
from qkv import cli, storage
from qkv.command_line import parsing, usage_errors
from qkv.command_line.file_errors import os_error_sentence
from qkv.commands import completion
from qkv.models.presets import PRESETS

# tyro's value for a missing flag does not have the annotated type.
pytestmark = pytest.mark.usefixtures("without_shape_checks")

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run a command in this process and return its status, output and errors, in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["qkv", *arguments])
        status = 0
        try:
            cli.main()
        except SystemExit as stopped:
            status = int(stopped.code or 0)

        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


# Commands that start without torch

WITHOUT_TORCH = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        assert name not in {forbidden!r}, f"import of {{name}}"
sys.meta_path.insert(0, Finder())
import qkv
public = {{"attend", "generate", "load", "look", "save", "serve", "train"}}
assert public <= set(dir(qkv)) & set(qkv.__all__)
from qkv.cli import main
for arguments in {commands!r}:
    sys.argv = ["qkv", *arguments]
    try:
        main()
    except SystemExit as stopped:
        assert not stopped.code, (arguments, stopped.code)
    print("@@@")
"""


def started(commands: list[list[str]], forbidden: tuple[str, ...]) -> list[str]:
    """The output of each command in a process that cannot import some modules."""
    program = WITHOUT_TORCH.format(commands=commands, forbidden=forbidden)
    environment = os.environ | {"COLUMNS": "80"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split("@@@\n")[:-1]


def test_help_and_presets_and_the_flags_of_training_need_no_torch() -> None:
    families = [
        ["train", family, "--help"] for family in ("gpt", "bert", "transformer", "rnn", "rnn-lm")
    ]
    shells = [["completion", shell] for shell in ("bash", "zsh", "fish")]
    printed = started(
        [["--help"], ["presets"], *families, *shells, ["help", "presets"], ["--version"]],
        ("torch", "numpy"),
    )
    assert "usage: qkv COMMAND" in printed[0]
    assert all(re.search(rf"^│ {name} +│", printed[1], re.MULTILINE) for name in PRESETS)
    assert "1,557.6 M" in printed[1]
    assert all("--learning-rate FLOAT" in text for text in printed[2:6])
    assert printed[-1] == f"qkv {qkv.__version__}\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_spin_shortly_by_default(variables: dict[str, str], expected: str) -> None:
    """OpenMP reads its variables when torch is loaded, so importing qkv sets them before that."""
    program = "import os, sys, qkv; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    environment = dict(os.environ)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environment.pop(name, None)

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment | variables
    )
    assert result.stdout == f"{expected} False\n", result.stderr


def test_the_list_of_commands_needs_neither_tyro_nor_rich() -> None:
    without = started([[], ["--help"], ["-h"], ["help"], ["-V"]], ("torch", "tyro", "rich"))
    assert len(set(without[:4])) == 1
    assert all(re.search(rf"^  {name} ", without[0], re.MULTILINE) for name in cli.COMMANDS)
    assert max(map(len, without[0].splitlines())) <= 80


# Help


def test_every_help_fits_into_80_columns_without_types_of_tyro(typed: Typed) -> None:
    for command in (*cli.COMMANDS, "train gpt", "lab mask"):
        status, output, error = typed("help", *command.split())
        assert (status, error) == (0, ""), command
        assert "usage: qkv" in output
        assert "None}" not in output, command
        assert "model:none" not in output, command
        assert "(default: )" not in output, command
        assert max(map(len, output.splitlines())) <= 80, command

    assert typed("train", "gpt", "--help")[1] == typed("help", "train", "gpt")[1]


def test_the_flags_stored_for_completion_are_those_of_the_commands() -> None:
    """`python -m qkv.commands.completion` updates them."""
    assert (
        json.loads(completion.STORED.read_text(encoding="utf-8")) == completion.describe_commands()
    )


# Wrong usage


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian", "there is no command 'trian'; did you mean train?"),
        ("help trian", "there is no command 'trian'; did you mean train?"),
        ("--versoin", "there is no flag '--versoin'; did you mean --version?"),
        (
            "train gtp",
            "train: expected one of gpt, bert, transformer, rnn, rnn-lm, not 'gtp'; did you mean",
        ),
        ("train gpt", "missing --data and --out; qkv train gpt --help shows the usage"),
        ("train gpt --dta x --out y", "--dta: unknown flag; did you mean --data?"),
        ("train gpt {new} --int4", "--int4: unknown flag; qkv train gpt --help lists them"),
        ("train gpt {new} --widht 3", "--widht: unknown flag; did you mean --width?"),
        ("train gpt {new} --width a", "--width: expected a whole number, not 'a'"),
        ("train gpt {new} --learning-rate fast", "--learning-rate: expected a number, not 'fast'"),
        ("train gpt {new} --width", "--width: expected a value after it"),
        ("train gpt {new} --columns a", "--columns: expected 2 values, not 1"),
        ("train gpt {new} --compile no", "--compile: expected one of True, False, not 'no'"),
        ("train gpt {new} --dropout 2", "dropout: expected a probability from 0 to below 1"),
        ("train gpt {new} --rotary-scaling nine", "--rotary-scaling: expected a number for factor"),
        ("train gpt {new} --rotary-scaling low=9", "--rotary-scaling: low: expected less than"),
        ("train gpt --preset gpt-tin", "preset: there is no 'gpt-tin'; did you mean gpt-tiny"),
        ("generate", "missing MODEL; qkv generate --help shows the usage"),
        ("generate none --lenght 3", "--lenght: unknown flag; did you mean --length?"),
        ("generate none --beyond slid", "--beyond: expected one of refuse, slide, extend"),
        ("generate none --temperature -1", "temperature: expected 0"),
        ("finetune minilm {new} --task clasify", "--task: expected one of classify, pair"),
        ("lab cheatin", "lab: there is no experiment 'cheatin'; did you mean cheating?"),
        ("plot x --x foo", "--x: expected one of step, tokens, seconds, not 'foo'"),
        ("presets all", "unexpected argument 'all'; qkv presets --help shows the usage"),
        ("presets --verbose", "--verbose: unknown flag; qkv presets --help lists them"),
        ("completion csh", "completion: expected one of bash, zsh, fish, not 'csh'; did you mean"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(typed: Typed, command: str, message: str) -> None:
    status, output, error = typed(*command.format(new="--data x --out y").split())
    assert error.startswith(f"qkv: {message}")
    assert error.count("\n") == 1
    assert (status, output) == (2, "")


def test_suggestions_are_appended_to_choices(typed: Typed) -> None:
    """The closest choice is suggested."""
    assert typed("generate", "none", "--beyond", "slid")[2].endswith("; did you mean slide?\n")
    assert typed("train", "gtp")[2].endswith("; did you mean gpt?\n")


def test_other_errors_have_status_1(typed: Typed, tmp_path: Path) -> None:
    status, _, error = typed("generate", str(tmp_path / "none"), "a prompt")
    assert status == 1
    assert error.startswith(f"qkv: {tmp_path / 'none'}: there is no such folder")


def test_a_tyro_without_the_hook_gives_one_sentence(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tyro import _errors

    monkeypatch.delattr(_errors, "on_parse_error")
    status, output, error = typed("presets", "--verbose")
    assert (status, output) == (2, "")
    assert error == "qkv: Unrecognized options: --verbose; qkv presets --help shows the usage\n"


def test_an_unknown_error_of_tyro_is_one_sentence() -> None:
    class NewKindOfError:
        prog = "qkv presets"

    sentence = usage_errors.usage_sentence(NewKindOfError(), [], [])
    assert sentence == "the command line cannot be read; qkv presets --help shows the usage"


def test_none_resets_an_optional_flag() -> None:
    def command(
        window: int | None = 7, precision: str | None = "bf16"
    ) -> tuple[int | None, str | None]:
        return window, precision

    assert parsing.run_command(command, ["--window", "None"], "qkv") == (None, "bf16")
    assert parsing.run_command(command, ["--window", "3", "--precision=fp16"], "qkv") == (3, "fp16")


def test_an_error_of_the_command_is_no_usage_error() -> None:
    def command(length: int = 1) -> None:
        raise ValueError("length: too much" if length > 1 else "disk: too full")

    with pytest.raises(usage_errors.UsageError, match="length: too much"):
        parsing.run_command(command, ["--length", "2"], "qkv")

    with pytest.raises(ValueError, match="disk: too full") as raised:
        parsing.run_command(command, [], "qkv")

    assert not isinstance(raised.value, usage_errors.UsageError)


# Closed pipes and full disks


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["presets"], ["train", "gpt", "--help"]],
    ids=["print", "rich", "tyro"],
)
def test_a_closed_pipe_is_no_traceback(arguments: list[str]) -> None:
    program = f"import sys; sys.argv = ['qkv', *{arguments}]; from qkv.cli import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert result.stderr == ""
    assert result.returncode == cli.BROKEN_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_reported_once() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "qkv", "--version"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)

    assert result.stderr == "qkv: no room on the disk; make room and start again\n"
    assert result.returncode == 1


# Files


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EROFS, "out: {path} is on a read-only file system; choose another folder"),
        (errno.EACCES, "out: {path}: permission denied; choose another folder"),
        (errno.ENOSPC, "out: {path}: no room on the disk; make room and start again"),
        (errno.EDQUOT, "out: {path}: your disk quota is used up; make room and start again"),
        (errno.ENOTDIR, "out: {path}: a part of this path is a file, not a folder"),
        (errno.ENAMETOOLONG, "out: {path}: the name is too long"),
        (errno.ETIMEDOUT, "out: {path}: " + os.strerror(errno.ETIMEDOUT)),
    ],
)
def test_a_folder_that_cannot_be_created_is_one_sentence(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    text = tmp_path / "text.txt"
    out = tmp_path / "runs" / "mine"
    text.write_text("the cat sat on the mat. " * 50)

    def refuse(path: object, mode: int = 0o777) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    status, _, error = typed("train", "gpt", "--data", str(text), "--out", str(out))
    assert status == 1
    assert error.startswith(f"qkv: {message.format(path=out)}")
    assert error.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_proc_is_not_a_full_disk(typed: Typed, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 50)
    status, _, error = typed("train", "gpt", "--data", str(text), "--out", "/proc/mine")
    assert status == 1
    virtual = "/proc is a virtual file system, which holds no files; choose another folder"
    assert error == f"qkv: out: /proc/mine cannot be written: {virtual}\n"
    assert storage.free(Path("/proc")) > 10**15


def test_an_error_names_the_flag_that_named_the_file() -> None:
    error = OSError(errno.EROFS, "Read-only file system", "/a/b/run.json")
    expected = "/a/b/run.json is on a read-only file system; choose another folder"
    assert (
        os_error_sentence(error, ["train", "gpt", "--data", "x", "--out=/a/b"])
        == f"out: {expected}"
    )
    assert (
        os_error_sentence(error, ["train", "gpt", "--data", "/a/c", "/a/b", "--out", "x"])
        == f"data: {expected}"
    )
    assert os_error_sentence(error, ["generate", "/a/b"]) == expected
    inside = OSError(errno.EROFS, "Read-only file system", "/a/b/.writing-123abc/x.html")
    folder = "out: /a/b is on a read-only file system; choose another folder"
    assert os_error_sentence(inside, ["look", "--out", "/a/b/x.html"]) == folder
    here = OSError(
        errno.ENOSPC, "No space left on device", str(Path.cwd() / ".writing-123abc" / "x")
    )
    sentence = os_error_sentence(
        here, ["train", "gpt", "--steps", "100", "--data", "/d/a.txt", "--out", "mine"]
    )
    assert sentence.startswith("out: "), "a number is not a path"
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/b/text.txt")
    assert (
        os_error_sentence(missing, ["--data", "/a/b"])
        == "data: /a/b/text.txt: no such file or folder"
    )
    assert os_error_sentence(storage.DiskFull("x: no room"), ["--out", "x"]) == "x: no room"


# A whole command


def test_text_from_standard_input_is_trained_on(tmp_path: Path) -> None:
    text = "cats chase mice and mice fear cats.\n" * 40
    flags = (
        "--data - --tokenizer characters --width 8 --depth 1 --heads 1 --context 16 "
        "--batch-tokens 64 --steps 2"
    )
    command = [
        sys.executable,
        "-m",
        "qkv",
        "train",
        "gpt",
        *flags.split(),
        "--out",
        str(tmp_path / "run"),
    ]

    environment = {**os.environ, "QKV_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(command, input=text, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "after step 2" in result.stdout  # a sample
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["width"] == 8
