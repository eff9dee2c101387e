"""Checks of exercise 15: low-rank adapters equal those of `qkv.nn.lora`."""

from __future__ import annotations

from copy import deepcopy
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from qkv.learn.exercises.beyond.twin_models import randomise
from qkv.learn.exercises.language_model.matching_gpt import matching_gpt
from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    expect_equal,
    expect_gradients,
    expect_shape,
)
from qkv.learn.result_kinds import expect_number, expect_results
from qkv.models import GPT
from qkv.nn import lora
from qkv.nn.linear.linear import Linear
from qkv.nn.stack_config import AdapterConfig


@check("lora_size", "The numbers of A and B")
def size_of_both(mine: ModuleType, draw: InputDraw) -> None:
    E = 10 * draw.size
    N = 10 * draw.size + 7
    rank = draw.size + 1
    expect_number(
        mine.lora_size(E, N, rank),
        rank * E + N * rank,
        f"lora_size({E}, {N}, {rank})",
        {
            "lora_size: these are the numbers of W; A and B have fewer": E * N,
            "lora_size: these are the numbers of A alone": rank * E,
            "lora_size: these are the numbers of B alone": N * rank,
            "lora_size: the product of both sizes; A and B lie side by side, add them": (
                rank * E * N * rank
            ),
            "lora_size: twice A; B is as wide as the output": 2 * rank * E,
            "lora_size: W is frozen and does not count": E * N + rank * (E + N),
        },
    )


@check("start_matrices", "B is 0, A is random and small")
def before_training(mine: ModuleType, draw: InputDraw) -> None:
    E = 100 * draw.size
    N = 3
    rank = draw.size + 1
    found = mine.start_matrices(E, N, rank)
    expect_results(found, (f"A ({rank}, {E})", f"B ({N}, {rank})"), "start_matrices")
    A, B = found
    if isinstance(A, Tensor) and tuple(A.shape) == (N, rank):
        raise Failed("start_matrices: A and B are exchanged; A reads x, so it is (rank, inputs)")

    expect_shape(A, (rank, E), "start_matrices, A", "(rank, inputs)")
    expect_shape(B, (N, rank), "start_matrices, B", "(outputs, rank)")
    if not A.any() and not B.any():
        raise Failed(
            "start_matrices: A and B are both 0; then the gradient of each, a product with the "
            "other, is 0 forever"
        )
    if not A.any():
        raise Failed("start_matrices: A is 0 and B is random; here it is the other way round")
    if B.any():
        raise Failed(
            "start_matrices: B is not 0, so that the model changes before it has learned anything"
        )

    if torch.linalg.matrix_rank(A) < rank:
        raise Failed(
            "start_matrices: rows of A are equal, or depend on each other; draw each number"
        )

    # Uniform numbers have a standard deviation of bound / sqrt(3), and a mean of 0.
    bound = E**-0.5
    largest = A.abs().max().item()
    if largest > bound * 1.0001:
        raise Failed(
            f"start_matrices: a number of A is {largest:.3g}; all lie between "
            f"-1 / sqrt(inputs) and 1 / sqrt(inputs) = {bound:.3g}"
        )
    if A.min() > -bound / 2:
        raise Failed("start_matrices: A has no negative numbers; they begin at -1 / sqrt(inputs)")
    if largest < 0.8 * bound or A.std() < 0.45 * bound:
        raise Failed(
            f"start_matrices: A is too small; uniform numbers up to {bound:.3g} have a standard "
            f"deviation of {bound / 3**0.5:.3g}, not {A.std():.3g}"
        )


def new_layer(mine: ModuleType, draw: InputDraw, *, bias: bool = True) -> Any:
    """A student's LoRALinear with random weights; E and N differ, and alpha / r is not 1."""
    linear = nn.Linear(draw.size + 1, draw.size + 2, bias=bias)
    layer = mine.LoRALinear(linear, rank=draw.size, alpha=3.0 * draw.size + 2)
    randomise(layer, draw)
    return layer


def library_layer(layer: Any) -> Linear:
    """The library's linear layer and adapter with the same weights."""
    old = layer.linear
    linear = Linear(old.in_features, old.out_features, bias=old.bias is not None)
    with torch.no_grad():
        linear.weight.copy_(old.weight)
        if old.bias is not None:
            linear.bias.copy_(old.bias)

    A, B = layer.A.detach(), layer.B.detach()
    lora.add(linear, "query", A, B, 0, layer.alpha / layer.rank, dropout=0.0)
    return linear


