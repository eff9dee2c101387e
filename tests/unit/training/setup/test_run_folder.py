"""The folder of a run: nothing is overwritten, one process at a time, what resuming may change."""

from __future__ import annotations

import errno
import json
import multiprocessing
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qkv import storage
from qkv.commands.train import training_flags
from qkv.text import Tokenizer
from qkv.training.run import Run
from qkv.training.setup import objective_setup
from qkv.training.setup.run_folder import claim, locked
from support.small_training import (
    TrainingJob,
    assert_same_run,
    model_of,
    rows_of,
    same_bits,
    small_job,
)

FORK = multiprocessing.get_context("fork")


def raises(message: str) -> Any:
    return pytest.raises(ValueError, match=re.escape(message))


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def done(tmp_path: Path) -> TrainingJob:
    job = small_job("gpt", tmp_path, steps=4)
    job.start()
    return job


# A folder that is in use


def test_another_run_is_never_overwritten(done: TrainingJob) -> None:
    before = files_in(done.run.out)
    with raises(f"out: {done.run.out} holds a run already; add --resume"):
        done.with_run(seed=1).start()
    assert files_in(done.run.out) == before


@pytest.mark.parametrize(
    "name", ["notes.txt", "config.json", "model.safetensors", "tokenizer.json", "checkpoints/x"]
)
def test_something_else_is_never_overwritten(name: str, tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path)
    (job.run.out / name).parent.mkdir(parents=True)
    (job.run.out / name).write_text("mine")
    before = files_in(job.run.out)
    other = name.partition("/")[0]
    for resume in (False, True):
        with raises(f"out: {job.run.out} holds something that is not a run ({other})"):
            job.with_run(resume=resume).start()

    assert files_in(job.run.out) == before


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, tmp_path / "file")
    job.run.out.write_text("mine")
    with raises(f"out: {job.run.out} is a file; choose a folder"):
        job.start()
    assert job.run.out.read_text() == "mine"


def test_a_run_without_its_checkpoints_is_still_a_run(done: TrainingJob) -> None:
    storage.remove(done.run.out / "checkpoints")
    with raises("holds a run already"):
        done.start()


