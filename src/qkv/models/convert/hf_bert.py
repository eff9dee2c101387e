"""BERT as `transformers` stores it: the encoder alone, or with the heads of pre-training."""

from __future__ import annotations

from typing import Any

from qkv.models.bert import BERTConfig
from qkv.models.convert.config_fields import Fields
from qkv.models.convert.hf_format import OLD_SPELLINGS, SUPPORTED, Format
from qkv.models.convert.weight_rules import Weights

FIELDS = {
    "vocabulary": ("vocab_size", 30522),
    "context": ("max_position_embeddings", 512),
    "width": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "hidden": ("intermediate_size", 3072),
    "segments": ("type_vocab_size", 2),
    "activation": ("hidden_act", "gelu"),
    "norm_epsilon": ("layer_norm_eps", 1e-12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
LAYER = "bert.encoder.layer.*"
MODULES: dict[str, str | tuple[str, ...]] = {
    "embedding.token": "bert.embeddings.word_embeddings",
    "embedding.position": "bert.embeddings.position_embeddings",
    "embedding.segment": "bert.embeddings.token_type_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
    "stack.blocks.*.attention.qkv": (
        f"{LAYER}.attention.self.query",
        f"{LAYER}.attention.self.key",
        f"{LAYER}.attention.self.value",
    ),
    "stack.blocks.*.attention.output": f"{LAYER}.attention.output.dense",
    "stack.blocks.*.attention_residual.norm": f"{LAYER}.attention.output.LayerNorm",
    "stack.blocks.*.feed_forward.up": f"{LAYER}.intermediate.dense",
    "stack.blocks.*.feed_forward.down": f"{LAYER}.output.dense",
    "stack.blocks.*.feed_forward_residual.norm": f"{LAYER}.output.LayerNorm",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "next_sentence": "cls.seq_relationship",
}
TIED = {
    "embedding.token.weight": (
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight",
    ),
    "head.bias": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
}


def more_from_hf(fields: Fields, weights: Weights) -> dict[str, Any]:
    """Return the heads; the tensors decide which there are, not the class that is named."""
    mlm_head = any(name.startswith("cls.predictions.") for name in weights)
    if mlm_head:
        fields.only(tie_word_embeddings=True)

    return {
        "mlm_head": mlm_head,
        "pooler": "bert.pooler.dense.weight" in weights,
        "next_sentence": "cls.seq_relationship.weight" in weights,
    }


def more_to_hf(config: BERTConfig) -> dict[str, Any]:
    """Return their class with the same heads."""
    if config.segments < 1:
        raise ValueError("segments: BERT's format needs 1 or more, not 0")

    architecture = "BertModel"
    if config.next_sentence and config.mlm_head:
        architecture = "BertForPreTraining"
    elif config.next_sentence:
        architecture = "BertForNextSentencePrediction"
    elif config.mlm_head:
        architecture = "BertForMaskedLM"

    return {"architectures": [architecture], "tie_word_embeddings": True}


FORMAT = Format(
    name="BERT",
    model_type="bert",
    architectures=(
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForNextSentencePrediction",
    ),
    bare=("BertModel",),
    config=BERTConfig,
    fields=FIELDS,
    only={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    fixed={"position": "learned", **SUPPORTED, "norm_placement": "after"},
    final_norm=False,
    more_from_hf=more_from_hf,
    more_to_hf=more_to_hf,
    modules=MODULES,
    tensors=lambda config: TIED,
    prefix="bert.",
    heads=("cls.",),
    ignored=r"embeddings\.(position_ids|token_type_ids)$",
    spellings=OLD_SPELLINGS,
)
