"""Generation: token ids in, token ids out, for GPT; and what all decoding shares.

The output of a row does not depend on its neighbours: it draws by its own random numbers, and
leaves the batch when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation import decode_cuda_graph
from qkv.generation.decode_loop import DecodeLoop
from qkv.generation.generation_batch import Beyond, GeneratedToken, GenerationBatch
from qkv.generation.prompts import Prompts, check_whole, token_rows
from qkv.generation.sampling import uniforms
from qkv.generation.sampling_params import SamplingKeywords, SamplingParams
from qkv.generation.search.ensemble import Ensemble
from qkv.generation.stop import as_ends
from qkv.models.model import Model

Translator = Model | Sequence[Model]
Stop = Callable[[int, list[int]], bool]
"""Called with a row and its new ids after each token; True ends the row."""
MOST_ROWS = 65536


class DecodeOptions(SamplingKeywords, total=False):
    """The keyword arguments of `stream` that functions of text pass on as they are."""

    length: int
    sampling_params: SamplingParams | None
    seed: int | Sequence[int] | None
    beyond: Beyond


class GenerateOptions(DecodeOptions, total=False):
    """The keyword arguments of `stream` that `generate` passes on."""

    end: int | Sequence[int] | None
    stop: Stop | None


def generate(
    model: Model,
    prompts: Prompts,
    *,
    samples: int | None = None,
    **options: Unpack[GenerateOptions],
) -> Any:
    """Continue each prompt by at most `length` new tokens.

    Args:
        model: A GPT.
        prompts: One prompt (a flat list of ids, or a tensor (T,)), or several (a list of lists,
            or a tensor (B, T)).
        samples: Samples of each prompt: sequence r * samples + s is sample s of prompt r.
        **options: length, end, seed, beyond and stop as for `stream`; sampling_params, or its
            fields by name, such as temperature=0.8, top_k=40.

    Returns:
        The new ids: one list for one prompt without `samples`, else a list of lists.

    Raises:
        ValueError: If an argument is wrong, or a prompt is longer than the context.

    Example:
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=16, context=8, width=8, depth=1, heads=2))
        >>> len(generate(model, [1, 2, 3], length=4, seed=0, temperature=0.8))
        4
    """
    rows, single = token_rows(prompts, vocabulary_of(model))
    tokens = stream(model, rows or prompts, samples=samples, **options)
    sequences = collect(tokens, len(rows) * (samples or 1))
    return sequences[0] if single and samples is None else sequences


def stream(
    model: Model,
    prompts: Prompts,
    *,
    length: int,
    end: int | Sequence[int] | None = None,
    sampling_params: SamplingParams | None = None,
    samples: int | None = None,
    seed: int | Sequence[int] | None = None,
    beyond: Beyond = "refuse",
    stop: Stop | None = None,
    **fields: Unpack[SamplingKeywords],
) -> Iterator[GeneratedToken]:
    """Generate as `generate` does, and yield every token as soon as it is known.

    Args:
        model: A GPT.
        prompts: As for `generate`; one prompt alone is row 0.
        length: New tokens at most.
        end: The id, or ids, that end a sequence; it is not returned.
        sampling_params: How tokens are chosen.
        samples: Samples of each prompt, by default 1: row r * samples + s is sample s of prompt r.
        seed: Makes the result reproducible; a list has one seed per row, as of `row_seeds`.
        beyond: A sequence that fills the context ends there, and a longer prompt is refused;
            "slide" forgets the beginning whenever the context is full and continues from its
            last half; "extend" continues beyond the context, which learned positions cannot.
            Transformer-XL has no limit.
        stop: Called with a row and its new ids after each token; True ends the row.
        **fields: Fields of `SamplingParams` by name instead.

    Returns:
        An iterator of tokens; a row's last one has the reason why it ended.

    Raises:
        ValueError: If an argument is wrong, or a prompt is longer than the context.

    Example:
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=16, context=8, width=8, depth=1, heads=2))
        >>> [token.reason for token in stream(model, [1, 2, 3], length=2, temperature=0)]
        [None, 'length']
    """
    rows, _ = token_rows(prompts, vocabulary_of(model))
    params = as_sampling_params(sampling_params, fields)
    ends = as_ends(end)
    check(model, length, ends, params)
    samples = checked_samples(samples, len(rows))
    limit = context_limit(model, beyond)
    if limit is not None:
        rows = [within(row, limit, length, beyond) for row in rows]

    numbers = on_device(model, uniforms(seed, len(rows) * samples, length))
    slides = beyond == "slide"
    make_batch = partial(
        GenerationBatch, sampling_params=params, ends=ends, limit=limit, slides=slides, stop=stop
    )
    return run_groups(model, rows, numbers, samples, make_batch)


def run_groups(
    model: Model,
    rows: list[list[int]],
    numbers: Float[Tensor, "B L"],
    samples: int,
    make_batch: Callable[..., GenerationBatch],
) -> Iterator[GeneratedToken]:
    """Generate the rows, one group after the other."""
    for group in groups(model, rows):
        sequences = []
        sample_rows = []
        for row in group:
            for sample in range(samples):
                sequences.append(list(rows[row]))
                sample_rows.append(row * samples + sample)

        batch = make_batch(
            sequences=sequences,
            rows=sample_rows,
            uniforms=numbers[sample_rows],
            samples=samples,
        )
        yield from run_batch(model, model.start, batch)


def groups(model: Model, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows that are prefilled together.

    Padding shifts a prompt, which Transformer-XL's segments and a fixed pattern would notice.
    """
    if not rows:
        return []
    if model.uses_kv_cache and model.config.sparse != "fixed":
        return [list(range(len(rows)))]

    by_length: dict[int, list[int]] = {}
    for row, ids in enumerate(rows):
        by_length.setdefault(len(ids), []).append(row)

    return [by_length[length] for length in sorted(by_length)]


