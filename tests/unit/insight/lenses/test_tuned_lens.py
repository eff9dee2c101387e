"""A new lens is the logit lens; training brings each layer closer to the model's prediction."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.inspect.logit_lens import logit_lens
from qkv.insight.inspect.model_input import read
from qkv.insight.lenses.lens_training import divergences, layer_vectors, train_lens
from qkv.insight.lenses.tuned_lens import TunedLens, lens_logits, tuned_lens
from qkv.text import Tokenizer, train
from support.families import bert, gpt, rnn, rnn_lm, transformer
from support.sentences import SENTENCES


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("words", SENTENCES, 13)


def test_a_new_lens_is_the_logit_lens(tokenizer: Tokenizer) -> None:
    text = SENTENCES[0]
    for model in (gpt(), gpt(final_norm=False), bert()):
        reading = read(model, tokenizer, text)
        expected = logit_lens(model, tokenizer, reading, top=3)
        assert tuned_lens(model, tokenizer, reading, TunedLens.of(model), top=3) == expected

    both = transformer()
    reading = read(both, tokenizer, source=text, target=text)
    assert tuned_lens(both, tokenizer, reading, TunedLens.of(both)) == logit_lens(
        both, tokenizer, reading
    )


@torch.no_grad()
def test_logits_and_divergence_equal_plain_loops() -> None:
    model = gpt(norm="rms")
    lens = TunedLens.of(model).double()
    lens.matrix.normal_(std=0.1)
    lens.bias.normal_(std=0.1)
    row = [3, 1, 4]
    layers = layer_vectors(model, row)
    assert len(layers) == 3
    own = model(torch.tensor([row]))[0].softmax(-1)
    for layer in range(2):
        total = 0.0
        for position, x in enumerate(layers[layer]):
            moved = [
                float(x[i])
                + sum(float(lens.matrix[layer, i, j]) * float(x[j]) for j in range(16))
                + float(lens.bias[layer, i])
                for i in range(16)
            ]
            size = math.sqrt(sum(value**2 for value in moved) / 16 + model.stack.norm.epsilon)
            normed = torch.tensor(moved, dtype=torch.float64) / size * model.stack.norm.gain
            logits = model.output_matrix @ normed
            assert_close(lens_logits(model, lens, x, layer), logits)
            found = logits.softmax(-1)
            total += float((own[position] * (own[position] / found).log()).sum())
        assert float(divergences(model, lens, [row])[layer]) == pytest.approx(total / 3, rel=1e-5)


def test_training_lowers_the_divergence(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = gpt().float()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"learning_rate": 1e-2, "seed": 3}
    trained = train_lens(model, tokenizer, SENTENCES, steps=60, **options)  # type: ignore[arg-type]
    assert bool((trained.tuned < 0.8 * trained.logit_lens).all())
    first = train_lens(model, tokenizer, SENTENCES, steps=3, **options)  # type: ignore[arg-type]
    second = train_lens(model, tokenizer, SENTENCES, steps=3, **options)  # type: ignore[arg-type]
    assert_close(first.lens.matrix, second.lens.matrix, atol=0, rtol=0)
    for name, value in model.state_dict().items():
        assert_close(value, weights[name], atol=0, rtol=0)
    assert all(parameter.grad is None for parameter in model.parameters())

    trained.lens.save(tmp_path / "lens")
    loaded = TunedLens.load(tmp_path / "lens")
    assert_close(loaded.matrix, trained.lens.matrix, atol=0, rtol=0)
    reading = read(model, tokenizer, SENTENCES[1])
    layers = tuned_lens(model, tokenizer, reading, loaded)
    own = logit_lens(model, tokenizer, reading)
    assert layers[-1] == own[-1]  # the last layer needs no translator
    assert layers[0] != own[0]


def test_bad_input(tokenizer: Tokenizer, tmp_path: Path) -> None:
    reading = read(gpt(), tokenizer, SENTENCES[0])
    with pytest.raises(ValueError, match=r"it has 2 layers of width 16, the model 3 of width 16"):
        tuned_lens(gpt(depth=3), tokenizer, reading, TunedLens.of(gpt()))
    for model in (rnn(), rnn_lm()):
        with pytest.raises(ValueError, match=r"RNN has no residual stream"):
            TunedLens.of(model)
    with pytest.raises(ValueError, match=r"steps: expected 1 or more, not 0"):
        train_lens(gpt(), tokenizer, SENTENCES, steps=0)
    with pytest.raises(ValueError, match=r"expected a GPT or a BERT"):
        train_lens(transformer(), tokenizer, SENTENCES)
    (tmp_path / "other").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"expected a tuned lens"):
        TunedLens.load(tmp_path / "other")
