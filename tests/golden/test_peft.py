"""Adapters: `peft` and our models agree, whichever of them made the adapter, in float64."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MarianMTModel,
)

from qkv.models import BERT, GPT, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.convert import read_folder, write_folder
from qkv.models.convert.peft import read_adapter, write_adapter
from qkv.models.registry import Model
from qkv.nn.lora import AdapterConfig, Projection, adapted, adapter_parameters, attach, merge
from support.families import gpt, transformer
from support.tiny_transformers import furthest, ids, loaded, randomised, saved

V = 43
LLAMA: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
GPT2: dict[str, Any] = {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
BERT_SMALL = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
OURS: dict[str, Any] = {
    "vocabulary": V,
    "context": 16,
    "width": 32,
    "depth": 2,
    "heads": 4,
    "hidden": 48,
}
ROTARY: dict[str, Any] = {
    "position": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "kv_heads": 2,
    "qkv_bias": False,
    "output_bias": False,
    "feed_forward_bias": False,
}
MADE: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "bert": lambda: BertModel(BertConfig(**BERT_SMALL)),
}
NEAR = {
    "llama": 1e-5,
    "gpt2": 1e-12,
    "bert": 1e-12,
}  # their Llama has its norms and rotary angles in float32
LLAMA_ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "query and value": ("llama", {"target_modules": ["q_proj", "v_proj"]}),
    "everything": ("llama", {"target_modules": LLAMA_ALL}),
    "all-linear": ("llama", {"target_modules": "all-linear"}),
    "a pattern": ("llama", {"target_modules": r".*layers\.1\..*(gate|o)_proj"}),
    "root": ("llama", {"target_modules": ["k_proj", "up_proj"], "use_rslora": True}),
    "ranks": (
        "llama",
        {
            "target_modules": LLAMA_ALL,
            "rank_pattern": {"q_proj": 3, r"layers\.0\.mlp\.up_proj": 5},
            "alpha_pattern": {"v_proj": 7, "1.self_attn.q_proj": 2},
        },
    ),
    "one layer": ("llama", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "bert": ("bert", {"target_modules": ["query", "key", "value"]}),
    "bert's dense": (
        "bert",
        {"target_modules": ["attention.output.dense", "intermediate.dense", "output.dense"]},
    ),
    "bert down alone": ("bert", {"target_modules": ["0.output.dense", "1.output.dense"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
}


@pytest.fixture(autouse=True)
def double(double_by_default: None) -> None:
    """All numbers in float64: what is apart is apart by mistake."""


def theirs(family: str) -> Any:
    return randomised(MADE[family]()).double()


def ours_of(model: Any, path: Path) -> Model:
    return read_folder(saved(model, path), dtype=torch.float64)


def same_numbers(ours: Model, others: Model) -> None:
    for name, tensor in others.state_dict().items():
        assert_close(ours.state_dict()[name], tensor, rtol=1e-13, atol=1e-13)


def wrapped(model: Any, **choices: Any) -> Any:
    """Their model with their adapters, of random numbers."""
    choices = {"r": 4, "lora_alpha": 6, **choices}
    model = peft.get_peft_model(model, peft.LoraConfig(**choices)).double().eval()
    awaken([parameter for name, parameter in model.named_parameters() if "lora_" in name])
    return model


def awaken(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        nn.init.normal_(parameter, std=0.2)


def said(model: Any, words: Tensor) -> Tensor:
    if isinstance(model, GPT):
        return model(words)
    if isinstance(model, BERT):
        return model.hidden(words)
    output = model(words)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@pytest.mark.parametrize("case", CASES)
def test_their_adapters(case: str, tmp_path: Path) -> None:
    family, choices = CASES[case]
    base = theirs(family)
    ours, words = ours_of(base, tmp_path / "base"), ids(V)
    plain = said(ours, words)
    model = wrapped(base, **choices)
    model.save_pretrained(tmp_path / "adapter")
    assert read_adapter(ours, tmp_path / "adapter") is ours
    assert furthest(said(ours, words), plain) > 1e-3
    assert furthest(said(ours, words), said(model, words)) < NEAR[family]
    merge(ours)
    same_numbers(ours, ours_of(model.merge_and_unload(), tmp_path / "merged"))


WRITTEN: dict[str, tuple[str, tuple[Projection, ...], list[str]]] = {
    "query and value": ("llama", ("query", "value"), ["q_proj", "v_proj"]),
    "everything": (
        "llama",
        ("query", "key", "value", "output", "gate", "up", "down"),
        sorted(LLAMA_ALL),
    ),
    "gate": ("llama", ("gate", "down"), ["down_proj", "gate_proj"]),
    "bert": (
        "bert",
        ("query", "key", "value", "output"),
        ["attention.output.dense", "key", "query", "value"],
    ),
    "bert up and down": (
        "bert",
        ("up", "down"),
        [
            "0.output.dense",
            "1.output.dense",
            "intermediate.dense",
        ],  # output.dense would be attention's, too
    ),
    "gpt2": ("gpt2", ("query", "value"), ["c_attn"]),
    "gpt2's mlp": ("gpt2", ("key", "up", "down"), ["c_attn", "c_fc", "mlp.c_proj"]),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_our_adapters(case: str, tmp_path: Path) -> None:
    family, projections, modules = WRITTEN[case]
    base = theirs(family)
    ours, words = ours_of(base, tmp_path / "base"), ids(V)
    plain = said(ours, words)
    attach(ours, AdapterConfig(rank=3, alpha=6.0, projections=projections))
    awaken(adapter_parameters(ours))
    write_adapter(ours, tmp_path / "adapter", str(tmp_path / "base"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == modules
    assert furthest(said(ours, words), plain) > 1e-3
    model = peft_model(base, tmp_path / "adapter")
    assert furthest(said(model, words), said(ours, words)) < NEAR[family]
    again = read_adapter(read_folder(tmp_path / "base", dtype=torch.float64), tmp_path / "adapter")
    assert furthest(said(again, words), said(ours, words)) < 1e-12
    merge(ours)
    same_numbers(ours, ours_of(model.merge_and_unload(), tmp_path / "merged"))


def peft_model(base: Any, path: Path) -> Any:
    """Theirs from our folder. Every tensor has its place and every place its tensor, or it warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return peft.PeftModel.from_pretrained(base, path).eval()