def run_batch(
    model: Any, start: Callable[[], Any], batch: GenerationBatch
) -> Iterator[GeneratedToken]:
    """Generate a batch: with a CUDA graph as far as it goes, then with the plain decode loop."""
    if not batch.sequences:
        return

    with without_dropout(model):
        if decode_cuda_graph.supports(model, batch):
            for rows, tokens in decode_cuda_graph.steps(model, batch):
                yield from batch.add_step(rows, tokens)

        if batch.running:
            for rows, tokens in DecodeLoop(model, start, batch).steps():
                yield from batch.add_step(rows, tokens)


def collect(tokens: Iterator[GeneratedToken], rows: int) -> list[list[int]]:
    """The ids of each row."""
    sequences: list[list[int]] = [[] for _ in range(rows)]
    for token in tokens:
        if token.id is not None:
            sequences[token.row].append(token.id)

    return sequences


def on_device(model: Any, numbers: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Random numbers on the model's device, in float32 on Apple's GPUs, which have no float64."""
    device = next(model.parameters()).device
    return numbers.to(device, torch.float32 if device.type == "mps" else numbers.dtype)


# Arguments


def as_sampling_params(
    sampling_params: SamplingParams | None, fields: SamplingKeywords, temperature: float = 1.0
) -> SamplingParams:
    """The sampling parameters, given as they are or by their fields.

    Args:
        sampling_params: All of them, or None.
        fields: Some of them by name.
        temperature: The default.
    """
    if sampling_params is None:
        values: dict[str, Any] = {"temperature": temperature, **fields}
        return SamplingParams(**values)
    if fields:
        name = next(iter(fields))
        raise TypeError(f"{name}: it is a field of sampling_params; give one or the other")

    return sampling_params


def check(model: Any, length: int, ends: tuple[int, ...], params: SamplingParams) -> None:
    check_whole("length", length)
    if length < 1:
        raise ValueError(f"length: expected 1 token or more, not {length}")

    params.check(model.config.vocabulary, ends)


def checked_samples(samples: int | None, rows: int) -> int:
    """The samples of each row, by default 1."""
    if samples is None:
        return 1

    check_whole("samples", samples)
    if samples < 1:
        raise ValueError(f"samples: expected 1 or more, not {samples}")
    if rows * samples > MOST_ROWS:
        raise ValueError(
            f"samples: {samples:,} of each of {rows:,} prompts are more than {MOST_ROWS:,} "
            "at once; ask for fewer, with another seed each time"
        )

    return samples


def vocabulary_of(model: Any) -> int:
    if getattr(model, "predicts", None) != "next":
        hint = "; qkv.load opens a path" if isinstance(model, str | Path) else ""
        raise TypeError(
            f"model: expected a GPT, which continues a prompt, not {type(model).__name__}{hint}"
        )

    return model.config.vocabulary


def context_limit(model: Any, beyond: Beyond) -> int | None:
    """The longest sequence in tokens; None if there is no limit."""
    if beyond not in ("refuse", "slide", "extend"):
        raise ValueError(f"beyond: expected refuse, slide or extend, not {beyond!r}")

    if isinstance(model, Ensemble):
        limits = [context_limit(member, beyond) for member in model.models]
        return min((limit for limit in limits if limit is not None), default=None)

    config = model.config
    if model.predicts in ("next", "target") and model.reads_on:
        return None  # an RNN, or Transformer-XL: its state has no end
    if beyond != "extend":
        return config.context
    if config.position != "learned":
        return None
    if not model.has_source:
        raise ValueError("beyond: learned positions end with the context; expected refuse or slide")

    return config.context


def within(row: list[int], limit: int, length: int, beyond: Beyond) -> list[int]:
    """A prompt that fits into the context: a longer one is refused, or its beginning cut off.

    A cut prompt leaves space for the new tokens, but keeps half the context or more.
    """
    if len(row) <= limit:
        return row
    if beyond == "refuse":
        raise ValueError(
            f"prompts: {len(row):,} tokens are more than the model's context of {limit:,}; "
            "shorten the prompt, or drop its beginning with beyond = slide"
        )

    return row[-max(limit - length, limit // 2, 1) :]


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode, and every module back into its mode afterwards."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()

    try:
        yield
    finally:
        for module in training:
            module.training = True
