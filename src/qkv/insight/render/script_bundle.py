"""The drawing code as one script. A page that is opened from the disk can import no file, and the
policy of a page that imports data: URLs would let any such URL run: so all modules stand in the
page's own script, named by its hash.

Each module becomes a function that returns its exports, after the modules that it imports.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

IMPORT = re.compile(r'^import (\{ [\w, ]+ \}) from "qkv/(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:class|const|function|async function) (\w+))", re.MULTILINE)
LEFT = re.compile(
    r"^\s*(?:import|export)\b.*|import\(.*|import\.meta.*|</script.*|<!--.*",
    re.MULTILINE | re.IGNORECASE,
)


def modules() -> list[str]:
    every = files("qkv.insight.render").joinpath("web").iterdir()
    return sorted(
        each.name for each in every if each.name.endswith(".js") and each.name != "standalone.js"
    )


def module(name: str) -> str:
    return files("qkv.insight.render").joinpath("web", name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def bundle(entry: str) -> str:
    """The module `entry` and all that it imports; the exports of `store.js` are the constant
    `qkv_store`.
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
    exports = ", ".join(EXPORT.findall(code))
    backbone = EXPORT.sub("", IMPORT.sub(r"const \1 = qkv_\2;", code))
    if left := LEFT.search(backbone):
        raise ValueError(f"{name}: {left[0].strip()!r} cannot be part of a page's script")

    return f"const qkv_{name.removesuffix('.js')} = (() => {{\n{backbone}return {{ {exports} }};\n}})();"
