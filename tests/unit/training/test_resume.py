"""Resuming: a run that was stopped, killed or damaged ends bit for bit like one that was not."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkv import artifact, storage
from qkv.training.logging.metrics import Metrics
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.dying_runs import DISK_FULL, ERROR_FILE, exit_status, start_child
from support.small_training import (
    MODELS,
    TrainingJob,
    assert_same_run,
    model_of,
    rows_of,
    same_bits,
    small_job,
)

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt": ("gpt", {}, {}),
    "bert": ("bert", {}, {}),
    "transformer": ("transformer", {"smoothing": 0.1}, {}),
    "rnn": ("rnn", {}, {}),
    "rnn-lm": ("rnn-lm", {}, {}),
    "muon": ("gpt", {"optimizer": "muon"}, {}),
    "exponential average": ("gpt", {"average": "exponential"}, {}),
    "mean of the last": ("transformer", {"average": "last", "schedule": "inverse-sqrt"}, {}),
    "recomputed in parts": ("gpt", {}, {"recompute": True, "micro_batch_tokens": 32}),
}


@pytest.fixture(scope="module")
def whole_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("QKV_CACHE", str(folder / "cache"))
        small_job("gpt", folder).start()

    return folder / "run"


@pytest.mark.parametrize("case", list(CASES))
def test_a_stopped_and_resumed_run_equals_an_undisturbed_one(
    case: str, tmp_path: Path, stop_after: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    family, optimizer, run = CASES[case]
    whole = small_job(family, tmp_path, tmp_path / "whole", optimizer=optimizer, **run)
    whole.start()
    stopped = small_job(family, tmp_path, tmp_path / "stopped", optimizer=optimizer, **run)
    for _ in range(2):  # after 5 and 10 steps
        stop_after(5)
        outcome = stopped.start()
        assert outcome is not None
        assert not outcome.finished
        stopped = stopped.with_run(resume=True)

    stop_after(-1)
    outcome = stopped.start()
    assert outcome is not None
    assert outcome.finished
    assert_same_run(stopped.run.out, whole.run.out)
    assert "Resuming after step 10 of 12." in capsys.readouterr().out


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, optimizer={"average": "last"})
    first = job.start()
    shutil.copytree(job.run.out, tmp_path / "before")
    again = job.with_run(resume=True).start()
    assert first is not None
    assert again is not None
    assert again.finished
    assert again.validation_loss == first.validation_loss
    assert again.tokens == first.tokens
    assert_same_run(job.run.out, tmp_path / "before")


def test_a_run_continues_with_more_steps(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=6, optimizer={"schedule": "constant", "warmup": 1})
    job.start()
    longer = small_job(
        "gpt", tmp_path, tmp_path / "longer", optimizer={"schedule": "constant", "warmup": 1}
    )
    longer.start()
    outcome = job.with_run(steps=12, resume=True).start()
    assert outcome is not None
    assert (outcome.steps, outcome.finished) == (12, True)
    assert same_bits(model_of(job.run.out), model_of(longer.run.out))
    newest = Checkpoints(job.run.out / "checkpoints").newest()
    expected = Checkpoints(longer.run.out / "checkpoints").newest()
    assert newest is not None
    assert expected is not None
    assert same_bits(newest.tensors(), expected.tensors())


def test_another_micro_batch_gives_the_same_losses(
    tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    plain = replace(MODELS["transformer"], dropout=0.0)
    whole = small_job("transformer", tmp_path, tmp_path / "whole")._replace(config=plain)
    whole.start()
    job = small_job("transformer", tmp_path)._replace(config=plain)
    stop_after(5)
    job.start()
    stop_after(-1)
    job.with_run(resume=True, micro_batch_tokens=16).start()
    newest = Checkpoints(job.run.out / "checkpoints").newest()
    assert newest is not None
    assert newest.state["parts"] == 4, "the micro-batch of the resumed run"
    for name in ("loss", "validation_loss"):
        losses = [row[name] for row in rows_of(job.run.out) if name in row]
        expected = [row[name] for row in rows_of(whole.run.out) if name in row]
        assert losses == pytest.approx(expected, rel=1e-6)


# Damage


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    whole_gpt: Path,
    tmp_path: Path,
    stop_after: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = small_job("gpt", tmp_path)
    stop_after(8)
    job.start()
    newest = job.run.out / "checkpoints" / "step-00000008" / "tensors.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    stop_after(-1)
    capsys.readouterr()
    job.with_run(resume=True).start()
    printed = capsys.readouterr().out
    assert f"The checkpoint of step 8 cannot be used: {newest}: damaged" in printed
    assert "Resuming after step 6 of 12." in printed
    assert_same_run(job.run.out, whole_gpt)


def test_without_an_intact_checkpoint_nothing_is_overwritten(
    whole_gpt: Path, tmp_path: Path
) -> None:
    job = small_job("gpt", whole_gpt.parent, shutil.copytree(whole_gpt, tmp_path / "run"))
    for file in (job.run.out / "checkpoints").rglob("manifest.json"):
        file.unlink()

    before = sorted(path for path in job.run.out.rglob("*") if path.is_file())
    with pytest.raises(ValueError, match=r"out: none of the checkpoints .*whole"):
        job.with_run(resume=True).start()

    assert sorted(path for path in job.run.out.rglob("*") if path.is_file()) == before
    assert len(rows_of(job.run.out)) > 12


# A full disk


def test_a_run_resumes_after_the_disk_was_full(whole_gpt: Path, tmp_path: Path) -> None:
    """The file size is limited: the first checkpoint, without optimizer states, still fits."""
    first = whole_gpt / "checkpoints" / "step-00000012" / "tensors.safetensors"
    job = small_job("gpt", tmp_path)
    assert exit_status(start_child(job, file_limit=first.stat().st_size - 100)) == DISK_FULL
    message = (job.run.out / ERROR_FILE).read_text()
    assert "no room on the disk: the checkpoint of step 3 needs" in message
    assert "what was saved before is intact. Make room and start again" in message
    assert Checkpoints(job.run.out / "checkpoints", log=pytest.fail).newest().step == 0
    job.with_run(resume=True).start()
    (job.run.out / ERROR_FILE).unlink()
    assert_same_run(job.run.out, whole_gpt)


@pytest.mark.parametrize("what", ["the checkpoint of step 6", "the model", "metrics.jsonl"])
def test_a_disk_that_fills_up_during_the_run(
    what: str, whole_gpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job("gpt", tmp_path)
    original_staging = storage.staging
    original_open = Metrics.open
    full = True

    def staging(parent: Path, needed: int, content: str, name: str | None = None) -> Any:
        if full and content == what:
            raise storage.DiskFull(storage.no_room(parent, needed, content))

        return original_staging(parent, needed, content, name)

    class FullFile:
        def write(self, line: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    def open_metrics(self: Metrics) -> Any:
        if full and what == "metrics.jsonl":
            return FullFile()

        return original_open(self)

    monkeypatch.setattr(storage, "staging", staging)
    monkeypatch.setattr(Metrics, "open", open_metrics)
    with pytest.raises(storage.DiskFull, match=f"no room on the disk: .*{what} needs"):
        job.start()

    if what != "the model":  # written before the first checkpoint
        assert Checkpoints(job.run.out / "checkpoints", log=pytest.fail).newest() is not None

    full = False
    job.with_run(resume=True).start()
    assert_same_run(job.run.out, whole_gpt)


# Killed


def killed_and_resumed(
    job: TrainingJob, kill: Callable[[TrainingJob, int], bool], kills: int
) -> list[Path]:
    """Start runs, kill and resume each until it ends by itself; stop after this many kills."""
    done = 0
    runs: list[Path] = []
    while done < kills:
        out = job.run.out.with_name(f"killed-{len(runs)}")
        runs.append(out)
        while done < kills and kill(job.with_run(out=out, resume=True), done):
            done += 1

        assert exit_status(start_child(job.with_run(out=out, resume=True))) == 0
    return runs


def test_runs_killed_at_random_moments(tmp_path: Path) -> None:
    """Some kills are timed, some come at a touch of the folder, i.e. where files are written.

    Wherever there is a checkpoint, there is a model that can be opened.
    """
    whole = small_job(
        "gpt", tmp_path, tmp_path / "whole", steps=8, checkpoint_every=2, validate_every=3
    )
    assert exit_status(start_child(whole)) == 0  # the server starts, too
    started = time.monotonic()
    assert exit_status(start_child(whole.with_run(out=tmp_path / "timed"))) == 0
    length = time.monotonic() - started
    assert_same_run(tmp_path / "timed", whole.run.out)
    moments, touches = random.Random(3), random.Random(4)  # how many moments varies
    job = whole.with_run(out=tmp_path / "run")

    def by_clock(now: TrainingJob, done: int) -> bool:
        process = start_child(now)
        process.join(moments.uniform(0.1, 0.9) * length)
        process.kill()
        killed = exit_status(process) == -signal.SIGKILL
        check_model(now.run.out)
        return killed

    half_written: list[str] = []

    def by_touch(now: TrainingJob, done: int) -> bool:
        status = exit_status(start_child(now, touch=touches.randrange(1, 100)))
        killed = status == -signal.SIGKILL
        for path in now.run.out.rglob(".writing-*"):
            half_written.append(str(path.relative_to(now.run.out).parent))

        check_model(now.run.out)
        return killed

    for kill, kills in ((by_clock, 3), (by_touch, 8)):
        for out in killed_and_resumed(job, kill, kills):
            assert_same_run(out, whole.run.out)
            leftovers = [path.name for path in out.rglob(".*") if path.name != ".lock"]
            assert leftovers == []
            shutil.rmtree(out)

    assert "checkpoints" in half_written, "a kill while a checkpoint was written"
    assert "." in half_written, "and one while the model was written"


def check_model(out: Path) -> None:
    """If there is a checkpoint, the model and the newest checkpoint can be opened."""
    steps = Checkpoints(out / "checkpoints").steps()
    if not steps:
        return

    for name in (str(out), f"{out}@{steps[-1]}"):
        model, tokenizer = artifact.load(name)
        assert tokenizer is not None
        assert tokenizer.vocabulary == model.config.vocabulary


# The command line


def handle_signals() -> None:
    """Handle signals that are ignored under nohup or in the background of a shell."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def rows_in(metrics: Path) -> int:
    if not metrics.exists():
        return 0

    return metrics.read_bytes().count(b"\n")


