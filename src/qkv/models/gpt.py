"""GPT: causal blocks that predict the next token; Llama and Transformer-XL are configs of it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import GPTConfig
from qkv.models.input_checks import checked_positions
from qkv.models.model import Model, Predicts, token_embedding
from qkv.nn.block import Stack
from qkv.nn.cache import Cache, KeyValueCache, SegmentMemory, check_state
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear


class GPT(Model):
    """A decoder-only language model: it predicts the next token at every position.

    `gpt(ids)` returns the logits of a whole sequence. `start` and `decode` generate token by
    token with a KV cache.

    Args:
        config: Sizes and choices; `qkv.models.preset` has the published ones.

    Example:
        >>> import torch
        >>> from qkv.models import GPT, GPTConfig
        >>> gpt = GPT(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> gpt(torch.tensor([[1, 2, 3]])).shape  # (B, T, V)
        torch.Size([1, 3, 10])
        >>> state = gpt.start()
        >>> logits = gpt.decode(torch.tensor([[1, 2]]), state)
        >>> gpt.decode(torch.tensor([[3]]), state).shape
        torch.Size([1, 1, 10])
    """

    predicts: Predicts = "next"
    is_causal = True

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = token_embedding(config)
        self.stack = Stack(config)

        self.head: Linear | None = None
        if not config.tied:
            self.head = Linear(config.width, config.vocabulary, bias=False)

        self.hooks = HookPoints("logits")
        initialise(self)

    @property
    def uses_kv_cache(self) -> bool:
        return not self.config.memory

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        state: Cache | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the last block's hidden states, which the output layer turns into logits.

        Args:
            ids: Token ids, (B, T); with a state only the new ones.
            padding_mask: True for tokens, False for padding, for all S positions so far.
            documents: The number of the document each of the S positions belongs to, where
                several are packed into a row; attention stays inside a document.
            positions: Positions of the ids; by default 0, 1, 2, ... without the padding.
            state: The KV cache (or Transformer-XL's memory) of the positions before; it is
                updated in place.

        Returns:
            Hidden states, (B, T, E).

        Raises:
            ValueError: If ids, positions or masks do not fit the vocabulary, the context or
                each other.
            TypeError: If the ids are not integers, the padding mask is not bool, or the state
                belongs to another kind of model.
        """
        state = check_state(state, "SegmentMemory" if self.config.memory else "KeyValueCache")
        padding_mask = state.padding_mask if padding_mask is None else padding_mask
        positions = state.positions if positions is None else positions
        positions = checked_positions(ids, self.config, padding_mask, positions, state)

        mask = self.mask(state.within_reach(padding_mask), state.within_reach(documents))
        x = self.embedding(ids, positions)  # (B, T, E)
        return self.stack(x, positions, mask=mask, state=state)

    def start(self) -> KeyValueCache | SegmentMemory:
        """Return an empty KV cache, or with `memory` an empty Transformer-XL memory."""
        if self.config.memory:
            return SegmentMemory(self.config.memory, self.config.depth)

        return KeyValueCache(depth=self.config.depth)

    def decoder_hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        state: Cache,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the hidden states of new tokens; Transformer-XL reads segments as in training."""
        if not self.config.memory:
            return self.hidden(ids, padding_mask=padding_mask, positions=positions, state=state)

        parts = []
        begin = 0
        for segment in ids.split(self.config.context, dim=1):
            end = begin + segment.shape[1]
            mask = None if padding_mask is None else padding_mask[:, : state.length + end - begin]
            where = None if positions is None else positions[:, begin:end]
            parts.append(self.hidden(segment, padding_mask=mask, positions=where, state=state))
            begin = end

        return torch.cat(parts, dim=1)


def initialise(model: GPT) -> None:
    """Initialise as GPT-2: normal, std 0.02, scaled down with depth for residual projections."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or name.endswith((".u", ".v")):
            continue  # norms start as 1 and 0, Transformer-XL's u and v as 0

        std = 0.02
        if name.endswith(("attention.output.weight", "down.weight")):
            std /= math.sqrt(2 * model.config.depth)

        nn.init.normal_(parameter, std=std)

    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
