"""Task files: every embedded one is valid, and errors name the file and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from qkv.evaluation.task_file import EMBEDDED, fill, read_task

WHOLE = """
name = "mine"
kind = "classification"
template = "{sentence} It is"
choices = { bad = "bad", good = "good" }
answer = "{label}"
"""


def write_task(tmp_path: Path, text: str) -> Path:
    (tmp_path / "mine.toml").write_text(text)
    return tmp_path / "mine.toml"


@pytest.mark.parametrize("path", sorted(EMBEDDED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_embedded_task_is_read_and_named_as_its_file(path: Path) -> None:
    task = read_task(path.stem)
    assert task.name == path.stem
    assert task.columns
    assert not task.data or Path(task.beside(task.data)).is_file()


def test_fields_and_their_defaults(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path, WHOLE))
    assert task.columns == ("sentence", "label")
    assert task.metrics == ("accuracy",)
    assert task.normalise == ("none",)
    assert task.beside("examples.tsv") == str(tmp_path / "examples.tsv")
    assert read_task("hellaswag").columns == ("choices", "context", "answer")
    assert read_task("hellaswag").normalise == ("none", "characters")


def test_templates_take_columns_and_brackets() -> None:
    assert fill("{a}: {{b}} {c.d}", {"a": " x ", "c.d": 3}) == "x: {b} 3"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', "", "name: this field is missing"),
        ('kind = "classification"', "", "kind: this field is missing"),
        (
            'answer = "{label}"',
            "",
            "answer: this field is missing; a task of kind 'classification' needs it",
        ),
        ("template", "templat", "templat: there is no such field; did you mean template?"),
        ('"classification"', '["choice"]', "kind: expected one of last word, choice, cloze,"),
        (
            'name = "mine"',
            'name = "mine"\nnormalise = []',
            "normalise: expected one or more of none, characters,",
        ),
        ("classification", "quiz", "kind: expected one of last word, choice, cloze,"),
        ('{ bad = "bad", good = "good" }', '["good"]', "choices: expected two or more"),
        (
            '{ bad = "bad", good = "good" }',
            "[1, 2]",
            "choices: expected text in quotation marks, not",
        ),
        ("{sentence} It is", "It is {", "template: 'It is {': "),
        (
            "{sentence} It is",
            "It is {sentence:>9}",
            "template: 'It is {sentence:>9}': expected the name of a column",
        ),
        (
            'name = "mine"',
            'name = "mine"\nnormalise = "words"',
            "normalise: expected none, characters, bytes, tokens",
        ),
        (
            'name = "mine"',
            'name = "mine"\nmetric = "BLEU"',
            "metric: expected accuracy, not 'BLEU'",
        ),
        ('name = "mine"', "name = mine", "not a TOML file"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_task(tmp_path, WHOLE.replace(old, new))
    with pytest.raises(ValueError) as error:
        read_task(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_unknown_tasks_and_missing_files() -> None:
    with pytest.raises(
        ValueError, match=r"^task: there is no task 'lambda'; did you mean lambada\?"
    ):
        read_task("lambda")
    with pytest.raises(FileNotFoundError, match=r"^task: no such file: nowhere\.toml$"):
        read_task("nowhere.toml")


def test_minimal_pairs_are_two(tmp_path: Path) -> None:
    path = write_task(
        tmp_path, 'name = "p"\nkind = "minimal pair"\nchoices = ["{a}", "{b}", "{c}"]'
    )
    with pytest.raises(
        ValueError, match=r"choices: expected two templates, the good sentence first$"
    ):
        read_task(path)


def test_a_task_needs_a_column(tmp_path: Path) -> None:
    path = write_task(tmp_path, 'name = "p"\nkind = "last word"\ntemplate = "always the same"')
    with pytest.raises(ValueError, match=r"template: expected a \{column\} of the data in it"):
        read_task(path)
