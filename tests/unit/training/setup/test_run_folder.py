"""A folder holds one run: never another's, never two at once, and it remembers how it was begun."""

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
from qkv.models import GPTConfig
from qkv.text import Tokenizer
from qkv.training.run import Run
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
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


def refused(message: str) -> Any:
    return pytest.raises(ValueError, match=re.escape(message))


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def done(tmp_path: Path) -> TrainingJob:
    job = small_job("gpt", tmp_path, steps=4)
    job.start()
    return job


# What is there already


def test_another_run_is_never_overwritten(done: TrainingJob) -> None:
    before = content(done.run.out)
    with refused(
        f"out: {done.run.out} holds a run already; add --resume to go on with it, or choose another folder"
    ):
        done.with_run(seed=1).start()
    assert content(done.run.out) == before


@pytest.mark.parametrize(
    "name", ["notes.txt", "config.json", "model.safetensors", "tokenizer.json", "checkpoints/x"]
)
def test_something_else_is_never_overwritten(name: str, tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path)
    (job.run.out / name).parent.mkdir(parents=True)
    (job.run.out / name).write_text("mine")
    before = content(job.run.out)
    for resume in (False, True):
        with refused(
            f"out: {job.run.out} holds something that is not a run ({name.partition('/')[0]})"
        ):
            job.with_run(resume=resume).start()
    assert content(job.run.out) == before


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, tmp_path / "file")
    job.run.out.write_text("mine")
    with refused(f"out: {job.run.out} is a file; choose a folder"):
        job.start()
    assert job.run.out.read_text() == "mine"


def test_a_model_whose_checkpoints_were_removed_is_a_run_all_the_same(done: TrainingJob) -> None:
    storage.remove(done.run.out / "checkpoints")
    with refused("holds a run already"):
        done.start()


