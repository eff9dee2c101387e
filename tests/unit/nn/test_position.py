"""Positions against the papers' formulas."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch.testing import assert_close

from qkv.nn.position import (
    Learned,
    RotaryScaling,
    alibi_slopes,
    join,
    rotary_angles,
    rotate,
    sinusoidal,
)


@pytest.mark.parametrize("width", [1, 2, 7, 16])
@pytest.mark.parametrize("order", ["interleaved", "halves"])
def test_sinusoids_are_the_papers(width: int, order: str) -> None:
    positions = torch.tensor([[0, 1, 5], [17, 511, 100_000]])
    table = sinusoidal(positions, width, order)
    assert table.shape == (2, 3, width)
    half = (width + 1) // 2
    for index, p in zip(table.flatten(0, 1), positions.flatten().tolist(), strict=True):
        for column, number in enumerate(index.tolist()):
            i, wave = (
                (column // 2, column % 2)
                if order == "interleaved"
                else (column % half, column // half)
            )
            angle = p / 10000 ** (2 * i / width)
            assert number == pytest.approx(math.cos(angle) if wave else math.sin(angle), abs=1e-6)


@pytest.mark.usefixtures("double_by_default")
def test_a_sinusoid_of_the_next_position_is_a_rotation() -> None:
    """Why the paper chose it: PE(p + n) is a linear function of PE(p), the same for every p."""
    table = sinusoidal(torch.arange(50), 8, "halves")
    move = torch.linalg.lstsq(table[:-3], table[3:]).solution
    assert_close(table[:-3] @ move, table[3:])


def test_negative_distances_mirror_the_sines() -> None:
    present, back = (
        sinusoidal(torch.tensor([3]), 6, "halves"),
        sinusoidal(torch.tensor([-3]), 6, "halves"),
    )
    assert_close(present[:, 3:], back[:, 3:])
    assert_close(present[:, :3], -back[:, :3])


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_rotary_is_multiplication_by_a_complex_number(base: float) -> None:
    """Dimensions i and i + D/2 are one complex number, turned by p * base^(-2i/D)."""
    D, positions = 8, torch.tensor([[0, 1, 2, 300], [7, 7, 0, 31]])
    x = torch.randn(2, 3, 4, D, dtype=torch.float64)
    turned = rotate(x, rotary_angles(positions, D, base))
    for b in range(2):
        for t in range(4):
            for i in range(D // 2):
                angle = cmath.exp(1j * int(positions[b, t]) * base ** (-2 * i / D))
                for h in range(3):
                    right = complex(x[b, h, t, i], x[b, h, t, i + D // 2]) * angle
                    actual = complex(turned[b, h, t, i], turned[b, h, t, i + D // 2])
                    assert abs(actual - right) < 1e-4


def test_rotated_scores_depend_on_the_distance_alone() -> None:
    q, k = (
        torch.randn(1, 1, 1, 8, dtype=torch.float64),
        torch.randn(1, 1, 1, 8, dtype=torch.float64),
    )

    def score(p: int, s: int) -> torch.Tensor:
        angles = [rotary_angles(torch.tensor([[n]]), 8) for n in (p, s)]
        return (rotate(q, angles[0]) * rotate(k, angles[1])).sum()

    assert_close(score(9, 4), score(105, 100), rtol=0, atol=1e-4)
    assert abs(score(9, 4) - score(9, 5)) > 1e-2


def test_stretched_rotary_is_llama_3s() -> None:
    """High frequencies stay, low ones are divided by `factor`, and between them it is linear."""
    scaling = RotaryScaling(factor=8.0, low=1.0, high=4.0, original_context=8192)
    D, base = 128, 500000.0
    cos, sin = rotary_angles(torch.tensor([[1]]), D, base, scaling)
    actual = torch.atan2(sin, cos).flatten()[: D // 2].tolist()
    kinds = set()
    for i, speed in enumerate(actual):
        right = base ** (-2 * i / D)
        wavelength = 2 * math.pi / right
        if wavelength > 8192 / 1.0:
            kind, right = "slow", right / 8
        elif wavelength < 8192 / 4.0:
            kind = "fast"
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            kind, right = "between", (1 - smooth) * right / 8 + smooth * right
        kinds.add(kind)
        assert speed == pytest.approx(right, rel=1e-4)
    assert kinds == {"slow", "between", "fast"}


def test_alibi_slopes_of_8_heads_are_the_papers() -> None:
    assert alibi_slopes(8).tolist() == [
        1 / 2,
        1 / 4,
        1 / 8,
        1 / 16,
        1 / 32,
        1 / 64,
        1 / 128,
        1 / 256,
    ]


def test_alibi_slopes_of_12_heads_are_the_papers() -> None:
    """Those of 8 heads, then every other one of 16."""
    sixteen = [2 ** (-(i + 1) / 2) for i in range(16)]
    assert alibi_slopes(12).tolist() == pytest.approx(
        [2.0 ** -(i + 1) for i in range(8)] + sixteen[0:8:2]
    )


def test_alibi_slopes_of_one_head_and_of_16() -> None:
    assert alibi_slopes(1).tolist() == [1 / 256]
    assert alibi_slopes(16).tolist() == pytest.approx([2 ** (-(i + 1) / 2) for i in range(16)])


def test_learned_positions_are_rows_of_a_table() -> None:
    learned = Learned(5, 3)
    assert_close(learned(torch.tensor([[4, 0]])), learned.weight[[4, 0]].unsqueeze(0))


def test_joins() -> None:
    token, position = torch.randn(2, 3, 4), torch.randn(1, 3, 4)
    assert_close(join(token, position, "sum"), token + position)
    assert_close(join(token, position, "product"), token * position)
    beside = join(token, position[..., :2], "concatenate")
    assert_close(beside[..., :4], token)
    assert_close(beside[..., 4:], position[..., :2].expand(2, -1, -1))
