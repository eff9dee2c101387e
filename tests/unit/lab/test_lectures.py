"""From slide to code: every file, object, command, flag and experiment that a row names exists."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from qkv.command_line.listing import COMMANDS
from qkv.commands import draw, finetune, train
from qkv.commands.completion import flags_by_name
from qkv.lab import experiments, lectures
from qkv.lab.lectures import LectureRow, read_lectures, select_rows
from qkv.models.configs import CONFIGS
from qkv.models.presets import PRESETS

PACKAGE = Path(lectures.__file__).parents[1]
TASKS = PACKAGE / "evaluation" / "tasks"
ROWS = read_lectures().rows


EXPERIMENTS = {*experiments.modules(), "cats", "mask"}

# The rows


def test_all_rows_and_claims_are_there() -> None:
    letters = Counter(row.id[0] for row in ROWS)
    assert letters == {"A": 73, "B": 58, "C": 38, "D": 34, "E": 34}
    assert sum(row.claim for row in ROWS) == 72
    for letter, lecture in zip("ABCDE", read_lectures().titles, strict=True):
        rows = [row for row in ROWS if row.id[0] == letter]
        assert [row.id for row in rows] == [f"{letter}{n + 1}" for n in range(len(rows))]
        assert {row.lecture for row in rows} == {lecture}


def test_a_place_names_lines_of_a_lecture() -> None:
    for row in ROWS:
        assert re.fullmatch(r"\d{3} L\d+(-\d+)?(,\d+(-\d+)?)*", row.place), row.id


def test_only_what_does_not_work_says_what_is_missing() -> None:
    for row in ROWS:
        assert row.state in lectures.STATES, row.id
        assert bool(row.missing) == (row.state != "works"), row.id


def test_what_works_can_be_seen_and_a_claim_is_measured() -> None:
    checked = set()
    for remark in read_lectures().remarks:
        checked.update(remark["rows"])

    for row in ROWS:
        if row.state == "works":
            documented = row.id in checked or "attend(" in row.what
            assert row.calls or documented, row.id
            assert not row.claim or row.experiments or row.id in checked, row.id


def test_the_rivals_of_table_2_exist_only_as_numbers() -> None:
    states = {row.id: row.state for row in ROWS}
    assert {states[f"A{number}"] for number in range(42, 47)} == {"missing"}
    assert {states[f"A{number}"] for number in range(47, 51)} == {"partial"}


def test_most_rows_and_claims_work() -> None:
    assert lectures.count_states(ROWS)["works"] >= 222
    claims = [row for row in ROWS if row.claim]
    assert lectures.count_states(claims)["works"] >= 66


# What they name exists


@cache
def defined_names(path: Path) -> set[str]:
    """The functions, classes, methods and constants that a file defines."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef):
                    names.add(f"{node.name}.{part.name}")

    return names


def named_files() -> list[tuple[str, str]]:
    found = []
    for row in ROWS:
        found += [(row.id, file) for file in row.files]

    for name in read_lectures().names:
        found.append((name["lecture"], name["where"]))

    return found


def test_every_file_and_object_exists() -> None:
    for where, file in named_files():
        path, _, name = file.partition(":")
        assert (PACKAGE / path).is_file(), (where, file)
        assert not name or name in defined_names(PACKAGE / path), (where, file)


def named_experiments() -> set[str]:
    names: set[str] = set()
    for row in ROWS:
        names.update(row.experiments)

    for slip in read_lectures().slips:
        names.update(slip["experiments"])

    return names


def test_every_experiment_exists() -> None:
    existing = EXPERIMENTS
    assert named_experiments() <= existing
    assert EXPERIMENTS - named_experiments() == set()


def command_lines() -> list[tuple[str, str]]:
    """All command lines of rows, differences and remarks."""
    found = []
    for row in ROWS:
        found += [(row.id, command) for command in row.commands]

    for difference in read_lectures().differences:
        for command in re.findall(r"`(qkv [^`]+)`", difference["how"]):
            found.append((difference["place"], command))

    for remark in read_lectures().remarks:
        for command in re.findall(r"`(qkv [^`]+)`", remark["text"]):
            found.append((remark["title"], command))

    return found


@cache
def flags_of_command(words: tuple[str, ...]) -> dict[str, Any]:
    """The flags of a command, by name; the empty name stands for positional arguments."""
    if words[0] == "train":
        flags = flags_by_name(train.flags_for(CONFIGS[words[1]]))
    elif words[0] == "finetune":
        flags = flags_by_name(finetune.Flags)
    else:
        module, _, function = COMMANDS[words[0]].target.partition(":")
        flags = flags_by_name(getattr(import_module(f"qkv.commands.{module}"), function))

    return flags


