"""Checks of exercise 6: the positions equal those of `qkv.nn.position`."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    expect_equal,
    expect_gradients,
    expect_shape,
    expect_untouched,
    table,
)
from qkv.nn import position


def waves(length: int, width: int, exponent: Tensor) -> Tensor:
    """Sines in even and cosines in odd columns, with an exponent for each column."""
    angle = torch.arange(length).unsqueeze(1) / 10000**exponent
    even = torch.arange(width) % 2 == 0
    return torch.where(even, angle.sin(), angle.cos())


@check("sinusoidal", "Sine and cosine, with one angle for each pair")
def sines(mine: ModuleType, draw: InputDraw) -> None:
    length, width = draw.size, 2 * draw.size
    places = torch.arange(length)
    right = position.sinusoidal(places, width)
    column = torch.arange(width)
    pair = column // 2
    expect_equal(
        mine.sinusoidal(length, width),
        right,
        f"sinusoidal, {length} positions of width {width}",
        {
            "sinusoidal: the cosine comes before the sine; in each pair the sine comes first": (
                right.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
            ),
            "sinusoidal: all sines stand before all cosines; they alternate: sin, cos, sin, cos": (
                position.sinusoidal(places, width, "halves")
            ),
            "sinusoidal: the first row is that of position 1; counting begins with position 0": (
                position.sinusoidal(places + 1, width)
            ),
            "sinusoidal: the exponent is i / E; it should be 2i / E": (
                waves(length, width, pair / width)
            ),
            "sinusoidal: the exponent is twice as large as it should be; 2i is the column": (
                waves(length, width, 4 * pair / width)
            ),
            "sinusoidal: the position is multiplied by 10000^(2i / E); divide it": (
                waves(length, width, -2 * pair / width)
            ),
            "sinusoidal: sine and cosine of a pair share one angle; here each column has its own": (
                waves(length, width, column / width)
            ),
        },
        shape="(T, E)",
    )


@check("sinusoidal", "It works for any length")
def far_positions(mine: ModuleType, draw: InputDraw) -> None:
    length, width = 100 * draw.size, 8
    expect_equal(
        mine.sinusoidal(length, width)[-2:],
        position.sinusoidal(torch.arange(length)[-2:], width),
        f"sinusoidal, the last two of {length} positions",
        tolerance=1e-3,
    )


def turned(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """The library's rotary positions for x (..., T, D)."""
    angles = position.rotary_angles(positions.unsqueeze(0), x.shape[-1], base)
    joined = x.reshape(1, -1, *x.shape[-2:])
    return position.rotate(joined, angles).view(x.shape)


