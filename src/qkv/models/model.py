"""What all models have in common: the output layer once, and what a model can do."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.configs import HeadConfig
from qkv.nn.attention import Causal, Document, Mask, Padding, all_of
from qkv.nn.embedding import Embedding
from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Matrix, linear

Predicts = Literal["next", "masked", "target"]
M = TypeVar("M", bound="Model")


class Model(nn.Module):
    """The base class of GPT, BERT, Transformer, RNN and TaskModel.

    A family defines `hidden`, from token ids to hidden states, and an embedding; a family that
    generates also defines `start` and `decoder_hidden`. What callers may ask of a model without
    knowing its family are the attributes below.

    Example:
        >>> from qkv.models import GPTConfig, build
        >>> model = build(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> model.predicts, model.has_source, list(model.stacks)
        ('next', False, ['stack'])
    """

    config: Any
    embedding: Any
    head: Any
    hooks: HookPoints
    stack: Any

    predicts: Predicts | None = None
    """The token its logits are for: the next one, a masked one, the next one of a target."""
    has_source = False
    """It reads a source and generates a target: an encoder-decoder."""
    is_causal = False
    """The vector of a token depends on no later token."""

    @property
    def task(self) -> HeadConfig | None:
        """The task of a fine-tuned model with a task head."""
        return None

    @property
    def stacks(self) -> dict[str, Any]:
        """The stacks of blocks by their names in the model; an RNN has none.

        Each is a `Stack`, or of a user's own model a module with `blocks` and `norm`.
        """
        return {"stack": self.stack}

    @property
    def uses_kv_cache(self) -> bool:
        """Decoding needs keys and values of earlier tokens, and no other state."""
        return False

    @property
    def reads_on(self) -> bool:
        """Its state has no end, so that it reads on beyond the context: an RNN, Transformer-XL."""
        return not self.uses_kv_cache

    def mask(
        self,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        documents: Int[Tensor, "B S"] | None = None,
        *,
        causal: bool | None = None,
    ) -> Mask | None:
        """Return the mask of self-attention: causal, sparse, no padding, inside one document.

        Args:
            padding_mask: True for tokens, False for padding.
            documents: The number of the document each position belongs to.
            causal: Whether a token attends to no later one; by default as the model does.
        """
        masks = [self.config.sparsity()]
        if self.is_causal if causal is None else causal:
            masks.insert(0, Causal())
        if documents is not None:
            masks.append(Document(documents))
        if padding_mask is not None:
            masks.append(Padding(padding_mask))

        return all_of(*masks)

    def hidden(self, *args: Any, **kwargs: Any) -> Float[Tensor, "B T E"]:
        """Return the hidden states of all tokens, which the output layer turns into logits."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Float[Tensor, "B T V"]:
        """Return the logits at every position; the arguments are those of `hidden`."""
        return self.logits(self.hidden(*args, **kwargs))

    def logits(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n V"]:
        """Apply the output layer to hidden states."""
        return self.hooks("logits", linear(self.features(hidden), *self.output_layer))

    def features(self, hidden: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        """Return what the output layer multiplies: by default the hidden states as they are."""
        return hidden

    @property
    def output_matrix(self) -> Matrix:
        """The matrix of the output layer; a tied one is the embedding's."""
        return self.embedding.token.weight if self.head is None else self.head.weight

    @property
    def output_layer(self) -> tuple[Matrix, Tensor | None]:
        """Matrix and bias of the output layer; a loss can apply them chunk by chunk."""
        return self.output_matrix, None if self.head is None else self.head.bias

    def start(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state before the first generated token."""
        raise NotImplementedError

    def decoder_hidden(
        self,
        ids: Int[Tensor, "B T"],
        *,
        state: Any,
        padding_mask: Bool[Tensor, "B S"] | None = None,
        positions: Int[Tensor, "#B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the hidden states of new tokens, which are appended to the state.

        Args:
            ids: The new token ids, (B, T).
            state: What `start` returned.
            padding_mask: False for padding, for all S positions so far.
            positions: Positions of the ids; by default they follow those of the state.
        """
        raise NotImplementedError

    def decode(
        self,
        ids: Int[Tensor, "B T"],
        state: Any,
        padding_mask: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Run one prefill or decode step: the logits of the new tokens only."""
        return self.logits(self.decoder_hidden(ids, state=state, padding_mask=padding_mask))


class EncoderDecoder(Model):
    """A model that reads a source and predicts the next target token: Transformer and RNN."""

    predicts: Predicts | None = "target"
    has_source = True

    def hidden(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        *,
        source_padding_mask: Bool[Tensor, "B S"] | None = None,
        target_padding_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """Return the decoder's hidden states under teacher forcing, before the output layer.

        Args:
            source: Token ids of the source, (B, S).
            target: Token ids of the target so far, (B, T).
            source_padding_mask: True for tokens, False for padding, (B, S); an RNN's padding must
                come after the tokens.
            target_padding_mask: The same for the target, (B, T).

        Returns:
            Hidden states, (B, T, E).

        Raises:
            ValueError: If ids or masks do not fit the vocabularies, the context or each other.
            TypeError: If the ids are not integers or a padding mask is not bool.
        """
        state = self.teacher_forcing_state(source, source_padding_mask)
        return self.decoder_hidden(target, state=state, padding_mask=target_padding_mask)

    def teacher_forcing_state(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None
    ) -> Any:
        """Return a state for one pass over a whole target: by default that of decoding."""
        return self.start(source, padding_mask)


def token_embedding(config: Any, vocabulary: int | None = None, **options: Any) -> Embedding:
    """Return the embedding that a config describes, of its vocabulary or of another."""
    for name in (
        "context",
        "position",
        "join",
        "position_width",
        "sinusoid",
        "segments",
        "dropout",
    ):
        if hasattr(config, name):
            options[name] = getattr(config, name)

    options["scaled"] = getattr(config, "scaled_embedding", False)
    return Embedding(vocabulary or config.vocabulary, config.width, **options)


def expect(model: object, kind: type[M], message: str) -> M:
    """Return the model as a model of this class, or raise ValueError with the message."""
    if not isinstance(model, kind):
        raise ValueError(message)

    return model


def backbone_of(model: Model) -> Model:
    """Return the model below a task head, or the model itself if it has none."""
    return getattr(model, "backbone", model)


def uncompiled(model: M) -> M:
    """Return the model inside the wrapper of torch.compile, whose parameters have other names."""
    return getattr(model, "_orig_mod", model)