def fault_of(command: str) -> str | None:
    """What is wrong with a command line: the first word that does not exist."""
    program, name, *rest = shlex.split(command)
    if program != "qkv" or name not in COMMANDS:
        return name
    if name == "lab":
        return None if rest[0] in EXPERIMENTS else rest[0]
    if name == "draw" and not (rest[0] in draw.FIGURES or rest[0] in PRESETS):
        return rest[0]

    words = (name, *rest[:1]) if name == "train" else (name,)
    flags = flags_of_command(words)
    for flag, value in itertools.pairwise([*rest, ""]):
        if not flag.startswith("--"):
            continue
        if flag not in flags:
            return flag
        if value not in flags[flag].get("choices", [value]):
            return value
        if flag == "--preset" and value not in PRESETS:
            return value
        if flag == "--task" and name == "evaluate" and not (TASKS / f"{value}.toml").is_file():
            return value

    return None


def test_every_command_exists_with_its_flags() -> None:
    commands = command_lines()
    assert len(commands) > 200
    faults = []
    for where, command in commands:
        fault = fault_of(command)
        if fault is not None:
            faults.append((where, command, fault))

    assert faults == []


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("qkv trian gpt", "trian"),
        ("qkv train gpt --hight 3", "--hight"),
        ("qkv train rnn --attention dott", "dott"),
        ("qkv train gpt --preset gpt9", "gpt9"),
        ("qkv evaluate MODEL --task nothing", "nothing"),
        ("qkv draw gpt9 --out a.svg", "gpt9"),
        ("qkv lab nothing", "nothing"),
    ],
)
def test_a_wrong_command_is_found(command: str, fault: str) -> None:
    assert fault_of(command) == fault


# Search


def test_a_word_is_searched_in_every_column() -> None:
    def ids(word: str, **options: Any) -> list[str]:
        return [row.id for row in select_rows(word, **options)]

    assert ids("bytenet") == ["A42"]  # what a slide says
    assert ids("Linear probing") == ["B49", "B50"]  # the heading, and B48 says linear probe
    assert ids("norm.py", lecture="000") == ["A35"]  # a file
    assert ids("--recompute") == ["C37"]  # a command
    assert "C31" in ids("lab segments")  # an experiment
    assert ids("A1") == ids("a1") == ["A1"]  # an id is not the beginning of others


def test_rows_of_a_lecture_and_claims() -> None:
    assert len(select_rows(lecture="002")) == 38
    assert all(row.claim for row in select_rows(claims=True))
    assert len(select_rows(claims=True)) == 72


def test_no_row_gets_a_hint() -> None:
    with pytest.raises(ValueError, match="no row contains 'softmx'; did you mean softmax"):
        select_rows("softmx")
    with pytest.raises(ValueError, match="without a word lists all"):
        select_rows("zzzzzz")


def test_the_table_shows_row_file_command_and_what_is_missing() -> None:
    row = LectureRow(
        id="Z1",
        place="009 L1,3",
        what="A [thing].",
        claim=True,
        files=("nn/norm.py:LayerNorm",),
        commands=("qkv presets",),
        experiments=("cost",),
        state="partial",
        missing="half",
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(lectures.lecture_table([row]))

    shown = captured.get()
    for text in (
        "Z1*",
        "009 L1 ",
        "A [thing]. [partial: half]",
        "nn/norm.py: LayerNorm",
        "qkv presets",
        "qkv lab cost",
    ):
        assert text in shown
    assert lectures.summary([row]) == (
        "1 row: 1 partial; 1 claim (*), of which 0 can be seen tested"
    )


# The page


def test_the_page_is_up_to_date() -> None:
    """`python -m qkv.lab.lectures` updates it."""
    assert lectures.PAGE.read_text(encoding="utf-8") == lectures.lectures_page()


def test_the_page_has_every_row_and_counts_that_add_up() -> None:
    page = lectures.lectures_page()
    for row in ROWS:
        assert f"| {row.name} | {row.place}" in page

    states = lectures.count_states(ROWS)
    assert sum(states.values()) == 237
    assert f"| works | {states['works']} |" in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) >= 4 for line in tables)


def test_links_of_the_page_lead_to_files() -> None:
    links = re.findall(r"\]\((\.\./[^)]+)\)", lectures.lectures_page())
    assert len(links) > 200
    for link in set(links):
        assert (lectures.PAGE.parent / link).is_file(), link


def test_the_code_of_the_remarks_runs() -> None:
    """Each remark checks what it says by assertions."""
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    checked = 0
    for remark in read_lectures().remarks:
        if "code" in remark:
            assert "assert " in remark["code"]
            exec(compile(remark["code"], remark["title"], "exec"), names)
            checked += 1

    assert checked == 5


def test_rows_point_to_remarks_that_exist() -> None:
    known = {row.id for row in ROWS}
    explained: set[str] = set()
    for remark in read_lectures().remarks:
        explained.update(remark["rows"])

    assert explained <= known
    for row in ROWS:
        assert "remarks" not in row.what or row.id in explained, row.id
