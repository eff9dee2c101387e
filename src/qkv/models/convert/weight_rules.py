"""Weight rules: one table per family that maps our tensors to those of `transformers` and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.models.convert.config_fields import Fields, SpecialIds
from qkv.models.model import Model
from qkv.models.registry import Config, build, check_finite, weights_of, with_weights

C = TypeVar("C", bound=Config)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class WeightRule:
    """Our tensor is the concatenation of theirs along the first axis."""

    ours: str
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    """Rows of each of theirs, if there are several."""
    transposed: bool = False
    """Theirs is (inputs, outputs), as GPT-2 stores its matrices."""
    flat: bool = False
    """Theirs has a first axis of length 1 that ours has not."""
    copies: tuple[str, ...] = ()
    """Other names that a file may have for the same, tied, tensor."""

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shapes that theirs must have for ours to have this shape."""
        pieces = [(rows, *shape[1:]) for rows in self.sizes or shape[:1]]
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


def linear(
    ours: str, theirs: str, *, bias: bool = True, transposed: bool = False
) -> list[WeightRule]:
    rules = [WeightRule(f"{ours}.weight", (f"{theirs}.weight",), transposed=transposed)]
    if bias:
        rules.append(WeightRule(f"{ours}.bias", (f"{theirs}.bias",)))

    return rules


def layer_norm(ours: str, theirs: str) -> list[WeightRule]:
    return [
        WeightRule(f"{ours}.gain", (f"{theirs}.weight",)),
        WeightRule(f"{ours}.bias", (f"{theirs}.bias",)),
    ]


def stacked(
    ours: str, theirs: tuple[str, ...], sizes: tuple[int, ...], *, bias: bool = True
) -> list[WeightRule]:
    """Return rules for one layer of ours that is several of theirs: q, k and v, or gate and up."""
    weights = tuple(f"{name}.weight" for name in theirs)
    rules = [WeightRule(f"{ours}.weight", weights, sizes)]
    if bias:
        biases = tuple(f"{name}.bias" for name in theirs)
        rules.append(WeightRule(f"{ours}.bias", biases, sizes))

    return rules


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


@dataclass(frozen=True)
class Format(Generic[C]):
    """How `transformers` stores one family of models: its config, its tensors' names and shapes."""

    name: str
    architectures: tuple[str, ...]
    """Their classes whose weights can be read."""
    config_from_hf: Callable[[Fields, Weights], C]
    config_to_hf: Callable[[C, SpecialIds], dict[str, Any]]
    rules: Callable[[C], list[WeightRule]]
    prefix: str
    """Prefix of the inner model's names; files of the inner model alone leave it out."""
    heads: tuple[str, ...]
    """Prefixes of names outside the inner model."""
    bare: tuple[str, ...] = ()
    """Classes that are written without the prefix."""
    ignored: str = r"(?!)"
    """Buffers that some versions store although they can be computed."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Old endings of names and the new ones."""
    constants: tuple[str, ...] = ()
    """Tensors that a file may hold and our model computes; config_from_hf checks them."""
    make_constants: Callable[[C], dict[str, Tensor]] = lambda config: {}

    def canonical(self, weights: Weights) -> Weights:
        """Return the same weights under the newest names."""
        read: dict[str, Callable[[], Tensor]] = {}
        for name in weights:
            new_name = self.canonical_name(name)
            if re.search(self.ignored, new_name):
                continue
            if new_name in read:
                raise ValueError(f"{weights.origin}: two tensors mean {new_name}; expected one")

            read[new_name] = weights.read[name]

        return Weights(read, weights.origin, allow_nonfinite=weights.allow_nonfinite)

    def canonical_name(self, name: str) -> str:
        if not name.startswith((self.prefix, *self.heads)):
            name = self.prefix + name

        for old_end, new_end in self.spellings:
            if name.endswith(old_end):
                name = name.removesuffix(old_end) + new_end

        return name


# From transformers


def model_from_hf(
    format: Format[Any], fields: Fields, weights: Weights, dtype: torch.dtype | None
) -> Model:
    """Return our model from their config and weights, in evaluation mode."""
    weights = format.canonical(weights)
    try:
        config = format.config_from_hf(fields, weights)
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    # Before a mistyped number makes us build a million blocks.
    layers = max(config.depth, getattr(config, "decoder_depth", None) or 0)
    if layers > len(weights):
        raise ValueError(
            f"{fields.origin}: {layers} layers, but {weights.origin} has {len(weights)} tensors"
        )

    with torch.device("meta"):
        expected = build(config).state_dict()

    rules = format.rules(config)
    check_names(rules, weights, format.constants)
    ours = {}
    for rule in rules:
        ours[rule.ours] = tensor_from_hf(rule, weights, tuple(expected[rule.ours].shape), dtype)

    return with_weights(config, ours, weights.origin).eval()


def check_names(rules: list[WeightRule], weights: Weights, constants: tuple[str, ...]) -> None:
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


def tensor_from_hf(
    rule: WeightRule, weights: Weights, shape: tuple[int, ...], dtype: torch.dtype | None
) -> Tensor:
    """Return our tensor, after checking dtype, shape and tied copies of theirs."""
    pieces = []
    for name, expected in zip(rule.theirs, rule.shapes(shape), strict=True):
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


# To transformers


def weights_to_hf(format: Format[Any], model: Model) -> dict[str, Tensor]:
    """Return our weights under their names; most are views, so this costs no memory."""
    ours = weights_of(model)
    rules = format.rules(model.config)
    unmatched = ours.keys() ^ {rule.ours for rule in rules}
    if unmatched:
        name = min(unmatched)
        raise ValueError(f"{name}: {format.name}'s format has no place for this tensor")

    theirs: dict[str, Tensor] = {}
    for rule in rules:
        theirs.update(rule.split(ours[rule.ours]))

    return theirs | format.make_constants(model.config)
