"""BERT: a stack of bidirectional blocks that predicts masked tokens."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import BERTConfig
from qkv.models.heads import MaskedTokenHead, Pooler
from qkv.models.input_checks import check_range, checked_positions
from qkv.models.model import Model, Predicts, token_embedding
from qkv.nn.block import Stack
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear, Matrix


class BERT(Model):
    """A bidirectional encoder: it predicts masked tokens and gives vectors of tokens and texts.

    `bert(ids)` returns logits, `bert.hidden(ids)` the contextual vectors of the tokens, and
    `bert.pool(hidden)` one vector for the whole text.

    Args:
        config: Sizes and choices; `qkv.models.preset` has the published ones.

    Example:
        >>> import torch
        >>> from qkv.models import BERT, BERTConfig
        >>> bert = BERT(BERTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> bert(ids).shape  # (B, T, V)
        torch.Size([1, 3, 10])
        >>> bert.pool(bert.hidden(ids)).shape  # (B, E)
        torch.Size([1, 8])
    """

    def __init__(self, config: BERTConfig) -> None:
        super().__init__()
        self.config = config

        embedding_norm = None  # post-norm BERT also normalises its embeddings
        if config.norm_placement == "after":
            embedding_norm = config.norm_epsilon

        self.embedding = token_embedding(config, norm_epsilon=embedding_norm)
        self.stack = Stack(config)

        # The heads of pre-training; the hook point "logits" exists only with the first.
        self.head: MaskedTokenHead | None = None
        self.pooler: Pooler | None = None
        self.next_sentence: Linear | None = None
        self.hooks = HookPoints()
        if config.mlm_head:
            self.head = MaskedTokenHead(
                config.width, config.vocabulary, config.activation, config.norm_epsilon
            )
            self.hooks = HookPoints("logits")
        if config.pooler:
            self.pooler = Pooler(config.width)
        if config.next_sentence:
            self.next_sentence = Linear(config.width, 2)

        initialise(self)

    @property
    def predicts(self) -> Predicts | None:  # type: ignore[override]
        return None if self.head is None else "masked"

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the contextual vectors of all tokens.

        Args:
            ids: Token ids, (B, T), some of them [MASK].
            padding_mask: True for tokens, False for padding, (B, T).
            segments: 0 for tokens of the first sentence and 1 for the second, (B, T).
            documents: The number of the document each position belongs to, where several are
                packed into a row; attention stays inside a document.
            positions: Positions of the ids; by default 0, 1, 2, ... without the padding.

        Returns:
            Hidden states, (B, T, E).

        Raises:
            ValueError: If the inputs do not fit the config.
            TypeError: If the ids are not integers or the padding mask is not bool.
        """
        positions = checked_positions(ids, self.config, padding_mask, positions)
        self.check_segments(segments)

        mask = self.mask(padding_mask, documents)
        x = self.embedding(ids, positions, segments)  # (B, T, E)
        return self.stack(x, positions, mask=mask)

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """Return what the output layer multiplies: hidden states through the head's transform."""
        return self.mlm_head(hidden)

    @property
    def output_layer(self) -> tuple[Matrix, Tensor]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        return self.embedding.token.weight, self.mlm_head.bias

    @property
    def mlm_head(self) -> MaskedTokenHead:
        """The masked-token head; raises ValueError if this BERT is an encoder only."""
        if self.head is None:
            raise ValueError(
                "mlm_head: this BERT is an encoder only and cannot predict tokens; "
                "use hidden() or pool()"
            )

        return self.head

    def pool(self, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B E"]:
        """Return one vector per text, from its [CLS] token."""
        if self.pooler is None:
            raise ValueError(
                "pooler: this BERT has none; take hidden()[:, 0] or the mean over the tokens"
            )

        return self.pooler(hidden)

    def next_sentence_logits(self, hidden: Float[Tensor, "B T E"]) -> Float[Tensor, "B 2"]:
        """Return the logits of (the second sentence follows the first, it does not)."""
        if self.next_sentence is None:
            raise ValueError("next_sentence: this BERT has no such layer")

        return self.next_sentence(self.pool(hidden))

    def check_segments(self, segments: Tensor | None) -> None:
        if segments is None:
            return
        if not self.config.segments:
            raise ValueError(
                "segments: this BERT does not distinguish sentences (its config has segments = 0)"
            )

        check_range("segments", segments, self.config.segments, "segments")


def initialise(model: BERT) -> None:
    """Initialise matrices from a normal with std 0.02, truncated at two deviations; biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)

        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
