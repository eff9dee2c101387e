"""Run-time checks of qkv's annotations in tests; an int is also a float, as for type checkers.

jaxtyping's import hook decorates every function with `jaxtyping.jaxtyped`, which compiles two
functions for each: at import, and again for an inner function whenever the outer one is called.
`lazily_checked` takes its place: it compiles at the first call that is checked, and once for all
closures of one inner function. Most functions are checked by beartype alone inside a context of
jaxtyping, in half the time; if that fails, jaxtyping says what is wrong. A function without a shape
in its annotations is left as it is: mypy has checked its types.

A call is not checked again if one with the same objects and equal shapes, numbers and strings has
passed in the same test, and only the first CALLS calls of a function in a test are checked: a loop
that decodes token by token repeats few calls many times.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import config, jaxtyped
from numpy import ndarray
from torch import Tensor
from torch.nn import Parameter

Function = Callable[..., Any]

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


class Running(threading.local):
    """What this thread does.

    `function` is the closure that the checked function of its code calls. `prepares` is True while
    checks are prepared: what is called meanwhile is not checked, for it could be the same function
    (the sandbox of the course replaces functions of Python).
    """

    function: Function
    prepares = False


running = Running()
checked_closures: dict[int, tuple[CodeType, Function]] = {}
"""By the identity of the code: equal code may have other annotations. The code is kept alive."""
known_shapes: dict[int, tuple[CodeType, bool]] = {}
"""What `has_shapes` found, by the identity of the code: inner functions are decorated often."""
CALLS = 256
MEMBERS = 8
"""A longer list counts as an object."""
counts: Counter[int] = Counter()
"""Calls in this test, by the identity of the code."""
passed: set[tuple[Any, ...]] = set()
"""The different calls that have passed in this test."""


def lazily_checked(*, typechecker: Any) -> Callable[[Any], Any]:
    """A decorator with the checks of `jaxtyped`, which prepares them at the first checked call."""

    def decorate(decorated: Any) -> Any:
        if isinstance(decorated, FunctionType) and has_shapes(decorated):
            return check_at_call(decorated, typechecker)
        if inspect.isclass(decorated) and dataclasses.is_dataclass(decorated):
            initialize = vars(decorated).get("__init__")
            plain = isinstance(initialize, FunctionType) and not hasattr(initialize, "__wrapped__")
            if plain and has_shapes(initialize):
                decorated.__init__ = check_at_call(initialize, typechecker)

        return decorated

    return decorate


def has_shapes(function: FunctionType) -> bool:
    """Whether an annotation has an array with a shape, or the name of one."""
    code = function.__code__
    if id(code) not in known_shapes:
        names = re.findall(r"\w+", " ".join(map(str, function.__annotations__.values())))
        found = any(is_shape(function.__globals__.get(name)) for name in set(names))
        known_shapes[id(code)] = (code, found)

    return known_shapes[id(code)][1]


def is_shape(value: Any) -> bool:
    """Whether this is one of jaxtyping's types, such as Float, or a type that contains one."""
    if isinstance(value, type) and value.__module__.startswith("jaxtyping"):
        return True

    return any(map(is_shape, get_args(value)))


def check_at_call(function: FunctionType, typechecker: Any) -> Function:
    is_closure = "<locals>" in function.__qualname__
    number = id(function.__code__)
    by_kinds = not shapes_from_arguments(function)
    prepared: Function | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal prepared
        if config.jaxtyping_disable or running.prepares:
            return function(*args, **kwargs)

        if is_closure:
            in_code = checked_closure(function, typechecker)
            running.function = function
            return in_code(*args, **kwargs)

        if counts[number] >= CALLS:
            return function(*args, **kwargs)

        counts[number] += 1
        alike = (number, kind_of(args), *kwargs, kind_of(tuple(kwargs.values())))
        if alike in passed:
            return function(*args, **kwargs)

        if prepared is None:
            prepared = prepare(function, typechecker)

        result = prepared(*args, **kwargs)
        if by_kinds:
            passed.add(alike)

        return result

    return call


def kind_of(value: Any) -> Any:
    """What the checks see of an argument: of an object, which one it is."""
    kind = type(value)
    if kind in (Tensor, Parameter, ndarray):
        return kind, value.shape, value.dtype
    if isinstance(value, Tensor):
        return object()  # such as one whose sizes are symbols: unlike any other
    if value is None or kind in (int, bool, float, str):
        return kind, value
    if kind in (tuple, list) and len(value) <= MEMBERS:
        return kind, *map(kind_of, value)

    return kind, id(value)


def prepare(function: FunctionType, typechecker: Any) -> Function:
    """The function with its checks."""
    running.prepares = True
    try:
        if is_plain(function):
            return checked_in_context(function, typechecker)

        return jaxtyped(function, typechecker=typechecker)
    finally:
        running.prepares = False


def is_plain(function: FunctionType) -> bool:
    """Whether its call runs all of it, with a signature of its own and no shape from arguments."""
    return not (
        hasattr(function, "__wrapped__")
        or shapes_from_arguments(function)
        or inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )


def shapes_from_arguments(function: FunctionType) -> bool:
    """Whether a shape depends on values of arguments, such as {self.width}."""
    return any("{" in str(annotation) for annotation in function.__annotations__.values())


def checked_in_context(function: FunctionType, typechecker: Any) -> Function:
    resolved = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    resolved.__kwdefaults__ = function.__kwdefaults__
    resolved.__qualname__ = function.__qualname__
    resolved.__module__ = function.__module__
    resolved.__annotations__ = {
        name: resolved_annotation(annotation, function)
        for name, annotation in function.__annotations__.items()
    }
    by_beartype = typechecker(resolved)
    context = jaxtyped("context")

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            with context:
                return by_beartype(*args, **kwargs)
        except BeartypeCallHintViolation:
            jaxtyped(function, typechecker=typechecker)(*args, **kwargs)
            raise

    return call


def resolved_annotation(annotation: Any, function: FunctionType) -> Any:
    """The type that an annotation names; Any if it is imported for type checkers only."""

    def annotated() -> None:
        """A function with this annotation alone."""

    annotated.__annotations__ = {"value": annotation}
    try:
        hints = get_type_hints(annotated, function.__globals__, include_extras=True)
    except Exception:  # as jaxtyping does
        return Any

    return hints["value"]


def checked_closure(function: FunctionType, typechecker: Any) -> Function:
    """The checked function for all closures with this code; it calls `running.function`."""
    known = checked_closures.get(id(function.__code__))
    if known is not None:
        return known[1]

    of_thread = running

    def call_running(*args: Any, **kwargs: Any) -> Any:
        return of_thread.function(*args, **kwargs)

    # In the globals of the function, in which its annotations have a meaning.
    in_globals = FunctionType(
        call_running.__code__, function.__globals__, closure=call_running.__closure__
    )
    in_code = prepare(functools.update_wrapper(in_globals, function), typechecker)
    del in_globals.__wrapped__  # which keeps what this one closure holds
    checked_closures[id(function.__code__)] = (function.__code__, in_code)
    return in_code


def install_shape_checks() -> Any:
    """Check qkv from its next import on; return the finder of the import hook."""
    jaxtyping.jaxtyped = lazily_checked
    return jaxtyping.install_import_hook("qkv", "support.shape_checks.checked").hook


def begin_test() -> None:
    """Check all calls of a test anew."""
    counts.clear()
    passed.clear()


@contextmanager
def unchecked() -> Iterator[None]:
    """qkv without the checks, as its users run it.

    The checks take half of a small model's time: slow references and preparations go without.
    """
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
