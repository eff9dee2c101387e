"""The parts of a logit sum to it, and each equals a plain computation from the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.attribute.logit_attribution import LogitParts, logit_attribution
from qkv.insight.inspect.model_input import logits
from qkv.models.variants.quantize import int8
from qkv.nn.hooks import capture
from support.families import bert, gpt, rnn, transformer, words
from support.readings import reading

GPTS: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "llama": {
        "position": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "kv_heads": 2,
        "qkv_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
    },
    "wide heads, untied": {"head_width": 6, "tied": False, "position": "sinusoidal"},
    "no final norm": {"final_norm": False},
    "product of positions": {"join": "product", "position": "learned"},
    "relative": {"position": "relative"},
}


def total(split: LogitParts) -> float:
    return sum(value for _, value in split.parts())


@pytest.mark.parametrize("kind", GPTS)
def test_the_parts_sum_to_the_logit(kind: str) -> None:
    model = gpt(**GPTS[kind])
    read = reading(words(6).tolist())
    expected = logits(model, read)[0].detach()
    for position, token, against in ((2, 5, None), (-1, 3, 7), (4, None, None)):
        split = logit_attribution(model, read, position, token, against)
        row = expected[position]
        assert split.token == (int(row.argmax()) if token is None else token)
        value = float(row[split.token] - (0 if against is None else row[against]))
        assert split.total == pytest.approx(value, abs=1e-9)
        assert total(split) == pytest.approx(value, abs=1e-4)


def plain_parts(model: Any, ids: list[int], position: int, token: int) -> dict[str, float]:
    """The parts by loops over numbers, from the weights and the captured heads."""
    with torch.no_grad(), capture(model, "*.heads", "*.before", "*.between", "*.after") as seen:
        model(torch.tensor([ids]))
    depth = len(model.stack.blocks)
    whole = seen[f"stack.blocks.{depth - 1}.after"][0, position]
    E = len(whole)
    mean = sum(whole.tolist()) / E
    spread = (sum((x - mean) ** 2 for x in whole.tolist()) / E + model.stack.norm.epsilon) ** 0.5
    row = model.output_matrix[token]

    def logit(vector: Tensor) -> float:
        numbers = vector.tolist()
        middle = sum(numbers) / E
        return sum(
            (number - middle) / spread * float(model.stack.norm.gain[i]) * float(row[i])
            for i, number in enumerate(numbers)
        )

    parts = {
        "embedding": logit(model.embedding.token.weight[ids[position]]),
        "position": logit(model.embedding.position(torch.tensor([[position]]))[0, 0]),
        "bias": float((model.stack.norm.bias * row).sum()),
    }
    for layer, block in enumerate(model.stack.blocks):
        heads = seen[f"stack.blocks.{layer}.attention.heads"][0, :, position]  # (H, D)
        D = heads.shape[1]
        for head in range(len(heads)):
            matrix = block.attention.output.weight[:, head * D : (head + 1) * D]
            parts[f"head {layer}.{head}"] = logit(matrix @ heads[head])
        parts[f"attention bias {layer}"] = logit(block.attention.output.bias)
        between = seen[f"stack.blocks.{layer}.between"][0, position]
        normed = block.feed_forward_residual.norm(between).view(1, 1, -1)
        parts[f"feed-forward {layer}"] = logit(block.feed_forward(normed)[0, 0])
    return parts


def test_each_part_equals_a_plain_loop() -> None:
    model = gpt(position="learned")
    ids = words(5).tolist()
    with torch.no_grad():
        expected = plain_parts(model, ids, 3, 6)
    split = logit_attribution(model, reading(ids), 3, 6)
    assert dict(split.parts()) == pytest.approx(expected, abs=1e-5)
    strongest = split.strongest(2)
    assert abs(strongest[0][1]) == pytest.approx(max(map(abs, expected.values())), abs=1e-5)


def test_a_translator_has_cross_attention() -> None:
    model = transformer(norm_placement="before", logit_bias=True, tied="none")
    read = reading(words(4).tolist(), words(5).tolist())
    split = logit_attribution(model, read, 2, 4, 9)
    row = logits(model, read)[0, 2].detach()
    assert split.cross_heads is not None
    assert split.cross_heads.shape == (2, 4)
    assert total(split) == pytest.approx(float(row[4] - row[9]), abs=1e-4)


def test_an_int8_model_is_split_as_it_computes() -> None:
    model = int8(gpt().float())
    read = reading(words(4).tolist())
    split = logit_attribution(model, read, 1, 2)
    with torch.no_grad():
        expected = float(logits(model, read)[0, 1, 2])
    assert total(split) == pytest.approx(expected, abs=2e-3)
    assert_close(split.total, expected)


def test_models_without_a_sum_are_refused() -> None:
    read = reading(words(4).tolist())
    with pytest.raises(ValueError, match=r"post-norm.*norm_placement = before"):
        logit_attribution(gpt(norm_placement="after"), read)
    with pytest.raises(ValueError, match=r"BERT's head is not linear"):
        logit_attribution(bert(norm_placement="before"), read)
    with pytest.raises(ValueError, match=r"RNN has no residual stream"):
        logit_attribution(rnn(), reading([1, 2], [3]))
    with pytest.raises(ValueError, match=r"position: expected 0 to 3"):
        logit_attribution(gpt(), read, 4)
    with pytest.raises(ValueError, match=r"token: expected 0 to 12, not 13"):
        logit_attribution(gpt(), read, 0, 13)
