"""A run that was stopped, killed, or robbed of its newest checkpoint ends bit for bit as one that
was not.
"""

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
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.dying_runs import exit_status, start_child
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
    "muon": ("gpt", {"optimizer": "muon"}, {}),
    "exponential average": ("gpt", {"average": "exponential"}, {}),
    "mean of the last": ("transformer", {"average": "last", "schedule": "inverse-sqrt"}, {}),
    "recomputed in parts": ("gpt", {}, {"recompute": True, "micro_batch_tokens": 32}),
}


@pytest.fixture(scope="module")
def whole_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("QKV_CACHE", str(folder / "cache"))
        small_job("gpt", folder).start()
    return folder / "run"


@pytest.mark.parametrize("case", list(CASES))
def test_stopped_and_resumed_is_never_stopped(
    case: str, tmp_path: Path, stop_after: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    family, optimizer, run = CASES[case]
    whole = small_job(family, tmp_path, tmp_path / "whole", optimizer=optimizer, **run)
    whole.start()
    stopped = small_job(family, tmp_path, tmp_path / "stopped", optimizer=optimizer, **run)
    for steps in (5, 5):  # after 5 and 10 steps
        stop_after(steps)
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


def test_resumed_at_its_end_nothing_changes(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, optimizer={"average": "last"})
    first = job.start()
    shutil.copytree(job.run.out, tmp_path / "before")
    again = job.with_run(resume=True).start()
    assert first is not None
    assert again is not None
    assert (again.finished, again.validation_loss, again.tokens) == (
        True,
        first.validation_loss,
        first.tokens,
    )
    assert_same_run(job.run.out, tmp_path / "before")


def test_more_steps_go_on(tmp_path: Path) -> None:
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
    first, second = (
        Checkpoints(out / "checkpoints").newest() for out in (job.run.out, longer.run.out)
    )
    assert first is not None
    assert second is not None
    assert same_bits(first.tensors(), second.tensors())


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
    assert newest.state["parts"] == 4, "what is asked for now counts"
    for name in ("loss", "validation_loss"):
        ours, theirs = (
            [row[name] for row in rows_of(out) if name in row]
            for out in (job.run.out, whole.run.out)
        )
        assert ours == pytest.approx(theirs, rel=1e-6)


# Damage


def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_is_used(
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
    said = capsys.readouterr().out
    assert f"The checkpoint of step 8 cannot be used: {newest}: damaged" in said
    assert "Resuming after step 6 of 12." in said
    assert_same_run(job.run.out, whole_gpt)


def test_when_no_checkpoint_is_whole_nothing_is_begun_anew(whole_gpt: Path, tmp_path: Path) -> None:
    job = small_job("gpt", whole_gpt.parent, shutil.copytree(whole_gpt, tmp_path / "run"))
    for file in (job.run.out / "checkpoints").rglob("manifest.json"):
        file.unlink()
    before = sorted(path for path in job.run.out.rglob("*") if path.is_file())
    with pytest.raises(
        ValueError, match=r"out: none of the checkpoints in .* is whole; choose another folder"
    ):
        job.with_run(resume=True).start()
    assert sorted(path for path in job.run.out.rglob("*") if path.is_file()) == before
    assert len(rows_of(job.run.out)) > 12


# A full disk


def test_a_disk_that_is_full_for_a_while(whole_gpt: Path, tmp_path: Path) -> None:
    """A real refusal of the system: the first checkpoint has no optimizer's memory yet, and fits."""
    first = whole_gpt / "checkpoints" / "step-00000012" / "tensors.safetensors"
    job = small_job("gpt", tmp_path)
    assert exit_status(start_child(job, file_limit=first.stat().st_size - 100)) == 7
    said = (job.run.out / "said").read_text()
    assert "no room on the disk: the checkpoint of step 3 needs" in said
    assert "what was saved before is intact. Make room and start again" in said
    assert Checkpoints(job.run.out / "checkpoints", log=pytest.fail).newest().step == 0
    job.with_run(resume=True).start()
    (job.run.out / "said").unlink()
    assert_same_run(job.run.out, whole_gpt)


@pytest.mark.parametrize("what", ["the checkpoint of step 6", "the model", "metrics.jsonl"])
def test_a_disk_that_fills_up_in_the_middle(
    what: str, whole_gpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job("gpt", tmp_path)
    staging, armed = storage.staging, True
    rows = 0

    def full(parent: Path, needed: int, wanted: str) -> Any:
        if armed and wanted == what:
            raise storage.DiskFull(storage.no_room(parent, needed, wanted))
        return staging(parent, needed, wanted)

    class Full:
        def write(self, line: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    from qkv.training.logging.metrics import Metrics

    plain_open = Metrics.open

    def open_full(self: Metrics) -> Any:
        nonlocal rows
        rows += 1
        return Full() if armed and what == "metrics.jsonl" else plain_open(self)

    monkeypatch.setattr(storage, "staging", full)
    monkeypatch.setattr(Metrics, "open", open_full)
    with pytest.raises(storage.DiskFull, match=f"no room on the disk: .*{what} needs"):
        job.start()
    if what != "the model":  # which comes before the first checkpoint
        assert Checkpoints(job.run.out / "checkpoints", log=pytest.fail).newest() is not None
    armed = False
    job.with_run(resume=True).start()
    assert_same_run(job.run.out, whole_gpt)


# Killed


def killed_and_resumed(job: TrainingJob, kill: Callable[[TrainingJob, int], bool], kills: int) -> list[Path]:
    """Runs, each killed and resumed until it ends by itself, until there were so many kills."""
    done, runs = 0, []
    while done < kills:
        out = job.run.out.with_name(f"killed-{len(runs)}")
        runs.append(out)
        while done < kills and kill(job.with_run(out=out, resume=True), done):
            done += 1
        assert exit_status(start_child(job.with_run(out=out, resume=True))) == 0
    return runs


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Some by the clock, and some by the count of touches of the run's folder, which fall where
    files are written.

    Wherever there is a checkpoint, there is a model that can be opened.
    """
    whole = small_job("gpt", tmp_path, tmp_path / "whole", steps=8, checkpoint_every=2, validate_every=3)
    assert exit_status(start_child(whole)) == 0  # the server starts, too
    begun = time.monotonic()
    assert exit_status(start_child(whole.with_run(out=tmp_path / "timed"))) == 0
    length = time.monotonic() - begun
    assert_same_run(tmp_path / "timed", whole.run.out)
    draw = random.Random(3)
    job = whole.with_run(out=tmp_path / "run")

    def by_clock(now: TrainingJob, done: int) -> bool:
        process = start_child(now)
        process.join(draw.uniform(0.1, 0.9) * length)
        process.kill()
        killed = exit_status(process) == -signal.SIGKILL
        check_model(now.run.out)
        return killed

    halves: list[str] = []

    def by_touch(now: TrainingJob, done: int) -> bool:
        killed = exit_status(start_child(now, touch=draw.randrange(1, 100))) == -signal.SIGKILL
        halves.extend(
            str(path.relative_to(now.run.out).parent) for path in now.run.out.rglob(".writing-*")
        )
        check_model(now.run.out)
        return killed

    for kill, kills in ((by_clock, 3), (by_touch, 8)):
        for out in killed_and_resumed(job, kill, kills):
            assert_same_run(out, whole.run.out)
            leftovers = [path.name for path in out.rglob(".*") if path.name != ".lock"]
            assert leftovers == []
            shutil.rmtree(out)
    assert "checkpoints" in halves, "a kill inside the writing of a checkpoint"
    assert "." in halves, "and of the model"


def check_model(out: Path) -> None:
    if steps := Checkpoints(out / "checkpoints").steps():
        for name in (str(out), f"{out}@{steps[-1]}"):
            model, tokenizer = artifact.load(name)
            assert tokenizer is not None
            assert tokenizer.vocabulary == model.config.vocabulary


# The command line


def test_a_signal_from_outside_and_the_command_line(tmp_path: Path) -> None:
    """Long before its end, and before its first validation: a run that is told to stop leaves a
    model.
    """
    job, out = small_job("gpt", tmp_path), tmp_path / "stopped"  # for its data
    flags = [
        "--data", *job.data.data, "--tokenizer", "words", "--steps", "1000000", "--batch-tokens", "64",
        "--context", "16", "--width", "16", "--depth", "1", "--heads", "2", "--vocabulary", "64", "--device", "cpu",
        "--sample-every", "0",
    ]  # fmt: skip

    def heeding() -> None:
        """The tests themselves may run under nohup, or as a background job of a shell, which ignore
        these.
        """
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def stopped(number: signal.Signals, *words: str) -> str:
        command = [sys.executable, "-m", "qkv", "train", "gpt", "--out", str(out), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            preexec_fn=heeding,
        )  # fmt: skip
        try:
            metrics = out / "metrics.jsonl"
            rows = 10 + (len(rows_of(out)) if metrics.exists() else 0)
            while process.poll() is None and (
                not metrics.exists() or metrics.read_bytes().count(b"\n") < rows
            ):
                time.sleep(0.01)
            process.send_signal(number)
            said, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 130, said
        assert "all is saved. Go on with --resume." in said
        assert "Traceback" not in said
        return said

    stopped(signal.SIGINT, *flags)
    first = Checkpoints(out / "checkpoints").steps()[-1]
    assert f"Resuming after step {first} of 1000000." in stopped(signal.SIGHUP, "--resume")
    newest = Checkpoints(out / "checkpoints").newest()
    assert newest is not None
    assert newest.step > first
    assert same_bits(dict(artifact.load(out).model.state_dict()), newest.tensors("model/"))
    losses = [row["step"] for row in rows_of(out) if "loss" in row]
    assert losses == list(range(1, newest.step + 1))
