"""A damaged, dangerous or unknown file of another library gets one clear sentence, never a wrong number."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.models import BERT, GPT, RNN, BERTConfig, GPTConfig, Model, RNNConfig, Transformer, TransformerConfig, build
from qkv.models.foreign import read_folder, read_gguf, write_folder
from qkv.nn.position import RotaryScaling

pytestmark = pytest.mark.usefixtures("without_shape_checks")

SMALL: dict[str, Any] = {"vocabulary": 13, "context": 8, "width": 8, "depth": 1, "heads": 2}
LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 1}


def small(family: str, **choices: Any) -> Model:
    if family == "gpt2":
        return GPT(GPTConfig(**(SMALL | choices)))
    if family == "llama":
        return GPT(GPTConfig(**(SMALL | LLAMA | choices)))
    if family == "bert":
        return BERT(BERTConfig(**(SMALL | choices)))
    return Transformer(TransformerConfig(**(SMALL | choices)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 that can be read, to be damaged."""
    write_folder(small("gpt2"), tmp_path / "model")
    assert read_folder(tmp_path / "model")
    return tmp_path / "model"


def refused(message: str, kind: type[Exception] = ValueError) -> Any:
    return pytest.raises(kind, match=re.escape(message))


def edit(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))


def edit_tensors(folder: Path, drop: str = "", **changes: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if name != drop}, file)


# pickles


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture
def bomb(tmp_path: Path) -> bytes:
    """A pickle that leaves a mark on the disk of whoever loads it."""
    return pickle.dumps(Bomb(tmp_path / "exploded"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "MODEL.BIN"])
def test_a_pickle_is_never_opened(name: str, folder: Path, bomb: bytes, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(bomb)
    for read, path in ((read_folder, folder), (read_folder, folder / name), (read_gguf, folder / name)):
        with pytest.raises(ValueError, match=r"is a pickle, which can run any code when it is loaded") as error:
            read(path)
        assert name in str(error.value)
        assert "save_pretrained()" in str(error.value)
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_beside_safetensors_is_left_alone(folder: Path, bomb: bytes, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(bomb)
    assert isinstance(read_folder(folder), GPT)
    assert not (tmp_path / "exploded").exists()


# files


def test_no_folder(tmp_path: Path) -> None:
    with refused("config.json: there is no such file"):
        read_folder(tmp_path / "nowhere")


def test_a_file_instead_of_its_folder(folder: Path, tmp_path: Path) -> None:
    with refused("model.safetensors: expected the folder of a model, not a file"):
        read_folder(folder / "model.safetensors")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with refused("a.gguf: expected the folder of a model, not a file; read_gguf reads it"):
        read_folder(tmp_path / "a.gguf")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with refused("model: no weights; expected model.safetensors, or model.safetensors.index.json"):
        read_folder(folder)


@pytest.mark.parametrize("text", ["", "{", '{"n_layer": }', "\xff\xfe"])
def test_a_config_that_is_not_json(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with refused("config.json: not valid JSON"):
        read_folder(folder)


def test_a_config_that_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")
    with refused("config.json: expected fields in braces, not a list"):
        read_folder(folder)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, 1000, -1])
def test_a_cut_off_weight_file(keep: int, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with refused("model.safetensors: not a whole safetensors file"):
        read_folder(folder)


def test_damaged_bytes_are_refused_or_harmless(folder: Path) -> None:
    """Whatever byte is wrong before the numbers begin, there is one sentence, or a model of the right shape."""
    chance = random.Random(0)
    for file in (folder / "model.safetensors", folder / "config.json"):
        whole = file.read_bytes()
        header = len(whole) if file.suffix == ".json" else 8 + int.from_bytes(whole[:8], "little")
        for _ in range(150):
            at = chance.randrange(header)
            file.write_bytes(whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :])
            try:
                assert isinstance(read_folder(folder), GPT)
            except ValueError as error:
                assert str(folder) in str(error)
        file.write_bytes(whole)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_folder(small("gpt2"), tmp_path / "shards", max_shard_bytes=2000)
    return tmp_path / "shards"


def test_a_missing_shard(shards: Path) -> None:
    lost = sorted(shards.glob("model-*"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=rf"{lost.name}: this shard is missing; it holds \d+ tensors of the model"):
        read_folder(shards)


def test_a_cut_off_shard(shards: Path) -> None:
    hurt = sorted(shards.glob("model-*"))[1]
    hurt.write_bytes(hurt.read_bytes()[:-3])
    with refused(f"{hurt.name}: not a whole safetensors file"):
        read_folder(shards)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (None, "weight_map: expected the file of every tensor"),
        ({"a": 3}, "weight_map: expected the file of every tensor"),
        ({"a": "../../secret.safetensors"}, "weight_map: expected the name of a file beside it, not '../../secret"),
    ],
)
def test_a_wrong_index(places: Any, message: str, shards: Path) -> None:
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with refused(message):
        read_folder(shards)


