"""Objects from a user's own Python file, named as "file.py:Name". Does not import torch."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

allowed: set[Path] = set()
"""Files that a flag has named, which may run."""
SPEC = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)", re.DOTALL)


def is_plugin(spec: str) -> bool:
    """Whether a name is of the form file.py:Name."""
    return SPEC.fullmatch(spec) is not None


def load_object(spec: str, what: str) -> Any:
    """The object that "file.py:Name" names.

    A file is run once in a process, however many of its objects are loaded.

    Args:
        spec: Path of a Python file, a colon, and a name that the file defines.
        what: The option that the object is for; error messages begin with it.

    Returns:
        The object.

    Raises:
        ValueError: There is no such file or name, or running the file fails; the message has the
            line.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "mine.py"
        >>> _ = file.write_text("def double(x): return 2 * x")
        >>> load_object(f"{file}:double", "function")(21)
        42
    """
    match = SPEC.fullmatch(spec)
    if match is None:
        raise ValueError(f"{what}: expected FILE.py:NAME, as in mine.py:MyClass, not {spec!r}")

    path = Path(match["file"]).expanduser()
    if not path.is_file():
        raise ValueError(f"{what}: there is no file {path}")

    try:
        module = load_module(path.resolve())
    except Exception as error:
        place, line = place_of(error, path)
        raise ValueError(
            f"{what}: {place}, line {line}: {type(error).__name__}: {error}"
        ) from error

    if not hasattr(module, match["name"]):
        defined = [name for name, value in vars(module).items() if is_own(value, module)]
        raise ValueError(
            f"{what}: {path} defines no {match['name']}; it has {', '.join(defined) or 'nothing'}"
        )

    return getattr(module, match["name"])


def find_plugin(name: str, known: Mapping[str, Any], what: str) -> Any:
    """The object of a name that was registered, or of "file.py:Name"."""
    if name in known:
        return known[name]

    return load_object(name, what)


def absolute_plugin(name: str | None) -> str | None:
    """A file's absolute path in "file.py:Name", so that it is found from any folder."""
    if name is None or not is_plugin(name):
        return name

    return os.path.abspath(os.path.expanduser(name))


def listed_files() -> list[Path]:
    """The files that the user trusts, from the environment variable QKV_PLUGINS."""
    names = os.environ.get("QKV_PLUGINS", "").split(os.pathsep)
    return [Path(name).expanduser().resolve() for name in names if name]


def file_and_name(spec: str) -> tuple[Path, str]:
    """The absolute path of the file in "file.py:Name", and the name."""
    path, _, name = spec.rpartition(":")
    return Path(path).expanduser().resolve(), name


def allow_file(spec: str, what: str) -> str:
    """Run the file of "file.py:Name", and return the same with the file's absolute path."""
    load_object(spec, what)
    file, name = file_and_name(spec)
    allowed.add(file)

    return f"{file}:{name}"


def load_allowed(spec: str, what: str) -> Any:
    """The object of "file.py:Name" that a saved config names, if the user has allowed the file.

    A file that is listed in QKV_PLUGINS is found by its name, wherever it was moved.
    """
    file, name = file_and_name(spec)
    moved = [other for other in listed_files() if other.name == file.name and not file.is_file()]
    if moved:
        return load_object(f"{moved[0]}:{name}", what)
    if file not in allowed:
        require_listed(spec, what)

    return load_object(spec, what)


def require_listed(spec: str, what: str) -> None:
    """Raise unless the file of "file.py:Name", which no flag has named, is listed."""
    file, name = file_and_name(spec)
    if file not in listed_files():
        raise ValueError(
            f"{what}: {name} of {file} is needed, and loading it runs that file; if you trust it, "
            f"set QKV_PLUGINS={file}"
        )


@cache
def load_module(path: Path) -> ModuleType:
    """The module of a file; it is in sys.modules, so that its classes can be pickled.

    It may import the files beside it by their names.
    """
    name = f"qkv_plugin_{sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module

    try:
        with importable(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise

    return module


beside: dict[str, Path] = {}
"""Modules that were imported from beside a file, by name, and their folder."""


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the files of a folder be imported by their names while the context is open.

    Of two folders with files of the same names, each is given its own.
    """
    for name, other in list(beside.items()):
        if other != folder and (folder / f"{name}.py").is_file():
            sys.modules.pop(name, None)
            del beside[name]

    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()

    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if getattr(sys.modules[name], "__file__", None) == str(folder / f"{name}.py"):
                beside[name] = folder


def is_own(value: Any, module: ModuleType) -> bool:
    """Whether a class or function was defined in this module, not imported into it."""
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def place_of(error: Exception, path: Path) -> tuple[Path, int]:
    """The file and the line that an error came from: the file itself, or one beside it."""
    folder = path.resolve().parent
    if isinstance(error, SyntaxError) and error.filename:
        return path.with_name(Path(error.filename).name), error.lineno or 1

    place = path
    line = 1
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if file.parent == folder:
            place = path.with_name(file.name)
            line = frame.lineno or line

    return place, line
