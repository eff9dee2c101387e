"""NaN and infinite weights raise with the tensor's name, in every kind of file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import qkv
from qkv.models import GPT, GPTConfig
from qkv.models.convert import read_folder, write_folder
from qkv.models.convert.peft import write_adapter
from qkv.models.registry import check_finite
from qkv.nn.lora import AdapterConfig, attach_adapters
from support.tiny_gguf import write_gguf

NAN = float("nan")
INF = float("inf")
TOKEN = torch.tensor([[1, 2, 3]])


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=11, context=8, width=8, depth=2, heads=2)).eval()


def broken() -> GPT:
    model = gpt()
    with torch.no_grad():
        model.stack.blocks[1].feed_forward.up.weight[3, 5] = NAN
        model.stack.blocks[1].feed_forward.up.weight[4, :] = -INF

    return model


def save_ours(folder: Path) -> Path:
    qkv.save(broken(), folder)
    return folder


def save_theirs(folder: Path) -> Path:
    write_folder(broken(), folder)
    return folder


def save_shards(folder: Path) -> Path:
    write_folder(broken(), folder, max_shard_bytes=2000)
    return folder


def save_gguf(folder: Path) -> Path:
    folder.mkdir()
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[:, 2] = INF
        model.model.layers[1].mlp.down_proj.weight[0, 3] = NAN

    return write_gguf(model, folder / "tiny.gguf")


def save_adapter(folder: Path) -> Path:
    model = gpt()
    qkv.save(model, folder / "base")
    attach_adapters(model, AdapterConfig(rank=9, projections=("up",)))
    with torch.no_grad():
        adapters = model.stack.blocks[1].feed_forward.up.adapters
        assert adapters is not None
        adapters["up"].A[:, 0] = NAN

    write_adapter(model, folder / "adapter", str(folder / "base"))
    return folder / "adapter"


FILES: dict[Callable[[Path], Path], str] = {
    save_ours: "model.safetensors: stack.blocks.1.feed_forward.up.weight: 9 of 256 numbers",
    save_theirs: "model.safetensors: transformer.h.1.mlp.c_fc.weight: 9 of 256 numbers",
    save_shards: "model.safetensors.index.json: transformer.h.1.mlp.c_fc.weight: 9 of 256 numbers",
    save_gguf: "tiny.gguf: model.layers.1.mlp.down_proj.weight: 9 of 64 numbers",
    save_adapter: "transformer.h.1.mlp.c_fc.lora_A.weight: 9 of 72 numbers",
}


@pytest.mark.parametrize("save", FILES, ids=lambda save: save.__name__)
def test_broken_weights_are_refused_unless_allowed(
    save: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = save(tmp_path / "model")
    with pytest.raises(ValueError, match=re.escape(FILES[save]) + ".* allow_nonfinite=True"):
        qkv.load(path)

    model = qkv.load(path, allow_nonfinite=True).model
    assert not all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def test_tied_weights_may_be_broken_in_the_same_places(tmp_path: Path) -> None:
    """The output layer's copy of the embedding counts as equal although NaN != NaN."""
    model = gpt()
    with torch.no_grad():
        model.embedding.token.weight[2, 3] = NAN

    write_folder(model, tmp_path / "theirs")
    with pytest.raises(
        ValueError, match=r"transformer\.wte\.weight: 1 of 88 numbers are NaN or infinite"
    ):
        read_folder(tmp_path / "theirs")

    again = read_folder(tmp_path / "theirs", allow_nonfinite=True)
    assert int(again.embedding.token.weight.isnan().sum()) == 1  # type: ignore[union-attr]


def test_numbers_too_large_for_half_precision(tmp_path: Path) -> None:
    model = gpt()
    with torch.no_grad():
        model.stack.blocks[0].attention.output.bias[2] = 1e6

    write_folder(model, tmp_path)
    read_folder(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"h\.0\.attn\.c_proj\.bias as torch\.float16: 1 of 8 numbers are NaN or inf",
    ):
        read_folder(tmp_path, dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_broken_number_is_enough_and_large_ones_are_not_broken(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for size in (1, 7, 4097):
        check_finite(torch.full((size,), largest, dtype=dtype), "weights")  # whose sum is infinite
        check_finite(torch.tensor([largest, -largest] * size, dtype=dtype), "weights")
        for value in (NAN, INF, -INF):
            for position in {0, size // 2, size - 1}:
                tensor = torch.full((size,), largest, dtype=dtype)
                tensor[position] = value
                with pytest.raises(
                    ValueError, match=f"^weights: 1 of {size:,} numbers are NaN or infinite"
                ):
                    check_finite(tensor, "weights")

    check_finite(torch.zeros(0, dtype=dtype), "weights")
    check_finite(torch.zeros(3, dtype=torch.int64), "weights")
