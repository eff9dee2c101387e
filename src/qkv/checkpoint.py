"""One checkpoint of a run on disk: its files, its checksums, and the name RUN@STEP that opens it as
a model.

RUN/run.json                                    the model's config and every flag of the run
RUN/checkpoints/step-00000400/manifest.json     step, marks, sizes and checksums of the two files
below state.json        the run's counters tensors.safetensors   model/..., average/...,
optimizer/...
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv import storage
from qkv.models.convert.hf_folder import open_file, read_json
from qkv.models.registry import Config, Model, backbone_of, build, from_json
from qkv.models.task_model import TaskModelConfig
from qkv.nn.lora import AdapterConfig

RUN, CHECKPOINTS, ADAPTER = "run.json", "checkpoints", "adapter"
"""In the folder of a run; the adapter is in the format of peft."""
STATE, TENSORS, MANIFEST = "state.json", "tensors.safetensors", "manifest.json"
NAME = re.compile(r"step-(\d{8,})(\.new)?")
AT_STEP = re.compile(r"(?P<run>.+)@(?P<step>[^@/]+)", re.DOTALL)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified."""

    path: Path
    step: int
    best: bool
    passing: bool
    state: dict[str, Any]

    def tensors(self, under: str = "") -> dict[str, Tensor]:
        """Those whose names begin so, without that; on the CPU, in memory of their own: the file
        may go meanwhile.
        """
        found = open_file(self.path / TENSORS).items()
        return {
            name.removeprefix(under): read().clone()
            for name, read in found
            if name.startswith(under)
        }

    def weights(self) -> dict[str, Tensor]:
        """The trained weights as validation sees them: the exponential average if the run keeps
        one.
        """
        return self.tensors("average/") or self.tensors("model/")


def describe(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": storage.sha256_of(file)}


def verify(path: Path, step: int) -> Checkpoint:
    """The checkpoint in this folder, or ValueError or OSError with the file and what is wrong with
    it.
    """
    if missing := [name for name in (MANIFEST, STATE, TENSORS) if not (path / name).is_file()]:
        raise ValueError(f"{path / missing[0]}: this file is missing")

    manifest = read_json(path / MANIFEST)
    written, best, passing = (manifest.get(name) for name in ("files", "best", "passing"))
    marked = isinstance(best, bool) and isinstance(passing, bool)
    if manifest.get("step") != step or not marked or not isinstance(written, dict):
        raise ValueError(f"{path / MANIFEST}: damaged, or the folder of another step")

    for name in (STATE, TENSORS):
        if (found := describe(path / name)) != written.get(name):
            raise ValueError(
                f"{path / name}: damaged or cut short: it has {found['bytes']} bytes and a checksum that is not the "
                f"one in {MANIFEST}"
            )

    return Checkpoint(path, step, bool(best), bool(passing), read_json(path / STATE))


def steps_in(folder: Path) -> list[int]:
    """The steps of all checkpoints in this folder, whole or not, in order."""
    names = [NAME.fullmatch(path.name) for path in folder.glob("step-*") if path.is_dir()]
    return sorted({int(name[1]) for name in names if name})


def place_of(folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint; of a step that is saved again, the new one as soon as it
    is whole.
    """
    path = folder / f"step-{step:08}"
    new = path.with_name(path.name + ".new")
    return new if new.is_dir() else path


# A checkpoint by name


def step_of(path: Path) -> int | None:
    """The step, if this is the folder of a run's checkpoint."""
    name = NAME.fullmatch(path.name)
    return (
        int(name[1])
        if name and path.parent.name == CHECKPOINTS and (path / MANIFEST).is_file()
        else None
    )


def run_of(path: Path) -> Path:
    """The folder of the run that a checkpoint's folder belongs to."""
    return path.parent.parent


def at_step(name: Path | str) -> Path | None:
    """The folder of the checkpoint that RUN@STEP names; None if this is not such a name.

    A file or folder that is really called so comes first. A step that is not kept is refused, with
    those that are.
    """
    found = AT_STEP.fullmatch(str(name))
    if found is None or os.path.lexists(name) or not Path(found["run"]).is_dir():
        return None

    run, step = Path(found["run"]), found["step"]
    if not re.fullmatch("[0-9]{1,18}", step):
        raise ValueError(
            f"{name}: expected the step of a checkpoint after @, as in {run}@400, not {step!r}"
        )

    kept = steps_in(run / CHECKPOINTS)
    if not kept:
        raise ValueError(f"{name}: {run} has no checkpoints; name the model without @{step}")

    if int(step) not in kept:
        steps = ", ".join(map(str, kept))
        raise ValueError(
            f"{name}: there is no checkpoint of step {int(step)}; {run} has {steps} (--checkpoint-every says how often "
            "one is saved, --keep how many stay)"
        )

    return place_of(run / CHECKPOINTS, int(step))


def absolute(name: str) -> str:
    """A model's name with a whole path, so that it can be found from any folder; other names stay
    as they are.
    """
    return os.path.abspath(name) if os.path.exists(name) or at_step(name) else name


# A checkpoint as a model


def weights_in(path: Path) -> dict[str, Tensor]:
    """The trained weights of the checkpoint in this folder, after its files were verified."""
    step = step_of(path)
    assert step is not None

    try:
        return verify(path, step).weights()
    except OSError as error:  # a run that is still trained may have removed it meanwhile
        raise ValueError(f"{path}: this checkpoint cannot be read ({error})") from error


class Described(NamedTuple):
    """What run.json says of the model that a run trains."""

    config: Config
    adapters: AdapterConfig
    """Of a run that trains adapters; otherwise of no use."""
    base: str
    """The model that was fine-tuned."""

    def beside(self, base: Model) -> dict[str, Tensor]:
        """The base's weights that adapters were trained beside, under the names that the run's
        model has for them.
        """
        with torch.device("meta"):
            wanted = build(self.config).state_dict().keys()

        tuned = isinstance(self.config, TaskModelConfig)
        weights = (backbone_of(base) if tuned else base).state_dict()
        named = {f"backbone.{name}" if tuned else name: weight for name, weight in weights.items()}

        return {name: named[name] for name in named if name in wanted}


def description_of(run: Path) -> Described:
    values = read_json(run / RUN)
    try:
        flags = values["data"]
        own = {name: flags[name] for name in ("rank", "alpha") if name in flags}
        own["projections"] = tuple(flags.get("projections", AdapterConfig.projections))
        return Described(
            from_json(values["model"]), AdapterConfig(**own), str(flags.get("model", ""))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{run / RUN}: damaged, or of another version ({error})") from error
