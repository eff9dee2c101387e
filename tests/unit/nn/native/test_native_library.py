"""The compiled kernels: products and blocks equal float64, with every instruction set."""

from __future__ import annotations

import ctypes
import os
import platform
from copy import deepcopy
from ctypes import CFUNCTYPE, c_uint, c_void_p
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from qkv.generation.prefill import next_logits
from qkv.models import int4, int8
from qkv.models.variants.quantize import int4_matrix, int8_matrix
from qkv.nn.decode.cpu_block import CpuBlocks
from qkv.nn.feed_forward import activate, gelu_tanh
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.nn.linear.gemv import ACTIVATIONS
from qkv.nn.linear.int4 import Int4Matrix
from qkv.nn.linear.int8 import Int8Matrix
from qkv.nn.linear.linear import linear
from qkv.nn.linear.panel_matrix import Int4Panels, Int8Panels, pack
from qkv.nn.native import native_library
from qkv.nn.native.native_library import (
    AVX512,
    NativeLibrary,
    Processor,
    Product,
    float_product,
    openmp_parallel,
)
from support.families import GPT_KINDS, gpt, words
from support.rounded_weights import with_rounded_weights

FEW_BITS = [Int8Panels, Int4Panels]
SHAPES = [(1, 1), (33, 31), (96, 64), (70, 1000), (64, 3072), (300, 600)]


def compiled() -> NativeLibrary:
    kernels = native_library.library()
    if kernels is None:
        pytest.skip("the kernels were not compiled: there is no C compiler, or no x86-64 processor")

    return kernels