def test_what_failed_before_the_first_step_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it failed, or was killed, the same command works once the cause is gone."""
    reference = small_job("gpt", tmp_path, tmp_path / "reference", steps=4)
    reference.start()
    training = import_module("qkv.training.train")
    steps = [
        (training, "assemble"),
        (training, "write_description"),
        (training, "plan_table"),
        (training, "Metrics"),
        (Run, "create"),
        (Tokenizer, "write"),
        (objective_setup, "build"),
    ]
    for place, name in steps:
        job = small_job("gpt", tmp_path, tmp_path / name, steps=4)

        def fail(*_: Any, **__: Any) -> None:
            (job.run.out / ".writing-0123456789ab").mkdir(exist_ok=True)  # noqa: B023
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(place, name, fail)
            with pytest.raises(KeyboardInterrupt):
                job.start()
        job.start()
        assert_same_run(job.run.out, reference.run.out)


def test_claims(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert claim(out, resume=False) is False
    assert claim(out, resume=True) is False
    assert not out.exists()
    out.mkdir()
    (out / ".lock").touch()
    assert claim(out, resume=False) is False


# One at a time


def test_two_processes_in_one_folder_are_refused(done: TrainingJob, tmp_path: Path) -> None:
    def hold(ready: Any, leave: Any) -> None:
        with locked(done.run.out):
            ready.set()
            leave.wait(60)

    ready, leave = FORK.Event(), FORK.Event()
    other = FORK.Process(target=hold, args=(ready, leave))
    other.start()
    assert ready.wait(60)
    before = content(done.run.out)
    with refused(
        f"out: another process is training into {done.run.out} now; wait for it, or choose another"
    ):
        done.with_run(resume=True, steps=6).start()
    assert content(done.run.out) == before
    other.kill()  # the lock goes with it
    other.join()
    outcome = done.with_run(resume=True, steps=6).start()
    assert outcome is not None
    assert outcome.steps == 6


# What may change


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
def test_what_makes_another_run_is_refused_by_name(
    change: Any, message: str, done: TrainingJob
) -> None:
    before = content(done.run.out)
    with refused(message.format(out=done.run.out)):
        change(done).with_run(resume=True).start()
    assert content(done.run.out) == before


def test_other_data_is_refused(done: TrainingJob, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(Path(done.data.data[0]).read_text())
    with refused("data: the run in"):
        done._replace(data=replace(done.data, data=(str(other),))).with_run(resume=True).start()


def test_changed_data_is_refused(done: TrainingJob) -> None:
    file = Path(done.data.data[0])
    file.write_text(file.read_text() + "cats see cats\n")
    with refused(f"data: {file} has changed since the run in {done.run.out} began"):
        done.with_run(resume=True).start()


def test_the_rest_may_change_and_is_remembered(done: TrainingJob) -> None:
    outcome = (
        done._replace(optimizer=replace(done.optimizer, clip=0.5))
        .with_run(resume=True, steps=6)
        .start()
    )
    assert outcome is not None
    assert outcome.steps == 6
    told = json.loads((done.run.out / "run.json").read_text())
    assert (told["optimizer"]["clip"], told["run"]["steps"]) == (0.5, 6)


# The number of steps


def test_fewer_steps_than_are_done_are_refused_and_nothing_is_written(done: TrainingJob) -> None:
    before = content(done.run.out)
    with refused(
        f"steps: 2 are asked for, but the run in {done.run.out} has done 4; ask for 4 or more"
    ):
        done.with_run(resume=True, steps=2).start()
    assert content(done.run.out) == before


def test_a_run_that_is_refused_late_keeps_its_description(
    done: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(done.run.out)
    for name in ("Metrics", "Run"):
        with monkeypatch.context() as broken:
            broken.setattr(
                import_module("qkv.training.train"), name, lambda *_, **__: pytest.fail("refused")
            )
            with pytest.raises(pytest.fail.Exception):
                done.with_run(resume=True, steps=6).start()
        assert content(done.run.out) == before


def test_a_learning_rate_that_jumps_is_told_with_the_way_around_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job("gpt", tmp_path, steps=4, optimizer={"optimizer": "muon"})
    job.start()
    capsys.readouterr()
    job.with_run(resume=True, steps=6).start()
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "The learning rate goes from 3.00e-04 to 6.95e-04 at step 5: the cosine schedule now ends at step 6, not 4."
        in said
    )
    assert "add --schedule constant --learning-rate 0.0003 --muon-learning-rate 0.002." in said
    flat = replace(job.optimizer, schedule="constant", learning_rate=3e-4)
    job._replace(optimizer=flat).with_run(resume=True, steps=8).start()
    assert "The learning rate goes" not in capsys.readouterr().out, (
        "it stays at what the cosine ended with"
    )
    rates = [row["learning_rate"] for row in rows_of(job.run.out) if "loss" in row]
    assert rates[3:] == pytest.approx([3e-4, 6.95e-4, 3e-4, 3e-4, 3e-4], rel=1e-3)


def test_the_usual_warm_up_is_remembered_when_the_steps_grow(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=20, optimizer={"warmup": None, "schedule": "constant"})
    job.start()
    job.with_run(resume=True, steps=40).start()
    assert json.loads((job.run.out / "run.json").read_text())["optimizer"]["warmup"] == 2


def test_a_warm_up_longer_than_the_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_job("gpt", tmp_path, steps=4, dry_run=True, optimizer={"warmup": 40}).start()
    said = " ".join(capsys.readouterr().out.split())
    assert "warmup: 40 steps of warm-up are more than the 4 steps of the run" in said
    assert "rises, to 3.00e-04, and never reaches 3.00e-03" in said
    small_job("gpt", tmp_path, steps=40, dry_run=True, optimizer={"warmup": 40}).start()
    assert "warmup:" not in capsys.readouterr().out


# Runs of version 0.6


def of_version_6(job: TrainingJob, warmup: int) -> None:
    told = json.loads((job.run.out / "run.json").read_text())
    del told["order"]
    told["optimizer"]["warmup"] = warmup
    (job.run.out / "run.json").write_text(json.dumps(told))


def test_a_run_that_read_its_data_in_another_order_is_not_trained_on(done: TrainingJob) -> None:
    of_version_6(done, warmup=2)
    before = content(done.run.out)
    with refused(
        "was begun by another version of qkv, which reads the data in another order; go on with that version"
    ):
        done.with_run(resume=True, steps=6).start()
    assert content(done.run.out) == before
    outcome = done.with_run(resume=True).start()
    assert outcome is not None
    assert outcome.finished, "it is at its end, and reads nothing"


def test_an_old_run_in_the_same_order_goes_on_with_the_warm_up_it_had(
    tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    whole = small_job("transformer", tmp_path, tmp_path / "whole", steps=20)
    whole.start()
    job = small_job("transformer", tmp_path, steps=20)
    stop_after(5)
    job.start()
    of_version_6(job, warmup=100)  # of which it took a tenth of the steps
    stop_after(-1)
    TrainingJob(*training_flags("transformer", ["--out", str(job.run.out), "--resume"])).start()
    assert_same_run(job.run.out, whole.run.out)


# Where it can be written


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    job = small_job("gpt", tmp_path)
    starting = import_module("qkv.training.train")
    monkeypatch.setattr(starting, "assemble", lambda *_, **__: pytest.fail("the data is read"))
    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(OSError, match="Read-only file system"):
        job.start()


# By the command line


def flags_of(done: TrainingJob, *words: str) -> tuple[Any, DataConfig, OptimizerConfig, RunConfig]:
    return training_flags("gpt", ["--out", str(done.run.out), "--resume", *words])


def test_resume_alone_remembers_every_flag(tmp_path: Path) -> None:
    job = small_job(
        "gpt", tmp_path, steps=4, seed=3, recompute=True, keep=2, micro_batch_tokens=32, precision="float32",
        optimizer={"schedule": "stable", "beta2": 0.9, "average": "last"},
    )  # fmt: skip
    job.start()
    config, data, optimizer, run = flags_of(job)
    assert isinstance(config, GPTConfig)
    assert replace(config, vocabulary=64) == job.config
    assert (data, optimizer) == (job.data, job.optimizer)
    assert run == replace(job.run, resume=True)
    longer = TrainingJob(*flags_of(job, "--steps", "6")).start()
    assert longer is not None
    assert (longer.steps, longer.finished) == (6, True)
    assert flags_of(job)[3].steps == 6
    again = TrainingJob(*flags_of(job)).start()
    assert again is not None
    assert again.steps == 6
    assert [row["step"] for row in rows_of(job.run.out) if "loss" in row] == [1, 2, 3, 4, 5, 6]


def test_the_first_command_again_with_resume_goes_on(done: TrainingJob, tmp_path: Path) -> None:
    """All flags given again, the preset too, is the same run; another preset is not."""
    config, run = done.config, done.run
    words = [
        "--data", *done.data.data, "--tokenizer", "words", "--batch-tokens", "64", "--preset", "gpt-tiny",
        "--width", "16", "--depth", "2", "--heads", "2", "--hidden", "24", "--context", "16", "--vocabulary", "64",
        "--dropout", "0.1", "--attention-dropout", "0.1", "--learning-rate", "0.003", "--warmup", "2",
    ]  # fmt: skip
    again = TrainingJob(*flags_of(done, *words, "--steps", "5"))
    assert replace(again.config, vocabulary=64) == config
    outcome = again.start()
    assert outcome is not None
    assert outcome.steps == 5
    with refused(f"width: the run in {run.out} has 16, not 768"):
        TrainingJob(*flags_of(done, "--preset", "gpt2", "--context", "16")).start()


def test_another_family_is_refused(done: TrainingJob) -> None:
    with refused(
        f"out: {done.run.out} holds another model; say qkv train gpt --out {done.run.out} --resume"
    ):
        training_flags("bert", ["--out", str(done.run.out), "--resume"])


def test_a_damaged_description_is_told(done: TrainingJob) -> None:
    (done.run.out / "run.json").write_text('{"model": {}}')
    with refused(f"{done.run.out / 'run.json'}: damaged, or of another version"):
        flags_of(done)


def test_resume_where_there_is_none_yet_begins_one(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=4, resume=True)
    outcome = job.start()
    assert outcome is not None
    assert outcome.finished
    plain = small_job("gpt", tmp_path, tmp_path / "plain", steps=4)
    plain.start()
    assert same_bits(model_of(job.run.out), model_of(plain.run.out))


def test_a_dry_run_leaves_nothing(tmp_path: Path) -> None:
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


def test_a_file_by_another_name_is_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun with a name as a person types it, resumed by the path that the run remembers."""
    job = small_job("gpt", tmp_path, steps=2)
    monkeypatch.chdir(Path(job.data.data[0]).parent)
    job._replace(data=replace(job.data, data=(Path(job.data.data[0]).name,))).start()
    monkeypatch.chdir(tmp_path)
    outcome = job.with_run(resume=True, steps=3).start()
    assert outcome is not None
    assert outcome.steps == 3
