"""Every head put out one by one, in whole forward passes: the fast way must find the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.sources.examples import Example
from qkv.generation.generate import without_dropout
from qkv.insight.inspect import upper_layers
from qkv.insight.heads.head_ablation import ablate
from qkv.insight.heads.text_batches import batches_of_examples
from qkv.insight.inspect.capture import attention_sites
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from qkv.models.heads import pooled
from qkv.nn.hooks import add_hook, capture
from qkv.text import train
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.objective import Objective
from support.families import KINDS, bert, gpt, rnn, transformer, words
from support.sentences import SENTENCES
from support.shape_checks import unchecked


def keeps(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def next_words() -> list[Batch]:
    padded = words(3, 6)
    padding_mask = keeps(6, 4, 2)
    targets = words(3, 6).masked_fill(~padding_mask, IGNORE)
    return [
        Batch(ids=words(2, 5), targets=words(2, 5)),
        Batch(ids=padded, targets=targets, padding_mask=padding_mask),
    ]


def hidden_words() -> list[Batch]:
    places = torch.tensor([[0, 3], [2, 1]])
    return [Batch(ids=words(2, 5), targets=torch.tensor([[4, 7], [1, IGNORE]]), places=places)]


def pairs() -> list[Batch]:
    padding_mask, source_padding_mask = keeps(4, 3), keeps(3, 5)
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


def heads_of(value: Tensor, head: int, mean: Tensor | None) -> Tensor:
    value = value.clone()
    value[:, head] = 0 if mean is None else mean[head]
    return value


def naive_means(model: Any, batches: list[Batch], point: str, encoder: bool) -> Tensor:
    said = []
    for batch in batches:
        with capture(model, point) as seen:
            loss_of(model, [batch])
        padding_mask = batch.source_padding_mask if encoder else batch.padding_mask
        every = seen[point].transpose(1, 2)  # (B, T, H, D)
        said.append(every.flatten(0, 1) if padding_mask is None else every[padding_mask])
    return torch.cat(said).mean(0)  # (H, D)


def loss_of(model: Any, batches: list[Batch]) -> float:
    """As training's validation has it."""
    with torch.no_grad(), without_dropout(model), unchecked():
        if isinstance(model, TaskModel):
            objective = TaskObjective(model).eval()
            total = sum(float(objective(batch)[0]) for batch in batches)
        else:
            total = sum(float(Objective(model)(batch)) for batch in batches)
    return total / sum(batch.count for batch in batches)


def check_equal_to_naive(
    model: Any, batches: list[Batch], how: Any, tolerance: float = 1e-9
) -> None:
    found = ablate(model, batches, how)
    unchanged = loss_of(model, batches)
    assert found.unchanged == pytest.approx(unchanged, abs=tolerance)
    assert (found.measure, found.texts) == ("loss", sum(batch.rows for batch in batches))
    for place in attention_sites(model):
        assert found.change[place.kind].shape == (place.depth, place.heads)
        for layer in range(place.depth):
            point = place.hook_point(layer, "heads")
            mean = (
                naive_means(model, batches, point, place.kind == "encoder")
                if how == "mean"
                else None
            )
            for head in range(place.heads):
                with add_hook(
                    model, point, lambda value, name, h=head, m=mean: heads_of(value, h, m)
                ):
                    expected = loss_of(model, batches) - unchanged
                assert found.change[place.kind][layer, head] == pytest.approx(
                    expected, abs=tolerance
                )
                assert abs(expected) > 1e-6  # else nothing would be shown


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_gpt(how: str) -> None:
    check_equal_to_naive(gpt(depth=3), next_words(), how)


@pytest.mark.parametrize("kind", ["llama", "window of alibi", "norm after", "fixed"])
def test_kinds_of_stacks(kind: str) -> None:
    check_equal_to_naive(gpt(**KINDS[kind]), next_words(), "zero")


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_bert(how: str) -> None:
    check_equal_to_naive(bert(), hidden_words(), how)


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_translator(how: str) -> None:
    check_equal_to_naive(transformer(depth=1, decoder_depth=2), pairs(), how)


def test_transformer_xl_reads_its_segments() -> None:
    model = gpt(position="relative", memory=4, context=4)
    check_equal_to_naive(model, [Batch(ids=words(2, 7), targets=words(2, 7))], "zero")