@check("LoRALinear", "W x + b + alpha / r * B A x")
def adapted_output(mine: ModuleType, draw: InputDraw) -> None:
    for bias in (True, False):
        layer = new_layer(mine, draw, bias=bias)
        x = draw.normal(2, 3, draw.size + 1)
        with torch.no_grad():
            base = layer.linear(x)
            change = x @ layer.A.T @ layer.B.T
            scale = layer.alpha / layer.rank
            expect_equal(
                layer(x),
                library_layer(layer)(x),
                "LoRALinear",
                {
                    "LoRALinear: B A x is not multiplied by alpha / r": base + change,
                    "LoRALinear: multiplied by alpha, but not divided by the rank": (
                        base + layer.alpha * change
                    ),
                    "LoRALinear: multiplied by r / alpha; it is alpha / r": (base + change / scale),
                    "LoRALinear: W x is missing; B A x is added to it": scale * change,
                    "LoRALinear: B A x is missing": base,
                    "LoRALinear: the bias b is missing": (
                        x @ layer.linear.weight.T + scale * change
                    ),
                    "LoRALinear: W x is multiplied by alpha / r, too; only B A x is": (
                        scale * (base + change)
                    ),
                    "LoRALinear: B A x is subtracted": base - scale * change,
                },
                shape="(..., N)",
                inputs={"x": x, "A": layer.A, "B": layer.B},
                tolerance=1e-4,
            )


@check("LoRALinear", "x, A and B get gradients; W and b are frozen")
def adapter_gradients(mine: ModuleType, draw: InputDraw) -> None:
    layer = new_layer(mine, draw)
    x = draw.normal(2, draw.size + 1)
    layer(x).square().sum().backward()
    for name in ("A", "B"):
        gradient = getattr(layer, name).grad
        if gradient is None or not gradient.any():
            raise Failed(f"LoRALinear: {name} gets no gradient: it would never be trained")
    if layer.linear.weight.requires_grad:
        raise Failed("LoRALinear: W is trained; the constructor freezes it")

    twin = library_layer(layer)
    weights = {"A": layer.A.detach(), "B": layer.B.detach()}

    def student(x: Tensor, A: Tensor, B: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, {"A": A, "B": B}, (x,))
        return output

    def library(x: Tensor, A: Tensor, B: Tensor) -> Tensor:
        names = {"adapters.query.A": A, "adapters.query.B": B}
        output: Tensor = torch.func.functional_call(twin, names, (x,))
        return output

    expect_gradients(student, library, {"x": x} | weights, "LoRALinear")


@check("merge", "One matrix: W + alpha / r * B A")
def merged_matrix(mine: ModuleType, draw: InputDraw) -> None:
    layer = new_layer(mine, draw)
    before = deepcopy(layer.state_dict())
    new = mine.merge(layer)
    if new is layer.linear:
        raise Failed("merge: the frozen layer itself was changed; make a new nn.Linear")

    expect_linear(new)
    for name, value in layer.state_dict().items():
        if not torch.equal(value, before[name]):
            raise Failed(f"merge: {name} of the LoRALinear was changed; make a new nn.Linear")
    shared = {parameter.data_ptr() for parameter in layer.parameters()}
    if any(parameter.data_ptr() in shared for parameter in new.parameters()):
        raise Failed("merge: the new layer shares its matrix or bias with the old one; copy it")

    twin = library_layer(layer)
    lora.merge_adapters(twin)
    W = layer.linear.weight.detach()
    change = (layer.B @ layer.A).detach()
    expect_equal(
        new.weight,
        twin.weight.detach(),
        "merge, the matrix",
        {
            "merge: alpha / r is missing": W + change,
            "merge: multiplied by alpha, but not divided by the rank": W + layer.alpha * change,
            "merge: this is W alone; B A is missing": W,
            "merge: this is B A alone; W is missing": layer.alpha / layer.rank * change,
        },
        shape="(N, E)",
        inputs={"W": W, "A": layer.A, "B": layer.B},
        tolerance=1e-4,
    )


@check("merge", "The merged layer computes the same, with and without a bias")
def merged_output(mine: ModuleType, draw: InputDraw) -> None:
    x = draw.normal(2, draw.size + 1)
    for bias in (True, False):
        layer = new_layer(mine, draw, bias=bias)
        new = mine.merge(layer)
        expect_linear(new)
        if not bias and new.bias is not None and new.bias.detach().any():
            raise Failed("merge: the frozen layer has no bias, but the merged one has")
        if bias and new.bias is None:
            raise Failed("merge: the bias of the frozen layer is lost")
        with torch.no_grad():
            twin = library_layer(layer)(x)
            expect_equal(
                new(x),
                twin,
                "merge, the output",
                {"merge: the bias of the frozen layer is lost": twin - layer.linear(0 * x)},
                shape="(..., N)",
                tolerance=1e-4,
            )


def expect_linear(found: Any) -> None:
    """Fail unless the merged layer is an nn.Linear."""
    if found is None:
        raise Failed("merge: the function returns None; is a return statement missing?")
    if not isinstance(found, nn.Linear):
        raise Failed(f"merge: expected one nn.Linear, not {type(found).__name__}")


# A whole model


