"""A text as a model reads it: its ids with the marks around them, and each token as people read it."""

from __future__ import annotations

from collections.abc import Sequence
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
from qkv.insight.inspect.frame_tokens import marks_of
from qkv.insight.inspect.whole_words import WholeWord, words_of
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.text.tokenizer import Tokenizer

VISIBLE = str.maketrans({"\n": "↵", "\r": "␍", "\t": "⇥"})


class Side(NamedTuple):
    """One sequence: of a text there is one, of a translation there are two."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """As people read them; a special token by its name."""
    words: tuple[WholeWord, ...]
    """The tokens joined to words."""


class Reading(NamedTuple):
    text: Side
    """What is read; of a translator the target, which begins with its start token."""
    source: Side | None = None
    """Of a translator."""
    segments: tuple[int, ...] | None = None
    """Which of two texts a word is from, for a BERT that is told."""
    chosen: Side | None = None
    """Of a translator: the token that was chosen at each place, which is the one the next place
    reads; then the end.
    """

    @property
    def rows(self) -> Side:
        """Who looks at a source, and who is explained: of a translator the words chosen, of others
        those read.
        """
        return self.text if self.chosen is None else self.chosen


def read(
    model: Model,
    tokenizer: Tokenizer,
    *texts: str,
    source: str | None = None,
    target: str | None = None,
) -> Reading:
    """One text; for a BERT perhaps two; for a translator a source, and a target unless it is to
    translate itself.
    """
    for name, text in (*(("text", each) for each in texts), ("source", source), ("target", target)):
        if text is not None or name == "text":
            check_text(text, name)

    if isinstance(model, Transformer | RNN):
        if source is None and len(texts) == 1:
            source = texts[0]
        elif texts or source is None:
            raise ValueError(
                "source: a translator reads a source (and a target, if it is not to translate itself)"
            )

        return read_pair(model, tokenizer, source, target)

    if source is not None or target is not None:
        raise ValueError(
            f"source: a {type(backbone_of(model)).__name__} reads one text; give it without source and target"
        )
    if not texts or not all(text.strip() for text in texts):
        raise ValueError("text: there is nothing to read; expected a text")
    if isinstance(model, TaskModel):
        return read_framed(model, tokenizer, texts)

    if isinstance(model, GPT):
        if len(texts) > 1:
            raise ValueError(
                f"text: a GPT reads one text, not {len(texts)}; put quotation marks around it"
            )

        return fitting(model, Reading(side(tokenizer, prompt_ids(tokenizer, texts[0]))))

    return fitting(model, read_sentences(model, tokenizer, texts))


def fitting(model: GPT | BERT, reading: Reading) -> Reading:
    """No longer than the texts that the model was trained on; of a Transformer-XL one segment."""
    tokens, context = len(reading.text.ids), model.config.context
    if tokens > context:
        raise ValueError(
            f"text: {tokens:,} tokens are more than the model's context of {context:,}; shorten it"
        )

    return reading


def read_pair(
    model: Transformer | RNN, tokenizer: Tokenizer, source: str, target: str | None
) -> Reading:
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "tokenizer: a translator needs a start and an end token, and this one lacks them"
        )

    for name, text in (("source", source), ("target", target)):
        if text is not None and not text.strip():
            raise ValueError(f"{name}: there is nothing to read; expected a sentence")

    (read,) = source_ids([model], tokenizer, [source])
    if target is None:
        ((_, found),) = translate_texts([model], tokenizer, [source])
        said = found[0].ids
    else:
        said = tokenizer.encode(target)

    said = [id for id in said if id != tokenizer.end]

    return Reading(
        side(tokenizer, [tokenizer.start, *said]),
        side(tokenizer, read),
        chosen=side(tokenizer, [*said, tokenizer.end]),
    )


def read_sentences(model: BERT, tokenizer: Tokenizer, texts: Sequence[str]) -> Reading:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP]; a [mask] in the text is a mask."""
    if len(texts) > 2:
        raise ValueError(
            f"text: a BERT reads one text or two, not {len(texts)}; put quotation marks around each"
        )

    start, end = marks_of(model, tokenizer)["self"]
    ids: list[int] = [*start]
    segments: list[int] = [0] * len(start)

    for number, text in enumerate(texts):
        masked = tokenizer.mask is not None and masks_of(tokenizer).search(text) is not None
        words = (
            masked_ids(tokenizer, text)[len(start) :] if masked else [*tokenizer.encode(text), *end]
        )
        ids += words
        segments += [number] * len(words)

    told = len(texts) == 2 and model.config.segments > 1

    return Reading(side(tokenizer, ids), segments=tuple(segments) if told else None)


