"""BERT as `transformers` stores it: the encoder alone, or with the heads of pre-training."""

from __future__ import annotations

from typing import Any

from qkv.models.bert import BERTConfig
from qkv.models.convert.config_fields import (
    Fields,
    SpecialIds,
    activation_to_hf,
    expect,
    expect_final_norm,
    expect_plain_heads,
)
from qkv.models.convert.weight_rules import Format, WeightRule, Weights, layer_norm, linear, stacked


def config_from_hf(fields: Fields, weights: Weights) -> BERTConfig:
    """Return our config; the tensors decide which heads there are, not the class that is named."""
    fields.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    mlm_head = any(name.startswith("cls.predictions.") for name in weights)
    if mlm_head:
        fields.only(tie_word_embeddings=True)

    return BERTConfig(
        vocabulary=fields.whole("vocab_size", 30522),
        context=fields.whole("max_position_embeddings", 512),
        width=fields.whole("hidden_size", 768),
        depth=fields.whole("num_hidden_layers", 12),
        heads=fields.whole("num_attention_heads", 12),
        hidden=fields.whole("intermediate_size", 3072),
        segments=fields.whole("type_vocab_size", 2),
        activation=fields.activation("hidden_act", "gelu"),
        norm_epsilon=fields.number("layer_norm_eps", 1e-12),
        dropout=fields.number("hidden_dropout_prob", 0.1),
        attention_dropout=fields.number("attention_probs_dropout_prob", 0.1),
        mlm_head=mlm_head,
        pooler="bert.pooler.dense.weight" in weights,
        next_sentence="cls.seq_relationship.weight" in weights,
    )


def config_to_hf(config: BERTConfig, ids: SpecialIds) -> dict[str, Any]:
    expect("BERT", config, position="learned", join="sum", norm="layer", norm_placement="after")
    expect("BERT", config, window=None, sparse="none")
    expect("BERT", config, qkv_bias=True, output_bias=True, feed_forward_bias=True)
    expect_final_norm("BERT", config, False)
    expect_plain_heads("BERT", config)
    if config.segments < 1:
        raise ValueError("segments: BERT's format needs 1 or more, not 0")

    return {
        "architectures": [architecture(config)],
        "model_type": "bert",
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.width_of_hidden,
        "type_vocab_size": config.segments,
        "hidden_act": activation_to_hf("BERT", config),
        "layer_norm_eps": config.norm_epsilon,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "tie_word_embeddings": True,
        **ids.to_hf(),
    }


def architecture(config: BERTConfig) -> str:
    """Return their class with the same heads."""
    if config.next_sentence and config.mlm_head:
        return "BertForPreTraining"
    if config.next_sentence:
        return "BertForNextSentencePrediction"
    if config.mlm_head:
        return "BertForMaskedLM"

    return "BertModel"


def rules(config: BERTConfig) -> list[WeightRule]:
    copies: tuple[str, ...] = ()
    if config.mlm_head:  # the output layer is tied to the embedding
        copies = ("cls.predictions.decoder.weight",)

    table = [
        WeightRule(
            "embedding.token.weight", ("bert.embeddings.word_embeddings.weight",), copies=copies
        ),
        WeightRule("embedding.position.weight", ("bert.embeddings.position_embeddings.weight",)),
        WeightRule("embedding.segment.weight", ("bert.embeddings.token_type_embeddings.weight",)),
        *layer_norm("embedding.norm", "bert.embeddings.LayerNorm"),
    ]

    for layer in range(config.depth):
        ours = f"stack.blocks.{layer}"
        theirs = f"bert.encoder.layer.{layer}"
        query_key_value = (
            f"{theirs}.attention.self.query",
            f"{theirs}.attention.self.key",
            f"{theirs}.attention.self.value",
        )
        table += stacked(f"{ours}.attention.qkv", query_key_value, (config.width,) * 3)
        table += linear(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        table += layer_norm(
            f"{ours}.attention_residual.norm", f"{theirs}.attention.output.LayerNorm"
        )
        table += linear(f"{ours}.feed_forward.up", f"{theirs}.intermediate.dense")
        table += linear(f"{ours}.feed_forward.down", f"{theirs}.output.dense")
        table += layer_norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm")

    if config.mlm_head:
        table += linear("head.dense", "cls.predictions.transform.dense")
        table += layer_norm("head.norm", "cls.predictions.transform.LayerNorm")
        table.append(
            WeightRule(
                "head.bias", ("cls.predictions.bias",), copies=("cls.predictions.decoder.bias",)
            )
        )

    if config.pooler:
        table += linear("pooler.dense", "bert.pooler.dense")

    if config.next_sentence:
        table += linear("next_sentence", "cls.seq_relationship")

    return table


FORMAT = Format(
    name="BERT",
    architectures=(
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForNextSentencePrediction",
    ),
    config_from_hf=config_from_hf,
    config_to_hf=config_to_hf,
    rules=rules,
    prefix="bert.",
    heads=("cls.",),
    bare=("BertModel",),
    ignored=r"embeddings\.(position_ids|token_type_ids)$",
    spellings=((".gamma", ".weight"), (".beta", ".bias")),
)
