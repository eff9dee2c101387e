"""The marks around a text of ids are those that read puts around a text."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.insight.inspect.model_input import frame_tokens
from qkv.insight.inspect.model_input import read
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from qkv.text import Tokenizer, train
from support.families import bert, gpt, rnn, transformer
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
SIZE: dict[str, Any] = {"vocabulary": 80, "context": 40}
TEXT = "the cat sat"


def tuned() -> TaskModel:
    end = TOKENIZER.end or 0
    head = HeadConfig(
        task="classify", labels=("a", "b"), start=3, delimiter=end, extract=end, padding=0
    )
    return TaskModel(TaskModelConfig(backbone=gpt(**SIZE).config, head=head))


@pytest.mark.parametrize(
    "make", [lambda: gpt(**SIZE), lambda: bert(**SIZE), lambda: transformer(**SIZE), tuned]
)
@pytest.mark.parametrize("starts", [False, True])
def test_a_text_is_read_between_them(make: Any, starts: bool) -> None:
    model, tokenizer = make(), Tokenizer(TOKENIZER.inner, {"add_bos_token": starts})
    assert tokenizer.starts_texts == starts
    found = frame_tokens(model, tokenizer)
    if "self" in found:
        sides = {"self": read(model, tokenizer, TEXT).text}
    else:
        reading = read(model, tokenizer, source=TEXT, target=TEXT)
        assert reading.source is not None
        sides = {"encoder": reading.source, "decoder": reading.text}
    words = tokenizer.encode(TEXT)
    assert {kind: tuple(each.around(words)) for kind, each in found.items()} == {
        kind: side.ids for kind, side in sides.items()
    }


def test_an_rnn_has_none() -> None:
    with pytest.raises(
        ValueError, match="model: an RNN's text does not look at itself; expected another"
    ):
        frame_tokens(rnn(), TOKENIZER)
