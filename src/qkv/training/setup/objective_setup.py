"""The model and the objective of a run: precision, gradient checkpointing, compilation, CUDA graph.

Everything here comes from outside the model, which is the same on one CPU and on many GPUs.
"""

from __future__ import annotations

import torch
from torch import nn

from qkv.data.batches.causal import CausalData
from qkv.data.batches.chat import ConversationData
from qkv.data.batches.labelled import LabelledData
from qkv.data.batches.masked import MaskedData
from qkv.data.batches.paired import PairedData
from qkv.data.batches.streams import StreamedData
from qkv.models.model import Model
from qkv.models.registry import build
from qkv.training.objective import Objective
from qkv.training.run_config import OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingData, TrainingTask
from qkv.training.systems.distributed import World, parallelize, uses_fsdp
from qkv.training.systems.gradient_checkpointing import recompute_blocks
from qkv.training.systems.precision import Precision, best_precision, check_precision

RARE_SHAPE = 2
"""A CUDA graph is captured for a batch shape that came more often than this, where shapes vary."""


def configure_torch(config: RunConfig, device: torch.device) -> Precision:
    """Set PyTorch's global switches and the seed; return the precision to compute with."""
    precision = config.precision or best_precision(device)
    check_precision(precision, device)
    torch.set_float32_matmul_precision("high")
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
    requested = config.compile
    if requested is None and is_recurrent(model):
        requested = False  # torch.compile breaks its graph at every recurrent layer
    if isinstance(task.training, StreamedData):
        if requested:
            raise ValueError("compile: memory carried from step to step needs eager mode")

        requested = False

    if should_compile(requested, world.device.type, task.training):
        objective.compile_reader()

    if world.device.type == "cuda":
        # cuDNN's attention plans for half a second whenever a shape is new.
        torch.backends.cuda.enable_cudnn_sdp(isinstance(task.training, CausalData | MaskedData))
        if world.cpu_group is None:
            enable_cuda_graph(objective, task.training)

    return model, parallelize(objective, world, config.distributed, precision)


def enable_cuda_graph(objective: Objective, data: TrainingData) -> None:
    """Capture steps as CUDA graphs, unless batches differ in shape, as those of pairs do."""
    if objective.compiled is not None and not isinstance(data, PairedData):
        objective.use_cuda_graph()
    elif isinstance(data, LabelledData | ConversationData):
        objective.use_cuda_graph(wait=RARE_SHAPE)


def should_compile(requested: bool | None, device: str, data: TrainingData) -> bool:
    """Whether the model is compiled; by default on a GPU, for batches of one shape.

    Batches of pairs differ in shape: compiling them takes minutes, and code for dynamic shapes is
    slower than eager mode.
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
