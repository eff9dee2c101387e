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
    check_sparse_padding,
    learned_context,
    positions_of,
)
from qkv.nn.attention import Causal, Mask, Padding, all_of
from qkv.nn.block import Stack
from qkv.nn.cache import DecoderState, PackedDecoderBatch, PagedCache
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix, linear


class Transformer(nn.Module):
    """An encoder-decoder model: it reads a source and predicts the next target token.

    `model(source, target)` returns the logits of a whole target (teacher forcing). `start` and
    `decode` translate token by token with a KV cache.

    Args:
        config: Sizes and choices; `qkv.models.preset` has the published ones.

    Example:
        >>> import torch
        >>> from qkv.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(vocabulary=10, width=8, depth=1, heads=2))
        >>> source = torch.tensor([[1, 2, 3]])
        >>> model(source, torch.tensor([[4, 5]])).shape  # (B, T, V)
        torch.Size([1, 2, 10])
        >>> state = model.start(source)
        >>> model.decode(torch.tensor([[4]]), state).shape
        torch.Size([1, 1, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = token_embedding(config, config.vocabulary)
        self.source_embedding: Embedding | None = None
        if config.tied != "three":
            source_vocabulary = config.source_vocabulary or config.vocabulary
            self.source_embedding = token_embedding(config, source_vocabulary)

        self.encoder = Stack(config)
        self.decoder = Stack(config, depth=config.decoder_depth, cross=True)

        self.head: Linear | None = None
        self.logit_bias: nn.Parameter | None = None
        if config.tied == "none":
            self.head = Linear(config.width, config.vocabulary, bias=False)
        if config.logit_bias:
            self.logit_bias = nn.Parameter(torch.zeros(config.vocabulary))

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
        """Return the logits of the next target token at every target position.

        Args:
            source: Token ids of the source, (B, S).
            target: Token ids of the target so far, (B, T).
            source_padding_mask: True for tokens, False for padding, (B, S).
            target_padding_mask: True for tokens, False for padding, (B, T).

        Returns:
            Logits, (B, T, V).

        Raises:
            ValueError: If ids or masks do not fit the vocabularies, the context or each other.
            TypeError: If the ids are not integers or a padding mask is not bool.
        """
        hidden = self.teacher_forced(
            source,
            target,
            source_padding_mask=source_padding_mask,
            target_padding_mask=target_padding_mask,
        )
        return self.logits(hidden)

    def teacher_forced(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        *,
        source_padding_mask: Bool[Tensor, "B S"] | None = None,
        target_padding_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the decoder's hidden states under teacher forcing, before the output layer."""
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
        """Return the encoder's output: the contextual vectors of the source tokens."""
        config = self.config
        vocabulary = config.source_vocabulary or config.vocabulary
        check_ids(source, vocabulary, 0, learned_context(config))
        positions = positions_of(source, padding_mask)
        check_sparse_padding(config, padding_mask)

        embedding = self.source_embedding or self.embedding
        x = embedding(source, positions)  # (B, S, E)
        return self.encoder(x, positions, mask=all_of(config.sparsity(), padding(padding_mask)))

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
        """Return the decoder's hidden states, before the output layer.

        The source is either `encoded` with its padding mask, or part of the `state`.
        """
        config = self.config
        check_state(encoded, state)
        if isinstance(state, DecoderState):
            encoded = state.source.source
            source_padding_mask = state.source.padding_mask

        past = 0
        if state is not None:
            past = state.length

        # A packed batch holds several sequences in one row, each with its own source.
        context = learned_context(config)
        row_context = context
        if isinstance(state, PackedDecoderBatch):
            row_context = None
        elif isinstance(state, DecoderState):
            check_rows(target, state.source.rows)
        else:
            assert encoded is not None
            check_rows(target, encoded.shape[0])

        check_ids(target, config.vocabulary, past, row_context)
        positions = positions_of(target, target_padding_mask, past, positions, context)
        check_sparse_padding(config, target_padding_mask)

        x = self.embedding(target, positions)  # (B, T, E)
        return self.decoder(
            x,
            positions,
            mask=all_of(Causal(), config.sparsity(), padding(target_padding_mask)),
            source=encoded,
            source_mask=padding(source_padding_mask),
            state=state,
        )

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        """Apply the output layer to hidden states."""
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """Return what the output layer multiplies: the hidden states as they are."""
        return hidden

    @property
    def output_layer(self) -> tuple[Matrix, Tensor | None]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        if self.head is None:
            return self.embedding.token.weight, self.logit_bias

        return self.head.weight, self.logit_bias

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> DecoderState:
        """Encode the source and return the decoder's state before the first target token."""
        encoded = self.encode(source, padding_mask)
        return DecoderState(encoded, padding_mask, len(self.decoder.blocks))

    def cache_source(
        self, source: Int[Tensor, "1 S"], pages: PagedCache, slots: Int[Tensor, "S"]
    ) -> None:
        """Encode a source and write its cross-attention keys and values into slots of a cache."""
        encoded = self.encode(source)
        for block in self.decoder.blocks:
            attention: Any = block.cross_attention
            pages.write(attention.layer, slots, *attention.keys_and_values(encoded))

    def decode(
        self,
        target: Int[Tensor, "B T"],
        state: DecoderState,
        padding_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Run one decode step: the decoder's forward pass of the new target tokens only."""
        return self.logits(self.hidden(target, target_padding_mask=padding_mask, state=state))


def token_embedding(config: TransformerConfig, vocabulary: int) -> Embedding:
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


def padding(padding_mask: Bool[Tensor, "B S"] | None) -> Mask | None:
    if padding_mask is None:
        return None

    return Padding(padding_mask)


def check_state(encoded: Tensor | None, state: Any) -> None:
    if (encoded is None) == (state is None):
        raise ValueError(
            "encoded: expected the encoded source or a state that has it, and not both"
        )

    if state is not None and not isinstance(state, DecoderState | PackedDecoderBatch):
        raise TypeError(
            f"state: expected the DecoderState that start() gives, not {type(state).__name__}"
        )


def initialise(model: Transformer) -> None:
    """Initialise matrices by Glorot, embeddings so that sqrt(width) times them has variance 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=model.config.width**-0.5)
