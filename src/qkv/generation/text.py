"""Text generation: text in, text out, streamed in chunks of whole characters.

`complete` returns the chunks of `stream_text`, joined; both give the same text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

from qkv.generation.generate import DecodeOptions, stream, vocabulary_of
from qkv.generation.generation_batch import GeneratedToken
from qkv.generation.prompts import TextPrompts, check_text, text_rows, texts_of
from qkv.generation.stop import Reason, StopStringFilter
from qkv.models.model import Model
from qkv.text.frame_tokens import start_id, tokens_around
from qkv.text.tokenizer import Tokenizer


class TextChunk(NamedTuple):
    """New text of one row."""

    row: int
    text: str
    """Whole characters that are final; it may be empty."""
    reason: Reason | None
    """Why this is the row's last chunk; None if it is not."""


class TextOptions(DecodeOptions, total=False):
    """The keyword arguments of `complete` and `qkv.generate`."""

    samples: int | None
    stop: str | Sequence[str]
    end: int | Sequence[int] | None


def stream_text(
    model: Model,
    tokenizer: Tokenizer,
    prompts: TextPrompts,
    *,
    stop: str | Sequence[str] = (),
    end: int | Sequence[int] | None = None,
    samples: int | None = None,
    **options: Unpack[DecodeOptions],
) -> Iterator[TextChunk]:
    """Continue each prompt, and yield the new text as soon as it is final.

    Args:
        model: A GPT.
        tokenizer: Its tokenizer.
        prompts: One prompt (row 0) or several; each a text, or the ids of a chat.
        stop: One or several strings; a row ends before the first, which is not returned.
        end: The id, or ids, that end a row; by default the tokenizer's.
        samples: Samples of each prompt: row r * samples + s is sample s of prompt r.
        **options: length, seed, beyond, and sampling_params or its fields by name, as for
            `qkv.generation.stream`.
    """
    vocabulary_of(model)
    stops, _ = texts_of(stop, "stop")
    if not all(stops):
        raise ValueError("stop: expected a text of one character or more, not an empty one")

    filters: dict[int, StopStringFilter] = defaultdict(lambda: StopStringFilter(tokenizer, stops))

    def stopped(row: int, ids: list[int]) -> bool:
        filters[row].add_token(ids[-1])
        return filters[row].stopped

    rows, _ = text_rows(prompts)
    tokens = stream(
        model,
        [prompt_ids(tokenizer, row) if isinstance(row, str) else row for row in rows],
        end=tokenizer.end if end is None else end,
        samples=samples,
        stop=stopped if stops else None,
        **options,
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


def complete(
    model: Model, tokenizer: Tokenizer, prompts: TextPrompts, **options: Unpack[TextOptions]
) -> Any:
    """Continue each prompt, and return the new text without the prompt.

    Args:
        model: A GPT.
        tokenizer: Its tokenizer.
        prompts: One prompt (a text or a flat list of ids), or several.
        **options: length, samples, stop, end, sampling_params or its fields, seed and beyond, as
            for `stream_text`.

    Returns:
        One text for one prompt without `samples`, else a list of texts.

    Raises:
        ValueError: If an argument is wrong, or a prompt is longer than the context.
    """
    rows, single = text_rows(prompts)
    samples = options.get("samples")
    texts = [""] * (len(rows) * max(0, 1 if samples is None else samples))

    for chunk in stream_text(model, tokenizer, rows or prompts, **options):
        texts[chunk.row] += chunk.text

    return texts[0] if single and samples is None else texts


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a prompt, with the start id before it if the tokenizer adds one.

    An empty prompt is the id that a text begins after.
    """
    check_text(text, "prompt")
    ids = tokens_around(tokenizer, "prompt").around(tokenizer.encode(text))
    if ids:
        return ids

    begin = start_id(tokenizer)
    if begin is None:
        raise ValueError(
            "prompt: it is empty, and this tokenizer has no start or end token to begin with"
        )

    return [begin]
