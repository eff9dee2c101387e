"""Errors of GGUF files: damaged or unsupported ones raise and never load as another model."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from qkv.models import GPT
from qkv.models.convert import read_gguf
from qkv.text import Tokenizer
from support.small_hf_folders import outcome, refused
from support.tiny_gguf import write_gguf

pytestmark = pytest.mark.usefixtures("without_shape_checks")

EIGHT = np.arange(8, dtype=np.float32) + 2
TINY = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A readable file, for tests that damage it."""
    path = write_gguf(TINY, tmp_path / "tiny.gguf")
    assert isinstance(read_gguf(path), GPT)
    return path


def test_no_file(tmp_path: Path) -> None:
    with refused("nothing.gguf: ... no such file"):
        read_gguf(tmp_path / "nothing.gguf")


def test_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"this is no model, but it is long enough to be looked at")
    with refused("a.gguf: not a whole GGUF file"):
        read_gguf(tmp_path / "a.gguf")


def test_a_cut_off_file(file: Path) -> None:
    whole = file.read_bytes()
    for length in {*range(0, len(whole), 97), len(whole) - 33}:  # the last 32 bytes are padding
        file.write_bytes(whole[:length])
        with refused("tiny.gguf: not a whole GGUF file"):
            read_gguf(file)


def test_damaged_bytes_are_refused_or_harmless(file: Path) -> None:
    """Whatever byte of the header is wrong, reading gives a ValueError or a model."""
    whole = file.read_bytes()
    header = gguf.GGUFReader(file).data_offset
    generator = random.Random(0)
    for _ in range(400):
        at = generator.randrange(header)
        file.write_bytes(whole[:at] + bytes([generator.randrange(256)]) + whole[at + 1 :])
        result = outcome(read_gguf, file)
        assert isinstance(result, GPT) or str(file) in result


def test_a_list_of_impossible_length(file: Path) -> None:
    """The list is refused at once and not read member by member."""
    whole = file.read_bytes()
    at = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    assert int.from_bytes(whole[at : at + 8], "little") == 13
    file.write_bytes(whole[:at] + (2**50).to_bytes(8, "little") + whole[at + 8 :])
    with refused("tiny.gguf: ... (the file is cut off)"):
        read_gguf(file)


def test_a_tensor_with_the_offset_of_another(file: Path) -> None:
    whole = file.read_bytes()
    name = b"blk.0.attn_k.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8 + 4  # after the axes, the shape and the type
    assert int.from_bytes(whole[at : at + 8], "little") > 0
    file.write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
    with refused("tiny.gguf: blk.0.attn_k.weight lies at byte"):
        read_gguf(file)


def test_the_other_byte_order(tmp_path: Path) -> None:
    path = write_gguf(TINY, tmp_path / "big.gguf", endianess=gguf.GGUFEndian.BIG)
    with refused("big.gguf: ... byte order"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture: expected llama, not 'qwen2'"),
        ({"drop": ("block_count",)}, "llama.block_count: ... is missing"),
        ({"drop": ("token_embd.weight",)}, "token_embd.weight: ... is missing"),
        (
            {"drop": ("blk.0.attn_q.weight",)},
            "the first is model.layers.0.self_attn.q_proj.weight",
        ),
        (
            {"tensors": {"blk.0.ffn_gate_exps.weight": np.ones((2, 2), np.float32)}},
            "blk.0.ffn_gate_exps.weight: a Llama has",
        ),
        ({"tensors": {"blk.0.attn_q.bias": np.ones(8, np.float32)}}, "3 tensors are missing"),
        (
            {"tensors": {"rope_freqs.weight": np.array([1, 3], np.float32)}},
            "rope_freqs.weight: ... Llama 3",
        ),
        ({"fields": {"expert_count": 8}}, "llama.expert_count: ... not supported"),
        (
            {"fields": {"rope.scaling.type": "yarn"}},
            "llama.rope.scaling.type: ... not supported",
        ),
        (
            {"fields": {"rope.scaling.factor": 4.0}},
            "llama.rope.scaling.factor: ... not supported",
        ),
        (
            {"fields": {"rope.dimension_count": 2}},
            "llama.rope.dimension_count: ... not supported",
        ),
        (
            {"fields": {"attention.value_length": 8}},
            "llama.attention.value_length: 8 is not supported",
        ),
        (
            {"fields": {"attention.sliding_window": 9}},
            "llama.attention.sliding_window: ... not supported",
        ),
        (
            {"fields": {"feed_forward_length": [12, 24]}},
            "intermediate_size: ... whole number",
        ),
        ({"fields": {"attention.head_count": 0}}, "heads: expected 1 or more, not 0"),
        (
            {"fields": {"attention.head_count": 3}},
            "kv_heads: ... a divisor",
        ),
        ({"fields": {"feed_forward_length": 24}}, "has shape (12, 8), expected (24, 8)"),
        ({"fields": {"block_count": 10**9}}, "1000000000 layers, but"),
    ],
)
def test_an_unsupported_file(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf(TINY, tmp_path / "tiny.gguf", **changes)
    with refused(message) as error:
        read_gguf(path)

    assert str(error.value).startswith(str(path))


def test_fields_that_change_nothing_are_fine(tmp_path: Path) -> None:
    fields = {
        "expert_count": 0,
        "rope.scaling.type": "none",
        "tensor_data_layout": "Meta AI original pth",
    }
    ones = np.ones(2, np.float32)
    path = write_gguf(
        TINY, tmp_path / "tiny.gguf", fields=fields, tensors={"rope_freqs.weight": ones}
    )
    assert read_gguf(path).config.rotary_scaling is None


def test_a_file_in_parts(tmp_path: Path) -> None:
    path = write_gguf(TINY, tmp_path / "tiny.gguf", split=2)
    with refused("split.count: ... not split"):
        read_gguf(path)


def test_without_the_package(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    for read in (read_gguf, Tokenizer.read):
        message = 'tiny.gguf: the package gguf is not installed: pip install "qkv[gguf]"'
        with refused(message, ImportError):
            read(file)
