"""The last block, computed for the first token alone, gives the same output and gradient there."""

from __future__ import annotations

import pytest
import torch

from qkv.models import BERT, BERTConfig, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.task_model import backbone_for
from qkv.nn.hooks import capture

SMALL = {"vocabulary": 50, "context": 20, "width": 16, "depth": 3, "heads": 2}


def spread_out(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"norm_placement": "before"},
        {"activation": "swiglu", "kv_heads": 1},
        {"position": "rotary"},
        {"position": "alibi"},
        {"window": 3},
        {"position": "sinusoidal", "norm": "rms"},
    ],
)
def test_the_first_token_is_the_same(kind: dict[str, object], padding: bool) -> None:
    bert = BERT(BERTConfig(**SMALL | kind)).double()
    spread_out(bert)
    ids = torch.randint(50, (4, 9))
    padding_mask = torch.arange(9) < torch.tensor([9, 3, 5, 1]).unsqueeze(1) if padding else None
    first, all = (
        bert.hidden(ids, padding_mask=padding_mask, first=True),
        bert.hidden(ids, padding_mask=padding_mask)[:, :1],
    )
    assert torch.allclose(first, all, rtol=0, atol=1e-12)
    weights = [*bert.stack.parameters(), *bert.embedding.parameters()]
    one, two = (
        torch.autograd.grad(x.square().sum(), weights, allow_unused=True) for x in (first, all)
    )
    assert all_close(one, two)


def all_close(one: tuple[torch.Tensor | None, ...], two: tuple[torch.Tensor | None, ...]) -> bool:
    return all(
        (a is None and b is None) or torch.allclose(a, b, atol=1e-11)
        for a, b in zip(one, two, strict=True)
    )  # type: ignore[arg-type]


def test_a_hook_gets_every_token() -> None:
    backbone = backbone_for(BERTConfig(**SMALL), pooler=True)
    model = TaskModel(
        TaskModelConfig(
            backbone=backbone,
            head=HeadConfig(
                task="classify",
                labels=("a", "b"),
                pooling="first",
                delimiter=1,
                extract=1,
                padding=0,
            ),
        )
    ).eval()
    spread_out(model)
    ids, positions = torch.randint(50, (2, 7)), torch.zeros(2, 1, dtype=torch.int64)
    plain = model(ids, target_positions=positions)
    with capture(model, "backbone.stack.blocks.2.attention.weights") as captured:
        assert torch.allclose(model(ids, target_positions=positions), plain, atol=1e-5)
    assert captured["backbone.stack.blocks.2.attention.weights"].shape == (2, 2, 7, 7)
