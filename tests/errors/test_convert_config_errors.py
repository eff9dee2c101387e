"""Configs that the other side cannot express raise with the field's name; nothing else is lost."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from qkv.models import GPT, RNN, BERTConfig, GPTConfig, Model, RNNConfig, TransformerConfig
from qkv.models.convert import read_folder, write_folder
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.feed_forward import FeedForward
from qkv.nn.own_parts import register_part
from qkv.nn.position import PositionEncoding, RotaryScaling
from support.small_hf_folders import edit, outcome, refused, small

pytestmark = pytest.mark.usefixtures("without_shape_checks")

# Their configs

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "gpt2",
            {"model_type": "mamba"},
            "model_type: expected one of gpt2, llama, bert, marian, not 'mamba'",
        ),
        ("gpt2", {"model_type": ["gpt2"]}, "model_type: expected one of"),
        (
            "gpt2",
            {"model_type": None, "architectures": ["Own"]},
            "architectures: ... GPT2LMHeadModel",
        ),
        (
            "gpt2",
            {"model_type": None, "architectures": [{}]},
            "architectures: ... GPT2LMHeadModel",
        ),
        (
            "gpt2",
            {"architectures": ["GPT2ForSequenceClassification"]},
            "architectures: ... GPT2LMHeadModel",
        ),
        ("gpt2", {"architectures": "GPT2LMHeadModel"}, "architectures: expected a list"),
        ("gpt2", {"activation_function": "mish"}, "activation_function: expected one of relu,"),
        ("gpt2", {"activation_function": ["gelu"]}, "activation_function: expected one of relu,"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx: expected False",
        ),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights: expected True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention: expected False"),
        ("gpt2", {"n_layer": "two"}, "n_layer: ... whole number"),
        ("gpt2", {"n_layer": -1}, "n_layer: ... whole number"),
        ("gpt2", {"n_layer": 0}, "depth: expected 1 or more, not 0"),
        ("gpt2", {"n_layer": 10**12}, "1000000000000 layers, but"),
        ("gpt2", {"n_head": 3}, "heads: 3 heads do not divide width 8"),
        ("gpt2", {"n_head": 0}, "heads: expected 1 or more, not 0"),
        ("gpt2", {"n_embd": True}, "n_embd: ... whole number"),
        (
            "gpt2",
            {"layer_norm_epsilon": "small"},
            "layer_norm_epsilon: ... a number",
        ),
        (
            "gpt2",
            {"layer_norm_epsilon": float("nan")},
            "layer_norm_epsilon: ... a number",
        ),
        ("gpt2", {"tie_word_embeddings": 1}, "tie_word_embeddings: ... true or false"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config: not supported"),
        ("gpt2", {"pruned_heads": {"0": [1]}}, "pruned_heads: not supported"),
        ("llama", {"per_layer_config": {"0": {"head_dim": 2}}}, "per_layer_config: not supported"),
        (
            "llama",
            {"auto_map": {"AutoModelForCausalLM": "own.Own"}},
            "auto_map: ... code of its own",
        ),
        ("llama", {"hidden_act": "gelu"}, "hidden_act: expected silu"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_scaling: rope_type: ... default or",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_type: expected default or llama3",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic"}},
            "rope_parameters: rope_type: ... default or",
        ),
        (
            "llama",
            {"rope_parameters": "llama3"},
            "rope_parameters: ... fields in braces",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
            "low_freq_factor: rope_type llama3 needs",
        ),
        (
            "llama",
            {"rope_parameters": LLAMA3 | {"factor": "2"}},
            "rope_parameters: factor: ... a number",
        ),
        (
            "llama",
            {"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}},
            "low: expected less than high = 1.0",
        ),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor: expected 1.0",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1.0"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads: ... a divisor"),
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type: expected 'absolute'",
        ),
        ("bert", {"is_decoder": True}, "is_decoder: expected False"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings: expected True"),
        ("bert", {"hidden_act": "tanh"}, "hidden_act: expected one of"),
        (
            "bert",
            {"architectures": ["BertForTokenClassification"]},
            "architectures: ... BertModel",
        ),
        (
            "marian",
            {"decoder_ffn_dim": 16},
            "decoder_ffn_dim: ... same as",
        ),
        (
            "marian",
            {"decoder_attention_heads": 4},
            "decoder_attention_heads: ... same as",
        ),
        (
            "marian",
            {"tie_word_embeddings": False},
            "tie_word_embeddings: expected true when share_encoder_decoder",
        ),
        ("marian", {"decoder_layers": 10**12}, "1000000000000 layers, but"),
        ("marian", {"normalize_before": True}, "normalize_before: expected False"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding: expected False"),
        (
            "marian",
            {"static_position_embeddings": False},
            "static_position_embeddings: expected True",
        ),
        ("marian", {"vocab_size": 12}, "tied: three ways needs one vocabulary"),
    ],
)
def test_an_unsupported_config(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_folder(small(family), tmp_path)
    edit(tmp_path, **changes)
    with refused(message) as error:
        read_folder(tmp_path)

    assert str(error.value).startswith(str(tmp_path / "config.json"))


def test_fields_that_change_nothing_are_fine(tmp_path: Path) -> None:
    write_folder(small("gpt2"), tmp_path)
    edit(
        tmp_path,
        use_cache=False,
        summary_type="mean",
        id2label={"0": "no"},
        auto_map={"AutoTokenizer": "own.Own"},
    )
    edit(
        tmp_path,
        bos_token_id=7,
        gradient_checkpointing=True,
        reorder_and_upcast_attn=True,
        quantization_config=None,
    )
    assert isinstance(read_folder(tmp_path), GPT)


# Our configs


@pytest.mark.parametrize(
    ("family", "choices", "message"),
    [
        (
            "gpt2",
            {"position": "alibi"},
            "position: ... learned (GPT-2)",
        ),
        (
            "gpt2",
            {"position": "sinusoidal"},
            "position: ... learned (GPT-2)",
        ),
        ("gpt2", {"activation": "swiglu"}, "activation: ... can say"),
        ("gpt2", {"norm": "rms"}, "norm: ... can only say"),
        ("gpt2", {"head_width": 6}, "head_width: ... can only say"),
        (
            "llama",
            {"activation": "relu2"},
            "activation: ... can only say",
        ),
        (
            "llama",
            {"output_bias": False},
            "output_bias: ... format needs",
        ),
        (
            "llama",
            {"heads": 3, "kv_heads": 1, "head_width": 4},
            "heads: ... a divisor",
        ),
        ("bert", {"segments": 0}, "segments: ... 1 or more"),
        ("bert", {"final_norm": True}, "final_norm: ... can only say"),
        (
            "marian",
            {"position": "learned"},
            "position: ... can only say",
        ),
        (
            "marian",
            {"norm_epsilon": 1e-6},
            "norm_epsilon: ... can only say",
        ),
    ],
)
def test_a_model_that_no_format_can_express(
    family: str, choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with refused(message):
        write_folder(small(family, **choices), tmp_path / "model")

    assert not (tmp_path / "model").exists()


def test_an_rnn_has_no_format(tmp_path: Path) -> None:
    with refused("transformers has no format for an RNN"):
        write_folder(RNN(RNNConfig(vocabulary=13, width=8)), tmp_path / "model")


# Another value for every field: writing it must raise, or reading must give it back.
OTHERS: dict[str, Any] = {
    "width": 16,
    "depth": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 6,
    "hidden": 24,
    "activation": "silu",
    "norm": "rms",
    "norm_placement": None,  # the other one
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
    "attention": "of one's own",
    "feed_forward": "of one's own",
    "position_encoding": "of one's own",
    "vocabulary": 17,
    "source_vocabulary": 11,
    "context": 12,
    "join": "product",
    "position_width": 3,
    "tied": None,
    "memory": 4,
    "segments": 3,
    "mlm_head": False,
    "pooler": False,
    "next_sentence": False,
    "decoder_depth": 2,
    "sinusoid": "halves",
    "scaled_embedding": None,
    "logit_bias": True,
}
TOGETHER: dict[str, dict[str, Any]] = {
    "sparse": {"stride": 2},
    "stride": {"sparse": "fixed"},
    "source_vocabulary": {"tied": "two"},
    "memory": {"position": "relative"},
    "pooler": {"next_sentence": False},
    "kv_heads": {"heads": 4},
    "position_encoding": {"position": "none"},
}
UNUSED = {  # fields without any effect on the numbers
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
OWN_PARTS = {
    "attention": MultiHeadAttention,
    "feed_forward": FeedForward,
    "position_encoding": PositionEncoding,
}
FAMILIES = {"gpt2": GPTConfig, "llama": GPTConfig, "bert": BERTConfig, "marian": TransformerConfig}


@pytest.mark.parametrize(
    ("family", "field"),
    [(family, field.name) for family, kind in FAMILIES.items() for field in fields(kind)],
)
def test_no_field_is_lost(family: str, field: str, tmp_path: Path) -> None:
    config = small(family).config
    value = OTHERS[field]
    for name, part in OWN_PARTS.items():
        register_part(name, "of one's own", part)

    if field == "norm_placement":
        value = {"before": "after", "after": "before"}[config.norm_placement]
    elif field == "final_norm":
        value = config.norm_placement == "after"
    elif field == "scaled_embedding":
        value = not config.scaled_embedding
    elif field == "tied" and family == "marian":
        value = "none"
    elif field == "tied":
        value = not config.tied

    choices = {field: value, **TOGETHER.get(field, {})}

    def there_and_back(path: Path) -> Model:
        write_folder(small(family, **choices), path)
        return read_folder(path)

    result = outcome(there_and_back, tmp_path)
    if isinstance(result, str):
        assert any(re.search(rf"\b{name}\b", result) for name in choices), "the field is named"
    elif (family, field) not in UNUSED:
        assert getattr(result.config, field) == value
