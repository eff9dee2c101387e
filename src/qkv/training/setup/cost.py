"""What training costs: floating-point operations, memory, and the speed of this machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from qkv.models.model import Model, backbone_of
from qkv.models.registry import Config
from qkv.training.setup.training_task import Workload, meta_model
from qkv.training.systems.precision import DTYPES, Precision

UTILISATION = 0.4
"""The fraction of a machine's peak speed that estimated times assume."""


@dataclass(frozen=True)
class Cost:
    parameters: int
    flops_per_token: float
    """Forward and backward pass: six for every parameter of a matrix used, and attention's."""
    weights: int
    """Bytes of weights, gradients, optimizer states and an average of the weights."""
    activations: int
    """Bytes, approximately, that one micro-batch stores for the backward pass."""


def cost(
    config: Config,
    micro_tokens: int,
    precision: Precision,
    workload: Workload | None = None,
    *,
    recompute: bool = False,
    average: bool = False,
) -> Cost:
    """What training a model costs.

    Args:
        config: The model's configuration.
        micro_tokens: Tokens of one micro-batch.
        precision: The precision to compute in.
        workload: How much of the model a step computes (default: all).
        recompute: Whether gradient checkpointing is used.
        average: Whether an exponential moving average of the weights is stored.
    """
    workload = workload or Workload()
    model = backbone_of(meta_model(config))  # a head costs next to nothing

    # A third is the forward pass, a third the gradients of activations, a third those of weights.
    share = (1 + workload.backward_fraction + workload.trained_fraction) / 3
    used = used_parameters(model, workload.output_fraction)
    flops = 6 * share * used + 6 * attention_flops(model, workload.length)

    # Bytes per parameter: weight, gradient and two moments; the average, a half-precision copy
    per_parameter = 4 + workload.trained_fraction * (4 + 8)
    number_size = 4
    if average:
        per_parameter += 4
    if precision != "float32":
        number_size = 2
        per_parameter += 2

    parameters = sum(parameter.numel() for parameter in model.parameters())
    activations = micro_tokens * stored_per_token(model, recompute) * number_size

    return Cost(parameters, flops, round(parameters * per_parameter), round(activations))


def used_parameters(model: Model, output_fraction: float) -> float:
    """Parameters of matrices that one token is multiplied with; embeddings are only looked up."""
    separate_output = isinstance(model.head, nn.Linear)
    output = model.config.vocabulary * model.config.width  # tied to the embedding or not
    at_output = output
    total = 0 if separate_output else output
    for name, parameter in model.named_parameters():
        if parameter.dim() != 2:
            continue
        if "embedding" not in name:
            total += parameter.numel()
        if name.startswith("head.") and not separate_output:
            at_output += parameter.numel()

    used = total - at_output + output_fraction * at_output
    if model.has_source:
        used /= 2  # a token passes the encoder or the decoder

    return used


def attention_flops(model: Model, length: int | None = None) -> float:
    """Multiplications of one token's queries with keys, and of its weights with values."""
    if not model.stacks:
        return 0.0

    # The keys that a token attends to, on average
    config = model.config
    keys: float = min(length or config.context, config.context)
    if model.is_causal:
        keys /= 2
    if model.has_source:
        keys = min(keys, 64)  # sentences

    keys = min(keys, config.window or keys)
    if config.stride is not None:
        keys = min(keys, 2 * config.stride)

    return 2 * config.depth * keys * config.heads * config.width_of_head


def stored_per_token(model: Model, recompute: bool) -> float:
    """Numbers stored for the backward pass, per token: about 9 E + 2 F in every block."""
    config = model.config
    if not model.stacks:
        return 12.0 * config.width * (config.depth + 1)

    depth = sum(len(stack.blocks) for stack in model.stacks.values())
    block = 9 * config.width + 2 * config.width_of_hidden
    if recompute:
        return config.width * depth + block

    return block * depth


def estimated_seconds(
    flops: float, device: torch.device, precision: Precision, ranks: int = 1
) -> float:
    """How long this many operations take on this machine, before anything is measured."""
    return flops / (UTILISATION * measured_peak(device, precision) * ranks)


@cache
def measured_peak(device: torch.device, precision: Precision) -> float:
    """Operations per second of a large matrix product; utilisation is a fraction of this."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device).to(DTYPES[precision])
    b = torch.randn(n, n, device=device).to(DTYPES[precision])
    best = math.inf

    for _ in range(4):
        synchronize(device)
        begin = time.perf_counter()
        a @ b
        synchronize(device)
        best = min(best, time.perf_counter() - begin)

    return 2 * n**3 / best


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_used(device: torch.device) -> int:
    """Peak memory in bytes, of the GPU or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)

    import resource  # not on Windows
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak

    return peak * 1024
