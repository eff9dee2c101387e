"""GPT: a stack of causal blocks that predicts the next word. Llama and Transformer-XL are configs
of it.
"""

from __future__ import annotations

import math

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import GPTConfig
from qkv.models.input_checks import check_ids, positions_of, refuse_padding_before_tokens
from qkv.nn.attention import Causal, Document, Mask, Padding, all_of
from qkv.nn.block import Stack
from qkv.nn.cache import KeyValueCache, PackedBatch, SegmentMemory
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix, linear


class GPT(nn.Module):
    """Predicts the next word after each word: `gpt(ids)` gives (B, T, V), `start` and `decode` go
    on word by word.
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
        self.head = None if config.tied else Linear(config.width, config.vocabulary, bias=False)
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
        """Scores of the next word after each word.

        `padding_mask` is False for padding and `documents` numbers the texts packed into a row;
        both speak of all S positions so far, the earlier ones first. `state` remembers earlier
        words, so that only new ones need be given.
        """
        return self.logits(
            self.hidden(
                ids,
                padding_mask=padding_mask,
                documents=documents,
                positions=positions,
                state=state,
            )
        )

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        state: KeyValueCache | SegmentMemory | PackedBatch | None = None,
    ) -> Float[Tensor, "B T E"]:
        """What the last block says: the logits before the output layer."""
        config = self.config
        expected: tuple[type, ...] = (
            (SegmentMemory,) if config.memory else (KeyValueCache, PackedBatch)
        )
        if state is not None and not isinstance(state, expected):
            raise TypeError(
                f"state: expected the {expected[0].__name__} that start() gives, not {type(state).__name__}"
            )

        before = 0 if state is None else state.length
        limit = config.context if config.position == "learned" else None
        several = isinstance(
            state, PackedBatch
        )  # texts in one row, each no longer than the context
        check_ids(ids, config.vocabulary, before, None if several else limit)
        positions = positions_of(ids, padding_mask, before, positions, limit)
        if config.sparse == "fixed":
            refuse_padding_before_tokens(padding_mask)

        x = self.embedding(ids, positions)
        if isinstance(state, SegmentMemory):  # attention sees no further back than the memory
            first = max(0, before - state.size)
            padding_mask, documents = (
                None if each is None else each[:, first:] for each in (padding_mask, documents)
            )

        return self.stack(x, positions, mask=self.mask(padding_mask, documents), state=state)

    def mask(self, padding_mask: Tensor | None, documents: Tensor | None) -> Mask | None:
        return all_of(
            Causal(),
            self.config.sparsity(),
            None if documents is None else Document(documents),
            None if padding_mask is None else Padding(padding_mask),
        )

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """What the output layer reads."""
        return hidden

    @property
    def output_layer(self) -> tuple[Matrix, None]:
        """Its matrix and its bias; a loss may apply it piece by piece."""
        return self.embedding.token.weight if self.head is None else self.head.weight, None

    def start(self) -> KeyValueCache | SegmentMemory:
        """The state before the first word."""
        config = self.config
        return (
            SegmentMemory(config.memory, config.depth)
            if config.memory
            else KeyValueCache(depth=config.depth)
        )

    def decode(
        self,
        ids: Int[Tensor, "B T"],
        state: KeyValueCache | SegmentMemory,
        padding_mask: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Go on from a state: the same forward pass, of the new words alone."""
        return self(ids, padding_mask=padding_mask, state=state)


def initialise(model: GPT) -> None:
    """GPT-2's: normal with deviation 0.02, and less, the deeper the stack, for what is added to the
    residual stream.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or name.endswith((".u", ".v")):
            continue  # norms begin as 1 and 0, and Transformer-XL's u and v as 0

        added_to_residual = name.endswith(("attention.output.weight", "down.weight"))
        deviation = 0.02 / math.sqrt(2 * model.config.depth) if added_to_residual else 0.02
        nn.init.normal_(parameter, std=deviation)

    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
