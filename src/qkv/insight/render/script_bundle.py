"""The JavaScript modules of a page bundled into one script.

A page opened from disk can import no file, and a content security policy that allows data: URLs
would let any such URL run. So all modules are part of the page's one script, which the policy names
by its hash. Each module becomes a function that returns its exports, after the modules it imports.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

IMPORT = re.compile(r'^import (\{ [\w, ]+ \}) from "qkv/(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:class|const|function|async function) (\w+))", re.MULTILINE)
UNSUPPORTED = re.compile(
    r"^\s*(?:import|export)\b.*|import\(.*|import\.meta.*|</script.*|<!--.*",
    re.MULTILINE | re.IGNORECASE,
)


def modules() -> list[str]:
    """The file names of all modules but the entry of a stand-alone page."""
    names = []
    for file in files("qkv.insight.render").joinpath("web").iterdir():
        if file.name.endswith(".js") and file.name != "standalone.js":
            names.append(file.name)

    return sorted(names)


def module(name: str) -> str:
    """The text of a file in the folder web."""
    return files("qkv.insight.render").joinpath("web", name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def bundle(entry: str) -> str:
    """The module `entry` and all that it imports.

    The exports of `store.js` are the constant `qkv_store`, and so on.
    """
    parts: dict[str, str] = {}

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"{name}: it imports itself, by way of {', '.join(importers)}")
        if name in parts:
            return

        code = module(name)
        for match in IMPORT.finditer(code):
            add(f"{match[2]}.js", (*importers, name))

        parts[name] = as_function(name, code)

    add(entry, ())

    return "\n".join(parts.values())


def as_function(name: str, code: str) -> str:
    """A module as a constant: a function, called once, that returns its exports."""
    exports = ", ".join(EXPORT.findall(code))
    body = EXPORT.sub("", IMPORT.sub(r"const \1 = qkv_\2;", code))
    if unsupported := UNSUPPORTED.search(body):
        raise ValueError(f"{name}: {unsupported[0].strip()!r} cannot be part of a page's script")

    constant = f"qkv_{name.removesuffix('.js')}"
    return f"const {constant} = (() => {{\n{body}return {{ {exports} }};\n}})();"
