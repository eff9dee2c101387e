"""The layout: documents name every module and no other; no import cycle; no name twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "qkv"
MODULES = sorted(
    path.relative_to(PACKAGE)
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "__main__")
)
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_paths(text: str) -> set[str]:
    """The paths of Python files in a text that begin with a folder of src/qkv."""
    paths = set()
    for match in re.finditer(r"(?<![\w./-])(?:src/qkv/|qkv/)?((?:\w+/)*\w+\.py)\b", text):
        path = match[1]
        if match[0] != path or path.partition("/")[0] in FOLDERS:
            paths.add(path)

    return paths


def dotted_names(text: str) -> set[str]:
    """The names such as qkv.nn.attention.attend in a text."""
    return set(re.findall(r"(?<![\w./-])qkv((?:\.[a-z_]\w*)+)", text))


def exists(dotted: str) -> bool:
    """Whether a dotted name begins with a package or module of qkv, or a public name."""
    parts = dotted.strip(".").split(".")
    first = PACKAGE / parts[0]
    if first.with_suffix(".py").is_file():
        return True

    if not first.is_dir():
        import qkv

        return parts[0] in dir(qkv)

    folder = first
    for part in parts[1:]:
        if (folder / f"{part}.py").is_file():
            return True

        if (folder / part).is_dir():
            folder = folder / part
            continue

        # A name that the package exports, or a class or function: not a path.
        return part in (folder / "__init__.py").read_text(encoding="utf-8")

    return True


def test_architecture_names_every_module() -> None:
    """The path or the stem of every module occurs in ARCHITECTURE.md as a word of its own."""
    text = read("ARCHITECTURE.md")
    words = set(re.findall(r"\w+", text))
    missing = [str(path) for path in MODULES if str(path) not in text and path.stem not in words]
    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "docs/glossary.md"])
def test_documents_name_no_missing_file(name: str) -> None:
    """Every path such as nn/attention/attend.py is a file of the package or of the repository."""
    missing = []
    for path in sorted(module_paths(read(name))):
        if not (PACKAGE / path).is_file() and not (ROOT / path).is_file():
            missing.append(path)

    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "docs/glossary.md"])
def test_documents_name_no_missing_module(name: str) -> None:
    """Every name such as qkv.nn.attention exists."""
    missing = sorted(dotted for dotted in dotted_names(read(name)) if not exists(dotted))
    assert missing == []


CATALOGUES = ("commands", "routes")
"""Folders with one file for each thing of a list."""


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = ("qkv", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def test_there_is_no_import_cycle() -> None:
    """Also none hidden in a function or behind TYPE_CHECKING."""
    trees = {}
    for path in PACKAGE.rglob("*.py"):
        trees[module_name(path)] = parsed(path)

    imports: dict[str, set[str]] = {}
    for name, tree in trees.items():
        imports[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in trees:
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    imports[name].add(target if target in trees else node.module)

        imports[name].discard(name)

    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises CycleError


def test_every_file_and_class_has_its_own_name() -> None:
    files = Counter(path.name for path in MODULES if path.parent.name not in CATALOGUES)
    classes: Counter[str] = Counter()
    for path in MODULES:
        tree = parsed(PACKAGE / path)
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))

    assert [name for name, count in (files + classes).items() if count > 1] == []


def test_folders_stay_small() -> None:
    """At most 15 modules in a folder, its __init__ included; catalogues apart."""
    sizes = Counter(path.parent for path in PACKAGE.rglob("*.py"))
    large = [folder.name for folder, count in sizes.items() if count > 15]
    assert [name for name in large if name not in CATALOGUES] == []
