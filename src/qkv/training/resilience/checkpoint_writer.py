"""Checkpoints: a run as it was after a step, there whole or not at all, every file with its
checksum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    describe,
    place_of,
    steps_in,
    verify,
)
from qkv.models.convert.hf_folder import read_json, write_json, write_tensors


class Checkpoints:
    """The checkpoints of one run: one process writes, any may read.

    The newest `keep` stay (None: all of them), and the best. A `passing` one, of a run that was
    told to stop, goes with the next: a run that was never stopped has none, and must not end
    otherwise. To save a step removes those of later steps: a run that went back and took another
    way from there must not find them when it is resumed.
    """

    def __init__(
        self, folder: Path | str, keep: int | None = 3, say: Callable[[str], object] = print
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep: expected 1 or more, not {keep}")

        self.folder, self.keep, self.say = Path(folder), keep, say
        self.swept = False

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        best: bool = False,
        passing: bool = False,
    ) -> Path:
        """Returns when all is on the disk. If that is full: DiskFull, and the checkpoints before
        are intact.
        """
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        text = json.dumps(state, indent=1)
        if not self.swept:
            self.sweep()

        size = len(text) + sum(tensor.nbytes for tensor in tensors.values())

        with storage.staging(self.folder, size, f"the checkpoint of step {step}") as made:
            (made / STATE).write_text(text, encoding="utf-8")
            write_tensors(made / TENSORS, tensors)
            described = {name: describe(made / name) for name in (STATE, TENSORS)}
            write_json(
                made / MANIFEST,
                {"step": step, "best": best, "passing": passing, "files": described},
            )
            for name in (STATE, TENSORS, MANIFEST):
                storage.flush(made / name)

            storage.flush(made)
            path = self.put(made, step)

        self.remove_old(step)

        return path

    def newest(self) -> Checkpoint | None:
        """The newest that is whole. One that is not is said aloud, and the one before is taken."""
        return next(self.whole(self.steps()), None)

    def best(self) -> Checkpoint | None:
        """The last one saved as the best, if it is whole."""
        return next(self.whole(self.marked_best()), None)

    def last(self, n: int, up_to: int | None = None) -> list[Checkpoint]:
        """The newest n that are whole, or as many as there are, in the order of their steps; not
        the passing one.
        """
        steps = [step for step in self.steps() if up_to is None or step <= up_to]
        return list(islice((found for found in self.whole(steps) if not found.passing), n))[::-1]

    def steps(self) -> list[int]:
        """Of all checkpoints that are here, whole or not, in order."""
        return steps_in(self.folder)

    def sweep(self) -> None:
        """Remove what a killed process had half done. For the process that writes; its first save
        does it too.
        """
        storage.sweep(self.folder)
        for step in self.steps():
            self.settle(step)

        self.swept = True

    def whole(self, steps: Iterable[int]) -> Iterator[Checkpoint]:
        """From the newest on; each is read to its end before it is handed out."""
        for step in sorted(steps, reverse=True):
            try:
                yield verify(self.place(step), step)
            except (ValueError, OSError) as error:
                self.say(
                    f"The checkpoint of step {step} cannot be used: {error}. Trying the one before it."
                )

    def marked_best(self) -> list[int]:
        return [step for step in self.steps() if self.marked(step, "best")]

    def marked(self, step: int, mark: str) -> bool:
        try:
            return read_json(self.place(step) / MANIFEST).get(mark) is True
        except (ValueError, OSError):
            return False

    # Where they are

    def place(self, step: int) -> Path:
        """Its folder; of a step that is saved again, the new one from the moment that it is whole."""
        return place_of(self.folder, step)

    def put(self, made: Path, step: int) -> Path:
        path = self.place(step)
        storage.move(made, path.with_name(path.name + ".new") if path.exists() else path)
        self.settle(step)
        return path

    def settle(self, step: int) -> None:
        path = self.place(step)
        if path.suffix == ".new":
            if (old := path.with_suffix("")).exists():
                storage.remove(old)

            storage.move(path, old)

    def remove_old(self, step: int) -> None:
        earlier = [
            other for other in self.steps() if other <= step and not self.marked(other, "passing")
        ]
        best = [other for other in self.marked_best() if other <= step]
        kept = {step, *(earlier if self.keep is None else earlier[-self.keep :]), *best[-1:]}

        for other in self.steps():
            if other not in kept:
                storage.remove(self.place(other))