def neighbours(x: Tensor) -> Tensor:
    """Numbers 0, 2, 4, ..., then 1, 3, 5, ...: pairs of neighbours become pairs of halves."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


def interleave(x: Tensor) -> Tensor:
    """The inverse of `neighbours`."""
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)


def draw_rotation(draw: InputDraw) -> tuple[Tensor, Tensor]:
    """Vectors x, (T, D) or (B, H, T, D), and positions in any order."""
    length, width = draw.size + 1, 2 * draw.size
    shape = (length, width) if draw.size == 1 else (2, 3, length, width)
    positions = draw.permutation(length + 9)[:length]
    positions[0] = 3
    return draw.normal(*shape), positions


@check("rotate", "Pairs i and i + D/2 are turned by position times frequency")
def rotary(mine: ModuleType, draw: InputDraw) -> None:
    x, positions = draw_rotation(draw)
    length = len(positions)
    first, second = x.chunk(2, dim=-1)
    mirrored = torch.cat([first, -second], dim=-1)
    right = turned(x, positions)
    no_minus = torch.cat(
        [turned(mirrored, positions).chunk(2, -1)[0], right.chunk(2, -1)[1]], dim=-1
    )
    with expect_untouched("rotate", x=x, positions=positions):
        found = mine.rotate(x, positions)

    expect_equal(
        found,
        right,
        f"rotate, {length} positions",
        {
            "rotate: it turns in the other direction; check the signs of the sines": (
                turned(x, -positions)
            ),
            "rotate: the minus sign of x_(i + D/2) sin(a) is missing": no_minus,
            "rotate: neighbours 2i and 2i + 1 are the pairs; expected i and i + D/2": (
                interleave(turned(neighbours(x), positions))
            ),
            "rotate: the numbers are right but stand in the wrong place: first all new x_i, then "
            "all new x_(i + D/2)": interleave(right),
            "rotate: rows are counted 0, 1, 2; the argument positions says where they stand": (
                turned(x, torch.arange(length))
            ),
            "rotate: positions are counted from 1": turned(x, positions + 1),
            "rotate: positions are counted from the first row; a row at position 3 is turned by 3 "
            "times the frequency": turned(x, positions - positions[0]),
            "rotate: the exponent is i / D; it should be 2i / D": turned(x, positions, 100.0),
            "rotate: the position is multiplied by base^(2i / D); divide it": (
                turned(x, positions, 1e-4)
            ),
        },
        shape="(..., T, D)",
        inputs={"x": x, "positions": positions.unsqueeze(0)},
    )


@check("rotate", "Another base gives other angles")
def other_base(mine: ModuleType, draw: InputDraw) -> None:
    x, positions = draw_rotation(draw)
    positions = positions + 100
    expect_equal(
        mine.rotate(x, positions, 50.0),
        turned(x, positions, 50.0),
        "rotate, base = 50",
        {"rotate: the angles are those of base 10000, not 50": turned(x, positions)},
        shape="(..., T, D)",
        inputs={"x": x, "positions": positions.unsqueeze(0)},
        tolerance=1e-4,
    )


@check("rotate", "Scores depend on the distance alone, and lengths stay")
def relative(mine: ModuleType, draw: InputDraw) -> None:
    query, key = draw.normal(2, 1, 2 * draw.size)
    near, far = (
        mine.rotate(query, torch.tensor([5 + shift]))
        @ mine.rotate(key, torch.tensor([2 + shift])).T
        for shift in (0, 30)
    )
    expect_equal(
        far, near, "<q, k> at positions 35 and 32, beside positions 5 and 2", tolerance=1e-4
    )
    expect_equal(
        mine.rotate(query, torch.tensor([7])).norm(dim=-1),
        query.norm(dim=-1),
        "the length of a turned vector",
    )
    expect_gradients(
        lambda x: mine.rotate(x, torch.arange(2)),
        lambda x: turned(x, torch.arange(2)),
        {"x": draw.normal(2, 2 * draw.size)},
        "rotate",
    )


@check("alibi_slopes", "2^(-8 h / H)")
def slopes(mine: ModuleType, draw: InputDraw) -> None:
    heads = {1: 1, 2: 2, 3: 4, 5: 8}[draw.size]
    head = torch.arange(heads)
    right = position.alibi_slopes(heads)
    found = mine.alibi_slopes(heads)
    expect_equal(
        found,
        right,
        f"alibi_slopes, {heads} heads",
        {
            "alibi_slopes: the slopes run backwards: head 1 has the steepest": right.flip(0),
            "alibi_slopes: the first slope is 2^0; h begins with 1": 2.0 ** (-8 * head / heads),
            "alibi_slopes: 2^(-h) is right for 8 heads only; the exponent is -8 h / H": (
                2.0 ** -(head + 1)
            ),
            "alibi_slopes: the sign of the exponent is missing": 1 / right,
        },
        shape="(H,)",
    )


@check("alibi_bias", "Minus slope times distance, for each head")
def bias(mine: ModuleType, draw: InputDraw) -> None:
    heads, length = {1: 1, 2: 2, 3: 4, 5: 8}[draw.size], draw.size + 1
    slope = position.alibi_slopes(heads).view(heads, 1, 1)
    places = torch.arange(length)
    difference = places.unsqueeze(1) - places
    right = -slope * difference.abs()
    found = mine.alibi_bias(heads, length)
    expect_shape(found, (heads, length, length), "alibi_bias", "(H, T, T)")
    if bool((found.diagonal(dim1=-2, dim2=-1) != 0).any()):
        raise Failed(
            "alibi_bias: the distance of a position to itself is 0, so the diagonal is 0",
            table("alibi_bias, head 0", found[0]),
        )

    expect_equal(
        found,
        right,
        f"alibi_bias, {heads} heads, {length} positions",
        {
            "alibi_bias: far keys get higher scores; the distance must lower them": -right,
            "alibi_bias: keys after the query get a bonus; the distance is |i - j|": (
                -slope * difference
            ),
            "alibi_bias: keys before the query get a bonus; the distance is |i - j|": (
                slope * difference
            ),
            "alibi_bias: keys after the query are as far as those before it; |i - j|": right.tril(),
            "alibi_bias: all heads have the slope of head 0": right[:1].expand_as(right),
            "alibi_bias: the distance is squared": -slope * difference**2,
        },
        shape="(H, T, T)",
    )
