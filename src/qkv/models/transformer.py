"""The encoder-decoder Transformer (Vaswani et al. 2017): translate one sequence into another."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import TransformerConfig
from qkv.models.input_checks import check_source_rows, checked_positions
from qkv.models.model import EncoderDecoder, token_embedding
from qkv.nn.block import Stack
from qkv.nn.cache import NO_STATE, Cache, DecoderState, EncodedSource, PagedCache, check_state
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix


class Transformer(EncoderDecoder):
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

    uses_kv_cache = True

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = token_embedding(config)
        self.source_embedding: Embedding | None = None
        if config.tied != "three":
            self.source_embedding = token_embedding(config, config.source_vocabulary)

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

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def teacher_forcing_state(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None
    ) -> DecoderState:
        """Return a state that holds the source and caches nothing."""
        return DecoderState(
            EncodedSource(self.encode(source, padding_mask), padding_mask), NO_STATE
        )

    def encode(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B S E"]:
        """Return the encoder's output: the contextual vectors of the source tokens."""
        positions = checked_positions(
            source, self.config, padding_mask, vocabulary=self.config.source_vocabulary
        )
        embedding = self.source_embedding or self.embedding
        x = embedding(source, positions)  # (B, S, E)
        return self.encoder(x, positions, mask=self.mask(padding_mask, causal=False))

    def decoder_hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        state: Cache,
        padding_mask: Bool[Tensor, "B N"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the decoder's hidden states of new target tokens, before the output layer."""
        state = check_state(state, "DecoderState")
        check_source_rows(ids, state.source.rows)
        positions = checked_positions(ids, self.config, padding_mask, positions, state)

        x = self.embedding(ids, positions)  # (B, T, E)
        return self.decoder(x, positions, mask=self.mask(padding_mask, causal=True), state=state)

    @property
    def output_layer(self) -> tuple[Matrix, Tensor | None]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        return self.output_matrix, self.logit_bias

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> DecoderState:
        """Encode the source and return the decoder's state before the first target token."""
        encoded = self.encode(source, padding_mask)
        return DecoderState.cached(encoded, padding_mask, len(self.decoder.blocks))

    def cache_source(
        self, source: Int[Tensor, "1 S"], pages: PagedCache, slots: Int[Tensor, "S"]
    ) -> None:
        """Encode a source and write its cross-attention keys and values into slots of a cache."""
        encoded = self.encode(source)
        for block in self.decoder.blocks:
            attention: Any = block.cross_attention
            pages.write(attention.layer, slots, *attention.keys_and_values(encoded))


def initialise(model: Transformer) -> None:
    """Initialise matrices by Glorot, embeddings so that sqrt(width) times them has variance 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=model.config.width**-0.5)
