"""Progress on a terminal and in a log: what is shown, and that no output error stops training."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
from rich.console import Console

from qkv.training.logging.progress import Progress, clock, size

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def row(step: int, loss: float = 3.2, **more: Any) -> dict[str, Any]:
    measured = {"tokens_per_second": 33000.4, "utilisation": 0.414, "memory": 3 * 2**30}
    return {"step": step, "loss": loss, **measured, **more}


def log(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=width)


def terminal(width: int = 120) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=30, _environ={"TERM": "xterm"}
    )


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def shown(console: Console) -> str:
    """Everything that was drawn, without colours."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def test_a_log_has_the_first_step_every_tenth_and_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress(25) as progress:
        for step in range(1, 26):
            progress.step(row(step))
    steps = re.findall(r"^step +(\d+)/25 ", capsys.readouterr().out, re.MULTILINE)
    assert steps == ["1", "10", "20", "25"]


def test_a_line_has_at_most_120_columns_and_is_not_wrapped() -> None:
    console = log(width=40)
    with Progress(1_000_000, console=console) as progress:
        progress.step(row(999_990, tokens_per_second=12_345_678.0, memory=130 * 2**30))
    (line,) = lines(console)
    assert len(line) <= 120
    assert line.startswith("step  999990/1000000  loss 3.2000  tokens/s 12,345,678  ")
    assert "  utilisation 41%  memory 130.0 GiB  elapsed 0:00:0" in line
    assert line.endswith("left -")


def test_missing_measurements_are_a_dash() -> None:
    console = log()
    with Progress(1, console=console) as progress:
        progress.step({"step": 1, "loss": math.nan, "utilisation": None})
    assert "loss nan  tokens/s -  utilisation -  memory -" in lines(console)[0]


def test_the_loss_shown_is_a_running_mean_without_nan_and_infinity() -> None:
    console = log()
    progress = Progress(1000, console=console, every=1)
    for step, loss in enumerate([4.0, 2.0, math.nan, math.inf, 3.0], start=1):
        progress.step(row(step, loss))
    losses = [re.findall(r"loss (\S+)", line)[0] for line in lines(console)]
    assert losses == ["4.0000", "3.0000", "3.0000", "3.0000", "3.0000"]
    for step in range(6, 306):
        progress.step(row(step, 1.0))
    assert progress.loss == pytest.approx(1.0, abs=1e-5)


def test_validation_lines_show_the_best() -> None:
    console = log()
    progress = Progress(300, console=console)
    for step, loss in ((100, 3.5), (200, 3.25), (300, 3.75), (300, math.nan)):
        progress.validation({"step": step, "validation_loss": loss})
    assert lines(console) == [
        "step 100/300  validation 3.5000  best 3.5000 at step 100",
        "step 200/300  validation 3.2500  best 3.2500 at step 200",
        "step 300/300  validation 3.7500  best 3.2500 at step 200",
        "step 300/300  validation nan  best 3.2500 at step 200",
    ]


def test_a_resumed_run_restores_its_best() -> None:
    console = log()
    progress = Progress(300, console=console)
    finished = {"step": 200, "event": "finished", "validation_loss": 1.0}
    progress.restore_best(
        [
            row(100),
            {"step": 100, "validation_loss": 3.0},
            {"step": 200, "validation_loss": 3.5},
            finished,
        ]
    )
    assert lines(console) == []
    progress.validation({"step": 300, "validation_loss": 3.25})
    assert lines(console) == ["step 300/300  validation 3.2500  best 3.0000 at step 100"]


def test_time_left_follows_the_pace_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("qkv.training.logging.progress.time.monotonic", lambda: now)
    console = log()
    with Progress(110, console=console, every=1) as progress:
        for step, now in ((101, 60.0), (102, 62.0), (103, 64.0)):  # noqa: B007
            progress.step(row(step))
    times = [line.split("elapsed ")[1] for line in lines(console)]
    assert times == ["0:01:00  left -", "0:01:02  left 0:00:16", "0:01:04  left 0:00:14"]


