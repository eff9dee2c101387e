"""Answers of a fine-tuned model as they are read: bars and columns at a terminal, tabs or JSON
elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from qkv.commands.fill import bars
from qkv.data.sources.examples import Example
from qkv.generation.classify import Answer
from qkv.generation.fill import Guess
from qkv.text.printable import shortened

MOST = 10  # classes or choices that a picture shows, the likeliest first
NO_TAG = "_"


def as_object(example: Example, answer: Answer) -> str:
    """A line of JSON."""
    said: dict[str, Any]
    if answer.tags is not None:
        words, tags, probabilities = (
            list(example.texts),
            [tag for _, tag, _ in answer.tags],
            [p for *_, p in answer.tags],
        )
        said = {"words": words, "tags": tags, "probabilities": probabilities}
    elif answer.choice is not None:
        context, *choices = example.texts
        said = {
            "context": context,
            "choices": choices,
            "choice": answer.choice,
            "probability": answer.probability,
        }

        said["scores"] = answer.scores
    else:
        one, *other = example.texts
        said = {"text": one}
        if other:
            said["pair"] = other[0]

        if answer.number is not None:
            said["number"] = answer.number
        else:
            said |= {
                "label": answer.label,
                "probability": answer.probability,
                "scores": answer.scores,
            }

    if example.label is not None:
        said["true"] = example.label

    return json.dumps(said, ensure_ascii=False)


def as_row(example: Example, answer: Answer) -> str:
    """Columns with tabs between them: the answer, its probability, the text; of sentences, the tags
    and the words.
    """
    if answer.tags is not None:
        tags = [tag for _, tag, _ in answer.tags] + [NO_TAG] * (
            len(example.texts) - len(answer.tags)
        )
        return "\t".join(
            [" ".join(map(in_one_word, tags)), " ".join(map(in_one_word, example.texts))]
        )

    texts = example.texts
    if answer.choice is not None:
        texts = (example.texts[0], example.texts[1 + answer.choice])

    return "\t".join([*cells(answer), *(" ".join(text.split()) for text in texts)])


def cells(answer: Answer) -> list[str]:
    if answer.number is not None:
        return [digits(answer.number)]

    said = str(answer.choice) if answer.choice is not None else " ".join(str(answer.label).split())
    return [said, f"{answer.probability:.4f}"]


def digits(number: float) -> str:
    """Six, and more of large numbers: those of a task may be far from 0 and close to each other."""
    return f"{number:.6g}" if abs(number) < 1e6 else f"{number:.12g}"


def in_one_word(word: str) -> str:
    """Words with spaces in them would look like several."""
    return "\u00a0".join(word.split())


# At a terminal


def picture(example: Example, answer: Answer, width: int) -> RenderableType:
    """One text alone: a bar for each class or choice, a tag under each word, or the number."""
    if answer.tags is not None:
        return under_words(answer.tags, width)
    if answer.number is not None:
        return Text(digits(answer.number), style="bold")

    scores = answer.scores
    named = (
        scores.items() if isinstance(scores, dict) else zip(example.texts[1:], scores, strict=True)
    )
    likeliest = sorted(named, key=lambda each: -each[1])[:MOST]
    room = max(8, width - 60)

    return bars([Guess(shortened(name, room), 0, probability) for name, probability in likeliest])


def line(example: Example, answer: Answer, labels: Sequence[str], width: int) -> RenderableType:
    """One text of several: the answer, how likely it is, and the beginning of the text."""
    if answer.tags is not None:
        return under_words(answer.tags, width, empty_line=True)

    if answer.number is not None:
        made = Text(f"{digits(answer.number):>10}", style="bold")
    else:
        said = str(answer.choice) if answer.choice is not None else str(answer.label)
        longest = min(24, max(map(cell_len, labels), default=3))
        made = Text(set_cell_size(shortened(said, longest), longest), style="bold")
        made.append(f"  {answer.probability:>6.1%}", style="not bold cyan")

    text = " | ".join(example.texts)
    made.append(f"  {shortened(text, max(8, width - made.cell_len - 2))}", style="not bold")

    return made


def under_words(
    tags: Sequence[tuple[str, str, float]], width: int, empty_line: bool = False
) -> Group:
    """The tags under the words, in as many lines as are needed."""
    made: list[Text] = []
    for words in in_lines(tags, width):
        above, below = Text(no_wrap=True), Text(no_wrap=True)
        for word, tag, column in words:
            above.append(set_cell_size(word, column) + "  ")
            below.append(set_cell_size(tag, column) + "  ", style="cyan")

        made += [above, below]

    return Group(*made, *([Text()] if empty_line else []))


def in_lines(
    tags: Sequence[tuple[str, str, float]], width: int
) -> Iterator[list[tuple[str, str, int]]]:
    """Words and tags, and how wide their column is, as many as a line has room for."""
    row: list[tuple[str, str, int]] = []
    for word, tag, _ in tags:
        word, tag = shortened(word, width - 2), shortened(tag, width - 2)
        column = max(cell_len(word), cell_len(tag))
        if row and sum(each + 2 for *_, each in row) + column > width:
            yield row
            row = []

        row.append((word, tag, column))

    if row:
        yield row
