"""What training costs: floating-point operations, memory, and how much of the machine is used."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from qkv.models.gpt import GPTConfig
from qkv.models.registry import Config, build
from qkv.models.rnn import RNNConfig
from qkv.models.task_model import TaskModelConfig
from qkv.models.transformer import TransformerConfig
from qkv.training.systems.precision import DTYPES, Precision


@dataclass(frozen=True)
class Cost:
    parameters: int
    flops_per_token: float
    """Forward and backward, of one word read: six for every number of a matrix that it meets, and
    attention's own.
    """
    weights: int
    """Bytes of weights, their gradients and what the optimizer and an average remember of them."""
    activations: int
    """Bytes, about, of what one micro-batch keeps for the backward pass."""


def cost(
    config: Config,
    micro_tokens: int,
    precision: Precision,
    *,
    asked: float = 1.0,
    trained: float = 1.0,
    through: float = 1.0,
    length: int | None = None,
    recompute: bool = False,
    average: bool = False,
) -> Cost:
    """`asked` is the fraction of the words read that pass the output layer, `trained` of the
    parameters that learn, `through` of the layers that gradients pass; texts are of `length` words,
    or of the context's."""
    config = (
        config.backbone if isinstance(config, TaskModelConfig) else config
    )  # a head is next to nothing
    with torch.device("meta"):
        model: Any = build(config)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    matrices = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2
    }
    looked_up = sum(size for name, size in matrices.items() if "embedding" in name)
    output = config.vocabulary * config.width  # the output layer, be it the embedding or not
    own_output = isinstance(model.head, nn.Linear)
    at_the_end = output + sum(
        size for name, size in matrices.items() if name.startswith("head.") and not own_output
    )
    inside = sum(matrices.values()) - looked_up + (0 if own_output else output) - at_the_end
    met = inside + asked * at_the_end
    if isinstance(config, TransformerConfig | RNNConfig):
        met /= 2  # a word goes through the encoder or the decoder

    # A third is the way forward, a third the gradients that pass through, a third those of the
    # weights themselves.
    share = (1 + through + trained) / 3
    flops = 6 * share * met + 6 * attention_flops(config, length)
    size = 4 if precision == "float32" else 2
    kept = 4 + trained * (4 + 8) + (4 if average else 0) + (size if size == 2 else 0)

    return Cost(
        parameters,
        flops,
        round(parameters * kept),
        round(micro_tokens * kept_per_token(config, recompute) * size),
    )


def attention_flops(config: Config, length: int | None = None) -> float:
    """Multiplications of a word's queries with the keys it sees and of its weights with their
    values, in all layers.
    """
    if isinstance(config, RNNConfig | TaskModelConfig):
        return 0.0

    seen = min(length or config.context, config.context) / (
        2 if isinstance(config, GPTConfig) else 1
    )
    if isinstance(config, TransformerConfig):
        seen = min(seen, 64)  # sentences

    seen = min(seen, config.window or seen)
    if config.stride is not None:
        seen = min(seen, 2 * config.stride)

    return 2 * config.depth * seen * config.heads * config.width_of_head


def kept_per_token(config: Config, recompute: bool) -> float:
    """Numbers that the backward pass needs of one word: about 9 widths and 2 hidden layers a block."""
    if isinstance(config, RNNConfig | TaskModelConfig):
        return 12.0 * config.width * (config.depth + 1)

    depth = config.depth + (
        (config.decoder_depth or config.depth) if isinstance(config, TransformerConfig) else 0
    )
    block = 9 * config.width + 2 * config.width_of_hidden

    return config.width * depth + block if recompute else block * depth


@cache
def measured_peak(device: torch.device, precision: Precision) -> float:
    """Operations a second of a large matrix product here: what the utilisation is a fraction of."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device).to(DTYPES[precision]) for _ in range(2))
    best = math.inf

    for _ in range(4):
        wait(device)
        begin = time.perf_counter()
        a @ b
        wait(device)
        best = min(best, time.perf_counter() - begin)

    return 2 * n**3 / best


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_used(device: torch.device) -> int:
    """The most so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)

    import resource
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    return most if sys.platform == "darwin" else most * 1024
