"""The reference: public names of each package with signature and docstring, and all commands.

Everything is read from the source without importing it.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
PACKAGES = (
    "qkv",
    "qkv.nn",
    "qkv.nn.attention",
    "qkv.models",
    "qkv.text",
    "qkv.data",
    "qkv.training",
    "qkv.generation",
    "qkv.evaluation",
    "qkv.insight",
    "qkv.serving",
    "qkv.lab",
    "qkv.learn",
)
SECTION = re.compile(
    r"^(Args|Returns|Raises|Yields|Example|Examples):\n((?:(?:    .*)?\n?)*)", re.M
)
ITEM = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): (.*(?:\n +.*)*)", re.M)


def reference_pages() -> dict[str, str]:
    """Every page of the reference by its path on the site."""
    pages = {"reference/index.md": index_page(), "reference/commands.md": commands_page()}
    for package in PACKAGES:
        pages[f"reference/{package}.md"] = package_page(package)

    return pages


def index_page() -> str:
    """The packages with their first sentences."""
    lines = ["# Reference", "", "From the docstrings of the package.", ""]
    lines += [
        "| package | content |",
        "|---|---|",
        "| [commands](commands.md) | the command line |",
    ]
    for package in PACKAGES:
        summary = (ast.get_docstring(parsed(package)) or "").partition("\n")[0]
        lines.append(f"| [{package}]({package}.md) | {summary} |")

    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Every command with its summary and flags."""
    folder = SOURCE / "qkv"
    table = tomllib.loads((folder / "command_line" / "commands.toml").read_text(encoding="utf-8"))
    flags = json.loads((folder / "commands" / "completion.json").read_text(encoding="utf-8"))
    lines = ["# Commands", "", "`qkv COMMAND --help` explains every flag.", ""]
    for name, command in table.items():
        what, _, example = command["summary"].partition(": ")
        lines += [f"## qkv {name}", "", f"{what}.", ""]
        if example.startswith("qkv "):
            lines += ["```sh", example, "```", ""]

        for text, keys in flags_by_text(flags, name).items():
            shown = ", ".join(f"`qkv {key}`" for key in keys)
            lines += [f"{shown}: {text}", ""]

    return "\n".join(lines)


def flags_by_text(flags: dict[str, Any], command: str) -> dict[str, list[str]]:
    """The subcommands of a command, together where they have the same flags."""
    found: dict[str, list[str]] = {}
    for key, options in flags.items():
        if key.split()[0] == command:
            found.setdefault(flag_list(options), []).append(key)

    return found


def flag_list(options: dict[str, dict[str, object]]) -> str:
    """The flags of a command, with their choices."""
    texts = []
    for flag, option in options.items():
        if flag.startswith("--no-") or flag in ("", "--help"):
            continue

        choices = option.get("choices")
        text = f"{flag} {'|'.join(map(str, choices))}" if isinstance(choices, list) else flag
        texts.append(f"`{text}`")

    return ", ".join(texts) or "no flags"


def package_page(package: str) -> str:
    """The public names of a package."""
    tree = parsed(package)
    lines = [f"# {package}", "", docstring_text(ast.get_docstring(tree) or ""), ""]
    for name in public_names(tree):
        found = definition(package, name)
        if found is not None:
            module, node = found
            lines += describe(name, module, node)

    return "\n".join(lines) + "\n"


def module_file(module: str) -> Path:
    """The file of a module or package."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def parsed(module: str) -> ast.Module:
    return ast.parse(module_file(module).read_text(encoding="utf-8"))


def public_names(tree: ast.Module) -> list[str]:
    """The names in __all__."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))

    return []


def definition(module: str, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """The module that defines a public name, and its definition; None for constants."""
    tree = parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return module, node

        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and module_file(node.module).is_file():
                    return definition(node.module, alias.name)

    return None


def describe(name: str, module: str, node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """A section about a function or a class."""
    lines = [f"## {name}", "", "```python", signature(node), "```", "", f"In `{module}`.", ""]
    lines += [docstring_text(ast.get_docstring(node) or ""), ""]
    if isinstance(node, ast.ClassDef):
        lines += [*fields(node), ""]
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                text = ast.get_docstring(method)
                if text:
                    lines += [f"### {name}.{method.name}", "", "```python", signature(method)]
                    lines += ["```", "", docstring_text(text), ""]

    return lines


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """How a function or class is called, with the types."""
    function = node
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.FunctionDef) and child.name == "__init__":
                function = child

    if isinstance(function, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, function.bases))
        return f"class {node.name}({bases})" if bases else f"class {node.name}"

    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    if isinstance(node, ast.ClassDef):
        result = ""

    arguments = [text for text in split_arguments(ast.unparse(function.args)) if text != "self"]
    line = f"{node.name}({', '.join(arguments)}){result}"
    if len(line) <= 88:
        return line

    inner = "".join(f"    {argument},\n" for argument in arguments)
    return f"{node.name}(\n{inner}){result}"


def split_arguments(text: str) -> list[str]:
    """The arguments of an unparsed signature; commas inside brackets and strings stay."""
    parts = [""]
    depth = 0
    quote = ""
    for letter in text:
        if letter in "'\"":
            quote = "" if quote == letter else quote or letter
        elif not quote:
            depth += (letter in "([{") - (letter in ")]}")

        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter

    return [part.strip() for part in parts if part.strip()]


def fields(node: ast.ClassDef) -> Iterator[str]:
    """The fields of a dataclass with their meanings."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(after, ast.Expr):
            continue

        value = after.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            default = f" = {ast.unparse(item.value)}" if item.value else ""
            text = f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}{default}"
            yield f"- `{text}`: {escape(' '.join(value.value.split()))}"


def docstring_text(docstring: str) -> str:
    """A docstring as Markdown: arguments as a list, examples as code."""

    def section(found: re.Match[str]) -> str:
        body = textwrap.dedent(found[2]).strip("\n")
        if found[1].startswith("Example"):
            return f"**Example**\n\n```pycon\n{body}\n```\n"

        items = ITEM.sub(list_item, body)
        if items == body:
            items = escape(" ".join(body.split()))

        return f"**{found[1]}**\n\n{items}\n\n"

    first = SECTION.search(docstring)
    text = docstring if first is None else docstring[: first.start()]
    sections = "" if first is None else SECTION.sub(section, docstring[first.start() :])

    return f"{prose(text)}\n\n{sections}".strip()


def prose(text: str) -> str:
    """Paragraphs of a docstring; indented ones, such as tables of letters, are code."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.startswith("    "):
            paragraphs.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            paragraphs.append(escape(paragraph))

    return "\n\n".join(paragraphs)


def list_item(found: re.Match[str]) -> str:
    return f"- `{found[1]}`: {escape(' '.join(found[2].split()))}"


def escape(text: str) -> str:
    """Prose without the characters that Markdown would read as markup; code stays."""
    pieces = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(pieces), 2):
        pieces[index] = re.sub(r"([\\*_<\[\]$|])", r"\\\1", pieces[index])

    return "".join(pieces)
