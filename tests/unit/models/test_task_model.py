"""Task models equal `transformers` and plain code, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

import qkv
from qkv.data.batches.batch import Batch
from qkv.data.batches.framing import Frame, TokenizedExample
from qkv.data.batches.framing import FramedExamples as Framed
from qkv.data.batches.labelled import collate
from qkv.models import BERT, BERTConfig, GPTConfig, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.convert import read_folder
from qkv.models.registry import from_json, to_json, with_weights
from qkv.models.task_model import backbone_for
from support.families import SMALL, V, lively
from support.tiny_transformers import furthest, ids, padding, randomised, saved

LABELS = ("bad", "good", "so so")
THEIR_SIZE: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_labels": 3,
}
PADDING_MASK = padding()
LAST = PADDING_MASK.sum(1, keepdim=True) - 1  # (B, 1)


def head(task: str, **choices: Any) -> HeadConfig:
    numbers = choices.pop("numbers", task in ("choice", "regress"))
    usual: dict[str, Any] = {
        "labels": () if numbers else LABELS,
        "delimiter": 2,
        "extract": 3,
        "padding": 0,
    }
    return HeadConfig(task=task, **(usual | choices))  # type: ignore[arg-type]


def task_model(family: str, task: str, **choices: Any) -> TaskModel:
    pooling = choices.setdefault("pooling", "first" if family == "bert" else "last")
    config = BERTConfig(**SMALL) if family == "bert" else GPTConfig(**SMALL)
    backbone = backbone_for(config, pooler=pooling == "first" and task != "tag")
    return lively(
        TaskModelConfig(
            backbone=backbone, head=head(task, start=1, bias=family == "bert", **choices)
        )
    )


def batch_of(model: TaskModel, *rows: list[list[int]]) -> Batch:
    """Return a batch of whole sequences, with their special tokens."""
    last = model.config.head.pooling == "last"
    written = [
        TokenizedExample(
            row,
            [len(one) // 2 for one in row],
            [len(one) - 1 if last else 0 for one in row],
            False,
            0,
        )
        for row in rows
    ]
    return collate(list(Framed(written)), Frame(**model.config.frame))


def scores(model: TaskModel, batch: Batch) -> Tensor:
    assert batch.target_positions is not None
    with torch.no_grad():
        return model(
            batch.ids,
            target_positions=batch.target_positions,
            padding_mask=batch.padding_mask,
            segments=batch.segments,
            group=batch.group,
        )


# Equal to transformers


def from_theirs(
    their_backbone: Any, config: HeadConfig, classifier: torch.nn.Linear, folder: Path
) -> TaskModel:
    backbone = read_folder(saved(their_backbone, folder))
    inner = backbone_for(backbone.config, pooler=config.pooling == "first" and config.task != "tag")  # type: ignore[arg-type]
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    selected = {f"backbone.{name}" for name in qkv.models.build(inner).state_dict()}
    separate = {f"head.{name}": tensor for name, tensor in classifier.state_dict().items()}
    built = with_weights(
        TaskModelConfig(backbone=inner, head=config), {n: weights[n] for n in selected} | separate
    )
    assert isinstance(built, TaskModel)
    return built.double().eval()


def test_classify_equals_bert_for_sequence_classification(tmp_path: Path) -> None:
    theirs = randomised(
        BertForSequenceClassification(BertConfig(**THEIR_SIZE, max_position_embeddings=16))
    )
    config = head("pair", pooling="first", bias=True, start=1)
    ours = from_theirs(theirs.bert, config, theirs.classifier, tmp_path)
    theirs = theirs.double()
    token_ids = ids(41)
    segments = (torch.arange(11) > 4).long().expand(3, 11)
    actual = ours(
        token_ids,
        target_positions=torch.zeros(3, 1, dtype=torch.long),
        padding_mask=PADDING_MASK,
        segments=segments,
    )
    expected = theirs(token_ids, attention_mask=PADDING_MASK.long(), token_type_ids=segments).logits
    assert furthest(actual[:, 0], expected) < 1e-12


def test_tag_equals_bert_for_token_classification(tmp_path: Path) -> None:
    theirs = randomised(
        BertForTokenClassification(BertConfig(**THEIR_SIZE, max_position_embeddings=16))
    )
    config = head("tag", pooling="first", bias=True, start=1)
    ours = from_theirs(theirs.bert, config, theirs.classifier, tmp_path)
    theirs = theirs.double()
    token_ids = ids(41)
    target_positions = torch.tensor([[0, 4, 10], [2, 7, 0], [3, 1, 0]])
    actual = ours(token_ids, target_positions=target_positions, padding_mask=PADDING_MASK)
    expected = theirs(token_ids, attention_mask=PADDING_MASK.long()).logits
    assert (
        furthest(
            actual,
            torch.stack([row[at] for row, at in zip(expected, target_positions, strict=True)]),
        )
        < 1e-12
    )


def test_classify_equals_llama_for_sequence_classification(tmp_path: Path) -> None:
    config = LlamaConfig(
        **THEIR_SIZE, max_position_embeddings=64, pad_token_id=0, tie_word_embeddings=True
    )
    theirs = randomised(LlamaForSequenceClassification(config))
    causal = LlamaForCausalLM(config)
    causal.model = theirs.model
    causal.tie_weights()
    ours = from_theirs(causal, head("classify"), theirs.score, tmp_path)
    theirs = theirs.double()
    token_ids = (1 + ids(40)).where(PADDING_MASK, 0)
    expected = theirs(token_ids, attention_mask=PADDING_MASK.long()).logits
    assert (
        furthest(ours(token_ids, target_positions=LAST, padding_mask=PADDING_MASK)[:, 0], expected)
        < 1e-6
    )  # their angles are float32


# Equal to plain code


def alone(model: TaskModel, sequence: list[int]) -> Tensor:
    """Return the vector of one sequence in a batch of its own: (E,)"""
    backbone = model.backbone
    pooling = model.config.head.pooling
    with torch.no_grad():
        if isinstance(backbone, BERT):
            segments = torch.arange(len(sequence)) >= len(sequence) // 2
            hidden = backbone.hidden(torch.tensor([sequence]), segments=segments.long()[None])[0]
        else:
            hidden = backbone.hidden(torch.tensor([sequence]))[0]  # (T, E)

        vector = {"mean": hidden.mean(0), "last": hidden[-1], "first": hidden[0]}[pooling]
        if isinstance(backbone, BERT) and backbone.pooler is not None:
            vector = torch.tanh(backbone.pooler.dense(vector))

    return vector


BACKBONES = [("gpt", "last"), ("gpt", "mean"), ("bert", "first"), ("bert", "mean")]
ROWS = [[1, 5, 6, 7, 2, 8, 3], [1, 9, 2, 10, 3], [1, 11, 12, 2, 4, 5, 6, 7, 8, 3]]


@pytest.mark.parametrize(("family", "pooling"), BACKBONES)
def test_a_class_depends_only_on_its_own_text(family: str, pooling: str) -> None:
    model = task_model(family, "classify", pooling=pooling)
    batch = batch_of(model, *([row] for row in ROWS))
    assert batch.padding_mask is not None, "there is padding"
    expected = torch.stack([model.head(alone(model, row)) for row in ROWS])
    torch.testing.assert_close(scores(model, batch)[:, 0], expected, rtol=0, atol=1e-12)
    changed = replace(batch, ids=batch.ids.where(batch.padding_mask, 7))
    assert torch.equal(scores(model, changed), scores(model, batch)), "padding is never read"


@pytest.mark.parametrize(("family", "pooling"), BACKBONES)
@pytest.mark.parametrize("numbers", [False, True])
def test_similarity_is_the_sum_of_both_orders(family: str, pooling: str, numbers: bool) -> None:
    model = task_model(
        family, "similarity", pooling=pooling, numbers=numbers, offset=5.0, scale=4.0
    )
    pairs = [[ROWS[0], [1, 8, 2, 5, 6, 7, 3]], [ROWS[1], [1, 10, 2, 9, 3]]]
    actual = scores(model, batch_of(model, *pairs))
    expected = torch.stack(
        [model.head(alone(model, one) + alone(model, other)) for one, other in pairs]
    )
    if numbers:
        expected = 5.0 + 4.0 * expected  # in the units of the data

    torch.testing.assert_close(actual[:, 0], expected, rtol=0, atol=1e-12)
    turned = scores(model, batch_of(model, *(pair[::-1] for pair in pairs)))
    torch.testing.assert_close(turned, actual, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("family", "pooling"), BACKBONES)
def test_choices_are_independent_and_an_absent_one_is_never_chosen(
    family: str, pooling: str
) -> None:
    model = task_model(family, "choice", pooling=pooling)
    rows = [[ROWS[0], ROWS[1], ROWS[2]], [ROWS[2], ROWS[0]]]
    actual = scores(model, batch_of(model, *rows))
    assert actual.shape == (2, 1, 3)
    for row, sequences in enumerate(rows):
        expected = torch.cat([model.head(alone(model, sequence)) for sequence in sequences])
        torch.testing.assert_close(actual[row, 0, : len(sequences)], expected, rtol=0, atol=1e-12)

    assert actual[1, 0, 2] == -torch.inf
    assert actual.softmax(-1)[1, 0, 2] == 0


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_tag_is_of_its_word(family: str) -> None:
    model = task_model(family, "tag")
    segments = (
        {"segments": torch.zeros(1, len(ROWS[0]), dtype=torch.long)} if family == "bert" else {}
    )
    with torch.no_grad():
        expected = model.head(
            model.backbone.hidden(torch.tensor([ROWS[0]]), **segments)[0]
        )  # (T, C)

    written = [
        TokenizedExample([row], [len(row)], target_positions, False, 0)
        for row, target_positions in zip(ROWS, [[1, 3], [1], [2]], strict=True)
    ]
    actual = scores(model, collate(list(Framed(written)), Frame(**model.config.frame)))
    torch.testing.assert_close(actual[0, :2], expected[[1, 3]], rtol=0, atol=1e-12)


def test_a_number_is_in_the_units_of_the_data() -> None:
    model = task_model("gpt", "regress", offset=-3.0, scale=0.5)
    actual = scores(model, batch_of(model, *([row] for row in ROWS)))
    expected = torch.stack([-3.0 + 0.5 * model.head(alone(model, row)) for row in ROWS])
    torch.testing.assert_close(actual[:, 0], expected, rtol=0, atol=1e-12)
    assert (
        model.float()(torch.tensor([ROWS[0]]), target_positions=torch.tensor([[6]])).dtype
        == torch.float64
    )


def test_the_head_has_dropout_in_training_only() -> None:
    model = task_model("gpt", "classify", dropout=0.5)
    batch = batch_of(model, [ROWS[0]])
    model.train()
    assert not torch.equal(scores(model, batch), scores(model, batch))
    model.eval()
    assert torch.equal(scores(model, batch), scores(model, batch))


# Saving


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("task", ["classify", "similarity", "choice", "tag", "regress"])
def test_saved_and_loaded_it_is_the_same(family: str, task: str, tmp_path: Path) -> None:
    model = task_model(family, task, offset=1.5, scale=2.0).float()
    assert from_json(to_json(model.config)) == model.config
    qkv.save(model, tmp_path / "model")
    again = qkv.load(tmp_path / "model").model
    assert isinstance(again, TaskModel)
    assert again.config == model.config
    mine = model.state_dict()
    theirs = again.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


# Errors


@pytest.mark.parametrize(
    ("choices", "output"),
    [
        ({"labels": ("a",)}, "labels: .*two classes"),
        ({"labels": ("a", "a")}, "labels: .*twice"),
        ({"dropout": 1.5}, "dropout: "),
        (
            {"task": "regress", "labels": ("a", "b")},
            "labels: .*no classes",
        ),
        ({"task": "sing"}, "task: "),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_wrong_head_config(choices: dict[str, Any], output: str) -> None:
    usual = {"task": "classify", "labels": LABELS, "delimiter": 2, "extract": 3, "padding": 0}
    with pytest.raises(ValueError, match=f"^{output}"):
        HeadConfig(**(usual | choices))


def test_a_backbone_that_does_not_fit() -> None:
    backbone = GPTConfig(**SMALL)
    with pytest.raises(ValueError, match=r"^pooling: .*causal"):
        TaskModelConfig(backbone=backbone, head=head("classify", pooling="first"))

    with pytest.raises(ValueError, match=r"^memory: "):
        TaskModelConfig(
            backbone=replace(backbone, memory=8, position="relative"), head=head("classify")
        )

    with pytest.raises(ValueError, match=f"^head: .*vocabulary's {V}"):
        TaskModelConfig(backbone=backbone, head=head("classify", extract=V))

    values = to_json(TaskModelConfig(backbone=backbone, head=head("classify")))
    with pytest.raises(ValueError, match=r"^backbone: .*rnn"):
        from_json(values | {"backbone": {"family": "rnn", "vocabulary": 9}})

    with pytest.raises(ValueError, match=r"^poling: .*pooling"):
        from_json(values | {"head": {"poling": "last"}})
