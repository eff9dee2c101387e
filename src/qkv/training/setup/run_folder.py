"""The folder of a run: model, run.json, metrics and checkpoints; one run per folder.

    config.json  model.safetensors  tokenizer.json    the artifact, for qkv.load
    run.json  metrics.jsonl  checkpoints/             configuration, measurements, where to resume

The artifact holds the weights with the best validation so far. Before the first validation it holds
the weights of the newest checkpoint, so that a run can be opened from its first checkpoint on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv import storage
from qkv.artifact import TOKENIZER_CONFIG
from qkv.checkpoint import RUN, absolute
from qkv.data.sources.named import NAMED_SOURCES
from qkv.models import legacy
from qkv.models.convert.hf_folder import TOKENIZER, read_json
from qkv.models.registry import Config, from_json, to_json
from qkv.plugins import absolute_plugin
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingTask

LOCK = ".lock"
FIXED = {"run": ("seed", "batch_tokens"), "optimizer": ("optimizer", "objective", "layer_decay")}
"""Fields that a resumed run may not change, besides the model and the data."""
UNREPORTED = ("out", "resume", "dry_run")
"""Fields whose changes are not worth a line."""
BEFORE_THE_FIRST_STEP = (LOCK, RUN, TOKENIZER, TOKENIZER_CONFIG)
"""Files of a run that ended before its first checkpoint; it can be begun again."""

# The folder


def claim(out: Path, resume: bool) -> bool:
    """Whether the folder has a run to resume.

    Raises:
        ValueError: The folder holds something else, or a run and `resume` is False.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: {out} is a file; choose a folder")

    names: list[str] = []
    if out.exists():
        names = sorted(path.name for path in out.iterdir())

    half_written = (storage.WRITING, storage.REMOVING)
    others = [
        name
        for name in names
        if name not in BEFORE_THE_FIRST_STEP and not name.startswith(half_written)
    ]
    if RUN not in names and (others or TOKENIZER in names):
        other = next(iter(others), TOKENIZER)
        raise ValueError(
            f"out: {out} holds something that is not a run ({other}); choose an empty folder"
        )

    if not others:
        return False
    if not resume:
        raise ValueError(
            f"out: {out} holds a run already; add --resume to continue it, or choose another folder"
        )

    return True


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Let only one process train into a folder; the lock ends with the process."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return

    with (out / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"out: another process is training into {out} now; wait for it, or choose another"
            ) from None

        yield


# run.json


def describe(
    task: TrainingTask,
    data: DataConfig | FinetuneConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    extra_flags: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of run.json; `extra_flags` are stored with those of the run."""
    plugins = {
        "optimizer": absolute_plugin(optimizer.optimizer),
        "objective": absolute_plugin(optimizer.objective),
    }

    return {
        "command": "train" if isinstance(data, DataConfig) else "finetune",
        "model": to_json(task.config),
        "data": describe_data(data),
        "optimizer": asdict(optimizer) | plugins,
        "run": asdict(run) | {"out": str(run.out)} | (extra_flags or {}),
        "fingerprint": task.fingerprint,
        "order": task.training.order_version,
    }


def describe_data(data: DataConfig | FinetuneConfig) -> dict[str, Any]:
    """The fields of a data configuration, with absolute paths."""
    description = asdict(data)
    description["data"] = tuple(map(absolute_name, data.data))
    description["validation"] = tuple(map(absolute_name, data.validation))
    if isinstance(data, FinetuneConfig):
        description["model"] = absolute(data.model)

    return description


def absolute_name(name: str) -> str:
    """A file's absolute path, so that a run can be resumed from anywhere; other names unchanged."""
    embedded = name.partition(":")[0] in NAMED_SOURCES and not name.startswith(".")
    if embedded or name.startswith(("hf:", "-")):
        return name

    return os.path.abspath(name)


def write_description(out: Path, description: dict[str, Any]) -> None:
    storage.write_text(out / RUN, json.dumps(description, indent=1))


def read_description(out: Path) -> dict[str, Any]:
    """The content of run.json; for version 0.6 and earlier with the warm-up that the run had."""
    description = read_json(out / RUN)
    if "order" not in description:
        description["order"] = 1
        with suppress(KeyError, TypeError):  # reported where the values are used
            optimizer = description["optimizer"]
            most = description["run"]["steps"] // 10
            optimizer["warmup"] = max(1, min(optimizer["warmup"], most))

    if isinstance(description.get("model"), dict):
        description["model"] = legacy.rename_config_keys(description["model"])

    return description


def read_run_flags(out: Path, command: str = "train") -> tuple[Config, dict[str, Any]] | None:
    """The model's configuration and the flags of the run in a folder; None if there is no run."""
    if not (out / RUN).exists():
        return None

    description = read_description(out)
    other = description.get("command", "train")
    if other != command:
        raise ValueError(f"out: {out} holds a run of qkv {other}; resume it with that")

    try:
        flags = {**description["data"], **description["optimizer"], **description["run"]}
        flags["out"] = out
        for name, value in flags.items():
            if isinstance(value, list):
                flags[name] = tuple(value)

        return from_json(description["model"]), flags
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{out / RUN}: damaged, or of another version ({error})") from error


# What a resumed run may change


def check_same_data(out: Path, data: dict[str, Any]) -> None:
    """The run in the folder must have the same data configuration: task, files, columns."""
    before = read_description(out)["data"]
    for name, value in json.loads(json.dumps(data)).items():
        old = before.get(name, value)  # an earlier version may not have the field
        check_equal(out, name, old, value)


def check_equal(out: Path, name: str, old: Any, new: Any) -> None:
    if old != new:
        raise ValueError(
            f"{name}: the run in {out} has {old!r}, not {new!r}; "
            "resume with the same, or begin anew"
        )


def check_same_run(out: Path, description: dict[str, Any]) -> list[str]:
    """Raise where this is another run, apart from its data; return other changes as sentences."""
    before = read_description(out)
    now = json.loads(json.dumps(description))  # tuples become lists, as in the file
    for part, names in FIXED.items():
        for name in names:
            flag = name
            if name == "batch_tokens" and now["command"] == "finetune":
                flag = "batch"  # it counts examples there

            new = now[part][name]
            check_equal(out, flag, before[part].get(name, new), new)

    if before["model"] != now["model"]:
        name, old, new = first_difference(before["model"], now["model"])
        raise ValueError(
            f"{name}: the run in {out} has {old!r}, not {new!r}; resume with the same model"
        )

    if before["fingerprint"] != now["fingerprint"]:
        sources = " ".join(now["data"]["data"])
        if now["command"] == "finetune":
            sources = f"{now['data']['model']} or {sources}"

        raise ValueError(
            f"data: {sources} has changed since the run in {out} began; "
            "bring it back as it was, or begin a new run in another folder"
        )

    return changes(before, now)


def first_difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any]:
    """Name and both values of the first field that differs, also inside parts of a model."""
    for name, new in now.items():
        old = before.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return first_difference(old, new)

        return name, old, new

    return "family", before.get("family"), now.get("family")


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Sentences on the optimizer and run fields that changed."""
    sentences: list[str] = []
    for part in ("optimizer", "run"):
        for name, new in now[part].items():
            old = before[part].get(name, new)  # an earlier version may not have the field
            if old != new and name not in UNREPORTED:
                sentences.append(f"{name} is now {new}, was {old}")

    return sentences