def read_framed(model: TaskModel, tokenizer: Tokenizer, texts: Sequence[str]) -> Reading:
    """With the marks of its task; of several sequences (both orders of a pair, all choices) the
    first.
    """
    task = model.config.head.task
    words = (
        tuple(word for text in texts for word in text.split()) if task == "tag" else tuple(texts)
    )
    needed = {"pair": 2, "similarity": 2, "classify": 1}.get(task)
    if needed is not None and len(words) != needed:
        raise ValueError(
            f"text: a model for {task} reads {needed} text{'s' * (needed > 1)}, not {len(words)}"
        )
    if task == "choice" and len(words) < 2:
        raise ValueError(
            "text: a model for choice reads a context and one choice or more; give at least two texts"
        )

    frame = Frame(**model.config.frame)
    framed = frame.encode(tokenizer, [Example(words, None, "text")])[0]
    ids, second = framed.sequences[0].tolist(), int(framed.seconds[0])
    segments = tuple(int(place >= second) for place in range(len(ids))) if frame.segments else None

    return Reading(side(tokenizer, ids), segments=segments)


def side(tokenizer: Tokenizer, ids: Sequence[int]) -> Side:
    tokens = tuple(readable(tokenizer, id) for id in ids)
    words = tuple(
        WholeWord(
            word.text.translate(VISIBLE) or "".join(tokens[place] for place in word.places),
            word.places,
        )
        for word in words_of(tokenizer, ids)
    )

    return Side(tuple(ids), tokens, words)


def readable(tokenizer: Tokenizer, id: int) -> str:
    """A token as people read it: without marks of its word's beginning or middle; white space made
    visible.
    """
    if id in tokenizer.special or id >= tokenizer.vocabulary:
        return tokenizer.token(id).strip() if id < tokenizer.vocabulary else f"[{id}]"

    mark = getattr(tokenizer.inner.model, "continuing_subword_prefix", None) or ""
    text = (tokenizer.decode([id]) or tokenizer.token(id)).removeprefix(mark)

    return (text.strip(" ▁") or "␣" * len(text)).translate(VISIBLE)


# Through the model


def ids_of(model: Model, reading: Reading) -> dict[str, Any]:
    """What the model is called with: one row."""
    device = next(model.parameters()).device

    def row(ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=device)

    if reading.source is not None:
        return {"source": row(reading.source.ids), "target": row(reading.text.ids)}

    told = {} if reading.segments is None else {"segments": row(reading.segments)}

    return {"ids": row(reading.text.ids), **told}


def hidden(model: Model, reading: Reading) -> Float[Tensor, "1 T E"]:
    """The forward pass before the output layer; whoever listens hears it."""
    return hidden_of(model, ids_of(model, reading))


def hidden_of(model: Model, given: dict[str, Any]) -> Float[Tensor, "B T E"]:
    """The same of any rows, named as `ids_of` names them."""
    backbone = backbone_of(model)
    return (
        backbone.forced(**given)
        if isinstance(backbone, Transformer | RNN)
        else backbone.hidden(**given)
    )


def logits(model: Model, reading: Reading) -> Float[Tensor, "1 T V"]:
    return backbone_of(model).logits(hidden(model, reading))
