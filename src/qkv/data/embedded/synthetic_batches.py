"""Batches of synthetic tasks: copy, reverse, k positions back, several lookups, random tokens.

Every batch is a pure function of (split, seed, step): two models trained with the same seed read
the same tokens, and the splits draw from independent streams of random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.order import check_seed
from qkv.data.batches.padding import pad_rows
from qkv.data.embedded.synthetic import Split

START = 0
"""In pairs: the first id that the decoder reads."""
END = 1
"""In pairs: the id after the last token of the source and of the target."""
PADDING = 2
FIRST_TOKEN = 3
"""In pairs: the smallest id of a token; the other tasks use all ids from 0."""
SPLIT_STREAMS: dict[Split, int] = {"train": 100, "valid": 101, "test": 102}
"""Streams of random numbers; data/batches/order.py numbers the others."""


def random_source(split: Split, seed: int, step: int) -> np.random.Generator:
    """The random generator of one step."""
    check_seed(seed)
    if step < 0:
        raise ValueError(f"step: expected 0 or more, not {step}")

    return np.random.default_rng((SPLIT_STREAMS[split], seed, step))


# Pairs


def copy_batch(
    seed: int,
    step: int,
    rows: int,
    length: int,
    vocabulary: int,
    *,
    shortest: int | None = None,
    split: Split = "train",
) -> Batch:
    """Random tokens to copy, as pairs for an encoder and a decoder.

    The layout is the one of PairedData: the encoder reads tokens + [END], the decoder reads
    [START] + tokens and predicts tokens + [END].

    Args:
        seed: The seed of the run.
        step: The training step, from 0.
        rows: Number of pairs, B.
        length: Number of tokens of a sequence, without the end token.
        vocabulary: Number of ids, with START, END and PADDING; the tokens are the ids from 3 on.
        shortest: If given, each length is drawn uniformly from shortest to `length`.
        split: "train", "valid" or "test": independent draws. Short sequences from a small
            vocabulary can occur in several of them.

    Returns:
        The batch, on the CPU; its masks are None where all rows are equally long.

    Raises:
        ValueError: If a size is too small, or the seed or the step negative.

    Example:
        >>> batch = copy_batch(seed=0, step=0, rows=2, length=5, vocabulary=20)
        >>> batch.source.shape, batch.targets.equal(batch.source)
        (torch.Size([2, 6]), True)
    """
    check_sizes(rows, length, vocabulary - FIRST_TOKEN)
    random = random_source(split, seed, step)
    sequences = draw_sequences(random, rows, length, vocabulary, shortest)
    return paired_batch(sequences, sequences)


def reverse_batch(
    seed: int,
    step: int,
    rows: int,
    length: int,
    vocabulary: int,
    *,
    shortest: int | None = None,
    split: Split = "train",
) -> Batch:
    """Random tokens to say in reverse order; the sources are those of `copy_batch`.

    Args:
        seed: The seed of the run.
        step: The training step, from 0.
        rows: Number of pairs, B.
        length: Number of tokens of a sequence, without the end token.
        vocabulary: Number of ids, with START, END and PADDING; the tokens are the ids from 3 on.
        shortest: If given, each length is drawn uniformly from shortest to `length`.
        split: "train", "valid" or "test": independent draws.

    Returns:
        The batch, on the CPU, laid out as by `copy_batch`.

    Raises:
        ValueError: If a size is too small, or the seed or the step negative.

    Example:
        >>> batch = reverse_batch(seed=0, step=0, rows=2, length=5, vocabulary=20)
        >>> batch.targets[:, :5].equal(batch.source[:, :5].flip(1))
        True
    """
    check_sizes(rows, length, vocabulary - FIRST_TOKEN)
    random = random_source(split, seed, step)
    sequences = draw_sequences(random, rows, length, vocabulary, shortest)
    return paired_batch(sequences, [sequence[::-1] for sequence in sequences])


def draw_sequences(
    random: np.random.Generator, rows: int, length: int, vocabulary: int, shortest: int | None
) -> list[Int[np.ndarray, "_"]]:
    """Random tokens, of equal or of random length."""
    if shortest is None:
        shortest = length
    if not 1 <= shortest <= length:
        raise ValueError(f"shortest: expected 1 to {length}, not {shortest}")

    lengths = random.integers(shortest, length + 1, size=rows)
    tokens = random.integers(FIRST_TOKEN, vocabulary, size=(rows, length))
    sequences: list[Int[np.ndarray, "_"]] = []
    for row, kept in zip(tokens, lengths.tolist(), strict=True):
        sequences.append(row[:kept])

    return sequences


def paired_batch(
    sources: Sequence[Int[np.ndarray, "_"]], targets: Sequence[Int[np.ndarray, "_"]]
) -> Batch:
    """The batch of pairs for teacher forcing."""
    read = [np.append(source, END) for source in sources]
    shifted = [np.append(START, target) for target in targets]
    predicted = [np.append(target, END) for target in targets]

    source, source_padding_mask = pad_rows(read, PADDING)
    ids, padding_mask = pad_rows(shifted, PADDING)

    return Batch(
        ids=ids,
        targets=pad_rows(predicted, IGNORE)[0],
        padding_mask=padding_mask,
        source=source,
        source_padding_mask=source_padding_mask,
    )


# Sequences


def back_batch(
    seed: int,
    step: int,
    rows: int,
    length: int,
    vocabulary: int,
    *,
    distance: int = 1,
    split: Split = "train",
) -> Batch:
    """Random tokens; the target at position t is the token at position t - distance.

    Args:
        seed: The seed of the run.
        step: The training step, from 0.
        rows: Number of sequences, B.
        length: Number of tokens of a sequence, T.
        vocabulary: Number of ids; all of them are tokens.
        distance: How far back the answer stands, from 0 (the token itself) to length - 1. Equal
            seeds give the same tokens for every distance.
        split: "train", "valid" or "test": independent draws.

    Returns:
        The batch, on the CPU: ids (B, T), targets (B, T), IGNORE at the first `distance` positions.

    Raises:
        ValueError: If a size is too small, or the distance too large.

    Example:
        >>> batch = back_batch(seed=0, step=0, rows=1, length=6, vocabulary=10, distance=2)
        >>> batch.targets[0, 2:].equal(batch.ids[0, :-2]), batch.targets[0, :2].tolist()
        (True, [-100, -100])
    """
    ids, targets = lookups_batch(
        seed, step, rows, length, vocabulary, distances=(distance,), split=split
    )
    return Batch(ids=ids, targets=targets[..., 0])


class LookupBatch(NamedTuple):
    """Sequences with several targets at each position."""

    ids: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T M"]
    """The token at each of the M distances back; IGNORE where there is none."""


def lookups_batch(
    seed: int,
    step: int,
    rows: int,
    length: int,
    vocabulary: int,
    *,
    distances: Sequence[int] = (1, 3, 5, 7),
    split: Split = "train",
) -> LookupBatch:
    """Random tokens; position t has to say the tokens at all of t - distances at once.

    A model needs M outputs of V logits at each position. One linear output layer of M x V units
    holds them: with logits (B, T, M * V) the loss over all M answers is
    `cross_entropy(logits.reshape(-1, V), targets.reshape(-1), ignore_index=IGNORE)`, and the answer
    to the m-th lookup is `logits.view(B, T, M, V)[:, :, m].argmax(-1)`.

    Args:
        seed: The seed of the run.
        step: The training step, from 0.
        rows: Number of sequences, B.
        length: Number of tokens of a sequence, T.
        vocabulary: Number of ids, V; all of them are tokens.
        distances: The M distances, each from 0 to length - 1.
        split: "train", "valid" or "test": independent draws.

    Returns:
        The ids (B, T), the same as those of `back_batch`, and the targets (B, T, M), on the CPU.

    Raises:
        ValueError: If a size is too small, or a distance too large.

    Example:
        >>> batch = lookups_batch(seed=0, step=0, rows=2, length=12, vocabulary=64)
        >>> batch.targets.shape, batch.targets[:, 7:, 3].equal(batch.ids[:, :-7])
        (torch.Size([2, 12, 4]), True)
    """
    check_sizes(rows, length, vocabulary)
    if not distances or min(distances) < 0 or max(distances) >= length:
        raise ValueError(f"distances: expected numbers from 0 to {length - 1}, not {distances}")

    random = random_source(split, seed, step)
    ids = torch.from_numpy(random.integers(0, vocabulary, size=(rows, length)))
    targets = torch.full((rows, length, len(distances)), IGNORE)
    for answer, distance in enumerate(distances):
        targets[:, distance:, answer] = ids[:, : length - distance]

    return LookupBatch(ids, targets)


def random_batch(
    seed: int, step: int, rows: int, length: int, vocabulary: int, *, split: Split = "train"
) -> Batch:
    """Random tokens with the next token as the target: no model gets below log(vocabulary) nats.

    Args:
        seed: The seed of the run.
        step: The training step, from 0.
        rows: Number of sequences, B.
        length: Number of tokens of a sequence, T.
        vocabulary: Number of ids; all of them are tokens.
        split: "train", "valid" or "test": independent draws.

    Returns:
        The batch, on the CPU: ids (B, T), and targets (B, T), which are the ids shifted by one.

    Raises:
        ValueError: If a size is too small, or the seed or the step negative.

    Example:
        >>> batch = random_batch(seed=0, step=0, rows=2, length=5, vocabulary=10)
        >>> batch.targets[:, :-1].equal(batch.ids[:, 1:])
        True
    """
    check_sizes(rows, length, vocabulary)
    random = random_source(split, seed, step)
    tokens = torch.from_numpy(random.integers(0, vocabulary, size=(rows, length + 1)))
    return Batch(ids=tokens[:, :-1].contiguous(), targets=tokens[:, 1:].contiguous())


def repeated_batch(
    seed: int, step: int, rows: int, length: int, vocabulary: int, *, split: Split = "train"
) -> Batch:
    """Random tokens that repeat: the next token follows from an earlier occurrence (induction).

    Each row repeats a block of random tokens. The block's size differs by row, so that no fixed
    distance answers, and is between a quarter and a half of the row.

    Args:
        seed: The seed of the run.
        step: The training step, from 0.
        rows: Number of sequences, B.
        length: Number of tokens of a sequence, T, at least 8.
        vocabulary: Number of ids; all of them are tokens.
        split: "train", "valid" or "test": independent draws.

    Returns:
        The batch, on the CPU: ids (B, T), and the next tokens as targets (B, T), IGNORE in the
        first occurrence of the block.

    Raises:
        ValueError: If a size is too small, or the seed or the step negative.

    Example:
        >>> batch = repeated_batch(seed=0, step=0, rows=2, length=16, vocabulary=50)
        >>> block = int((batch.targets[0] == IGNORE).sum())
        >>> batch.ids[0, block:].equal(batch.ids[0, :-block])
        True
    """
    check_sizes(rows, length, vocabulary)
    if length < 8:
        raise ValueError(f"length: expected 8 or more, not {length}")

    random = random_source(split, seed, step)
    tokens = torch.from_numpy(random.integers(0, vocabulary, size=(rows, length)))
    blocks = torch.from_numpy(random.integers(length // 4, length // 2 + 1, size=(rows, 1)))
    positions = torch.arange(length + 1)  # (T + 1,)
    repeated = tokens.gather(1, positions % blocks)  # (B, T + 1)

    targets = repeated[:, 1:].masked_fill(positions[:-1] < blocks, IGNORE)
    return Batch(ids=repeated[:, :-1].contiguous(), targets=targets)


def check_sizes(rows: int, length: int, tokens: int) -> None:
    for name, value, least in (("rows", rows, 1), ("length", length, 1), ("vocabulary", tokens, 2)):
        if value < least:
            raise ValueError(f"{name}: too small; expected at least {least}, not {value}")
