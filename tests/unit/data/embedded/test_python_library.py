"""The source `python`: the running Python's standard library, with modules for validation."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from qkv.data import open_texts
from qkv.data.embedded import python_library


def test_there_is_enough_real_text() -> None:
    train, valid = dict(python_library.modules("train")), dict(python_library.modules("valid"))
    assert sum(map(len, train.values())) > 3_000_000
    assert sum(map(len, valid.values())) > 200_000
    assert train["ast.py"].startswith('"""')
    assert "def dumps(" in valid["json/__init__.py"]


def test_the_splits_share_no_module() -> None:
    train, valid = (list(python_library.modules(split)) for split in ("train", "valid"))
    assert not {name for name, _ in train} & {name for name, _ in valid}
    assert {
        name.partition("/")[0].removesuffix(".py") for name, _ in valid
    } == python_library.HELD_OUT
    assert not {text for _, text in train} & {text for _, text in valid}


def test_tests_tables_and_installed_packages_are_left_out() -> None:
    folders = {part for name, _ in python_library.modules() for part in Path(name).parts}
    assert not folders & {
        "test",
        "tests",
        "site-packages",
        "idlelib",
        "encodings",
        "lib2to3",
        "pydoc_data",
    }


def test_each_module_is_one_document_in_a_fixed_order() -> None:
    names = [name for name, _ in python_library.modules()]
    assert names == sorted(names)
    source = open_texts(["python"])
    assert source.name == "python:train"
    pieces = list(source)
    assert [piece.text for piece in pieces] == [text for _, text in python_library.modules()]
    assert all(piece.ends for piece in pieces)
    assert source.fingerprint() == open_texts(["python:train"]).fingerprint()
    assert source.fingerprint().values() != open_texts(["python:valid"]).fingerprint().values()


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text('"""Good."""\n')
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\n# na\xefve\n")
    (tmp_path / "bad.py").write_bytes(b"# na\xefve\n")
    (tmp_path / "unknown.py").write_bytes(b"# coding: no-such\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    assert dict(python_library.modules("train", tmp_path)) == {
        "good.py": '"""Good."""\n',
        "latin.py": "# coding: latin-1\n# naïve\n",
    }


def test_a_python_without_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"holds no source of the standard library \(a zipped or stripped Python\)"
    for folder in (tmp_path, tmp_path / "python.zip"):
        monkeypatch.setattr(sysconfig, "get_path", lambda _, folder=folder: str(folder))
        with pytest.raises(FileNotFoundError, match=message):
            list(open_texts(["python"]))