def test_a_failure_before_the_first_step_does_not_block_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it failed or was killed, the same command then works."""
    reference = small_job("gpt", tmp_path, tmp_path / "reference", steps=4)
    reference.start()
    training = import_module("qkv.training.train")
    steps = [
        (training, "assemble"),
        (training, "write_description"),
        (training, "plan_table"),
        (import_module("qkv.training.run"), "Metrics"),
        (Run, "create"),
        (Tokenizer, "write"),
        (objective_setup, "build"),
    ]
    for owner, name in steps:
        job = small_job("gpt", tmp_path, tmp_path / name, steps=4)

        def fail(*_: Any, **__: Any) -> None:
            (job.run.out / ".writing-0123456789ab").mkdir(exist_ok=True)  # noqa: B023
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(owner, name, fail)
            with pytest.raises(KeyboardInterrupt):
                job.start()
        job.start()
        assert_same_run(job.run.out, reference.run.out)


def test_a_folder_with_only_a_lock_has_no_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert claim(out, resume=False) is False
    assert claim(out, resume=True) is False
    assert not out.exists()
    out.mkdir()
    (out / ".lock").touch()
    assert claim(out, resume=False) is False


# One process at a time


def test_a_second_process_in_the_folder_is_refused(done: TrainingJob, tmp_path: Path) -> None:
    def hold(ready: Any, leave: Any) -> None:
        with locked(done.run.out):
            ready.set()
            leave.wait(60)

    ready = FORK.Event()
    leave = FORK.Event()
    other = FORK.Process(target=hold, args=(ready, leave))
    other.start()
    assert ready.wait(60)
    before = files_in(done.run.out)
    with raises(f"out: another process is training into {done.run.out} now"):
        done.with_run(resume=True, steps=6).start()
    assert files_in(done.run.out) == before
    other.kill()  # which ends the lock
    other.join()
    outcome = done.with_run(resume=True, steps=6).start()
    assert outcome is not None
    assert outcome.steps == 6


# What resuming may change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: p._replace(config=replace(p.config, width=32)),
            "width: the run in {out} has 16, not 32",
        ),
        (
            lambda p: p._replace(config=replace(p.config, depth=1)),
            "depth: the run in {out} has 2, not 1",
        ),
        (
            lambda p: p.with_run(seed=1),
            "seed: the run in {out} has 0, not 1; resume with the same, or begin anew",
        ),
        (lambda p: p.with_run(batch_tokens=128), "batch_tokens: the run in {out} has 64, not 128"),
        (
            lambda p: p._replace(data=replace(p.data, held_out=0.2)),
            "held_out: the run in {out} has 0.1, not 0.2; resume with the same, or begin anew",
        ),
        (
            lambda p: p._replace(optimizer=replace(p.optimizer, optimizer="muon")),
            "optimizer: the run in {out} has 'adamw', not 'muon'",
        ),
    ],
)
def test_changes_that_make_another_run_are_refused(
    change: Any, message: str, done: TrainingJob
) -> None:
    before = files_in(done.run.out)
    with raises(message.format(out=done.run.out)):
        change(done).with_run(resume=True).start()
    assert files_in(done.run.out) == before


def test_other_data_is_refused(done: TrainingJob, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(Path(done.data.data[0]).read_text())
    with raises("data: the run in"):
        done._replace(data=replace(done.data, data=(str(other),))).with_run(resume=True).start()


def test_changed_data_is_refused(done: TrainingJob) -> None:
    file = Path(done.data.data[0])
    file.write_text(file.read_text() + "cats see cats\n")
    with raises(f"data: {file} has changed since the run in {done.run.out} began"):
        done.with_run(resume=True).start()


def test_other_changes_are_stored(done: TrainingJob) -> None:
    job = done._replace(optimizer=replace(done.optimizer, clip=0.5))
    outcome = job.with_run(resume=True, steps=6).start()
    assert outcome is not None
    assert outcome.steps == 6
    description = json.loads((done.run.out / "run.json").read_text())
    assert description["optimizer"]["clip"] == 0.5
    assert description["run"]["steps"] == 6


# The number of steps


def test_fewer_steps_than_done_are_refused_and_nothing_is_written(done: TrainingJob) -> None:
    before = files_in(done.run.out)
    with raises(f"steps: 2 are asked for, but the run in {done.run.out} has done 4"):
        done.with_run(resume=True, steps=2).start()
    assert files_in(done.run.out) == before


def test_an_error_on_resuming_leaves_the_description_unchanged(
    done: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_in(done.run.out)
    module = import_module("qkv.training.run")
    for owner, name in ((module, "Metrics"), (Run, "create")):
        with monkeypatch.context() as broken:
            broken.setattr(owner, name, lambda *_, **__: pytest.fail("refused"))
            with pytest.raises(pytest.fail.Exception):
                done.with_run(resume=True, steps=6).start()

        assert files_in(done.run.out) == before


def test_a_jump_of_the_learning_rate_is_printed_with_the_way_around_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job("gpt", tmp_path, steps=4, optimizer={"optimizer": "muon"})
    job.start()
    capsys.readouterr()
    job.with_run(resume=True, steps=6).start()
    printed = " ".join(capsys.readouterr().out.split())
    assert "The learning rate goes from 3.00e-04 to 6.95e-04 at step 5" in printed
    assert "the cosine schedule now ends at step 6, not 4." in printed
    assert "add --schedule constant --learning-rate 0.0003 --muon-learning-rate 0.002." in printed

    # At the rate that the cosine ended with there is no jump
    flat = replace(job.optimizer, schedule="constant", learning_rate=3e-4)
    job._replace(optimizer=flat).with_run(resume=True, steps=8).start()
    assert "The learning rate goes" not in capsys.readouterr().out
    rates = [row["learning_rate"] for row in rows_of(job.run.out) if "loss" in row]
    assert rates[3:] == pytest.approx([3e-4, 6.95e-4, 3e-4, 3e-4, 3e-4], rel=1e-3)


def test_the_default_warm_up_stays_when_the_steps_grow(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=20, optimizer={"warmup": None, "schedule": "constant"})
    job.start()
    job.with_run(resume=True, steps=40).start()
    assert json.loads((job.run.out / "run.json").read_text())["optimizer"]["warmup"] == 2


def test_a_warm_up_longer_than_the_run_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_job("gpt", tmp_path, steps=4, dry_run=True, optimizer={"warmup": 40}).start()
    printed = " ".join(capsys.readouterr().out.split())
    assert "warmup: 40 steps of warm-up are more than the 4 steps of the run" in printed
    assert "rises, to 3.00e-04, and never reaches 3.00e-03" in printed
    small_job("gpt", tmp_path, steps=40, dry_run=True, optimizer={"warmup": 40}).start()
    assert "warmup:" not in capsys.readouterr().out


# Runs of version 0.6


def write_version_6(job: TrainingJob, warmup: int) -> None:
    """Rewrite run.json as version 0.6 wrote it."""
    description = json.loads((job.run.out / "run.json").read_text())
    del description["order"]
    description["optimizer"]["warmup"] = warmup
    (job.run.out / "run.json").write_text(json.dumps(description))


def test_a_run_with_another_order_of_data_is_not_continued(done: TrainingJob) -> None:
    write_version_6(done, warmup=2)
    before = files_in(done.run.out)
    with raises("another version of qkv, which reads the data in another order"):
        done.with_run(resume=True, steps=6).start()
    assert files_in(done.run.out) == before
    outcome = done.with_run(resume=True).start()
    assert outcome is not None
    assert outcome.finished, "a finished run reads no more data"


def test_an_old_run_in_the_same_order_resumes_with_its_warm_up(
    tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    whole = small_job("transformer", tmp_path, tmp_path / "whole", steps=20)
    whole.start()
    job = small_job("transformer", tmp_path, steps=20)
    stop_after(5)
    job.start()
    write_version_6(job, warmup=100)  # it used a tenth of the steps
    stop_after(-1)
    TrainingJob(*training_flags("transformer", ["--out", str(job.run.out), "--resume"])).start()
    assert_same_run(job.run.out, whole.run.out)


# A folder that cannot be written


def test_a_read_only_folder_is_refused_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    job = small_job("gpt", tmp_path)
    module = import_module("qkv.training.train")
    monkeypatch.setattr(module, "assemble", lambda *_, **__: pytest.fail("the data is read"))
    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(OSError, match="Read-only file system"):
        job.start()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, dry_run=True)
    assert job.start() is None
    assert not job.run.out.exists()


def test_changed_validation_data_is_noticed(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=2)
    other = tmp_path / "valid.txt"
    other.write_text("cats see mice\n" * 40)
    job = job._replace(data=replace(job.data, validation=(str(other),)))
    job.start()
    other.write_text("mice see cats\n" * 40)
    with pytest.raises(ValueError, match="has changed since the run"):
        job.with_run(resume=True).start()


def test_a_relative_path_is_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is begun with a relative path and resumed with the absolute one."""
    job = small_job("gpt", tmp_path, steps=2)
    monkeypatch.chdir(Path(job.data.data[0]).parent)
    job._replace(data=replace(job.data, data=(Path(job.data.data[0]).name,))).start()
    monkeypatch.chdir(tmp_path)
    outcome = job.with_run(resume=True, steps=3).start()
    assert outcome is not None
    assert outcome.steps == 3


def test_resume_without_a_run_begins_one(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=4, resume=True)
    outcome = job.start()
    assert outcome is not None
    assert outcome.finished
    plain = small_job("gpt", tmp_path, tmp_path / "plain", steps=4)
    plain.start()
    assert same_bits(model_of(job.run.out), model_of(plain.run.out))