def new_gpt(mine: ModuleType, draw: InputDraw) -> tuple[Any, Tensor, GPT]:
    """A student's GPT, ids, and the library's GPT with the same weights."""
    model = mine.GPT(7, 6, 4, 1 + draw.size // 2, 2)
    randomise(model, draw)
    return model, draw.integers(7, 2, 6), matching_gpt(model)


def expect_adapters(mine: ModuleType, model: Any) -> None:
    """Fail unless query and value, and nothing else, are LoRALinear."""
    for number, block in enumerate(model.blocks):
        attention = block.attention
        for name in ("query", "value"):
            if not isinstance(getattr(attention, name), mine.LoRALinear):
                raise Failed(
                    f"adapt: {name} of block {number} has no adapter; all {len(model.blocks)} "
                    "blocks get one for query and one for value"
                )
            if isinstance(getattr(attention, name).linear, mine.LoRALinear):
                raise Failed(f"adapt: {name} of block {number} has two adapters, one in the other")

        for name in ("key", "output"):
            if isinstance(getattr(attention, name), mine.LoRALinear):
                raise Failed(
                    f"adapt: {name} of block {number} has an adapter, too; only query and value do"
                )


@check("adapt", "Every query and every value has its own adapter")
def adapters_everywhere(mine: ModuleType, draw: InputDraw) -> None:
    model, _, _ = new_gpt(mine, draw)
    mine.adapt(model, 2, 4.0)
    expect_adapters(mine, model)
    seen: set[int] = set()
    for block in model.blocks:
        for layer in (block.attention.query, block.attention.value):
            if (layer.rank, layer.alpha) != (2, 4.0):
                raise Failed(
                    f"adapt: an adapter has rank {layer.rank} and alpha {layer.alpha:g}, not the "
                    "2 and 4 that were given"
                )
            if id(layer) in seen:
                raise Failed("adapt: one adapter is used twice; each query and value has its own")

            seen.add(id(layer))


@check("adapt", "Only A and B are trained")
def frozen_base(mine: ModuleType, draw: InputDraw) -> None:
    model, _, _ = new_gpt(mine, draw)
    mine.adapt(model, 2, 4.0)
    for name, parameter in model.named_parameters():
        is_adapter = name.endswith((".A", ".B"))
        if is_adapter and not parameter.requires_grad:
            raise Failed(
                f"adapt: {name} is frozen, so that nothing learns; freeze the model first, then "
                "add the adapters"
            )
        if not is_adapter and parameter.requires_grad:
            raise Failed(f"adapt: {name} is not frozen: only A and B are trained")


@check("adapt", "At first nothing changes; then the model equals the library's with adapters")
def adapted_model(mine: ModuleType, draw: InputDraw) -> None:
    model, ids, twin = new_gpt(mine, draw)
    mine.adapt(model, 2, 5.0)
    expect_adapters(mine, model)
    with torch.no_grad():
        expect_equal(
            model(ids),
            twin(ids),
            "adapt: the logits of the adapted model before training",
            shape="(B, T, V)",
            tolerance=1e-3,
        )

        # The same A and B in both models
        config = AdapterConfig(rank=2, alpha=5.0, projections=("query", "value"))
        lora.attach_adapters(twin, config)
        blocks: Any = twin.stack.blocks
        for block, other in zip(model.blocks, blocks, strict=True):
            for name in ("query", "value"):
                layer = getattr(block.attention, name)
                layer.B.copy_(draw.normal(*layer.B.shape))
                adapter = other.attention.qkv.adapters[name]
                adapter.A.copy_(layer.A)
                adapter.B.copy_(layer.B)

        expect_equal(
            model(ids),
            twin(ids),
            "adapt: the logits of a model with trained adapters",
            shape="(B, T, V)",
            tolerance=1e-3,
        )


@check("adapt", "Training changes A and B, and nothing else")
def training_steps(mine: ModuleType, draw: InputDraw) -> None:
    model = mine.GPT(7, 6, 4, 1 + draw.size // 2, 2)
    ids = draw.integers(7, 2, 6)
    mine.adapt(model, 2, 4.0)
    before = deepcopy(model.state_dict())
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(ids)[:, :-1].flatten(0, 1)
        nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).backward()
        optimizer.step()

    for name, value in model.state_dict().items():
        changed = not torch.equal(value, before[name])
        is_adapter = name.endswith((".A", ".B"))
        if changed and not is_adapter:
            raise Failed(f"adapt: training changed {name}, which is frozen")
        if is_adapter and not changed:
            raise Failed(f"adapt: three steps of training left {name} as it was")


@check("trained", "How many numbers are trained, and how many there are")
def trained_numbers(mine: ModuleType, draw: InputDraw) -> None:
    model = nn.Sequential(nn.Linear(draw.size, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 3))
    model[draw.size % 2].requires_grad_(False)
    sizes = [one.numel() for one in model.parameters()]
    learning = [one.numel() for one in model.parameters() if one.requires_grad]
    found = mine.trained(model)
    expect_results(found, ("numbers that are trained", "all numbers"), "trained")
    expect_number(
        found[0],
        sum(learning),
        "trained, the first result",
        {
            "trained: frozen parameters count; look at requires_grad": sum(sizes),
            "trained: these are the frozen numbers": sum(sizes) - sum(learning),
            "trained: this counts tensors; each has numel() numbers": len(learning),
        },
    )
    expect_number(
        found[1],
        sum(sizes),
        "trained, the second result",
        {
            "trained: the second result are all numbers, frozen ones included": (
                sum(sizes) - sum(learning)
            ),
            "trained: this counts tensors; each has numel() numbers": len(sizes),
        },
    )
