"""The model and the objective of a run: precision, gradient checkpointing, compilation, CUDA graph.

Everything here comes from outside the model, which is the same on one CPU and on many GPUs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn

from qkv.data.batches.causal import CausalData
from qkv.data.batches.chat import ConversationData
from qkv.data.batches.labelled import LabelledData
from qkv.data.batches.masked import MaskedData
from qkv.data.batches.paired import PairedData
from qkv.data.batches.shape_buckets import pad_to_bucket
from qkv.data.batches.streams import StreamedData
from qkv.models.input_checks import learned_context
from qkv.models.model import Model
from qkv.models.registry import build
from qkv.nn.attention.kernels.sdpa import without_cudnn_attention
from qkv.training.objective import Objective
from qkv.training.run_config import OptimizerConfig, RunConfig
from qkv.training.setup.compile_choice import pays_in_run
from qkv.training.setup.training_task import TrainingData, TrainingTask
from qkv.training.systems.distributed import World, parallelize, uses_fsdp
from qkv.training.systems.gradient_checkpointing import recompute_blocks
from qkv.training.systems.precision import (
    Precision,
    best_precision,
    check_precision,
    use_tf32,
)

NEW_SHAPE = 1
"""The same for pairs, whose shapes are few and come in every epoch."""
RARE_SHAPE = 2
"""A CUDA graph is captured for a batch shape that came more often than this, where shapes vary."""


def configure_torch(config: RunConfig, device: torch.device) -> Precision:
    """Set PyTorch's global switches and the seed; return the precision to compute with."""
    precision = config.precision or best_precision(device)
    check_precision(precision, device)
    use_tf32(device)
    torch.use_deterministic_algorithms(config.deterministic)
    torch.manual_seed(config.seed)

    return precision


def build_objective(
    task: TrainingTask,
    optimizer: OptimizerConfig,
    config: RunConfig,
    world: World,
    precision: Precision,
    model: Model | None = None,
) -> tuple[Model, nn.Module]:
    """The model on its device, and the loss of a batch as every rank calls it."""
    # The model: given, the task's, or a new one
    if model is None:
        make = task.initial_model or (lambda: build(task.config))
        model = make()

    device = world.device
    objective_precision = precision
    if uses_fsdp(world, config.distributed):
        # `parallelize` moves it to the devices, shard by shard, and sets the precision.
        device = torch.device("cpu")
        objective_precision = "float32"

    model = model.to(device).train()
    if config.recompute:
        recompute_blocks(model)

    # The objective, compiled and captured where that pays
    objective = task.objective(model, precision=objective_precision, smoothing=optimizer.smoothing)
    if config.fp8:
        objective.use_fp8()

    requested = config.compile
    if requested is None and is_recurrent(model):
        requested = False  # torch.compile breaks its graph at every recurrent layer
    if isinstance(task.training, StreamedData):
        if requested:
            raise ValueError("compile: memory carried from step to step needs eager mode")

        requested = False

    compiles = should_compile(requested, world.device.type, task.training)
    if compiles and requested is None and not config.deterministic:
        compiles = pays_in_run(task, config, world, precision)
    if compiles:
        objective.compile_reader()

    if world.device.type == "cuda" and world.cpu_group is None:
        enable_cuda_graph(objective, task.training)

    return model, parallelize(objective, world, config.distributed, precision)


def attention_setting(data: TrainingData) -> AbstractContextManager[None]:
    """While a run trains: cuDNN's attention only for batches of one shape."""
    if isinstance(data, CausalData | MaskedData):
        return nullcontext()

    return without_cudnn_attention()


def enable_cuda_graph(objective: Objective, data: TrainingData) -> None:
    """Capture steps as CUDA graphs: of one shape, or of few, to which pairs are padded.

    A graph repeats what Python did once, so code from outside is captured only if it is compiled,
    which notices what would change.
    """
    if objective.compiled is None and has_outside_code(objective):
        return
    if isinstance(data, StreamedData):
        return  # the memory of a stream is other tensors at every step

    if isinstance(data, PairedData):
        longest = learned_context(objective.model.config)
        objective.use_cuda_graph(wait=NEW_SHAPE, shaped=partial(pad_to_bucket, longest=longest))
    elif isinstance(data, CausalData | MaskedData) and not is_recurrent(objective):
        objective.use_cuda_graph()
    elif isinstance(data, LabelledData | ConversationData):
        objective.use_cuda_graph(wait=RARE_SHAPE)


def has_outside_code(objective: nn.Module) -> bool:
    """Whether a module is of neither this package nor PyTorch: a user's own attention, say."""
    for module in objective.modules():
        package = type(module).__module__.partition(".")[0]
        if package not in ("qkv", "torch"):
            return True

    return False


def should_compile(requested: bool | None, device: str, data: TrainingData) -> bool:
    """Whether the model is compiled; by default on a GPU, for batches of one shape.

    Batches of pairs differ in shape: compiling them takes minutes, and code for dynamic shapes is
    slower than CUDA graphs of eager mode.
    """
    if requested is not None:
        return requested

    return device == "cuda" and isinstance(data, CausalData | MaskedData)


def is_recurrent(model: nn.Module) -> bool:
    """Whether the model has recurrent layers."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def micro_batches(task: TrainingTask, config: RunConfig, world: World) -> int:
    """Micro-batches per batch for `micro_batch_tokens`; approximate for rows of unequal length."""
    if config.micro_batch_tokens is None:
        return 1

    data = task.training
    if isinstance(data, CausalData | MaskedData):
        length = data.tokens_per_step // data.rows
        rows = max(1, config.micro_batch_tokens // length)
        return -(-data.rows // (rows * world.size))

    tokens = data.tokens_per_step  # in fine-tuning, where batch_tokens counts examples
    if task.steps is None:
        tokens = config.batch_tokens

    return max(1, -(-tokens // (config.micro_batch_tokens * world.size)))
