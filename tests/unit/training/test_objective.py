"""The objective equals the summed cross-entropy of the model's logits at the target positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models import GPT, GPTConfig, Model, build
from qkv.training.objective import Objective
from support.small_training import MODELS, SIZE, random_batch

pytestmark = pytest.mark.usefixtures("double_by_default")


def logits_of(model: Model, batch: Batch) -> Tensor:
    if batch.source is not None:
        return model(
            batch.source,
            batch.ids,
            source_padding_mask=batch.source_padding_mask,
            target_padding_mask=batch.padding_mask,
        )
    logits = model(
        batch.ids,
        padding_mask=batch.padding_mask,
        documents=batch.documents,
        positions=batch.positions,
    )
    if batch.target_positions is None:
        return logits

    rows = zip(logits, batch.target_positions, strict=True)
    return torch.stack([row_logits[positions] for row_logits, positions in rows])


def without_dropout(family: str) -> Model:
    config = replace(MODELS[family], dropout=0.0)
    if family == "gpt":
        config = replace(config, attention_dropout=0.0)

    return build(config)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("family", list(MODELS))
def test_every_family(family: str, smoothing: float) -> None:
    model = without_dropout(family)
    batch = random_batch(family)
    objective = Objective(model, smoothing=smoothing)
    ours = objective(batch)
    expected = F.cross_entropy(
        logits_of(model, batch).flatten(0, 1),
        batch.targets.flatten(),
        reduction="sum",
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(ours, expected)
    parameters = list(model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(ours, parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)


def test_packed_texts_do_not_attend_to_each_other() -> None:
    model = without_dropout("gpt")
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0]])
    ids = torch.randint(5, 64, (1, 8))
    targets = torch.randint(5, 64, (1, 8))
    together = Objective(model)(Batch(ids, targets, documents=documents, positions=positions))
    alone = sum(
        Objective(model)(Batch(ids[:, part], targets[:, part]))
        for part in (slice(0, 3), slice(3, 7), slice(7, 8))
    )
    torch.testing.assert_close(together, alone)


def test_label_smoothing_is_only_used_in_training() -> None:
    model = without_dropout("gpt")
    batch = random_batch("gpt")
    smooth = Objective(model, smoothing=0.3)
    plain = Objective(model)
    assert smooth(batch).item() != plain(batch).item()
    torch.testing.assert_close(smooth.eval()(batch), plain.eval()(batch))


def test_a_model_with_memory_reads_a_row_in_segments() -> None:
    config = GPTConfig(**SIZE, context=4, memory=4, position="relative")
    model = GPT(config)
    batch = Batch(torch.randint(5, 64, (2, 12)), torch.randint(5, 64, (2, 12)))
    state = model.start()
    expected = 0.0
    for first in (0, 4, 8):
        logits = model(batch.ids[:, first : first + 4], state=state)
        expected = expected + F.cross_entropy(
            logits.flatten(0, 1), batch.targets[:, first : first + 4].flatten(), reduction="sum"
        )
    torch.testing.assert_close(Objective(model)(batch), expected)


def test_padding_has_no_influence() -> None:
    for family in MODELS:
        model = without_dropout(family)
        batch = random_batch(family)
        other = replace(batch, ids=batch.ids.where(batch.padding_mask, 7))
        torch.testing.assert_close(Objective(model)(batch), Objective(model)(other), msg=family)
        assert (batch.targets == IGNORE).any()
