"""Norms equal their formulas and PyTorch's."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from qkv.nn.norm import LayerNorm, RMSNorm

x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1


def test_layer_norm_is_its_formula() -> None:
    norm = LayerNorm(8, epsilon=0.1).double()
    nn.init.normal_(norm.gain)
    nn.init.normal_(norm.bias)
    mean = sum(x[..., i] for i in range(8)).unsqueeze(-1) / 8
    variance = sum((x[..., i] - mean[..., 0]) ** 2 for i in range(8)).unsqueeze(-1) / 8
    assert_close(norm(x), norm.gain * (x - mean) / (variance + 0.1).sqrt() + norm.bias)


def test_rms_norm_is_its_formula() -> None:
    norm = RMSNorm(8, epsilon=0.1).double()
    nn.init.normal_(norm.gain)
    mean_square = sum(x[..., i] ** 2 for i in range(8)).unsqueeze(-1) / 8
    assert_close(norm(x), norm.gain * x / (mean_square + 0.1).sqrt())


def test_norms_equal_torch_with_the_same_weights() -> None:
    layer = LayerNorm(8, 1e-3).double()
    rms = RMSNorm(8, 1e-3).double()
    for parameter in (layer.gain, layer.bias, rms.gain):
        nn.init.normal_(parameter)

    their_layer = nn.LayerNorm(8, 1e-3, dtype=torch.float64)
    their_rms = nn.RMSNorm(8, 1e-3, dtype=torch.float64)
    their_layer.load_state_dict({"weight": layer.gain, "bias": layer.bias})
    their_rms.load_state_dict({"weight": rms.gain})
    for ours, theirs in ((layer, their_layer), (rms, their_rms)):
        one = x.clone().requires_grad_()
        other = x.clone().requires_grad_()
        assert_close(ours(one), theirs(other))
        ours(one).square().sum().backward()
        theirs(other).square().sum().backward()
        assert_close(one.grad, other.grad)


def test_fresh_norms_give_vectors_of_mean_0_and_size_1() -> None:
    assert_close(LayerNorm(8).double()(x).mean(-1), torch.zeros(2, 3, dtype=torch.float64))
    assert_close(
        LayerNorm(8, 0.0).double()(x).var(-1, correction=0), torch.ones(2, 3, dtype=torch.float64)
    )
    assert_close(
        RMSNorm(8, 0.0).double()(x).square().mean(-1), torch.ones(2, 3, dtype=torch.float64)
    )
