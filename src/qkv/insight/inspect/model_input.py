"""A text as model input: its token ids with the special tokens around them, and readable tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.framing import Frame
from qkv.data.sources.examples import Example
from qkv.generation.fill import masked_ids, masks_of
from qkv.generation.prompts import check_text
from qkv.generation.text import prompt_ids
from qkv.generation.translate import source_ids, translate_texts
from qkv.insight.inspect.whole_words import WholeWord, whole_words
from qkv.models.model import Model, backbone_of
from qkv.text.detokenizer import bytes_of
from qkv.text.frame_tokens import FrameTokens, tokens_around, translation_ends
from qkv.text.tokenizer import Tokenizer

VISIBLE = str.maketrans({"\n": "↵", "\r": "␍", "\t": "⇥"})
BACKSLASH_X = "\\x"
INVALID_BYTES = re.compile(r"(?:\\x[0-9a-f]{2})+")
TEXTS_OF_TASK = {"pair": 2, "similarity": 2, "classify": 1}


class Side(NamedTuple):
    """One token sequence; a translation has two, the source side and the target side."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """Readable tokens; a special token has its name."""
    words: tuple[WholeWord, ...]
    """The tokens grouped into whole words."""
    special: tuple[int, ...] = ()
    """The positions of special tokens."""


class Reading(NamedTuple):
    """The token sequences of one forward pass."""

    text: Side
    """The input; for a translator the target, which begins with its start token."""
    source: Side | None = None
    """The source of a translator."""
    segments: tuple[int, ...] | None = None
    """For each token 0 or 1, the text it is from, for a BERT with segment embeddings."""
    chosen: Side | None = None
    """For a translator: the token predicted at each position, i.e. the target and its end token."""

    @property
    def rows(self) -> Side:
        """The tokens that label the rows of cross-attention and attribution.

        For a translator these are the predicted tokens, for other models the input tokens.
        """
        return self.chosen or self.text

    def queries(self, kind: str) -> Side:
        """The tokens that attend, in this kind of attention."""
        return self.source if kind == "encoder" and self.source is not None else self.text

    def keys(self, kind: str) -> Side:
        """The tokens that are attended to, in this kind of attention."""
        return self.source if kind == "cross" and self.source is not None else self.queries(kind)


# From texts to token ids


def read(
    model: Model,
    tokenizer: Tokenizer,
    *texts: str,
    source: str | None = None,
    target: str | None = None,
) -> Reading:
    """Turn a text into the input of a model.

    Args:
        model: The model, which determines the special tokens.
        tokenizer: Its tokenizer.
        texts: One text; a BERT takes one or two, a translator its source.
        source: The source of a translator.
        target: The target of a translator; by default its own translation of the source.

    Returns:
        The token ids with readable tokens and whole words.

    Raises:
        ValueError: If a text is missing, empty, too long, or not of the kind the model reads.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> insight.read(model, tokenizer, "the cat sat").text.tokens
        ('the', 'cat', 'sat')
    """
    named = [*(("text", text) for text in texts), ("source", source), ("target", target)]
    for name, text in named:
        if text is not None:
            check_text(text, name)
    if model.has_source:
        return read_pair(model, tokenizer, texts, source, target)
    if source is not None or target is not None:
        raise ValueError(
            f"source: a {type(backbone_of(model)).__name__} reads one text; give it without source "
            "and target"
        )
    if not texts or not all(text.strip() for text in texts):
        raise ValueError("text: there is nothing to read; expected a text")

    if model.task is not None:
        return read_framed(model, tokenizer, texts)

    reading = (read_prompt if model.is_causal else read_sentences)(model, tokenizer, texts)
    check_length(model, reading)
    return reading


def check_length(model: Model, reading: Reading) -> None:
    """Raise if the text is longer than the context, which is one segment of a Transformer-XL."""
    tokens = len(reading.text.ids)
    context = model.config.context
    if tokens > context:
        raise ValueError(
            f"text: {tokens:,} tokens are more than the model's context of {context:,}; shorten it"
        )


def read_prompt(model: Model, tokenizer: Tokenizer, texts: Sequence[str]) -> Reading:
    """The input of a GPT: one text, after a start token if the tokenizer uses one."""
    if len(texts) > 1:
        raise ValueError(
            f"text: a GPT reads one text, not {len(texts)}; put quotation marks around it"
        )

    return Reading(make_side(tokenizer, prompt_ids(tokenizer, texts[0])))


def read_pair(
    model: Any, tokenizer: Tokenizer, texts: Sequence[str], source: str | None, target: str | None
) -> Reading:
    """The input of a translator; without a target the model translates the source itself."""
    if source is None and len(texts) == 1:
        source = texts[0]
    elif texts or source is None:
        raise ValueError(
            "source: a translator reads a source (and a target, if it is not to translate itself)"
        )

    start, end = translation_ends(tokenizer)
    for name, text in (("source", source), ("target", target)):
        if text is not None and not text.strip():
            raise ValueError(f"{name}: there is nothing to read; expected a sentence")

    (encoded_source,) = source_ids([model], tokenizer, [source])
    if target is None:
        ((_, translations),) = translate_texts([model], tokenizer, [source])
        target_ids = translations[0].ids
    else:
        target_ids = tokenizer.encode(target)

    target_ids = [id for id in target_ids if id != end]

    return Reading(
        make_side(tokenizer, [start, *target_ids]),
        make_side(tokenizer, encoded_source),
        chosen=make_side(tokenizer, [*target_ids, end]),
    )


def read_sentences(model: Model, tokenizer: Tokenizer, texts: Sequence[str]) -> Reading:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP]; [mask] in a text is the mask token."""
    if len(texts) > 2:
        raise ValueError(
            f"text: a BERT reads one text or two, not {len(texts)}; put quotation marks around each"
        )

    frame = frame_tokens(model, tokenizer)["self"]
    ids = list(frame.before)
    segments = [0] * len(ids)

    for number, text in enumerate(texts):
        if tokenizer.mask is not None and masks_of(tokenizer).search(text) is not None:
            encoded = masked_ids(tokenizer, text)[len(frame.before) :]
        else:
            encoded = [*tokenizer.encode(text), *frame.after]

        ids += encoded
        segments += [number] * len(encoded)

    if len(texts) == 2 and model.config.segments > 1:
        return Reading(make_side(tokenizer, ids), segments=tuple(segments))

    return Reading(make_side(tokenizer, ids))


