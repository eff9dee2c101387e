"""What checks found, as lines for a terminal, a pipe or a notebook.

Of the failures the first is shown with its message and its example; the others get a line each.
Every colour comes with a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from qkv.learn.course import Exercise
from qkv.learn.expectations import FailingExample
from qkv.learn.run_checks import CheckResult, Report
from qkv.text.printable import in_one_line, printable, shortened

STYLES = {"holds": "green", "fails": "bold red", "open": "yellow", "prints": "dim"}
INDENT = 8
GAP = 4
"""Columns before the text, and between two tables."""
SCREEN = 24
"""Lines of the smallest terminal."""
MOST_PRINTED = 3
"""Lines of the student's output that are shown."""


def report_lines(
    exercise: Exercise, report: Report, width: int = 80, height: int | None = None
) -> list[Text]:
    """What the checks of an exercise found.

    Args:
        exercise: The exercise.
        report: The results.
        width: Columns.
        height: Lines that there is room for; None for all.

    Returns:
        The lines, each at most as wide as that.
    """
    failed = [result for result in report.results if result.state == "failed"]
    before = [heading(exercise, report, width)]
    before += parts_line("holds", report.results, "passed", width)
    if report.error:
        before += labelled("fails", report.error, width)

    if failed:
        first = failed[0]
        before += labelled("fails", f"{first.part}: {first.title}", width)
        before += wrapped(first.message, width, "bold")

    after = [one_line("fails", f"{other.part}: {other.title}", width) for other in failed[1:]]
    last = parts_line("open", report.results, "open", width)
    last += uses_lines(report.results, width)
    last += printed_lines(report.printed, width)
    if height is None:
        room = 1000
    else:
        most = max(2, height - len(before) - len(last) - 6)
        after = fewer(after, most)
        room = max(2, height - len(before) - len(last) - len(after))

    drawn: list[Text] = []
    if failed:
        drawn = draw_examples(failed[0].examples, width - INDENT, room)

    return [*before, *drawn, *after, *last]


def heading(exercise: Exercise, report: Report, width: int) -> Text:
    """The exercise, and how many checks hold."""
    count = f"{report.held} of {len(report.results)} hold"
    if report.error:
        count = "not checked"

    text = Text(shortened(f"{exercise.number}. {exercise.title}", width - len(count) - 3), "bold")
    style = "green" if report.state == "passed" else "red"
    return text.append(f" · {count}", "yellow" if report.state == "open" else style)


def parts_line(word: str, results: Sequence[CheckResult], state: str, width: int) -> list[Text]:
    """The parts of which all checks have a state, in one paragraph."""
    states: dict[str, set[str]] = {}
    for result in results:
        states.setdefault(result.part, set()).add(result.state)

    parts = [part for part, found in states.items() if found == {state}]
    if not parts:
        return []

    return labelled(word, ", ".join(parts), width, "")


def uses_lines(results: Sequence[CheckResult], width: int) -> list[Text]:
    """Holes of earlier files, on which open parts wait."""
    messages = []
    for result in results:
        waits = result.state == "open" and "which it uses" in result.message
        if waits and result.message not in messages:
            messages.append(result.message)

    lines = []
    for message in messages[:2]:
        lines += wrapped(message, width)

    return lines


def printed_lines(printed: str, width: int) -> list[Text]:
    """The beginning of what the student's code printed."""
    lines = printed.strip("\n").splitlines()
    shown = []
    for line in lines[:MOST_PRINTED]:
        shown.append(one_line("prints", line, width, "dim"))

    if len(lines) > MOST_PRINTED:
        shown.append(one_line("", f"and {len(lines) - MOST_PRINTED} more lines", width, "dim"))

    return shown


def fewer(lines: list[Text], most: int) -> list[Text]:
    """The first lines, and how many there are besides."""
    if len(lines) <= most:
        return lines

    kept = lines[: most - 1]
    return [*kept, Text(" " * INDENT + f"and {len(lines) - len(kept)} more checks fail", "red")]


# Lines


def label(word: str) -> Text:
    return Text(f" {word}".ljust(INDENT), STYLES.get(word, ""))


def one_line(word: str, text: str, width: int, style: str = "") -> Text:
    """A word and a text, cut to the width."""
    return label(word).append(shortened(text, width - INDENT), style)


def labelled(word: str, text: str, width: int, style: str = "bold") -> list[Text]:
    """A word, and a text that is wrapped beside it."""
    lines = wrapped(text, width, style)
    lines[0] = label(word).append(lines[0][INDENT:])
    return lines


def wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """A text as indented lines."""
    console = Console(width=width)
    lines = Text(in_one_line(text) or " ", style).wrap(console, width - INDENT)
    return [Text(" " * INDENT).append(line) for line in lines]


# Tables


def draw_examples(examples: Sequence[FailingExample], width: int, room: int) -> list[Text]:
    """Tables, side by side where they fit; if there is no room for all, the last ones."""
    for first in range(len(examples)):
        lines = side_by_side([draw_table(one) for one in examples[first:]], width)
        if len(lines) <= room or first == len(examples) - 1:
            return [Text(" " * INDENT).append(line) for line in lines[:room]]

    return []


def draw_table(example: FailingExample) -> list[Text]:
    """A table as lines of equal width: its title, its header, its rows."""
    rows = [*([example.header] if example.header else []), *example.rows]
    widths: list[int] = []
    for row in rows:
        for column, cell in enumerate(row):
            if column == len(widths):
                widths.append(0)
            widths[column] = max(widths[column], len(printable(cell)))

    lines = [Text(in_one_line(example.title), "cyan")]
    for number, row in enumerate(rows):
        is_header = bool(example.header) and number == 0
        line = Text()
        for column, cell in enumerate(row):
            style = "dim" if column == 0 or is_header else ""
            if ", not " in cell:
                style = "bold red"
            line.append(printable(cell).rjust(widths[column]), style)
            line.append("  ")

        lines.append(line)

    widest = max(len(line) for line in lines)
    for line in lines:
        line.pad_right(widest - len(line))

    return lines


def side_by_side(tables: list[list[Text]], width: int) -> list[Text]:
    """Tables beside one another, as many as fit, and the others below."""
    lines: list[Text] = []
    row: list[list[Text]] = []
    for table in tables:
        used = sum(len(one[0]) + GAP for one in row)
        if row and used + len(table[0]) > width:
            lines += joined(row)
            row = []

        row.append(table)

    lines += joined(row)
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")

    return lines


def joined(tables: list[list[Text]]) -> list[Text]:
    """One row of tables."""
    lines = []
    for number in range(max(map(len, tables))):
        line = Text()
        for table in tables:
            cells = table[number] if number < len(table) else Text(" " * len(table[0]))
            line.append(cells).append(" " * GAP)

        lines.append(line)

    return lines
