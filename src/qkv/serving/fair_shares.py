"""Fair shares of the engine's thread: every model with work gets the same time.

This is start-time fair queueing: each model has a virtual time, the seconds that it used; the one
that used least runs next. A model that becomes busy starts at the virtual time of the others, so
nobody saves up time while idle.
"""

from __future__ import annotations

from collections.abc import Collection


class FairShares:
    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        """Virtual time of each model, in seconds."""
        self.now = 0.0
        """Virtual time of the model that ran last, when it began."""
        self.busy: frozenset[str] = frozenset()

    def order(self, busy: Collection[str]) -> list[str]:
        """The models with work, the one that is to run first."""
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
        self.used[name] = self.used.get(name, 0.0) + seconds