def test_a_fused_matrix_gets_ranks_side_by_side(tmp_path: Path) -> None:
    """GPT-2's c_attn: rank 3 for the query and 3 for the value are 6, with the same scale; the
    key's rows are zeros.
    """
    ours = ours_of(theirs("gpt2"), tmp_path / "base")
    attach(ours, AdapterConfig(rank=3, alpha=6.0, projections=("query", "value", "down")))
    awaken(adapter_parameters(ours))
    write_adapter(ours, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    patterns = {
        config["r"]: config["lora_alpha"],
    }
    patterns |= {
        config["rank_pattern"][key]: config["alpha_pattern"][key] for key in config["rank_pattern"]
    }
    assert patterns == {3: 6, 6: 12}
    again = read_adapter(read_folder(tmp_path / "base", dtype=torch.float64), tmp_path / "adapter")
    (_, _, adapters), *_ = list(adapted(again))
    assert [name for name, _ in adapters.parts()] == ["whole"]
    assert not adapters["whole"].B[32:64].any()


def head(**choices: Any) -> HeadConfig:
    marks: dict[str, Any] = {"delimiter": 1, "extract": 2, "padding": 0}
    return HeadConfig(
        **({"task": "classify", "labels": ("bad", "so-so", "good"), **marks} | choices)
    )


def tuned(backbone: Any, **choices: Any) -> TaskModel:
    """A model with a head and adapters, all of which say something."""
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head(**choices))).eval()
    model.backbone.load_state_dict(backbone.state_dict())
    awaken(list(model.head.parameters()))
    attach(model, AdapterConfig(rank=2, projections=("query", "value", "down")))
    awaken(adapter_parameters(model))
    return model


