"""Wrong usage in one sentence: which flag, what is wrong with it, what was perhaps meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any


class UsageError(ValueError):
    """The command line is wrong: exit status 2."""


def suggestion(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def usage_sentence(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    """What tyro found wrong, in our words. Its events are private: one that is not as expected is
    told in general.
    """
    kind = type(event).__name__
    say = SENTENCES.get(kind, unforeseen)

    try:
        return say(event, arguments, flags)
    except (AttributeError, TypeError):
        return unforeseen(event, arguments, flags)


def unforeseen(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    return (
        f"the command line cannot be read; {getattr(event, 'prog', 'qkv')} --help shows the usage"
    )


def unrecognized(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    return unknown(event.tokens, flags, event.prog)


def unknown(tokens: Sequence[str], flags: Sequence[str], prog: str) -> str:
    """The first token that looks like a flag is what was misspelled; what follows it was its value."""
    flag = next((token.partition("=")[0] for token in tokens if token.startswith("-")), None)
    if flag is None:
        return f"unexpected argument {tokens[0]!r}; {prog} --help shows the usage"

    return f"{flag}: unknown flag{suggestion(flag, flags) or f'; {prog} --help lists them'}"


def missing(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    if any(token.startswith("-") for token in event.unrecognized_tokens):
        return unknown(event.unrecognized_tokens, flags, event.prog)

    names = [name_of(each.arg) for each in event.missing_arguments]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"missing {listed}; {event.prog} --help shows the usage"


def bad_value(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    count = event.argument.lowered.nargs
    return f"{name_of(event.argument)}: expected {f'{count} values' if count not in (1, '?') else 'a value'} after it"


def invalid_choice(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    return f"{name_of(event.argument)}: {not_among(event.value, event.choices)}"


def not_among(value: str, choices: Sequence[str]) -> str:
    return f"expected one of {', '.join(choices)}, not {value!r}{suggestion(value, choices)}"


def not_made(event: Any, arguments: Sequence[str], flags: Sequence[str]) -> str:
    """A value of the wrong type; or a value that a config refused, with a sentence of its own."""
    if event.argument is None:
        return str(event.message)

    name = name_of(event.argument)
    if re.match(r"expected |[a-z_]+: ", event.message):
        return f"{name}: {event.message}"

    given = " ".join(values_after(event.argument.lowered.name_or_flags, arguments))

    return f"{name}: expected {event.argument.lowered.metavar}" + (
        f", not {given!r}" if given else ""
    )


def name_of(argument: Any) -> str:
    """As a person types it: --length, or MODEL."""
    if argument.is_positional():
        return str(argument.lowered.metavar).strip("[]").split(" ")[0].upper()

    return str(max(argument.lowered.name_or_flags, key=len))


def values_after(flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """What was typed for a flag, before all flags are read."""
    values: list[str] = []
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in flags and equals:
            values = [value]
        elif name in flags:
            rest = arguments[number + 1 :]
            end = next(
                (place for place, word in enumerate(rest) if word.startswith("--")), len(rest)
            )
            values = list(rest[:end])

    return values


SENTENCES = {
    "UnrecognizedArgs": unrecognized,
    "MissingArgs": missing,
    "BadValue": bad_value,
    "InvalidChoice": invalid_choice,
    "InstantiationFailure": not_made,
}
