"""The matrix of a mask that layers share in training: equal to eager attention, and made once."""

from __future__ import annotations

import pytest
import torch

from qkv.models import TransformerConfig, build
from qkv.nn.attention import Causal, Explicit, Mask, Padding, attend
from qkv.nn.attention.kernels import sdpa

LENGTHS = torch.tensor([5, 0, 3])  # the second row has no key


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "shares_matrix", lambda query: torch.is_grad_enabled())


@pytest.mark.parametrize(
    "mask",
    [
        Padding.of_lengths(LENGTHS, 5),
        Causal(),
        Causal() & Padding.of_lengths(LENGTHS, 5),
        Explicit(torch.rand(3, 2, 5, 5) > 0.5),
    ],
    ids=["padding", "causal", "causal and padding", "explicit"],
)
def test_a_shared_matrix_gives_what_eager_attention_gives(mask: Mask) -> None:
    torch.manual_seed(0)
    results = []
    for kernel in ("eager", "sdpa"):
        torch.manual_seed(1)
        inputs = [torch.randn(3, 2, 5, 4, dtype=torch.float64) for _ in range(3)]
        for tensor in inputs:
            tensor.requires_grad_(True)

        output, _ = attend(*inputs, mask=mask, kernel=kernel)
        results.append([output, *torch.autograd.grad(output.square().sum(), inputs)])

    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    (matrix, _) = next(iter(mask.__dict__["sdpa_matrices"].values()))
    assert matrix.stride(-2) % sdpa.ALIGNED == 0


def test_a_mask_that_was_changed_in_place_has_another_matrix() -> None:
    padding_mask = torch.tensor([[True, True, True]])
    mask = Padding(padding_mask)
    query = torch.randn(1, 1, 3, 4, requires_grad=True)
    attend(query, query, query, mask=mask, kernel="sdpa")
    padding_mask[0, 2] = False
    found, _ = attend(query, query, query, mask=mask, kernel="sdpa")
    expected, _ = attend(query, query, query, mask=mask, kernel="eager")
    torch.testing.assert_close(found, expected)


def test_the_layers_of_a_pass_make_each_matrix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    materialise = Mask.materialise

    def counted(self: Mask, *arguments: int, **options: object) -> torch.Tensor:
        made.append(self)
        return materialise(self, *arguments, **options)

    monkeypatch.setattr(Mask, "materialise", counted)
    model = build(TransformerConfig(vocabulary=10, width=8, depth=3, heads=2))
    padding_mask = torch.tensor([[True, True, False]])
    ids = torch.tensor([[1, 2, 3]])
    model(ids, ids, source_padding_mask=padding_mask)
    assert len(made) == 3  # the encoder's, the decoder's, and the source's in the decoder

    with torch.no_grad():  # masks may outlive a pass there, so nothing is remembered
        model(ids, ids, source_padding_mask=padding_mask)

    assert len(made) == 3 + 6  # the causal mask stays a description