def stop_process(out: Path, number: signal.Signals, *arguments: str) -> str:
    """Start `qkv train`, send a signal after ten rows of metrics; return what was printed."""
    metrics = out / "metrics.jsonl"
    rows = 10 + rows_in(metrics)
    process = subprocess.Popen(
        [sys.executable, "-m", "qkv", "train", "gpt", "--out", str(out), *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=handle_signals,
    )
    try:
        while process.poll() is None and rows_in(metrics) < rows:
            time.sleep(0.01)

        process.send_signal(number)
        printed, _ = process.communicate(timeout=300)
    finally:
        process.kill()

    assert process.returncode == 130, printed
    assert "all is saved. Go on with --resume." in printed
    assert "Traceback" not in printed
    return printed


def test_signals_to_the_command_line(tmp_path: Path) -> None:
    """A run that is stopped before its first validation leaves a model and can be resumed."""
    job = small_job("gpt", tmp_path)  # for its data
    out = tmp_path / "stopped"
    size = "--context 16 --width 16 --depth 1 --heads 2 --vocabulary 64 --tokenizer words"
    options = "--steps 1000000 --batch-tokens 64 --device cpu --sample-every 0"
    flags = ["--data", *job.data.data, *size.split(), *options.split()]

    stop_process(out, signal.SIGINT, *flags)
    first = Checkpoints(out / "checkpoints").steps()[-1]
    printed = stop_process(out, signal.SIGHUP, "--resume")
    assert f"Resuming after step {first} of 1000000." in printed
    newest = Checkpoints(out / "checkpoints").newest()
    assert newest is not None
    assert newest.step > first
    assert same_bits(dict(artifact.load(out).model.state_dict()), newest.tensors("model/"))
    losses = [row["step"] for row in rows_of(out) if "loss" in row]
    assert losses == list(range(1, newest.step + 1))
