"""A pre-trained backbone with a task head: one backbone, a different output layer for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models import legacy
from qkv.models.bert import BERT
from qkv.models.configs import BERTConfig, GPTConfig, HeadConfig, TaskModelConfig
from qkv.models.gpt import GPT
from qkv.models.heads import pooled
from qkv.models.model import Model
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear


class TaskModel(Model):
    """A GPT or BERT backbone whose hidden states a linear head turns into scores for a task.

    The head reads one vector per text (classify, pair, similarity, choice, regress) or one per
    token (tag). `qkv.models.heads` shows the input of each task.

    Args:
        config: The backbone's config and the head's.

    Example:
        >>> import torch
        >>> from qkv.models import BERTConfig, HeadConfig, TaskModel, TaskModelConfig
        >>> backbone = BERTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2)
        >>> labels = ("bad", "good")
        >>> head = HeadConfig(task="classify", labels=labels, delimiter=1, extract=1, padding=0)
        >>> model = TaskModel(TaskModelConfig(backbone=backbone, head=head))
        >>> ids = torch.tensor([[2, 3, 1]])
        >>> model(ids, target_positions=torch.tensor([[2]])).shape  # (B, 1, C)
        torch.Size([1, 1, 2])
    """

    def __init__(self, config: TaskModelConfig) -> None:
        super().__init__()
        self.config = config

        self.backbone: Any
        if isinstance(config.backbone, GPTConfig):
            self.backbone = GPT(config.backbone)
        else:
            self.backbone = BERT(config.backbone)

        self.dropout = nn.Dropout(config.head.dropout)
        self.head = Linear(config.width, config.head.outputs, bias=config.head.bias)
        self.hooks = HookPoints("vector", "scores")
        initialise(self.head)

    @property
    def task(self) -> HeadConfig:
        return self.config.head

    @property
    def is_causal(self) -> bool:  # type: ignore[override]
        return self.backbone.is_causal

    @property
    def stacks(self) -> dict[str, Any]:
        return {"backbone.stack": self.backbone.stack}

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        *,
        target_positions: Int[Tensor, "B N"],
        padding_mask: Bool[Tensor, "B L"] | None = None,
        segments: Int[Tensor, "B L"] | None = None,
        group: int = 1,
    ) -> Float[Tensor, "B M C"]:
        """Score the answers of a task.

        A row may hold G = `group` sequences side by side (both orders of a pair, all choices),
        each padded to T = L / G.

        Args:
            ids: Token ids, (B, L).
            target_positions: Positions whose vectors the head reads, counted inside each
                sequence; -1 for a choice that does not exist. N is G, or for tags the number of
                tagged tokens.
            padding_mask: True for tokens, False for padding, (B, L).
            segments: 0 for the first text and 1 for the second, (B, L); BERT only.
            group: Sequences in a row.

        Returns:
            (B, 1, C) for C classes, (B, N, C) for the tags of N tokens, (B, 1, G) for G choices,
            (B, 1, 1) for a number, in the units of the data.

        Raises:
            ValueError: If the ids do not fit the backbone.
        """
        hidden = self.hidden(ids, padding_mask=padding_mask, segments=segments, group=group)
        scores = self.scores(hidden, target_positions, padding_mask, group)
        if self.config.head.numbers:
            return self.in_units(scores)

        return scores

    def hidden(
        self,
        ids: Int[Tensor, "B L"],
        *,
        padding_mask: Bool[Tensor, "B L"] | None = None,
        segments: Int[Tensor, "B L"] | None = None,
        group: int = 1,
    ) -> Float[Tensor, "R T E"]:
        """Run every sequence through the backbone, R = B * G."""
        ids = split_groups(ids, group)  # (B G, T)
        if padding_mask is not None:
            padding_mask = split_groups(padding_mask, group)

        if self.is_causal:
            return self.backbone.hidden(ids, padding_mask=padding_mask)

        if segments is not None:
            segments = split_groups(segments, group)

        return self.backbone.hidden(ids, padding_mask=padding_mask, segments=segments)

    def scores(
        self,
        hidden: Float[Tensor, "R T E"],
        target_positions: Int[Tensor, "B N"],
        padding_mask: Bool[Tensor, "B L"] | None,
        group: int,
    ) -> Float[Tensor, "B M C"]:
        """Apply the head; a number is standardised, so that 0 is the mean of the training data."""
        vectors = self.vectors(hidden, target_positions, padding_mask, group)  # (B, N, E)
        vectors = self.hooks("vector", vectors)
        scores = self.head(self.dropout(vectors))  # (B, N, C)

        if self.config.head.task == "choice":
            no_choice = (target_positions < 0).unsqueeze(1)  # (B, 1, G)
            scores = scores.transpose(1, 2).masked_fill(no_choice, float("-inf"))

        return self.hooks("scores", scores)

    def in_units(self, scores: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Convert standardised scores into the units of the data.

        The sum is taken in float64: numbers such as dates are far from 0 and close to each other.
        """
        dtype = torch.float64
        if scores.device.type == "mps":  # Apple's GPUs have no float64
            dtype = torch.float32

        return self.config.head.offset + self.config.head.scale * scores.to(dtype)

    def vectors(
        self,
        hidden: Float[Tensor, "R T E"],
        target_positions: Int[Tensor, "B N"],
        padding_mask: Bool[Tensor, "B L"] | None,
        group: int,
    ) -> Float[Tensor, "B M E"]:
        """Return what the head reads: a vector for each tagged token, each choice or each row."""
        head = self.config.head
        if head.task == "tag":
            index = target_positions.clamp(min=0).unsqueeze(-1)  # (B, N, 1)
            return hidden.gather(1, index.expand(-1, -1, hidden.shape[-1]))  # (B, N, E)

        # One vector per sequence.
        mask = None
        if padding_mask is not None and head.pooling == "mean":
            mask = split_groups(padding_mask, group)  # (B G, T)

        vectors = pooled(hidden, head.pooling, target_positions.flatten(), mask)  # (B G, E)
        pooler = getattr(self.backbone, "pooler", None)
        if pooler is not None:
            vectors = torch.tanh(pooler.dense(vectors))

        # The sequences of a row beside each other; similarity adds both orders of a pair.
        vectors = vectors.unflatten(0, (-1, group))  # (B, G, E)
        if head.task == "similarity":
            vectors = vectors.sum(1, keepdim=True)

        return vectors

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As PyTorch's; weights of version 0.6, whose backbone was called body, load too."""
        return super().load_state_dict(legacy.rename_weights(state_dict), strict, assign)


def split_groups(rows: Tensor, group: int) -> Tensor:
    """Put the G sequences of a row below each other: (B, G T) -> (B G, T)."""
    return rows.unflatten(1, (group, -1)).flatten(0, 1)


def initialise(head: Linear) -> None:
    nn.init.normal_(head.weight, std=0.02)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def backbone_for(config: GPTConfig | BERTConfig, pooler: bool) -> GPTConfig | BERTConfig:
    """Return the config without the layers that only pre-training needs; the head replaces them."""
    if isinstance(config, GPTConfig):
        return config

    return replace(config, mlm_head=False, next_sentence=False, pooler=pooler and config.pooler)
