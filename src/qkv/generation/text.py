"""Text generation: text in, text out, streamed in chunks of whole characters.

`complete` returns the chunks of `stream_text`, joined; both give the same text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Required, Unpack, overload

from qkv.generation.generate import stream
from qkv.generation.generation_batch import Beyond, GeneratedToken
from qkv.generation.prompts import Arrays, TextPrompts, check_text, text_rows, texts_of
from qkv.generation.sampling_params import SamplingKeywords, SamplingParams
from qkv.generation.stop import Reason, StopStringFilter
from qkv.models import GPT
from qkv.text.tokenizer import Tokenizer, start_id

__all__ = [
    "TextChunk",
    "complete",
    "prompt_ids",
    "stream_text",
]


class TextChunk(NamedTuple):
    """New text of one row."""

    row: int
    text: str
    """Whole characters that are final; it may be empty."""
    reason: Reason | None
    """Why this is the row's last chunk; None if it is not."""


class CompleteOptions(SamplingKeywords, total=False):
    """The keyword arguments of `complete` and `stream_text`, beside `samples`."""

    length: Required[int]
    stop: str | Sequence[str]
    end: int | Sequence[int] | None
    sampling_params: SamplingParams | None
    seed: int | Sequence[int] | None
    beyond: Beyond


def stream_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: TextPrompts,
    *,
    length: int,
    stop: str | Sequence[str] = (),
    end: int | Sequence[int] | None = None,
    sampling_params: SamplingParams | None = None,
    samples: int | None = None,
    seed: int | Sequence[int] | None = None,
    beyond: Beyond = "refuse",
    **fields: Unpack[SamplingKeywords],
) -> Iterator[TextChunk]:
    """Continue each prompt, and yield the new text as soon as it is final.

    Args:
        model: A GPT.
        tokenizer: Its tokenizer.
        prompts: One prompt (row 0) or several; each a text, or the ids of a chat.
        length: New tokens at most.
        stop: One or several strings; a row ends before the first, which is not returned.
        end: The id, or ids, that end a row; by default the tokenizer's.
        sampling_params: How tokens are chosen.
        samples: Samples of each prompt: row r * samples + s is sample s of prompt r.
        seed: Makes the result reproducible.
        beyond: What happens where the context is full; see `qkv.generation.stream`.
        **fields: Fields of `SamplingParams` by name instead.
    """
    stops, _ = texts_of(stop, "stop")
    if not all(stops):
        raise ValueError("stop: expected a text of one character or more, not an empty one")

    filters: dict[int, StopStringFilter] = defaultdict(lambda: StopStringFilter(tokenizer, stops))

    def stopped(row: int, ids: list[int]) -> bool:
        filters[row].add_token(ids[-1])
        return filters[row].stopped

    tokens = stream(
        model,
        [as_ids(tokenizer, row) for row in text_rows(prompts).rows],
        length=length,
        end=tokenizer.end if end is None else end,
        sampling_params=sampling_params,
        samples=samples,
        seed=seed,
        beyond=beyond,
        stop=stopped if stops else None,
        **fields,
    )
    return chunks(tokens, filters, stops)


def chunks(
    tokens: Iterator[GeneratedToken], filters: dict[int, StopStringFilter], stops: Sequence[str]
) -> Iterator[TextChunk]:
    """The text of each token; with stop strings, the filters have seen the tokens already."""
    for token in tokens:
        row_filter = filters[token.row]
        if not stops and token.id is not None:
            row_filter.add_token(token.id)

        reason = token.reason
        if reason is not None:
            row_filter.close()
            if row_filter.stopped:
                reason = "stop"

        yield TextChunk(token.row, row_filter.take(), reason)


@overload
def complete(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[int],
    *,
    samples: None = None,
    **options: Unpack[CompleteOptions],
) -> str: ...
@overload
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[int],
    *,
    samples: int,
    **options: Unpack[CompleteOptions],
) -> list[str]: ...
@overload
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str] | Sequence[Sequence[int]] | Sequence[str | Sequence[int]],
    *,
    samples: int | None = None,
    **options: Unpack[CompleteOptions],
) -> list[str]: ...
@overload
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Arrays,
    *,
    samples: int | None = None,
    **options: Unpack[CompleteOptions],
) -> Any: ...
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: TextPrompts,
    *,
    samples: int | None = None,
    **options: Unpack[CompleteOptions],
) -> str | list[str]:
    """Continue each prompt, and return the new text without the prompt.

    Args:
        model: A GPT.
        tokenizer: Its tokenizer.
        prompts: One prompt (a text or a flat list of ids), or several.
        samples: Samples of each prompt.
        **options: length, stop, end, sampling_params or its fields, seed and beyond, as for
            `stream_text`.

    Returns:
        One text for one prompt without `samples`, else a list of texts.

    Raises:
        ValueError: If an argument is wrong, or a prompt is longer than the context.
    """
    rows, single = text_rows(prompts)
    texts = [""] * (len(rows) * max(0, 1 if samples is None else samples))

    for chunk in stream_text(model, tokenizer, rows or prompts, samples=samples, **options):
        texts[chunk.row] += chunk.text

    return texts[0] if single and samples is None else texts


def as_ids(tokenizer: Tokenizer, prompt: str | list[int]) -> list[int]:
    return prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a prompt, with the start id before it if the tokenizer adds one.

    An empty prompt is the id that a text begins after.
    """
    check_text(text, "prompt")
    ids = tokenizer.encode(text)
    if tokenizer.adds_start_token and tokenizer.start is not None:
        return [tokenizer.start, *ids]
    if ids:
        return ids

    begin = start_id(tokenizer)
    if begin is None:
        raise ValueError(
            "prompt: it is empty, and this tokenizer has no start or end token to begin with"
        )

    return [begin]
