"""A model that its config does not describe is not saved; one that computes the same is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qkv
from qkv.models import GPT, GPTConfig, Model
from qkv.models.consistency import check_consistent
from qkv.models.convert import read_folder, write_folder
from qkv.models.convert.peft import write_adapter
from qkv.models.variants.quantize import int8
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.linear.linear import Linear
from qkv.nn.lora import AdapterConfig, attach_adapters
from qkv.nn.norm import RMSNorm
from qkv.training.systems.gradient_checkpointing import recompute_activations, recompute_blocks
from support import families


class OwnAttention(MultiHeadAttention):
    def forward(self, *inputs: Any, **how: Any) -> Any:
        heads, weights = super().forward(*inputs, **how)
        return -heads, weights


class OwnGPT(GPT):
    pass


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=11, context=8, width=8, depth=2, heads=2)).eval()


def swap_attention(model: GPT) -> None:
    model.stack.blocks[1].attention = OwnAttention(8, 2, layer=1)


def swap_norm(model: GPT) -> None:
    model.stack.blocks[0].attention_residual.norm = RMSNorm(8)


def replace_forward(model: GPT) -> None:
    model.stack.blocks[0].feed_forward.forward = lambda x: x  # type: ignore[method-assign]


def replace_method(model: GPT) -> None:
    model.stack.blocks[0].feed_forward.activate = torch.relu  # type: ignore[method-assign]


def change_activation(model: GPT) -> None:
    model.stack.blocks[1].feed_forward.activation = "relu"


def change_epsilon(model: GPT) -> None:
    model.stack.norm.epsilon = 0.5  # type: ignore[union-attr]


def change_config(model: GPT) -> None:
    model.config = replace(model.config, window=3)


def add_module(model: GPT) -> None:
    model.stack.blocks[0].memory = nn.Linear(8, 8)


def remove_module(model: GPT) -> None:
    del model.stack.blocks[1]


def add_parameter(model: GPT) -> None:
    model.stack.scale = nn.Parameter(torch.ones(3))


def widen(model: GPT) -> None:
    model.stack.blocks[0].feed_forward.up = Linear(8, 48)
    model.stack.blocks[0].feed_forward.down = Linear(48, 8)


CHANGES: dict[Callable[[GPT], None], str] = {
    swap_attention: "model: stack.blocks.1.attention is a OwnAttention, not a MultiHeadAttention; ",
    swap_norm: "model: stack.blocks.0.attention_residual.norm is a RMSNorm, not a LayerNorm; ",
    replace_forward: "model: stack.blocks.0.feed_forward.forward was replaced on this instance; ",
    replace_method: "model: stack.blocks.0.feed_forward.activate was replaced on this instance; ",
    change_activation: "model: stack.blocks.1.feed_forward.activation is 'relu', not 'gelu'",
    change_epsilon: "model: stack.norm.epsilon is 0.5, not 1e-05 as in the config; ",
    change_config: "model: stack.config is GPTConfig(",
    add_module: "model: stack.blocks.0.memory, a Linear, was added; ",
    remove_module: "model: stack.blocks.1, a Block, is missing; ",
    add_parameter: "model: the tensor stack.scale was added; ",
    widen: "model: the tensor stack.blocks.0.feed_forward.up.bias is of shape (48,), not (32,); ",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_is_not_written(change: Callable[[GPT], None], tmp_path: Path) -> None:
    model = gpt()
    change(model)
    for write in (qkv.save, write_folder):
        with pytest.raises(ValueError, match="^" + re.escape(CHANGES[change])):
            write(model, tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_subclass_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^model: it is a OwnGPT, not a GPT; .* torch.save and rebuild"
    ):
        qkv.save(OwnGPT(gpt().config), tmp_path / "out")


def test_an_adapter_of_a_changed_model_is_not_written(tmp_path: Path) -> None:
    model = gpt()
    swap_attention(model)
    attach_adapters(model, AdapterConfig())
    with pytest.raises(ValueError, match=r"^model: stack\.blocks\.1\.attention is a OwnAttention"):
        write_adapter(model, tmp_path / "out")


def test_every_family_is_what_its_config_describes() -> None:
    for kind in families.GPT_KINDS.values():
        check_consistent(families.gpt(**kind))

    for kind in families.BERT_KINDS.values():
        check_consistent(families.bert(**kind))

    for kind in families.TRANSFORMER_KINDS.values():
        check_consistent(families.transformer(**kind))

    for kind in families.RNN_KINDS.values():
        check_consistent(families.rnn(**kind))

    for kind in families.RNN_LM_KINDS.values():
        check_consistent(families.rnn_lm(**kind))


def compile_part(model: GPT) -> None:
    model.stack.blocks[0] = torch.compile(model.stack.blocks[0])  # type: ignore[assignment]


def compile_forward(model: GPT) -> None:
    block = model.stack.blocks[0]
    block.forward = torch.compile(block.forward)  # type: ignore[method-assign]


def compile_in_place(model: GPT) -> None:
    model.stack.blocks[1].compile()


def hook(model: GPT) -> None:
    model.stack.blocks[0].register_forward_hook(lambda *inputs: None)
    model.stack.register_forward_pre_hook(lambda *inputs: None)


def drop_less(model: GPT) -> None:
    model.embedding.dropout.p = 0.5
    model.stack.blocks[0].attention.dropout = 0.5


SAME: tuple[Callable[[Any], None], ...] = (
    compile_part,
    compile_forward,
    compile_in_place,
    hook,
    drop_less,
    recompute_blocks,
    recompute_activations,
)


@pytest.mark.usefixtures("without_shape_checks")  # what torch.compile returns is no GPT to them
@pytest.mark.parametrize("change", SAME, ids=lambda change: change.__name__)
def test_what_computes_the_same_is_written(change: Callable[[Model], None], tmp_path: Path) -> None:
    model = gpt()
    ids = torch.tensor([[1, 2, 3]])
    right = model(ids)
    change(model)
    qkv.save(torch.compile(model), tmp_path / "ours")  # type: ignore[arg-type]
    write_folder(model, tmp_path / "theirs")
    assert torch.equal(qkv.load(tmp_path / "ours").model(ids), right)
    assert torch.equal(read_folder(tmp_path / "theirs")(ids), right)


def test_adapters_int8_and_rnns_have_their_own_errors(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model: int8 weights are not saved"):
        qkv.save(int8(gpt()), tmp_path / "out")

    with pytest.raises(TypeError, match="model: int8 weights are not saved"):
        write_folder(int8(gpt()), tmp_path / "out")

    model = gpt()
    attach_adapters(model, AdapterConfig())
    for write in (qkv.save, write_folder):
        with pytest.raises(ValueError, match="model: it has adapters; merge"):
            write(model, tmp_path / "out")
