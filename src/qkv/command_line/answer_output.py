"""Answers of a fine-tuned model: bars and columns at a terminal, tabs or JSON elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from qkv.command_line.terminal_bars import probability_bars
from qkv.data.sources.examples import Example
from qkv.generation.classify import Answer
from qkv.generation.fill import Guess
from qkv.text.printable import shortened

MOST = 10
"""Classes or choices that are drawn, the most probable first."""
NO_TAG = "_"
GAP = "  "

Tagged = tuple[str, str, float]
"""A word, its tag, and the tag's probability."""


# Elsewhere: JSON and tab-separated lines


def as_object(example: Example, answer: Answer) -> str:
    """One answer as a line of JSON."""
    text, *others = example.texts
    scores = {"probability": answer.probability, "scores": answer.scores}
    values: dict[str, Any]
    if answer.tags is not None:
        values = {
            "words": list(example.texts),
            "tags": [tag for _, tag, _ in answer.tags],
            "probabilities": [probability for _, _, probability in answer.tags],
        }
    elif answer.choice is not None:
        values = {"context": text, "choices": others, "choice": answer.choice, **scores}
    else:
        values = {"text": text}
        if others:
            values["pair"] = others[0]

        if answer.number is not None:
            values["number"] = answer.number
        else:
            values |= {"label": answer.label, **scores}

    if example.label is not None:
        values["true"] = example.label

    return json.dumps(values, ensure_ascii=False)


def as_row(example: Example, answer: Answer) -> str:
    """One answer as a line of columns with tabs between them.

    The columns are the answer, its probability and the text; of a tagged sentence, the tags and
    the words.
    """
    if answer.tags is not None:
        return tag_row(example.texts, answer.tags)

    texts = example.texts
    if answer.choice is not None:
        texts = (example.texts[0], example.texts[1 + answer.choice])

    return "\t".join([*answer_cells(answer), *map(in_one_line, texts)])


def tag_row(words: Sequence[str], tags: Sequence[Tagged]) -> str:
    names = [tag for _, tag, _ in tags]
    names += [NO_TAG] * (len(words) - len(tags))
    return " ".join(map(without_spaces, names)) + "\t" + " ".join(map(without_spaces, words))


def answer_cells(answer: Answer) -> list[str]:
    if answer.number is not None:
        return [digits(answer.number)]

    return [in_one_line(answer_name(answer)), f"{answer.probability:.4f}"]


def answer_name(answer: Answer) -> str:
    """The label, or the number of the choice."""
    if answer.choice is not None:
        return str(answer.choice)

    return str(answer.label)


def digits(number: float) -> str:
    """Six significant digits; twelve of large numbers, which may differ in their last digits."""
    if abs(number) < 1e6:
        return f"{number:.6g}"

    return f"{number:.12g}"


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def without_spaces(word: str) -> str:
    """A word with no-break spaces: spaces separate the words of a row."""
    return "\u00a0".join(word.split())


# At a terminal


def single_answer(example: Example, answer: Answer, width: int) -> RenderableType:
    """The answer to one text: a bar per class or choice, a tag under each word, or the number."""
    if answer.tags is not None:
        return tags_under_words(answer.tags, width)
    if answer.number is not None:
        return Text(digits(answer.number), style="bold")

    if isinstance(answer.scores, dict):
        scored = list(answer.scores.items())
    else:
        scored = list(zip(example.texts[1:], answer.scores, strict=True))

    scored.sort(key=lambda item: -item[1])
    name_width = max(8, width - 60)
    guesses = [Guess(shortened(name, name_width), 0, p) for name, p in scored[:MOST]]

    return probability_bars(guesses)


def answer_line(
    example: Example, answer: Answer, labels: Sequence[str], width: int
) -> RenderableType:
    """The answer to one of several texts: the answer, its probability, and the text's beginning."""
    if answer.tags is not None:
        return tags_under_words(answer.tags, width, empty_line=True)

    if answer.number is not None:
        line = Text(f"{digits(answer.number):>10}", style="bold")
    else:
        longest = min(24, max(map(cell_len, labels), default=3))
        name = shortened(answer_name(answer), longest)
        line = Text(set_cell_size(name, longest), style="bold")
        line.append(f"{GAP}{answer.probability:>6.1%}", style="not bold cyan")

    text = " | ".join(example.texts)
    line.append(GAP + shortened(text, max(8, width - line.cell_len - 2)), style="not bold")

    return line


def tags_under_words(tags: Sequence[Tagged], width: int, empty_line: bool = False) -> Group:
    """The words with their tags below them, in as many lines as are needed."""
    lines: list[Text] = []
    for row in tag_lines(tags, width):
        above = Text(no_wrap=True)
        below = Text(no_wrap=True)
        for word, tag, column in row:
            above.append(set_cell_size(word, column) + GAP)
            below.append(set_cell_size(tag, column) + GAP, style="cyan")

        lines += [above, below]

    if empty_line:
        lines.append(Text())

    return Group(*lines)


def tag_lines(tags: Sequence[Tagged], width: int) -> Iterator[list[tuple[str, str, int]]]:
    """Words, tags and the width of their column, as many as fit into each line."""
    row: list[tuple[str, str, int]] = []
    used = 0

    for full_word, full_tag, _ in tags:
        word = shortened(full_word, width - 2)
        tag = shortened(full_tag, width - 2)
        column = max(cell_len(word), cell_len(tag))
        if row and used + column > width:
            yield row
            row = []
            used = 0

        row.append((word, tag, column))
        used += column + len(GAP)

    if row:
        yield row
