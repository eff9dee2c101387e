"""The end of a decode step in a CUDA graph: tokens go to the host, and all counters advance.

On a GPU one kernel does this, which writes the tokens into the host's memory itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.cache import StaticCache
from qkv.nn.decode.dependent_launch import launch_options

try:
    import triton
    import triton.language as tl

    from qkv.nn.decode.dependent_launch import start_next, wait
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None


@dataclass
class StepCounters:
    """What a step reads and the end of a step writes, at fixed addresses."""

    cache: StaticCache
    tokens: Int[Tensor, "B"]
    """The last token of each row, the input of the next step."""
    step: Int[Tensor, "1"]
    """Tokens generated so far."""
    uniforms: Float[Tensor, "B L"]
    uniform: Float[Tensor, "B"]
    """The uniform number of each row in the next step."""
    host: Int[Tensor, "M B"]
    """The tokens of every step, also those that are discarded; see `token_memory`."""

    def finish(self, tokens: Int[Tensor, "B"]) -> None:
        """Store the tokens of a step, and advance to the next slot."""
        if triton is not None and tokens.is_cuda:
            self.launch(tokens)
            return

        self.host.index_copy_(0, self.step, tokens.unsqueeze(0))
        self.tokens.copy_(tokens.clamp(min=0))
        self.step += 1
        last = self.uniforms.shape[1] - 1
        self.uniform.copy_(self.uniforms.index_select(1, self.step.clamp(max=last)).squeeze(1))
        self.cache.advance()

    def launch(self, tokens: Int[Tensor, "B"]) -> None:
        rows = len(tokens)
        cache = self.cache
        finish_step[(1,)](
            tokens, self.tokens, self.host, self.step, self.uniforms, self.uniform,
            cache.slot, cache.positions, cache.padding_mask.view(torch.uint8),
            rows, self.uniforms.shape[1], cache.capacity,
            ROWS=triton.next_power_of_2(rows), num_warps=1, **launch_options(),
        )  # fmt: skip

    def reset(self, slot: int, uniforms: Float[Tensor, "B L"]) -> None:
        """Begin a batch whose first token goes to the slot after this one."""
        self.cache.slot.fill_(slot)
        self.step.zero_()
        self.uniforms[:, : uniforms.shape[1]] = uniforms
        self.uniform.copy_(self.uniforms[:, 0])


def token_memory(steps: int, rows: int, device: torch.device) -> Int[Tensor, "M B"]:
    """Memory for the tokens of all steps: the host's, if a kernel can write there."""
    if triton is None:
        return torch.zeros(steps, rows, dtype=torch.int64, device=device)

    return torch.zeros(steps, rows, dtype=torch.int64, pin_memory=True)


if triton is not None:

    @triton.jit
    def finish_step(  # type: ignore[no-untyped-def]
        sampled, tokens, host, step, uniforms, uniform, slot, positions, padding_mask,
        rows, length, capacity, ROWS: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """One program for all rows."""
        r = tl.arange(0, ROWS)
        inside = r < rows
        number = tl.load(step)
        next_slot = tl.minimum(tl.load(slot) + 1, capacity - 1)
        start_next(PDL)
        wait(PDL)

        token = tl.load(sampled + r, mask=inside, other=0)
        tl.store(host + number * rows + r, token, mask=inside)
        tl.store(tokens + r, tl.maximum(token, 0), mask=inside)

        following = tl.minimum(number + 1, length - 1)
        numbers = tl.load(uniforms + r * length + following, mask=inside, other=0.0)
        tl.store(uniform + r, numbers, mask=inside)

        position = tl.load(positions + r, mask=inside, other=0)
        tl.store(positions + r, tl.minimum(position + 1, capacity - 1), mask=inside)
        tl.store(padding_mask + r.to(tl.int64) * capacity + next_slot, 1, mask=inside)

        tl.debug_barrier()  # every thread has read the counters
        tl.store(slot, next_slot)
        tl.store(step, number + 1)
