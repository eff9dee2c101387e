"""Does a head copy, and does it look for its like: eigenvalues of the OV and the QK circuit.

A matrix with positive eigenvalues maps vectors onto themselves, one with negative ones onto their
opposite. The score sum(λ) / sum(|λ|) is 1 for a head that copies what it attends to (Elhage et al.
2021), -1 for one that suppresses it, and near 0 for others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.circuits.head_matrices import circuit_site, head_matrices
from qkv.models.model import Model


class CircuitScores(NamedTuple):
    """Eigenvalue scores of all heads, each from -1 to 1."""

    kind: str
    """self, encoder, decoder or cross."""
    copying: Float[Tensor, "L H"]
    """Of W_OV: 1 if a head hands on what it attends to."""
    matching: Float[Tensor, "L H"]
    """Of W_QK: 1 if a query has its highest score with a key of the same content."""

    def strongest(self, name: str, count: int) -> list[tuple[int, int, float]]:
        """Layer, head and score of the heads with the largest absolute scores."""
        scores = getattr(self, name)
        H = scores.shape[1]
        order = scores.abs().flatten().argsort(descending=True)[:count].tolist()
        return [(place // H, place % H, float(scores.flatten()[place])) for place in order]


def circuit_scores(model: Model, kind: str | None = None) -> CircuitScores:
    """How far each head copies what it attends to, and attends to what is alike.

    Args:
        model: A GPT, a BERT or a translator.
        kind: For a translator: encoder, decoder (the default) or cross.

    Returns:
        The scores of all heads.

    Raises:
        ValueError: If the model is an RNN or has no such attention.

    Example:
        >>> from qkv import insight, models
        >>> model = models.GPT(models.GPTConfig(vocabulary=9, width=8, heads=2, depth=3))
        >>> scores = insight.circuit_scores(model)
        >>> scores.copying.shape, bool(scores.copying.abs().max() <= 1)
        (torch.Size([3, 2]), True)
    """
    site = circuit_site(model, kind)
    copying, matching = [], []
    for layer in range(site.depth):
        matrices = head_matrices(model, layer, site.kind)
        copying.append(eigenvalue_scores(matrices.output, matrices.value))
        matching.append(eigenvalue_scores(matrices.query.mT, matrices.key))

    return CircuitScores(site.kind, torch.stack(copying), torch.stack(matching))


def eigenvalue_scores(
    left: Float[Tensor, "H E D"], right: Float[Tensor, "H D E"]
) -> Float[Tensor, "H"]:
    """sum(λ) / sum(|λ|) for the eigenvalues of each product left @ right.

    AB and BA have the same eigenvalues other than 0, so those of a D x D matrix are enough.
    """
    small = right.double().cpu() @ left.double().cpu()  # (H, D, D)
    values = torch.linalg.eigvals(small)
    size = values.abs().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)

    return (values.real.sum(-1) / size).float()
