"""Multi-head attention, forward and backward: qkv, torch.nn.MultiheadAttention, x-transformers.

python -m benchmarks.attention.multi_head            on the CPU, or on a GPU if there is one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from torch import nn

from benchmarks.harness import Table, compare
from qkv.nn.attention.multi_head import MultiHeadAttention

HEADS = 8


@dataclass
class Options:
    rounds: int = 15
    """Each peer runs once a round, in turn; the median of the rounds counts."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


def ours(width: int, bias: bool = True) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    module = MultiHeadAttention(width, HEADS, qkv_bias=bias, output_bias=bias)
    return module, lambda x: module(x)[0]


def torch_peer(width: int) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    module = nn.MultiheadAttention(width, HEADS, batch_first=True)
    return module, lambda x: module(x, x, x, need_weights=False)[0]


def x_transformers_peer(width: int) -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    from x_transformers.x_transformers import Attention

    module = Attention(dim=width, heads=HEADS, dim_head=width // HEADS, flash=True)

    def forward(x: torch.Tensor) -> torch.Tensor:
        output = module(x)
        return output[0] if isinstance(output, tuple) else output

    return module, forward


# Each peer beside ours with the same parameters: torch's has biases, that of x-transformers has
# none.
PAIRS = [
    {"qkv": ours, "torch.nn.MultiheadAttention": torch_peer},
    {
        "qkv without biases": lambda width: ours(width, bias=False),
        "x-transformers (flash)": x_transformers_peer,
    },
]


def main(options: Options) -> None:
    table = Table(
        f"multi-head attention, forward + backward, float32, {HEADS} heads, {options.device}"
    )
    for shape in ((8, 512, 512), (1, 4096, 512)):
        x = torch.randn(shape, device=options.device, requires_grad=True)
        for pair in PAIRS:
            runs = {}
            for name, make in pair.items():
                module, forward = make(shape[-1])
                module.to(options.device).train()

                def run(
                    module: nn.Module = module, forward: Callable = forward, x: torch.Tensor = x
                ) -> None:
                    module.zero_grad(set_to_none=True)
                    x.grad = None
                    forward(x).sum().backward()

                runs[name] = run
            table.add(str(shape), compare(runs, options.rounds, options.device))
    table.print()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
