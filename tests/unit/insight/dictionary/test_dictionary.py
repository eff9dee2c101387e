"""A sparse autoencoder finds the directions that data are made of, and tells where each is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.dictionary.dictionary_training import dictionary_loss, measure, train_dictionary
from qkv.insight.dictionary.feature_texts import feature_texts
from qkv.insight.dictionary.sparse_autoencoder import DictionaryConfig, SparseAutoencoder
from qkv.insight.dictionary.token_rows import TokenVectors, token_rows, token_vectors
from qkv.nn.hooks import capture
from qkv.text import train
from support.families import bert, gpt, transformer
from support.sentences import SENTENCES


@torch.no_grad()
def test_encoding_and_loss_equal_plain_loops() -> None:
    torch.manual_seed(0)
    for sparsity in ("top-k", "relu"):
        config = DictionaryConfig(3, 5, sparsity, 2, 0)  # type: ignore[arg-type]
        autoencoder = SparseAutoencoder(config).double()
        with torch.no_grad():
            autoencoder.bias.normal_()
            autoencoder.threshold.normal_()
            autoencoder.scale.fill_(2.5)
        x = torch.randn(4, 3, dtype=torch.float64)
        total = 0.0
        for row in range(4):
            inner = [float(x[row, e]) / 2.5 - float(autoencoder.bias[e]) for e in range(3)]
            activity = []
            for f in range(5):
                score = sum(float(autoencoder.encoder[f, e]) * inner[e] for e in range(3))
                activity.append(max(0.0, score + float(autoencoder.threshold[f])))
            if sparsity == "top-k":
                least = sorted(activity)[-2]
                activity = [value if value >= least else 0.0 for value in activity]
            assert autoencoder.encode(x[row]).tolist() == pytest.approx(activity)
            for e in range(3):
                made = sum(activity[f] * float(autoencoder.directions[f, e]) for f in range(5))
                made += float(autoencoder.bias[e])
                assert float(autoencoder(x[row])[e]) == pytest.approx(2.5 * made)
                total += (made - float(x[row, e]) / 2.5) ** 2 / 4
            if sparsity == "relu":
                total += 0.3 * sum(activity) / 4
        assert float(dictionary_loss(autoencoder, x, 0.3)) == pytest.approx(total)


def sparse_data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors that are sums of 2 of 12 directions in 8 dimensions."""
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(12, 8, generator=generator)
    directions /= directions.norm(dim=1, keepdim=True)
    active = torch.rand(count, 12, generator=generator).argsort(1)[:, :2]
    size = 1 + torch.rand(count, 2, generator=generator)
    return (directions[active] * size.unsqueeze(-1)).sum(1), directions


@pytest.mark.parametrize("sparsity", ["top-k", "relu"])
def test_training_explains_variance(sparsity: str, tmp_path: Path) -> None:
    vectors, directions = sparse_data(1500)
    options = {"features": 24, "active": 2, "penalty": 0.05, "learning_rate": 1e-2}
    result = train_dictionary(vectors, sparsity=sparsity, steps=400, **options)  # type: ignore[arg-type]
    again = train_dictionary(vectors, sparsity=sparsity, steps=5, **options)  # type: ignore[arg-type]
    same = train_dictionary(vectors, sparsity=sparsity, steps=5, **options)  # type: ignore[arg-type]
    assert_close(again.autoencoder.directions, same.autoencoder.directions, atol=0, rtol=0)
    assert result.measures.variance_explained > 0.8
    assert result.measures.losses[-1] < result.measures.losses[0]
    lengths = result.autoencoder.directions.norm(dim=1)
    assert_close(lengths, torch.ones(24))
    if sparsity == "top-k":
        assert result.measures.active <= 2
        found = (directions @ result.autoencoder.directions.detach().T).amax(1)
        assert float(found.median()) > 0.9  # most directions of the data are features

    held_out = torch.arange(1500) % 10 == 9
    with torch.no_grad():
        made = result.autoencoder(vectors)
        ever = (result.autoencoder.encode(vectors) > 0).any(0)
    chosen = vectors[held_out]
    spread = (chosen - chosen.mean(0)).square().sum()
    expected = 1 - float((made[held_out] - chosen).square().sum() / spread)
    assert result.measures.variance_explained == pytest.approx(expected, abs=1e-5)
    assert result.measures.dead == pytest.approx(1 - float(ever.float().mean()))

    result.autoencoder.save(tmp_path / "file")
    loaded = SparseAutoencoder.load(tmp_path / "file")
    assert loaded.config == result.autoencoder.config
    assert measure(loaded, vectors, held_out)[:3] == result.measures[:3]


def test_vectors_are_those_of_the_model() -> None:
    tokenizer = train("words", SENTENCES, 13)
    for model in (gpt().float(), bert().float()):
        rows = token_rows(model, tokenizer, [*SENTENCES[:3], "", "the"])
        found = token_vectors(model, tokenizer, rows, 1)
        with torch.no_grad(), capture(model, "stack.blocks.1.after") as seen:
            model(torch.tensor([rows[1]]))
        for number, (row, position) in enumerate(found.places):
            assert position > 0
            assert rows[row][position] not in tokenizer.special
            if row == 1:
                assert_close(
                    found.vectors[number],
                    seen["stack.blocks.1.after"][0, position],
                    atol=1e-4,
                    rtol=1e-4,
                )


def test_the_strongest_texts_of_a_feature() -> None:
    config = DictionaryConfig(2, 2, "relu", 1, 0)
    autoencoder = SparseAutoencoder(config)
    with torch.no_grad():
        autoencoder.encoder.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    rows = [[5, 6, 7], [8, 9], [4, 3]]
    places = [(0, 1), (0, 2), (1, 1), (2, 1)]
    vectors = torch.tensor([[1.0, 1.0], [3.0, 1.0], [2.0, 1.0], [-1.0, 1.0]])
    (feature,) = feature_texts(autoencoder, TokenVectors(vectors, places), rows)  # 1 is dead
    assert feature.number == 0
    assert feature.frequency == 0.75
    assert [text.ids for text in feature.texts] == [(5, 6, 7), (8, 9)]
    assert feature.texts[0].activity == (0.0, 1.0, 3.0)
    assert feature.texts[0].at == 2


def test_bad_input(tmp_path: Path) -> None:
    tokenizer = train("words", SENTENCES, 13)
    with pytest.raises(ValueError, match=r"expected a GPT or a BERT"):
        token_rows(transformer(), tokenizer, SENTENCES)
    with pytest.raises(ValueError, match=r"layer: expected 0 to 1, not 2"):
        token_vectors(gpt(), tokenizer, [[1, 2, 3]], 2)
    with pytest.raises(ValueError, match=r"data: expected 20 tokens or more, not 3"):
        train_dictionary(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"active: expected 1 or more, not 0"):
        train_dictionary(torch.zeros(30, 2), active=0)
    (tmp_path / "other").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"expected a sparse autoencoder"):
        SparseAutoencoder.load(tmp_path / "other")
