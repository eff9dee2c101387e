"""Which parts of a model the kernels of a decode step replace, and what they leave as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from qkv.models import GPT, GPTConfig
from qkv.nn.block import Block, Stack
from qkv.nn.decode import decode_step, dependent_launch
from qkv.nn.embedding import Embedding
from qkv.nn.unchanged import all_unchanged

SMALL = GPTConfig(vocabulary=20, context=16, width=16, depth=2, heads=2)


def replaced(model: GPT, angles: torch.Tensor | None = None) -> list[tuple[type, str]]:
    found = []
    for module, name, _ in decode_step.replacements(model, angles):
        found.append((type(module), name))

    return found


def test_the_embedding_the_blocks_and_the_last_norm_are_replaced() -> None:
    found = replaced(GPT(SMALL))
    assert (Embedding, "forward") in found
    assert found.count((Block, "forward")) == 2
    assert [name for kind, name in found if "Norm" in kind.__name__] == ["forward"]


@pytest.mark.parametrize(
    "fields",
    [{"position": "sinusoidal"}, {"join": "product"}, {"join": "concatenate", "tied": False}],
)
def test_other_embeddings_stay(fields: dict[str, Any]) -> None:
    assert (Embedding, "forward") not in replaced(GPT(replace(SMALL, **fields)))


def test_a_changed_block_stays() -> None:
    model = GPT(SMALL)
    model.stack.blocks[0].feed_forward.up.forward = lambda x, rows=None: x
    assert replaced(model).count((Block, "forward")) == 1


def test_rotary_angles_are_looked_up() -> None:
    model = GPT(replace(SMALL, position="rotary"))
    stack = model.stack
    table = decode_step.rotary_table(model, torch.arange(16))
    assert table is not None
    positions = torch.tensor([[3], [11]])
    actual = decode_step.look_up_angles(table, positions)
    assert torch.equal(actual, stack.position.angles(positions))
    assert (type(stack.position), "angles") in replaced(model, table)
    assert decode_step.rotary_table(GPT(SMALL), torch.arange(16)) is None


def test_a_model_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_step, "triton", object())
    model = GPT(SMALL)
    with decode_step.installed(model):
        assert "forward" in vars(model.stack.blocks[0])
        assert dependent_launch.in_chain()
        assert all_unchanged(model)  # the same computation

    assert not dependent_launch.in_chain()
    for module in model.modules():
        assert "forward" not in vars(module)

    assert isinstance(model.stack, Stack)
