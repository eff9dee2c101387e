"""Functions and classes of the library as pages show them: as they are, with short docstrings."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "qkv"
Definition = ast.FunctionDef | ast.ClassDef


def library_code(path: str, names: list[str]) -> str:
    """The source of functions, classes and methods (`Class.method`) of a module.

    Raises:
        ValueError: If the module does not define one of the names.
    """
    source = (PACKAGE / path).read_text(encoding="utf-8")
    tree = ast.parse(source)
    parts = []
    for name in names:
        code = excerpt(source, find_definition(tree, name, path))
        owner = name.rpartition(".")[0]
        parts.append(f"# {owner}\n{code}" if owner else code)

    return "\n\n\n".join(parts)


def find_definition(tree: ast.Module, name: str, path: str) -> Definition:
    """The function, class or method of a name."""
    node: ast.Module | Definition = tree
    for part in name.split("."):
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and child.name == part:
                node = child
                break
        else:
            raise ValueError(f"src/qkv/{path} does not define {name}")

    assert not isinstance(node, ast.Module)
    return node


def excerpt(source: str, node: Definition) -> str:
    """The lines of a definition, in which docstrings end after their first paragraph."""
    lines = source.splitlines()
    dropped: set[int] = set()
    for child in ast.walk(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            shorten_docstring(lines, child, dropped)

    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    kept = [lines[n - 1] for n in range(first, (node.end_lineno or first) + 1) if n not in dropped]
    return textwrap.dedent("\n".join(kept))


def shorten_docstring(lines: list[str], node: Definition, dropped: set[int]) -> None:
    """Mark the lines of a docstring after its first paragraph as dropped."""
    first = node.body[0]
    if ast.get_docstring(node) is None or first.lineno == first.end_lineno:
        return

    number = first.lineno
    while lines[number].strip() and number + 1 < (first.end_lineno or number):
        number += 1

    if not lines[number].strip():
        lines[number - 1] += '"""'
        dropped.update(range(number + 1, (first.end_lineno or number) + 1))
