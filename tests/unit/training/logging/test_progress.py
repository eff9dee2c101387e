"""A person sees what matters, on a terminal and in a log; nothing that is said is lost, and nothing
stops training.
"""

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
    """All that was ever drawn, without colours."""
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


def test_a_line_tells_all_within_120_columns_and_is_not_wrapped() -> None:
    console = log(width=40)
    with Progress(1_000_000, start=999_989, console=console) as progress:
        progress.step(row(999_990, tokens_per_second=12_345_678.0, memory=130 * 2**30))
    (line,) = lines(console)
    assert len(line) <= 120
    assert line.startswith(
        "step  999990/1000000  loss 3.2000  tokens/s 12,345,678  utilisation 41%  memory 130.0 GiB  elapsed 0:00:0"
    )
    assert line.endswith("left -")


def test_what_was_not_measured_is_a_dash() -> None:
    console = log()
    with Progress(1, console=console) as progress:
        progress.step({"step": 1, "loss": math.nan, "utilisation": None})
    assert "loss nan  tokens/s -  utilisation -  memory -" in lines(console)[0]


def test_the_loss_shown_is_a_mean_that_forgets_and_leaves_out_what_is_no_number() -> None:
    console = log()
    progress = Progress(1000, console=console, every=1)
    for step, loss in enumerate([4.0, 2.0, math.nan, math.inf, 3.0], start=1):
        progress.step(row(step, loss))
    assert [re.findall(r"loss (\S+)", line)[0] for line in lines(console)] == [
        "4.0000", "3.0000", "3.0000", "3.0000", "3.0000"
    ]  # fmt: skip
    for step in range(6, 306):
        progress.step(row(step, 1.0))
    assert progress.loss == pytest.approx(1.0, abs=1e-5)


def test_validation_and_the_best_of_it() -> None:
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


def test_a_resumed_run_knows_its_best() -> None:
    console = log()
    progress = Progress(300, start=200, console=console)
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
    with Progress(110, start=100, console=console, every=1) as progress:
        for step, now in ((101, 60.0), (102, 62.0), (103, 64.0)):  # noqa: B007
            progress.step(row(step))
    assert [line.split("elapsed ")[1] for line in lines(console)] == [
        "0:01:00  left -", "0:01:02  left 0:00:16", "0:01:04  left 0:00:14"
    ]  # fmt: skip


def test_samples_with_anything_in_them_are_plain_lines() -> None:
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


def test_letters_that_the_output_cannot_hold_do_not_stop_training() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="latin-1"), force_terminal=False)
    with Progress(1, console=console) as progress:
        progress.show_samples("kız", ["ağaç \ud800"])
    assert raw.getvalue().decode("latin-1").splitlines() == [r"k\u0131z", r"  | a\u011faç \ud800"]


def test_training_goes_on_when_nobody_reads() -> None:
    class Closed(io.StringIO):
        tried = 0

        def write(self, text: str) -> int:
            self.tried += 1
            raise BrokenPipeError

    gone = Closed()
    with Progress(5, console=Console(file=gone, force_terminal=False), every=1) as progress:
        for step in range(1, 6):
            progress.step(row(step))
            progress.log("hello")
    assert gone.tried == 1


def test_other_processes_are_silent() -> None:
    for console in (log(), terminal()):
        with Progress(10, console=console, active=False) as progress:
            progress.step(row(10))
            progress.validation({"step": 10, "validation_loss": 3.0})
            progress.log("hello")
            progress.show_samples("title", ["text"])
        assert lines(console) == []


def test_a_log_has_no_control_characters_even_where_colours_are_forced(
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


def test_a_terminal_shows_it_all_live_and_keeps_what_was_said() -> None:
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


def test_a_live_display_is_not_drawn_by_the_steps() -> None:
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
        assert (
            drawn - before < 100
        )  # the display's own refreshing, if it comes in between; never one a step


def test_the_terminal_is_given_back_after_an_error() -> None:
    console = terminal()
    with pytest.raises(KeyboardInterrupt), Progress(10, console=console):
        raise KeyboardInterrupt
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is there again


def test_every_is_checked() -> None:
    with pytest.raises(ValueError, match="every: expected 1 or more, not 0"):
        Progress(10, every=0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (3599.6, "1:00:00"), (90061, "1d 1:01:01"), (None, "-")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(5 * 2**20, "5 MiB"), (2**30, "1.0 GiB"), (None, "-")])
def test_size(value: float | None, text: str) -> None:
    assert size(value) == text
