"""Size limits for chat templates: the size of a result is computed before the result is.

A width, a repetition or a replacement of a few characters can ask for gigabytes. So the operators,
string methods and filters that make a text longer are checked first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

MOST_BITS = 4096
"""Largest product or power of two whole numbers, in bits."""
MOST_REPEATED = 1_000_000
"""Largest repetition of a text or list in characters or items, and largest width."""
MOST_TEXT = 16_000_000
"""Largest text in characters, largest list in items."""
PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\d+|\*)?(?:\.(\d+|\*))?")
BRACES = re.compile(r"\{")
WIDTHS = {
    "center",
    "ljust",
    "rjust",
    "zfill",
    "expandtabs",
    "indent",
    "wordwrap",
    "batch",
    "slice",
    "tojson",
}
"""Methods and filters whose numbers are widths or counts."""


# Operators


def check_binary(operator: str, left: Any, right: Any) -> None:
    """Raise if the result of an operator would take long to compute, or much memory."""
    if operator == "%":
        if isinstance(left, str):
            check_percent(left, right)
    elif operator == "+":
        if hasattr(left, "__len__") and hasattr(right, "__len__"):
            check_text(len(left) + len(right))
    else:
        check_product(operator, left, right)


def check_product(operator: str, left: Any, right: Any) -> None:
    """Check `left * right` and `left ** right`, of numbers or of a sequence and a number."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if operator == "**":
            bits = left.bit_length() * right

        if bits > MOST_BITS:
            raise ValueError(f"a number in it has more than {MOST_BITS:,} bits")

    for items, times in ((left, right), (right, left)):
        if not isinstance(times, int) or not hasattr(items, "__len__"):
            continue

        if len(items) * times > MOST_REPEATED:
            raise ValueError(
                f"it repeats a text or list to more than {MOST_REPEATED:,} characters or items"
            )


# Formatting


def check_percent(template: str, values: Any) -> None:
    """Check `template % values`; a width of * is one of the values."""
    fields = PERCENT.findall(template)
    widths = []
    for width, precision in fields:
        widths += [width, precision]

    if "*" in widths:
        check_widths(as_list(values))

    check_widths(map(parse_width, widths))
    check_filled(template, len(fields), values)


def check_braces(template: str, values: Any) -> None:
    """Check `template.format(*values)`; a width may be a field itself, as in {:{}}."""
    specifications = "".join(re.findall(r":[^{}]*", template))
    check_widths(map(parse_width, re.findall(r"\d+", specifications)))
    if re.search(r":[^{}]*\{", template):
        check_widths(as_list(values))

    check_filled(template, len(BRACES.findall(template)), values)


def check_filled(template: str, fields: int, values: Any) -> None:
    """Check the size of a template whose every field has the longest value."""
    longest = 0
    for value in as_list(values):
        if hasattr(value, "__len__"):
            longest = max(longest, len(value))

    check_text(len(template) + fields * longest)


def as_list(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return list(values.values())
    if isinstance(values, tuple | list):
        return list(values)

    return [values]


def parse_width(digits: str) -> int:
    """Return a width, 0 for none or *; one of very many digits is simply too large."""
    if not digits.isdigit():
        return 0
    if len(digits) < 16:
        return int(digits)

    return MOST_TEXT


# Sizes


def check_widths(widths: Iterable[Any]) -> None:
    total = 0
    for width in widths:
        if not isinstance(width, int):
            continue

        total += abs(width)
        if abs(width) > MOST_REPEATED or total > MOST_TEXT:
            raise ValueError(f"it asks for a width or count of more than {MOST_REPEATED:,}")


def check_text(size: int) -> None:
    if size > MOST_TEXT:
        raise ValueError(f"a text or list in it has more than {MOST_TEXT:,} characters or items")


# Methods and filters


def check_call(name: str, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Check a string method or a filter of a value before it is called."""
    arguments = [*args, *named.values()]
    if name in WIDTHS:
        check_widths(arguments)
        if name in ("indent", "expandtabs") and isinstance(value, str):
            check_indented(value, arguments)
    elif isinstance(value, str):
        check_string_method(name, value, arguments)
    elif name == "join" and hasattr(value, "__len__"):  # the filter: items | join(separator)
        separator = ""
        if arguments:
            separator = str(arguments[0])

        check_joined(separator, value)


def check_string_method(name: str, text: str, arguments: list[Any]) -> None:
    if name == "replace" and len(arguments) >= 2:
        old = str(arguments[0])
        new = str(arguments[1])
        check_text(len(text) + text.count(old) * len(new))
    elif name == "join" and arguments and hasattr(arguments[0], "__len__"):
        check_joined(text, arguments[0])
    elif name == "format":
        check_braces(text, arguments)
    elif name == "format_map":
        values = arguments
        if arguments:
            values = as_list(arguments[0])

        check_braces(text, values)


def check_indented(text: str, arguments: list[Any]) -> None:
    """Check a text whose every line and tab becomes as wide as the largest argument."""
    width = 0
    for argument in arguments:
        if isinstance(argument, str):
            width = max(width, len(argument))
        elif argument:
            width = max(width, int(argument))

    if not any(arguments):
        width = 8  # the default of expandtabs

    check_text(len(text) + (text.count("\n") + text.count("\t") + 1) * width)


def check_joined(separator: str, items: Iterable[Any]) -> None:
    size = 0
    for item in items:
        size += len(separator) + 1
        if isinstance(item, str):
            size += len(item) - 1

    check_text(size)


def bounded_join(parts: Iterable[Any]) -> str:
    """Return "".join(parts), or raise as soon as the text is too long."""
    texts = []
    size = 0
    for part in parts:
        text = str(part)
        size += len(text)
        check_text(size)
        texts.append(text)

    return "".join(texts)


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter of jinja that checks its arguments first."""
    first = 0
    if hasattr(function, "jinja_pass_arg"):  # a context or environment precedes the value
        first = 1

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        value = args[first]
        rest = args[first + 1 :]
        if name == "format":
            check_percent(str(value), rest or named)
        else:
            check_call(name, value, rest, named)

        return function(*args, **named)

    return checked
