"""The config of every model family; nothing here imports torch, so the command line starts fast."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
    """A decoder-only Transformer that predicts the next token: GPT, Llama, Transformer-XL.

    Raises:
        ValueError: If a field has a wrong value, or two fields contradict each other.

    Example:
        >>> from qkv.models import GPTConfig
        >>> GPTConfig(width=64, depth=2, heads=4, position="rotary").vocabulary
        50257
    """

    vocabulary: int = 50257
    """Number of different tokens (V)."""
    context: int = 1024
    """Longest text, in tokens."""
    width: int = 768
    depth: int = 12
    heads: int = 12
    join: Join = "sum"
    """How a learned or sinusoidal position vector joins the token's."""
    position_width: int | None = None
    """With join = concatenate: the part of the width that the position gets; None for half."""
    scaled_embedding: bool = False
    """Token embeddings times sqrt(width), as in the first Transformer: sinusoidal positions would
    otherwise dominate them.
    """
    tied: bool = True
    """The output layer is the token embedding itself."""
    memory: int = 0
    """Transformer-XL: positions of earlier segments that each layer remembers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "vocabulary", "context", "position_width")
        if self.memory and self.position != "relative":
            raise ValueError(
                "memory: only relative positions distinguish earlier segments from this one; "
                f"expected position = relative, not {self.position}"
            )
        if self.memory and self.sparse == "fixed":
            raise ValueError(
                "sparse: a fixed pattern counts from the first position, which a memory forgets; "
                "use strided"
            )
        if self.tied and self.join == "concatenate" and self.position in ("learned", "sinusoidal"):
            raise ValueError(
                "tied: with join = concatenate the token embedding is narrower than the model; "
                "use tied = False"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class OwnGPTConfig(GPTConfig):
    """A GPT that a user wrote herself: sizes, and the file with her class.

    Raises:
        ValueError: If a field is set that her class, built from its sizes alone, decides itself.

    Example:
        >>> from qkv.models.configs import OwnGPTConfig
        >>> OwnGPTConfig(model="mine.py", width=64, depth=2, heads=4).model
        'mine.py:GPT'
    """

    model: str | None = None
    """FILE.py, or FILE.py:CLASS: your own GPT, built as GPT(vocabulary, context, width, depth,
    heads). It starts with the weights that the usual one starts with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None:
            return
        if self.model.endswith(".py"):
            object.__setattr__(self, "model", f"{self.model}:GPT")

        sizes = ("vocabulary", "context", "width", "depth", "heads", "model")
        for field in fields(self):
            if field.name not in sizes and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"{field.name}: your own GPT decides this itself; leave it out with --model"
                )


