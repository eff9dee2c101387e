"""Progress of training on the console: two live lines on a terminal, plain lines without one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from qkv.tables import Table
from qkv.training.finetune.task_metrics import merit

HORIZON = 20
"""The loss shown is a running mean over about this many steps."""
REFRESH = 4
"""Redraws of a terminal per second."""
NONE = "-"


class BestValidation(NamedTuple):
    """The best validation so far."""

    merits: tuple[float, float]
    """The metric as a number where higher is better, then minus the loss."""
    value: float
    step: int


class Progress:
    """Shows the rows of metrics, as often as it can be read.

    Training goes on if the terminal is closed or the reader of a pipe ends.
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

        # Colours forced on for a log file do not make it a terminal.
        self.console = console or Console(force_terminal=sys.stdout.isatty())
        self.steps = steps
        self.current = start
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
        self.best: BestValidation | None = None

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

            self.print(f"{line}  best {self.best_text()}")

    def observe_validation(self, row: Mapping[str, Any]) -> None:
        loss = row["validation_loss"]
        self.validation_loss = loss
        self.other_metrics = {
            name: value for name, value in row.items() if name not in ("step", "validation_loss")
        }

        measured = {"loss": loss, **self.other_metrics}
        if self.metric not in measured:
            return

        score = merit(measured, self.metric)
        merits = (score, -loss)  # of equal scores the lower loss is better
        if math.isfinite(score) and (self.best is None or merits > self.best.merits):
            self.best = BestValidation(merits, measured[self.metric], row["step"])

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
            lines = Group(*separated([Text(self.writable(text)) for text in texts]))
            self.print(Panel(lines, title=Text(self.writable(title)), title_align="left"))

    # What is shown

    def line(self) -> str:
        """The last step as a plain line."""
        row = self.row
        return (
            f"{self.position(self.current)}  loss {number(self.loss)}  "
            f"tokens/s {count(row.get('tokens_per_second'))}  "
            f"utilisation {percent(row.get('utilisation'))}  memory {size(row.get('memory'))}  "
            f"elapsed {clock(time.monotonic() - self.started)}  left {clock(self.left())}"
        )

    def render(self) -> RenderableType:
        """The two live lines."""
        return Group(self.bar(), self.measurements())

    def bar(self) -> RenderableType:
        """Step, progress bar, and elapsed and remaining time."""
        step = Text.from_markup(f"[dim]step [/][bold]{self.current:,}[/][dim] of {self.steps:,}[/]")
        elapsed = clock(time.monotonic() - self.started)
        times = Text.from_markup(f"{elapsed}[dim] elapsed   [/]{clock(self.left())}[dim] left[/]")
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        grid.add_row(step, ProgressBar(total=max(self.steps, 1), completed=self.current), times)

        return grid

    def measurements(self) -> Text:
        """Losses, the first other metric, the best, and speed and memory."""
        row = self.row
        loss = None
        if self.losses:
            loss = self.loss

        validation = number(self.validation_loss)
        line = Text.from_markup(
            f"[dim]loss [/][bold]{number(loss)}[/][dim]   validation [/][bold]{validation}[/]"
        )
        for name, value in list(self.other_metrics.items())[:1]:
            line.append(f"   {name.replace('_', ' ')} ", "dim").append(number(value), "bold")

        line.append(f"   best {self.best_text()}", "dim")
        line.append(f"   {count(row.get('tokens_per_second'))}").append(" tokens/s", "dim")
        line.append(f"   {percent(row.get('utilisation'))}").append(" utilisation", "dim")
        line.append(f"   {size(row.get('memory'))}")

        return line

    def left(self) -> float | None:
        """Remaining seconds, from the pace after this process's first step."""
        if self.first_step is None or self.done < 2:
            return None

        pace = (time.monotonic() - self.first_step) / (self.done - 1)
        return pace * max(self.steps - self.current, 0)

    def position(self, step: int) -> str:
        return f"step {step:>{len(str(self.steps))}}/{self.steps}"

    def best_text(self) -> str:
        if self.best is None:
            return NONE

        return f"{number(self.best.value)} at step {self.best.step}"

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
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text

    characters: list[str] = []
    for character in text:
        if character.isprintable() or character in "\n\t":
            characters.append(character)
        else:
            characters.append(ascii(character)[1:-1])

    return "".join(characters)


def separated(texts: list[Text]) -> Iterator[Text]:
    """The texts, with a dot between them."""
    for index, text in enumerate(texts):
        if index:
            yield Text("·", style="dim")

        yield text


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}%"


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
