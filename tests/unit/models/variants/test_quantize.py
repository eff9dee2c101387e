"""Int8 and int4: errors of rounding are bounded, and perplexity stays nearly the same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import qkv
from qkv.data.embedded.python_library import modules
from qkv.generation import generate, translate
from qkv.models import GPT
from qkv.models.variants.quantize import int4, int8
from qkv.nn.hooks import capture
from qkv.nn.linear.frozen_matrix import FrozenMatrix, quantized_activations
from qkv.nn.linear.int4 import SHARES, Int4Matrix, packed_order, unpack
from qkv.nn.linear.int8 import Int8Embedding, Int8Matrix
from qkv.nn.linear.panel_matrix import Int4Panels, Int8Panels
from qkv.nn.native import native_library
from support.families import (
    GPT_KINDS,
    TRANSFORMER_KINDS,
    bert,
    gpt,
    rnn,
    sources,
    transformer,
    words,
)
from support.rounded_weights import with_rounded_weights

SHAPES = [(1, 1), (5, 3), (7, 5), (96, 32), (400, 48), (576, 64)]
ROWS = [1, 2, 24, 100]
COMPILED = native_library.library() is not None
EIGHT_BITS = [Int8Matrix, Int8Panels] if COMPILED else [Int8Matrix]
FOUR_BITS = [Int4Matrix, Int4Panels] if COMPILED else [Int4Matrix]
eight_bits = pytest.mark.parametrize("kind", EIGHT_BITS)
four_bits = pytest.mark.parametrize("kind", FOUR_BITS)


@eight_bits
@pytest.mark.parametrize("shape", SHAPES)
def test_rounding_errors_are_at_most_half_a_step(kind: Any, shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape) * torch.rand(shape[0], 1) * 10
    step = matrix.abs().amax(1, keepdim=True) / 127
    assert ((kind(matrix).dequantised() - matrix).abs() <= step * 0.501).all()


@eight_bits
def test_equal_numbers_are_kept(kind: Any) -> None:
    matrix = torch.full((64, 3), 0.7)
    matrix[5:] = 0
    assert_close(kind(matrix).dequantised(), matrix)


@eight_bits
def test_a_large_row_costs_the_others_nothing(kind: Any) -> None:
    matrix = torch.randn(64, 32)
    large = matrix.clone()
    large[7] *= 1000
    assert_close(kind(large).dequantised()[8:], kind(matrix).dequantised()[8:])


@eight_bits
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_equals_that_of_the_dequantised_matrix(
    kind: Any, rows: int, shape: tuple[int, int]
) -> None:
    packed = kind(torch.randn(*shape))
    x = torch.randn(rows, shape[1])
    exact = (x.double() @ packed.dequantised().double().T).float()
    assert_close(packed.linear(x), exact, rtol=1e-5, atol=1e-4)
    assert_close(
        packed.linear(x.view(1, rows, 1, -1)), exact.view(1, rows, 1, -1), rtol=1e-5, atol=1e-4
    )
    bias = torch.randn(shape[0])
    assert_close(packed.linear(x, bias), exact + bias, rtol=1e-5, atol=1e-4)
    for part in (slice(0, 5), slice(3, None), slice(shape[0] // 3, shape[0] // 2 + 1)):
        assert_close(packed.linear(x, rows=part), exact[:, part], rtol=1e-5, atol=1e-4)
        assert_close(
            packed.linear(x, bias[part], part), (exact + bias)[:, part], rtol=1e-5, atol=1e-4
        )


def error_bound(x: Tensor, matrix: Tensor) -> Tensor:
    """Half a unit of the second digit for every number of x, times the matrix."""
    unit = x.abs().amax(-1, keepdim=True).double() / 63 / 126  # (M, 1)
    return unit * (0.505 * matrix.abs().sum(1).double() + 1) + 1e-5


@eight_bits
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rounded_activations_change_a_product_by_at_most_half_a_unit(
    kind: Any, rows: int, shape: tuple[int, int]
) -> None:
    packed = kind(torch.randn(*shape))
    x = torch.randn(rows, shape[1]) * torch.rand(rows, 1) * 100
    x[0] = 0
    bias = torch.randn(shape[0])
    exact = x.double() @ packed.dequantised().double().T + bias
    bound = error_bound(x, packed.dequantised())
    with torch.no_grad(), quantized_activations():
        assert ((packed.linear(x, bias) - exact).abs() <= bound).all()
        shaped = packed.linear(x.view(1, rows, 1, -1), bias)
        assert torch.equal(shaped.view(rows, -1), packed.linear(x, bias))
        for part in (slice(0, 5), slice(shape[0] // 3, shape[0] // 2 + 1)):
            error = packed.linear(x, bias[part], part) - exact[:, part]
            assert (error.abs() <= bound[:, part]).all()


@eight_bits
def test_the_largest_bytes_do_not_overflow(kind: Any) -> None:
    """Processors without VNNI add two products in 16 bits."""
    packed = kind(torch.full((16, 64), 3.0))
    with torch.no_grad(), quantized_activations():
        assert_close(packed.linear(torch.full((2, 64), 5.0)), torch.full((2, 16), 960.0))
        assert_close(packed.linear(torch.full((2, 64), -5.0)), torch.full((2, 16), -960.0))


@eight_bits
def test_a_row_does_not_depend_on_the_others(kind: Any) -> None:
    packed = kind(torch.randn(70, 33))
    x = torch.randn(9, 33) * torch.logspace(-6, 6, 9).unsqueeze(1)
    with torch.no_grad(), quantized_activations():
        together = packed.linear(x)
        assert torch.equal(packed.linear(x[3:7]), together[3:7])

        alone = torch.stack([packed.linear(row) for row in x])
        assert ((alone - together).abs() <= error_bound(x, packed.dequantised())).all()
        if kind is Int8Matrix:  # PyTorch's kernel for one row does not round it
            assert_close(alone, x @ packed.dequantised().T, rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(alone, together)


@eight_bits
def test_numbers_that_are_not_finite_are_not_hidden(kind: Any) -> None:
    packed = kind(torch.randn(8, 4))
    x = torch.tensor([[1.0, torch.nan, 2.0, 3.0], [1.0, torch.inf, 2.0, 3.0]])
    with torch.no_grad(), quantized_activations():
        assert not packed.linear(x).isfinite().any()


@eight_bits
def test_an_empty_batch(kind: Any) -> None:
    assert kind(torch.randn(20, 4)).linear(torch.zeros(0, 3, 4)).shape == (0, 3, 20)


@eight_bits
def test_a_token_is_its_row(kind: Any) -> None:
    packed = kind(torch.randn(300, 8))
    ids = torch.randint(300, (4, 6))
    assert_close(Int8Embedding(packed)(ids), packed.dequantised()[ids])
    assert Int8Embedding(packed)(ids[:0]).shape == (0, 6, 8)


@eight_bits
def test_a_gradient_goes_through_to_the_input(kind: Any) -> None:
    packed = kind(torch.randn(30, 8))
    x = torch.randn(2, 8, requires_grad=True)
    (actual,) = torch.autograd.grad(packed.linear(x).square().sum(), x)
    (right,) = torch.autograd.grad(F.linear(x, packed.dequantised()).square().sum(), x)
    assert_close(actual, right)


def assert_near(actual: Tensor, expected: Tensor, relative: float) -> None:
    assert (actual - expected).norm() <= relative * expected.norm()


BITS = [(int8, 0.01), (int4, 0.1)]
"""The quantization and the relative error of rounded activations."""


@pytest.mark.parametrize(("quantize", "error"), BITS)
@pytest.mark.parametrize("kind", GPT_KINDS)
def test_every_gpt_equals_itself_with_rounded_weights(
    kind: str, quantize: Any, error: float
) -> None:
    model = gpt(**GPT_KINDS[kind]).float()
    ids = words(2, 9)
    small = quantize(model)
    rounded = with_rounded_weights(model, small)
    assert_close(small(ids), rounded(ids), rtol=1e-4, atol=1e-4)
    state = small.start()
    steps = [small.decode(piece, state) for piece in ids.split([4, 1, 4], dim=1)]
    assert_close(torch.cat(steps, dim=1), rounded(ids), rtol=1e-4, atol=1e-4)
    with torch.no_grad(), quantized_activations():
        assert_near(small(ids), rounded(ids), error)


@pytest.mark.parametrize(("quantize", "error"), BITS)
@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_every_transformer_equals_itself_with_rounded_weights(
    kind: str, quantize: Any, error: float
) -> None:
    model = transformer(**TRANSFORMER_KINDS[kind]).float()
    source = sources(model.config, 2, 6)
    target = words(2, 5)
    small = quantize(model)
    rounded = with_rounded_weights(model, small)
    assert_close(small(source, target), rounded(source, target), rtol=1e-4, atol=1e-4)
    with torch.no_grad(), quantized_activations():
        assert_near(small(source, target), rounded(source, target), error)

    assert len(translate(small, source, start=1, end=2, length=8)) == len(source)


@pytest.mark.parametrize("quantize", [int8, int4])
def test_bert_equals_itself_with_rounded_weights(quantize: Any) -> None:
    model = bert().float()
    ids = words(2, 9)
    small = quantize(model)
    assert_close(small(ids), with_rounded_weights(model, small)(ids), rtol=1e-4, atol=1e-4)


def test_class_config_and_hooks_stay_the_same() -> None:
    model = gpt().float()
    ids = words(2, 5)
    small = int8(model)
    assert type(small) is GPT
    assert small.config == model.config
    assert not small.training
    assert generate(small, ids, length=4, temperature=0) == generate(
        small, ids, length=4, temperature=0
    )
    with capture(small, "stack.blocks.*.attention.weights") as captured:
        small(ids)

    assert len(captured) == model.config.depth
    with capture(small, "logits") as captured:
        model(ids)  # whoever listens to one does not hear the other

    assert not captured


def test_the_old_model_is_not_changed() -> None:
    model = gpt().float().train()
    ids = words(2, 5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    int8(model)(ids)
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_memory() -> None:
    def size(model: torch.nn.Module) -> int:
        matrices = [part for part in model.modules() if isinstance(part, FrozenMatrix)]
        return sum(part.nbytes for part in (*model.parameters(), *matrices))

    model = qkv.models.build(
        qkv.models.GPTConfig(vocabulary=64, width=192, depth=2, heads=4, context=32)
    )
    assert size(int8(model)) < 0.29 * size(model)
    assert size(int4(model)) < 0.19 * size(model)
    shared = {weight.data_ptr() for weight in model.parameters()}
    assert all(weight.data_ptr() in shared for weight in int8(model).parameters())


# Int4


@four_bits
@pytest.mark.parametrize("shape", SHAPES)
def test_four_bits_are_wrong_by_at_most_half_a_step_inside_the_clipped_range(
    kind: Any, shape: tuple[int, int]
) -> None:
    matrix = torch.randn(*shape) * torch.rand(shape[0], 1) * 10
    error = F.pad((kind(matrix).dequantised() - matrix).abs(), (0, -shape[1] % 32))
    groups = F.pad(matrix, (0, -shape[1] % 32)).unflatten(1, (-1, 32))
    extent = groups.amax(-1).clamp(min=0) - groups.amin(-1).clamp(max=0)  # (N, G)
    bound = extent * (0.51 / 15 + 1 - min(SHARES))
    assert (error.unflatten(1, (-1, 32)).amax(-1) <= bound + 0.02 * extent).all()

    # Clipping is chosen where it makes the sum of squares smaller.
    worst = (extent / 15).square() / 4 * 32 * 1.2
    assert (error.unflatten(1, (-1, 32)).square().sum(-1) <= worst).all()


@four_bits
def test_sixteen_levels_are_kept(kind: Any) -> None:
    levels = torch.randperm(64 * 32).view(64, 32) % 16 - 5.0
    levels[:, 0] = -5
    levels[:, 1] = 10
    assert torch.equal(kind(levels).dequantised(), levels)
    assert torch.equal(kind(torch.zeros(3, 40)).dequantised(), torch.zeros(3, 40))


@pytest.mark.parametrize("shape", [(64, 32), (128, 96), (192, 3072)])
def test_packed_numbers_are_found_again(shape: tuple[int, int]) -> None:
    numbers = torch.randint(16, shape, dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    assert torch.equal(unpack(packed).int(), numbers)
    assert torch.equal(packed_order(shape[1]).sort().values, torch.arange(64 * shape[1]))


@four_bits
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_with_four_bits(kind: Any, rows: int, shape: tuple[int, int]) -> None:
    matrix = kind(torch.randn(*shape))
    x = torch.randn(rows, shape[1])
    bias = torch.randn(shape[0])
    weights = matrix.dequantised().double()
    exact = x.double() @ weights.T + bias
    assert_close(matrix.linear(x, bias), exact.float(), rtol=1e-5, atol=1e-4)

    # bfloat16 has 8 bits: x and the product are wrong by 1 in 256 of their sizes at most.
    bound = (x.abs().double() @ weights.abs().T) / 128 + 1e-3
    with torch.no_grad(), quantized_activations():
        assert ((matrix.linear(x, bias) - exact).abs() <= bound).all()
        assert matrix.linear(x.view(1, rows, 1, -1)).shape == (1, rows, 1, shape[0])
        for part in (slice(0, 5), slice(shape[0] // 3, shape[0] // 2 + 1)):
            error = matrix.linear(x, bias[part], part) - exact[:, part]
            assert (error.abs() <= bound[:, part]).all()


@four_bits
def test_a_row_of_four_bits_does_not_depend_on_the_others(kind: Any) -> None:
    matrix = kind(torch.randn(70, 33))
    x = torch.randn(9, 33)
    with torch.no_grad(), quantized_activations():
        together = matrix.linear(x)
        for row, product in zip(x, together, strict=True):
            assert_close(matrix.linear(row), product, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("matrix", EIGHT_BITS + FOUR_BITS)
def test_a_matrix_stays_the_same_in_a_model_that_is_converted_to_float32(matrix: Any) -> None:
    packed = matrix(torch.randn(20, 12))
    x = torch.randn(3, 12)
    with torch.no_grad(), quantized_activations():
        before = packed.linear(x)
        assert torch.equal(packed.to("cpu", torch.float32).linear(x), before)
        assert torch.equal(deepcopy(packed).linear(x), before)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_the_output_layer_have_eight_bits(tied: bool) -> None:
    small = int4(gpt(tied=tied).float())
    assert small.embedding.token.weight.kind == "int8"
    assert small.output_matrix.kind == "int8"
    assert small.stack.blocks[0].attention.qkv.weight.kind == "int4"


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: int8(rnn().float()), "model: expected a Transformer, GPT or BERT"),
        (lambda: int8(gpt()), "model: expected float32 on a CPU, and .* is torch.float64"),
        (lambda: int8(int8(gpt().float())), "model: it is int8 already"),
        (lambda: int4(rnn().float()), "model: expected a Transformer, GPT or BERT"),
        (lambda: int8(int4(gpt().float())), "model: it is int4 already"),
        (lambda: int4(gpt().float()).train(), "model: int4 weights are frozen"),
        (lambda: int4(gpt().float()).state_dict(), "model: int4 weights are not saved"),
        (lambda: int8(gpt().float()).train(), "model: int8 weights are frozen"),
        (lambda: Int4Matrix(torch.zeros(4, 4)).train(), "model: int4 weights are frozen"),
        (lambda: Int4Matrix(torch.zeros(4, 4)).state_dict(), "model: int4 weights are not saved"),
        (lambda: int8(gpt().float()).state_dict(), "model: int8 weights are not saved"),
        (
            lambda: Int8Matrix(torch.zeros(4, 4)).linear(torch.zeros(1, 4).double()),
            "model: int8 weights multiply float32",
        ),
    ],
)
def test_unsupported_models(wrong: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}"):
        wrong()


@pytest.mark.parametrize(("quantize", "change"), [(int8, 0.01), (int4, 0.03)])
def test_smollm2_reads_real_text_as_well_as_before(quantize: Any, change: float) -> None:
    """Perplexity on the documentation of Python's library, with rounded activations."""
    loaded = qkv.load("smollm2")
    text = "".join(text for name, text in modules("valid") if name == "textwrap.py")
    ids = torch.tensor([loaded.tokenizer.encode(text)[:256]])
    small = quantize(loaded.model)

    def perplexity(model: Any) -> float:
        with torch.inference_mode(), quantized_activations():
            return F.cross_entropy(model(ids)[0, :-1], ids[0, 1:]).exp().item()

    before = perplexity(loaded.model)
    after = perplexity(small)
    assert abs(after / before - 1) < change
