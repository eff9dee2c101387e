"""AdamW for everything, or Muon for the matrices inside the blocks and AdamW for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from qkv.nn.block import Block
from qkv.training.muon import Muon
from qkv.training.run_config import OptimizerConfig
from qkv.training.systems.distributed import like

BLOCK = re.compile(r"\bblocks\.(\d+)\.")


class Optimizers:
    """One or two optimizers that step together, and what they remember, by the names of the
    parameters.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.names: dict[Tensor, str] = {
            parameter: name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        by_muon = matrices_inside(model) if config.optimizer == "muon" else set()
        factors = layer_factors(self.names.values(), config.layer_decay)

        def groups(chosen: Iterable[Tensor]) -> list[dict[str, Any]]:
            """By their weight decay, and by the part of the learning rate that is theirs."""
            found: dict[tuple[float, float], list[Tensor]] = {}
            for parameter in chosen:
                decay = config.weight_decay if parameter.dim() >= 2 else 0.0
                found.setdefault((decay, factors[self.names[parameter]]), []).append(parameter)

            return [
                {"params": own, "weight_decay": decay, "factor": factor}
                for (decay, factor), own in found.items()
            ]

        self.optimizers: list[torch.optim.Optimizer] = []
        if rest := groups(parameter for parameter in self.names if parameter not in by_muon):
            betas = (config.beta1, config.beta2)
            self.optimizers.append(
                torch.optim.AdamW(rest, betas=betas, eps=config.epsilon, fused=True)
            )

        if by_muon:
            self.optimizers.append(Muon(groups(each for each in self.names if each in by_muon)))

        self.muon_learning_rate = config.muon_learning_rate

    def set_rate(self, rate: float, highest: float) -> None:
        for optimizer in self.optimizers:
            own = rate / highest * self.muon_learning_rate if isinstance(optimizer, Muon) else rate
            for group in optimizer.param_groups:
                group["lr"] = own * group["factor"]

    def step(self, bad: Tensor, divisor: Tensor) -> None:
        """Update with the gradients divided by `divisor`; with `bad` not 0, leave everything as it
        is.

        AdamW's fused kernel does both by itself, so the host need not wait to know.
        """
        for optimizer in self.optimizers:
            if isinstance(optimizer, torch.optim.AdamW):
                optimizer.grad_scale, optimizer.found_inf = divisor, bad  # type: ignore[attr-defined]
                optimizer.step()
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
            elif not bool(bad):
                gradients = [
                    p.grad
                    for group in optimizer.param_groups
                    for p in group["params"]
                    if p.grad is not None
                ]

                torch._foreach_div_(gradients, divisor)
                optimizer.step()

    def forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """What they remember, sharded as the parameters are: `name of the parameter | name of the
        number`.
        """
        return {
            f"{self.names[parameter]}|{key}": value
            for optimizer in self.optimizers
            for parameter, remembered in optimizer.state.items()
            for key, value in remembered.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        remembered: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition("|")
            remembered.setdefault(parameter, {})[key] = tensor

        for optimizer in self.optimizers:
            optimizer.state.clear()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    saved = remembered.get(self.names[parameter], {})
                    if saved:
                        optimizer.state[parameter] = {
                            key: like(value, parameter) for key, value in saved.items()
                        }


def matrices_inside(model: nn.Module) -> set[nn.Parameter]:
    """What Muon is for: the matrices of the blocks. Embeddings and output layers look things up by
    rows.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    return {
        parameter
        for block in blocks
        for parameter in block.parameters()
        if parameter.dim() == 2 and parameter.requires_grad
    }


def layer_factors(names: Iterable[str], decay: float) -> dict[str, float]:
    """The part of the learning rate that a parameter gets: all of it above the blocks, and less the
    deeper it lies.
    """
    names = list(names)
    blocks = {name: int(found[1]) for name in names if (found := BLOCK.search(name))}
    depth = max(blocks.values(), default=-1) + 1
    below = {name: 0 if "embedding" in name else depth + 1 for name in names}

    return {
        name: decay ** (depth + 1 - (blocks[name] + 1 if name in blocks else below[name]))
        for name in names
    }


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
