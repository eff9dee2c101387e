"""Small models of every family and kind, in float64, with weights large enough to matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.models import (
    BERT,
    GPT,
    RNN,
    BERTConfig,
    Config,
    GPTConfig,
    RNNConfig,
    RNNLanguageModel,
    RNNLMConfig,
    Transformer,
    TransformerConfig,
    build,
)

V, E, H, CONTEXT = 13, 16, 4, 16

SMALL: dict[str, Any] = {
    "vocabulary": V,
    "context": CONTEXT,
    "width": E,
    "depth": 2,
    "heads": H,
    "hidden": 24,
}

POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "relu2"]

# Every kind of stack, one choice changed at a time, then some together.
KINDS: dict[str, dict[str, Any]] = {
    **{
        f"position {position}": {"position": position}
        for position in POSITIONS
        if position != "relative"
    },
    **{f"activation {activation}": {"activation": activation} for activation in ACTIVATIONS},
    "rms norm": {"norm": "rms"},
    "norm before": {"norm_placement": "before"},
    "norm after": {"norm_placement": "after"},
    "norm after and at the end": {"norm_placement": "after", "final_norm": True},
    "norm before and not at the end": {"norm_placement": "before", "final_norm": False},
    "product of learned": {"join": "product", "position": "learned"},
    "product of sinusoidal": {"join": "product", "position": "sinusoidal"},
    "grouped heads": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "wide heads": {"head_width": 6},
    "window": {"window": 3},
    "window of rotary": {"window": 2, "position": "rotary"},
    "window of alibi": {"window": 4, "position": "alibi"},
    "strided": {"sparse": "strided", "stride": 3},
    "fixed": {"sparse": "fixed", "stride": 3},
    "fixed window of rotary": {"sparse": "fixed", "stride": 2, "window": 4, "position": "rotary"},
    "no biases": {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False},
    "llama": {
        "position": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "kv_heads": 2,
        "qkv_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
    },
}
GPT_KINDS = KINDS | {
    "position relative": {"position": "relative"},
    "relative window": {"position": "relative", "window": 3},
    "untied": {"tied": False},
    "embedding scaled": {"scaled_embedding": True, "position": "sinusoidal"},
    "learned beside": {"join": "concatenate", "position": "learned", "tied": False},
    "sinusoidal beside": {
        "join": "concatenate",
        "position": "sinusoidal",
        "position_width": 6,
        "tied": False,
    },
}
BERT_KINDS = KINDS | {
    "no segments": {"segments": 0},
    "no heads": {"pooler": False, "next_sentence": False},
}
TRANSFORMER_KINDS = KINDS | {
    "deeper decoder": {"decoder_depth": 3},
    "two-way tie": {"tied": "two", "source_vocabulary": 7},
    "no tie": {"tied": "none", "source_vocabulary": 7, "logit_bias": True},
    "learned beside": {"join": "concatenate", "position": "learned", "tied": "none"},
    "halves": {"sinusoid": "halves", "position": "sinusoidal"},
    "embedding not scaled": {"scaled_embedding": False},
}
RNN_KINDS: dict[str, dict[str, Any]] = {
    **{
        f"{cell} {attention}": {"cell": cell, "attention": attention}
        for cell in ("rnn", "lstm", "gru")
        for attention in ("none", "additive")
    },
    **{
        f"gru {attention}": {"attention": attention}
        for attention in ("dot", "scaled_dot", "general")
    },
    "one direction": {"bidirectional": False},
    "two layers": {"depth": 2, "cell": "lstm"},
    "tied": {"tied": True},
    "other source": {"source_vocabulary": 7},
    "three residual layers": {"depth": 3, "residual": True},
    "residual lstm, none": {
        "depth": 2,
        "residual": True,
        "cell": "lstm",
        "attention": "none",
    },
}
RNN_LM_KINDS: dict[str, dict[str, Any]] = {
    **{cell: {"cell": cell} for cell in ("rnn", "lstm", "gru")},
    "three layers": {"depth": 3},
    "three residual layers": {"depth": 3, "residual": True},
    "two residual layers of gru": {"depth": 2, "residual": True, "cell": "gru"},
    "untied": {"tied": False},
}


def lively(config: Config) -> Any:
    """Return a model in float64 and eval mode, with weights so large that every part matters."""
    model = build(config).double().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.4)
        elif not name.endswith("gain"):
            nn.init.normal_(parameter, std=0.2)

    return model


def gpt(**choices: Any) -> GPT:
    return lively(GPTConfig(**(SMALL | choices)))


def bert(**choices: Any) -> BERT:
    return lively(BERTConfig(**(SMALL | choices)))


def transformer(**choices: Any) -> Transformer:
    return lively(TransformerConfig(**(SMALL | choices)))


def rnn(**choices: Any) -> RNN:
    return lively(RNNConfig(**({"vocabulary": V, "width": E} | choices)))


def rnn_lm(**choices: Any) -> RNNLanguageModel:
    return lively(RNNLMConfig(**({"vocabulary": V, "context": CONTEXT, "width": E} | choices)))


def words(*shape: int, vocabulary: int = V) -> Tensor:
    """Return random token ids."""
    return torch.randint(vocabulary, shape)


def sources(config: Config, *shape: int) -> Tensor:
    """Return random token ids of the source vocabulary."""
    return words(*shape, vocabulary=getattr(config, "source_vocabulary", None) or V)
