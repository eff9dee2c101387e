"""Prompt validation: one sequence of token ids or several, as lists, tensors, arrays or texts.

One sequence is a list of ids, a one-dimensional tensor or, with a tokenizer, a string. Several are
a list of these or a two-dimensional tensor. Functions that return one result per sequence return it
alone for one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AnySet
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

Arrays = (
    Int[Tensor, "T"] | Int[Tensor, "B T"] | Integer[np.ndarray, "T"] | Integer[np.ndarray, "B T"]
)
Prompts = Sequence[int] | Sequence[Sequence[int]] | Sequence[Tensor] | Arrays
TextPrompts = str | Prompts | Sequence[str | Sequence[int]]


class PromptRows(NamedTuple):
    """Texts, or sequences of token ids."""

    rows: list[Any]
    single: bool
    """One was given, not a list of them."""


def token_rows(
    prompts: object, vocabulary: int, name: str = "prompts", padding_mask: Tensor | None = None
) -> PromptRows:
    """Sequences of one id or more, all of them below the vocabulary's size.

    Args:
        prompts: One sequence, or several.
        vocabulary: Number of tokens.
        name: The argument's name, for errors.
        padding_mask: For a tensor, False for ids to leave out.
    """
    rows, single = text_rows(prompts, name)
    if any(isinstance(row, str) for row in rows):
        raise TypeError(
            f"{name}: expected token ids, not text; encode it with tokenizer.encode(text), "
            "or use complete(model, tokenizer, text), which takes text"
        )

    if padding_mask is not None:
        if single and padding_mask.dim() == 1:
            padding_mask = padding_mask.unsqueeze(0)

        rows = without_padding(rows, padding_mask)

    check_rows(rows, vocabulary, name)

    return PromptRows(rows, single)


def without_padding(rows: list[list[int]], padding_mask: Tensor) -> list[list[int]]:
    """The ids where the mask is True."""
    expected = (len(rows), max(map(len, rows), default=0))
    given = tuple(padding_mask.shape)
    if given != expected:
        raise ValueError(f"padding_mask: expected the source's shape, {expected}, not {given}")

    unpadded = []
    for row, mask in zip(rows, padding_mask.tolist(), strict=True):
        unpadded.append([id for id, is_token in zip(row, mask, strict=True) if is_token])

    return unpadded


def text_rows(prompts: object, name: str = "prompts") -> PromptRows:
    """Texts and sequences of ids; the ids are not checked yet."""
    if isinstance(prompts, str):
        return PromptRows([prompts], True)

    if isinstance(prompts, Tensor | np.ndarray):
        if prompts.ndim not in (1, 2):
            raise ValueError(
                f"{name}: expected token ids of shape (T,) or (B, T), not {tuple(prompts.shape)}"
            )

        numbers = integers(prompts, name)
        if prompts.ndim == 1:
            return PromptRows([numbers], True)

        return PromptRows(numbers, False)

    items = as_list(prompts, name)
    if not items:
        raise ValueError(f"{name}: expected one or more, not an empty list")
    if all(map(is_id, items)):
        return PromptRows([list(map(int, items))], True)

    rows: list[str | list[int]] = []
    for item in items:
        rows.append(item if isinstance(item, str) else row_of(item, name))

    return PromptRows(rows, False)


def row_of(row: object, name: str) -> list[int]:
    """One sequence of token ids."""
    if isinstance(row, Tensor | np.ndarray):
        if row.ndim != 1:
            raise ValueError(
                f"{name}: expected one-dimensional rows, not one of shape {tuple(row.shape)}"
            )

        return integers(row, name)

    if is_id(row):
        raise TypeError(f"{name}: expected token ids, or lists of them, not both in one list")

    items = as_list(row, name)
    for item in items:
        if not is_id(item):
            raise TypeError(f"{name}: expected token ids (whole numbers) in each row, not {item!r}")

    return list(map(int, items))


def as_list(items: object, name: str) -> list[Any]:
    """Any ordered collection as a list."""
    unordered = isinstance(items, Mapping | AnySet | bytes | bytearray)
    if unordered or not isinstance(items, Iterable):
        raise TypeError(
            f"{name}: expected a list of token ids or several such lists, not {items!r:.80}"
        )

    return list(items)


def is_id(item: object) -> bool:
    """True for whole numbers, also of NumPy, and for tensors of one."""
    if isinstance(item, Tensor):
        return item.ndim == 0 and has_integers(item)

    return isinstance(item, Integral) and not isinstance(item, bool)


def integers(array: Tensor | np.ndarray, name: str) -> list[Any]:
    if not has_integers(array):
        raise TypeError(f"{name}: expected token ids of an integer dtype, not {array.dtype}")

    return array.tolist()


def has_integers(array: Tensor | np.ndarray) -> bool:
    if isinstance(array, np.ndarray):
        return np.issubdtype(array.dtype, np.integer)

    return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)


def check_rows(rows: Sequence[Sequence[int]], vocabulary: int, name: str) -> None:
    """Raise if a row is empty or an id is not in the vocabulary.

    Ids are checked on the host: after an indexing error a process cannot use its GPU any more.
    """
    if not all(rows):
        raise ValueError(
            f"{name}: expected one id or more in each row; a start or end id can begin a text"
        )

    for row in rows:
        for id in (min(row), max(row)):
            if not 0 <= id < vocabulary:
                raise ValueError(f"{name}: expected ids from 0 to {vocabulary - 1}, found {id}")


def check_whole(name: str, number: object, what: str = "a whole number") -> None:
    """Raise unless it is a whole number."""
    if not is_id(number):
        raise TypeError(f"{name}: expected {what}, not {number!r}")


def check_text(text: object, name: str = "text") -> None:
    """Raise unless it is one string."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected one string, not {text!r:.80}")


def texts_of(texts: object, name: str = "texts") -> tuple[list[str], bool]:
    """Texts as a list, and whether one string was given."""
    if isinstance(texts, str):
        return [texts], True

    refused = isinstance(texts, Mapping | AnySet | bytes | Tensor | np.ndarray)
    if refused or not isinstance(texts, Iterable):
        raise TypeError(f"{name}: expected a string or a list of strings, not {texts!r:.80}")

    items = list(texts)
    for number, text in enumerate(items):
        check_text(text, f"{name}: number {number}")

    return items, False
