"""What stands before a text and after it, when the text is given as ids: the same marks that `read`
puts there.
"""

from __future__ import annotations

from typing import NamedTuple

from qkv.models import BERT, GPT, RNN, TaskModel
from qkv.models.registry import Model
from qkv.text.tokenizer import Tokenizer


class Marks(NamedTuple):
    before: list[int]
    after: list[int]

    def around(self, ids: list[int]) -> list[int]:
        return [*self.before, *ids, *self.after]


def marks_of(model: Model, tokenizer: Tokenizer) -> dict[str, Marks]:
    """By the kind of attention that reads the text: self, or of a translator encoder, decoder.

    A fine-tuned model reads a text by itself, whatever else its task would ask.
    """
    start, end = tokenizer.start, tokenizer.end
    if isinstance(model, TaskModel):
        return {"self": marks(model.config.head.start, model.config.head.extract)}
    if isinstance(model, GPT):
        return {"self": marks(start if tokenizer.starts_texts else None, None)}
    if isinstance(model, BERT):
        return {"self": marks(start, end)}
    if isinstance(model, RNN):
        raise ValueError("model: an RNN's text does not look at itself; expected another")

    return {"encoder": marks(None, end), "decoder": marks(start, None)}


def marks(before: int | None, after: int | None) -> Marks:
    return Marks(*([] if id is None else [id] for id in (before, after)))
