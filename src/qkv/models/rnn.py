"""The RNN encoder-decoder, without attention (Sutskever et al. 2014) and with it (Bahdanau et al.
2015).

Without attention the whole source must pass through one vector. With it, before each target word
the decoder asks the encoder's outputs with its last hidden vector, and what it finds goes into its
next step.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import RNNConfig
from qkv.models.input_checks import check_ids, check_padding_mask, check_rows, padding_before_tokens
from qkv.nn.attention import Additive, General, Padding, attend, dot, scaled_dot
from qkv.nn.attention.score import Score
from qkv.nn.cache import RecurrentState
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import linear
from qkv.nn.recurrent import Recurrent


class RNN(nn.Module):
    """Source in, target out: `model(source, target)` gives (B, T, V), `start` and `decode` go on
    word by word.
    """

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.config = config
        E, has_attention = config.width, config.attention != "none"
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
        )

        self.bridge = nn.Linear(E, E)  # from the encoder's last state to the decoder's first
        self.score: nn.Module | None = None
        if config.attention == "additive":
            self.score = Additive(E)
        elif config.attention == "general":
            self.score = General(E)

        self.decoder = Recurrent(
            config.cell, 2 * E if has_attention else E, E, config.depth, dropout=config.dropout
        )
        self.combine = nn.Linear(2 * E, E) if has_attention else None
        self.head = None if config.tied else nn.Linear(E, config.vocabulary)
        asked = ("scores", "weights", "context") if has_attention else ()
        self.hooks = HookPoints("encoder", *asked, "hidden", "logits")
        initialise(self)

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        *,
        source_padding_mask: Bool[Tensor, "B S"] | None = None,
        target_padding_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Scores of the next target word after each target word (teacher forcing).

        `padding_mask` is False for padding, which comes after the words; the target's changes
        nothing before it.
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
        if target_padding_mask is not None:
            check_padding_mask(target_padding_mask, (target.shape[0], target.shape[1]))
            refuse_padding_first(target_padding_mask)

        return self.hidden(target, self.start(source, source_padding_mask))

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> RecurrentState:
        """Read the source; the state before the first target word."""
        config = self.config
        check_ids(source, config.source_vocabulary or config.vocabulary)
        if source.shape[1] == 0:
            raise ValueError("source: every row needs at least one word")

        lengths = None
        if padding_mask is not None:
            check_padding_mask(padding_mask, (source.shape[0], source.shape[1]))
            lengths = words_first(padding_mask.cpu())  # where PyTorch's packing wants them

        outputs, last = self.encoder(self.dropout(self.source_embedding(source)), lengths=lengths)
        outputs = self.hooks("encoder", outputs)  # (B, S, E)
        hidden = tuple(torch.tanh(self.bridge(h)) for h in last)  # each (L, B, E)
        if config.attention == "none":
            return RecurrentState(hidden)

        key = self.score.W_k(outputs) if isinstance(self.score, Additive) else outputs

        return RecurrentState(hidden, outputs, key, padding_mask)

    def decode(self, target: Int[Tensor, "B T"], state: RecurrentState) -> Float[Tensor, "B T V"]:
        """Go on from a state with the next target words."""
        return self.logits(self.hidden(target, state))

    def hidden(self, target: Int[Tensor, "B T"], state: RecurrentState) -> Float[Tensor, "B T E"]:
        check_ids(target, self.config.vocabulary)
        check_rows(target, state.hidden[0].shape[1])
        words = self.dropout(self.embedding(target))  # (B, T, E)
        if target.shape[1] == 0:
            return self.hooks("hidden", words)

        if self.combine is None:
            outputs, hidden = self.decoder(words, state.hidden)
            state.append(hidden, target.shape[1])
            return self.hooks("hidden", outputs)

        steps = []

        for word in words.split(1, dim=1):  # (B, 1, E)
            context = self.look(state)
            output, hidden = self.decoder(torch.cat([word, context], dim=-1), state.hidden)
            state.append(hidden, 1)
            steps.append(torch.tanh(self.combine(torch.cat([output, context], dim=-1))))

        return self.hooks("hidden", torch.cat(steps, dim=1))

    def look(self, state: RecurrentState) -> Float[Tensor, "B 1 E"]:
        """What the decoder's last hidden vector finds in the source."""
        query = state.hidden[0][-1].unsqueeze(1)  # (B, 1, E)
        assert state.key is not None
        assert state.source is not None
        context, _ = attend(
            query,
            state.key,
            state.source,
            mask=None if state.padding_mask is None else Padding(state.padding_mask),
            score=self.similarity(),
            on_scores=self.hooks.heard("scores"),
            on_weights=self.hooks.heard("weights"),
        )

        return self.hooks("context", context)

    def similarity(self) -> Score:
        if isinstance(self.score, Additive):
            return self.score.with_projected_key

        return self.score or (scaled_dot if self.config.attention == "scaled_dot" else dot)

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """What the output layer reads."""
        return hidden

    @property
    def output_layer(self) -> tuple[Tensor, Tensor | None]:
        """Its matrix and its bias; a loss may apply it piece by piece."""
        return (
            (self.embedding.weight, None)
            if self.head is None
            else (self.head.weight, self.head.bias)
        )


def words_first(padding_mask: Bool[Tensor, "B S"]) -> Int[Tensor, "B"]:
    """How many words each row has; an RNN needs them before the padding, and at least one."""
    refuse_padding_first(padding_mask)
    lengths = padding_mask.sum(1)
    if bool((lengths == 0).any()):
        raise ValueError("padding_mask: every row needs at least one word")

    return lengths


def refuse_padding_first(padding_mask: Bool[Tensor, "B S"]) -> None:
    # On another device the look would make the host wait.
    if padding_mask.device.type == "cpu" and padding_before_tokens(padding_mask):
        raise ValueError("padding_mask: an RNN's padding must come after the words of a row")


def initialise(model: RNN) -> None:
    """Recurrent matrices orthogonal, so that what is carried neither grows nor fades; the rest
    Glorot's uniform.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif "weight_hh" in name:
            for gate in parameter.chunk(parameter.shape[0] // parameter.shape[1]):
                if not gate.is_meta:
                    nn.init.orthogonal_(gate)
        elif "embedding" in name:
            nn.init.normal_(parameter, std=model.config.width**-0.5)
        else:
            nn.init.xavier_uniform_(parameter)
