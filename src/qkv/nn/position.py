"""Positions: sinusoidal, learned, rotary (RoPE) and ALiBi. Attention alone ignores the order.

Sinusoidal and learned positions are joined with the token's embedding; rotary positions turn
queries and keys; ALiBi lowers the scores of far keys. Transformer-XL's relative positions are in
attention/relative.py.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.attention.bias import Bias, Distance
from qkv.nn.own_parts import part_of
from qkv.nn.stack_config import Join, RotaryScaling, Sinusoid, StackConfig


def sinusoidal(
    positions: Int[Tensor, "*n"], width: int, order: Sinusoid = "interleaved"
) -> Float[Tensor, "*n {width}"]:
    """PE(p, 2i) = sin(p / 10000^(2i / width)), PE(p, 2i + 1) = cos(the same).

    Computed anew for any position, so sequences may have any length. The order "halves" puts all
    sines before all cosines.
    """
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    pair = torch.arange(0, width, 2, device=positions.device, dtype=exact)  # (width / 2,)
    frequency = torch.exp(pair * (-math.log(10000.0) / width))
    angle = positions.unsqueeze(-1) * frequency  # (..., width / 2)
    waves = (angle.sin(), angle.cos())
    if order == "interleaved":
        table = torch.stack(waves, dim=-1).flatten(-2)
    else:
        table = torch.cat(waves, dim=-1)

    return table[..., :width].to(torch.get_default_dtype())


class Sinusoidal(nn.Module):
    """Sinusoidal positions as a module without weights."""

    def __init__(self, width: int, order: Sinusoid = "interleaved") -> None:
        super().__init__()
        self.width = width
        self.order: Sinusoid = order

    def forward(self, positions: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        return sinusoidal(positions, self.width, self.order)


class Learned(nn.Embedding):
    """One learned vector for each of `context` positions."""


def join(
    token: Float[Tensor, "B T E"], position: Float[Tensor, "#B T P"], how: Join
) -> Float[Tensor, "B T W"]:
    """Token and position as one vector."""
    if how == "sum":
        return token + position
    if how == "product":
        return token * position

    return torch.cat([token, position.expand(token.shape[0], -1, -1)], dim=-1)


def rotary_frequencies(
    head_width: int,
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, "P"]:
    """The angle by which each pair of a head's dimensions turns from one position to the next."""
    pair = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)  # (D / 2,)
    # As Llama computes it, to the last bit: far positions multiply any error.
    frequency = 1.0 / base ** (pair / head_width)
    if scaling is not None:
        frequency = stretch(frequency, scaling)

    return frequency


def rotary_angles(
    positions: Int[Tensor, "#B T"],
    head_width: int,
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
) -> Float[Tensor, "2 #B 1 T D"]:
    """Cosine and sine of the angle of each pair of a head's dimensions at each position."""
    frequency = rotary_frequencies(head_width, base, scaling, positions.device)  # (D / 2,)
    angle = positions.unsqueeze(-1).float() * frequency  # (B, T, D / 2)
    # Dimensions i and i + D/2 are a pair.
    angle = torch.cat([angle, angle], dim=-1).unsqueeze(1)  # (B, 1, T, D)

    return torch.stack([angle.cos(), angle.sin()])


def stretch(frequency: Float[Tensor, "P"], scaling: RotaryScaling) -> Float[Tensor, "P"]:
    """Lower frequencies divided by the scaling factor, as Llama 3.1 does it for longer contexts."""
    turns = scaling.original_context / (2 * math.pi / frequency)
    # 1 for high frequencies, 0 for low ones, and between them a mixture.
    unscaled = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return unscaled * frequency + (1 - unscaled) * frequency / scaling.factor


def rotate(
    x: Float[Tensor, "B H T D"], angles: Float[Tensor, "2 #B 1 T D"]
) -> Float[Tensor, "B H T D"]:
    """Turn each pair of dimensions by its angle: <q, k> then depends on the distance alone."""
    cos, sin = angles.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class PositionEncoding(nn.Module):
    """Positions that a stack adds. A subclass overrides what it changes; this one changes nothing.

    Args:
        config: The config of the stack.

    Example:
        >>> import torch
        >>> from qkv.nn import PositionEncoding, StackConfig
        >>> class Counted(PositionEncoding):
        ...     def add(self, x, positions):
        ...         return x + 0.01 * positions.unsqueeze(-1)
        >>> Counted(StackConfig()).add(torch.zeros(1, 2, 1), torch.tensor([[0, 1]]))[0, 1]
        tensor([0.0100])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config

    def add(
        self, x: Float[Tensor, "B T E"], positions: Int[Tensor, "#B T"]
    ) -> Float[Tensor, "B T E"]:
        """The embeddings with their positions."""
        return x

    def angles(self, positions: Int[Tensor, "#B T"]) -> Float[Tensor, "2 #B 1 T D"] | None:
        """Cosines and sines by which queries and keys are turned."""
        return None

    def bias(self, device: torch.device) -> Bias | None:
        """What is added to the scores."""
        return None


class Rotary(PositionEncoding):
    """Rotary positions (RoPE, Su et al. 2021)."""

    def angles(self, positions: Int[Tensor, "#B T"]) -> Float[Tensor, "2 #B 1 T D"]:
        config = self.config
        return rotary_angles(
            positions, config.width_of_head, config.rotary_base, config.rotary_scaling
        )


class ALiBi(PositionEncoding):
    """Attention with linear biases (Press et al. 2021)."""

    def bias(self, device: torch.device) -> Bias:
        return Distance(alibi_slopes(self.config.heads, device))


def position_encoding(config: StackConfig) -> PositionEncoding:
    """The positions of a stack; learned and sinusoidal ones belong to the embedding."""
    by_name = {"rotary": Rotary, "alibi": ALiBi}
    kind = by_name.get(config.position, PositionEncoding)
    return part_of("position_encoding", config.position_encoding, kind)(config)


def alibi_slopes(heads: int, device: torch.device | None = None) -> Float[Tensor, "H"]:
    """2^(-8/n), 2^(-16/n), ... for n heads.

    If n is not a power of two, every other slope of the next power follows those of the last one.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]

    return torch.tensor(slopes, device=device)
