"""Progress of training on the console: two live lines on a terminal, plain lines without one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from qkv.tables import Column, Table
from qkv.training.finetune.task_metrics import merit

HORIZON = 20
"""The loss shown is a running mean over about this many steps."""
REFRESH = 4
"""Redraws of a terminal per second."""
NONE = "-"


class Progress:
    """Shows the rows of metrics, as often as it can be read.

    Training goes on if the terminal is closed or the reader of a pipe ends.
    """

    def __init__(
        self,
        steps: int,
        *,
        console: Console | None = None,
        every: int = 10,
        active: bool = True,
        metric: str = "loss",
    ) -> None:
        if every < 1:
            raise ValueError(f"every: expected 1 or more, not {every}")

        # Colours forced on for a log file do not make it a terminal.
        self.console = console or Console(force_terminal=sys.stdout.isatty())
        self.steps = steps
        self.current = 0
        self.every = every
        self.active = active
        self.metric = metric

        # What was measured last
        self.row: Mapping[str, Any] = {}
        self.loss = math.nan
        self.losses = 0
        self.validation_loss: float | None = None
        self.other_metrics: dict[str, float] = {}
        """Metrics of the last validation besides the loss."""
        self.best_merits = (-math.inf, -math.inf)
        """Of the best validation: the metric, where higher is better, then minus the loss."""
        self.best = NONE

        # Time and display
        self.started = time.monotonic()
        self.first_step: float | None = None
        """When this process finished its first step, which compiles and allocates."""
        self.done = 0
        self.live: Live | None = None

    def __enter__(self) -> Progress:
        self.started = time.monotonic()
        if self.active and self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(
                get_renderable=self.render, console=self.console, refresh_per_second=REFRESH
            )
            self.live.start()

        return self

    def __exit__(self, *error: object) -> None:
        live = self.live
        self.live = None
        if live is not None:
            try:
                live.stop()
            except OSError:
                self.active = False

    # What happens in training

    def restore_best(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Find the best validation among the rows of a resumed run."""
        for row in rows:
            if "validation_loss" in row and "event" not in row:
                self.observe_validation(row)

    def step(self, row: Mapping[str, Any]) -> None:
        """Note a step; fast enough for thousands per second, as the live display draws itself."""
        if not self.active:
            return

        self.row = row
        self.current = row["step"]
        self.done += 1
        if self.first_step is None:
            self.first_step = time.monotonic()

        loss = row["loss"]
        if math.isfinite(loss):
            self.losses = min(self.losses + 1, HORIZON)
            if self.losses == 1:
                self.loss = loss

            self.loss += (loss - self.loss) / self.losses

        due = self.current % self.every == 0 or self.current == self.steps or self.done == 1
        if self.live is None and due:
            self.print(self.line())

    def validation(self, row: Mapping[str, Any]) -> None:
        """Note and show a validation."""
        if not self.active:
            return

        self.observe_validation(row)
        if self.live is None:
            line = f"{self.position(row['step'])}  validation {number(row['validation_loss'])}"
            for name, value in self.other_metrics.items():
                line += f"  {name.replace('_', ' ')} {number(value)}"

            self.print(f"{line}  best {self.best}")

    def observe_validation(self, row: Mapping[str, Any]) -> None:
        loss = row["validation_loss"]
        self.validation_loss = loss
        self.other_metrics = {
            name: value for name, value in row.items() if name not in ("step", "validation_loss")
        }

        measured = {"loss": loss, **self.other_metrics}
        if self.metric not in measured:
            return

        merits = (merit(measured, self.metric), -loss)  # of equal scores the lower loss is better
        if math.isfinite(merits[0]) and merits > self.best_merits:
            self.best_merits = merits
            self.best = f"{number(measured[self.metric])} at step {row['step']}"

    def log(self, text: str) -> None:
        """Print a line that stays, above the live display."""
        if self.active:
            self.print(text)

    def show_samples(self, title: str, texts: list[str]) -> None:
        """Print generated texts."""
        if not self.active:
            return

        if self.live is None:
            self.print(title)
            for text in texts:
                self.print("  | " + visible(text).replace("\n", "\n  | "))
        else:
            dot = Text.from_markup("\n[dim]·[/]\n")
            lines = dot.join(Text(self.writable(text)) for text in texts)
            self.print(Panel(lines, title=Text(self.writable(title)), title_align="left"))

    # What is shown

    def line(self) -> str:
        """The last step as a plain line."""
        speed, utilisation, memory = self.costs()
        return (
            f"{self.position(self.current)}  loss {number(self.loss)}  "
            f"tokens/s {speed}  utilisation {utilisation}  memory {memory}  "
            f"elapsed {clock(time.monotonic() - self.started)}  left {clock(self.left())}"
        )

    def costs(self) -> tuple[str, str, str]:
        """Tokens per second, utilisation and memory of the last step."""
        row = self.row
        speed = number(row.get("tokens_per_second"), ",.0f")
        return speed, number(row.get("utilisation"), ".0%"), size(row.get("memory"))

    def render(self) -> RenderableType:
        """The two live lines."""
        return Group(self.bar(), self.measurements())

    def bar(self) -> RenderableType:
        """Step, progress bar, and elapsed and remaining time."""
        step = Text.from_markup(f"[dim]step [/][bold]{self.current:,}[/][dim] of {self.steps:,}[/]")
        elapsed = clock(time.monotonic() - self.started)
        times = Text.from_markup(f"{elapsed}[dim] elapsed   [/]{clock(self.left())}[dim] left[/]")
        columns = (Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True))
        grid = Table.grid(*columns, padding=(0, 2), expand=True)
        grid.add_row(step, ProgressBar(total=max(self.steps, 1), completed=self.current), times)

        return grid

    def measurements(self) -> Text:
        """Losses, the first other metric, the best, and speed and memory."""
        loss = self.loss if self.losses else None
        losses = {"loss": loss, "validation": self.validation_loss}
        measured = [*losses.items(), *list(self.other_metrics.items())[:1]]
        line = ""
        for name, value in measured:
            line += f"[dim]{name.replace('_', ' ')} [/][bold]{number(value)}[/]   "

        speed, utilisation, memory = self.costs()
        line += f"[dim]best {self.best}[/]   {speed}[dim] tokens/s[/]   "
        return Text.from_markup(f"{line}{utilisation}[dim] utilisation[/]   {memory}")

    def left(self) -> float | None:
        """Remaining seconds, from the pace after this process's first step."""
        if self.first_step is None or self.done < 2:
            return None

        pace = (time.monotonic() - self.first_step) / (self.done - 1)
        return pace * max(self.steps - self.current, 0)

    def position(self, step: int) -> str:
        return f"step {step:>{len(str(self.steps))}}/{self.steps}"

    # Where it is shown

    def print(self, line: str | Panel) -> None:
        try:
            if self.live is None:
                self.console.file.write(self.writable(str(line)) + "\n")
                self.console.file.flush()
            elif isinstance(line, str):
                self.console.print(Text(self.writable(line)))
            else:
                self.console.print(line)
        except OSError:  # the reader of a pipe has ended, or the terminal is closed
            self.active = False

    def writable(self, text: str) -> str:
        """Text with control characters, and characters that the output cannot encode, escaped."""
        encoding = self.console.encoding
        return visible(text).encode(encoding, "backslashreplace").decode(encoding)


# Formatting


def visible(text: str) -> str:
    """Text with control characters escaped, except newlines and tabs."""
    hidden = {character for character in text if not character.isprintable()} - {"\n", "\t"}
    return text.translate({ord(character): ascii(character)[1:-1] for character in hidden})


def number(value: float | None, form: str = ".4f") -> str:
    return NONE if value is None else format(value, form)


def size(value: float | None) -> str:
    """Bytes as MiB or GiB."""
    if value is None:
        return NONE
    if value < 2**30:
        return f"{value / 2**20:.0f} MiB"

    return f"{value / 2**30:.1f} GiB"


def clock(seconds: float | None) -> str:
    """A duration as hours, minutes and seconds, with days before them if needed."""
    if seconds is None:
        return NONE

    days, rest = divmod(round(seconds), 24 * 60 * 60)
    text = str(timedelta(seconds=rest))
    if days:
        text = f"{days}d {text}"

    return text