def test_an_index_that_does_not_know_its_shards(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    first = next(iter(places.values()))
    index.write_text(json.dumps({"weight_map": dict.fromkeys(places, first)}))
    with refused("is not in this shard, although the index says so"):
        read_folder(shards)


# tensors


def test_a_missing_tensor(folder: Path) -> None:
    edit_tensors(folder, drop="transformer.h.0.attn.c_attn.weight")
    with refused("1 tensors are missing, the first is transformer.h.0.attn.c_attn.weight"):
        read_folder(folder)


def test_a_tensor_too_many(folder: Path) -> None:
    edit_tensors(folder, **{"transformer.h.0.crossattention.c_attn.weight": torch.zeros(2)})
    with refused("1 tensors have no place in the model that the config describes, the first is transformer.h.0.cross"):
        read_folder(folder)


def test_a_tensor_of_another_shape(folder: Path) -> None:
    edit(folder, n_inner=24)
    with refused("model.safetensors: transformer.h.0.mlp.c_fc.weight has shape (8, 32), expected (8, 24)"):
        read_folder(folder)


def test_a_tensor_of_whole_numbers(folder: Path) -> None:
    edit_tensors(folder, **{"transformer.wte.weight": torch.zeros(13, 8, dtype=torch.int8)})
    with refused("transformer.wte.weight holds torch.int8, expected numbers that are not quantised"):
        read_folder(folder)


def test_a_tied_output_that_differs(folder: Path) -> None:
    edit_tensors(folder, **{"lm_head.weight": torch.zeros(13, 8)})
    with refused("lm_head.weight differs from transformer.wte.weight, but the config says they are tied"):
        read_folder(folder)


def test_the_same_tensor_under_two_names(folder: Path) -> None:
    edit_tensors(folder, **{"wte.weight": torch.zeros(13, 8)})
    with refused("two tensors mean transformer.wte.weight; expected one"):
        read_folder(folder)


def test_positions_that_are_no_sinusoids(tmp_path: Path) -> None:
    write_folder(small("marian"), tmp_path)
    edit_tensors(tmp_path, **{"model.encoder.embed_positions.weight": torch.randn(8, 8)})
    with refused("embed_positions: the file stores positions that are not the 8 sinusoids expected"):
        read_folder(tmp_path)


# their configs

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt2", {"model_type": "mamba"}, "model_type: expected one of gpt2, llama, bert, marian, not 'mamba'"),
        ("gpt2", {"model_type": None, "architectures": None}, "model_type: expected one of"),
        (
            "gpt2",
            {"architectures": ["GPT2ForSequenceClassification"]},
            "architectures: expected one of GPT2LMHeadModel",
        ),
        ("gpt2", {"architectures": "GPT2LMHeadModel"}, "architectures: expected a list"),
        ("gpt2", {"activation_function": "mish"}, "activation_function: expected one of relu,"),
        ("gpt2", {"activation_function": ["gelu"]}, "activation_function: expected one of relu,"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: expected False"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights: expected True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention: expected False"),
        ("gpt2", {"n_layer": "two"}, "n_layer: expected a whole number, not 'two'"),
        ("gpt2", {"n_layer": -1}, "n_layer: expected a whole number, not -1"),
        ("gpt2", {"n_layer": 0}, "depth: expected 1 or more, not 0"),
        ("gpt2", {"n_layer": 10**12}, "1000000000000 layers, but"),
        ("gpt2", {"n_head": 3}, "heads: 3 heads do not divide width 8"),
        ("gpt2", {"n_head": 0}, "heads: expected 1 or more, not 0"),
        ("gpt2", {"n_embd": True}, "n_embd: expected a whole number, not True"),
        ("gpt2", {"layer_norm_epsilon": "small"}, "layer_norm_epsilon: expected a number, not 'small'"),
        ("gpt2", {"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon: expected a number, not nan"),
        ("gpt2", {"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, not 1"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config: not supported"),
        ("gpt2", {"pruned_heads": {"0": [1]}}, "pruned_heads: not supported"),
        ("llama", {"per_layer_config": {"0": {"head_dim": 2}}}, "per_layer_config: not supported"),
        ("llama", {"auto_map": {"AutoModelForCausalLM": "own.Own"}}, "auto_map: this model runs code of its own"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act: expected silu"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_scaling: rope_type: expected default or",
        ),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type: expected default or llama3"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters: rope_type: expected default or"),
        ("llama", {"rope_parameters": "llama3"}, "rope_parameters: expected fields in braces, not 'llama3'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
            "low_freq_factor: rope_type llama3 needs",
        ),
        ("llama", {"rope_parameters": LLAMA3 | {"factor": "2"}}, "rope_parameters: factor: expected a number, not '2'"),
        ("llama", {"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "low_freq_factor below high_freq_factor"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: expected 1.0"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1.0"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads: expected a divisor of heads = 2, not 3"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: expected 'absolute'"),
        ("bert", {"is_decoder": True}, "is_decoder: expected False"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings: expected True"),
        ("bert", {"hidden_act": "tanh"}, "hidden_act: expected one of"),
        ("bert", {"architectures": ["BertForTokenClassification"]}, "architectures: expected one of BertModel"),
        ("marian", {"decoder_ffn_dim": 16}, "decoder_ffn_dim: expected the same as encoder_ffn_dim, 32, not 16"),
        ("marian", {"decoder_attention_heads": 4}, "decoder_attention_heads: expected the same as encoder_attention"),
        ("marian", {"tie_word_embeddings": False}, "tie_word_embeddings: expected true when share_encoder_decoder"),
        ("marian", {"normalize_before": True}, "normalize_before: expected False"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding: expected False"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings: expected True"),
        ("marian", {"vocab_size": 12}, "tied: three ways needs one vocabulary"),
    ],
)
def test_a_config_we_cannot_compute(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_folder(small(family), tmp_path)
    edit(tmp_path, **changes)
    with refused(message) as error:
        read_folder(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json"))


def test_fields_that_change_nothing_are_fine(folder: Path) -> None:
    edit(folder, use_cache=False, summary_type="mean", id2label={"0": "no"}, auto_map={"AutoTokenizer": "own.Own"})
    edit(folder, bos_token_id=7, gradient_checkpointing=True, reorder_and_upcast_attn=True, quantization_config=None)
    assert isinstance(read_folder(folder), GPT)


# our configs


@pytest.mark.parametrize(
    ("family", "choices", "message"),
    [
        ("gpt2", {"position": "alibi"}, "position: expected learned (GPT-2) or rotary (Llama), not alibi"),
        ("gpt2", {"position": "sinusoidal"}, "position: expected learned (GPT-2) or rotary (Llama), not sinusoidal"),
        ("gpt2", {"activation": "swiglu"}, "activation: GPT-2's format can say relu, relu2"),
        ("gpt2", {"norm": "rms"}, "norm: GPT-2's format can only say 'layer', not 'rms'"),
        ("gpt2", {"head_width": 6}, "head_width: GPT-2's format can only say width / heads, not 6"),
        ("llama", {"activation": "relu2"}, "activation: Llama's format can only say 'swiglu', not 'relu2'"),
        ("llama", {"output_bias": False}, "output_bias: Llama's format can only say True, not False"),
        ("llama", {"heads": 3, "kv_heads": 1, "head_width": 4}, "heads: Llama's format needs a divisor of width 8"),
        ("bert", {"segments": 0}, "segments: BERT's format needs 1 or more, not 0"),
        ("bert", {"final_norm": True}, "final_norm: BERT's format can only say False, not True"),
        ("marian", {"position": "learned"}, "position: Marian's format can only say 'sinusoidal', not 'learned'"),
        ("marian", {"norm_epsilon": 1e-6}, "norm_epsilon: Marian's format can only say 1e-05, not 1e-06"),
    ],
)
def test_a_model_that_no_format_holds(family: str, choices: dict[str, Any], message: str, tmp_path: Path) -> None:
    with refused(message):
        write_folder(small(family, **choices), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_rnn_has_no_format(tmp_path: Path) -> None:
    with refused("transformers has no format for an RNN"):
        write_folder(RNN(RNNConfig(vocabulary=13, width=8)), tmp_path / "model")


# One other value of every field: it must be refused, or come back. A new field must be added here.
OTHERS: dict[str, Any] = {
    "width": 16,
    "depth": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 6,
    "hidden": 24,
    "activation": "silu",
    "norm": "rms",
    "norm_place": None,  # the other one
    "norm_epsilon": 1e-3,
    "final_norm": None,
    "position": "none",
    "rotary_base": 500.0,
    "rotary_scaling": RotaryScaling(factor=2.0),
    "window": 3,
    "sparse": "strided",
    "stride": 2,
    "qkv_bias": False,
    "output_bias": False,
    "feed_forward_bias": False,
    "dropout": 0.3,
    "attention_dropout": 0.3,
    "vocabulary": 17,
    "source_vocabulary": 11,
    "context": 12,
    "join": "product",
    "position_width": 3,
    "tied": None,
    "memory": 4,
    "segments": 3,
    "word_head": False,
    "pooler": False,
    "next_sentence": False,
    "decoder_depth": 2,
    "sinusoid": "halves",
    "scaled_embedding": False,
    "logit_bias": True,
}
TOGETHER: dict[str, dict[str, Any]] = {
    "sparse": {"stride": 2},
    "stride": {"sparse": "fixed"},
    "source_vocabulary": {"tied": "two"},
    "memory": {"position": "relative"},
    "pooler": {"next_sentence": False},
    "kv_heads": {"heads": 4},
}
UNUSED = {  # what a config may say without any effect on the numbers
    ("gpt2", "rotary_base"),
    ("gpt2", "rotary_scaling"),
    ("gpt2", "position_width"),
    ("llama", "join"),
    ("llama", "position_width"),
    ("llama", "dropout"),
    ("bert", "rotary_base"),
    ("bert", "rotary_scaling"),
    ("marian", "rotary_base"),
    ("marian", "rotary_scaling"),
}
FAMILIES = {"gpt2": GPTConfig, "llama": GPTConfig, "bert": BERTConfig, "marian": TransformerConfig}


@pytest.mark.parametrize(
    ("family", "field"), [(family, field.name) for family, kind in FAMILIES.items() for field in fields(kind)]
)
def test_no_field_is_lost(family: str, field: str, tmp_path: Path) -> None:
    config = small(family).config
    value = OTHERS[field]
    if field == "norm_place":
        value = "after" if config.norm_place == "before" else "before"
    elif field == "final_norm":
        value = config.norm_place == "after"
    elif field == "tied":
        value = "none" if family == "marian" else not config.tied
    choices = {field: value, **TOGETHER.get(field, {})}
    try:
        model = small(family, **choices)
        write_folder(model, tmp_path)
    except ValueError as error:
        assert any(f"{name}:" in str(error) for name in choices), "the field is named"
        return
    back = read_folder(tmp_path).config
    if (family, field) not in UNUSED:
        assert getattr(back, field) == value
    assert build(back).state_dict().keys() == model.state_dict().keys()


# what is asked of write_folder


def test_a_folder_that_holds_a_model_already(folder: Path) -> None:
    before = (folder / "config.json").read_bytes()
    with refused("config.json is already here; choose an empty folder"):
        write_folder(small("bert"), folder)
    assert (folder / "config.json").read_bytes() == before


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    with refused("words.json: there is no such file; expected a tokenizer.json or a folder with one"):
        write_folder(small("gpt2"), tmp_path / "model", tokenizer=tmp_path / "words.json")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("name", "value"), [("begin_id", 13), ("end_id", -1), ("pad_id", 99)])
def test_ids_outside_the_vocabulary(name: str, value: int, tmp_path: Path) -> None:
    with refused(f"{name}: expected 0 to 12, not {value}"):
        write_folder(small("gpt2"), tmp_path, **{name: value})


def test_shards_of_nothing(tmp_path: Path) -> None:
    with refused("max_shard_bytes: expected 1 or more, not 0"):
        write_folder(small("gpt2"), tmp_path, max_shard_bytes=0)
    assert not list(tmp_path.iterdir())


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("qkv.models.foreign.folder.save_file", full)
    with refused("no space left on device", OSError):
        write_folder(small("gpt2"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_reading_needs_no_other_library(folder: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['transformers'] = sys.modules['gguf'] = None\n"
        "from qkv.models.foreign import read_folder\n"
        f"print(type(read_folder({str(folder)!r})).__name__)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "GPT"
