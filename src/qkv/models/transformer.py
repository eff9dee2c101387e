"""The encoder-decoder Transformer (Vaswani et al. 2017): translate one sequence into another."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import TransformerConfig
from qkv.models.input_checks import (
    check_ids,
    check_rows,
    positions_of,
    refuse_padding_before_tokens,
)
from qkv.nn.attention import Causal, Padding, all_of
from qkv.nn.block import Stack
from qkv.nn.cache import DecoderState, PackedDecoderBatch, PagedCache
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix, linear


class Transformer(nn.Module):
    """Source in, target out: `model(source, target)` gives (B, T, V), `start` and `decode` go on
    word by word.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config

        def embedding(vocabulary: int) -> Embedding:
            return Embedding(
                vocabulary,
                config.width,
                context=config.context,
                position=config.position,
                join=config.join,
                sinusoid=config.sinusoid,
                scaled=config.scaled_embedding,
                dropout=config.dropout,
            )

        self.embedding = embedding(config.vocabulary)
        own = config.tied != "three"
        self.source_embedding = (
            embedding(config.source_vocabulary or config.vocabulary) if own else None
        )
        self.encoder = Stack(config)
        self.decoder = Stack(config, depth=config.decoder_depth, cross=True)
        self.head = (
            Linear(config.width, config.vocabulary, bias=False) if config.tied == "none" else None
        )
        self.logit_bias = (
            nn.Parameter(torch.zeros(config.vocabulary)) if config.logit_bias else None
        )
        self.hooks = HookPoints("logits")
        initialise(self)

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        *,
        source_padding_mask: Bool[Tensor, "B S"] | None = None,
        target_padding_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Scores of the next target word after each target word (teacher forcing). `padding_mask`
        is False for padding.
        """
        return self.logits(
            self.forced(
                source,
                target,
                source_padding_mask=source_padding_mask,
                target_padding_mask=target_padding_mask,
            )
        )

    def forced(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        *,
        source_padding_mask: Bool[Tensor, "B S"] | None = None,
        target_padding_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Teacher forcing: what the decoder says when it is given the true words, before the output
        layer.
        """
        encoded = self.encode(source, source_padding_mask)
        return self.hidden(
            target,
            encoded,
            source_padding_mask=source_padding_mask,
            target_padding_mask=target_padding_mask,
        )

    def encode(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B S E"]:
        config, embedding = self.config, self.source_embedding or self.embedding
        check_ids(source, config.source_vocabulary or config.vocabulary, 0, self.limit)
        positions = positions_of(source, padding_mask)
        if config.sparse == "fixed":
            refuse_padding_before_tokens(padding_mask)

        mask = all_of(config.sparsity(), None if padding_mask is None else Padding(padding_mask))

        return self.encoder(embedding(source, positions), positions, mask=mask)

    def hidden(
        self,
        target: Int[Tensor, "B T"],
        encoded: Float[Tensor, "B S E"] | None = None,
        *,
        source_padding_mask: Bool[Tensor, "B S"] | None = None,
        target_padding_mask: Bool[Tensor, "B N"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        state: DecoderState | PackedDecoderBatch | None = None,
    ) -> Float[Tensor, "B T E"]:
        """What the decoder's last block says: the logits before the output layer. A state brings
        its own source.
        """
        if (encoded is None) == (state is None):
            raise ValueError(
                "encoded: expected the encoded source or a state that has it, and not both"
            )

        several = isinstance(
            state, PackedDecoderBatch
        )  # texts in one row, each with its own source
        if state is not None and not isinstance(state, DecoderState | PackedDecoderBatch):
            raise TypeError(
                f"state: expected the DecoderState that start() gives, not {type(state).__name__}"
            )

        if isinstance(state, DecoderState):
            encoded, source_padding_mask = state.source.source, state.source.padding_mask

        if not several:
            assert encoded is not None
            check_rows(
                target, state.source.rows if isinstance(state, DecoderState) else encoded.shape[0]
            )

        before = 0 if state is None else state.length
        check_ids(target, self.config.vocabulary, before, None if several else self.limit)
        positions = positions_of(target, target_padding_mask, before, positions, self.limit)
        if self.config.sparse == "fixed":
            refuse_padding_before_tokens(target_padding_mask)

        mask = all_of(
            Causal(),
            self.config.sparsity(),
            None if target_padding_mask is None else Padding(target_padding_mask),
        )

        return self.decoder(
            self.embedding(target, positions),
            positions,
            mask=mask,
            source=encoded,
            source_mask=None if source_padding_mask is None else Padding(source_padding_mask),
            state=state,
        )

    @property
    def limit(self) -> int | None:
        return self.config.context if self.config.position == "learned" else None

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """What the output layer reads."""
        return hidden

    @property
    def output_layer(self) -> tuple[Matrix, Tensor | None]:
        """Its matrix and its bias; a loss may apply it piece by piece."""
        return (
            self.embedding.token.weight if self.head is None else self.head.weight,
            self.logit_bias,
        )

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> DecoderState:
        """The state before the first target word: the source, encoded."""
        return DecoderState(
            self.encode(source, padding_mask), padding_mask, len(self.decoder.blocks)
        )

    def remember(
        self, source: Int[Tensor, "1 S"], pages: PagedCache, target_positions: Int[Tensor, "S"]
    ) -> None:
        """Encode a source into a memory for many texts: what every layer of the decoder looks at."""
        encoded = self.encode(source)
        for block in self.decoder.blocks:
            attention: Any = block.cross_attention
            pages.write(attention.layer, target_positions, *attention.keys_and_values(encoded))

    def decode(
        self,
        target: Int[Tensor, "B T"],
        state: DecoderState,
        padding_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Go on from a state: the same forward pass, of the new target words alone."""
        return self.logits(self.hidden(target, target_padding_mask=padding_mask, state=state))


def initialise(model: Transformer) -> None:
    """Glorot's uniform for matrices; embeddings normal so that, times sqrt(width), they have
    variance 1.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=model.config.width**-0.5)
