"""Adapters: `peft` and our models agree in float64, whichever of them wrote the adapter."""

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
from qkv.models.model import Model
from qkv.nn.lora import (
    AdapterConfig,
    Projection,
    adapted,
    adapter_parameters,
    attach_adapters,
    merge_adapters,
)
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
    """Use float64, so that a difference is a mistake and not rounding."""


def theirs(family: str) -> Any:
    return randomised(MADE[family]()).double()


def ours_of(model: Any, path: Path) -> Model:
    return read_folder(saved(model, path), dtype=torch.float64)


def same_numbers(ours: Model, others: Model) -> None:
    for name, tensor in others.state_dict().items():
        assert_close(ours.state_dict()[name], tensor, rtol=1e-13, atol=1e-13)


def wrapped(model: Any, **choices: Any) -> Any:
    """Return their model with their adapters, with random numbers."""
    choices = {"r": 4, "lora_alpha": 6, **choices}
    model = peft.get_peft_model(model, peft.LoraConfig(**choices)).double().eval()
    randomise([parameter for name, parameter in model.named_parameters() if "lora_" in name])
    return model


def randomise(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        nn.init.normal_(parameter, std=0.2)


def output_of(model: Any, token_ids: Tensor) -> Tensor:
    if isinstance(model, GPT):
        return model(token_ids)

    if isinstance(model, BERT):
        return model.hidden(token_ids)

    output = model(token_ids)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@pytest.mark.parametrize("case", CASES)
def test_their_adapters(case: str, tmp_path: Path) -> None:
    family, choices = CASES[case]
    base = theirs(family)
    ours = ours_of(base, tmp_path / "base")
    token_ids = ids(V)
    plain = output_of(ours, token_ids)
    model = wrapped(base, **choices)
    model.save_pretrained(tmp_path / "adapter")
    assert read_adapter(ours, tmp_path / "adapter") is ours
    assert furthest(output_of(ours, token_ids), plain) > 1e-3
    assert furthest(output_of(ours, token_ids), output_of(model, token_ids)) < NEAR[family]
    merge_adapters(ours)
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
    ours = ours_of(base, tmp_path / "base")
    token_ids = ids(V)
    plain = output_of(ours, token_ids)
    attach_adapters(ours, AdapterConfig(rank=3, alpha=6.0, projections=projections))
    randomise(adapter_parameters(ours))
    write_adapter(ours, tmp_path / "adapter", str(tmp_path / "base"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == modules
    assert furthest(output_of(ours, token_ids), plain) > 1e-3
    model = peft_model(base, tmp_path / "adapter")
    assert furthest(output_of(model, token_ids), output_of(ours, token_ids)) < NEAR[family]
    again = read_adapter(read_folder(tmp_path / "base", dtype=torch.float64), tmp_path / "adapter")
    assert furthest(output_of(again, token_ids), output_of(ours, token_ids)) < 1e-12
    merge_adapters(ours)
    same_numbers(ours, ours_of(model.merge_and_unload(), tmp_path / "merged"))


def peft_model(base: Any, path: Path) -> Any:
    """Load our folder with `peft`; its warnings about missing or unexpected tensors are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return peft.PeftModel.from_pretrained(base, path).eval()


def test_a_fused_matrix_gets_ranks_side_by_side(tmp_path: Path) -> None:
    """GPT-2's c_attn has rank 6 for a query and a value of rank 3; the key's rows are zeros."""
    ours = ours_of(theirs("gpt2"), tmp_path / "base")
    attach_adapters(ours, AdapterConfig(rank=3, alpha=6.0, projections=("query", "value", "down")))
    randomise(adapter_parameters(ours))
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
    special: dict[str, Any] = {"delimiter": 1, "extract": 2, "padding": 0}
    return HeadConfig(
        **({"task": "classify", "labels": ("bad", "so-so", "good"), **special} | choices)
    )


def task_model(backbone: Any, **choices: Any) -> TaskModel:
    """Return a model with a head and adapters that all change the output."""
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head(**choices))).eval()
    model.backbone.load_state_dict(backbone.state_dict())
    randomise(list(model.head.parameters()))
    attach_adapters(model, AdapterConfig(rank=2, projections=("query", "value", "down")))
    randomise(adapter_parameters(model))
    return model


def scores(model: TaskModel, token_ids: Tensor) -> Tensor:
    position = 0 if model.config.head.pooling == "first" else token_ids.shape[1] - 1
    return model(token_ids, target_positions=torch.full((len(token_ids), 1), position))[:, 0]


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_head_comes_along(family: str, tmp_path: Path) -> None:
    """`peft` reads adapters and head; our reader restores the whole model from its base."""
    base = theirs(family)
    token_ids = 1 + ids(V - 1)
    backbone = ours_of(base, tmp_path / "base")
    model = task_model(
        backbone, pooling="last" if family == "llama" else "first", bias=family == "bert"
    )
    write_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_CLS"
    kind = LlamaForSequenceClassification if family == "llama" else BertForSequenceClassification
    their_model = kind.from_pretrained(
        tmp_path / "base", num_labels=3, pad_token_id=0, dtype=torch.float64
    )
    expected = peft_model(their_model, tmp_path / "adapter")(token_ids).logits
    assert furthest(scores(model, token_ids), expected) < NEAR[family]
    again = read_adapter(backbone, tmp_path / "adapter")
    assert isinstance(again, TaskModel)
    assert again.config == model.config
    assert_close(scores(again, token_ids), scores(model, token_ids), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_their_head(family: str, tmp_path: Path) -> None:
    """Their adapter with a head needs a model that has one: their file has no labels."""
    kind = LlamaForSequenceClassification if family == "llama" else BertForSequenceClassification
    base = theirs(family)
    token_ids = 1 + ids(V - 1)
    backbone = ours_of(base, tmp_path / "base")
    their_model = kind.from_pretrained(
        tmp_path / "base", num_labels=3, pad_token_id=0, dtype=torch.float64
    )
    target = ["q_proj", "v_proj"] if family == "llama" else ["query", "value"]
    model = wrapped(their_model, target_modules=target, task_type="SEQ_CLS")
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(
        ValueError,
        match=r"(score|classifier): .*head of a task",
    ):
        read_adapter(backbone, tmp_path / "adapter")

    config = TaskModelConfig(
        backbone=backbone.config,
        head=head(pooling="last" if family == "llama" else "first", bias=family == "bert"),
    )
    ours = TaskModel(config).eval()
    ours.backbone.load_state_dict(backbone.state_dict())
    assert read_adapter(ours, tmp_path / "adapter") is ours
    assert furthest(scores(ours, token_ids), model(token_ids).logits) < NEAR[family]


def test_a_translator(tmp_path: Path) -> None:
    ours = transformer(
        norm_placement="after", final_norm=False, activation="gelu", sinusoid="halves"
    )
    token_ids = ids(13)
    write_folder(ours, tmp_path / "base")
    attach_adapters(ours, AdapterConfig(rank=2, projections=("key", "output", "up")))
    randomise(adapter_parameters(ours))
    write_adapter(ours, tmp_path / "adapter")
    base = loaded(MarianMTModel, tmp_path / "base", dtype=torch.float64)
    model = peft_model(base, tmp_path / "adapter")
    expected = model(input_ids=token_ids, decoder_input_ids=token_ids).logits
    assert furthest(ours(token_ids, token_ids), expected) < 1e-5  # their sinusoids are float32


@pytest.mark.parametrize("with_head", [False, True])
def test_models_that_transformers_does_not_have(with_head: bool, tmp_path: Path) -> None:
    """A GPT with ALiBi keeps our names; `peft` itself can put the adapter on our own model."""
    backbone = gpt(position="alibi", activation="swiglu")
    token_ids = ids(13)
    plain = gpt(position="alibi", activation="swiglu")
    plain.load_state_dict(backbone.state_dict())
    model: Any = task_model(backbone) if with_head else backbone
    if not with_head:
        attach_adapters(model, AdapterConfig(rank=2, projections=("query", "key", "gate", "down")))
        randomise(adapter_parameters(model))

    write_adapter(model, tmp_path / "adapter")
    again = read_adapter(plain, tmp_path / "adapter")
    for one, other in ((again, model), (merged(again), merged(model))):
        outputs = (
            (scores(one, token_ids), scores(other, token_ids))
            if with_head
            else (one(token_ids), other(token_ids))
        )
        assert_close(*outputs, rtol=1e-12, atol=1e-12)


def merged(model: Any) -> Any:
    merge_adapters(model)
    return model


@pytest.mark.usefixtures("without_shape_checks")
def test_their_library_on_our_model(tmp_path: Path) -> None:
    model = gpt(position="alibi")
    token_ids = ids(13)
    plain = gpt(position="alibi")
    plain.load_state_dict(model.state_dict())
    attach_adapters(model, AdapterConfig(rank=2, projections=("query", "key", "up")))
    randomise(adapter_parameters(model))
    write_adapter(model, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["qkv", "up"]
    edited = config | {"task_type": None}  # their CAUSAL_LM asks for generate()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(edited))
    assert_close(
        peft_model(plain, tmp_path / "adapter")(token_ids), model(token_ids), rtol=1e-12, atol=1e-12
    )
