"""GPT: causal blocks that predict the next token; Llama and Transformer-XL are configs of it."""

from __future__ import annotations

import math

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import GPTConfig
from qkv.models.input_checks import check_ids, check_sparse_padding, learned_context, positions_of
from qkv.nn.attention import Causal, Document, Mask, Padding, all_of
from qkv.nn.block import Stack
from qkv.nn.cache import KeyValueCache, PackedBatch, SegmentMemory
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix, linear


class GPT(nn.Module):
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

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(
            config.vocabulary,
            config.width,
            context=config.context,
            position=config.position,
            join=config.join,
            position_width=config.position_width,
            scaled=config.scaled_embedding,
            dropout=config.dropout,
        )
        self.stack = Stack(config)

        self.head: Linear | None = None
        if not config.tied:
            self.head = Linear(config.width, config.vocabulary, bias=False)

        self.hooks = HookPoints("logits")
        initialise(self)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        state: KeyValueCache | SegmentMemory | PackedBatch | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token at every position.

        Args:
            ids: Token ids, (B, T); with a state only the new ones.
            padding_mask: True for tokens, False for padding, for all S positions so far.
            documents: The number of the document each of the S positions belongs to, where
                several are packed into a row; attention stays inside a document.
            positions: Positions of the ids; by default 0, 1, 2, ... without the padding.
            state: The KV cache (or Transformer-XL's memory) of the positions before; it is
                updated in place.

        Returns:
            Logits, (B, T, V).

        Raises:
            ValueError: If ids, positions or masks do not fit the vocabulary, the context or
                each other.
            TypeError: If the ids are not integers, the padding mask is not bool, or the state
                belongs to another kind of model.
        """
        hidden = self.hidden(
            ids, padding_mask=padding_mask, documents=documents, positions=positions, state=state
        )
        return self.logits(hidden)

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        state: KeyValueCache | SegmentMemory | PackedBatch | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the last block's hidden states, which the output layer turns into logits."""
        self.check_state(state)
        past = 0
        if state is not None:
            past = state.length

        # A packed batch holds several sequences in one row, each within the context.
        context = learned_context(self.config)
        row_context = context
        if isinstance(state, PackedBatch):
            row_context = None

        check_ids(ids, self.config.vocabulary, past, row_context)
        positions = positions_of(ids, padding_mask, past, positions, context)
        check_sparse_padding(self.config, padding_mask)
        x = self.embedding(ids, positions)  # (B, T, E)

        # Attention reaches no further back than Transformer-XL's memory.
        if isinstance(state, SegmentMemory):
            first = max(0, past - state.size)
            if padding_mask is not None:
                padding_mask = padding_mask[:, first:]
            if documents is not None:
                documents = documents[:, first:]

        return self.stack(x, positions, mask=self.mask(padding_mask, documents), state=state)

    def mask(
        self, padding_mask: Bool[Tensor, "B S"] | None, documents: Int[Tensor, "B S"] | None
    ) -> Mask | None:
        """Return the attention mask: causal, sparse as configured, no padding, one document."""
        masks: list[Mask | None] = [Causal(), self.config.sparsity()]
        if documents is not None:
            masks.append(Document(documents))
        if padding_mask is not None:
            masks.append(Padding(padding_mask))

        return all_of(*masks)

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        """Apply the output layer to hidden states."""
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """Return what the output layer multiplies: a GPT's hidden states as they are."""
        return hidden

    @property
    def output_layer(self) -> tuple[Matrix, None]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        if self.head is None:
            return self.embedding.token.weight, None

        return self.head.weight, None

    def start(self) -> KeyValueCache | SegmentMemory:
        """Return an empty KV cache, or with `memory` an empty Transformer-XL memory."""
        if self.config.memory:
            return SegmentMemory(self.config.memory, self.config.depth)

        return KeyValueCache(depth=self.config.depth)

    def decode(
        self,
        ids: Int[Tensor, "B T"],
        state: KeyValueCache | SegmentMemory,
        padding_mask: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Run one prefill or decode step: the forward pass of the new tokens only."""
        return self(ids, padding_mask=padding_mask, state=state)

    def check_state(self, state: KeyValueCache | SegmentMemory | PackedBatch | None) -> None:
        expected: tuple[type, ...] = (KeyValueCache, PackedBatch)
        if self.config.memory:
            expected = (SegmentMemory,)

        if state is not None and not isinstance(state, expected):
            raise TypeError(
                f"state: expected the {expected[0].__name__} that start() gives, "
                f"not {type(state).__name__}"
            )


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
