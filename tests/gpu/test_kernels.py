"""On a GPU: FlexAttention and SDPA give the numbers of the eager equation in float64."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked")]

# A bound on the difference, relative to the largest number: matrix products in TF32 are off.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
DTYPES = [
    pytest.param(dtype, id=str(dtype).removeprefix("torch."))
    for dtype in (torch.float32, torch.bfloat16)
]
B, H, D = 2, 4, 64


def padding_mask(S: int) -> Tensor:
    """Tokens first in row 0, last in row 1; some queries are left without keys."""
    position = torch.arange(S, device="cuda")
    return torch.stack([position < S - 70, position >= 150])


def texts(S: int) -> Tensor:
    position = torch.arange(S, device="cuda")
    return torch.stack([position // 100, (position > 37).long() + (position > 400).long()])


def sparse(name: str, S: int):
    from qkv.nn.attention import Blockwise, Causal, Document, Padding, Prefix, Window

    return {
        "window": lambda: Window(50),
        "causal window": lambda: Causal() & Window(129),
        "causal window padding": lambda: Causal() & Window(100) & Padding(padding_mask(S)),
        "block": lambda: Blockwise(96),
        "causal block": lambda: Causal() & Blockwise(128),
        "documents": lambda: Document(texts(S)),
        "causal documents padding": lambda: (
            Causal() & Document(texts(S)) & Padding(padding_mask(S))
        ),
        "prefix window": lambda: Prefix(torch.tensor([30, 200], device="cuda")) & Window(300),
    }[name]()


SPARSE = [
    "window",
    "causal window",
    "causal window padding",
    "block",
    "causal block",
    "documents",
    "causal documents padding",
    "prefix window",
]


def numbers(K: int, T: int, S: int) -> list[Tensor]:
    """Query, key, value and the output's gradient, in float64."""
    shapes = [(B, H, T, D), (B, K, S, D), (B, K, S, D), (B, H, T, D)]
    return [torch.randn(shape, device="cuda", dtype=torch.float64) for shape in shapes]


def outcome(
    x: list[Tensor], dtype: torch.dtype, kernel: str | None, **options
) -> dict[str, Tensor]:
    from qkv.nn.attention import attend

    query, key, value = (y.to(dtype).requires_grad_() for y in x[:3])
    output, _ = attend(query, key, value, kernel=kernel, **options)
    gradients = torch.autograd.grad(output, (query, key, value), x[3].to(dtype))
    return dict(
        zip(("output", "query", "key", "value"), (output.detach(), *gradients), strict=True)
    )