@documented
@dataclass(frozen=True, kw_only=True)
class BERTConfig(StackConfig):
    """A bidirectional encoder that predicts masked tokens.

    Raises:
        ValueError: If a field has a wrong value, or two fields contradict each other.

    Example:
        >>> from qkv.models import BERTConfig
        >>> BERTConfig(width=64, depth=2, heads=4).norm_placement
        'after'
    """

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
    """How a learned or sinusoidal position vector joins the token's."""
    segments: int = 2
    """Segment embeddings (first sentence, second sentence); 0 for none."""
    mlm_head: bool = True
    """The layer that predicts masked tokens."""
    pooler: bool = True
    """The layer that makes a text's vector from its first token, [CLS]."""
    next_sentence: bool = True
    """The layer that predicts whether the second sentence followed the first; needs the pooler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "vocabulary", "context")
        if self.position == "relative":
            raise ValueError("position: relative positions are for causal models; expected another")
        if self.next_sentence and not self.pooler:
            raise ValueError("next_sentence: it reads the pooler's vector, so pooler must be True")
        if self.join == "concatenate" and self.position in ("learned", "sinusoidal"):
            raise ValueError(
                "join: BERT's output layer is its token embedding, so expected sum or product"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class TransformerConfig(StackConfig):
    """An encoder-decoder Transformer.

    Raises:
        ValueError: If a field has a wrong value, or two fields contradict each other.

    Example:
        >>> from qkv.models import TransformerConfig
        >>> TransformerConfig(width=64, depth=2, heads=4).position
        'sinusoidal'
    """

    vocabulary: int = 37000
    """Number of different target tokens (V)."""
    source_vocabulary: int | None = None
    """Number of different source tokens; None for the target's."""
    context: int = 512
    """Longest text, in tokens; a limit only for learned positions."""
    decoder_depth: int | None = None
    """Blocks of the decoder; None for as many as the encoder's (depth)."""
    norm_placement: NormPlacement = "after"
    position: Position = "sinusoidal"
    sinusoid: Sinusoid = "interleaved"
    """Order of sines and cosines in a sinusoidal position."""
    join: Join = "sum"
    """How a learned or sinusoidal position vector joins the token's."""
    activation: Activation = "relu"
    dropout: float = 0.1
    tied: Tied = "three"
    """three: source embedding = target embedding = output layer; two: the last two; none."""
    scaled_embedding: bool = True
    """Token embeddings times sqrt(width)."""
    logit_bias: bool = False
    """A bias on the output layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "vocabulary", "source_vocabulary", "context", "decoder_depth")
        if self.tied == "three" and self.source_vocabulary not in (None, self.vocabulary):
            raise ValueError(
                "tied: three ways needs one vocabulary, and source_vocabulary "
                f"{self.source_vocabulary} is not vocabulary {self.vocabulary}; use tied = two"
            )
        if self.position == "relative":
            raise ValueError("position: relative positions are for causal models; expected another")
        if (
            self.tied != "none"
            and self.join == "concatenate"
            and self.position in ("learned", "sinusoidal")
        ):
            raise ValueError(
                "tied: with join = concatenate the token embedding is narrower than the model; "
                "use tied = none"
            )


@documented
@dataclass(frozen=True, kw_only=True)
class RNNConfig:
    """A recurrent encoder-decoder, with or without attention.

    Raises:
        ValueError: If a field has a wrong value, or two fields contradict each other.

    Example:
        >>> from qkv.models import RNNConfig
        >>> RNNConfig(width=64, cell="lstm", attention="none").bidirectional
        True
    """

    vocabulary: int = 8000
    """Number of different target tokens (V)."""
    source_vocabulary: int | None = None
    """Number of different source tokens; None for the target's."""
    width: int = 512
    """Numbers in the vector of a token and in a hidden vector (E)."""
    depth: int = 1
    """Recurrent layers of the encoder, and of the decoder."""
    cell: Cell = "gru"
    """Plain RNN, LSTM or GRU."""
    attention: AttentionScore = "additive"
    """Score between the decoder's hidden vector and the encoder's outputs; none: no attention."""
    bidirectional: bool = True
    """The encoder reads in both directions, with half of the width each."""
    tied: bool = False
    """The output layer is the target token embedding itself."""
    dropout: float = 0.1
    """Probability to drop a number of an embedding or between layers, in training."""
    residual: bool = False
    """From the second layer on, add a layer's input to its output."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least_one(self, "vocabulary", "source_vocabulary", "width", "depth")
        check_probability(self, "dropout")
        if self.bidirectional and self.width % 2:
            raise ValueError(f"width: expected an even number for two directions, not {self.width}")


@documented
@dataclass(frozen=True, kw_only=True)
class RNNLMConfig:
    """A recurrent language model: it predicts the next token, as a GPT does, without attention.

    Raises:
        ValueError: If a field has a wrong value.

    Example:
        >>> from qkv.models import RNNLMConfig
        >>> RNNLMConfig(width=64, depth=2, residual=True).cell
        'lstm'
    """

    vocabulary: int = 8000
    """Number of different tokens (V)."""
    context: int = 256
    """Tokens of a row in training; no limit in generation."""
    width: int = 512
    """Numbers in the vector of a token and in a hidden vector (E)."""
    depth: int = 1
    """Recurrent layers."""
    cell: Cell = "lstm"
    """Plain RNN, LSTM or GRU."""
    tied: bool = True
    """The output layer is the token embedding itself."""
    dropout: float = 0.0
    """Probability to drop a number of an embedding or between layers, in training."""
    residual: bool = False
    """From the second layer on, add a layer's input to its output."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least_one(self, "vocabulary", "context", "width", "depth")
        check_probability(self, "dropout")


