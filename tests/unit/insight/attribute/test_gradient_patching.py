"""Attribution patching is exact for a linear model and the first order of patching for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.attribute.edge_patching import edge_attribution, nodes_of
from qkv.insight.attribute.gradient_patching import attribution_patch
from qkv.insight.inspect.activation_patching import patch
from qkv.insight.inspect.model_input import Reading
from qkv.nn.hooks import add_hook, capture
from support.families import bert, gpt, transformer, words
from support.readings import reading
from support.shape_checks import unchecked

LLAMA: dict[str, Any] = {
    "position": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "kv_heads": 2,
    "qkv_bias": False,
}


def prompts(translator: bool = False) -> tuple[Reading, Reading]:
    """Two prompts that differ in two tokens."""
    clean = words(5).tolist()
    other = [clean[0], (clean[1] + 1) % 13, clean[2], (clean[3] + 5) % 13, clean[4]]
    if not translator:
        return reading(clean), reading(other)
    target = words(3).tolist()
    return reading(target, clean), reading(target, other)


def nearly_alike(model: Any, clean: Reading, corrupted: Reading, share: float) -> None:
    """Change the embeddings so that the clean prompt differs from the other by a small share."""
    weight = model.embedding.token.weight.data
    for one, other in zip(clean.text.ids, corrupted.text.ids, strict=True):
        weight[one] = weight[other] + share * (weight[one] - weight[other])


@pytest.mark.parametrize("at", ["residual", "heads", "feed_forward"])
@pytest.mark.parametrize("choices", [{}, LLAMA], ids=["gpt-2", "llama"])
def test_the_difference_to_patching_shrinks_with_the_change(at: Any, choices: Any) -> None:
    clean, corrupted = reading([1, 2, 3, 4, 5]), reading([1, 6, 3, 7, 5])
    errors = []
    for share in (0.02, 0.002):
        torch.manual_seed(0)
        model = gpt(**choices)
        nearly_alike(model, clean, corrupted, share)
        with unchecked():
            exact = patch(model, clean, corrupted, 8, 9, at).restored
        estimate = attribution_patch(model, clean, corrupted, 8, 9, at).restored
        errors.append(float((exact - estimate).abs().max()))
    # The shares of the answer are of order 1; first-order errors fall with the change.
    assert errors[1] < 0.02
    assert errors[1] < 0.3 * errors[0] or errors[0] < 1e-4


def test_it_is_exact_where_the_rest_is_linear() -> None:
    """After the last layer a model without final norm is linear in its residual stream."""
    model = gpt(final_norm=False)
    clean, corrupted = prompts()
    exact = patch(model, clean, corrupted, 4, 7)
    estimate = attribution_patch(model, clean, corrupted, 4, 7)
    assert_close(estimate.restored[-1], exact.restored[-1])
    assert (estimate.clean, estimate.corrupted) == (exact.clean, exact.corrupted)
    heads = attribution_patch(model, clean, corrupted, 4, 7, "feed_forward").restored
    assert_close(heads[-1], patch(model, clean, corrupted, 4, 7, "feed_forward").restored[-1])


@pytest.mark.parametrize(
    ("make", "kind", "at"),
    [
        (bert, None, "heads"),
        (transformer, None, "residual"),
        (transformer, "cross", "heads"),
        (transformer, "decoder", "feed_forward"),
    ],
)
def test_every_family(make: Any, kind: str | None, at: Any) -> None:
    """The estimate is (clean - corrupted) x a gradient by finite differences."""
    model = make()
    clean, corrupted = prompts(make is transformer)
    result = attribution_patch(model, clean, corrupted, 4, 7, at, place=2, kind=kind)
    stack = "stack" if make is bert else "encoder" if kind is None else "decoder"
    point = {
        "residual": "after",
        "heads": "cross_attention.heads" if kind == "cross" else "attention.heads",
        "feed_forward": "feed_forward.hidden",
    }[at]
    name = f"{stack}.blocks.1.{point}"
    seen = []
    with torch.no_grad(), unchecked():
        for prompt in (clean, corrupted):
            with capture(model, name) as values:
                logit_difference(model, prompt)
            seen.append(values[name])
        size = 1e-5
        slopes = []
        for index in range(result.restored.shape[1]):
            sides = []
            for sign in (1, -1):

                def move(value: Tensor, name: str, index: int = index, sign: int = sign) -> Tensor:
                    value = value.clone()
                    change = seen[0][:, index] - seen[1][:, index]
                    value[:, index] += sign * size * change
                    return value

                with add_hook(model, name, move):
                    sides.append(logit_difference(model, corrupted))
            slopes.append((sides[0] - sides[1]) / (2 * size))
    expected = torch.tensor(slopes) / (result.clean - result.corrupted)
    assert_close(result.restored[1], expected.float(), rtol=1e-3, atol=1e-4)


def logit_difference(model: Any, prompt: Reading) -> float:
    ids = torch.tensor([prompt.text.ids])
    inputs = [ids]
    if prompt.source is not None:
        inputs.insert(0, torch.tensor([prompt.source.ids]))
    logits = model(*inputs)
    return float(logits[0, 2, 4] - logits[0, 2, 7])


@pytest.mark.parametrize("choices", [{}, LLAMA], ids=["gpt-2", "llama"])
def test_the_edges_of_a_node_sum_to_its_score(choices: Any) -> None:
    model = gpt(**choices)
    clean, corrupted = prompts()
    edges = edge_attribution(model, clean, corrupted, 4, 7)
    assert edges.scores.shape == (len(edges.writers), len(edges.readers))
    heads = attribution_patch(model, clean, corrupted, 4, 7, "heads").restored
    for layer in range(2):
        for head in range(4):
            row = [str(node) for node in edges.writers].index(f"head {layer}.{head}")
            assert float(edges.scores[row].sum()) == pytest.approx(
                float(heads[layer, head]), abs=1e-5
            )
    # An edge leads forward only: a head does not read another head of its layer.
    names = {str(node): number for number, node in enumerate(edges.readers)}
    row = [str(node) for node in edges.writers].index("head 1.0")
    assert float(edges.scores[row, names["query 1.1"]]) == 0.0
    assert float(edges.scores[row, names["feed-forward 1"]]) != 0.0
    writer, reader, score = edges.strongest(1)[0]
    assert abs(score) == pytest.approx(float(edges.scores.abs().max()))
    assert writer.depth < reader.depth


def test_an_edge_equals_a_finite_difference() -> None:
    """The query of one head reads a residual stream in which one writer alone is changed."""
    model = gpt(**LLAMA)
    clean, corrupted = prompts()
    edges = edge_attribution(model, clean, corrupted, 4, 7)
    writers, readers = nodes_of(model)
    block = model.stack.blocks[1]
    D = block.attention.head_width
    seen = []
    points = ("stack.blocks.1.before", "stack.blocks.0.attention.heads")
    with torch.no_grad(), unchecked():
        for prompt in (clean, corrupted):
            with capture(model, *points) as values:
                model(torch.tensor([prompt.text.ids]))
            seen.append(values)
        # Head 0.2 writes; query 1.3 and key 1.1 read, whose rows follow the four queries.
        change = seen[0][points[1]][0, 2] - seen[1][points[1]][0, 2]  # (T, D)
        change = change @ model.stack.blocks[0].attention.output.weight[:, 2 * D : 3 * D].T
        before = seen[1][points[0]]
        for reader, number in (("query 1.3", 3), ("key 1.1", 5)):
            sides = []
            for size in (1e-5, -1e-5):
                moved = block.attention.qkv(block.attention_residual.norm(before + size * change))
                columns = slice(number * D, (number + 1) * D)

                def read_moved(
                    module: Any,
                    inputs: Any,
                    output: Tensor,
                    moved: Tensor = moved,
                    columns: slice = columns,
                ) -> Tensor:
                    output = output.clone()
                    output[..., columns] = moved[..., columns]
                    return output

                handle = block.attention.qkv.register_forward_hook(read_moved)
                logits = model(torch.tensor([corrupted.text.ids]))[0, -1]
                handle.remove()
                sides.append(float(logits[4] - logits[7]))
            expected = (sides[0] - sides[1]) / 2e-5 / (edges.clean - edges.corrupted)
            row = [str(node) for node in writers].index("head 0.2")
            column = [str(node) for node in readers].index(reader)
            assert float(edges.scores[row, column]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_models_without_edges_are_refused() -> None:
    with pytest.raises(ValueError, match=r"edges: .*post-norm"):
        edge_attribution(gpt(norm_placement="after"), *prompts())
    with pytest.raises(ValueError, match=r"edges: an encoder-decoder"):
        edge_attribution(transformer(), *prompts(True))
