"""Translation: ids to ids by sampling or greedily, and sentences to sentences by beam search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

from jaxtyping import Bool
from torch import Tensor

from qkv.data.batches.padding import up_to
from qkv.generation.generate import (
    Translator,
    as_sampling_params,
    check,
    checked_samples,
    collect,
    context_limit,
    on_device,
    run_batch,
)
from qkv.generation.generation_batch import GenerationBatch
from qkv.generation.prompts import Prompts, texts_of
from qkv.generation.sampling import uniforms
from qkv.generation.sampling_params import SamplingKeywords, SamplingParams
from qkv.generation.search.beam_search import SearchOptions, beam_search
from qkv.generation.search.search_loop import batches, encode_sources, prepare
from qkv.models.model import Model
from qkv.text.frame_tokens import translation_ends
from qkv.text.tokenizer import Tokenizer

SIMILAR = 16
"""Sources may be translated together if their lengths round up to the same multiple of this."""
AT_ONCE = 64
"""Sources of one call to the search, which splits them into smaller batches."""


# Ids


def translate(
    model: Translator,
    source: Prompts,
    padding_mask: Bool[Tensor, "*B S"] | None = None,
    *,
    start: int,
    end: int,
    length: int,
    sampling_params: SamplingParams | None = None,
    samples: int | None = None,
    seed: int | Sequence[int] | None = None,
    **fields: Unpack[SamplingKeywords],
) -> list[Any]:
    """Translate each source into at most `length` ids, greedily unless sampling is requested.

    Args:
        model: A Transformer or an RNN; several translate together, by their mean probabilities.
        source: One source or several, as the prompts of `generate`.
        padding_mask: For a tensor, False for its padding.
        start: The id that a target begins with, not returned.
        end: The id that ends a target, not returned.
        length: Tokens of a target at most.
        sampling_params: How tokens are chosen; by default the likeliest.
        samples: Samples of each source.
        seed: Makes samples reproducible.
        **fields: Fields of `SamplingParams` by name instead.

    Returns:
        The target's ids: one list for one source without `samples`, else a list of lists.

    Raises:
        ValueError: If an argument is wrong.

    Example:
        >>> from qkv.models import Transformer, TransformerConfig
        >>> config = TransformerConfig(vocabulary=16, context=8, width=8, depth=1, heads=2)
        >>> len(translate(Transformer(config), [[3, 4]], start=0, end=1, length=2))
        1
    """
    check_arguments(model, source, padding_mask)
    translator, sources, single = prepare(model, source, padding_mask, start)
    params = as_sampling_params(sampling_params, fields, temperature=0.0)
    check(translator, length, (end,), params)
    per_source = checked_samples(samples, len(sources))
    rows = len(sources) * per_source

    batch = GenerationBatch(
        sequences=[[start] for _ in range(rows)],
        rows=list(range(rows)),
        uniforms=on_device(translator, uniforms(seed, rows, length)),
        sampling_params=params,
        ends=(end,),
        limit=context_limit(translator, "extend"),
        samples=per_source,
    )
    states = partial(encode_sources, translator, sources)
    targets = collect(run_batch(translator, states, batch), rows)
    return targets[0] if single and samples is None else targets


def check_arguments(model: object, source: object, padding_mask: Tensor | None) -> None:
    if padding_mask is not None and not isinstance(source, Tensor):
        raise ValueError("padding_mask: it is for tensors; leave it out for lists, which need none")
    if not isinstance(model, Sequence) and not getattr(model, "has_source", False):
        raise TypeError(
            f"model: expected a Transformer or an RNN, which translate, not {type(model).__name__}"
        )


# Text


class Translation(NamedTuple):
    """A translation of one text."""

    text: str
    score: float
    """What beam search ranks by: the log-probability with the length penalty."""
    ids: list[int]


def translate_texts(
    models: Translator,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    length: int | None = None,
    batch: int = 16,
    **options: Unpack[SearchOptions],
) -> Iterator[tuple[int, list[Translation]]]:
    """Translate texts by beam search, those of similar length together.

    Args:
        models: A translator; several translate together.
        tokenizer: With a start and an end token.
        texts: Texts, or one string. An empty text has an empty translation.
        length: Tokens of a translation at most; by default twice the source's and a few more,
            rounded, so that it does not depend on what is translated beside it.
        batch: Texts that are searched at a time.
        **options: Options of `beam_search` by name, such as beams=8.

    Returns:
        An iterator of each text's index and its translations, the best first; the longest texts
        come first.

    Raises:
        ValueError: If the tokenizer lacks a token, or a text is longer than the context.
    """
    start, end = translation_ends(tokenizer)
    members = models if isinstance(models, Sequence) else [models]
    sources = source_ids(members, tokenizer, texts_of(texts)[0])
    # A start token that is not part of any text, such as Marian's padding, is never generated.
    options.setdefault("forbidden", tuple({start} - {end}))

    search = partial(beam_search, members, start=start, end=end, batch=batch, **options)

    return search_sources(search, members, tokenizer, sources, length)


def search_sources(
    search: Callable[..., list[Any]],
    models: Sequence[Model],
    tokenizer: Tokenizer,
    sources: list[list[int]],
    length: int | None,
) -> Iterator[tuple[int, list[Translation]]]:
    """The translations of each source, those of similar length together."""
    for indices in batches(sources, AT_ONCE, similar=SIMILAR):
        size = up_to(len(sources[indices[0]]), SIMILAR)
        if size == 0:
            for index in indices:
                yield index, [Translation("", 0.0, [])]

            continue

        longest = length
        if longest is None:
            longest = room_for(models, 2 * size + SIMILAR)

        rows = [sources[index] for index in indices]
        for index, hypotheses in zip(indices, search(rows, length=longest), strict=True):
            translations = []
            for ids, score, _ in hypotheses:
                translations.append(Translation(in_one_line(tokenizer.decode(ids)), score, ids))

            yield index, translations or [Translation("", 0.0, [])]


def source_ids(
    models: Sequence[Model], tokenizer: Tokenizer, texts: Sequence[str]
) -> list[list[int]]:
    """The ids of each source and the end id; an empty list for an empty text."""
    _, end = translation_ends(tokenizer)
    sources = [[*ids, end] if ids else [] for ids in tokenizer.encode_batch(texts)]
    room = room_for(models, max(map(len, sources), default=0))

    for number, source in enumerate(sources, start=1):
        if len(source) > room:
            where = f"line {number}" if len(sources) > 1 else "text"
            raise ValueError(
                f"{where}: {len(source):,} tokens are more than the model's context of {room:,}; "
                "split the sentence"
            )

    return sources


def room_for(models: Sequence[Model], tokens: int) -> int:
    """This many tokens, or the context of the models if it is less; an RNN has no limit."""
    for model in models:
        if model.uses_kv_cache:
            tokens = min(tokens, model.config.context)

    return tokens


def in_one_line(text: str) -> str:
    """A translation without line breaks, as its source was one line."""
    return " ".join(text.split("\n")).strip()
