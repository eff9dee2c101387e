"""Small fine-tuned models of every task with random weights, and their scores computed by hand."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.models import BERT, BERTConfig, GPTConfig, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.task_model import backbone_for
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES

LABELS = ("bad", "good", "so so")
SMALL = {"width": 16, "depth": 2, "heads": 2}
ASKED: dict[str, list[tuple[str, ...]]] = {
    "classify": [
        ("the cat sat on the mat",),
        ("mice",),
        ("the teacher said the mice ran. don't they?",),
    ],
    "pair": [
        ("the cat sat", "the mice ran. the cat chases the mouse."),
        ("cats chase mice", "mice"),
    ],
    "similarity": [
        ("the cat sat", "the mice ran. the cat chases the mouse."),
        ("cats chase mice", "mice"),
    ],
    "choice": [
        ("the cat", "sat.", "ran on the mat.", "said they chase"),
        ("mice", "chases the mouse", "ran"),
    ],
    "tag": [
        ("the", "teacher", "said"),
        ("kediler",),
        ("mice", "ran", "on", "İstanbul'dan", "the", "mat"),
    ],
    "regress": [("the cat sat on the mat",), ("cats chase mice", "mice")],
}


class Small(NamedTuple):
    """A small model and its tokenizer."""

    model: TaskModel
    tokenizer: Tokenizer


def small_tuned(
    task: str, family: str, *, pooling: str | None = None, numbers: bool = False, context: int = 48
) -> Small:
    """A fine-tuned BERT or GPT with large random weights."""
    torch.manual_seed(0)
    bert = family == "bert"
    tokenizer = small_tokenizer(family)
    assert tokenizer.end is not None
    assert tokenizer.padding is not None
    size = {"vocabulary": tokenizer.vocabulary, "context": context, "dropout": 0.5, **SMALL}
    pooling = pooling or ("first" if bert else "last")
    labels = LABELS
    if numbers or task in ("choice", "regress"):
        labels = ()

    backbone = backbone_for(
        BERTConfig(**size) if bert else GPTConfig(**size),
        pooler=bert and pooling == "first" and task != "tag",
    )
    head = HeadConfig(
        task=task,
        labels=labels,
        pooling=pooling,
        bias=bert,
        start=tokenizer.start if bert else None,
        delimiter=tokenizer.end,
        extract=tokenizer.end,
        padding=tokenizer.padding,
        offset=3.0,
        scale=2.0,
    )

    model = TaskModel(TaskModelConfig(backbone=backbone, head=head))
    for weight in model.parameters():  # far from 0, so that answers differ
        torch.nn.init.normal_(weight, std=0.4)

    return Small(model.eval(), tokenizer)


def small_tokenizer(family: str) -> Tokenizer:
    if family == "gpt":
        return train("byte-pair", SENTENCES, 300)

    return train("word-piece", SENTENCES, 200)


class Reference(NamedTuple):
    """A task model in float64, one example at a time, without padding."""

    model: TaskModel
    tokenizer: Tokenizer

    @property
    def start(self) -> list[int]:
        if self.model.config.head.start is None:
            return []

        return [self.model.config.head.start]

    def hidden(self, *parts: list[int]) -> Tensor:
        """The vectors of all tokens: (T, E)."""
        head = self.model.config.head
        ids = list(self.start)
        segments = [0] * len(ids)

        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            ids += [*part, head.extract if last else head.delimiter]
            segments += [number] * (len(part) + 1)

        row = torch.tensor([ids])
        if isinstance(self.model.backbone, BERT):
            return self.model.backbone.hidden(row, segments=torch.tensor([segments]))[0]

        return self.model.backbone.hidden(row)[0]

    def pooled(self, *parts: list[int]) -> Tensor:
        """The vector of a text or pair: (E,)."""
        hidden = self.hidden(*parts)
        vectors = {"last": hidden[-1], "first": hidden[0], "mean": hidden.mean(0)}
        vector = vectors[self.model.config.head.pooling]
        if isinstance(self.model.backbone, BERT) and self.model.backbone.pooler is not None:
            return torch.tanh(self.model.backbone.pooler.dense(vector))

        return vector

    def head(self, vectors: Tensor) -> Tensor:
        """(..., E) -> (..., C)"""
        scores = vectors @ self.model.head.weight.T
        if self.model.head.bias is not None:
            scores = scores + self.model.head.bias

        return scores

    def tags(self, words: tuple[str, ...]) -> Tensor:
        """The scores of each word at its first or last token: (N, C)."""
        ids: list[int] = []
        positions = []

        for number, word in enumerate(words):
            pieces = self.tokenizer.encode(" " * (number > 0) + word)
            position = len(self.start) + len(ids)
            if self.model.config.head.pooling == "last":
                position += len(pieces) - 1

            positions.append(position)
            ids += pieces

        return self.head(self.hidden(ids)[positions])


def alone(small: Small, texts: tuple[str, ...]) -> Tensor:
    """The scores of one example, by hand in float64: (C,), (G,), (N, C) or ()."""
    model = TaskModel(small.model.config).double().eval()
    weights = small.model.state_dict()
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    reference = Reference(model, small.tokenizer)
    head = model.config.head

    with torch.no_grad():
        if head.task == "tag":
            return reference.tags(texts)

        ids = [small.tokenizer.encode(text) for text in texts]
        if head.task == "choice":
            context, *choices = ids
            scores = [reference.head(reference.pooled(context, choice)) for choice in choices]
            return torch.cat(scores)

        vector = reference.pooled(*ids)
        if head.task == "similarity":
            vector = vector + reference.pooled(*reversed(ids))

        scores = reference.head(vector)
        if head.numbers:
            return head.offset + head.scale * scores[0]

        return scores
