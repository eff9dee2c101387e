"""The optimizers: AdamW for everything, Muon for the blocks' matrices, or one from outside."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from qkv.nn.block import Block
from qkv.plugins import find_plugin
from qkv.training.average import trainable_parameters
from qkv.training.muon import Muon
from qkv.training.run_config import OPTIMIZERS, OptimizerConfig

BLOCK = re.compile(r"\bblocks\.(\d+)\.")


class Optimizers:
    """One or two optimizers that step together; their state is stored by parameter name."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.config = config
        self.names: dict[Tensor, str] = {}
        for name, parameter in trainable_parameters(model):
            self.names[parameter] = name

        # Which parameters Muon updates, and which the other
        by_muon: set[nn.Parameter] = set()
        if config.optimizer == "muon":
            by_muon = block_matrices(model)

        matrices = [parameter for parameter in self.names if parameter in by_muon]
        others = [parameter for parameter in self.names if parameter not in by_muon]

        self.optimizers: list[torch.optim.Optimizer] = []
        if others:
            self.optimizers.append(self.build(self.groups(others)))
        if matrices:
            self.optimizers.append(Muon(self.groups(matrices)))

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """AdamW, or the optimizer that was added from outside."""
        config = self.config
        if config.optimizer not in ("adamw", "muon"):
            return find_plugin(config.optimizer, OPTIMIZERS, "optimizer")(groups)

        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(groups, betas=betas, eps=config.epsilon, fused=True)

    def groups(self, parameters: Iterable[Tensor]) -> list[dict[str, Any]]:
        """Parameter groups by weight decay and by factor of the learning rate."""
        factors = layer_factors(self.names.values(), self.config.layer_decay)
        members: dict[tuple[float, float], list[Tensor]] = {}
        for parameter in parameters:
            decay = self.config.weight_decay
            if parameter.dim() < 2:  # norms and biases
                decay = 0.0

            key = (decay, factors[self.names[parameter]])
            members.setdefault(key, []).append(parameter)

        return [
            {"params": group, "weight_decay": decay, "factor": factor}
            for (decay, factor), group in members.items()
        ]

    def set_rate(self, rate: float, highest: float) -> None:
        """Set the learning rate; Muon's is the same fraction of its own highest."""
        for optimizer in self.optimizers:
            optimizer_rate = rate
            if isinstance(optimizer, Muon):
                optimizer_rate = rate / highest * self.config.muon_learning_rate

            for group in optimizer.param_groups:
                group["lr"] = optimizer_rate * group["factor"]

    def step(self, bad: Tensor, divisor: Tensor) -> None:
        """Update with the gradients divided by `divisor`; if `bad` is not 0, change nothing.

        AdamW's fused kernel and Muon do both by themselves, so that the host need not read `bad`.
        """
        for optimizer in self.optimizers:
            if optimizer.defaults.get("fused") or isinstance(optimizer, Muon):
                optimizer.grad_scale = divisor  # type: ignore[attr-defined]
                optimizer.found_inf = bad  # type: ignore[attr-defined]
                optimizer.step()
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
            elif not bool(bad):
                gradients: list[Tensor] = []
                for group in optimizer.param_groups:
                    gradients += gradients_in(group["params"])

                torch._foreach_div_(gradients, divisor)
                optimizer.step()

    def zero_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """The state tensors, sharded as the parameters are, by `name of the parameter|key`."""
        tensors: dict[str, Tensor] = {}
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if value is not None:
                        tensors[f"{self.names[parameter]}|{key}"] = torch.as_tensor(value)

        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Set the state to what `state` returned, placed as the parameters are."""
        states: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter_name, _, key = name.rpartition("|")
            states.setdefault(parameter_name, {})[key] = tensor

        for optimizer in self.optimizers:
            optimizer.state.clear()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for key, value in states.get(self.names[parameter], {}).items():
                        optimizer.state[parameter][key] = value


def block_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The matrices that Muon is for: those inside blocks, not embeddings and output layers."""
    matrices: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, Block):
            matrices |= {parameter for parameter in module.parameters() if parameter.dim() == 2}

    return matrices


def layer_factors(names: Iterable[str], decay: float) -> dict[str, float]:
    """Learning rate factor of each parameter: 1 above the blocks, decay^k at k layers below."""
    names = list(names)
    layers: dict[str, int] = {}  # 0 the embedding, 1 the first block ...
    for name in names:
        match = BLOCK.search(name)
        if match:
            layers[name] = int(match[1]) + 1

    top = max(layers.values(), default=0) + 1
    factors: dict[str, float] = {}
    for name in names:
        usual = top
        if "embedding" in name:
            usual = 0

        factors[name] = decay ** (top - layers.get(name, usual))

    return factors


def gradients_in(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients together, as one vector; with FSDP over all shards."""
    norm = torch.nn.utils.get_total_norm(gradients_in(parameters), foreach=True)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()

    return norm