def read_framed(model: Model, tokenizer: Tokenizer, texts: Sequence[str]) -> Reading:
    """The input of a task model with its special tokens.

    If the task has several sequences (both orders of a pair, all choices), this is the first.
    """
    task = model.config.head.task
    parts = tuple(texts)
    if task == "tag":
        parts = tuple(" ".join(texts).split())

    needed = TEXTS_OF_TASK.get(task)
    if needed is not None and len(parts) != needed:
        raise ValueError(
            f"text: a model for {task} reads {needed} text{'s' * (needed > 1)}, not {len(parts)}"
        )
    if task == "choice" and len(parts) < 2:
        raise ValueError(
            "text: a model for choice reads a context and one choice or more; give at least two "
            "texts"
        )

    frame = Frame(**model.config.frame)
    framed = frame.encode(tokenizer, [Example(parts, None, "text")])[0]
    ids = framed.sequences[0].tolist()
    if not frame.segments:
        return Reading(make_side(tokenizer, ids))

    second = int(framed.seconds[0])
    segments = tuple(int(position >= second) for position in range(len(ids)))
    return Reading(make_side(tokenizer, ids), segments=segments)


# Special tokens around a text


def frame_tokens(model: Model, tokenizer: Tokenizer) -> dict[str, FrameTokens]:
    """The special tokens that `read` puts around a text, by kind of self-attention.

    The key is `self`, or for a translator `encoder` and `decoder`. A task model reads a single
    text, whatever its task.
    """
    if not model.stacks:
        raise ValueError("model: an RNN has no self-attention; expected another model")

    if model.task is not None:
        return {"self": FrameTokens.of(model.task.start, model.task.extract)}
    if model.has_source:
        return {
            "encoder": tokens_around(tokenizer, "source"),
            "decoder": tokens_around(tokenizer, "target"),
        }

    return {"self": tokens_around(tokenizer, "prompt" if model.is_causal else "sentence")}


