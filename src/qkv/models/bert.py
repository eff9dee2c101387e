"""BERT: a stack of blocks that see both ways and guess masked words."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import BERTConfig
from qkv.models.heads import MaskedTokenHead, Pooler
from qkv.models.input_checks import (
    check_ids,
    check_range,
    positions_of,
    refuse_padding_before_tokens,
)
from qkv.nn.attention import Document, Mask, Padding, all_of
from qkv.nn.block import Stack
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix, linear


class BERT(nn.Module):
    """Guesses masked words, seeing both ways: `bert(ids)` gives (B, T, V), `bert.hidden(ids)` the
    words in context.
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(
            config.vocabulary,
            config.width,
            context=config.context,
            position=config.position,
            join=config.join,
            segments=config.segments,
            norm_epsilon=config.norm_epsilon if config.norm_placement == "after" else None,
            dropout=config.dropout,
        )

        self.stack = Stack(config)
        self.head = (
            MaskedTokenHead(config.width, config.vocabulary, config.activation, config.norm_epsilon)
            if config.mlm_head
            else None
        )
        self.pooler = Pooler(config.width) if config.pooler else None
        self.next_sentence = Linear(config.width, 2) if config.next_sentence else None
        self.hooks = HookPoints("logits") if config.mlm_head else HookPoints()
        initialise(self)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Scores of every word at every place.

        `padding_mask` is False for padding, `segments` says which sentence a word is from (0 or 1),
        `documents` numbers the texts packed into a row, and `positions` are 0, 1, 2, ... unless
        given.
        """
        return self.logits(
            self.hidden(
                ids,
                padding_mask=padding_mask,
                segments=segments,
                documents=documents,
                positions=positions,
            )
        )

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        first: bool = False,
    ) -> Float[Tensor, "B W E"]:
        """The words in context (W = T); with `first` only the first one (W = 1), less work for the
        last block.
        """
        limit = self.config.context if self.config.position == "learned" else None
        check_ids(ids, self.config.vocabulary, 0, limit)
        positions = positions_of(ids, padding_mask, 0, positions, limit)
        if self.config.sparse == "fixed":
            refuse_padding_before_tokens(padding_mask)

        if segments is not None:
            if not self.config.segments:
                raise ValueError(
                    "segments: this BERT tells no sentences apart (its config has segments = 0)"
                )

            check_range("segments", segments, self.config.segments, "segments")

        x = self.embedding(ids, positions, segments)

        return self.stack(x, positions, mask=self.mask(padding_mask, documents), first=first)

    def mask(self, padding_mask: Tensor | None, documents: Tensor | None) -> Mask | None:
        return all_of(
            self.config.sparsity(),
            None if documents is None else Document(documents),
            None if padding_mask is None else Padding(padding_mask),
        )

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """What the output layer reads."""
        return self.mlm_head(hidden)

    @property
    def output_layer(self) -> tuple[Matrix, Tensor]:
        """Its matrix and its bias; a loss may apply it piece by piece."""
        return self.embedding.token.weight, self.mlm_head.bias

    @property
    def mlm_head(self) -> MaskedTokenHead:
        if self.head is None:
            raise ValueError(
                "mlm_head: this BERT is an encoder only and guesses no words; use hidden() or pool()"
            )

        return self.head

    def pool(self, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        """The sentence as one vector."""
        if self.pooler is None:
            raise ValueError(
                "pooler: this BERT has none; take hidden()[:, 0] or the mean over the words"
            )

        return self.pooler(hidden)

    def follows(self, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B 2"]:
        """Scores of (the second sentence follows, it does not)."""
        if self.next_sentence is None:
            raise ValueError("next_sentence: this BERT has no such layer")

        return self.next_sentence(self.pool(hidden))


def initialise(model: BERT) -> None:
    """Every matrix normal with deviation 0.02, cut off at two deviations; biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)

        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
