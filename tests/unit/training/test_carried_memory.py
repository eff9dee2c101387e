"""Memory carried from step to step equals one long pass, in parts, again, and after resuming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.data.batches.batch import Batch
from qkv.data.batches.streams import StreamedData
from qkv.models import GPTConfig, preset
from qkv.training.objective import Objective
from qkv.training.run_config import DataConfig
from qkv.training.setup.training_task import assemble
from qkv.training.step import gradients_of
from support.families import gpt, rnn_lm, words
from support.small_training import ALONE, SIZE, TrainingJob, assert_same_run, small_job

B, T, SEGMENTS = 4, 3, 5


def transformer_xl(memory: int = 5) -> Any:
    return gpt(position="relative", memory=memory, context=T)


MODELS: dict[str, Callable[[], Any]] = {
    "memory longer than a segment": transformer_xl,
    "memory shorter than a segment": lambda: transformer_xl(2),
    "lstm": rnn_lm,
    "residual gru": lambda: rnn_lm(cell="gru", depth=2, residual=True),
}


def batches() -> list[Batch]:
    """Segments of B streams."""
    text = words(B, SEGMENTS * T + 1)
    made = []
    for segment in range(SEGMENTS):
        part = text[:, segment * T : (segment + 1) * T + 1]
        made.append(Batch(part[:, :-1], part[:, 1:], first_stream=0, segment=segment))

    return made


@pytest.mark.parametrize("name", MODELS)
def test_segments_are_read_as_in_one_pass(name: str) -> None:
    model = MODELS[name]()
    segments = batches()
    state = model.start()
    objective = Objective(model)
    for batch in segments:
        logits = model.decode(batch.ids, state)  # all segments, one state
        right = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="sum"
        )
        assert_close(objective(batch), right)

    assert not torch.isclose(objective(replace(segments[0], segment=9)), right)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_ends_at_the_segment(name: str) -> None:
    model = MODELS[name]()
    first, second, *_ = batches()
    objective = Objective(model)
    objective(first)
    objective(second).backward()
    actual = [parameter.grad.clone() for parameter in model.parameters()]

    model.zero_grad()
    state = model.start()
    with torch.no_grad():
        model.decode(first.ids, state)

    logits = model.decode(second.ids, state)
    torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), second.targets.flatten(), reduction="sum"
    ).backward()
    for gradient, parameter in zip(actual, model.parameters(), strict=True):
        assert_close(gradient, parameter.grad)


def gradients(model: Any, parts: list[int], again: bool = False) -> list[Tensor]:
    """Gradients of all segments, each in so many micro-batches."""
    objective = Objective(model)
    model.zero_grad()
    for batch, count in zip(batches(), parts, strict=True):
        if again:
            objective(batch.part(0, B // 2))  # a pass that broke off, as without memory left

        gradients_of(objective, batch, ALONE, parts=count)

    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["memory longer than a segment", "lstm"])
def test_micro_batches_and_repeated_passes_change_nothing(name: str) -> None:
    model = MODELS[name]()
    torch.manual_seed(1)
    whole = gradients(model, [1] * SEGMENTS)
    for parts, again in (([1, 2, 4, 3, 2], False), ([2, 2, 2, 2, 2], True)):
        torch.manual_seed(1)
        for actual, right in zip(gradients(model, parts, again), whole, strict=True):
            assert_close(actual, right)


def test_a_new_epoch_or_a_gap_begins_with_empty_memory() -> None:
    model = transformer_xl()
    segments = batches()
    alone = [Objective(model)(replace(batch, first_stream=None)) for batch in segments]
    objective = Objective(model)
    objective(segments[0])
    objective(segments[1])
    assert_close(objective(segments[3]), alone[3])  # segment 2 was left out
    assert not torch.isclose(objective(segments[4]), alone[4])
    assert_close(objective(segments[0]), alone[0])  # a new epoch


JOBS: dict[str, Any] = {
    "transformer-xl": (
        "gpt",
        GPTConfig(**SIZE, context=8, position="relative", memory=12, dropout=0.1),
    ),
    "rnn-lm": ("rnn-lm", None),
}


def job_of(name: str, folder: Path, out: str, **run: Any) -> TrainingJob:
    family, config = JOBS[name]
    job = small_job(family, folder, folder / out, **run)
    data = replace(job.data, carry_memory=True)

    return job._replace(config=config or job.config, data=data)


@pytest.mark.parametrize("name", JOBS)
def test_a_resumed_run_carries_the_same_memory(
    name: str, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    whole = job_of(name, tmp_path, "whole")
    whole.start()
    stopped = job_of(name, tmp_path, "stopped")
    stop_after(5)
    outcome = stopped.start()
    assert outcome is not None
    assert not outcome.finished

    stop_after(-1)
    stopped.with_run(resume=True).start()
    assert_same_run(stopped.run.out, whole.run.out)


def test_memory_is_carried_in_a_run(tmp_path: Path) -> None:
    job = job_of("transformer-xl", tmp_path, "run", steps=3)
    task = job.task()
    assert isinstance(task.training, StreamedData)
    run = job.create_run(task)
    assert run.learner.memory is not None
    job.train(task)
    run = job.create_run(task)  # resumed at the last step
    memory = run.learner.memory
    assert memory is not None
    assert memory.segment == 3
    assert memory.before["0"].shape == (8, 12, SIZE["width"])  # of 24 tokens, 12 are remembered


def test_a_model_without_memory_is_refused(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path)
    with pytest.raises(ValueError, match="carry_memory: expected a model that remembers"):
        job._replace(data=replace(job.data, carry_memory=True)).task()

    job = job_of("rnn-lm", tmp_path, "run", compile=True)
    with pytest.raises(ValueError, match="compile: "):
        job.create_run()


def test_the_published_transformer_xl_learns_characters_by_default(tmp_path: Path) -> None:
    """Its vocabulary of 204 is that of a text's characters; byte pairs need 256 and more."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 400)
    config = replace(
        preset("transformer-xl"), width=16, heads=2, hidden=16, depth=1, context=8, memory=8
    )
    data = DataConfig(data=(str(text),), carry_memory=True)
    task = assemble(config, data, batch_tokens=64, seed=0)
    assert task.tokenizer.decode(task.tokenizer.encode("the cat")) == "the cat"
    assert len(task.tokenizer.encode("cat")) == 3
    assert any("too small for byte pairs, so tokens are characters" in note for note in task.notes)