def scores(model: TaskModel, words: Tensor) -> Tensor:
    place = 0 if model.config.head.pooling == "first" else words.shape[1] - 1
    return model(words, places=torch.full((len(words), 1), place))[:, 0]


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_head_comes_along(family: str, tmp_path: Path) -> None:
    """Theirs reads the adapters and the head; ours, given the base alone, is the whole model with
    its labels again.
    """
    base, words = theirs(family), 1 + ids(V - 1)
    backbone = ours_of(base, tmp_path / "base")
    model = tuned(backbone, pooling="last" if family == "llama" else "first", bias=family == "bert")
    write_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_CLS"
    kind = LlamaForSequenceClassification if family == "llama" else BertForSequenceClassification
    their_model = kind.from_pretrained(
        tmp_path / "base", num_labels=3, pad_token_id=0, dtype=torch.float64
    )
    expected = peft_model(their_model, tmp_path / "adapter")(words).logits
    assert furthest(scores(model, words), expected) < NEAR[family]
    again = read_adapter(backbone, tmp_path / "adapter")
    assert isinstance(again, TaskModel)
    assert again.config == model.config
    assert_close(scores(again, words), scores(model, words), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_their_head(family: str, tmp_path: Path) -> None:
    """An adapter of theirs with a head needs a model that has one: labels and marks are not in
    their file.
    """
    kind = LlamaForSequenceClassification if family == "llama" else BertForSequenceClassification
    base, words = theirs(family), 1 + ids(V - 1)
    backbone = ours_of(base, tmp_path / "base")
    their_model = kind.from_pretrained(
        tmp_path / "base", num_labels=3, pad_token_id=0, dtype=torch.float64
    )
    target = ["q_proj", "v_proj"] if family == "llama" else ["query", "value"]
    model = wrapped(their_model, target_modules=target, task_type="SEQ_CLS")
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(
        ValueError,
        match=r"(score|classifier): this is the head of a task, for a model that has one",
    ):
        read_adapter(backbone, tmp_path / "adapter")
    config = TaskModelConfig(
        backbone=backbone.config,
        head=head(pooling="last" if family == "llama" else "first", bias=family == "bert"),
    )
    ours = TaskModel(config).eval()
    ours.backbone.load_state_dict(backbone.state_dict())
    assert read_adapter(ours, tmp_path / "adapter") is ours
    assert furthest(scores(ours, words), model(words).logits) < NEAR[family]


def test_a_translator(tmp_path: Path) -> None:
    ours, words = (
        transformer(norm_placement="after", final_norm=False, activation="gelu", sinusoid="halves"),
        ids(13),
    )
    write_folder(ours, tmp_path / "base")
    attach(ours, AdapterConfig(rank=2, projections=("key", "output", "up")))
    awaken(adapter_parameters(ours))
    write_adapter(ours, tmp_path / "adapter")
    base = loaded(MarianMTModel, tmp_path / "base", dtype=torch.float64)
    model = peft_model(base, tmp_path / "adapter")
    expected = model(input_ids=words, decoder_input_ids=words).logits
    assert furthest(ours(words, words), expected) < 1e-5  # their sinusoids are float32


@pytest.mark.parametrize("with_head", [False, True])
def test_models_that_they_have_not(with_head: bool, tmp_path: Path) -> None:
    """A GPT with ALiBi keeps our names; `peft` itself can put the adapter on our own model."""
    backbone, words = gpt(position="alibi", activation="swiglu"), ids(13)
    plain = gpt(position="alibi", activation="swiglu")
    plain.load_state_dict(backbone.state_dict())
    model: Any = tuned(backbone) if with_head else backbone
    if not with_head:
        attach(model, AdapterConfig(rank=2, projections=("query", "key", "gate", "down")))
        awaken(adapter_parameters(model))
    write_adapter(model, tmp_path / "adapter")
    again = read_adapter(plain, tmp_path / "adapter")
    for one, other in ((again, model), (merged(again), merged(model))):
        said_by = (
            (scores(one, words), scores(other, words)) if with_head else (one(words), other(words))
        )
        assert_close(*said_by, rtol=1e-12, atol=1e-12)


def merged(model: Any) -> Any:
    merge(model)
    return model


@pytest.mark.usefixtures("without_shape_checks")
def test_their_library_on_our_model(tmp_path: Path) -> None:
    model, words = gpt(position="alibi"), ids(13)
    plain = gpt(position="alibi")
    plain.load_state_dict(model.state_dict())
    attach(model, AdapterConfig(rank=2, projections=("query", "key", "up")))
    awaken(adapter_parameters(model))
    write_adapter(model, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["qkv", "up"]
    edited = config | {"task_type": None}  # their CAUSAL_LM asks for generate()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(edited))
    assert_close(
        peft_model(plain, tmp_path / "adapter")(words), model(words), rtol=1e-12, atol=1e-12
    )
