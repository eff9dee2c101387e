"""Chat templates in Jinja: programs from someone else's file, in a sandbox, and with an end.

Every step of a loop and every call counts; the product or power of two numbers, and a text or list
times a number, have a largest size. A template that wants more is refused with a sentence.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

MOST_STEPS = 1_000_000
"""Steps of all loops and calls of one rendering; 256 messages that are compared in pairs need 65,536."""
MOST_BITS = 4096
"""Of a product or power of two whole numbers."""
MOST_REPEATED = 1_000_000
"""Characters or items of a text or list times a number."""


class Steps(threading.local):
    """Steps left to the rendering that this thread is busy with."""

    left = MOST_STEPS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"its loops and calls take more than {MOST_STEPS:,} steps")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend()
            yield item


steps = Steps()


def rendered(template: str, **values: Any) -> str:
    """The text that a template makes of its variables; a ValueError, if it fails in any way."""
    program = compiled(template)
    steps.left = MOST_STEPS
    try:
        text: str = program.render(**values)
    except Exception as error:  # a template is a program of someone else's, and may raise anything
        raise ValueError(f"chat_template: it does not take these messages ({in_a_line(error)})") from error
    return text


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """With the names that `transformers` gives templates, in a sandbox."""
    from jinja2 import nodes

    environment = sandbox()
    try:
        tree = environment.parse(template)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
            loop.iter.set_environment(environment)
        return environment.from_string(tree)
    except Exception as error:  # also one that is nested too deeply
        raise ValueError(f"chat_template: not a template of jinja ({in_a_line(error)})") from error


def sandbox() -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            steps.spend()
            return super().call(context, function, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_size(operator, left, right)
            return super().call_binop(context, operator, left, right)

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **rest: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **rest)

    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters |= {"tojson": to_json, "counted": steps.counted}
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def check_size(operator: str, left: Any, right: Any) -> None:
    """Refuse a product or power that would take long to compute, or much memory."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MOST_BITS:
            raise ValueError(f"a number in it has more than {MOST_BITS:,} bits")
    for items, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(items, "__len__") and len(items) * times > MOST_REPEATED:
            raise ValueError(f"it repeats a text or list to more than {MOST_REPEATED:,} characters or items")


def in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
