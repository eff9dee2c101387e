"""Tables in 80 columns: names stay whole, and no text is lost."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

from rich.console import Console

import qkv
from qkv.lab.preset_table import preset_table
from qkv.models.presets import PRESETS
from qkv.tables import Table

NAME = "a-model-with-a-very-long-name/of-somebody-else"
TEXT = (
    "a sentence that can be broken at each of its many spaces and is much wider than what is left "
    "for it"
)


def shown(table: Table, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    return text


def letters(text: str) -> str:
    return re.sub(r"[^\w./-]", "", text)


def test_text_is_wrapped_before_names() -> None:
    table = Table("name", "what it does", "parameters")
    table.add_row(NAME, TEXT, "1,234,567,890")
    text = shown(table)
    assert NAME in text
    assert "1,234,567,890" in text
    assert set(TEXT.split()) <= set(text.split())


def test_names_that_cannot_fit_are_wrapped() -> None:
    table = Table(show_header=False)  # rich makes its columns
    table.add_row("folder", "/" + "x" * 200)
    assert shown(table).count("x") == 200

    table = Table("model", "other model", "score")
    table.columns[0].no_wrap = True
    table.add_row(NAME, NAME, "0.1234")
    text = shown(table)
    assert "0.1234" in text, "only the longest are broken"
    assert letters(text).count("m") == letters(NAME + NAME + "modelothermodel").count("m")


def test_a_table_that_fits_is_unchanged() -> None:
    table = Table("a", "b")
    table.add_row("one", "two")
    shown(table)
    assert [column.width for column in table.columns] == [None, None]


def test_presets_have_whole_names() -> None:
    text = shown(preset_table())
    assert all(re.search(rf"^│ {re.escape(name)} +│", text, re.MULTILINE) for name in PRESETS)


def test_every_table_is_one_of_these() -> None:
    source = Path(qkv.__file__).parent
    users = []
    for path in source.rglob("*.py"):
        if "from rich.table import" in path.read_text(encoding="utf-8"):
            users.append(path.name)

    assert users == ["tables.py"]
