"""BERT as `transformers` stores it: the encoder alone, or with the heads of pre-training."""

from __future__ import annotations

from typing import Any

from qkv.models.bert import BERTConfig
from qkv.models.convert.config_fields import Fields
from qkv.models.convert.hf_format import OLD_SPELLINGS, SUPPORTED, Format, family_table
from qkv.models.convert.weight_rules import Weights


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
    **family_table("bert"),
    config=BERTConfig,
    fixed={"position": "learned", **SUPPORTED, "norm_placement": "after"},
    more_from_hf=more_from_hf,
    more_to_hf=more_to_hf,
    spellings=OLD_SPELLINGS,
)
