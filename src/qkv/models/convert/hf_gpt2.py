"""GPT-2 as `transformers` stores it: matrices transposed; query, key and value in one."""

from __future__ import annotations

from qkv.models.convert.hf_format import OLD_SPELLINGS, SUPPORTED, Format
from qkv.models.gpt import GPTConfig

FIELDS = {
    "vocabulary": ("vocab_size", 50257),
    "context": ("n_positions", 1024),
    "width": ("n_embd", 768),
    "depth": ("n_layer", 12),
    "heads": ("n_head", 12),
    "hidden": ("n_inner", None),
    "activation": ("activation_function", "gelu_new"),
    "norm_epsilon": ("layer_norm_epsilon", 1e-5),
    "tied": ("tie_word_embeddings", True),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
}
MODULES = {
    "embedding.token": "transformer.wte",
    "embedding.position": "transformer.wpe",
    "stack.blocks.*.attention_residual.norm": "transformer.h.*.ln_1",
    "stack.blocks.*.attention.qkv": "transformer.h.*.attn.c_attn",
    "stack.blocks.*.attention.output": "transformer.h.*.attn.c_proj",
    "stack.blocks.*.feed_forward_residual.norm": "transformer.h.*.ln_2",
    "stack.blocks.*.feed_forward.up": "transformer.h.*.mlp.c_fc",
    "stack.blocks.*.feed_forward.down": "transformer.h.*.mlp.c_proj",
    "stack.norm": "transformer.ln_f",
    "head": "lm_head",
}


TIED = {"embedding.token.weight": ("transformer.wte.weight", "lm_head.weight")}

FORMAT = Format(
    name="GPT-2",
    model_type="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    config=GPTConfig,
    fields=FIELDS,
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    fixed={
        "position": "learned",
        **SUPPORTED,
        "norm_placement": "before",
        "scaled_embedding": False,
    },
    final_norm=True,
    # When read, their embd_pdrop may differ; ours has one dropout, and inference uses none.
    more_to_hf=lambda config: {"embd_pdrop": config.dropout},
    modules=MODULES,
    tensors=lambda config: TIED,
    transposed=True,
    prefix="transformer.",
    heads=("lm_head.",),
    ignored=r"\.attn\.(bias|masked_bias)$",  # the causal mask
    spellings=OLD_SPELLINGS,
)
