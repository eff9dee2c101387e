"""Small GPTs and BERTs of the grammar's English: pre-training, and tasks with few labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.framing import Frame
from qkv.data.batches.labelled import LabelledData
from qkv.data.batches.labels import label_targets
from qkv.data.embedded import turkish
from qkv.data.embedded.everyday_english import GAP, masked_clues
from qkv.data.embedded.grammar_labels import LabelKind, labelled_sentences
from qkv.data.sources.examples import Example
from qkv.data.sources.named import register_source
from qkv.lab.experiment import Cell
from qkv.lab.fit import Fitted, fit, fit_text
from qkv.models import BERTConfig, GPTConfig, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.model import Model
from qkv.models.task_model import backbone_for
from qkv.text import Tokenizer
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.run_config import DataConfig

SENTENCES = 40_000
"""Sentences to pre-train on; the grammar has three times as many."""


@register_source("grammar", "texts")
def grammar_texts(split: turkish.Split) -> list[str]:
    """The English of the grammar, one sentence a text."""
    return [english for english, _ in turkish.pairs(split)[:SENTENCES]]


def pretrain(family: str, cell: Cell, steps: int, data: str = "grammar", **options: Any) -> Fitted:
    """A GPT or a BERT that has read sentences of the grammar; with 0 steps its initial weights."""
    size = cell.size
    sizes = {"width": size.width, "depth": size.depth, "heads": 4, "context": 64}
    config: GPTConfig | BERTConfig = GPTConfig(**sizes)
    if family == "BERT":
        config = BERTConfig(**sizes, norm_placement="before")

    # Words attend within their sentence; a BERT predicts a fifth of them.
    words = DataConfig(data=(data,), tokenizer="words", across_documents=False, mask_rate=0.2)
    return fit_text(
        config, words, steps, seed=cell.seed, device=cell.device,
        batch_tokens=size.batch_tokens, rate=3e-3, **options,
    )  # fmt: skip


def tuned_accuracy(
    fitted: Fitted, kind: LabelKind, count: int, cell: Cell, *, frozen: bool = False
) -> float:
    """Train a new head, and the body unless it is frozen, on a few labels; accuracy on new pairs.

    No noun of a test sentence occurs with its verb in the labelled examples.
    """
    sentences = labelled_sentences(kind, "train")
    draw = torch.Generator().manual_seed(cell.seed)
    chosen = torch.randperm(len(sentences), generator=draw)[:count].tolist()
    labels = tuple(sorted({label for _, label in sentences}))

    model = task_model(fitted, labels, cell)
    if frozen:
        model.backbone.requires_grad_(False)

    objective = TaskObjective(model)
    training = labelled_data(fitted, model, [sentences[index] for index in chosen], cell.seed)
    fit(
        model, training.batch, cell.size.tuning_steps, rate=1e-2 if frozen else 2e-3,
        loss=lambda batch: objective(batch.to(cell.device)) / batch.count,
    )  # fmt: skip

    held_out = labelled_data(fitted, model, labelled_sentences(kind, "test"), cell.seed)
    return held_out_accuracy(model, held_out, cell.device)


def task_model(fitted: Fitted, labels: Sequence[str], cell: Cell) -> TaskModel:
    """The body with its weights, and a new head on the mean of its vectors."""
    tokenizer = fitted.task.tokenizer
    assert tokenizer.end is not None
    head = HeadConfig(
        task="classify", labels=tuple(labels), pooling="mean", bias=True, dropout=0.0,
        delimiter=tokenizer.end, extract=tokenizer.end, padding=tokenizer.padding or 0,
    )  # fmt: skip
    backbone = backbone_for(fitted.task.config, pooler=False)  # type: ignore[arg-type]
    torch.manual_seed(cell.seed)
    model = TaskModel(TaskModelConfig(backbone=backbone, head=head))
    model.backbone.load_state_dict(fitted.model.state_dict(), strict=False)
    return model.to(cell.device)


def labelled_data(
    fitted: Fitted, model: TaskModel, sentences: Sequence[tuple[str, str]], seed: int
) -> LabelledData:
    """Sentences and labels as batches of 32."""
    examples = [Example((text,), label, "grammar") for text, label in sentences]
    frame = Frame(**model.config.frame)
    framed = frame.encode(fitted.task.tokenizer, examples)
    targets = label_targets(examples, model.config.head.labels, "classify")
    return LabelledData(framed, targets, None, frame, rows=32, seed=seed)


@torch.no_grad()
def held_out_accuracy(model: TaskModel, data: LabelledData, device: torch.device) -> float:
    """The fraction of sentences with the right label."""
    right = 0
    for batch in data.ordered():
        batch = batch.to(device)
        scores = model(
            batch.ids, target_positions=batch.target_positions, padding_mask=batch.padding_mask
        )
        right += int((scores.argmax(-1) == batch.targets).sum())

    return right / len(data.framed)


def accuracy_by_words_after(
    model: Model, tokenizer: Tokenizer, sentences: Sequence[str]
) -> dict[int, float]:
    """Hide each word but the first in turn; accuracy by the words after it (5: five or more)."""
    device = next(model.parameters()).device
    right = dict.fromkeys(range(6), 0)
    hidden = dict.fromkeys(range(6), 0)
    by_length: dict[int, list[list[int]]] = {}
    for ids in tokenizer.encode_batch(list(sentences)):
        by_length.setdefault(len(ids), []).append(ids)

    for length, rows in by_length.items():
        words = torch.tensor(rows, device=device)  # (N, T)
        for place in range(1, length):
            best = gap_logits(model, tokenizer, words, place).argmax(-1)
            after = min(length - 1 - place, 5)
            right[after] += int((best == words[:, place]).sum())
            hidden[after] += len(rows)

    return {after: right[after] / max(1, hidden[after]) for after in right}


def clues_filled(model: Model, tokenizer: Tokenizer) -> dict[str, float]:
    """The fraction of the hand-made gaps filled with a word that fits, by where the clue is."""
    found: dict[str, list[float]] = {}
    device = next(model.parameters()).device
    for clue in masked_clues():
        before, after = map(tokenizer.encode, clue.text.split(GAP))
        ids = torch.tensor([[*before, tokenizer.mask, *after]], device=device)
        best = int(gap_logits(model, tokenizer, ids, len(before)).argmax())
        fits = tokenizer.decode([best]).strip() in clue.answers
        found.setdefault(f"clue {clue.clue}", []).append(float(fits))

    return {where: sum(hits) / len(hits) for where, hits in found.items()}


@torch.no_grad()
def gap_logits(
    model: Model, tokenizer: Tokenizer, ids: Int[Tensor, "N T"], place: int
) -> Float[Tensor, "N V"]:
    """Logits of the word at a place: a BERT reads [mask] there, a GPT only what stands before."""
    if model.predicts == "next":
        return model(ids[:, :place])[:, -1]

    assert tokenizer.mask is not None
    shown = F.pad(ids, (0, 1), value=tokenizer.end)
    shown[:, place] = tokenizer.mask
    return model(shown)[:, place]
