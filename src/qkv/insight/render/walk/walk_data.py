"""The walk of a head for a page: its arrays as they were captured, in base64."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from qkv.insight.inspect.look_data import LookData
from qkv.insight.walk.head_lens import HeadLens
from qkv.insight.walk.head_walk import HeadWalk


def walk_blocks(look: LookData) -> Iterator[tuple[str, dict[str, Any]]]:
    """The walks of a look by the names of their blocks."""
    for (kind, layer, head), walk in (look.walks or {}).items():
        yield f"walk.{kind}.{layer}.{head}", walk_data(walk)


def described_walks(look: LookData) -> dict[str, Any] | None:
    """The heads of each kind that the page can walk; None without walks."""
    if not look.walks:
        return None

    kinds: dict[str, Any] = {}
    for kind, layer, head in look.walks:
        kinds.setdefault(str(kind), {"heads": []})["heads"].append([layer, head])

    return kinds


def walk_data(walk: HeadWalk) -> dict[str, Any]:
    """One walk for JSON; an array is its shape, its type and its numbers in base64."""
    equation = walk.equation
    data: dict[str, Any] = {
        "kind": walk.kind,
        "layer": walk.layer,
        "head": walk.head,
        "score": equation.score,
        "divisor": equation.divisor,
        "position": walk.position,
        "norm": walk.norm,
        "query": array(equation.query),
        "key": array(equation.key),
        "value": array(equation.value),
        "scores": array(walk.scores),
        "weights": array(walk.weights),
        "output": array(walk.output),
        "visible": array(walk.visible),
        "bias": optional_array(equation.bias),
        "additive": optional_array(equation.additive),
        "rotary": None,
        "slope": equation.slope,
        "by_distance": bias_by_distance(walk),
        "written": optional_array(walk.written),
        "lengths": lengths(walk),
        "lens": lens_data(walk.lens),
    }
    if equation.rotary is not None:
        data["rotary"] = {
            "frequencies": equation.rotary.frequencies.tolist(),
            "query": array(equation.rotary.query),
            "key": array(equation.rotary.key),
        }

    return data


def array(values: Tensor) -> dict[str, Any]:
    """A tensor as float32, or as bytes of 0 and 1, little-endian and row by row."""
    kind = "f4"
    coded = "<f4"
    if values.dtype == torch.bool:
        kind = "u1"
        coded = "u1"

    numbers = values.detach().cpu()
    numbers = numbers.to(torch.uint8) if kind == "u1" else numbers.float()
    content = numbers.contiguous().numpy().astype(coded).tobytes()

    return {
        "shape": list(values.shape),
        "type": kind,
        "data": base64.b64encode(content).decode(),
    }


def optional_array(values: Tensor | None) -> dict[str, Any] | None:
    return None if values is None else array(values)


def bias_by_distance(walk: HeadWalk) -> dict[str, Any] | None:
    """Relative positions: the bias of each query at every distance inside the text."""
    equation = walk.equation
    if equation.score != "relative" or equation.bias_of is None:
        return None

    T, S = walk.scores.shape
    distance = torch.arange(1 - T, S)  # (S + T - 1,)
    with torch.no_grad():
        bias = equation.bias_of(distance.expand(T, -1))

    return {"first": 1 - T, "bias": array(bias)}


def lengths(walk: HeadWalk) -> dict[str, list[float | None]] | None:
    """The lengths of the residual stream, of what the head writes, and of their sum."""
    if walk.before is None or walk.written is None:
        return None

    return {
        "before": norms(walk.before),
        "written": norms(walk.written),
        "after": norms(walk.before + walk.written),
    }


def norms(vectors: Tensor) -> list[float | None]:
    """The Euclidean length of each vector; None where it is not finite."""
    return list(map(finite, vectors.float().norm(dim=-1).tolist()))


def finite(value: float) -> float | None:
    """A number that JSON can have, or None."""
    return value if math.isfinite(value) else None


def lens_data(lens: HeadLens | None) -> dict[str, Any] | None:
    """The lens as lists: [text, id, probability], and [text, id, before, after]."""
    if lens is None:
        return None

    return {
        "before": [[shortened(guess) for guess in row] for row in lens.before],
        "after": [[shortened(guess) for guess in row] for row in lens.after],
        "changed": [[shortened(change) for change in row] for row in lens.changed],
    }


def shortened(guess: Any, digits: int = 4) -> list[Any]:
    """The text and id of a token, and its numbers with a few digits; None if not finite."""
    text, id, *numbers = guess
    return [text, id, *(finite(float(f"{value:.{digits}g}")) for value in numbers)]
