"""One table of rules a family says which of our tensors is made of which of theirs; it serves
reading and writing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.models.convert.config_fields import Fields, SpecialIds
from qkv.models.registry import Config, Model, build, check_finite, weights_of, with_weights

C = TypeVar("C", bound=Config)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class WeightRule:
    """Ours is theirs, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    """Rows of each of theirs, where there are several."""
    transposed: bool = False
    """Theirs is (inputs, outputs), as GPT-2 stores its matrices."""
    flat: bool = False
    """Theirs has a first axis of length 1 that ours has not."""
    copies: tuple[str, ...] = ()
    """Other names a file may give the same, tied, tensor."""

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What theirs must look like for ours to have this shape."""
        pieces = [(rows, *shape[1:]) for rows in self.sizes or shape[:1]]
        if self.transposed:
            pieces = [piece[::-1] for piece in pieces]

        return [(1, *piece) for piece in pieces] if self.flat else pieces

    def join(self, pieces: Iterable[Tensor]) -> Tensor:
        """Theirs to ours, in memory of its own: the file may be overwritten while the model lives."""
        pieces = [piece[0] if self.flat else piece for piece in pieces]
        return torch.cat([piece.T if self.transposed else piece for piece in pieces])

    def split(self, ours: Tensor) -> Iterator[tuple[str, Tensor]]:
        pieces = ours.split(self.sizes or (ours.shape[0],))
        for name, piece in zip(self.theirs, pieces, strict=True):
            piece = piece.T if self.transposed else piece
            yield name, piece.unsqueeze(0) if self.flat else piece


def linear(
    ours: str, theirs: str, *, bias: bool = True, transposed: bool = False
) -> list[WeightRule]:
    rules = [WeightRule(f"{ours}.weight", (f"{theirs}.weight",), transposed=transposed)]
    return [*rules, WeightRule(f"{ours}.bias", (f"{theirs}.bias",))] if bias else rules


def layer_norm(ours: str, theirs: str) -> list[WeightRule]:
    return [
        WeightRule(f"{ours}.gain", (f"{theirs}.weight",)),
        WeightRule(f"{ours}.bias", (f"{theirs}.bias",)),
    ]


def stacked(
    ours: str, theirs: tuple[str, ...], sizes: tuple[int, ...], *, bias: bool = True
) -> list[WeightRule]:
    """Our one layer is several of theirs: query, key and value, or gate and up."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [
        WeightRule(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs), sizes)
        for kind in kinds
    ]


class Weights:
    """Tensors by name, each read from its file only when asked for."""

    def __init__(
        self,
        read: Mapping[str, Callable[[], Tensor]],
        origin: str,
        *,
        allow_nonfinite: bool = False,
    ) -> None:
        self.read, self.origin, self.allow_nonfinite = dict(read), origin, allow_nonfinite

    def __getitem__(self, name: str) -> Tensor:
        try:
            tensor = self.read[name]()
        except (ValueError, SafetensorError) as error:
            raise ValueError(f"{self.origin}: {name}: {error}") from error

        self.check(name, tensor)
        return tensor

    def check(self, name: str, tensor: Tensor) -> None:
        """NaN and infinite numbers are refused, unless they are allowed."""
        if not self.allow_nonfinite:
            check_finite(tensor, f"{self.origin}: {name}")

    def __contains__(self, name: object) -> bool:
        return name in self.read

    def __iter__(self) -> Iterator[str]:
        return iter(self.read)

    def __len__(self) -> int:
        return len(self.read)


