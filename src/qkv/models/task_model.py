"""A pre-trained model with a head: one body, and a different output on top for each task."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.bert import BERT
from qkv.models.configs import BERTConfig, GPTConfig, TaskModelConfig
from qkv.models.gpt import GPT
from qkv.models.heads import pooled
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear


class TaskModel(nn.Module):
    """Scores of the answers: (B, 1, C) for classes, (B, N, C) for the tags of N words, (B, 1, G)
    for G choices, (B, 1, 1) for a number, in the units of the data."""

    def __init__(self, config: TaskModelConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone: GPT | BERT = (
            GPT(config.backbone)
            if isinstance(config.backbone, GPTConfig)
            else BERT(config.backbone)
        )
        self.dropout = nn.Dropout(config.head.dropout)
        self.head = Linear(config.width, config.head.outputs, bias=config.head.bias)
        self.hooks = HookPoints("vector", "scores")
        initialise(self.head)

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        *,
        target_positions: Int[Tensor, "B N"],
        padding_mask: Bool[Tensor, "B L"] | None = None,
        segments: Int[Tensor, "B L"] | None = None,
        group: int = 1,
    ) -> Float[Tensor, "B M C"]:
        """A row may hold `group` sequences side by side (both orders of a pair, all choices), each
        padded to L / group.

        `target_positions` are the positions asked, inside each sequence; -1 where there is no such
        choice.
        """
        scores = self.scores(
            self.hidden(ids, padding_mask=padding_mask, segments=segments, group=group),
            target_positions,
            padding_mask,
            group,
        )

        return self.in_units(scores) if self.config.head.numbers else scores

    def hidden(
        self,
        ids: Tensor,
        *,
        padding_mask: Tensor | None = None,
        segments: Tensor | None = None,
        group: int = 1,
    ) -> Float[Tensor, "R T E"]:
        """Each sequence through the body; T is 1 where the first word is all that is read."""
        ids, padding_mask = (
            apart(ids, group),
            None if padding_mask is None else apart(padding_mask, group),
        )  # (B G, T)
        if isinstance(self.backbone, BERT):
            segments = None if segments is None else apart(segments, group)
            # Whose head reads the first word only: its place, 0, is then the only one.
            first = self.config.head.pooling == "first" and self.config.head.task != "tag"
            return self.backbone.hidden(
                ids, padding_mask=padding_mask, segments=segments, first=first
            )

        return self.backbone.hidden(ids, padding_mask=padding_mask)

    def scores(
        self,
        hidden: Float[Tensor, "R T E"],
        target_positions: Int[Tensor, "B N"],
        padding_mask: Tensor | None,
        group: int,
    ) -> Float[Tensor, "B M C"]:
        """As the head says them, a number in units of its own: 0 is the mean of what it was trained
        on.
        """
        vectors = self.hooks(
            "vector", self.vectors(hidden, target_positions, padding_mask, group)
        )  # (B, N, E)
        scores = self.head(self.dropout(vectors))  # (B, N, C)
        if self.config.head.task == "choice":
            scores = scores.transpose(1, 2).masked_fill(
                (target_positions < 0).unsqueeze(1), float("-inf")
            )  # (B, 1, G)

        return self.hooks("scores", scores)

    def in_units(self, scores: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Numbers as the data has them. Finely, for they may be far from 0 and close to each other,
        as dates are.
        """
        finest = (
            torch.float32 if scores.device.type == "mps" else torch.float64
        )  # Apple's GPUs know nothing finer
        return self.config.head.offset + self.config.head.scale * scores.to(finest)

    def vectors(
        self,
        hidden: Float[Tensor, "R T E"],
        target_positions: Int[Tensor, "B N"],
        padding_mask: Tensor | None,
        group: int,
    ) -> Float[Tensor, "B M E"]:
        """What the head reads: of each word that is tagged, of each choice, or of the whole row."""
        head = self.config.head
        if head.task == "tag":
            return hidden.gather(
                1, target_positions.clamp(min=0).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
            )  # (B, N, E)

        padding_mask = (
            apart(padding_mask, group)
            if padding_mask is not None and head.pooling == "mean"
            else None
        )  # (B G, T)
        vectors = pooled(hidden, head.pooling, target_positions.flatten(), padding_mask)  # (B G, E)
        if isinstance(self.backbone, BERT) and self.backbone.pooler is not None:
            vectors = torch.tanh(self.backbone.pooler.dense(vectors))

        vectors = vectors.unflatten(0, (-1, group))  # (B, G, E)

        return vectors.sum(1, keepdim=True) if head.task == "similarity" else vectors


def apart(rows: Tensor, group: int) -> Tensor:
    """(B, G T) as (B G, T): the sequences of a row below each other."""
    return rows.unflatten(1, (group, -1)).flatten(0, 1)


def initialise(head: Linear) -> None:
    nn.init.normal_(head.weight, std=0.02)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def backbone_for(config: GPTConfig | BERTConfig, pooler: bool) -> GPTConfig | BERTConfig:
    """Without what guesses words in pre-training, which a head takes the place of."""
    if isinstance(config, GPTConfig):
        return config

    return replace(config, mlm_head=False, next_sentence=False, pooler=pooler and config.pooler)