def assert_equals_eager(
    kernel: str | None, dtype: torch.dtype, K: int, T: int, S: int, **options
) -> None:
    """Against eager in float64, on the numbers as they are after rounding to the kernel's
    precision.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    x = [y.to(dtype).double() for y in numbers(K, T, S)]
    actual, expected = (
        outcome(x, dtype, kernel, **options),
        outcome(x, torch.float64, "eager", **options),
    )
    for name, right in expected.items():
        assert actual[name].isfinite().all(), name
        scale = max(1.0, float(right.abs().max()))
        assert float((actual[name] - right).abs().max()) < TOLERANCE[dtype] * scale, name


@pytest.mark.parametrize("name", SPARSE)
def test_flex_equals_eager(name: str) -> None:
    """Every kind of mask; grouped heads, and a length that is no multiple of a tile."""
    assert_equals_eager("flex", torch.float32, K=2, T=600, S=600, mask=sparse(name, 600))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "S"), [(512, 512), (130, 700)])
def test_flex_equals_eager_at_any_size(T: int, S: int, dtype: torch.dtype) -> None:
    """Fewer kinds of mask, as each costs seconds to compile; as many queries as keys, or fewer."""
    for name in ("causal window padding", "causal documents padding"):
        assert_equals_eager("flex", dtype, K=2, T=T, S=S, mask=sparse(name, S))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("K", [1, 4])
def test_flex_equals_eager_with_slopes(K: int, dtype: torch.dtype) -> None:
    from qkv.nn.attention import Distance

    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")
    for T, S in ((512, 512), (200, 600)):
        mask = sparse("causal window padding", S)
        assert_equals_eager("flex", dtype, K=K, T=T, S=S, mask=mask, bias=Distance(slopes))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_masks_on_a_gpu_choose_flex(name: str) -> None:
    from qkv.nn.attention.attend import choose, scaled_dot
    from qkv.nn.attention.kernels.table import AttentionCall

    x = torch.empty(B, H, 640, D, device="cuda")
    assert choose(AttentionCall(x, x, x, sparse(name, 640)), scaled_dot, False) == "flex"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "S"), [(64, 64), (1, 64), (33, 70)])
@pytest.mark.parametrize("name", ["none", "causal", "padding", "matrix"])
def test_sdpa_equals_eager(name: str, T: int, S: int, dtype: torch.dtype) -> None:
    from qkv.nn.attention import Causal, Explicit, Padding

    mask = {
        "none": lambda: None,
        "causal": lambda: Causal(),
        "padding": lambda: Causal() & Padding(torch.rand(B, S, device="cuda") < 0.7),
        "matrix": lambda: Explicit(torch.rand(B, H, T, S, device="cuda") < 0.5),
    }[name]()
    for K in (1, 4):
        for bias in (None, torch.randn(H, T, S, device="cuda").unsqueeze(0)):
            assert_equals_eager("sdpa", dtype, K=K, T=T, S=S, mask=mask, bias=bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["sdpa", "flex"])
@pytest.mark.parametrize("K", [2, 4])
def test_a_query_without_keys_gets_zeros_and_gives_no_gradient(
    K: int, kernel: str, dtype: torch.dtype
) -> None:
    from qkv.nn.attention import Causal, Padding

    S = 512
    position = torch.arange(S, device="cuda")
    tokens = torch.stack([position >= 200, position < 0])
    actual = outcome(numbers(K, S, S), dtype, kernel, mask=Causal() & Padding(tokens))
    assert all(x.isfinite().all() for x in actual.values())
    assert not actual["output"][0, :, :200].any()
    assert actual["output"][0, :, 200:].any(-1).all()
    assert not any(x[1].any() for x in actual.values())
    assert not actual["query"][0, :, :200].any()
    assert_equals_eager(kernel, dtype, K=K, T=S, S=S, mask=Causal() & Padding(tokens))


@pytest.mark.parametrize("name", ["strided", "fixed", "causal window"])
def test_blocked_equals_eager(name: str) -> None:
    from qkv.nn.attention import Causal, Fixed, Strided, Window

    mask = {"strided": Strided(20), "fixed": Fixed(20, 2), "causal window": Window(40)}[name]
    assert_equals_eager("block_sparse", torch.float32, K=2, T=300, S=300, mask=Causal() & mask)


def test_flex_inside_a_compiled_function_equals_eager() -> None:
    from qkv.nn.attention import Causal, Window, attend

    @torch.compile(fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=Causal() & Window(64), kernel="flex")[0]

    x = [y.float() for y in numbers(2, 512, 512)[:3]]
    expected = attend(*(y.double() for y in x), mask=Causal() & Window(64), kernel="eager")[0]
    assert float((compiled(*x) - expected).abs().max()) < 1e-5


# A mask, its stride and its summary positions.
PATTERNS = {
    "strided": ("Strided", 100),
    "strided by tiles": ("Strided", 128),
    "strided by two": ("Strided", 2),
    "fixed": ("Fixed", 100),
    "fixed by tiles": ("Fixed", 128),
    "fixed with summaries": ("Fixed", 20, 4),
}


@pytest.mark.parametrize(
    ("K", "T", "dtype"),
    [(4, 512, torch.bfloat16), (2, 1100, torch.bfloat16), (2, 1100, torch.float16)],
    ids=["tiles", "grouped", "float16"],
)
@pytest.mark.parametrize("name", PATTERNS)
def test_sparse_flash_equals_eager(name: str, K: int, T: int, dtype: torch.dtype) -> None:
    """Lengths that the stride divides or not, several tiles, grouped heads."""
    assert_equals_eager("sparse_flash", dtype, K=K, T=T, S=T, mask=causal_pattern(name))


@pytest.mark.parametrize("width", [48, 128])
@pytest.mark.parametrize("name", ["strided", "fixed with summaries"])
def test_sparse_flash_equals_eager_with_heads_of_any_width(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "D", width)
    mask = causal_pattern(name)
    assert_equals_eager("sparse_flash", torch.bfloat16, K=2, T=600, S=600, mask=mask)


@pytest.mark.parametrize("name", ["strided", "fixed"])
def test_the_memory_of_sparse_flash_grows_with_the_length(name: str) -> None:
    from qkv.nn.attention import attend

    def memory(length: int) -> int:
        x = torch.randn(3, 1, 2, length, 64, device="cuda", dtype=torch.bfloat16)
        query, key, value = (y.requires_grad_() for y in x)
        gc.collect()  # what an earlier call left in cycles counts neither before nor after
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output, _ = attend(query, key, value, mask=causal_pattern(name), kernel="sparse_flash")
        # In this thread: another one would free the tensors of the graph at a time of its own
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.grad(output.sum(), (query, key, value))

        return torch.cuda.max_memory_allocated() - before

    # Shorter sequences have fewer splits of the queries than a long one may have
    memory(2048)  # what is allocated once
    assert memory(32768) < 4.5 * memory(8192)


def causal_pattern(name: str):
    from qkv.nn import attention

    kind, *options = PATTERNS[name]
    return attention.Causal() & getattr(attention, kind)(*options)


@pytest.mark.parametrize("name", ["strided", "fixed", "fixed with summaries"])
def test_causal_patterns_in_half_precision_choose_sparse_flash(name: str) -> None:
    from qkv.nn.attention.attend import choose, scaled_dot
    from qkv.nn.attention.kernels.table import AttentionCall

    x = torch.empty(B, H, 640, D, device="cuda")
    half = x.bfloat16()
    mask = causal_pattern(name)
    assert choose(AttentionCall(half, half, half, mask), scaled_dot, False) == "sparse_flash"
    assert choose(AttentionCall(x, x, x, mask), scaled_dot, False) == "block_sparse"
    with torch.autocast("cuda", torch.bfloat16):
        assert choose(AttentionCall(x, x, x, mask), scaled_dot, False) == "sparse_flash"


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["strided", "fixed"])
def test_a_compiled_gpt_with_a_sparse_pattern_has_the_gradients_of_eager_attention(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in bf16: compiled with the flash kernels, and not compiled with the other kernels."""
    from qkv.models import GPT, GPTConfig
    from qkv.nn.attention.kernels.table import KERNELS

    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary=300, context=640, width=128, depth=2, heads=2, sparse=name, stride=24
    )
    model = GPT(config).cuda()
    ids = torch.randint(300, (2, 640), device="cuda")

    def gradients(forward) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits = forward(ids)

        logits = logits[:, :-1].flatten(0, 1).float()
        torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    actual = gradients(torch.compile(model.forward))
    other = KERNELS["sparse_flash"]._replace(supports=lambda call: False)
    monkeypatch.setitem(KERNELS, "sparse_flash", other)
    for gradient, expected in zip(actual, gradients(model.forward), strict=True):
        assert (gradient - expected).norm() <= 3e-2 * expected.norm() + 1e-7
