"""The folder of a run: the model in front, what training needs behind it, and never two runs in
one.

config.json  model.safetensors  tokenizer.json       the artifact, for qkv.load run.json
metrics.jsonl      checkpoints/         how it was trained, what was measured, where to go on

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
from qkv.data.sources.source import SPLITS
from qkv.models.convert.hf_folder import TOKENIZER, read_json
from qkv.models.registry import Config, from_json, to_json
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig

LOCK = ".lock"
FIXED = {"run": ("seed", "batch_tokens"), "optimizer": ("optimizer", "layer_decay")}
"""What a resumed run must share with its beginning, besides the model and the data; the rest may
change, and does so from then on."""
BEFORE_THE_FIRST_STEP = (LOCK, RUN, TOKENIZER, TOKENIZER_CONFIG)
"""All that is there of a run that failed or was killed before it was worth keeping."""


def claim(out: Path, resume: bool) -> bool:
    """Whether there is a run to go on with; an error where there is something that must not be
    lost.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out: {out} is a file; choose a folder")

    names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    run = RUN in names
    half = (storage.WRITING, storage.REMOVING)
    others = [
        name for name in names if name not in BEFORE_THE_FIRST_STEP and not name.startswith(half)
    ]
    if not run and (others or TOKENIZER in names):
        other = others[0] if others else TOKENIZER
        raise ValueError(
            f"out: {out} holds something that is not a run ({other}); choose an empty folder"
        )

    if not others:
        return False
    if not resume:
        raise ValueError(
            f"out: {out} holds a run already; add --resume to go on with it, or choose another folder"
        )

    return True


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Only one process trains into a folder; a lock goes with the process that had it."""
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


def describe(
    model: Config,
    data: DataConfig | FinetuneConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    fingerprint: str,
    order: int = 1,
) -> dict[str, Any]:
    return {
        "command": "train" if isinstance(data, DataConfig) else "finetune",
        "model": to_json(model),
        "data": described(data),
        "optimizer": asdict(optimizer),
        "run": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(run).items()
        },
        "fingerprint": fingerprint,
        "order": order,
    }


def described(data: DataConfig | FinetuneConfig) -> dict[str, Any]:
    """What is read, with whole paths."""
    target_positions: dict[str, Any] = {
        name: tuple(map(located, getattr(data, name))) for name in ("data", "validation")
    }
    if isinstance(data, FinetuneConfig):
        target_positions["model"] = absolute(data.model)

    return asdict(data) | target_positions


def located(item: str) -> str:
    """A file's whole path, so that a run can be resumed from anywhere."""
    embedded = item.partition(":")[0] in SPLITS and not item.startswith(".")
    return item if embedded or item.startswith(("hf:", "-")) else os.path.abspath(item)


def write_description(out: Path, description: dict[str, Any]) -> None:
    storage.write_text(out / RUN, json.dumps(description, indent=1))


def read_description(out: Path) -> dict[str, Any]:
    """What run.json says; of a run of version 0.6 or before, with the warm-up that it really had."""
    told = read_json(out / RUN)
    if "order" not in told:
        told["order"] = 1
        with suppress(KeyError, TypeError):  # which is told where the values are used
            told["optimizer"]["warmup"] = max(
                1, min(told["optimizer"]["warmup"], told["run"]["steps"] // 10)
            )

    return told


def remembered(out: Path, command: str = "train") -> tuple[Config, dict[str, Any]] | None:
    """The model's config and the flags that a run of a command was begun with, if there is one."""
    if not (out / RUN).exists():
        return None

    told = read_description(out)
    if (other := told.get("command", "train")) != command:
        raise ValueError(f"out: {out} holds a run of qkv {other}; resume it with that")

    try:
        flags = {**told["data"], **told["optimizer"], **told["run"], "out": out}
        flags = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in flags.items()
        }
        return from_json(told["model"]), flags
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{out / RUN}: damaged, or of another version ({error})") from error


def check_choices(out: Path, now: dict[str, Any]) -> None:
    """What is read must be what was read: the same task, the same files, the same columns."""
    before = read_description(out)["data"]
    for name, value in json.loads(json.dumps(now)).items():
        check_equal(
            out, name, before.get(name, value), value
        )  # a version before this one may not know it


def check_equal(out: Path, name: str, old: Any, new: Any) -> None:
    if old != new:
        raise ValueError(
            f"{name}: the run in {out} has {old!r}, not {new!r}; resume with the same, or begin anew"
        )


def difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any]:
    """The first field that differs, also inside the parts of a model."""
    for name in now:
        old, new = before.get(name), now[name]
        if old != new:
            return (
                difference(old, new)
                if isinstance(old, dict) and isinstance(new, dict)
                else (name, old, new)
            )

    return "family", before.get("family"), now.get("family")


def check_same(out: Path, now: dict[str, Any]) -> list[str]:
    """An error where resuming would not go on with the same run; what else has changed, in words."""
    before = read_description(out)
    now = json.loads(json.dumps(now))  # tuples and lists alike
    tuning = now["command"] == "finetune"
    check_choices(out, now["data"])

    for part, fixed in FIXED.items():
        for name in fixed:
            flag = (
                "batch" if tuning and name == "batch_tokens" else name
            )  # which counts examples there
            check_equal(out, flag, before[part].get(name, now[part][name]), now[part][name])

    if before["model"] != now["model"]:
        name, old, new = difference(before["model"], now["model"])
        raise ValueError(
            f"{name}: the run in {out} has {old!r}, not {new!r}; resume with the same model"
        )

    if before["fingerprint"] != now["fingerprint"]:
        what = f"{now['data']['model']} or " if tuning else ""
        raise ValueError(
            f"data: {what}{' '.join(now['data']['data'])} has changed since the run in {out} began; "
            "bring it back as it was, or begin a new run in another folder"
        )

    return [
        f"{name} is now {now[part][name]}, was {before[part].get(name)}"
        for part in ("optimizer", "run")
        for name in now[part]
        if before[part].get(name) != now[part][name] and name not in ("out", "resume", "dry_run")
    ]