# Readable tokens


def make_side(tokenizer: Tokenizer, ids: Sequence[int]) -> Side:
    """A token sequence with its readable tokens and whole words."""
    tokens = tuple(readable_token(tokenizer, id) for id in ids)
    words = []
    for word in whole_words(tokenizer, ids):
        text = word.text.translate(VISIBLE)
        if not text:
            text = "".join(tokens[position] for position in word.positions)

        words.append(WholeWord(text, word.positions))

    special = tuple(position for position, id in enumerate(ids) if id in tokenizer.special)
    return Side(tuple(ids), tokens, tuple(words), special)


def readable_token(tokenizer: Tokenizer, id: int) -> str:
    """A token as people read it: without word-boundary markers, white space made visible."""
    if id >= tokenizer.vocabulary:
        return f"[{id}]"
    if id in tokenizer.special:
        return tokenizer.token(id).strip()

    prefix = getattr(tokenizer.inner.model, "continuing_subword_prefix", None) or ""
    text = (tokenizer.decode([id]) or tokenizer.token(id)).removeprefix(prefix)
    if "\ufffd" in text:
        text = with_named_bytes(tokenizer, id) or text

    return (text.strip(" ▁") or "␣" * len(text)).translate(VISIBLE)


def with_named_bytes(tokenizer: Tokenizer, id: int) -> str:
    """A byte-level token that is only a part of a character, with its bytes as ⟨F0 9F⟩.

    Empty for a token of another kind.
    """
    if "ByteLevel" not in tokenizer.decoders:
        return ""

    def named(match: re.Match[str]) -> str:
        return f"⟨{match[0].replace(BACKSLASH_X, ' ').strip().upper()}⟩"

    escaped = bytes_of(tokenizer.token(id)).decode("utf-8", "backslashreplace")
    return INVALID_BYTES.sub(named, escaped)


def leading_spaces(tokenizer: Tokenizer, ids: Iterable[int]) -> dict[int, int]:
    """How many spaces each token begins with that `readable_token` leaves out; 0 is not listed."""
    counts: dict[int, int] = {}
    for id in set(ids):
        if id >= tokenizer.vocabulary or id in tokenizer.special:
            continue

        text = tokenizer.decode([id])
        if tokenizer.token(id).startswith("▁"):  # decoding drops it at the start of a text
            text = tokenizer.token(id)

        spaces = len(text) - len(text.lstrip(" ▁"))
        if 0 < spaces < len(text):
            counts[id] = spaces

    return counts


# Through the model


def ids_of(model: Model, reading: Reading) -> dict[str, Any]:
    """The keyword arguments of the model's forward pass: a batch of one row."""
    device = next(model.parameters()).device

    def row(ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=device)

    if reading.source is not None:
        return {"source": row(reading.source.ids), "target": row(reading.text.ids)}

    arguments = {"ids": row(reading.text.ids)}
    if reading.segments is not None:
        arguments["segments"] = row(reading.segments)

    return arguments


def hidden(model: Model, reading: Reading) -> Float[Tensor, "1 T E"]:
    """Run the forward pass up to the output layer; hooks see it."""
    return backbone_of(model).hidden(**ids_of(model, reading))


def check_finite(before: Tensor, after: Tensor) -> None:
    """Raise ValueError if numbers of a model, or those after a change, are not finite."""
    if not bool(before.isfinite().all()):
        raise ValueError("the model's numbers are not finite, so there is nothing to compare")
    if not bool(after.isfinite().all()):
        raise ValueError(
            "the model's numbers are not finite after the change; expected a smaller one"
        )


def logits(model: Model, reading: Reading) -> Float[Tensor, "1 T V"]:
    """The logits at each position."""
    return backbone_of(model).logits(hidden(model, reading))