@documented
@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The task head that fine-tuning puts on a model, and how texts become rows of tokens.

    Raises:
        ValueError: If a field has a wrong value, or the labels do not fit the task.

    Example:
        >>> from qkv.models import HeadConfig
        >>> labels = ("bad", "good")
        >>> head = HeadConfig(task="classify", labels=labels, delimiter=1, extract=1, padding=0)
        >>> head.outputs
        2
    """

    task: HeadTask
    """The kind of task."""
    labels: tuple[str, ...] = ()
    """The names of the classes, by id; empty if the answer is a number or a choice."""
    pooling: Pooling = "last"
    """The vector of a text: that of its last token (for a GPT), of its first token, or the mean
    over all.
    """
    dropout: float = 0.1
    """Probability to drop a number of that vector in training."""
    bias: bool = False
    """Whether the head has a bias: GPT-1's has none, BERT's has one."""
    start: int | None = None
    """The id that a row starts with; None for no such token."""
    delimiter: int
    """The id between two texts."""
    extract: int
    """The id at the end of a row."""
    padding: int
    """The id that fills shorter rows; it is never attended to."""
    context: int | None = None
    """The longest row, with its special tokens; None for the backbone's context."""
    offset: float = 0.0
    """For numbers: the value in the data that an output of 0 stands for."""
    scale: float = 1.0
    """For numbers: the difference in the data that an output of 1 adds."""

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
    """A pre-trained backbone and the head of a task.

    Raises:
        ValueError: If backbone and head do not fit together.

    Example:
        >>> from qkv.models import GPTConfig, HeadConfig, TaskModelConfig
        >>> backbone = GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2)
        >>> head = HeadConfig(task="regress", delimiter=1, extract=2, padding=0)
        >>> TaskModelConfig(backbone=backbone, head=head).context
        8
    """

    backbone: GPTConfig | BERTConfig
    """The pre-trained model."""
    head: HeadConfig
    """Its output layer for the task."""

    def __post_init__(self) -> None:
        if isinstance(self.backbone, GPTConfig) and self.backbone.memory:
            raise ValueError(
                "memory: a model with a memory across texts cannot have a task head; expected 0"
            )
        if isinstance(self.backbone, GPTConfig) and self.head.pooling == "first":
            raise ValueError(
                "pooling: the first token of a causal model attends to nothing else; "
                "expected last or mean"
            )

        if isinstance(self.backbone, OwnGPTConfig):
            raise ValueError(
                "backbone: a task head needs one of the package's models, and this is your own GPT"
            )

        head = self.head
        special_ids = (head.start or 0, head.delimiter, head.extract, head.padding)
        if not 0 <= min(special_ids) <= max(special_ids) < self.backbone.vocabulary:
            raise ValueError(
                "head: its special tokens must be ids below the vocabulary's "
                f"{self.backbone.vocabulary:,}, not {special_ids}"
            )

    @property
    def vocabulary(self) -> int:
        return self.backbone.vocabulary

    @property
    def context(self) -> int:
        """Longest text in tokens, special tokens included."""
        return min(self.head.context or self.backbone.context, self.backbone.context)

    @property
    def width(self) -> int:
        return self.backbone.width

    @property
    def depth(self) -> int:
        return self.backbone.depth

    @property
    def frame(self) -> dict[str, Any]:
        """The fields of data.batches.framing.Frame: how texts become rows of tokens."""
        return {
            "task": self.head.task,
            "start": self.head.start,
            "delimiter": self.head.delimiter,
            "extract": self.head.extract,
            "padding": self.head.padding,
            "pooling": self.head.pooling,
            "segments": isinstance(self.backbone, BERTConfig) and self.backbone.segments > 1,
            "context": self.context,
        }


@documented
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The config of a model family from outside the package; a subclass adds its own fields.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class BigramConfig(ModelConfig):
        ...     smoothing: float = 1.0
        >>> BigramConfig(vocabulary=100).smoothing
        1.0
    """

    vocabulary: int = 50257
    """Number of different tokens (V)."""
    context: int = 1024
    """Longest text, in tokens."""
    width: int = 768
    """Model width: numbers in the vector of a token (E)."""
    depth: int = 1
    """Layers."""


Config = (
    GPTConfig
    | BERTConfig
    | TransformerConfig
    | RNNConfig
    | RNNLMConfig
    | TaskModelConfig
    | ModelConfig
)
CONFIGS: dict[str, type[Any]] = {
    "gpt": GPTConfig,
    "own-gpt": OwnGPTConfig,
    "bert": BERTConfig,
    "transformer": TransformerConfig,
    "rnn": RNNConfig,
    "rnn-lm": RNNLMConfig,
    "task_model": TaskModelConfig,
}


def family(config: Config) -> str:
    """Return the family name of a config, as config.json has it."""
    for name, kind in CONFIGS.items():
        if type(config) is kind:
            return name

    kinds = ", ".join(kind.__name__ for kind in CONFIGS.values())
    raise TypeError(
        f"config: expected one of {kinds}, not {config!r}; preset(name) gives the published ones"
    )
