"""Checkpoints of a run: written atomically, every file with its checksum, old ones removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv import storage
from qkv.checkpoint import (
    MANIFEST,
    STATE,
    TENSORS,
    Checkpoint,
    checkpoint_path,
    describe,
    is_marked,
    steps_in,
    verify,
)
from qkv.models.convert.hf_folder import write_json, write_tensors

Tensors = Mapping[str, Tensor]
Staging = AbstractContextManager[Path]
Complete = Callable[[Path, dict[str, Any]], None]
"""Given a folder and the checksums of its tensors' files, completes a checkpoint."""


class Checkpoints:
    """The checkpoints of one run: one process writes, any may read.

    The newest `keep` stay (None: all of them), and the best. A temporary one, of a run that was
    interrupted, is removed with the next: resumed, the run must end as if it had not been. Saving
    a step removes the checkpoints of later steps: a run that went back must not find them when it
    is resumed.
    """

    def __init__(
        self, folder: Path | str, keep: int | None = 3, log: Callable[[str], object] = print
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep: expected 1 or more, not {keep}")

        self.folder = Path(folder)
        self.keep = keep
        self.log = log
        self.swept = False

    def save(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        *,
        best: bool = False,
        temporary: bool = False,
    ) -> Path:
        """Write a checkpoint; return its folder when everything is on the disk.

        Raises:
            DiskFull: The disk is full; the checkpoints saved before are intact.
        """
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        text = json.dumps(state, indent=1)
        size = len(text) + sum(tensor.nbytes for tensor in tensors.values())
        name = f"step-{step:08}"
        staging = storage.staging(self.folder, size, f"the checkpoint of step {step}", name)
        marks = {"step": step, "best": best, "passing": temporary}
        complete = partial(self.complete, state=text, marks=marks)
        self.write(tensors, self.folder / f"{storage.WRITING}{name}", staging, complete)

        return self.folder_of(step)

    def write(self, tensors: Tensors, folder: Path, staging: Staging, complete: Complete) -> None:
        """Write the tensors of one checkpoint to a folder that `staging` makes; complete it."""
        if not self.swept:
            self.sweep()

        with staging:
            write_tensors(folder / TENSORS, tensors)
            complete(folder, {TENSORS: describe(folder / TENSORS)})

    def complete(
        self, folder: Path, files: dict[str, Any], state: str, marks: dict[str, Any]
    ) -> None:
        """Write what belongs to the tensors' `files`, and give the folder its name."""
        (folder / STATE).write_text(state, encoding="utf-8")
        files = {STATE: describe(folder / STATE), **files}
        write_json(folder / MANIFEST, {**marks, "files": files})
        for name in (*files, MANIFEST):
            storage.flush(folder / name)

        storage.flush(folder)
        self.move_into_place(folder, marks["step"])
        self.remove_old(marks["step"])

    def wait(self) -> None:
        """Return when what is being written is on the disk, which it is when `save` returns."""

    # Reading

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint; damaged ones are logged and passed over."""
        return next(self.intact(self.steps()), None)

    def best(self) -> Checkpoint | None:
        """The last one saved as the best, if it is intact."""
        return next(self.intact(self.marked_best()), None)

    def last(self, n: int, up_to: int | None = None) -> list[Checkpoint]:
        """The newest n intact checkpoints in the order of their steps, without a temporary one."""
        steps = self.steps()
        if up_to is not None:
            steps = [step for step in steps if step <= up_to]

        scheduled = (checkpoint for checkpoint in self.intact(steps) if not checkpoint.passing)
        return list(islice(scheduled, n))[::-1]

    def steps(self) -> list[int]:
        """The steps of all checkpoints on the disk, intact or not, in order."""
        return steps_in(self.folder)

    def intact(self, steps: Iterable[int]) -> Iterator[Checkpoint]:
        """The intact checkpoints of these steps, newest first; checksums are verified."""
        for step in sorted(steps, reverse=True):
            try:
                yield verify(self.folder_of(step), step)
            except (ValueError, OSError) as error:
                self.log(
                    f"The checkpoint of step {step} cannot be used: {error}. "
                    "Trying the one before it."
                )

    def marked_best(self) -> list[int]:
        """The steps of checkpoints that were the best when they were saved."""
        return [step for step in self.steps() if is_marked(self.folder_of(step), "best")]

    # Folders

    def folder_of(self, step: int) -> Path:
        """Folder of a step's checkpoint; if the step was saved again, the new one once complete."""
        return checkpoint_path(self.folder, step)

    def sweep(self) -> None:
        """Remove what a killed process left half written; only the writing process may do this."""
        storage.sweep(self.folder)
        for step in self.steps():
            self.finish_replacement(step)

        self.swept = True

    def move_into_place(self, folder: Path, step: int) -> None:
        """Move a complete checkpoint to its folder, which may exist already."""
        path = self.folder_of(step)
        target = path
        if path.exists():
            target = path.with_name(path.name + ".new")

        storage.move(folder, target)
        self.finish_replacement(step)

    def finish_replacement(self, step: int) -> None:
        """Replace an old checkpoint of the same step by the new one beside it."""
        path = self.folder_of(step)
        if path.suffix != ".new":
            return

        old = path.with_suffix("")
        if old.exists():
            storage.remove(old)

        storage.move(path, old)

    def remove_old(self, step: int) -> None:
        """Remove all but the last `keep`, the best, and the checkpoint of `step` itself."""
        past = [other for other in self.steps() if other <= step]
        scheduled = [other for other in past if not is_marked(self.folder_of(other), "passing")]
        best = [other for other in past if is_marked(self.folder_of(other), "best")]
        if self.keep is not None:
            scheduled = scheduled[-self.keep :]

        remaining = {step, *scheduled, *best[-1:]}
        for other in self.steps():
            if other not in remaining:
                storage.remove(self.folder_of(other))
