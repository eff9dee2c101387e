"""Which family a folder holds whose config.json names none, as those of 2019 do not: its tensors'
names tell.

Several families share names: RoBERTa is a BERT whose positions begin at 2, and many later models
are Llamas with another norm or scale. So where the names do not decide, the config must have no
field that the family would not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

SIGNS = {
    "gpt2": (r"(transformer\.)?wte\.weight", r"(transformer\.)?h\.0\.attn\.c_attn\.weight"),
    "bert": (
        r"(bert\.)?embeddings\.word_embeddings\.weight",
        r"(bert\.)?encoder\.layer\.0\.attention\.self\.query\.weight",
    ),
    "llama": (r"(model\.)?embed_tokens\.weight", r"(model\.)?layers\.0\.self_attn\.q_proj\.weight"),
    "marian": (
        r"model\.(shared|encoder\.embed_tokens)\.weight",
        r"model\.encoder\.layers\.0\.self_attn\.q_proj\.weight",
        r"model\.decoder\.layers\.0\.encoder_attn\.q_proj\.weight",
    ),
}
"""Names, one of each kind, that all files of a family have."""

GENERAL = {
    "architectures", "attention_bias", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "hidden_act",
    "initializer_range", "pad_token_id", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
    "vocab_size",
}  # fmt: skip
LLAMA = GENERAL | {
    "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "mlp_bias", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "pretraining_tp", "rms_norm_eps", "rope_parameters", "rope_scaling",
    "rope_theta",
}  # fmt: skip
"""What a Llama's config may say; a Gemma's or a Granite's, whose tensors have the same names, says
more.
"""
NAME_IT = 'add "model_type" to the file, which says which it is'


def recognise(values: Mapping[str, Any], names: Iterable[str]) -> str:
    """The model_type that the names of the tensors, and the config's fields, leave."""
    names = set(names)
    matching = [
        family for family, signs in SIGNS.items() if all(holds(names, sign) for sign in signs)
    ]
    if len(matching) != 1:
        what = (
            f"could be {' or '.join(matching)}"
            if matching
            else f"are of none of {', '.join(SIGNS)}"
        )
        raise ValueError(
            f"model_type: it is missing, and the names of the tensors {what}; {NAME_IT}"
        )

    (family,) = matching
    bare = not any(name.startswith("bert.") for name in names)
    if family == "bert" and bare and values.get("type_vocab_size") == 1:
        raise ValueError(
            f"model_type: it is missing, and the model could be a BERT or a RoBERTa; {NAME_IT}"
        )
    if family == "llama" and (strange := sorted(values.keys() - LLAMA)):
        raise ValueError(
            f"model_type: it is missing, and though the tensors have a Llama's names, {strange[0]} is not a field of "
            f"its config; {NAME_IT}"
        )

    return family


def holds(names: set[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name) for name in names)
