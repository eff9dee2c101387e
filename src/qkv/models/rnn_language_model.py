"""The recurrent language model: what a GPT does, with one hidden vector as its whole memory."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import RNNLMConfig
from qkv.models.input_checks import check_ids, check_padding_mask
from qkv.models.model import Model, Predicts
from qkv.models.rnn import check_padding_after_tokens, initialise
from qkv.nn.block import Stack
from qkv.nn.cache import Cache, RecurrentState, check_state
from qkv.nn.cache.interface import check_rows
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Matrix
from qkv.nn.recurrent import Recurrent


class RNNLanguageModel(Model):
    """A decoder-only RNN: it predicts the next token at every position.

    `model(ids)` returns the logits of a whole sequence. `start` and `decode` generate token by
    token, with a state that never grows.

    Args:
        config: Sizes and the cell (rnn, lstm, gru).

    Example:
        >>> import torch
        >>> from qkv.models import RNNLanguageModel, RNNLMConfig
        >>> model = RNNLanguageModel(RNNLMConfig(vocabulary=10, width=8))
        >>> model(torch.tensor([[1, 2, 3]])).shape  # (B, T, V)
        torch.Size([1, 3, 10])
        >>> state = model.start()
        >>> logits = model.decode(torch.tensor([[1, 2]]), state)
        >>> model.decode(torch.tensor([[3]]), state).shape
        torch.Size([1, 1, 10])
    """

    predicts: Predicts = "next"
    is_causal = True

    def __init__(self, config: RNNLMConfig) -> None:
        super().__init__()
        self.config = config
        E = config.width
        self.embedding = nn.Embedding(config.vocabulary, E)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = Recurrent(
            config.cell,
            E,
            E,
            config.depth,
            dropout=config.dropout,
            residual=config.residual,
        )
        self.head: nn.Linear | None = None
        if not config.tied:
            self.head = nn.Linear(E, config.vocabulary)

        self.hooks = HookPoints("hidden", "logits")
        initialise(self)

    @property
    def stacks(self) -> dict[str, Stack]:
        return {}

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
        state: Cache | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the last layer's hidden vectors, which the output layer turns into logits.

        Args:
            ids: Token ids, (B, T); with a state only the new ones.
            padding_mask: True for tokens, False for padding, for all S positions so far; it is
                only checked, as padding after the tokens changes nothing before it.
            documents: None: a hidden vector carries all that a row held before.
            positions: Not used: an RNN counts by itself.
            state: The hidden vectors after the positions before; it is updated in place.

        Returns:
            Hidden vectors, (B, T, E).

        Raises:
            ValueError: If the ids or the padding mask do not fit, or a row holds several documents.
            TypeError: If the ids are not integers, the padding mask is not bool, or the state
                belongs to another kind of model.
        """
        state = check_state(state, "RecurrentState")
        if not isinstance(state, RecurrentState):
            state = self.start()

        if documents is not None:
            raise ValueError("documents: an RNN reads on from one to the next; expected one a row")
        if padding_mask is not None:
            check_padding_mask(padding_mask, (ids.shape[0], state.length + ids.shape[1]))
            check_padding_after_tokens(padding_mask)

        check_ids(ids, self.config.vocabulary)
        if state.rows is not None:
            check_rows(state.rows, ids.shape[0])

        x = self.dropout(self.embedding(ids))  # (B, T, E)
        if ids.shape[1] == 0:
            return self.hooks("hidden", x)

        outputs, hidden = self.layers(x, state.hidden or None)
        state.advance(hidden, ids.shape[1])

        return self.hooks("hidden", outputs)

    def start(self) -> RecurrentState:
        """Return the state before the first token: hidden vectors of zeros."""
        return RecurrentState(())

    def decoder_hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        state: Cache,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the hidden vectors of new tokens."""
        return self.hidden(ids, padding_mask=padding_mask, state=state)

    @property
    def output_layer(self) -> tuple[Matrix, Tensor | None]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        if self.head is None:
            return self.embedding.weight, None

        return self.head.weight, self.head.bias
