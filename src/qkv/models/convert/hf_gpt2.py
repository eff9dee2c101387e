"""GPT-2 as `transformers` stores it: matrices transposed; query, key and value in one."""

from __future__ import annotations

from qkv.models.convert.hf_format import OLD_SPELLINGS, SUPPORTED, Format, family_table
from qkv.models.gpt import GPTConfig

FORMAT = Format(
    **family_table("gpt2"),
    config=GPTConfig,
    fixed={
        "position": "learned",
        **SUPPORTED,
        "norm_placement": "before",
        "scaled_embedding": False,
    },
    # When read, their embd_pdrop may differ; ours has one dropout, and inference uses none.
    more_to_hf=lambda config: {"embd_pdrop": config.dropout},
    spellings=OLD_SPELLINGS,
)
