"""RNNs: the encoder-decoder without attention (Sutskever 2014) and with it (Bahdanau 2015).

Without attention the whole source must pass through one vector. With attention, before each target
token the decoder's last hidden vector is the query, the encoder's outputs are keys and values, and
the result (the context vector) enters the decoder's next step.

The language model does what a GPT does, with one hidden vector as its whole memory.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import RNNConfig, RNNLMConfig
from qkv.models.input_checks import (
    check_ids,
    check_padding_mask,
    check_source_rows,
    padding_before_tokens,
)
from qkv.models.model import EncoderDecoder, Model, Predicts
from qkv.nn.attention import Additive, General, Padding, attend, dot, scaled_dot
from qkv.nn.attention.score import Score
from qkv.nn.block import Stack
from qkv.nn.cache import Cache, RecurrentState, check_state
from qkv.nn.cache.interface import check_rows
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Matrix
from qkv.nn.recurrent import Recurrent


class RNN(EncoderDecoder):
    """A recurrent encoder-decoder: it reads a source and predicts the next target token.

    `model(source, target)` returns the logits of a whole target (teacher forcing). `start` and
    `decode` translate token by token.

    Args:
        config: Sizes, the cell (rnn, lstm, gru) and the attention score.

    Example:
        >>> import torch
        >>> from qkv.models import RNN, RNNConfig
        >>> model = RNN(RNNConfig(vocabulary=10, width=8))
        >>> source = torch.tensor([[1, 2, 3]])
        >>> model(source, torch.tensor([[4, 5]])).shape  # (B, T, V)
        torch.Size([1, 2, 10])
        >>> state = model.start(source)
        >>> model.decode(torch.tensor([[4]]), state).shape
        torch.Size([1, 1, 10])
    """

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.config = config
        E = config.width
        has_attention = config.attention != "none"

        # The encoder, and a layer from its last state to the decoder's first.
        self.source_embedding = nn.Embedding(config.source_vocabulary or config.vocabulary, E)
        self.embedding = nn.Embedding(config.vocabulary, E)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Recurrent(
            config.cell,
            E,
            E,
            config.depth,
            bidirectional=config.bidirectional,
            dropout=config.dropout,
            residual=config.residual,
        )
        self.bridge = nn.Linear(E, E)

        # Attention, if its score has weights.
        self.score: nn.Module | None = None
        if config.attention == "additive":
            self.score = Additive(E)
        elif config.attention == "general":
            self.score = General(E)

        # The decoder reads the token and, with attention, the context vector beside it.
        decoder_input = E
        if has_attention:
            decoder_input = 2 * E

        self.decoder = Recurrent(
            config.cell,
            decoder_input,
            E,
            config.depth,
            dropout=config.dropout,
            residual=config.residual,
        )
        self.combine: nn.Linear | None = None
        attention_hooks: tuple[str, ...] = ()
        if has_attention:
            self.combine = nn.Linear(2 * E, E)
            attention_hooks = ("query", "key", "value", "scores", "weights", "context")

        self.head: nn.Linear | None = None
        if not config.tied:
            self.head = nn.Linear(E, config.vocabulary)

        self.hooks = HookPoints("encoder", *attention_hooks, "hidden", "logits")
        initialise(self)

    @property
    def stacks(self) -> dict[str, Stack]:
        return {}

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> RecurrentState:
        """Encode the source and return the decoder's state before the first target token."""
        config = self.config
        check_ids(source, config.source_vocabulary or config.vocabulary)
        if source.shape[1] == 0:
            raise ValueError("source: every row needs at least one token")

        lengths = None
        if padding_mask is not None:
            check_padding_mask(padding_mask, (source.shape[0], source.shape[1]))
            lengths = lengths_on_host_or_device(padding_mask)

        x = self.dropout(self.source_embedding(source))  # (B, S, E)
        outputs, last = self.encoder(x, lengths=lengths)
        outputs = self.hooks("encoder", outputs)  # (B, S, E)
        hidden = tuple(torch.tanh(self.bridge(h)) for h in last)  # each (L, B, E)
        if config.attention == "none":
            return RecurrentState(hidden)

        # The additive score projects the keys once, not at every decode step.
        keys = outputs
        if isinstance(self.score, Additive):
            keys = self.score.W_k(outputs)

        return RecurrentState(hidden, outputs, keys, padding_mask)

    def decoder_hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        state: RecurrentState,
        padding_mask: Bool[Tensor, "B N"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the hidden states of new target tokens.

        The padding mask is only checked: padding after the tokens changes nothing before it.
        """
        if padding_mask is not None:
            check_padding_mask(padding_mask, (ids.shape[0], state.length + ids.shape[1]))
            check_padding_after_tokens(padding_mask)

        check_ids(ids, self.config.vocabulary)
        check_source_rows(ids, state.rows)
        x = self.dropout(self.embedding(ids))  # (B, T, E)
        if ids.shape[1] == 0:
            return self.hooks("hidden", x)

        # Without attention all tokens are one call of the recurrent layers.
        if self.combine is None:
            outputs, hidden = self.decoder(x, state.hidden)
            state.advance(hidden, ids.shape[1])
            return self.hooks("hidden", outputs)

        # With attention the query is the hidden vector after the token before.
        steps = []
        for token in x.split(1, dim=1):  # (B, 1, E)
            context = self.attend_to_source(state)  # (B, 1, E)
            output, hidden = self.decoder(torch.cat([token, context], dim=-1), state.hidden)
            state.advance(hidden, 1)
            steps.append(torch.cat([output, context], dim=-1))  # (B, 1, 2 E)

        # No step needs what is computed from output and context, so all of them are one product.
        combined = torch.tanh(self.combine(torch.cat(steps, dim=1)))  # (B, T, E)
        return self.hooks("hidden", combined)

    def attend_to_source(self, state: RecurrentState) -> Float[Tensor, "B 1 E"]:
        """Return the context vector: the source attended to by the last hidden vector."""
        assert state.key is not None
        assert state.encoded is not None
        query = self.hooks("query", state.hidden[0][-1].unsqueeze(1))  # (B, 1, E)
        key = self.hooks("key", state.key)  # (B, S, E); of an additive score W_k times it
        value = self.hooks("value", state.encoded)  # (B, S, E)
        mask = None
        if state.padding_mask is not None:
            mask = Padding(state.padding_mask)

        context, _ = attend(
            query,
            key,
            value,
            mask=mask,
            score=self.score_function(),
            on_scores=self.hooks.callback("scores"),
            on_weights=self.hooks.callback("weights"),
        )

        return self.hooks("context", context)

    def score_function(self) -> Score:
        if isinstance(self.score, Additive):
            return self.score.with_projected_key
        if self.score is not None:
            return self.score
        if self.config.attention == "scaled_dot":
            return scaled_dot

        return dot

    @property
    def output_layer(self) -> tuple[Matrix, Tensor | None]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        if self.head is None:
            return self.embedding.weight, None

        return self.head.weight, self.head.bias


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


def lengths_on_host_or_device(padding_mask: Bool[Tensor, "B S"]) -> Int[Tensor, "B"]:
    """Return the number of tokens in each row, on the CPU, where PyTorch's packing wants them.

    In training on a GPU they stay there, as the host must not wait for it (see `run_steps`).
    """
    if padding_mask.is_cuda and torch.is_grad_enabled():
        return padding_mask.sum(1)

    return row_lengths(padding_mask.cpu())


def row_lengths(padding_mask: Bool[Tensor, "B S"]) -> Int[Tensor, "B"]:
    """Return the number of tokens in each row; they must come before the padding."""
    check_padding_after_tokens(padding_mask)
    lengths = padding_mask.sum(1)
    if bool((lengths == 0).any()):
        raise ValueError("padding_mask: every row needs at least one token")

    return lengths


def check_padding_after_tokens(padding_mask: Bool[Tensor, "B S"]) -> None:
    """Raise for left padding; only on the CPU, since reading a GPU tensor forces a device sync."""
    if padding_mask.device.type == "cpu" and padding_before_tokens(padding_mask):
        raise ValueError("padding_mask: an RNN's padding must come after the tokens of a row")


def initialise(model: Model) -> None:
    """Initialise recurrent matrices as orthogonal (states keep their norm), others by Glorot."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif "weight_hh" in name:
            initialise_recurrent(parameter)
        elif "embedding" in name:
            nn.init.normal_(parameter, std=model.config.width**-0.5)
        else:
            nn.init.xavier_uniform_(parameter)


def initialise_recurrent(weight: Tensor) -> None:
    """Make every gate's square matrix orthogonal; one weight holds the gates below each other."""
    for gate in weight.chunk(weight.shape[0] // weight.shape[1]):
        if not gate.is_meta:
            nn.init.orthogonal_(gate)
