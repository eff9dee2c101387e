"""Ablation equals whole forward passes with one head switched off at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.sources.examples import Example
from qkv.generation.generate import without_dropout
from qkv.insight.heads.head_ablation import ablate
from qkv.insight.heads.text_batches import batches_from_examples
from qkv.insight.inspect import upper_layers
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from qkv.models.heads import pooled
from qkv.models.sites import attention_sites
from qkv.nn.hooks import add_hook, capture, has_hooks
from qkv.text import train
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.objective import Objective
from support.families import KINDS, bert, gpt, rnn, transformer, words
from support.sentences import SENTENCES
from support.shape_checks import unchecked


def padding_masks(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def next_tokens() -> list[Batch]:
    padded = words(3, 6)
    padding_mask = padding_masks(6, 4, 2)
    targets = words(3, 6).masked_fill(~padding_mask, IGNORE)
    return [
        Batch(ids=words(2, 5), targets=words(2, 5)),
        Batch(ids=padded, targets=targets, padding_mask=padding_mask),
    ]


def masked_tokens() -> list[Batch]:
    positions = torch.tensor([[0, 3], [2, 1]])
    targets = torch.tensor([[4, 7], [1, IGNORE]])
    return [Batch(ids=words(2, 5), targets=targets, target_positions=positions)]


def pairs() -> list[Batch]:
    padding_mask, source_padding_mask = padding_masks(4, 3), padding_masks(3, 5)
    targets = words(2, 4).masked_fill(~padding_mask, IGNORE)
    return [
        Batch(
            ids=words(2, 4),
            targets=targets,
            padding_mask=padding_mask,
            source=words(2, 5),
            source_padding_mask=source_padding_mask,
        ),
        Batch(ids=words(1, 3), targets=words(1, 3), source=words(1, 2)),
    ]


def without_head(value: Tensor, head: int, mean: Tensor | None) -> Tensor:
    value = value.clone()
    value[:, head] = 0 if mean is None else mean[head]
    return value


def mean_heads(model: Any, batches: list[Batch], point: str, encoder: bool) -> Tensor:
    """The mean output of each head over all tokens."""
    outputs = []
    for batch in batches:
        with capture(model, point) as captured:
            loss_of(model, [batch])
        padding_mask = batch.source_padding_mask if encoder else batch.padding_mask
        heads = captured[point].transpose(1, 2)  # (B, T, H, D)
        outputs.append(heads.flatten(0, 1) if padding_mask is None else heads[padding_mask])
    return torch.cat(outputs).mean(0)  # (H, D)


def loss_of(model: Any, batches: list[Batch]) -> float:
    """The loss as validation computes it."""
    with torch.no_grad(), without_dropout(model), unchecked():
        if isinstance(model, TaskModel):
            objective = TaskObjective(model).eval()
            total = sum(float(objective(batch)[0]) for batch in batches)
        else:
            total = sum(float(Objective(model)(batch)) for batch in batches)
    return total / sum(batch.count for batch in batches)


def check_every_head(model: Any, batches: list[Batch], how: Any, tolerance: float = 1e-9) -> None:
    result = ablate(model, batches, how)
    unchanged = loss_of(model, batches)
    assert result.unchanged == pytest.approx(unchanged, abs=tolerance)
    assert (result.measure, result.texts) == ("loss", sum(batch.rows for batch in batches))
    for site in attention_sites(model):
        assert result.change[site.kind].shape == (site.depth, site.heads)
        for layer in range(site.depth):
            point = site.hook_point(layer, "heads")
            mean = None
            if how == "mean":
                mean = mean_heads(model, batches, point, site.kind == "encoder")
            for head in range(site.heads):
                with add_hook(
                    model, point, lambda value, name, h=head, m=mean: without_head(value, h, m)
                ):
                    expected = loss_of(model, batches) - unchanged
                change = result.change[site.kind][layer, head]
                assert change == pytest.approx(expected, abs=tolerance)
                assert abs(expected) > 1e-6  # else the test would prove nothing


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_gpt(how: str) -> None:
    check_every_head(gpt(depth=3), next_tokens(), how)


@pytest.mark.parametrize("kind", ["llama", "window of alibi", "norm after", "fixed"])
def test_kinds_of_stacks(kind: str) -> None:
    check_every_head(gpt(**KINDS[kind]), next_tokens(), "zero")


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_bert(how: str) -> None:
    check_every_head(bert(), masked_tokens(), how)


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_translator(how: str) -> None:
    check_every_head(transformer(depth=1, decoder_depth=2), pairs(), how)


def test_the_segments_of_transformer_xl() -> None:
    model = gpt(position="relative", memory=4, context=4)
    check_every_head(model, [Batch(ids=words(2, 7), targets=words(2, 7))], "zero")


def test_heads_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = gpt(), next_tokens()
    whole = ablate(model, batches).change["self"]
    monkeypatch.setattr(upper_layers, "TOKENS", 40)  # one or two of four heads at once
    np.testing.assert_allclose(ablate(model, batches).change["self"], whole, atol=1e-12)


@pytest.mark.parametrize("task", ["classify", "tag", "regress", "choice"])
def test_the_loss_of_a_task_model(task: Any) -> None:
    tokenizer = train("word-piece", SENTENCES, 200)
    backbone = bert(
        vocabulary=tokenizer.vocabulary, pooler=False, next_sentence=False, mlm_head=False
    )
    labels = ("a", "b") if task in ("classify", "tag") else ()
    head = HeadConfig(
        task=task,
        labels=labels,
        pooling="mean" if task == "classify" else "first",
        start=1,
        delimiter=2,
        extract=2,
        padding=0,
        scale=2.0,
    )
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head)).double()
    model.backbone.load_state_dict(backbone.state_dict())
    torch.nn.init.normal_(model.head.weight)
    texts = [sentence.split()[:4] for sentence in SENTENCES[:3]]
    examples = {
        "classify": [Example((" ".join(text),), "ab"[i % 2], "") for i, text in enumerate(texts)],
        "tag": [
            Example(tuple(text), tuple("ab"[i % 2] for i in range(len(text))), "") for text in texts
        ],
        "regress": [Example((" ".join(text),), str(i), "") for i, text in enumerate(texts)],
        "choice": [
            Example((" ".join(text), *text[:3]), str(i), "") for i, text in enumerate(texts)
        ],
    }[task]
    # The scores are float32.
    check_every_head(model, batches_from_examples(model, tokenizer, examples), "zero", 1e-6)


def test_an_encoder_without_a_loss_is_measured_by_distance() -> None:
    model, batches = bert(mlm_head=False), next_tokens()
    result = ablate(model, batches)
    assert (result.measure, result.unchanged) == ("distance", pytest.approx(0, abs=1e-12))

    def vectors() -> Tensor:
        with torch.no_grad():
            parts = []
            for batch in batches:
                hidden = model.hidden(batch.ids, padding_mask=batch.padding_mask)
                parts.append(pooled(hidden, "mean", batch.ids[:, 0], batch.padding_mask))
            return torch.cat(parts)

    unchanged = vectors()
    for layer, head in ((0, 1), (1, 3)):
        with add_hook(
            model,
            f"stack.blocks.{layer}.attention.heads",
            lambda value, name, h=head: without_head(value, h, None),
        ):
            expected = 1 - torch.cosine_similarity(vectors(), unchanged).mean()
        assert result.change["self"][layer, head] == pytest.approx(float(expected), abs=1e-12)


def test_the_change_lies_in_its_interval() -> None:
    result = ablate(gpt(), next_tokens())
    assert all(head.low <= head.change <= head.high for head in result.ranked())


def test_the_most_important_head_comes_first() -> None:
    result = ablate(transformer(), pairs())
    ranked = result.ranked()
    changes = [head.change for head in ranked]
    assert changes == sorted(changes, reverse=True)
    assert len(ranked) == 3 * 2 * 4
    first = ranked[0]
    assert result.change[first.kind][first.layer, first.head] == first.change


def test_the_model_is_unchanged_and_progress_is_reported() -> None:
    model = gpt(dropout=0.5).train()
    calls: list[tuple[int, int]] = []
    blocks = model.stack.blocks
    ablate(model, next_tokens(), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert model.stack.blocks is blocks
    assert model.training
    assert not has_hooks(model)


def test_invalid_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model: .*RNN"):
        ablate(rnn(), pairs())
    with pytest.raises(ValueError, match=r"batches: .*one or more"):
        ablate(gpt(), [])
    with pytest.raises(ValueError, match=r"batches: .*no targets"):
        ablate(gpt(), [Batch(ids=words(1, 3), targets=torch.full((1, 3), IGNORE))])