@dataclass(frozen=True)
class Format(Generic[C]):
    """How another library spells one family of models."""

    name: str
    architectures: tuple[str, ...]
    """Classes of theirs whose weights we can read."""
    config_in: Callable[[Fields, Weights], C]
    config_out: Callable[[C, SpecialIds], dict[str, Any]]
    rules: Callable[[C], list[WeightRule]]
    prefix: str
    """What the names of the inner model begin with; files of the inner model alone leave it out."""
    heads: tuple[str, ...]
    """Beginnings of names outside the inner model."""
    bare: tuple[str, ...] = ()
    """Classes we write without the prefix."""
    ignored: str = r"(?!)"
    """Buffers that some versions store and that can be computed."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Old endings of names and the new ones."""
    constants: tuple[str, ...] = ()
    """Tensors that a file may hold and our model computes; config_in checks them."""
    make_constants: Callable[[C], dict[str, Tensor]] = lambda config: {}

    def canonical(self, weights: Weights) -> Weights:
        """The same weights under the newest names."""
        read: dict[str, Callable[[], Tensor]] = {}
        for name in weights:
            new = name if name.startswith((self.prefix, *self.heads)) else self.prefix + name
            for old_end, new_end in self.spellings:
                new = new.removesuffix(old_end) + new_end if new.endswith(old_end) else new

            if re.search(self.ignored, new):
                continue
            if new in read:
                raise ValueError(f"{weights.origin}: two tensors mean {new}; expected one")

            read[new] = weights.read[name]

        return Weights(read, weights.origin, allow_nonfinite=weights.allow_nonfinite)


def assemble(
    format: Format[Any], fields: Fields, weights: Weights, dtype: torch.dtype | None
) -> Model:
    """Our model from their config and weights, ready for use (dropout off)."""
    weights = format.canonical(weights)
    try:
        config = format.config_in(fields, weights)
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    layers = max(config.depth, getattr(config, "decoder_depth", None) or 0)
    if layers > len(weights):  # before a mistyped number makes us build a million blocks
        raise ValueError(
            f"{fields.origin}: {layers} layers, but {weights.origin} has {len(weights)} tensors"
        )

    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()}

    rules = format.rules(config)
    check_names(rules, weights, format.constants)
    ours = {rule.ours: read(rule, weights, shapes[rule.ours], dtype) for rule in rules}

    return with_weights(config, ours, weights.origin).eval()


def check_names(rules: list[WeightRule], weights: Weights, constants: tuple[str, ...]) -> None:
    missing = [
        name
        for rule in rules
        for name in rule.theirs
        if not any(x in weights for x in (name, *rule.copies))
    ]

    if missing:
        raise ValueError(
            f"{weights.origin}: {len(missing)} tensors are missing, the first is {missing[0]}"
        )

    known = {name for rule in rules for name in (*rule.theirs, *rule.copies)} | {*constants}
    if surplus := sorted(set(weights) - known):
        raise ValueError(
            f"{weights.origin}: {len(surplus)} tensors have no place in the model that the config describes, "
            f"the first is {surplus[0]}"
        )


def read(
    rule: WeightRule, weights: Weights, shape: tuple[int, ...], dtype: torch.dtype | None
) -> Tensor:
    pieces = []
    for name, expected in zip(rule.theirs, rule.shapes(shape), strict=True):
        found = [x for x in (name, *rule.copies) if x in weights]
        tensor = weights[found[0]]
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"{weights.origin}: {found[0]} holds {tensor.dtype}, expected numbers that are not quantised"
            )
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{weights.origin}: {found[0]} has shape {tuple(tensor.shape)}, expected {expected}"
            )

        for copy in found[1:]:
            if not equal(weights[copy], tensor):
                raise ValueError(
                    f"{weights.origin}: {copy} differs from {found[0]}, but the config says they are tied"
                )

        pieces.append(tensor)

    ours = rule.join(pieces)
    if dtype is None or dtype == ours.dtype:
        return ours

    converted = ours.to(dtype)
    if torch.finfo(dtype).max < torch.finfo(ours.dtype).max:
        weights.check(f"{rule.theirs[0]} as {dtype}", converted)

    return converted


def equal(one: Tensor, other: Tensor) -> bool:
    """As torch.equal, but NaN equals NaN."""
    if torch.equal(one, other):
        return True

    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def spread(format: Format[Any], model: Model) -> dict[str, Tensor]:
    """Our weights under their names; most are views, so this costs no memory."""
    ours = weights_of(model)
    rules = format.rules(model.config)
    if strange := sorted(ours.keys() ^ {rule.ours for rule in rules}):
        raise ValueError(f"{strange[0]}: {format.name}'s format has no place for this tensor")

    theirs = dict(piece for rule in rules for piece in rule.split(ours[rule.ours]))

    return theirs | format.make_constants(model.config)
