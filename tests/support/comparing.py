"""Compare the output and the gradients of one attention call between kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.nn.attention import attend, scaled_dot
from support.draws import Call

TIGHT = 1e-9
SINGLE = 1e-5


def outcome(
    call: Call, kernel: str | None, score: Callable[..., Tensor] = scaled_dot
) -> dict[str, Tensor]:
    """The output and the gradient of everything that has one."""
    output, _ = attend(
        call.query, call.key, call.value, mask=call.mask, score=score, bias=call.bias, kernel=kernel
    )
    leaves = call.leaves
    if isinstance(score, torch.nn.Module):
        leaves |= dict(score.named_parameters())
    gradients = torch.autograd.grad(
        output, list(leaves.values()), call.ask, allow_unused=True, materialize_grads=True
    )
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Equal up to a tolerance relative to the largest expected number."""
    assert actual.keys() == expected.keys()
    for name, right in expected.items():
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        assert_close(
            actual[name].to(right),
            right,
            rtol=0,
            atol=tolerance * scale,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def assert_kernel_equals_eager(
    call: Call, kernel: str | None, score: Callable[..., Tensor] = scaled_dot
) -> None:
    """In float64 equal to eager; in float32 as close to eager in float64 as float32 allows."""
    expected = outcome(call, "eager", score)
    assert_same(outcome(call, kernel, score), expected, TIGHT)
    if not isinstance(score, torch.nn.Module):
        assert_same(outcome(call.to(torch.float32), kernel, score), expected, SINGLE)
