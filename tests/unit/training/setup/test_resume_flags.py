"""Resuming from the command line: the flags of a run are those it was begun with."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkv.commands.train import training_flags
from qkv.models import GPTConfig
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from support.small_training import TrainingJob, rows_of, small_job


def raises(message: str) -> Any:
    return pytest.raises(ValueError, match=re.escape(message))


@pytest.fixture
def done(tmp_path: Path) -> TrainingJob:
    """A finished run of four steps."""
    job = small_job("gpt", tmp_path, steps=4)
    job.start()
    return job


def flags_of(
    job: TrainingJob, *arguments: str
) -> tuple[Any, DataConfig, OptimizerConfig, RunConfig]:
    return training_flags("gpt", ["--out", str(job.run.out), "--resume", *arguments])


def test_resume_alone_restores_every_flag(tmp_path: Path) -> None:
    job = small_job(
        "gpt",
        tmp_path,
        steps=4,
        seed=3,
        recompute=True,
        keep=2,
        micro_batch_tokens=32,
        precision="float32",
        optimizer={"schedule": "stable", "beta2": 0.9, "average": "last"},
    )
    job.start()
    config, data, optimizer, run = flags_of(job)
    assert isinstance(config, GPTConfig)
    assert replace(config, vocabulary=64) == job.config
    assert data == job.data
    assert optimizer == job.optimizer
    assert run == replace(job.run, resume=True)
    longer = TrainingJob(*flags_of(job, "--steps", "6")).start()
    assert longer is not None
    assert longer.steps == 6
    assert longer.finished
    assert flags_of(job)[3].steps == 6
    again = TrainingJob(*flags_of(job)).start()
    assert again is not None
    assert again.steps == 6
    assert [row["step"] for row in rows_of(job.run.out) if "loss" in row] == [1, 2, 3, 4, 5, 6]


def test_the_first_command_with_resume_continues_the_run(done: TrainingJob, tmp_path: Path) -> None:
    """The same flags with the same preset are the same run; another preset is not."""
    size = "--width 16 --depth 2 --heads 2 --hidden 24 --context 16 --vocabulary 64"
    options = "--dropout 0.1 --attention-dropout 0.1 --learning-rate 0.003 --warmup 2"
    data = "--tokenizer words --batch-tokens 64 --preset gpt-tiny"
    arguments = ["--data", *done.data.data, *size.split(), *options.split(), *data.split()]
    again = TrainingJob(*flags_of(done, *arguments, "--steps", "5"))
    assert replace(again.config, vocabulary=64) == done.config
    outcome = again.start()
    assert outcome is not None
    assert outcome.steps == 5
    with raises(f"width: the run in {done.run.out} has 16, not 768"):
        TrainingJob(*flags_of(done, "--preset", "gpt2", "--context", "16")).start()


def test_another_family_is_refused(done: TrainingJob) -> None:
    with raises(f"out: {done.run.out} holds another model; say qkv train gpt"):
        training_flags("bert", ["--out", str(done.run.out), "--resume"])


def test_a_damaged_description_raises(done: TrainingJob) -> None:
    (done.run.out / "run.json").write_text('{"model": {}}')
    with raises(f"{done.run.out / 'run.json'}: damaged, or of another version"):
        flags_of(done)
