"""Chat templates in Jinja: programs from someone else's file, in a sandbox, and with an end.

Every step of a loop and every call counts, and every number, text or list has a largest size. A
template that wants more is refused with a sentence.
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
"""Steps of all loops and calls of one rendering; 256 messages that are compared in pairs need
65,536.
"""
BOUNDED = ("center", "indent", "wordwrap", "batch", "slice", "tojson", "join", "replace", "format")
"""Filters that can make a text or list much longer."""


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
        raise ValueError(
            f"chat_template: it does not take these messages ({in_a_line(error)})"
        ) from error

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

        for join in tree.find_all(nodes.Concat):  # a ~ b
            items = nodes.List(join.nodes, lineno=join.lineno)
            join.nodes = [
                nodes.Filter(items, "concatenated", [], [], None, None, lineno=join.lineno)
            ]
            join.set_environment(environment)

        return environment.from_string(tree)
    except Exception as error:  # also one that is nested too deeply
        raise ValueError(f"chat_template: not a template of jinja ({in_a_line(error)})") from error


def sandbox() -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+", "%"})
        concat = staticmethod(bounded_join)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            steps.spend()
            method = getattr(function, "__wrapped__", function)  # jinja wraps str.format
            if isinstance(of := getattr(method, "__self__", None), str):
                check_call(method.__name__, of, args, kwargs)

            return super().call(context, function, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_binary(operator, left, right)
            return super().call_binop(context, operator, left, right)

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **rest: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **rest)

    environment = Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters |= {
        "tojson": to_json,
        "counted": steps.counted,
        "concatenated": bounded_join,
    }
    environment.filters |= {
        name: bounded_filter(name, environment.filters[name]) for name in BOUNDED
    }
    del environment.globals["lipsum"]  # as many paragraphs as one asks for
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    return environment


def in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
