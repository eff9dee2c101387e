"""Public functions and classes document their parameters, results and an example that runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pydoc
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin

import pytest

import qkv

PACKAGES = (
    "qkv",
    "qkv.nn",
    "qkv.nn.attention",
    "qkv.models",
    "qkv.training",
    "qkv.generation",
    "qkv.evaluation",
    "qkv.insight",
    "qkv.lab",
)
PUBLIC_API = ("attend", "generate", "load", "look", "save", "serve", "train")


def public_objects() -> Iterator[Any]:
    """Each public function and class once; constants and type aliases are exempt."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            documented = inspect.isfunction(value) or inspect.isclass(value)
            if documented and get_origin(value) is None and id(value) not in seen:
                seen.add(id(value))
                yield pytest.param(value, id=f"{package}.{name}")


def public_names() -> list[Any]:
    """The objects, or one failing parameter if a name cannot be imported."""
    try:
        return list(public_objects())
    except (ImportError, AttributeError) as error:
        return [pytest.param(error, id="import")]


PUBLIC = public_names()


def original(function: Any) -> Any:
    """The function below the decorators of the shape checks."""
    return inspect.unwrap(function)


def parameters_of(value: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a function, or of a class's own __init__ or fields."""
    if inspect.isclass(value):
        if issubclass(value, Exception) or not has_own_signature(value):
            return {}

        if not is_named_tuple(value):
            value = value.__init__

    parameters = dict(inspect.signature(original(value)).parameters)
    parameters.pop("self", None)
    return parameters


def has_own_signature(value: type) -> bool:
    """Whether instances of a class are made with parameters; not of protocols and plain classes."""
    return is_dataclass(value) or is_named_tuple(value) or "__init__" in vars(value)


def is_named_tuple(value: type) -> bool:
    return issubclass(value, tuple) and hasattr(value, "_fields")


def returns_something(value: Any) -> bool:
    """Whether a function has a return annotation other than None."""
    if not inspect.isfunction(value):
        return False

    annotation = inspect.signature(original(value)).return_annotation
    return annotation not in (None, "None", inspect.Signature.empty, "NoReturn")


def documents_fields(value: Any) -> bool:
    """Whether each field of a dataclass or named tuple has a docstring or a line in the class's."""
    if not inspect.isclass(value):
        return False

    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
    else:
        names = list(getattr(value, "_fields", ()))

    if not names:
        return False

    text = inspect.getdoc(value) or ""
    documented = fields_with_docstring(value)

    return all(f"{name}:" in text or name in documented for name in names)


def fields_with_docstring(value: type) -> set[str]:
    """The fields that a string follows, in the class and the classes it inherits from."""
    documented: set[str] = set()
    for part in value.__mro__:
        if not part.__module__.startswith("qkv"):
            continue

        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(definition, ast.ClassDef)
        for field, following in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
                documented.add(ast.unparse(field.target))

    return documented


def docstring_of(value: Any) -> str:
    """The docstring of a function or class, with that of a class's __init__."""
    if isinstance(value, Exception):
        pytest.fail(f"a public name cannot be imported: {value}")

    text = inspect.getdoc(value) or ""
    own_init = vars(value).get("__init__") if inspect.isclass(value) else None
    if own_init is not None and own_init.__doc__:
        text += "\n\n" + inspect.cleandoc(own_init.__doc__)

    return text


@pytest.mark.parametrize("value", PUBLIC)
def test_it_has_a_one_line_summary(value: Any) -> None:
    """The first paragraph is one line of at most 100 columns."""
    summary = docstring_of(value).strip().split("\n\n")[0]
    assert summary
    assert "\n" not in summary
    assert len(summary) <= 100


@pytest.mark.parametrize("value", PUBLIC)
def test_its_parameters_are_documented(value: Any) -> None:
    """There is an Args section that names every parameter, or every field has a docstring."""
    text = docstring_of(value)
    parameters = parameters_of(value)
    if not parameters or documents_fields(value):
        return

    assert "Args:" in text
    section = text.partition("Args:")[2]
    missing = [name for name in parameters if f"{name}:" not in section]
    assert not missing


@pytest.mark.parametrize("value", PUBLIC)
def test_its_result_is_documented(value: Any) -> None:
    """A function that returns or yields something has a Returns or Yields section."""
    text = docstring_of(value)
    if returns_something(value):
        assert "Returns:" in text or "Yields:" in text


@pytest.mark.parametrize("value", PUBLIC)
def test_no_parameter_is_a_bag_of_keywords(value: Any) -> None:
    """No parameter is `**options: Any`: its signature lists every parameter."""
    docstring_of(value)
    for parameter in parameters_of(value).values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            assert parameter.annotation not in (Any, "Any", inspect.Parameter.empty)


@pytest.mark.parametrize("value", PUBLIC)
def test_its_example_runs(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_shape_checks: None
) -> None:
    """There is a doctest, and it passes in an empty folder."""
    text = docstring_of(value)
    assert ">>>" in text
    monkeypatch.chdir(tmp_path)
    module = sys.modules[value.__module__]
    test = doctest.DocTestParser().get_doctest(
        text, dict(vars(module)), f"{value.__module__}.{value.__qualname__}", None, 0
    )
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    results = runner.run(test, out=report.append)
    assert results.failed == 0, "".join(report)


def test_help_lists_the_public_functions() -> None:
    """dir(qkv), qkv.__all__ and help(qkv) show the seven functions, the latter with docstrings."""
    text = pydoc.render_doc(qkv, renderer=pydoc.plaintext)
    for name in PUBLIC_API:
        summary = (inspect.getdoc(getattr(qkv, name)) or "").splitlines()[0]
        assert name in dir(qkv)
        assert name in qkv.__all__
        assert f"\n    {name}(" in text
        assert summary in text


def test_importing_qkv_does_not_import_torch() -> None:
    """`import qkv` is cheap; torch is imported with the first public function."""
    code = "import sys, qkv; dir(qkv); print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == ["False", "False"], result.stderr
