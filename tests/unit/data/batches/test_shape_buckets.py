"""Shape buckets: few shapes, and padding that changes neither loss nor gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.shape_buckets import LENGTHS, ROWS, bucket_size, pad_to_bucket
from qkv.models import RNNConfig, TransformerConfig, build
from qkv.training.objective import Objective

SMALL: dict[str, Any] = {"vocabulary": 40, "width": 8, "dropout": 0.0}
MODELS = {
    "transformer": TransformerConfig(**SMALL, depth=2, heads=2),
    "rotary": TransformerConfig(**SMALL, depth=1, heads=2, position="rotary"),
    "alibi": TransformerConfig(**SMALL, depth=1, heads=2, position="alibi"),
    "sparse": TransformerConfig(**SMALL, depth=1, heads=2, sparse="strided", stride=4),
    "gru": RNNConfig(**SMALL),
    "lstm": RNNConfig(**SMALL, cell="lstm", attention="general"),
    "no attention": RNNConfig(**SMALL, attention="none"),
}


def pairs(rows: int, S: int, T: int, *, full: bool = False) -> Batch:
    """Pairs of random lengths; with `full`, rows without padding."""

    def side(length: int) -> tuple[Tensor, Tensor]:
        lengths = torch.randint(1, length + 1, (rows,))
        lengths[0] = length
        if full:
            lengths[:] = length

        mask = torch.arange(length) < lengths.unsqueeze(1)
        return torch.randint(1, 40, (rows, length)) * mask, mask

    source, source_mask = side(S)
    ids, mask = side(T)
    targets = torch.randint(40, ids.shape).masked_fill(~mask, IGNORE)
    batch = Batch(
        ids=ids, targets=targets, padding_mask=mask, source=source, source_padding_mask=source_mask
    )
    if full:
        return replace(batch, padding_mask=None, source_padding_mask=None)

    return batch


def test_sizes_grow_by_a_fraction_and_are_few() -> None:
    sizes = [bucket_size(size, LENGTHS) for size in range(1, 1025)]
    for size, bucket in enumerate(sizes, start=1):
        assert size <= bucket < size * (1 + 1 / LENGTHS)
        assert bucket_size(bucket, LENGTHS) == bucket

    assert sizes[:20] == [*range(1, 17), 18, 18, 20, 20]
    assert len(set(sizes)) == 16 + 6 * LENGTHS


@pytest.mark.parametrize("full", [False, True])
def test_a_padded_batch_has_the_shape_of_its_bucket_and_the_counts_it_had(full: bool) -> None:
    batch = pairs(45, 17, 11, full=full)
    padded = pad_to_bucket(batch)
    assert padded.ids.shape == padded.targets.shape == (bucket_size(45, ROWS), 18)
    assert padded.source is not None
    assert padded.source.shape == padded.ids.shape
    assert padded.padding_mask is None
    assert (padded.count, padded.tokens) == (batch.count, batch.tokens)

    # Every row has a token to attend to; the padding has no targets.
    mask = padded.source_padding_mask
    assert mask is not None
    assert mask.any(1).all()
    assert not mask[45:, 1:].any()
    assert (padded.targets[45:] == IGNORE).all()
    assert (padded.targets[:, 11:] == IGNORE).all()
    assert torch.equal(padded.targets[:45, :11], batch.targets)


def test_a_batch_is_not_longer_than_the_context() -> None:
    batch = pairs(4, 17, 11)
    assert pad_to_bucket(batch, longest=17).ids.shape == (4, 17)
    assert pad_to_bucket(batch, longest=100).ids.shape == (4, 18)


def test_a_padded_batch_stays_as_it_is() -> None:
    padded = pad_to_bucket(pairs(45, 17, 11))
    assert pad_to_bucket(padded) is padded
    assert pad_to_bucket(pairs(4, 8, 8)).padding_mask is None


def test_batches_without_a_source_stay_as_they_are() -> None:
    batch = Batch(ids=torch.ones(3, 5, dtype=torch.int64), targets=torch.ones(3, 5).long())
    assert pad_to_bucket(batch) is batch


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", list(MODELS))
def test_padding_to_a_bucket_changes_neither_loss_nor_gradients(name: str, full: bool) -> None:
    torch.manual_seed(0)
    model = build(MODELS[name]).double().train()
    objective = Objective(model, smoothing=0.1)
    batch = pairs(45, 19, 11, full=full)
    losses = []
    gradients = []
    for variant in (batch, pad_to_bucket(batch)):
        model.zero_grad(set_to_none=True)
        loss = objective(variant)
        loss.backward()
        losses.append(loss.detach())
        gradients.append([weight.grad for weight in model.parameters()])

    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=1e-12)
    for found, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
