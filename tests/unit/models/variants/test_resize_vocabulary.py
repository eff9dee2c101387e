"""A larger vocabulary leaves the rows of the old tokens unchanged, to the bit."""

from __future__ import annotations

import pytest
import torch

from qkv.models.variants.resize_vocabulary import with_vocabulary
from support.families import V, bert, gpt, words


@pytest.mark.parametrize(
    "make", [gpt, lambda: gpt(tied=False), bert], ids=["gpt", "untied", "bert"]
)
def test_old_rows_stay_the_same(make: object) -> None:
    model = make()  # type: ignore[operator]
    grown = with_vocabulary(model, V + 3)
    assert (grown.config.vocabulary, grown.training) == (V + 3, model.training)
    ids = words(2, 7)
    with torch.no_grad():
        old = model(ids)
        new = grown(ids)

    assert new.shape == (2, 7, V + 3)
    torch.testing.assert_close(new[..., :V], old, rtol=0, atol=1e-12)
    before = model.state_dict()
    after = grown.state_dict()
    assert all(torch.equal(after[name][: len(before[name])], before[name]) for name in before)


def test_new_rows_have_the_statistics_of_the_old_ones() -> None:
    model = gpt(width=64, head_width=16)
    rows = with_vocabulary(model, V + 200).embedding.token.weight[V:]
    old = model.embedding.token.weight
    assert (rows.mean() - old.mean()).abs() < 0.05
    assert (rows.std() / old.std() - 1).abs() < 0.1
    assert torch.cdist(rows, rows).fill_diagonal_(1).min() > 0.1


def test_the_seed_decides_the_new_rows() -> None:
    model = gpt()
    one, same, other = (
        with_vocabulary(model, V + 1, seed).embedding.token.weight for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_as_large_as_before_or_smaller() -> None:
    model = gpt()
    assert with_vocabulary(model, V) is model
    with pytest.raises(
        ValueError, match=rf"^vocabulary: expected at least the model's {V}, not {V - 1}"
    ):
        with_vocabulary(model, V - 1)
