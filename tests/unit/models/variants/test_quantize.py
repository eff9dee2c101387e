"""Int8: rounding errors are bounded, products are exact, and perplexity stays the same."""

from __future__ import annotations

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
from qkv.models.variants.quantize import int8
from qkv.nn.hooks import capture
from qkv.nn.linear.int8 import FEW_ROWS, Int8Embedding, Int8Matrix
from qkv.nn.linear.linear import Linear
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


def pieces_of(numbers: Tensor, packed: Int8Matrix) -> list[Tensor]:
    same_size = numbers / packed.size.unsqueeze(1)
    return [piece for column in same_size.T for piece in column.split(packed.piece)]


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 7), (200, 16), (384, 5), (500, 9)])
def test_rounding_errors_are_at_most_half_a_step(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape) * torch.rand(shape[1]) * 10
    packed = Int8Matrix(matrix)
    for right, actual in zip(
        pieces_of(matrix, packed), pieces_of(packed.dequantised(), packed), strict=True
    ):
        # A last piece that is not full has zeros too, so its step may be wider.
        least, most = (
            (min(right.min(), 0), max(right.max(), 0))
            if len(right) < packed.piece
            else right.aminmax()
        )
        step = (most - least) / 255
        assert (right - actual).abs().max() <= step * 0.501


def test_equal_numbers_are_kept() -> None:
    matrix = torch.full((64, 3), 0.7)
    matrix[5:] = 0
    assert_close(Int8Matrix(matrix).dequantised(), matrix)


def test_a_large_row_costs_the_others_nothing() -> None:
    matrix = torch.randn(64, 32)
    large = matrix.clone()
    large[7] *= 1000
    assert_close(Int8Matrix(large).dequantised()[8:], Int8Matrix(matrix).dequantised()[8:])


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1, 100])
@pytest.mark.parametrize("shape", [(7, 5), (96, 32), (400, 48), (576, 64)])
def test_a_product_equals_that_of_the_dequantised_matrix(rows: int, shape: tuple[int, int]) -> None:
    packed = Int8Matrix(torch.randn(*shape))
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


def test_an_empty_batch() -> None:
    assert Int8Matrix(torch.randn(20, 4)).linear(torch.zeros(0, 3, 4)).shape == (0, 3, 20)


def test_a_token_is_its_row() -> None:
    packed = Int8Matrix(torch.randn(300, 8))
    ids = torch.randint(300, (4, 6))
    assert_close(Int8Embedding(packed)(ids), packed.dequantised()[ids])
    assert Int8Embedding(packed)(ids[:0]).shape == (0, 6, 8)


def test_a_gradient_goes_through_to_the_input() -> None:
    packed = Int8Matrix(torch.randn(30, 8))
    x = torch.randn(2, 8, requires_grad=True)
    (actual,) = torch.autograd.grad(packed.linear(x).square().sum(), x)
    (right,) = torch.autograd.grad(F.linear(x, packed.dequantised()).square().sum(), x)
    assert_close(actual, right)


def with_rounded_weights(model: Any, small: Any) -> Any:
    """Return the float32 model with the dequantised weights, which the int8 model must equal."""
    parts = dict(small.named_modules())
    with torch.no_grad():
        for path, part in model.named_modules():
            if isinstance(part, Linear | torch.nn.Embedding) and isinstance(
                parts[path].weight, Int8Matrix
            ):
                part.weight.copy_(parts[path].weight.dequantised())

    return model


@pytest.mark.parametrize("kind", GPT_KINDS)
def test_every_gpt_equals_itself_with_rounded_weights(kind: str) -> None:
    model = gpt(**GPT_KINDS[kind]).float()
    ids = words(2, 9)
    small = int8(model)
    rounded = with_rounded_weights(model, small)
    assert_close(small(ids), rounded(ids), rtol=1e-4, atol=1e-4)
    state = small.start()
    steps = [small.decode(piece, state) for piece in ids.split([4, 1, 4], dim=1)]
    assert_close(torch.cat(steps, dim=1), rounded(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_every_transformer_equals_itself_with_rounded_weights(kind: str) -> None:
    model = transformer(**TRANSFORMER_KINDS[kind]).float()
    source = sources(model.config, 2, 6)
    target = words(2, 5)
    small = int8(model)
    rounded = with_rounded_weights(model, small)
    assert_close(small(source, target), rounded(source, target), rtol=1e-4, atol=1e-4)
    output = translate(small, source, start=1, end=2, length=8)
    assert output == translate(rounded, source, start=1, end=2, length=8)


def test_bert_equals_itself_with_rounded_weights() -> None:
    model = bert().float()
    ids = words(2, 9)
    small = int8(model)
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


def test_a_quarter_of_the_memory() -> None:
    def size(model: torch.nn.Module) -> int:
        return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))

    model = qkv.models.build(
        qkv.models.GPTConfig(vocabulary=5000, width=192, depth=2, heads=4, context=32)
    )
    small = int8(model)
    assert size(small) < 0.28 * size(model)
    shared = {weight.data_ptr() for weight in model.parameters()}
    assert all(weight.data_ptr() in shared for weight in small.parameters())


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: int8(rnn().float()), "model: expected a Transformer, GPT or BERT"),
        (lambda: int8(gpt()), "model: expected float32 on a CPU, and .* is torch.float64"),
        (lambda: int8(int8(gpt().float())), "model: it is int8 already"),
        (lambda: int8(gpt().float()).train(), "model: int8 weights are frozen"),
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


def test_smollm2_reads_real_text_as_well_as_before() -> None:
    """Perplexity stays within 1 percent on the documentation of Python's library."""
    loaded = qkv.load("smollm2")
    text = "".join(text for name, text in modules("valid") if name == "textwrap.py")
    ids = torch.tensor([loaded.tokenizer.encode(text)[:256]])
    small = int8(loaded.model)

    def perplexity(model: Any) -> float:
        with torch.inference_mode():
            return F.cross_entropy(model(ids)[0, :-1], ids[0, 1:]).exp().item()

    before = perplexity(loaded.model)
    after = perplexity(small)
    assert abs(after / before - 1) < 0.01
