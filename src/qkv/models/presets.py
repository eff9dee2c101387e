"""The published models by name, with the number of parameters that their papers or cards state."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from qkv.models.configs import BERTConfig, Config, GPTConfig, RNNConfig, TransformerConfig
from qkv.nn.stack_config import RotaryScaling


@dataclass(frozen=True)
class Preset:
    """A named config and where it comes from."""

    config: Config
    published: float | None
    """Parameters as stated by the source, in millions; None where it states none."""
    source: str


GPT1 = GPTConfig(
    vocabulary=40478,
    context=512,
    norm_placement="after",
    activation="gelu_tanh",
    dropout=0.1,
    attention_dropout=0.1,
)
GPT2 = GPTConfig(activation="gelu_tanh", dropout=0.1, attention_dropout=0.1)
GPT3 = GPTConfig(context=2048, activation="gelu_tanh")
LLAMA = GPTConfig(
    vocabulary=32000,
    context=2048,
    norm="rms",
    position="rotary",
    activation="swiglu",
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    tied=False,
)
LLAMA3 = replace(LLAMA, vocabulary=128256, context=8192, rotary_base=500000.0)
LLAMA32 = replace(LLAMA3, context=131072, tied=True, rotary_scaling=RotaryScaling(factor=32.0))


def gpt(
    base: GPTConfig, depth: int, width: int, heads: int, head_width: int | None = None
) -> GPTConfig:
    return replace(base, depth=depth, width=width, heads=heads, head_width=head_width)


def llama(
    base: GPTConfig, depth: int, width: int, heads: int, hidden: int, kv_heads: int | None = None
) -> GPTConfig:
    return replace(base, depth=depth, width=width, heads=heads, hidden=hidden, kv_heads=kv_heads)


ATTENTION = "Vaswani et al. 2017, table 3"
GPT3_PAPER = "Brown et al. 2020, table 2.1"

PRESETS: dict[str, Preset] = {
    # For training on one's machine: tiny in minutes on a laptop, small in minutes on a GPU.
    "gpt-tiny": Preset(
        GPTConfig(vocabulary=4096, context=128, width=128, depth=4, heads=4), None, "for a laptop"
    ),
    "gpt-small": Preset(
        GPTConfig(vocabulary=8192, context=256, width=384, depth=6, heads=6, dropout=0.2),
        None,
        "for one GPU",
    ),
    "bert-tiny": Preset(
        BERTConfig(
            vocabulary=4096, context=128, width=128, depth=4, heads=4, norm_placement="before"
        ),
        None,
        "for a laptop",
    ),
    "bert-small": Preset(
        BERTConfig(
            vocabulary=8192,
            context=256,
            width=384,
            depth=6,
            heads=6,
            norm_placement="before",
            dropout=0.1,
        ),
        None,
        "for one GPU",
    ),
    "transformer-tiny": Preset(
        TransformerConfig(
            vocabulary=4096, width=128, depth=2, heads=4, norm_placement="before", dropout=0.0
        ),
        None,
        "for a laptop",
    ),
    "transformer-small": Preset(
        TransformerConfig(
            vocabulary=8192, width=256, depth=4, heads=4, norm_placement="before", dropout=0.1
        ),
        None,
        "for one GPU",
    ),
    "rnn-tiny": Preset(RNNConfig(vocabulary=4096, width=128, dropout=0.0), None, "for a laptop"),
    "rnn-small": Preset(RNNConfig(vocabulary=8192, width=256), None, "for one GPU"),
    "rnn": Preset(RNNConfig(attention="none"), None, "Cho et al. 2014, small"),
    "rnn-attention": Preset(RNNConfig(), None, "Bahdanau et al. 2015, small"),
    # The paper's sizes give 63 million parameters with 37,000 shared tokens; the paper does not say
    # how it counts 65.
    "transformer-base": Preset(
        TransformerConfig(width=512, depth=6, heads=8, hidden=2048, attention_dropout=0.1),
        65,
        ATTENTION,
    ),
    "transformer-big": Preset(
        TransformerConfig(
            width=1024, depth=6, heads=16, hidden=4096, dropout=0.3, attention_dropout=0.1
        ),
        213,
        ATTENTION,
    ),
    "gpt1": Preset(gpt(GPT1, 12, 768, 12), 117, "Radford et al. 2018"),
    "gpt2": Preset(gpt(GPT2, 12, 768, 12), 124, "Radford et al. 2019, as corrected"),
    "gpt2-medium": Preset(gpt(GPT2, 24, 1024, 16), 355, "Radford et al. 2019"),
    "gpt2-large": Preset(gpt(GPT2, 36, 1280, 20), 774, "Radford et al. 2019"),
    "gpt2-xl": Preset(gpt(GPT2, 48, 1600, 25), 1558, "Radford et al. 2019"),
    "gpt3-small": Preset(gpt(GPT3, 12, 768, 12), 125, GPT3_PAPER),
    "gpt3-medium": Preset(gpt(GPT3, 24, 1024, 16), 350, GPT3_PAPER),
    "gpt3-large": Preset(gpt(GPT3, 24, 1536, 16), 760, GPT3_PAPER),
    # The paper's row has 24 heads of 128, which do not fit a width of 2048; 16 give the stated 1.3
    # billion.
    "gpt3-xl": Preset(gpt(GPT3, 24, 2048, 16), 1300, GPT3_PAPER),
    "gpt3-2.7b": Preset(gpt(GPT3, 32, 2560, 32), 2700, GPT3_PAPER),
    "gpt3-6.7b": Preset(gpt(GPT3, 32, 4096, 32), 6700, GPT3_PAPER),
    "gpt3-13b": Preset(gpt(GPT3, 40, 5140, 40, head_width=128), 13000, GPT3_PAPER),
    "gpt3-175b": Preset(gpt(GPT3, 96, 12288, 96), 175000, GPT3_PAPER),
    "bert-base": Preset(
        BERTConfig(width=768, depth=12, heads=12, dropout=0.1, attention_dropout=0.1),
        110,
        "Devlin et al. 2019",
    ),
    "bert-large": Preset(
        BERTConfig(width=1024, depth=24, heads=16, dropout=0.1, attention_dropout=0.1),
        340,
        "Devlin et al. 2019",
    ),
    "transformer-xl": Preset(
        GPTConfig(
            vocabulary=204,
            context=512,
            memory=512,
            width=512,
            depth=12,
            heads=8,
            hidden=2048,
            activation="relu",
            position="relative",
            norm_placement="after",
            qkv_bias=False,
            output_bias=False,
            dropout=0.1,
        ),
        41,
        "Dai et al. 2019, enwik8, 12 layers",
    ),
    "smollm2-135m": Preset(
        replace(
            llama(LLAMA, 30, 576, 9, 1536, 3),
            vocabulary=49152,
            context=8192,
            rotary_base=100000.0,
            tied=True,
        ),
        135,
        "SmolLM2's model card",
    ),
    "llama-7b": Preset(llama(LLAMA, 32, 4096, 32, 11008), 6700, "Touvron et al. 2023"),
    "llama-13b": Preset(llama(LLAMA, 40, 5120, 40, 13824), 13000, "Touvron et al. 2023"),
    "llama-33b": Preset(llama(LLAMA, 60, 6656, 52, 17920), 32500, "Touvron et al. 2023"),
    "llama-65b": Preset(llama(LLAMA, 80, 8192, 64, 22016), 65200, "Touvron et al. 2023"),
    "llama2-70b": Preset(
        replace(llama(LLAMA, 80, 8192, 64, 28672, 8), context=4096), 70000, "Touvron et al. 2023b"
    ),
    "llama3-8b": Preset(llama(LLAMA3, 32, 4096, 32, 14336, 8), 8030, "Llama 3's model card"),
    "llama3-70b": Preset(llama(LLAMA3, 80, 8192, 64, 28672, 8), 70600, "Llama 3's model card"),
    "llama3.2-1b": Preset(llama(LLAMA32, 16, 2048, 32, 8192, 8), 1230, "Llama 3.2's model card"),
    "llama3.2-3b": Preset(llama(LLAMA32, 28, 3072, 24, 8192, 8), 3210, "Llama 3.2's model card"),
}

PARAMETERS: dict[str, int] = {
    "gpt-tiny": 1_334_016,
    "gpt-small": 13_891_584,
    "bert-tiny": 1_371_906,
    "bert-small": 14_197_762,
    "transformer-tiny": 1_450_496,
    "transformer-small": 9_470_976,
    "rnn-tiny": 1_881_984,
    "rnn-small": 7_515_904,
    "rnn": 15_317_312,
    "rnn-attention": 17_153_344,
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-small": 125_226_240,
    "gpt3-medium": 355_871_744,
    "gpt3-large": 760_300_032,
    "gpt3-xl": 1_315_723_264,
    "gpt3-2.7b": 2_651_553_280,
    "gpt3-6.7b": 6_658_404_352,
    "gpt3-13b": 12_936_488_380,
    "gpt3-175b": 174_604_259_328,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "transformer-xl": 41_066_496,
    "smollm2-135m": 134_515_008,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
}
"""Parameters of each preset, as counted in the built model; counting them anew takes seconds."""


def preset(name: str) -> Config:
    """Return the config of a published model.

    Args:
        name: One of `PRESETS`, for example "gpt2" or "bert-base".

    Returns:
        A frozen config; `dataclasses.replace` makes a variant of it.

    Raises:
        ValueError: If there is no preset of that name; the message suggests similar ones.

    Example:
        >>> from qkv.models import preset
        >>> preset("gpt2").depth
        12
    """
    if name in PRESETS:
        return PRESETS[name].config

    name = str(name)
    hint = f"expected one of {', '.join(PRESETS)}"
    if similar := difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5):
        hint = f"did you mean {' or '.join(similar)}?"

    raise ValueError(f"preset: there is no {name!r}; {hint}")
