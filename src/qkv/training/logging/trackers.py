"""Other places where a run's metrics go on request: TensorBoard, Weights & Biases. Imported only
when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any
from uuid import uuid4


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder / "tensorboard"
        self.make = import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = self.make(str(self.folder))

    def write(self, row: Mapping[str, Any]) -> None:
        step = row["step"]
        if "event" in row:
            told = ", ".join(
                f"{name} {value}" for name, value in row.items() if name not in ("step", "event")
            )
            self.writer.add_text(f"event/{row['event']}", told or row["event"], step)
            return

        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, step)

    def rewind(self, step: int) -> None:
        self.writer.close()
        self.writer = self.make(str(self.folder), purge_step=step + 1)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project "qkv", or of the one that WANDB_PROJECT names; a resumed run goes on in
    the same one.

    Its own count of steps cannot go back, so `step` is a number like the others, and the axis of
    all of them. What a rewind forgets stays there beside what is measured again.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = import_module("wandb")
        known = folder / "wandb-id.txt"
        if not known.exists():
            known.write_text(uuid4().hex[:12], encoding="utf-8")

        self.run = wandb.init(
            dir=str(folder),
            name=folder.resolve().name,
            id=known.read_text(encoding="utf-8").strip(),
            resume="allow",
            config=dict(config),
            **({} if "WANDB_PROJECT" in environ else {"project": "qkv"}),
        )

        self.run.define_metric("*", step_metric="step")

    def write(self, row: Mapping[str, Any]) -> None:
        self.run.log(dict(row))

    def rewind(self, step: int) -> None:
        pass

    def close(self) -> None:
        self.run.finish()


Sink = TensorBoard | WeightsAndBiases
KINDS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def open_sinks(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Sink]:
    """All are known and installed before the first is opened."""
    for name in names:
        if name not in KINDS:
            raise ValueError(f"sinks: expected {' or '.join(KINDS)}, not {name!r}")
        if find_spec(name) is None:  # each needs the package of its own name
            raise ValueError(
                f"sinks: {name} needs the package {name}, which is not installed: pip install {name}"
            )

    return [KINDS[name](folder, config) for name in dict.fromkeys(names)]


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name != "step"
        and value is not None
        and not isinstance(value, (str, bool, list, tuple, Mapping))
    }
