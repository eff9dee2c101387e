"""Every Transformer compiles into one graph, also with padding and packing, with equal logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")

SMALL: dict[str, Any] = {"vocabulary": 13, "context": 16, "width": 16, "depth": 1, "heads": 4}
B = 2
T = 6
PADDING_MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
KINDS = {
    "learned": {"position": "learned"},
    "rotary, window": {"position": "rotary", "window": 3},
    "alibi, grouped": {"position": "alibi", "kv_heads": 2},
    "strided": {"sparse": "strided", "stride": 2},
    "GPT-2's GELU": {"activation": "gelu_tanh"},
}


def ids() -> torch.Tensor:
    return torch.randint(13, (B, T))


def compiled(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend="eager", fullgraph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gpt(kind: str) -> None:
    from qkv.models import GPT, GPTConfig

    model = GPT(GPTConfig(**SMALL, **KINDS[kind])).eval()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2]])
    inputs = ids()
    for options in ({}, {"padding_mask": PADDING_MASK}, {"documents": documents}):
        assert_close(compiled(model)(inputs, **options), model(inputs, **options))


@pytest.mark.parametrize("kind", ["learned", "rotary, window"])
def test_bert(kind: str) -> None:
    from qkv.models import BERT, BERTConfig

    model = BERT(BERTConfig(**SMALL, **KINDS[kind])).eval()
    inputs = ids()
    for options in ({}, {"padding_mask": PADDING_MASK}):
        assert_close(compiled(model)(inputs, **options), model(inputs, **options))


@pytest.mark.parametrize("kind", ["learned", "rotary, window"])
def test_transformer(kind: str) -> None:
    from qkv.models import Transformer, TransformerConfig

    model = Transformer(TransformerConfig(**SMALL, **KINDS[kind])).eval()
    source = ids()
    target = ids()
    for options in ({}, {"source_padding_mask": PADDING_MASK, "target_padding_mask": PADDING_MASK}):
        assert_close(compiled(model)(source, target, **options), model(source, target, **options))
