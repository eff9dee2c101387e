"""Ids in, ids out: read the prompt (prefill), then word after word (step), with the state passed
in.

One loop serves them all: GPT, Transformer-XL, the encoder-decoder Transformer and the RNN. What a
row says does not depend on its neighbours: it draws by its own chances, and leaves the batch when
it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.data.batches.paired import pad
from qkv.generation import decode_cuda_graph
from qkv.generation.generation_batch import Beyond, GeneratedToken, GenerationBatch, Reason, Steps
from qkv.generation.prefill import padded, read
from qkv.generation.prompts import Arrays, Prompts, check_whole, token_rows
from qkv.generation.sampling import uniforms
from qkv.generation.sampling_params import SamplingParams, processed, sample_tokens
from qkv.generation.search.ensemble import Ensemble
from qkv.models import GPT, RNN, Transformer
from qkv.nn.linear.onednn import Prepacked, prepacking, small_enough

__all__ = [
    "Beyond",
    "GeneratedToken",
    "Reason",
    "generate",
    "stream",
    "translate",
    "without_dropout",
]

Translator = Transformer | RNN | Sequence[Transformer | RNN]
MOST_ROWS = 65536
MANY_ROWS, MANY_WORDS = 4, 16  # from which on it pays to pack the weights, on a CPU


@overload
def generate(
    model: GPT, prompts: Sequence[int], *, samples: None = None, **how: Any
) -> list[int]: ...
@overload
def generate(
    model: GPT, prompts: Sequence[int], *, samples: int, **how: Any
) -> list[list[int]]: ...
@overload
def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]] | Sequence[Tensor],
    *,
    samples: int | None = None,
    **how: Any,
) -> list[list[int]]: ...
@overload
def generate(
    model: GPT, prompts: Arrays, *, samples: int | None = None, **how: Any
) -> list[Any]: ...
def generate(model: GPT, prompts: Prompts, *, samples: int | None = None, **how: Any) -> list[Any]:
    """Continue each prompt by at most `length` new ids, up to the end id and without it. See
    `stream`.

    One prompt, a flat list of ids or a one-dimensional tensor, gives one list of ids; several
    prompts, a list of lists or a tensor (B, T), give a list of these. With `samples`, be it 1, a
    list is given in any case, of `samples` lists for each prompt: list r * samples + s is sample s
    of prompt r.
    """
    rows, single = token_rows(prompts, vocabulary_of(model))
    words = stream(model, rows or prompts, samples=samples, **how)
    found = collect(words, len(rows) * (samples or 1))

    return found[0] if single and samples is None else found


def stream(
    model: GPT,
    prompts: Prompts,
    *,
    length: int,
    end: int | Sequence[int] | None = None,
    choice: SamplingParams | None = None,
    samples: int | None = None,
    seed: int | Sequence[int] | None = None,
    beyond: Beyond = "refuse",
    stop: Callable[[int, list[int]], bool] | None = None,
    **how: Any,
) -> Iterator[GeneratedToken]:
    """Word after word of every row, as they are said; a row's last one has the reason why it ended.

    `prompts` are as in `generate`; one prompt alone is row 0. Row r * samples + s is sample s of
    prompt r, of which there is 1 unless given; prompts may differ in length. `choice`, or its
    fields by name (temperature=0.8, top_k=40), says how a word is chosen. `stop` is asked after
    each word whether its row is done. A seed makes the same texts again; a list has one for each
    row, as `row_seeds` gives them. Without a seed the texts are new every time, and nobody else's
    random numbers are touched.

    A text that fills the model's context ends there; a prompt that is longer is refused. `beyond` =
    "slide" forgets the beginning instead, whenever the context is full, and goes on from its last
    half; "extend" reads on, which learned positions cannot. Transformer-XL's memory knows no such
    end: it reads a long prompt in segments.
    """
    rows, _ = token_rows(prompts, vocabulary_of(model))
    choice, ends = settle(choice, how), as_ends(end)
    check(model, length, ends, choice)
    samples = 1 if samples is None else samples
    check_samples(samples, len(rows))
    limit = limit_of(model, beyond)
    if limit is not None:
        rows = [within(row, limit, length, beyond) for row in rows]

    uniform = uniforms(seed, len(rows) * samples, length)
    device = next(model.parameters()).device

    def talks() -> Iterator[GeneratedToken]:
        for chosen in groups(model, rows):
            numbers = [row * samples + sample for row in chosen for sample in range(samples)]
            talk = GenerationBatch(
                texts=[list(rows[row]) for row in chosen for _ in range(samples)],
                rows=numbers,
                uniform=on(device, uniform[numbers]),
                choice=choice,
                ends=ends,
                limit=limit,
                slides=beyond == "slide",
                stop=stop,
                samples=samples,
            )

            yield from say(model, model.start, talk)

    return talks()


@overload
def translate(
    model: Translator,
    source: Sequence[int],
    *,
    start: int,
    end: int,
    length: int,
    samples: None = None,
    **how: Any,
) -> list[int]: ...
@overload
def translate(
    model: Translator,
    source: Sequence[int],
    *,
    start: int,
    end: int,
    length: int,
    samples: int,
    **how: Any,
) -> list[list[int]]: ...
@overload
def translate(
    model: Translator,
    source: Sequence[Sequence[int]],
    *,
    start: int,
    end: int,
    length: int,
    samples: int | None = None,
    **how: Any,
) -> list[list[int]]: ...
@overload
def translate(
    model: Translator,
    source: Arrays,
    padding_mask: Tensor | None = None,
    *,
    start: int,
    end: int,
    length: int,
    samples: int | None = None,
    **how: Any,
) -> list[Any]: ...
def translate(
    model: Translator,
    source: Prompts,
    padding_mask: Bool[Tensor, "*B S"] | None = None,
    *,
    start: int,
    end: int,
    length: int,
    choice: SamplingParams | None = None,
    samples: int | None = None,
    seed: int | Sequence[int] | None = None,
    **how: Any,
) -> list[Any]:
    """The target of each source: at most `length` ids, from the start id to the end id and without
    both.

    Sources are given, and what is returned has the shape, as in `generate`; `padding_mask` is False
    for the padding of a tensor. Several models translate together, by the mean of their
    probabilities. The likeliest word is chosen unless `choice` or `temperature` says otherwise. The
    rest is as in `stream`.
    """
    one = Ensemble(model) if isinstance(model, Sequence) else model
    if not isinstance(one, Transformer | RNN | Ensemble):
        raise TypeError(
            f"model: expected a Transformer or an RNN, which translate, not {type(one).__name__}"
        )

    choice, alone = settle(choice, how, temperature=0.0), samples is None
    check(one, length, (end,), choice)
    source, padding_mask, single = padded_source(one, source, padding_mask)
    samples = 1 if samples is None else samples
    check_samples(samples, len(source))
    if not 0 <= start < one.config.vocabulary:
        raise ValueError(
            f"start: expected an id from 0 to {one.config.vocabulary - 1}, not {start}"
        )

    uniform = uniforms(seed, source.shape[0] * samples, length)
    talk = GenerationBatch(
        texts=[[start] for _ in range(source.shape[0] * samples)],
        rows=list(range(source.shape[0] * samples)),
        uniform=on(source.device, uniform),
        choice=choice,
        ends=(end,),
        limit=limit_of(one, "extend"),
        samples=samples,
    )

    if not talk.texts:
        return []

    found = collect(say(one, lambda: one.start(source, padding_mask), talk), len(talk.texts))

    return found[0] if single and alone else found


def padded_source(
    model: Any, source: Prompts, padding_mask: Tensor | None
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"] | None, bool]:
    """Sources as one tensor, which of its places are words, and whether one source was given."""
    rows, single = token_rows(
        source, model.config.source_vocabulary or model.config.vocabulary, "source"
    )
    if isinstance(source, Tensor):
        if padding_mask is not None and padding_mask.shape != source.shape:
            raise ValueError(
                f"padding_mask: expected the source's shape, {tuple(source.shape)}, not {tuple(padding_mask.shape)}"
            )

        if single:
            source, padding_mask = (
                source.unsqueeze(0),
                None if padding_mask is None else padding_mask.unsqueeze(0),
            )  # (1, S)

        return source, padding_mask, single

    if padding_mask is not None:
        raise ValueError(
            "padding_mask: it is for the padding of a tensor; leave it out for lists, which need none"
        )

    device = next(model.parameters()).device
    ids, kept = pad(rows, 0)

    return ids.to(device), None if kept is None else kept.to(device), single


def on(device: torch.device, uniform: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    return uniform.to(
        device, torch.float32 if device.type == "mps" else uniform.dtype
    )  # Apple's GPUs know nothing finer


def collect(words: Iterator[GeneratedToken], rows: int) -> list[list[int]]:
    said: list[list[int]] = [[] for _ in range(rows)]
    for word in words:
        if word.id is not None:
            said[word.row].append(word.id)

    return said


def say(model: Any, start: Callable[[], Any], talk: GenerationBatch) -> Iterator[GeneratedToken]:
    """The words of a talk as they are said: by replaying a recorded step for as long as that is
    possible.
    """
    with without_dropout(model):
        if decode_cuda_graph.supports(model, talk):
            for rows, words in decode_cuda_graph.steps(model, talk):
                yield from talk.hear(rows, words)

        for rows, words in steps(model, start, talk):
            yield from talk.hear(rows, words)


def steps(model: Any, start: Callable[[], Any], talk: GenerationBatch) -> Steps:
    """The loop: read what is new, choose a word for each row, and let the rows go that have ended."""
    if not talk.running:
        return

    device = next(model.parameters()).device
    begin = torch.no_grad()(start)
    state, samples = begin(), 1 if talk.said else talk.samples
    running = talk.running
    ids, padding_mask = padded([talk.within_context(row) for row in running[::samples]], device)
    heard = talk.heard(running, model.config.vocabulary, device)
    many = len(running) >= MANY_ROWS and talk.length >= MANY_WORDS and small_enough(model)
    matrices: Prepacked | None = {} if many else None

    for place in range(talk.said, talk.length):
        with nullcontext() if matrices is None else prepacking(matrices):
            logits = read(model, ids, state, padding_mask)  # (B, V)

        if samples > 1:  # what the prompt says is the same for all samples of it
            same = torch.arange(len(running), device=device) // samples
            state.reorder(same)
            logits, padding_mask, samples = (
                logits[same],
                None if padding_mask is None else padding_mask[same],
                1,
            )

        logits = processed(logits, talk.choice, heard, place, talk.ends)
        words = sample_tokens(logits, talk.uniform[running, place], talk.choice)
        if heard is not None:
            heard.add(words)

        yield running, words.tolist()

        going = [at for at, row in enumerate(running) if row not in talk.ended]
        if not going:
            return

        if len(going) < len(running):
            places = torch.tensor(going, device=device)
            running, words, padding_mask = (
                talk.running,
                words[places],
                None if padding_mask is None else padding_mask[places],
            )
            state.reorder(places)
            if heard is not None:
                heard.reorder(places)

        if talk.limit is not None and state.length == talk.limit:
            # The longest texts are over, or forget their beginning.
            state = begin()
            ids, padding_mask = padded([talk.within_context(row) for row in running], device)
        else:
            ids = words.unsqueeze(1)  # (B,) -> (B, 1)
            padding_mask = (
                None
                if padding_mask is None
                else torch.cat([padding_mask, padding_mask.new_ones(len(running), 1)], dim=1)
            )  # (B, S + 1)


def groups(model: GPT, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows that are read together. Padding before a text moves it, which segments and a fixed
    pattern would notice.
    """
    if not model.config.memory and model.config.sparse != "fixed":
        return [list(range(len(rows)))] if rows else []

    lengths = sorted({len(row) for row in rows})
    return [[at for at, row in enumerate(rows) if len(row) == length] for length in lengths]


