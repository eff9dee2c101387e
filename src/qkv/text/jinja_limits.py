"""How large a text becomes that a chat template makes: each size is computed before the text is.

A width, a repetition or a replacement of a few characters can ask for gigabytes. So the operators,
string methods and filters that make a text longer are checked first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

MOST_BITS = 4096
"""Of a product or power of two whole numbers."""
MOST_REPEATED = 1_000_000
"""Characters or items of a text or list times a number, and of a width."""
MOST_TEXT = 16_000_000
"""Characters of any text, items of any list."""
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


def check_binary(operator: str, left: Any, right: Any) -> None:
    """Refuse a result that would take long to compute, or much memory."""
    if operator == "%":
        if isinstance(left, str):
            check_percent(left, right)
    elif operator == "+":
        if hasattr(left, "__len__") and hasattr(right, "__len__"):
            check_text(len(left) + len(right))
    else:
        check_product(operator, left, right)


def check_product(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = (
            left.bit_length() * right
            if operator == "**"
            else left.bit_length() + right.bit_length()
        )
        if bits > MOST_BITS:
            raise ValueError(f"a number in it has more than {MOST_BITS:,} bits")

    for items, times in ((left, right), (right, left)):
        if (
            isinstance(times, int)
            and hasattr(items, "__len__")
            and len(items) * times > MOST_REPEATED
        ):
            raise ValueError(
                f"it repeats a text or list to more than {MOST_REPEATED:,} characters or items"
            )


def check_percent(form: str, values: Any) -> None:
    """`form % values`."""
    widths = [width for pair in PERCENT.findall(form) for width in pair if width]
    if "*" in widths:
        check_widths(flat(values))

    check_widths(number(width) for width in widths if width != "*")
    check_filled(form, len(PERCENT.findall(form)), values)


def check_braces(form: str, values: Any) -> None:
    """`form.format(*values)`; a width may be a field of its own, {:{}}."""
    check_widths(map(number, re.findall(r"\d+", "".join(re.findall(r":[^{}]*", form)))))
    if re.search(r":[^{}]*\{", form):
        check_widths(flat(values))

    check_filled(form, len(BRACES.findall(form)), values)


def check_filled(form: str, fields: int, values: Any) -> None:
    longest = max((len(each) for each in flat(values) if hasattr(each, "__len__")), default=0)
    check_text(len(form) + fields * longest)


def flat(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return list(values.values())

    return list(values) if isinstance(values, tuple | list) else [values]


def number(digits: str) -> int:
    return int(digits) if len(digits) < 16 else MOST_TEXT


def check_widths(widths: Iterable[Any]) -> None:
    found = [abs(width) for width in widths if isinstance(width, int)]
    if any(width > MOST_REPEATED for width in found) or sum(found) > MOST_TEXT:
        raise ValueError(f"it asks for a width or count of more than {MOST_REPEATED:,}")


def check_text(size: int) -> None:
    if size > MOST_TEXT:
        raise ValueError(f"a text or list in it has more than {MOST_TEXT:,} characters or items")


def check_call(name: str, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """A string method, or a filter, of a value."""
    given = [*args, *named.values()]
    if name in WIDTHS:
        check_widths(given)
        if name in ("indent", "expandtabs") and isinstance(value, str):
            each = max(
                (len(one) if isinstance(one, str) else int(one) for one in given if one), default=8
            )
            check_text(len(value) + (value.count("\n") + value.count("\t") + 1) * each)
    elif not isinstance(value, str):
        if name == "join" and hasattr(value, "__len__"):
            check_joined(str(given[0]) if given else "", value)
    elif name == "replace" and len(given) >= 2:
        old, new = str(given[0]), str(given[1])
        check_text(len(value) + value.count(old) * len(new))
    elif name == "join" and given and hasattr(given[0], "__len__"):
        check_joined(value, given[0])
    elif name in ("format", "format_map"):
        check_braces(value, [*flat(given[0])] if name == "format_map" and given else given)


def check_joined(separator: str, items: Iterable[Any]) -> None:
    check_text(sum(len(separator) + (len(each) if isinstance(each, str) else 1) for each in items))


def bounded_join(parts: Iterable[Any]) -> str:
    """ "".join, as long as the text is not too long."""
    found, size = [], 0
    for part in parts:
        text = str(part)
        size += len(text)
        check_text(size)
        found.append(text)

    return "".join(found)


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of jinja that is checked first; some have a context or environment before the value."""
    before = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        value, rest = args[before], args[before + 1 :]
        if name == "format":
            check_percent(str(value), rest or named)
        else:
            check_call(name, value, rest, named)

        return function(*args, **named)

    return checked
