"""Experiment trackers that metrics are also sent to: TensorBoard and Weights & Biases.

Their packages are imported only when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any
from uuid import uuid4

from qkv.imports import install_command


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder / "tensorboard"
        self.make_writer = import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = self.make_writer(str(self.folder))

    def write(self, row: Mapping[str, Any]) -> None:
        step = row["step"]
        if "event" in row:
            self.writer.add_text(f"event/{row['event']}", event_text(row), step)
            return

        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, step)

    def rewind(self, step: int) -> None:
        self.writer.close()
        self.writer = self.make_writer(str(self.folder), purge_step=step + 1)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project "qkv", or of WANDB_PROJECT; resuming continues the same run there.

    The steps of wandb cannot go back, so `step` is logged as a metric and used as the axis of all
    others. Rows that a rewind removes stay there beside those measured again.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = import_module("wandb")
        id_file = folder / "wandb-id.txt"
        if not id_file.exists():
            id_file.write_text(uuid4().hex[:12], encoding="utf-8")

        self.run = wandb.init(
            project=environ.get("WANDB_PROJECT", "qkv"),
            dir=str(folder),
            name=folder.resolve().name,
            id=id_file.read_text(encoding="utf-8").strip(),
            resume="allow",
            config=dict(config),
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
    """Open the trackers of these names; all are checked before the first is opened."""
    for name in names:
        if name not in KINDS:
            raise ValueError(f"sinks: expected {' or '.join(KINDS)}, not {name!r}")
        if find_spec(name) is None:  # the package has the same name
            raise ValueError(
                f"sinks: {name} needs the package {name}, "
                f"which is not installed: {install_command(name)}"
            )

    return [KINDS[name](folder, config) for name in dict.fromkeys(names)]


def event_text(row: Mapping[str, Any]) -> str:
    """The fields of an event as one line."""
    details = {name: value for name, value in row.items() if name not in ("step", "event")}
    return ", ".join(f"{name} {value}" for name, value in details.items()) or row["event"]


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, without its step."""
    scalars: dict[str, float] = {}
    for name, value in row.items():
        if name == "step" or value is None:
            continue
        if not isinstance(value, (str, bool, list, tuple, Mapping)):
            scalars[name] = float(value)

    return scalars
