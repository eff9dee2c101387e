"""What a person sees while a model trains: two live lines on a terminal, plain lines without one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from qkv.tables import Table
from qkv.training.finetune.task_metrics import merit

HORIZON = 20  # the loss shown is the mean of about so many steps
REFRESH = 4  # times a second
NONE = "-"


class Progress:
    """Told each row of metrics; shows what it can keep up with. Training goes on when nobody reads
    any more.
    """

    def __init__(
        self,
        steps: int,
        *,
        start: int = 0,
        console: Console | None = None,
        every: int = 10,
        active: bool = True,
        metric: str = "loss",
    ) -> None:
        if every < 1:
            raise ValueError(f"every: expected 1 or more, not {every}")

        # Colours that are forced on for a log file do not make it a terminal.
        self.console = console or Console(force_terminal=sys.stdout.isatty())
        self.steps, self.now, self.every, self.active = steps, start, every, active
        self.metric = metric
        self.row: Mapping[str, Any] = {}
        self.loss, self.losses = math.nan, 0
        self.validation_loss: float | None = None
        self.beside: dict[str, float] = {}
        """What validation measured besides the loss."""
        self.best: tuple[tuple[float, float], float, int] | None = None
        """How good, the metric's value, and the step."""
        self.begun = time.monotonic()
        self.first: float | None = None
        self.done = 0
        self.live: Live | None = None

    def __enter__(self) -> Progress:
        self.begun = time.monotonic()
        if self.active and self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(
                get_renderable=self.render, console=self.console, refresh_per_second=REFRESH
            )
            self.live.start()

        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        live, self.live = self.live, None
        if live is not None:
            try:
                live.stop()
            except OSError:
                self.active = False

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """What was measured before this process began, so that the best validation is known."""
        for row in rows:
            if "validation_loss" in row and "event" not in row:
                self.note(row)

    def step(self, row: Mapping[str, Any]) -> None:
        """A note only: it may be called thousands of times a second. A terminal is drawn by the
        live display.
        """
        if not self.active:
            return

        self.row, self.now = row, row["step"]
        self.done += 1
        if self.first is None:
            self.first = (
                time.monotonic()
            )  # the first step compiles and allocates: what is left is told without it

        if math.isfinite(loss := row["loss"]):
            self.losses = min(self.losses + 1, HORIZON)
            before = self.loss if self.losses > 1 else loss
            self.loss = before + (loss - before) / self.losses

        if self.live is None and (
            self.now % self.every == 0 or self.now == self.steps or self.done == 1
        ):
            self.print(self.line())

    def validation(self, row: Mapping[str, Any]) -> None:
        if not self.active:
            return

        self.note(row)
        if self.live is None:
            place, loss = self.place(row["step"]), number(row["validation_loss"])
            measured = "".join(
                f"  {name.replace('_', ' ')} {number(value)}" for name, value in self.beside.items()
            )
            self.print(f"{place}  validation {loss}{measured}  best {self.best_yet()}")

    def say(self, text: str) -> None:
        """Above the live lines, where it stays."""
        if self.active:
            self.print(text)

    def samples(self, title: str, texts: list[str]) -> None:
        if not self.active:
            return

        if self.live is None:
            self.print(title)
            for text in texts:
                self.print("\n".join(f"  | {part}" for part in visible(text).split("\n")))
        else:
            shown = [Text(self.writable(text)) for text in texts]
            self.print(
                Panel(Group(*between(shown)), title=Text(self.writable(title)), title_align="left")
            )

    # What is shown

    def line(self) -> str:
        row = self.row
        return (
            f"{self.place(self.now)}  loss {number(self.loss)}  tokens/s {count(row.get('tokens_per_second'))}  "
            f"utilisation {percent(row.get('utilisation'))}  memory {size(row.get('memory'))}  "
            f"elapsed {clock(time.monotonic() - self.begun)}  left {clock(self.left())}"
        )

    def render(self) -> RenderableType:
        where = Table.grid(padding=(0, 2), expand=True)
        where.add_column(no_wrap=True)
        where.add_column(ratio=1)
        where.add_column(no_wrap=True)
        where.add_row(
            Text.assemble(
                ("step ", "dim"), (f"{self.now:,}", "bold"), (f" of {self.steps:,}", "dim")
            ),
            ProgressBar(total=max(self.steps, 1), completed=self.now),
            Text.assemble(
                clock(time.monotonic() - self.begun),
                (" elapsed   ", "dim"),
                clock(self.left()),
                (" left", "dim"),
            ),
        )

        row = self.row
        what = Text.assemble(
            ("loss ", "dim"), (number(self.loss if self.losses else None), "bold"),
            ("   validation ", "dim"), (number(self.validation_loss), "bold"),
            *[part for name, value in list(self.beside.items())[:1]
              for part in ((f"   {name.replace('_', ' ')} ", "dim"), (number(value), "bold"))],
            (f"   best {self.best_yet()}", "dim"),
            ("   ", ""), count(row.get("tokens_per_second")), (" tokens/s", "dim"),
            ("   ", ""), percent(row.get("utilisation")), (" utilisation", "dim"),
            ("   ", ""), size(row.get("memory")),
        )  # fmt: skip

        return Group(where, what)

    def left(self) -> float | None:
        """Seconds, by the pace since the first step of this process, validation and checkpoints
        included.
        """
        if self.first is None or self.done < 2:
            return None

        return (time.monotonic() - self.first) / (self.done - 1) * max(self.steps - self.now, 0)

    def place(self, step: int) -> str:
        return f"step {step:>{len(str(self.steps))}}/{self.steps}"

    def best_yet(self) -> str:
        return NONE if self.best is None else f"{number(self.best[1])} at step {self.best[2]}"

    def note(self, row: Mapping[str, Any]) -> None:
        self.validation_loss = row["validation_loss"]
        self.beside = {
            name: value for name, value in row.items() if name not in ("step", "validation_loss")
        }
        measured = {"loss": row["validation_loss"], **self.beside}
        now = merit(measured, self.metric) if self.metric in measured else -math.inf
        merits = (now, -row["validation_loss"])  # of equal ones the lower loss is better
        if math.isfinite(now) and (self.best is None or merits > self.best[0]):
            self.best = (merits, measured[self.metric], row["step"])

    # Where it is shown

    def print(self, shown: str | Panel) -> None:
        try:
            if self.live is None:
                self.console.file.write(self.writable(str(shown)) + "\n")
                self.console.file.flush()
            else:
                self.console.print(Text(self.writable(shown)) if isinstance(shown, str) else shown)
        except OSError:  # the reader of a pipe has left, or the terminal is gone
            self.active = False

    def writable(self, text: str) -> str:
        """What a model says may hold anything: control characters, and letters that this output has
        no bytes for.
        """
        encoding = self.console.encoding
        return visible(text).encode(encoding, "backslashreplace").decode(encoding)


def visible(text: str) -> str:
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text

    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def between(texts: list[Text]) -> Iterable[Text]:
    for place, text in enumerate(texts):
        if place:
            yield Text("·", style="dim")

        yield text


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}%"


def size(value: float | None) -> str:
    if value is None:
        return NONE

    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def clock(seconds: float | None) -> str:
    if seconds is None:
        return NONE

    days, rest = divmod(round(seconds), 24 * 60 * 60)
    return (f"{days}d " if days else "") + str(timedelta(seconds=rest))