def test_heads_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = gpt(), next_words()
    whole = ablate(model, batches).change["self"]
    monkeypatch.setattr(upper_layers, "TOKENS", 40)  # one or two of four heads at once
    np.testing.assert_allclose(ablate(model, batches).change["self"], whole, atol=1e-12)


@pytest.mark.parametrize("task", ["classify", "tag", "regress", "choice"])
def test_a_fine_tuned_model_by_its_own_loss(task: Any) -> None:
    tokenizer = train("word-piece", SENTENCES, 200)
    backbone = bert(
        vocabulary=tokenizer.vocabulary, pooler=False, next_sentence=False, mlm_head=False
    )
    labels = ("a", "b") if task in ("classify", "tag") else ()
    head = HeadConfig(task=task, labels=labels, pooling="mean" if task == "classify" else "first", start=1, delimiter=2,
                      extract=2, padding=0, scale=2.0)  # fmt: skip
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head)).double()
    model.backbone.load_state_dict(backbone.state_dict())
    torch.nn.init.normal_(model.head.weight)
    texts = [sentence.split()[:4] for sentence in SENTENCES[:3]]
    given = {
        "classify": [Example((" ".join(text),), "ab"[i % 2], "") for i, text in enumerate(texts)],
        "tag": [
            Example(tuple(text), tuple("ab"[i % 2] for i in range(len(text))), "") for text in texts
        ],
        "regress": [Example((" ".join(text),), str(i), "") for i, text in enumerate(texts)],
        "choice": [
            Example((" ".join(text), *text[:3]), str(i), "") for i, text in enumerate(texts)
        ],
    }[task]
    check_equal_to_naive(
        model, batches_of_examples(model, tokenizer, given), "zero", 1e-6
    )  # scores are float32's


def test_an_encoder_by_how_far_its_vectors_move() -> None:
    model, batches = bert(mlm_head=False), next_words()
    found = ablate(model, batches)
    assert (found.measure, found.unchanged) == ("distance", pytest.approx(0, abs=1e-12))

    def vectors() -> Tensor:
        with torch.no_grad():
            each = [
                pooled(
                    model.hidden(b.ids, padding_mask=b.padding_mask),
                    "mean",
                    b.ids[:, 0],
                    b.padding_mask,
                )
                for b in batches
            ]
            return torch.cat(each)

    right = vectors()
    for layer, head in ((0, 1), (1, 3)):
        with add_hook(
            model,
            f"stack.blocks.{layer}.attention.heads",
            lambda value, name, h=head: heads_of(value, h, None),
        ):
            expected = 1 - torch.cosine_similarity(vectors(), right).mean()
        assert found.change["self"][layer, head] == pytest.approx(float(expected), abs=1e-12)


def test_the_change_lies_in_its_interval() -> None:
    found = ablate(gpt(), next_words())
    assert all(each.low <= each.change <= each.high for each in found.ranked())


def test_the_head_that_is_missed_most_comes_first() -> None:
    found = ablate(transformer(), pairs())
    ranked = found.ranked()
    assert [each.change for each in ranked] == sorted(
        (each.change for each in ranked), reverse=True
    )
    assert len(ranked) == 3 * 2 * 4
    first = ranked[0]
    assert found.change[first.kind][first.layer, first.head] == first.change


def test_nothing_stays_changed_and_all_is_told() -> None:
    model, batches, told = gpt(dropout=0.5).train(), next_words(), []
    blocks = model.stack.blocks
    ablate(model, batches, progress=lambda done, all: told.append((done, all)))
    assert told == [(done, 4) for done in (1, 2, 3, 4)]
    assert model.stack.blocks is blocks
    assert model.training
    assert not any(getattr(part, "listeners", None) for part in model.modules())


def test_what_has_no_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="model: an RNN has one attention and no layers of heads"):
        ablate(rnn(), pairs())
    with pytest.raises(ValueError, match="batches: expected one or more"):
        ablate(gpt(), [])
    with pytest.raises(ValueError, match="batches: nothing is asked"):
        ablate(gpt(), [Batch(ids=words(1, 3), targets=torch.full((1, 3), IGNORE))])