def test_samples_with_markup_and_control_characters_are_plain_lines() -> None:
    console = log()
    with Progress(1, console=console) as progress:
        progress.show_samples(
            "after step 5", ["one [bold]two[/bold] :smile:\nthree", "a\x1b[31m\r\x00b\u202ec", ""]
        )
    assert lines(console) == [
        "after step 5",
        "  | one [bold]two[/bold] :smile:",
        "  | three",
        r"  | a\x1b[31m\r\x00b\u202ec",
        "  | ",
    ]


def test_characters_that_the_output_cannot_encode_are_escaped() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="latin-1"), force_terminal=False)
    with Progress(1, console=console) as progress:
        progress.show_samples("kız", ["ağaç \ud800"])
    assert raw.getvalue().decode("latin-1").splitlines() == [r"k\u0131z", r"  | a\u011faç \ud800"]


def test_a_closed_pipe_does_not_stop_training() -> None:
    class ClosedPipe(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            raise BrokenPipeError

    pipe = ClosedPipe()
    with Progress(5, console=Console(file=pipe, force_terminal=False), every=1) as progress:
        for step in range(1, 6):
            progress.step(row(step))
            progress.log("hello")

    assert pipe.writes == 1


def test_inactive_processes_print_nothing() -> None:
    for console in (log(), terminal()):
        with Progress(10, console=console, active=False) as progress:
            progress.step(row(10))
            progress.validation({"step": 10, "validation_loss": 3.0})
            progress.log("hello")
            progress.show_samples("title", ["text"])
        assert lines(console) == []


def test_a_log_has_no_control_characters_even_with_forced_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with Progress(10) as progress:
        progress.step(row(1))
        progress.validation({"step": 1, "validation_loss": 3.0})
        progress.log("hello")
        progress.show_samples("title", ["\x1b[2J"])
    out = capsys.readouterr().out
    assert "hello\n" in out
    assert not CONTROL.search(out)


def test_a_terminal_shows_everything_live_and_keeps_messages() -> None:
    console = terminal()
    with Progress(4000, console=console) as progress:
        progress.restore_best([{"step": 900, "validation_loss": 3.1}])
        for step in range(1, 1001):
            progress.step(row(step))
        progress.validation({"step": 1000, "validation_loss": 3.3})
        progress.log("Step 57 is skipped: [the loss is nan]")
        progress.show_samples("after step 1000", ["kediler [b]\x1b[2J", "two"])
    drawn = shown(console)
    assert drawn.count("Step 57 is skipped: [the loss is nan]\n") == 1
    assert "kediler [b]\\x1b[2J" in drawn
    end = drawn[drawn.rindex("step 1,000 of 4,000") :]
    for part in ("elapsed", "left", "loss 3.2000", "validation 3.3000", "best 3.1000 at step 900"):
        assert part in end
    for part in ("33,000 tokens/s", "41% utilisation", "3.0 GiB"):
        assert part in end
    assert not re.search(r"^step +\d+/4000", drawn, re.MULTILINE)


def test_steps_do_not_redraw_the_live_display() -> None:
    console = terminal()
    with Progress(100_000, console=console) as progress:
        drawn = 0

        def render() -> str:
            nonlocal drawn
            drawn += 1
            return ""

        assert progress.live is not None
        progress.live.auto_refresh = False
        progress.live._get_renderable = render
        before = drawn
        for step in range(1, 5001):
            progress.step(row(step))
        assert drawn - before < 100, "only the display's own refreshes"


def test_the_cursor_is_shown_again_after_an_error() -> None:
    console = terminal()
    with pytest.raises(KeyboardInterrupt), Progress(10, console=console):
        raise KeyboardInterrupt
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")


def test_every_is_checked() -> None:
    with pytest.raises(ValueError, match=r"every: .*1 or more"):
        Progress(10, every=0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (3599.6, "1:00:00"), (90061, "1d 1:01:01"), (None, "-")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(5 * 2**20, "5 MiB"), (2**30, "1.0 GiB"), (None, "-")])
def test_size(value: float | None, text: str) -> None:
    assert size(value) == text
