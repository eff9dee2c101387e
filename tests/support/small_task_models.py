"""Small fine-tuned models of every task, with random weights, and what each should say, worked out
by hand.
"""

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
    model: TaskModel
    tokenizer: Tokenizer


def small_tuned(
    task: str, family: str, *, pooling: str | None = None, numbers: bool = False, context: int = 48
) -> Small:
    torch.manual_seed(0)
    tokenizer = (
        train("byte-pair", SENTENCES, 300)
        if family == "gpt"
        else train("word-piece", SENTENCES, 200)
    )
    bert = family == "bert"
    pooling = pooling or ("first" if bert else "last")
    assert tokenizer.end is not None
    assert tokenizer.padding is not None
    size = {"vocabulary": tokenizer.vocabulary, "context": context, "dropout": 0.5, **SMALL}
    backbone = backbone_for(
        BERTConfig(**size) if bert else GPTConfig(**size),
        pooler=bert and pooling == "first" and task != "tag",
    )
    head = HeadConfig(
        task=task, labels=() if numbers or task in ("choice", "regress") else LABELS, pooling=pooling, bias=bert,
        start=tokenizer.start if bert else None, delimiter=tokenizer.end, extract=tokenizer.end,
        padding=tokenizer.padding, offset=3.0, scale=2.0,
    )  # fmt: skip
    model = TaskModel(TaskModelConfig(backbone=backbone, head=head))
    for weight in model.parameters():  # far from 0, so that answers differ
        torch.nn.init.normal_(weight, std=0.4)
    return Small(model.eval(), tokenizer)


def alone(small: Small, texts: tuple[str, ...]) -> Tensor:
    """The scores of one example in float64, from the body's vectors and the head's matrix: (C,),
    (G,), (N, C) or ().
    """
    model, tokenizer = small
    model = TaskModel(model.config).double().eval()
    model.load_state_dict(
        {name: weight.double() for name, weight in small.model.state_dict().items()}
    )
    head = model.config.head
    weight, bias = model.head.weight, 0.0 if model.head.bias is None else model.head.bias
    start = [] if head.start is None else [head.start]

    def hidden(*parts: list[int]) -> Tensor:
        """(T, E)"""
        ids, segments = list(start), [0] * len(start)
        for number, part in enumerate(parts):
            ids += [*part, head.extract if number == len(parts) - 1 else head.delimiter]
            segments += [number] * (len(part) + 1)
        row = torch.tensor([ids])
        if isinstance(model.backbone, BERT):
            return model.backbone.hidden(row, segments=torch.tensor([segments]))[0]
        return model.backbone.hidden(row)[0]

    def vector(*parts: list[int]) -> Tensor:
        """(E,)"""
        of_words = hidden(*parts)
        found = {"last": of_words[-1], "first": of_words[0], "mean": of_words.mean(0)}[head.pooling]
        if isinstance(model.backbone, BERT) and model.backbone.pooler is not None:
            found = torch.tanh(model.backbone.pooler.dense(found))
        return found

    with torch.no_grad():
        if head.task == "tag":
            pieces = [
                tokenizer.encode(" " * (place > 0) + word) for place, word in enumerate(texts)
            ]
            of_words, target_positions, at = (
                hidden([id for each in pieces for id in each]),
                [],
                len(start),
            )
            for each in pieces:
                target_positions.append(at + len(each) - 1 if head.pooling == "last" else at)
                at += len(each)
            return of_words[target_positions] @ weight.T + bias
        ids = [tokenizer.encode(text) for text in texts]
        if head.task == "choice":
            return torch.cat([vector(ids[0], choice) @ weight.T + bias for choice in ids[1:]])
        read = vector(*ids) + vector(*ids[::-1]) if head.task == "similarity" else vector(*ids)
        scores = read @ weight.T + bias
        return head.offset + head.scale * scores[0] if head.numbers else scores
