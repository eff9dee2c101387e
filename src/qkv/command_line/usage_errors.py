"""Usage errors in one sentence: which flag, what is wrong with it, what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any


class UsageError(ValueError):
    """The command line is wrong: exit status 2."""


def suggestion(name: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?` for the closest name, or nothing."""
    # Flags have their dashes in common, which would make any two short ones close.
    without_dashes = {known.lstrip("-"): known for known in names}
    close = difflib.get_close_matches(name.lstrip("-"), list(without_dashes), n=1)
    if not close:
        return ""

    return f"; did you mean {without_dashes[close[0]]}?"


def usage_sentence(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    """The sentence for one of tyro's error events.

    The events are private to tyro: an unexpected one gets a general sentence.
    """
    describe = SENTENCES.get(type(event).__name__, unforeseen)

    try:
        return describe(event, arguments, flags)
    except (AttributeError, TypeError):
        return unforeseen(event, arguments, flags)


def unforeseen(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    prog = getattr(event, "prog", "qkv")
    return f"the command line cannot be read; {prog} --help shows the usage"


def unrecognized(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    return unknown(event.tokens, flags, event.prog)


def unknown(tokens: Sequence[str], flags: Sequence[str], prog: str) -> str:
    """The first argument that looks like a flag is misspelled; the others are its values."""
    flag = next((token.partition("=")[0] for token in tokens if token.startswith("-")), None)
    if flag is None:
        return f"unexpected argument {tokens[0]!r}; {prog} --help shows the usage"

    hint = suggestion(flag, flags) or f"; {prog} --help lists them"
    return f"{flag}: unknown flag{hint}"


def missing(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    """Required arguments that are missing, unless a misspelled flag is the cause."""
    if any(token.startswith("-") for token in event.unrecognized_tokens):
        return unknown(event.unrecognized_tokens, flags, event.prog)

    *names, last = [name_of(missing_argument.arg) for missing_argument in event.missing_arguments]
    listed = last
    if names:
        listed = f"{', '.join(names)} and {last}"

    return f"missing {listed}; {event.prog} --help shows the usage"


def bad_value(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    count = event.argument.lowered.nargs
    expected = f"{count} values"
    if count in (1, "?"):
        expected = "a value"

    return f"{name_of(event.argument)}: expected {expected} after it"


def invalid_choice(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    return f"{name_of(event.argument)}: {not_among(event.value, event.choices)}"


def not_among(value: str, choices: Sequence[str]) -> str:
    return f"expected one of {', '.join(choices)}, not {value!r}{suggestion(value, choices)}"


def wrong_value(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    """A value of the wrong type, or one that a config refused with a sentence of its own."""
    if event.argument is None:
        return str(event.message)

    name = name_of(event.argument)
    if re.match(r"expected |[a-z_]+: ", event.message):
        return f"{name}: {event.message}"

    sentence = f"{name}: expected {event.argument.lowered.metavar}"
    typed = " ".join(values_after(event.argument.lowered.name_or_flags, arguments))
    if not typed:
        return sentence

    return f"{sentence}, not {typed!r}"


def name_of(argument: Any) -> str:
    """The argument as the user types it: --length, or MODEL."""
    if argument.is_positional():
        return str(argument.lowered.metavar).strip("[]").split(" ")[0].upper()

    return str(max(argument.lowered.name_or_flags, key=len))


def values_after(flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The values typed for a flag, known before the whole command line is parsed."""
    values: list[str] = []
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name not in flags:
            continue

        if equals:
            values = [value]
        else:
            rest = arguments[number + 1 :]
            values = list(takewhile(lambda argument: not argument.startswith("--"), rest))

    return values


def value_after(flag: str, arguments: Sequence[str]) -> str | None:
    """The value typed for a flag that takes one, or None."""
    return next(iter(values_after([flag], arguments)), None)


SENTENCES = {
    "UnrecognizedArgs": unrecognized,
    "MissingArgs": missing,
    "BadValue": bad_value,
    "InvalidChoice": invalid_choice,
    "InstantiationFailure": wrong_value,
}