def settle(
    choice: SamplingParams | None, how: dict[str, Any], **unless_given: Any
) -> SamplingParams:
    if choice is None:
        return SamplingParams(**unless_given | how)
    if how:
        raise TypeError(f"{next(iter(how))}: it is a field of choice, which was given, too")

    return choice


def as_ends(end: int | Sequence[int] | None) -> tuple[int, ...]:
    return () if end is None else (end,) if isinstance(end, int | str) else tuple(end)


def check(model: Any, length: int, ends: tuple[int, ...], choice: SamplingParams) -> None:
    check_whole("length", length)
    if length < 1:
        raise ValueError(f"length: expected 1 word or more, not {length}")

    choice.check(model.config.vocabulary, ends)


def vocabulary_of(model: GPT) -> int:
    if not isinstance(model, GPT):
        raise TypeError(
            f"model: expected a GPT, which goes on from a prompt, not {type(model).__name__}"
        )

    return model.config.vocabulary


def check_samples(samples: int, rows: int) -> None:
    check_whole("samples", samples)
    if samples < 1:
        raise ValueError(f"samples: expected 1 or more, not {samples}")
    if rows * samples > MOST_ROWS:
        raise ValueError(
            f"samples: {samples:,} of each of {rows:,} prompts are more than {MOST_ROWS:,} at once; ask for fewer, "
            "with another seed each time"
        )


