"""The models that these experiments compare, by the names that figures show."""

from __future__ import annotations

from typing import Any

from qkv.models import (
    RNN,
    GPTConfig,
    Model,
    RNNConfig,
    RNNLMConfig,
    Transformer,
    TransformerConfig,
)

CELLS = {"RNN": "rnn", "LSTM": "lstm", "GRU": "gru"}


def language_model(name: str, **sizes: Any) -> GPTConfig | RNNLMConfig:
    """The config of a model that reads from left to right.

    Args:
        name: RNN, LSTM or GRU; everything else is a GPT.
        sizes: Fields of the config; those that an RNN does not have are left out for it.

    Returns:
        The config.
    """
    if name not in CELLS:
        return GPTConfig(**sizes)

    known = RNNLMConfig.__dataclass_fields__
    fields = {key: value for key, value in sizes.items() if key in known}
    return RNNLMConfig(cell=CELLS[name], **fields)  # type: ignore[arg-type]


def copier(width: int, vocabulary: int, attention: str) -> Model:
    """A model with an encoder and a decoder.

    Args:
        width: Its width.
        vocabulary: Number of ids.
        attention: none or additive for a GRU; "only" for a Transformer.

    Returns:
        The model.
    """
    if attention != "only":
        config = RNNConfig(
            vocabulary=vocabulary,
            width=width,
            attention=attention,  # type: ignore[arg-type]
            dropout=0.0,
        )
        return RNN(config)

    return Transformer(
        TransformerConfig(
            vocabulary=vocabulary,
            width=width,
            depth=2,
            heads=4,
            norm_placement="before",
            dropout=0.0,
        )
    )
