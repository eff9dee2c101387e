"""Fair shares of the engine thread: every busy model gets the same time.

Start-time fair queueing: each model has a virtual time, the seconds that it used, and the one with
the smallest runs next. A model that becomes busy starts at the virtual time of the others, so that
idle time is not saved up.
"""

from __future__ import annotations

from collections.abc import Collection


class FairShares:
    """Virtual times of the models that share a thread."""

    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        """Virtual time of each model, in seconds."""
        self.now = 0.0
        """Virtual time at which the last model started to run."""
        self.busy: frozenset[str] = frozenset()

    def order(self, busy: Collection[str]) -> list[str]:
        """The busy models, the one to run next first."""
        if not busy:
            self.now = max(self.used.values(), default=0.0)

        for name in busy:
            if name not in self.busy:
                self.used[name] = max(self.used.get(name, 0.0), self.now)

        self.busy = frozenset(busy)
        ordered = sorted(busy, key=self.used.__getitem__)
        if ordered:
            self.now = max(self.now, self.used[ordered[0]])

        return ordered

    def spend(self, name: str, seconds: float) -> None:
        """Count the time that a model used."""
        self.used[name] = self.used.get(name, 0.0) + seconds
