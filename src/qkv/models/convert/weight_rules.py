"""Weight rules: our tensors from those of `transformers` and back, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.models.registry import check_finite

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class WeightRule:
    """Our tensor is the concatenation of theirs along the first axis."""

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...] = ()
    """The shape of ours."""
    sizes: tuple[int, ...] = ()
    """Rows of each of theirs, if there are several."""
    transposed: bool = False
    """Theirs is (inputs, outputs), as GPT-2 stores its matrices."""
    flat: bool = False
    """Theirs has a first axis of length 1 that ours has not."""
    copies: tuple[str, ...] = ()
    """Other names that a file may have for the same, tied, tensor."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes that theirs must have for ours to have its shape."""
        pieces = [(rows, *self.shape[1:]) for rows in self.sizes or self.shape[:1]]
        if self.transposed:
            pieces = [piece[::-1] for piece in pieces]
        if self.flat:
            pieces = [(1, *piece) for piece in pieces]

        return pieces

    def join(self, pieces: Iterable[Tensor]) -> Tensor:
        """Return our tensor from theirs, as a copy: the file may change while the model lives."""
        parts = []
        for piece in pieces:
            if self.flat:
                piece = piece[0]
            if self.transposed:
                piece = piece.T

            parts.append(piece)

        return torch.cat(parts)

    def split(self, ours: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield their names and tensors from our tensor."""
        pieces = ours.split(self.sizes or (ours.shape[0],))
        for name, piece in zip(self.theirs, pieces, strict=True):
            if self.transposed:
                piece = piece.T
            if self.flat:
                piece = piece.unsqueeze(0)

            yield name, piece


class Weights:
    """Tensors by name; each is read from its file when it is looked up."""

    def __init__(
        self,
        read: Mapping[str, Callable[[], Tensor]],
        origin: str,
        *,
        allow_nonfinite: bool = False,
    ) -> None:
        self.read = dict(read)
        self.origin = origin
        self.allow_nonfinite = allow_nonfinite

    def __getitem__(self, name: str) -> Tensor:
        try:
            tensor = self.read[name]()
        except (ValueError, SafetensorError) as error:
            raise ValueError(f"{self.origin}: {name}: {error}") from error

        self.check(name, tensor)
        return tensor

    def check(self, name: str, tensor: Tensor) -> None:
        """Raise for NaN and infinite numbers, if they are not allowed."""
        if not self.allow_nonfinite:
            check_finite(tensor, f"{self.origin}: {name}")

    def __contains__(self, name: object) -> bool:
        return name in self.read

    def __iter__(self) -> Iterator[str]:
        return iter(self.read)

    def __len__(self) -> int:
        return len(self.read)


def check_names(rules: list[WeightRule], weights: Weights, constants: Iterable[str]) -> None:
    """Raise if a tensor of the rules is missing from the file, or one in the file has no rule."""
    missing: list[str] = []
    known = set(constants)
    for rule in rules:
        known.update(rule.theirs, rule.copies)
        for name in rule.theirs:
            if not names_in(weights, name, rule.copies):
                missing.append(name)

    if missing:
        raise ValueError(
            f"{weights.origin}: {len(missing)} tensors are missing, the first is {missing[0]}"
        )

    if surplus := sorted(set(weights) - known):
        raise ValueError(
            f"{weights.origin}: {len(surplus)} tensors have no place in the model that the config "
            f"describes, the first is {surplus[0]}"
        )


def names_in(weights: Weights, name: str, copies: tuple[str, ...]) -> list[str]:
    """Return the names under which the file has a tensor."""
    return [candidate for candidate in (name, *copies) if candidate in weights]


def tensor_from_hf(rule: WeightRule, weights: Weights, dtype: torch.dtype | None) -> Tensor:
    """Return our tensor, after checking dtype, shape and tied copies of theirs."""
    pieces = []
    for name, expected in zip(rule.theirs, rule.shapes(), strict=True):
        first, *copies = names_in(weights, name, rule.copies)
        tensor = weights[first]
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"{weights.origin}: {first} holds {tensor.dtype}, "
                "expected numbers that are not quantised"
            )
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{weights.origin}: {first} has shape {tuple(tensor.shape)}, expected {expected}"
            )

        for copy in copies:
            if not equal(weights[copy], tensor):
                raise ValueError(
                    f"{weights.origin}: {copy} differs from {first}, "
                    "but the config says they are tied"
                )

        pieces.append(tensor)

    ours = rule.join(pieces)
    if dtype is None or dtype == ours.dtype:
        return ours

    converted = ours.to(dtype)
    if torch.finfo(dtype).max < torch.finfo(ours.dtype).max:  # large numbers may be infinite now
        weights.check(f"{rule.theirs[0]} as {dtype}", converted)

    return converted


def equal(one: Tensor, other: Tensor) -> bool:
    """Like torch.equal, but NaN equals NaN."""
    if torch.equal(one, other):
        return True

    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
