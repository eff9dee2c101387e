"""Dropout is active in training only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.models import build
from support.families import bert, gpt, rnn, rnn_lm, transformer, words

MODELS = {
    "gpt": (gpt, 1),
    "transformer-xl": (lambda **choices: gpt(position="relative", **choices), 1),
    "bert": (bert, 1),
    "transformer": (transformer, 2),
    "rnn-lm": (lambda **choices: rnn_lm(depth=2, residual=True, **choices), 1),
    "rnn": (lambda **choices: rnn(cell="lstm", depth=2, **choices), 2),
}
CASES = [
    (name, kind)
    for name in MODELS
    for kind in ("dropout", "attention_dropout")
    if not (name.startswith("rnn") and kind == "attention_dropout")
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_dropout_in_training_only(name: str, kind: str) -> None:
    make, texts = MODELS[name]
    model: Any = make(**{"dropout": 0.0, kind: 0.3})
    plain: Any = build(replace(model.config, **{kind: 0.0})).double().eval()
    plain.load_state_dict(model.state_dict())
    inputs = [words(2, 6) for _ in range(texts)]
    right = plain(*inputs)
    assert_close(model.eval()(*inputs), right)
    model.train()
    once = model(*inputs)
    again = model(*inputs)
    assert not torch.allclose(once, right)
    assert not torch.allclose(once, again)
    assert_close(plain.train()(*inputs), right)


def test_what_is_dropped_is_the_sublayers_output_and_not_the_residual_stream() -> None:
    """With nearly everything dropped, a block's input still passes through."""
    from qkv.nn.hooks import capture

    model = gpt(dropout=0.999, norm_placement="before").train()
    model.embedding.dropout.p = 0.0
    with capture(model, "stack.blocks.0.*") as captured:
        model(words(1, 4))

    same = torch.isclose(captured["stack.blocks.0.after"], captured["stack.blocks.0.before"])
    assert same.double().mean() > 0.9
