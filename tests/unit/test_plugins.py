"""Objects of a user's own file: found, or refused with the file, the name or the line."""

from pathlib import Path

import pytest

from qkv.plugins import is_plugin, load_object


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text(text)
    return file


def test_objects_of_one_file_share_one_module(tmp_path: Path) -> None:
    file = write(tmp_path, "class A:\n    pass\n\ndef make():\n    return A()\n")
    made = load_object(f"{file}:make", "thing")()
    assert isinstance(made, load_object(f"{file}:A", "thing"))


def test_a_spec_needs_file_and_name() -> None:
    assert is_plugin("a/mine.py:Mine")
    assert not is_plugin("adamw")
    with pytest.raises(ValueError, match=r"thing: expected FILE\.py:NAME.*not 'mine'"):
        load_object("mine", "thing")


def test_errors_name_file_object_and_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"thing: there is no file .*none\.py"):
        load_object(f"{tmp_path}/none.py:A", "thing")

    file = write(tmp_path, "from math import sqrt\nclass A:\n    pass\n")
    with pytest.raises(ValueError, match=r"mine\.py defines no B; it has A$"):
        load_object(f"{file}:B", "thing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nimport no_such_package\n", "line 2: ModuleNotFoundError: .*no_such_package"),
        ("x = 1\n\ny = (\n", "line 3: SyntaxError"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2: ZeroDivisionError"),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=rf"thing: .*mine\.py, {message}"):
        load_object(f"{file}:f", "thing")
