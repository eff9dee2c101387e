"""From slide to code: every row of the lectures with its files, commands and experiments.

lectures.toml holds the rows, the lectures' names for things, where the package differs from a
slide, and where a slide slips. `python -m qkv.lab.lectures` writes docs/lectures.md from it; a test
fails if the page is out of date. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.text import Text

from qkv.tables import Table

State = Literal["works", "partial", "missing", "n/a"]
STATES: tuple[State, ...] = ("works", "partial", "missing", "n/a")
PAGE = Path(__file__).parents[3] / "docs" / "lectures.md"
INTRODUCTION = """# From slide to code

Five lectures on attention and Transformers, row by row: what a slide says (in other words), where
it is in the code, and the commands and experiments that show it. `qkv lectures WORD` finds rows in
the terminal. A place is the lecture and the line of its text; a row with * is a claim, which works
if an experiment measures it or a [remark](#remarks) checks it. Experiments give their verdict when
they run, for or against the claim. Paths are below `src/qkv/`; MODEL, TEXT and other words in
capitals stand for your own. [Glossary](glossary.md): the lectures' words and the field's.

This page is generated from `src/qkv/lab/lectures.toml` by `python -m qkv.lab.lectures`.
"""


@dataclass(frozen=True, kw_only=True)
class LectureRow:
    """One thing that a slide describes, shows, claims or asks for."""

    id: str
    """A letter for the lecture, and a number: A1 to E34."""
    place: str
    """The lecture and the lines of its text, such as 000 L9."""
    what: str
    slide: str = ""
    """The heading of the slide, if it has one."""
    claim: bool = False
    """Whether it can turn out to be wrong, so that it wants an experiment."""
    files: tuple[str, ...] = ()
    """Files below src/qkv, with an object after a colon: nn/attention/attend.py:attend"""
    commands: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    """Names of experiments of `qkv lab`."""
    state: State = "works"
    missing: str = ""
    """What is missing unless it works."""

    @property
    def lecture(self) -> str:
        """The number of the lecture, such as 000."""
        return self.place.partition(" ")[0]

    @property
    def name(self) -> str:
        """The id, with a star for a claim."""
        return f"{self.id}{'*' * self.claim}"

    @property
    def calls(self) -> tuple[str, ...]:
        """All command lines, those of experiments included."""
        return (*self.commands, *map("qkv lab {}".format, self.experiments))

    @property
    def text(self) -> str:
        """All that a search looks at."""
        parts = (self.id, self.place, self.slide, self.what, *self.files, *self.calls, self.missing)
        return " ".join(parts)


class Lectures(NamedTuple):
    """The content of lectures.toml."""

    titles: dict[str, str]
    rows: list[LectureRow]
    names: list[dict[str, Any]]
    """The lectures' letters and words, and what they are called here."""
    differences: list[dict[str, Any]]
    """Where the package differs from a slide, and how to get the slide's form."""
    slips: list[dict[str, Any]]
    """Where a slide is wrong or unclear, and what is true."""
    remarks: list[dict[str, Any]]
    """Short explanations that rows point to, some with code."""


@cache
def read_lectures() -> Lectures:
    """Read lectures.toml."""
    content = tomllib.loads(files("qkv.lab").joinpath("lectures.toml").read_text("utf-8"))
    rows = []
    for id, values in content["row"].items():
        for name in ("files", "commands", "experiments"):
            values[name] = tuple(values.get(name, ()))

        rows.append(LectureRow(id=id, **values))

    return Lectures(
        content["lecture"],
        rows,
        content["name"],
        content["difference"],
        content["slip"],
        content["remark"],
    )


def select_rows(
    word: str | None = None, lecture: str | None = None, claims: bool = False
) -> list[LectureRow]:
    """The rows that contain a word, of one lecture or of all.

    Args:
        word: A part of a row's text, place, file, command or experiment; None for any.
        lecture: The number of a lecture, such as "001"; None for all.
        claims: Only claims.

    Returns:
        The rows in the order of the lectures.

    Raises:
        ValueError: If no row fits; the message suggests a similar word.

    Example:
        >>> [row.id for row in select_rows("Additive", lecture="002")]
        ['C3', 'C4', 'C5', 'C6']
    """
    rows = []
    for row in read_lectures().rows:
        if lecture in (None, row.lecture) and (row.claim or not claims):
            rows.append(row)

    if word is None:
        return rows

    found = [row for row in rows if contains(row.text, word)]
    if not found:
        raise ValueError(f"word: no row contains {word!r}{hint_for(word, rows)}")

    return found


def contains(text: str, word: str) -> bool:
    """Whether a text has the word, in any case; a row's id such as A1 only as a whole."""
    if re.fullmatch(r"[A-Ea-e]\d+", word):
        return text.lower().startswith(f"{word.lower()} ")

    return word.lower() in text.lower()


def hint_for(word: str, rows: Iterable[LectureRow]) -> str:
    """A similar word of these rows, or what to do without one."""
    words: set[str] = set()
    for row in rows:
        words.update(re.findall(r"[a-z][\w-]{2,}", row.text.lower()))

    similar = difflib.get_close_matches(word.lower(), sorted(words), n=1)
    if similar:
        return f"; did you mean {similar[0]}?"

    return "; qkv lectures without a word lists all of them"


def count_states(rows: Iterable[LectureRow]) -> dict[State, int]:
    """How many rows have each state."""
    counts = Counter(row.state for row in rows)
    return {state: counts[state] for state in STATES}


def summary(rows: Sequence[LectureRow]) -> str:
    """The counts of states in one line."""
    parts = [f"{count} {state}" for state, count in count_states(rows).items() if count]
    claims = [row for row in rows if row.claim]
    text = f"{counted(len(rows), 'row')}: {', '.join(parts)}"
    if claims:
        work = count_states(claims)["works"]
        text += f"; {counted(len(claims), 'claim')} (*), of which {work} can be seen tested"

    return text


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 row, 2 rows."""
    return f"{number} {noun}{'s' * (number != 1)}"


# The terminal


def lecture_table(rows: Sequence[LectureRow]) -> Table:
    """A table of rows: what a slide says, where it is in the code, how to see it."""
    table = Table("row", "what", "code, and how to see it", show_lines=True)
    table.columns[0].no_wrap = True
    for row in rows:
        where = [file.replace(":", ": ") for file in row.files]
        what = row.what
        if row.state != "works":
            what += f" [{row.state}: {row.missing}]"

        table.add_row(
            f"{row.name}\n{first_lines(row.place)}",
            Text(what),
            Text("\n".join([*where, *row.calls])),
        )

    return table


def first_lines(place: str) -> str:
    """A place without the further lines of a list: 001 L24-25 of 001 L24-25,30,38."""
    return place.partition(",")[0]


# The page


def lectures_page() -> str:
    """The text of docs/lectures.md."""
    lectures = read_lectures()
    parts = [INTRODUCTION, *state_lines(lectures.rows)]
    for number, title in lectures.titles.items():
        rows = select_rows(lecture=number)
        parts.append(f"\n## {number}: {title}\n\n{summary(rows)}.\n")
        parts += markdown_table(("row", "place", "what", "code", "see it"), map(row_cells, rows))

    parts.append("\n## Names\n\nWhat the lectures call it, and what it is called here.\n")
    header: tuple[str, ...] = ("lectures", "place", "here", "code")
    parts += markdown_table(header, map(name_cells, lectures.names))

    parts.append(
        "\n## Differences\n\nClosed: both forms exist. Told: the default is another one.\n"
    )
    header = ("place", "the slide", "here", "the slide's form", "")
    parts += markdown_table(header, map(difference_cells, lectures.differences))

    parts.append("\n## Slips\n\nWhere a slide is wrong or can be misread.\n")
    header = ("place", "the slide", "what is true", "measured by")
    parts += markdown_table(header, map(slip_cells, lectures.slips))

    parts.append("\n## Remarks\n\nThe code of all remarks runs from top to bottom.")
    for remark in lectures.remarks:
        parts += remark_lines(remark)

    return "\n".join(parts) + "\n"


def state_lines(rows: Sequence[LectureRow]) -> list[str]:
    """A table of all states, for rows and for claims."""
    of_all = count_states(rows)
    of_claims = count_states(row for row in rows if row.claim)
    cells: list[tuple[str, ...]] = []
    for state in STATES:
        cells.append((state, str(of_all[state]), str(of_claims[state])))

    cells.append(("all", str(sum(of_all.values())), str(sum(of_claims.values()))))

    return markdown_table(("state", "rows", "of these claims"), cells)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; a bar inside a cell is escaped."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for cells in rows:
        escaped = [cell.replace("|", "\\|") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")

    return lines


def row_cells(row: LectureRow) -> tuple[str, ...]:
    """A row of the page."""
    place = row.place
    if row.slide:
        place += f", {row.slide}"

    what = row.what
    if row.state != "works":
        what += f" **{row.state}**: {row.missing}."

    code = "<br>".join(map(code_link, row.files))
    calls = "<br>".join(map("`{}`".format, row.calls))
    return row.name, place, what, code, calls


def code_link(file: str) -> str:
    """A link to a file, named by its object if one is given."""
    path, _, name = file.partition(":")
    label = f"{Path(path).name}: {name}" if name else path
    return f"[`{label}`](../src/qkv/{path})"


def name_cells(name: dict[str, Any]) -> tuple[str, ...]:
    return name["lecture"], name["place"], name["here"], code_link(name["where"])


def difference_cells(difference: dict[str, Any]) -> tuple[str, ...]:
    closed = "closed" if difference["closed"] else "told"
    return difference["place"], difference["slide"], difference["here"], difference["how"], closed


def slip_cells(slip: dict[str, Any]) -> tuple[str, ...]:
    experiments = ", ".join(map("`qkv lab {}`".format, slip["experiments"]))
    return slip["place"], slip["slide"], slip["true"], experiments


def remark_lines(remark: dict[str, Any]) -> list[str]:
    """A heading, the rows it belongs to, the text, and the code if there is any."""
    rows = ", ".join(remark["rows"])
    lines = [f"\n### {remark['title']} ({rows})\n", remark["text"]]
    if "code" in remark:
        lines += ["\n```python", remark["code"].strip(), "```"]

    return lines


def write_page(path: Path = PAGE) -> Path:
    """Write docs/lectures.md of the repository."""
    path.write_text(lectures_page(), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(write_page())