@pytest.fixture(params=["AVX2", "AVX-512"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of one instruction set."""
    kernels = compiled()
    if request.param == "AVX-512" and kernels.instruction_set != AVX512:
        pytest.skip("this processor has no AVX-512 with VNNI")

    capability = {"AVX2": "AVX2", "AVX-512": "AVX512"}[request.param]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["AMD", "Intel"])
def intel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The order in which the kernels read memory on the processors of one vendor."""
    monkeypatch.setattr(compiled(), "intel", request.param)
    return bool(request.param)


def test_the_kernels_are_compiled_where_the_project_is_tested() -> None:
    if os.environ.get("CI") == "true" and platform.machine() == "x86_64":
        assert native_library.library() is not None


def rounding_bound(x: Tensor, weights: Tensor) -> Tensor:
    """Half a unit of 16 bits for every number of x, times the matrix, and float32's rounding."""
    unit = x.abs().amax(-1, keepdim=True).double() / 32767  # (M, 1)
    sizes = x.abs().double() @ weights.abs().T
    return unit * 0.501 * weights.abs().sum(1) + 1e-5 * sizes + 1e-6


@pytest.mark.parametrize("kind", FEW_BITS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_wrong_by_at_most_half_a_unit_of_16_bits(
    kind: Any, shape: tuple[int, int], instructions: str, intel: bool, threads: int
) -> None:
    matrix = kind(torch.randn(*shape))
    weights = matrix.dequantised().double()
    bias = torch.randn(shape[0])
    for rows in (*range(1, 14), 31, 128, 131):
        x = torch.randn(rows, shape[1]) * torch.rand(rows, 1) * 100
        with torch.no_grad(), quantized_activations():
            error = matrix.linear(x, bias) - (x.double() @ weights.T + bias)

        assert (error.abs() <= rounding_bound(x, weights) + 1e-5).all()


@pytest.mark.parametrize("kind", FEW_BITS)
def test_the_largest_numbers_do_not_overflow(kind: Any, instructions: str, intel: bool) -> None:
    for sign in (1.0, -1.0):
        matrix = kind(torch.full((130, 4096), 3.0))
        for rows in (1, 7, 64):
            x = torch.full((rows, 4096), sign * 5.0)
            with torch.no_grad(), quantized_activations():
                products = matrix.linear(x)

            expected = torch.full((rows, 130), sign * 3 * 5 * 4096)
            assert_close(products, expected, rtol=1e-3, atol=0)


def extreme_rows(rows: int, columns: int) -> Tensor:
    """Whole numbers whose largest is 32767: all of them, alternating ones, and any."""
    x = torch.randint(-32767, 32768, (rows, columns))
    x[0::4] = 32767
    x[1::4] = -32767
    x[2::4, 0::2] = 32767
    x[2::4, 1::2] = -32767
    x[3::4, -1] = 32767
    return x


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 64, 100, 544, 1100])
@pytest.mark.parametrize("numbers", ["zeros", "fifteens", "both", "any"])
def test_products_of_int4_equal_those_of_whole_numbers(
    numbers: str, columns: int, instructions: str
) -> None:
    """A matrix of zeros has steps of 1 and centers of 8: with them a weight is its number."""
    N = 70
    weights = {
        "zeros": torch.zeros(N, columns, dtype=torch.int64),
        "fifteens": torch.full((N, columns), 15),
        "both": torch.randint(2, (N, columns)) * 15,
        "any": torch.randint(16, (N, columns)),
    }[numbers]
    matrix = Int4Panels(torch.zeros(N, columns))
    full = torch.nn.functional.pad(weights, (0, -columns % 32, 0, -N % 32))
    matrix.weight = pack(full.unflatten(1, (-1, 32)))
    assert torch.equal(matrix.dequantised(), weights.float())

    for rows in (*range(1, 14), 130):
        x = extreme_rows(rows, columns)
        exact = x @ weights.T
        with torch.no_grad(), quantized_activations():
            products = matrix.linear(x.float())

        # The sum of a group has 24 bits, so float32 rounds only sums of several groups.
        later_groups = (columns - 1) // 32
        bound = later_groups * 2**-24 * (x.abs() @ weights.T).double()
        assert ((products - exact.double()).abs() <= bound).all()


@pytest.mark.parametrize("shape", [*SHAPES, (40, 1100)])
@pytest.mark.parametrize("kind", FEW_BITS)
def test_both_instruction_sets_give_the_same_bits(
    kind: Any, shape: tuple[int, int], intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled().instruction_set != AVX512:
        pytest.skip("this processor has no AVX-512 with VNNI")

    matrix = kind(torch.randn(*shape))
    for rows in (*range(1, 14), 130):
        x = torch.randn(rows, shape[1])
        products = []
        for capability in ("AVX2", "AVX512"):
            monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
            with torch.no_grad(), quantized_activations():
                products.append(matrix.linear(x))

        assert torch.equal(*products)


@pytest.mark.parametrize("kind", FEW_BITS)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(
    kind: Any, instructions: str, intel: bool
) -> None:
    matrix = kind(torch.randn(250, 1100))
    x = torch.randn(140, 1100)
    with torch.no_grad(), quantized_activations():
        together = matrix.linear(x)
        for size in (1, 3, 6, 14, 60):
            assert torch.equal(torch.cat([matrix.linear(part) for part in x.split(size)]), together)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", FEW_BITS)
def test_a_row_that_is_not_finite_makes_nan_and_the_others_stay(
    kind: Any, value: float, instructions: str
) -> None:
    matrix = kind(torch.randn(40, 50))
    x = torch.randn(3, 50)
    with torch.no_grad(), quantized_activations():
        before = matrix.linear(x)
        x[1, 17] = value
        after = matrix.linear(x)

    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("size", [1e-20, 1e-31, 1e-34, 1e-37, 1e-40])
@pytest.mark.parametrize("kind", FEW_BITS)
def test_tiny_rows_keep_16_bits(kind: Any, size: float, instructions: str) -> None:
    matrix = kind(torch.randn(40, 50))
    weights = matrix.dequantised().double()
    x = torch.randn(13, 50).double().mul(size).float()
    subnormal = 2.0**-149
    with torch.no_grad(), quantized_activations():
        error = matrix.linear(x) - x.double() @ weights.T

    unit = x.abs().amax(-1, keepdim=True).double() / 32767
    sizes = x.abs().double() @ weights.abs().T
    assert (error.abs() <= unit * 0.51 * weights.abs().sum(1) + 1e-5 * sizes + subnormal).all()


@pytest.mark.parametrize("kind", FEW_BITS)
def test_a_row_of_zeros_gives_zeros(kind: Any, instructions: str) -> None:
    with torch.no_grad(), quantized_activations():
        assert torch.equal(kind(torch.randn(40, 50)).linear(torch.zeros(3, 50)), torch.zeros(3, 40))


def test_small_products_start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = compiled()
    started: list[int] = []

    @CFUNCTYPE(None, CFUNCTYPE(None, c_void_p), c_void_p, c_uint, c_uint)
    def parallel(run: Any, data: Any, threads: int, flags: int) -> None:
        started.append(threads)
        run(data)  # one thread takes all parts

    processor = Processor(ctypes.cast(parallel, c_void_p), 8, 0)
    monkeypatch.setattr(kernels, "processor", lambda: processor)
    for shape, threads in [((64, 64), []), ((320, 320), [3]), ((2048, 768), [8])]:
        weight = torch.randn(*shape)
        x = torch.randn(1, shape[1])
        products = kernels.multiply(float_product(weight, None), x, shape[0])
        assert started == threads
        assert_close(products, x @ weight.T, rtol=1e-4, atol=1e-4)
        del started[:]


@pytest.mark.parametrize("kind", ["relu", "gelu", "gelu_tanh", "silu", "relu2"])
@pytest.mark.parametrize("count", [1, 7, 16, 5000])
def test_activations_equal_float64(kind: Any, count: int, instructions: str, threads: int) -> None:
    x = torch.randn(count) * 4
    y = compiled().activate(x, ACTIVATIONS[kind])
    assert_close(y.double(), activate(x.double(), kind), rtol=1e-5, atol=1e-6)
    x[count // 2] = torch.nan
    y = compiled().activate(x, ACTIVATIONS[kind])
    assert torch.equal(y.isnan(), x.isnan())


def test_gelu_with_a_gradient_is_pytorchs() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    gelu_tanh(x).sum().backward()
    expected = x.detach().requires_grad_()
    torch.nn.functional.gelu(expected, approximate="tanh").sum().backward()
    assert torch.equal(x.grad, expected.grad)
    with torch.no_grad():
        right = torch.nn.functional.gelu(x, approximate="tanh")
        assert_close(gelu_tanh(x), right)
        assert_close(gelu_tanh(x.T), right.T)


def test_both_ways_to_keep_a_matrix_have_the_same_weights() -> None:
    compiled()
    matrix = torch.randn(70, 90)
    assert torch.equal(Int8Panels(matrix).dequantised(), Int8Matrix(matrix).dequantised())
    assert torch.equal(Int4Panels(matrix).dequantised(), Int4Matrix(matrix).dequantised())


def test_without_the_kernels_the_matrices_are_those_of_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_library, "library", lambda: None)
    assert isinstance(int8_matrix(torch.randn(3, 4)), Int8Matrix)
    assert isinstance(int4_matrix(torch.randn(3, 4)), Int4Matrix)


@pytest.mark.parametrize("shape", SHAPES)
def test_few_rows_of_float32(
    shape: tuple[int, int], instructions: str, intel: bool, threads: int
) -> None:
    weight = torch.randn(*shape)
    bias = torch.randn(shape[0])
    for rows in (*range(1, 8), 16):
        x = torch.randn(rows, shape[1])
        products = compiled().multiply(float_product(weight, bias), x, shape[0])
        error = products - (x.double() @ weight.double().T + bias)
        assert (error.abs() <= 1e-6 * (x.abs() @ weight.abs().T) + 1e-6).all()


def test_as_many_rows_of_float32_as_are_faster(
    instructions: str, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = native_library.most_float_rows()
    assert most == ({"AVX2": 8, "AVX-512": 16}[instructions] if intel else 2)

    multiplied: list[int] = []
    multiply = NativeLibrary.multiply

    def counted(self: NativeLibrary, product: Product, x: Tensor, outputs: int) -> Tensor:
        multiplied.append(len(x))
        return multiply(self, product, x, outputs)

    monkeypatch.setattr(NativeLibrary, "multiply", counted)
    weight, bias = torch.randn(40, 30), torch.randn(40)
    for shape in ((1, 1, 30), (most, 1, 30), (most + 1, 1, 30)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert_close(linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
            part = linear(x, weight, bias, slice(0, 21))
            assert_close(part, torch.nn.functional.linear(x, weight[:21], bias[:21]))

    assert multiplied == [1, 1, most, most]


def logits_of_steps(model: Any, ids: Tensor) -> Tensor:
    """The logits after a prompt of 3 tokens and after each further one."""
    state = model.start()
    blocks = CpuBlocks(model)
    logits = []
    for piece in ids.split([3] + [1] * (ids.shape[1] - 3), dim=1):
        with blocks.installed():
            logits.append(next_logits(model, piece, state))

    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("quantize", [None, int8, int4])
@pytest.mark.parametrize(
    "kind",
    ["activation relu", "activation gelu", "activation gelu_tanh", "activation silu",
     "activation relu2", "activation swiglu", "position rotary", "grouped heads", "one key head",
     "llama", "no biases"],
)  # fmt: skip
def test_decode_steps_equal_float64(
    kind: str, quantize: Any, instructions: str, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run = NativeLibrary.decode_blocks

    def counted(self: NativeLibrary, blocks: Any, *args: Any) -> Tensor:
        runs.extend([1] * len(blocks))
        return run(self, blocks, *args)

    monkeypatch.setattr(NativeLibrary, "decode_blocks", counted)
    model = gpt(**GPT_KINDS[kind] | {"hidden": 64}).float().eval()
    small = model if quantize is None else quantize(model)
    ids = words(2 if quantize is None else 3, 9)
    steps = logits_of_steps(small, ids)
    assert len(runs) == 6 * model.config.depth

    exact = with_rounded_weights(model, small).double()
    with torch.no_grad():
        expected = exact(ids)[:, 2:]

    assert (steps - expected).norm() <= 2e-3 * expected.norm()


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "relu2"])
@pytest.mark.parametrize("part", ["attention_residual.norm.gain", "feed_forward.up.bias"])
def test_a_step_with_nan_weights_gives_nan(activation: str, part: str, instructions: str) -> None:
    model = gpt(activation=activation, hidden=64).float().eval()
    with torch.no_grad():
        model.stack.blocks[1].get_parameter(part)[0] = torch.nan

    assert logits_of_steps(int8(model), words(1, 6)).isnan().all()
    assert logits_of_steps(model, words(1, 6)).isnan().all()


@pytest.mark.parametrize("quantize", [None, int8])
def test_replaced_weights_are_not_read_from_freed_memory(quantize: Any) -> None:
    """The blocks keep the weights they were made of."""
    compiled()
    model = gpt().float().eval()
    model = model if quantize is None else quantize(model)
    ids = words(1, 6)
    expected = logits_of_steps(model, ids)
    blocks = CpuBlocks(model)
    for tensor in (*model.stack.blocks.parameters(), *model.stack.blocks.buffers()):
        tensor.data = torch.full_like(tensor, 77)

    torch.full((1 << 16,), torch.nan)  # may take the memory that was freed
    state = model.start()
    with blocks.installed():
        for piece in ids.split(1, dim=1):
            logits = next_logits(model, piece, state)

    assert_close(logits, expected[:, -1], rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_cache_of_another_model_is_refused() -> None:
    compiled()
    model = gpt().float().eval()
    other = gpt(heads=2).float().eval()
    state = other.start()
    ids = words(1, 4)
    next_logits(other, ids, state)
    with CpuBlocks(model).installed(), pytest.raises(ValueError, match="state: expected a cache"):
        next_logits(model, ids[:, :1], state)

    state = model.start()
    next_logits(model, ids, state)
    state.buffers = {
        layer: (keys.bfloat16(), values.bfloat16())
        for layer, (keys, values) in state.buffers.items()
    }
    with CpuBlocks(model).installed(), pytest.raises(ValueError, match="float32 heads of width"):
        next_logits(model, ids[:, :1], state)


def test_a_model_can_be_copied_while_its_blocks_decode() -> None:
    compiled()
    model = gpt().float().eval()
    ids = words(1, 6)
    with torch.no_grad():
        expected = model(ids)
        with CpuBlocks(model).installed():
            twin = deepcopy(model)

        for weight in model.parameters():
            weight.zero_()

        assert_close(twin(ids), expected)


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_biases_and_tensors_without_memory_are_left_to_pytorch() -> None:
    compiled()
    weight = torch.randn(64, 8)
    x = torch.randn(1, 8)
    with torch.no_grad():
        for bias in (torch.zeros(3), torch.zeros(64, dtype=torch.float64)):
            with pytest.raises(RuntimeError):
                linear(x, weight, bias)

        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            assert linear(fake.from_tensor(x), fake.from_tensor(weight)).shape == (1, 64)

        together = torch.vmap(lambda row: linear(row, weight))(x.expand(3, 1, 8))
        assert_close(together, (x @ weight.T).expand(3, 1, 64))


def test_matrices_in_panels_work_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = Int4Panels(torch.randn(40, 50))
    x = torch.randn(3, 50)
    monkeypatch.setattr(native_library, "library", lambda: None)
    with torch.no_grad(), quantized_activations():
        assert_close(matrix.linear(x), x @ matrix.dequantised().T)


def test_a_file_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled()
    path = native_library.compiled_file()
    with monkeypatch.context() as patch:
        patch.setattr(native_library, "VERSION", native_library.VERSION + 1)
        with pytest.raises(OSError, match="another version"):
            NativeLibrary(path, openmp_parallel())

    # Two fields of the same type in another order leave every size as it is.
    fields = list(Product._fields_)
    gain, shift = (number for number, (name, _) in enumerate(fields) if name in ("gain", "shift"))
    fields[gain], fields[shift] = fields[shift], fields[gain]
    swapped = type("Product", (ctypes.Structure,), {"_fields_": tuple(fields)})
    assert ctypes.sizeof(swapped) == ctypes.sizeof(Product)
    monkeypatch.setitem(native_library.STRUCTURES, "Product", swapped)
    with pytest.raises(OSError, match="another version"):
        NativeLibrary(path, openmp_parallel())


def test_the_compiled_file_says_that_it_is_no_module() -> None:
    compiled()
    with pytest.raises(ImportError, match="is not a Python module"):
        import_module("qkv.nn.native.decode_kernels")


def test_pytorch_has_the_threads() -> None:
    compiled()
    assert openmp_parallel() > 0
