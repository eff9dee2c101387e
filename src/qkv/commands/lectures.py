"""qkv lectures: from a slide to the code, the command and the experiment."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Literal

import tyro
from rich.console import Console

from qkv.lab.lectures import lecture_table, read_lectures, select_rows, summary


def run(
    word: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[WORD]")] = None,
    lecture: Literal["000", "001", "002", "003", "004"] | None = None,
    claims: bool = False,
    json: bool = False,
) -> None:
    """List what the lectures say, with the code, the commands and the experiments that show it.

    Args:
        word: Only rows that contain this word: in what a slide says, its place and heading, a file,
            a command or an experiment; or the row of this id, such as A18.
        lecture: Only rows of this lecture.
        claims: Only claims, which experiments measure.
        json: Print a JSON list, one object per row.
    """
    rows = select_rows(word, lecture, claims)
    if json:
        print(json_format.dumps([asdict(row) for row in rows], ensure_ascii=False, indent=1))
        return

    console = Console(highlight=False)
    titles = read_lectures().titles
    for number, part in groupby(rows, attrgetter("lecture")):
        console.print(f"[bold]{number}: {titles[number]}")
        console.print(lecture_table(list(part)))
        console.print()

    console.print(f"{summary(rows)}. docs/lectures.md also has names, differences and slips.")
