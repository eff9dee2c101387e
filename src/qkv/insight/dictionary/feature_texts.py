"""The texts in which each feature of a sparse autoencoder is most active."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.dictionary.sparse_autoencoder import SparseAutoencoder
from qkv.insight.dictionary.token_rows import TokenVectors

BEFORE, AFTER = 12, 6
"""Tokens around the one with the largest activity that are shown."""
CHUNK = 4096


class FeatureText(NamedTuple):
    """A piece of a text in which a feature is active."""

    ids: tuple[int, ...]
    activity: tuple[float, ...]
    """How active the feature is at each of these tokens."""
    at: int
    """The token among these with the largest activity."""


class Feature(NamedTuple):
    """One feature: how often it is active, and where most."""

    number: int
    frequency: float
    """The share of tokens at which it is active."""
    largest: float
    texts: tuple[FeatureText, ...]
    """The strongest first, one of each text."""


@torch.no_grad()
def feature_texts(
    autoencoder: SparseAutoencoder, found: TokenVectors, rows: list[list[int]], count: int = 5
) -> list[Feature]:
    """The strongest texts of every feature that is ever active, the most frequent feature first.

    Args:
        autoencoder: The autoencoder.
        found: The vectors of the tokens, from `token_vectors`.
        rows: The texts as ids.
        count: Texts of each feature.
    """
    activity = torch.cat([autoencoder.encode(part) for part in found.vectors.split(CHUNK)])
    where = {place: number for number, place in enumerate(found.places)}
    text_of = torch.tensor([row for row, _ in found.places])
    features = []
    for number in range(activity.shape[1]):
        values = activity[:, number]
        frequency = float((values > 0).double().mean())
        if frequency == 0:
            continue

        pieces = []
        for vector in strongest_of_texts(values, text_of, len(rows), count):
            row, position = found.places[vector]
            begin = max(0, position - BEFORE)
            ids = rows[row][begin : position + AFTER + 1]
            around = []
            for place in range(begin, begin + len(ids)):
                known = where.get((row, place))
                around.append(0.0 if known is None else float(values[known]))

            pieces.append(FeatureText(tuple(ids), tuple(around), position - begin))

        features.append(Feature(number, frequency, float(values.max()), tuple(pieces)))

    return sorted(features, key=lambda feature: (-feature.frequency, feature.number))


def strongest_of_texts(
    values: Float[Tensor, "N"], text_of: Tensor, texts: int, count: int
) -> list[int]:
    """The vectors with the largest values, at most one of each text, the largest first."""
    best = torch.zeros(texts).scatter_reduce(0, text_of, values, "amax")
    result = []
    for text in best.topk(min(count, texts)).indices.tolist():
        if float(best[text]) > 0:
            (places,) = torch.where((text_of == text) & (values == best[text]))
            result.append(int(places[0]))

    return result
