"""Render chat templates in a Jinja sandbox with limits on time and memory.

A template is a program from a file that somebody else wrote. Jinja's sandbox keeps it from Python's
internals, but not from running forever. So every loop iteration and every call costs a step, every
number, text and list has a largest size, and a template that exceeds one raises a ValueError.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from qkv.text.jinja_limits import bounded_filter, bounded_join, check_binary, check_call

MOST_STEPS = 1_000_000
"""Most loop iterations and calls of one rendering; comparing 256 messages in pairs takes 65,536."""
BOUNDED = ("center", "indent", "wordwrap", "batch", "slice", "tojson", "join", "replace", "format")
"""Filters that can make a text or list much longer."""


class Steps(threading.local):
    """Steps left to the current thread's rendering."""

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
    """Return the text of a template with these variables; any failure is a ValueError."""
    program = compiled(template)
    steps.left = MOST_STEPS

    try:
        text: str = program.render(**values)
    except Exception as error:  # a template can raise anything
        raise ValueError(
            f"chat_template: it does not accept these messages ({one_line(error)})"
        ) from error

    return text


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """Return a template compiled in the sandbox, with every loop and every ~ bounded.

    The sandbox intercepts calls and operators, but not these two. So the syntax tree is changed:
    `for x in items` becomes `for x in items|counted`, and `a ~ b` becomes `[a, b]|concatenated`.
    """
    from jinja2 import nodes

    environment = sandbox()

    try:
        tree = environment.parse(template)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
            loop.iter.set_environment(environment)

        for join in tree.find_all(nodes.Concat):
            items = nodes.List(join.nodes, lineno=join.lineno)
            join.nodes = [
                nodes.Filter(items, "concatenated", [], [], None, None, lineno=join.lineno)
            ]
            join.set_environment(environment)

        return environment.from_string(tree)
    except Exception as error:  # among others a RecursionError, if it is nested too deeply
        raise ValueError(f"chat_template: not a Jinja template ({one_line(error)})") from error


def sandbox() -> Any:
    """Return a Jinja environment with limits, and the functions that `transformers` provides."""
    environment = bounded_environment()(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.filters["counted"] = steps.counted
    environment.filters["concatenated"] = bounded_join
    for name in BOUNDED:
        environment.filters[name] = bounded_filter(name, environment.filters[name])

    del environment.globals["lipsum"]  # it makes any number of paragraphs
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now

    return environment


def bounded_environment() -> Any:
    """Return a subclass of Jinja's sandbox that checks calls and operators first."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+", "%"})
        concat = staticmethod(bounded_join)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            steps.spend()
            method = getattr(function, "__wrapped__", function)  # jinja wraps str.format
            owner = getattr(method, "__self__", None)
            if isinstance(owner, str):
                check_call(method.__name__, owner, args, kwargs)

            return super().call(context, function, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_binary(operator, left, right)
            return super().call_binop(context, operator, left, right)

    return Bounded


def raise_exception(message: str) -> NoReturn:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def to_json(value: Any, indent: int | None = None, **rest: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **rest)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
