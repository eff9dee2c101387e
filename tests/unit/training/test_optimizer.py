"""The optimizers equal torch's own, with clipping and skipping of bad steps on the device."""

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

GOOD = torch.zeros(())
BAD = torch.ones(())
ONE = torch.ones(())


class Net(nn.Module):
    """An embedding outside of blocks, and a matrix and a bias inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.block = Inside()

    def forward(self) -> Tensor:
        return self.block.layer(self.embedding.weight).square().sum()


class Inside(Block):
    """A block with nothing but one linear layer."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(5, 5)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.usefixtures("double_by_default")
def test_adamw_with_clipping_equals_torchs_own() -> None:
    """Ours divides inside the fused kernel; theirs clips first and loops over the parameters."""
    config = OptimizerConfig(weight_decay=0.3, beta1=0.8, beta2=0.9, epsilon=1e-6, clip=0.5)
    torch.manual_seed(1)
    ours = Net()
    theirs = Net()
    theirs.load_state_dict(ours.state_dict())
    optimizers = Optimizers(ours, config)
    matrices = [weight for weight in theirs.parameters() if weight.dim() >= 2]
    others = [weight for weight in theirs.parameters() if weight.dim() < 2]
    plain = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
        betas=(0.8, 0.9),
        eps=1e-6,
        foreach=False,
        fused=False,
    )
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
    model = Net()
    scaled = Net()
    scaled.load_state_dict(model.state_dict())
    for net, factor in ((model, 1.0), (scaled, 1024.0)):
        for optimizer in ("adamw", "muon"):
            optimizers = Optimizers(net, OptimizerConfig(optimizer=optimizer))
            optimizers.set_rate(0.01, 0.01)
            (net() * factor).backward()
            optimizers.step(GOOD, divisor=torch.tensor(factor, dtype=torch.float32))
            optimizers.zero_gradients()

    for weight, expected in zip(scaled.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_a_bad_step_changes_nothing(kind: Any, poison: float) -> None:
    model = Net()
    optimizers = Optimizers(model, OptimizerConfig(optimizer=kind))
    optimizers.set_rate(0.01, 0.01)
    for bad in (BAD, GOOD, BAD):  # the very first step, and a later one
        model().backward()
        weights = weights_of(model)
        state = {name: tensor.clone() for name, tensor in optimizers.state().items()}
        if bad is BAD:
            for weight in model.parameters():
                weight.grad.fill_(poison)
        optimizers.step(bad, divisor=gradient_norm(model.parameters()))
        optimizers.zero_gradients()
        assert same_bits(weights_of(model), weights) == (bad is BAD)
        if state and bad is BAD:
            assert same_bits(optimizers.state(), state)


def test_after_a_skipped_step_training_continues_unchanged() -> None:
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
def test_muon_updates_only_the_matrices_of_blocks(family: str) -> None:
    model = build(MODELS[family])
    optimizers = Optimizers(model, OptimizerConfig(optimizer="muon"))
    expected = set()
    for name, weight in model.named_parameters():
        if ".blocks." in name and weight.dim() == 2:
            expected.add(name)

    muon: set[str] = set()
    adamw = names_in(model, optimizers.optimizers[0])
    if not family.startswith("rnn"):
        assert isinstance(optimizers.optimizers[1], Muon)
        muon = names_in(model, optimizers.optimizers[1])
        assert muon

    assert muon == expected
    assert adamw == {name for name, _ in model.named_parameters()} - muon
    for name in muon:
        assert "embedding" not in name
        assert "head" not in name
        assert not name.endswith("bias")


def names_in(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    """The names of the parameters that an optimizer updates."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    members: set[str] = set()
    for group in optimizer.param_groups:
        members.update(names[weight] for weight in group["params"])

    return members


def test_muon_does_not_update_biases_in_the_shape_of_a_matrix() -> None:
    """The biases u and v of Transformer-XL have a row per head."""
    model = GPT(GPTConfig(**SIZE, context=8, memory=8, position="relative"))
    muon = Optimizers(model, OptimizerConfig(optimizer="muon")).optimizers[1]
    for name in names_in(model, muon):
        assert not name.endswith((".u", ".v"))


def matrices(count: int = 3) -> list[list[Tensor]]:
    """Gradients of wide, square and tall matrices, some of one shape, for several steps."""
    torch.manual_seed(3)
    shapes = ((4, 9), (5, 5), (8, 3), (4, 9), (8, 3), (4, 9))
    return [[torch.randn(shape) for shape in shapes] for _ in range(count)]


def weights_after(optimizer: torch.optim.Optimizer, steps: list[list[Tensor]]) -> list[Tensor]:
    """The weights after one step for each list of gradients."""
    weights = optimizer.param_groups[0]["params"]
    for gradients in steps:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


def test_muon_equals_torchs_own_but_for_the_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's Muon casts with Tensor.bfloat16, which is replaced here by a cast to float32."""
    (start,) = matrices(1)
    gradients = matrices()
    parameters = [nn.Parameter(weight.clone()) for weight in start]
    ours = weights_after(Muon(parameters, lr=0.02, weight_decay=0.1), gradients)
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.float)
    parameters = [nn.Parameter(weight.clone()) for weight in start]
    plain = torch.optim.Muon(parameters, lr=0.02, weight_decay=0.1)
    for weight, expected in zip(ours, weights_after(plain, gradients), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-7)


def test_muon_never_computes_in_bf16_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without bf16 instructions emulates them, which takes ten times as long."""
    dtypes: set[torch.dtype] = set()

    class RecordDtypes(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            for value in (*args, result):
                if isinstance(value, Tensor):
                    dtypes.add(value.dtype)

            return result

    model = Net()
    optimizers = Optimizers(model, OptimizerConfig(optimizer="muon"))
    optimizers.set_rate(0.01, 0.01)
    model().backward()
    with RecordDtypes():
        optimizers.step(GOOD, ONE)

    assert torch.float32 in dtypes
    assert not dtypes & {torch.bfloat16, torch.float16}


@pytest.mark.parametrize("shape", [(6, 6), (4, 12), (12, 4)])
def test_the_orthogonalised_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    result = orthogonalised(matrix.unsqueeze(0), (3.4445, -4.7750, 2.0315), 5, 1e-7)[0]
    assert result.dtype == torch.float64
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = torch.diagonal(left.T @ result @ right.T)
    assert torch.all((values > 0.5) & (values < 1.5))
    torch.testing.assert_close(left @ torch.diag(values) @ right, result)


def test_muon_follows_the_learning_rate_schedule() -> None:
    model = Net()
    other = Net()
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
def test_the_state_is_restored_by_name(kind: Any) -> None:
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
    names = {name for name, _ in model.named_parameters()}
    assert {name.partition("|")[0] for name in saved} == names
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
