"""Models as the subjects of an evaluation: open them, identify them, run a task on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.artifact import checksum
from qkv.command_line.model_opening import Machine, device_of, open_model, quantize
from qkv.command_line.terminal_bars import progress_bar
from qkv.data.sources.files import find_files
from qkv.data.sources.named import is_named
from qkv.evaluation.evaluate import EvaluationResult, evaluate
from qkv.evaluation.protocol import Protocol, Subject, supports_few_shot
from qkv.evaluation.task_file import EvaluationTask
from qkv.models.model import Model
from qkv.models.registry import family
from qkv.text import Tokenizer


def model_titles(models: Sequence[str]) -> list[str]:
    """A distinct short title for each model: the last part of its path where that is enough."""
    titles = Counter(Path(name).name for name in models)
    del titles[""]
    return [Path(name).name if titles[Path(name).name] == 1 else name for name in models]


def open_subject(
    name: str, title: str, machine: Machine, *families: type[Model]
) -> tuple[Subject, dict[str, Any]]:
    """A model to evaluate, and its identity: the checksum is of the float32 weights."""
    device_of(machine)
    model, tokenizer = open_model(name, replace(machine, int8=False, int4=False), *families)
    identity = {"path": name, **identity_of(model, tokenizer), "int8": machine.int8}
    if machine.int4:
        identity["int4"] = True

    return Subject(title, quantize(model, machine), tokenizer), identity


def identity_of(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """What identifies a model in a report: family, size, checksums, device and dtype."""
    weight = next(model.parameters())
    return {
        "family": family(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256 of weights": checksum(model.state_dict()),
        "sha256 of tokenizer": tokenizer.fingerprint,
        "device": str(weight.device),
        "dtype": str(weight.dtype).removeprefix("torch."),
    }


def data_checksums(data: Sequence[str]) -> dict[str, str]:
    """The checksum of each file; embedded data and data on a hub have an empty one."""
    checksums = dict.fromkeys(data, "")
    for name in data:
        if name.startswith("hf:") or is_named(name):
            continue

        for file in find_files(name, piped="jsonl"):
            checksums[file.name] = file.sha256()

    return checksums


def run_task(
    task: EvaluationTask, subject: Subject, data: list[str], protocols: Sequence[Protocol]
) -> Iterator[EvaluationResult]:
    """Evaluate a model on a task under each protocol, with a progress bar.

    A task without examples in its prompt is evaluated once, with the most shots, which its result
    reports as unused.
    """
    if not supports_few_shot(task, subject.model):
        protocols = [max(protocols, key=lambda protocol: protocol.shots)]

    for protocol in protocols:
        with progress_bar(f"{subject.name}: {task.name}") as advance:
            result = evaluate(task, subject, data, protocol, advance)

        yield result
