"""The optimizers are torch's own, with the clipping and the skipping of bad steps done on the
device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.models import GPT, GPTConfig, build
from qkv.nn.block import Block
from qkv.training.muon import Muon, orthogonalised
from qkv.training.optimizer import Optimizers, gradient_norm
from qkv.training.run_config import OptimizerConfig
from support.small_training import MODELS, SIZE, same_bits

GOOD, BAD, ONE = torch.zeros(()), torch.ones(()), torch.ones(())


class Net(nn.Module):
    """A matrix and a bias outside of blocks, and a matrix and a bias inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.block = Inside()

    def forward(self) -> Tensor:
        return self.block.layer(self.embedding.weight).square().sum()


class Inside(Block):
    """A block that has nothing but one layer."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(5, 5)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.usefixtures("double_by_default")
def test_adamw_is_torchs_own_loop_with_clipping() -> None:
    """Ours divides by a factor inside the fused kernel; theirs clips the gradients first, and steps
    one by one.
    """
    config = OptimizerConfig(weight_decay=0.3, beta1=0.8, beta2=0.9, epsilon=1e-6, clip=0.5)
    torch.manual_seed(1)
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    optimizers = Optimizers(ours, config)
    matrices = [weight for weight in theirs.parameters() if weight.dim() >= 2]
    others = [weight for weight in theirs.parameters() if weight.dim() < 2]
    plain = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
        betas=(0.8, 0.9), eps=1e-6, foreach=False, fused=False,
    )  # fmt: skip
    clipped = 0
    for step in range(30):
        rate = 0.01 / (step + 1)
        ours().backward()
        norm = gradient_norm(ours.parameters())
        clipped += bool(norm > config.clip)
        optimizers.set_rate(rate, 0.01)
        optimizers.step(GOOD, divisor=(norm / config.clip).clamp(min=1.0).float())
        optimizers.zero_gradients()
        theirs().backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), config.clip)
        torch.testing.assert_close(norm, expected)
        for group in plain.param_groups:
            group["lr"] = rate
        plain.step()
        plain.zero_grad()
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            # clip_grad_norm_ adds 1e-6 to the norm it divides by.
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6, msg=name)
    assert clipped > 5


@pytest.mark.usefixtures("double_by_default")
def test_a_divisor_divides_the_gradient() -> None:
    model, scaled = Net(), Net()
    scaled.load_state_dict(model.state_dict())
    for net, factor in ((model, 1.0), (scaled, 1024.0)):
        for optimizer in ("adamw", "muon"):
            optimizers = Optimizers(net, OptimizerConfig(optimizer=optimizer))
            optimizers.set_rate(0.01, 0.01)
            (net() * factor).backward()
            optimizers.step(GOOD, divisor=torch.tensor(factor, dtype=torch.float32))
            optimizers.zero_gradients()
    for one, other in zip(model.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_a_bad_step_changes_nothing(kind: Any, poison: float) -> None:
    model = Net()
    optimizers = Optimizers(model, OptimizerConfig(optimizer=kind))
    optimizers.set_rate(0.01, 0.01)
    for bad in (BAD, GOOD, BAD):  # the very first, and one later
        model().backward()
        weights, remembered = (
            weights_of(model),
            {name: t.clone() for name, t in optimizers.state().items()},
        )
        if bad is BAD:
            for weight in model.parameters():
                weight.grad.fill_(poison)
        optimizers.step(bad, divisor=gradient_norm(model.parameters()))
        optimizers.zero_gradients()
        assert same_bits(weights_of(model), weights) == (bad is BAD)
        if remembered and bad is BAD:
            assert same_bits(optimizers.state(), remembered)


def test_a_run_with_a_skipped_step_goes_on_as_one_without() -> None:
    results = []
    for skip in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizers = Optimizers(model, OptimizerConfig())
        optimizers.set_rate(0.01, 0.01)
        for step in range(5):
            if skip and step in (0, 3):
                (model() * torch.nan).backward()
                optimizers.step(BAD, ONE)
                optimizers.zero_gradients()
            model().backward()
            optimizers.step(GOOD, ONE)
            optimizers.zero_gradients()
        results.append(weights_of(model))
    assert same_bits(*results)


@pytest.mark.parametrize("family", list(MODELS))
def test_muon_is_for_the_matrices_of_blocks_alone(family: str) -> None:
    model = build(MODELS[family])
    optimizers = Optimizers(model, OptimizerConfig(optimizer="muon"))
    names = {parameter: name for name, parameter in model.named_parameters()}
    by_kind = {
        type(optimizer): {
            names[weight] for group in optimizer.param_groups for weight in group["params"]
        }
        for optimizer in optimizers.optimizers
    }
    muon, adamw = by_kind.get(Muon, set()), by_kind[torch.optim.AdamW]
    assert muon | adamw == set(names.values())
    assert not muon & adamw
    if family != "rnn":
        expected = {
            name
            for name, weight in model.named_parameters()
            if ".blocks." in name and weight.dim() == 2
        }
        assert muon == expected != set()
    assert not any("embedding" in name or "head" in name or name.endswith("bias") for name in muon)


def test_muon_leaves_what_has_the_shape_of_a_matrix_but_is_none() -> None:
    model = GPT(GPTConfig(**SIZE, context=8, memory=8, position="relative"))
    muon = Optimizers(model, OptimizerConfig(optimizer="muon")).optimizers[1]
    names = {parameter: name for name, parameter in model.named_parameters()}
    taken = {names[weight] for group in muon.param_groups for weight in group["params"]}
    assert not any(name.endswith((".u", ".v")) for name in taken), (
        "Transformer-XL's biases, one a head"
    )


def matrices(count: int = 3) -> list[list[Tensor]]:
    """Gradients of one wide, one square and one tall matrix, for several steps."""
    torch.manual_seed(3)
    return [[torch.randn(shape) for shape in ((4, 9), (5, 5), (8, 3))] for _ in range(count)]


def stepped(optimizer: torch.optim.Optimizer, gradients: list[list[Tensor]]) -> list[Tensor]:
    weights = optimizer.param_groups[0]["params"]
    for given in gradients:
        for weight, gradient in zip(weights, given, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


def test_muon_is_torchs_own_but_for_the_dtype_of_its_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's Muon casts with Tensor.bfloat16: with a cast to float32 in its place both must agree
    to the bit.
    """
    start, gradients = matrices(1)[0], matrices()
    ours = stepped(
        Muon([nn.Parameter(weight.clone()) for weight in start], lr=0.02, weight_decay=0.1),
        gradients,
    )
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.float)
    plain = torch.optim.Muon(
        [nn.Parameter(weight.clone()) for weight in start], lr=0.02, weight_decay=0.1
    )
    for mine, theirs in zip(ours, stepped(plain, gradients), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_muon_never_computes_in_bf16_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without bf16 instructions emulates them: a training step took ten times as long."""
    seen: set[torch.dtype] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            seen.update(each.dtype for each in (*args, result) if isinstance(each, Tensor))
            return result

    model = Net()
    optimizers = Optimizers(model, OptimizerConfig(optimizer="muon"))
    optimizers.set_rate(0.01, 0.01)
    model().backward()
    with Watch():
        optimizers.step(GOOD, ONE)
    assert torch.float32 in seen
    assert not seen & {torch.bfloat16, torch.float16}


@pytest.mark.parametrize("shape", [(6, 6), (4, 12), (12, 4)])
def test_the_orthogonalised_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    found = orthogonalised(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    assert found.dtype == torch.float64
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.diagonal(left.T @ found @ right.T)
    assert torch.all((values > 0.5) & (values < 1.5))
    torch.testing.assert_close(left @ torch.diag(values) @ right, found)


def test_muon_follows_the_schedule_of_the_learning_rate() -> None:
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    optimizers = Optimizers(
        model, OptimizerConfig(optimizer="muon", muon_learning_rate=0.02, weight_decay=0.1)
    )
    optimizers.set_rate(0.5, 1.0)  # half way down the schedule, for both
    plain = Muon([other.block.layer.weight], lr=0.01, weight_decay=0.1)
    model().backward()
    other().backward()
    optimizers.step(GOOD, ONE)
    plain.step()
    torch.testing.assert_close(model.block.layer.weight, other.block.layer.weight)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_they_remember_comes_back_by_name(kind: Any) -> None:
    def steps(model: nn.Module, optimizers: Optimizers, count: int) -> None:
        for _ in range(count):
            model().backward()
            optimizers.set_rate(0.01, 0.01)
            optimizers.step(GOOD, ONE)
            optimizers.zero_gradients()

    model = Net()
    optimizers = Optimizers(model, OptimizerConfig(optimizer=kind))
    steps(model, optimizers, 3)
    saved = {name: tensor.clone() for name, tensor in optimizers.state().items()}
    assert {name.partition("|")[0] for name in saved} == {
        name for name, _ in model.named_parameters()
    }
    again = Net()
    again.load_state_dict(model.state_dict())
    resumed = Optimizers(again, OptimizerConfig(optimizer=kind))
    steps(Net(), resumed, 0)
    resumed.load(saved)
    assert same_bits(resumed.state(), saved)
    steps(model, optimizers, 2)
    steps(again, resumed, 2)
    assert same_bits(weights_of(again), weights_of(model))


def test_the_norm_is_of_all_gradients_together() -> None:
    model = Net()
    model().backward()
    together = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    torch.testing.assert_close(gradient_norm(model.parameters()), together.norm())