def limit_of(model: Any, beyond: Beyond) -> int | None:
    """How many words fit into a text, if there is an end."""
    config = model.config
    if beyond not in ("refuse", "slide", "extend"):
        raise ValueError(f"beyond: expected refuse, slide or extend, not {beyond!r}")
    if isinstance(model, Ensemble):
        return min(
            (limit for each in model.models if (limit := limit_of(each, beyond)) is not None),
            default=None,
        )
    if isinstance(model, RNN) or (isinstance(model, GPT) and config.memory):
        return None
    if config.position == "learned" and isinstance(model, GPT) and beyond == "extend":
        raise ValueError("beyond: learned positions end with the context; expected refuse or slide")

    return None if config.position != "learned" and beyond == "extend" else config.context


def within(row: list[int], limit: int, length: int, beyond: Beyond) -> list[int]:
    """A prompt that fits: refused, or its end with as much room behind it as is asked for, half the
    context at most.
    """
    if len(row) <= limit:
        return row
    if beyond == "refuse":
        raise ValueError(
            f"prompts: {len(row):,} tokens are more than the model's context of {limit:,}; shorten the prompt, or let "
            "its beginning be forgotten with beyond = slide"
        )

    return row[-max(limit - length, limit // 2, 1) :]


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """In evaluation mode; afterwards every part is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()

    try:
        yield
    finally:
        for module in training:
            module.training = True
