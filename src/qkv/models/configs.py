"""The config of every family of models. Nothing here imports torch, so that the command line starts
at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from qkv.nn.config import check_at_least_one, check_fields, check_probability, documented
from qkv.nn.stack_config import (
    Activation,
    Cell,
    Join,
    NormPlacement,
    Position,
    Sinusoid,
    StackConfig,
)

Tied = Literal["three", "two", "none"]
AttentionScore = Literal["none", "additive", "dot", "scaled_dot", "general"]
HeadTask = Literal["classify", "pair", "similarity", "choice", "tag", "regress"]
Pooling = Literal["last", "first", "mean"]


@documented
@dataclass(frozen=True, kw_only=True)
class GPTConfig(StackConfig):
    """A decoder-only Transformer that predicts the next token: GPT, Llama, Transformer-XL."""

    vocabulary: int = 50257
    """Number of different tokens (V)."""
    context: int = 1024
    """Longest text, in tokens."""
    width: int = 768
    depth: int = 12
    heads: int = 12
    join: Join = "sum"
    """How a learned or sinusoidal position joins its word."""
    position_width: int | None = None
    """With join = concatenate: how much of the width the position gets; half unless given."""
    scaled_embedding: bool = False
    """Word embeddings times sqrt(width), as in the first Transformer: else sinusoidal positions
    drown the words.
    """
    tied: bool = True
    """The output layer is the word embedding itself."""
    memory: int = 0
    """Transformer-XL: how many positions of earlier segments each layer remembers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "vocabulary", "context", "position_width")
        if self.memory and self.position != "relative":
            raise ValueError(
                "memory: only relative positions tell earlier segments from this one; "
                f"expected position = relative, not {self.position}"
            )
        if self.memory and self.sparse == "fixed":
            raise ValueError(
                "sparse: a fixed pattern counts from the first position, which a memory forgets; use strided"
            )
        if self.tied and self.join == "concatenate" and self.position in ("learned", "sinusoidal"):
            raise ValueError(
                "tied: with join = concatenate the word embedding is narrower than the model; use tied = False"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class BERTConfig(StackConfig):
    """A bidirectional encoder that predicts masked tokens."""

    vocabulary: int = 30522
    """Number of different tokens (V)."""
    context: int = 512
    """Longest text, in tokens."""
    width: int = 768
    depth: int = 12
    heads: int = 12
    norm_placement: NormPlacement = "after"
    norm_epsilon: float = 1e-12
    join: Join = "sum"
    """How a learned or sinusoidal position joins its word."""
    segments: int = 2
    """Kinds of sentence told apart by an embedding of their own (first, second); 0 for none."""
    mlm_head: bool = True
    """The layer that guesses masked words."""
    pooler: bool = True
    """The layer that makes a sentence's vector from its first word."""
    next_sentence: bool = True
    """The layer that says whether the second sentence followed the first; needs the pooler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "vocabulary", "context")
        if self.position == "relative":
            raise ValueError("position: relative positions are for causal models; expected another")
        if self.next_sentence and not self.pooler:
            raise ValueError("next_sentence: it reads the pooler's vector, so pooler must be True")
        if self.join == "concatenate" and self.position in ("learned", "sinusoidal"):
            raise ValueError(
                "join: BERT's output layer is its word embedding, so expected sum or product"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class TransformerConfig(StackConfig):
    """An encoder-decoder Transformer."""

    vocabulary: int = 37000
    """Number of different target tokens (V)."""
    source_vocabulary: int | None = None
    """Number of different source tokens; the target's unless given."""
    context: int = 512
    """Longest text, in tokens; only learned positions end there."""
    decoder_depth: int | None = None
    """Blocks of the decoder; as many as the encoder's (depth) unless given."""
    norm_placement: NormPlacement = "after"
    position: Position = "sinusoidal"
    sinusoid: Sinusoid = "interleaved"
    """Order of the sinusoidal position's numbers."""
    join: Join = "sum"
    """How a learned or sinusoidal position joins its word."""
    activation: Activation = "relu"
    dropout: float = 0.1
    tied: Tied = "three"
    """three: source embedding = target embedding = output layer; two: the last two; none."""
    scaled_embedding: bool = True
    """Word embeddings times sqrt(width)."""
    logit_bias: bool = False
    """A bias on the output layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "vocabulary", "source_vocabulary", "context", "decoder_depth")
        if self.tied == "three" and self.source_vocabulary not in (None, self.vocabulary):
            raise ValueError(
                f"tied: three ways needs one vocabulary, and source_vocabulary {self.source_vocabulary} is not "
                f"vocabulary {self.vocabulary}; use tied = two"
            )
        if self.position == "relative":
            raise ValueError("position: relative positions are for causal models; expected another")
        if (
            self.tied != "none"
            and self.join == "concatenate"
            and self.position in ("learned", "sinusoidal")
        ):
            raise ValueError(
                "tied: with join = concatenate the word embedding is narrower than the model; use tied = none"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class RNNConfig:
    """A recurrent encoder-decoder, with or without attention."""

    vocabulary: int = 8000
    """Number of different target tokens (V)."""
    source_vocabulary: int | None = None
    """Number of different source tokens; the target's unless given."""
    width: int = 512
    """Numbers in the vector of a word and in a hidden vector (E)."""
    depth: int = 1
    """Recurrent layers on top of each other, in encoder and decoder each."""
    cell: Cell = "gru"
    """Plain RNN, LSTM or GRU."""
    attention: AttentionScore = "additive"
    """How the decoder compares its hidden vector with the encoder's outputs; none for no attention.
    """
    bidirectional: bool = True
    """The encoder reads both ways, half of the width each."""
    tied: bool = False
    """The output layer is the target word embedding itself."""
    dropout: float = 0.1
    """Probability to drop a number of an embedding or between layers, in training."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least_one(self, "vocabulary", "source_vocabulary", "width", "depth")
        check_probability(self, "dropout")
        if self.bidirectional and self.width % 2:
            raise ValueError(f"width: expected an even number for two directions, not {self.width}")


@documented
@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head that fine-tuning puts on a model, and how texts become its rows of tokens."""

    task: HeadTask
    """What is asked."""
    labels: tuple[str, ...] = ()
    """The classes by name, in the order of their ids; none where the answer is a number or a
    choice.
    """
    pooling: Pooling = "last"
    """The vector of a text: its last word's (a GPT's, which has read all of it), its first word's,
    or the mean.
    """
    dropout: float = 0.1
    """Probability to drop a number of that vector in training."""
    bias: bool = False
    """GPT-1's head has none, BERT's has one."""
    start: int | None = None
    """The id that a text begins with, if any."""
    delimiter: int
    """The id between two texts."""
    extract: int
    """The id at the end."""
    padding: int
    """The id that fills shorter rows up; it is never looked at."""
    context: int | None = None
    """The longest row, marks included; the body's unless given."""
    offset: float = 0.0
    """Of numbers: what 0 stands for in the data."""
    scale: float = 1.0
    """Of numbers: what 1 stands for beyond that."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))  # JSON has lists
        check_fields(self)
        check_probability(self, "dropout")
        check_at_least_one(self, "context")
        if self.labels and self.task in ("choice", "regress"):
            raise ValueError(f"labels: {self.task} has no classes; leave them out")
        if len(self.labels) < 2 and self.task in ("classify", "pair", "tag"):
            raise ValueError(
                f"labels: {self.task} expects two classes or more, not {len(self.labels)}"
            )
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels: a class is named twice")

    @property
    def numbers(self) -> bool:
        """Whether the answer is a number."""
        return not self.labels and self.task != "choice"

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1


@documented
@dataclass(frozen=True, kw_only=True)
class TaskModelConfig:
    """A pre-trained body and the head of a task."""

    backbone: GPTConfig | BERTConfig
    """The pre-trained model."""
    head: HeadConfig
    """Its output layer for the task."""

    def __post_init__(self) -> None:
        if isinstance(self.backbone, GPTConfig) and self.backbone.memory:
            raise ValueError(
                "memory: a model that reads on from text to text cannot carry a head; expected 0"
            )
        if isinstance(self.backbone, GPTConfig) and self.head.pooling == "first":
            raise ValueError(
                "pooling: the first word of a causal model has read nothing; expected last or mean"
            )

        marks = (self.head.start or 0, self.head.delimiter, self.head.extract, self.head.padding)
        if not all(0 <= mark < self.backbone.vocabulary for mark in marks):
            raise ValueError(
                f"head: its marks must be ids below the vocabulary's {self.backbone.vocabulary:,}, not {marks}"
            )

    @property
    def vocabulary(self) -> int:
        return self.backbone.vocabulary

    @property
    def context(self) -> int:
        """Longest text in tokens, marks included."""
        return min(self.head.context or self.backbone.context, self.backbone.context)

    @property
    def width(self) -> int:
        return self.backbone.width

    @property
    def depth(self) -> int:
        return self.backbone.depth

    @property
    def frame(self) -> dict[str, Any]:
        """How texts become rows: what data.labelled.Frame is made from."""
        head, backbone = self.head, self.backbone
        segments = isinstance(backbone, BERTConfig) and backbone.segments > 1
        names = ("task", "start", "delimiter", "extract", "padding", "pooling")

        return {name: getattr(head, name) for name in names} | {
            "segments": segments,
            "context": self.context,
        }


Config = GPTConfig | BERTConfig | TransformerConfig | RNNConfig | TaskModelConfig
CONFIGS: dict[str, type[Any]] = {
    "gpt": GPTConfig,
    "bert": BERTConfig,
    "transformer": TransformerConfig,
    "rnn": RNNConfig,
    "task_model": TaskModelConfig,
}


def family(config: Config) -> str:
    for name, kind in CONFIGS.items():
        if type(config) is kind:
            return name

    kinds = ", ".join(kind.__name__ for kind in CONFIGS.values())
    raise TypeError(
        f"config: expected one of {kinds}, not {config!r}; preset(name) gives the published ones"
    )
