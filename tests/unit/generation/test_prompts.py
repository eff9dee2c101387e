"""Prompts as text, lists, tensors or arrays; one prompt gives one result."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.generation import beam_search, generate, stochastic_beam_search, stream, translate
from qkv.generation.classify import answers, classify
from qkv.generation.fill import fill
from qkv.generation.prompts import text_rows, token_rows
from qkv.generation.text import complete, stream_text
from qkv.generation.translate import translate_texts
from qkv.models import BERT, GPT, BERTConfig, GPTConfig, Transformer, TransformerConfig
from qkv.text import Tokenizer, train
from support.families import gpt, rnn, transformer
from support.small_task_models import small_tuned

IDS = [1, 2, 3]
ONE: dict[str, Any] = {
    "list": IDS,
    "tuple": tuple(IDS),
    "range": range(1, 4),
    "tensor": torch.tensor(IDS),
    "int32": torch.tensor(IDS, dtype=torch.int32),
    "array": np.array(IDS),
    "bytes of an array": np.array(IDS, dtype=np.uint8),
    "numbers of an array": list(np.array(IDS)),
    "numbers of a tensor": list(torch.tensor(IDS)),
}
SEVERAL: dict[str, Any] = {
    "lists": [IDS, IDS],
    "tuples": ((1, 2, 3), IDS),
    "tensor": torch.tensor([IDS, IDS]),
    "array": np.array([IDS, IDS]),
    "tensors": [torch.tensor(IDS), torch.tensor(IDS)],
    "arrays": [np.array(IDS), IDS],
}


@pytest.mark.parametrize("kind", ONE)
def test_one_sequence_of_ids(kind: str) -> None:
    assert token_rows(ONE[kind], 4) == ([IDS], True)


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_sequences_of_ids(kind: str) -> None:
    assert token_rows(SEVERAL[kind], 4) == ([IDS, IDS], False)


def test_texts_and_ids() -> None:
    assert text_rows("ROMEO:") == (["ROMEO:"], True)
    assert text_rows(["ROMEO:"]) == (["ROMEO:"], False)
    assert text_rows(["ROMEO:", IDS, torch.tensor(IDS)]) == (["ROMEO:", IDS, IDS], False)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            "x",
            TypeError,
            "prompts: expected token ids, not text; encode it with tokenizer.encode(text)",
        ),
        (["x", "y"], TypeError, "prompts: expected token ids, not text; "),
        (["x", [1]], TypeError, "prompts: expected token ids, not text; "),
        (b"x", TypeError, "prompts: expected a list of token ids or several such lists, not b'x'"),
        (5, TypeError, "prompts: expected a list of token ids or several such lists, not 5"),
        (None, TypeError, "prompts: expected a list of token ids or several such lists, not None"),
        (
            {1, 2},
            TypeError,
            "prompts: expected a list of token ids or several such lists, not {1, 2}",
        ),
        (
            {1: 2},
            TypeError,
            "prompts: expected a list of token ids or several such lists, not {1: 2}",
        ),
        ([], ValueError, "prompts: expected one or more, not an empty list"),
        ([[]], ValueError, "prompts: expected one id or more in each row"),
        ([[1], []], ValueError, "prompts: expected one id or more in each row"),
        (
            torch.zeros(0, dtype=torch.long),
            ValueError,
            "prompts: expected one id or more in each row",
        ),
        (
            [1, [2]],
            TypeError,
            "prompts: expected token ids, or lists of them, not both in one list",
        ),
        ([[1, [2]]], TypeError, "prompts: expected token ids (whole numbers) in each row, not [2]"),
        (
            [1.0, 2.0],
            TypeError,
            "prompts: expected a list of token ids or several such lists, not 1.0",
        ),
        ([[1, 2.5]], TypeError, "prompts: expected token ids (whole numbers) in each row, not 2.5"),
        (
            [True, False],
            TypeError,
            "prompts: expected a list of token ids or several such lists, not True",
        ),
        (
            [[1, True]],
            TypeError,
            "prompts: expected token ids (whole numbers) in each row, not True",
        ),
        (
            [None],
            TypeError,
            "prompts: expected a list of token ids or several such lists, not None",
        ),
        (
            torch.zeros(2),
            TypeError,
            "prompts: expected token ids of an integer dtype, not torch.float32",
        ),
        (
            torch.ones(1, 2).bool(),
            TypeError,
            "prompts: expected token ids of an integer dtype, not torch.bool",
        ),
        (np.zeros(2), TypeError, "prompts: expected token ids of an integer dtype, not float64"),
        (
            np.ones(2, dtype=bool),
            TypeError,
            "prompts: expected token ids of an integer dtype, not bool",
        ),
        ([np.zeros(2)], TypeError, "prompts: expected token ids of an integer dtype, not float64"),
        (
            torch.tensor(1),
            ValueError,
            "prompts: expected token ids of shape (T,) or (B, T), not ()",
        ),
        (
            torch.zeros(1, 1, 1).long(),
            ValueError,
            "prompts: expected token ids of shape (T,) or (B, T), not (1, 1, 1)",
        ),
        (
            [torch.zeros(1, 1).long()],
            ValueError,
            "prompts: expected one-dimensional rows, not one of shape (1, 1)",
        ),
        ([1, 13], ValueError, "prompts: expected ids from 0 to 12, found 13"),
        ([[1], [-1]], ValueError, "prompts: expected ids from 0 to 12, found -1"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_prompt(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match="^" + re.escape(message)):
        generate(gpt(), given, length=3)
    with pytest.raises(kind, match="^" + re.escape(message.replace("prompts", "source"))):
        beam_search(rnn(), given, start=1, end=2, length=3)
    with pytest.raises(kind, match="^" + re.escape(message.replace("prompts", "source"))):
        translate(rnn(), given, start=1, end=2, length=3)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"end": "x"}, "end: expected an id, a whole number, not 'x'"),
        ({"end": True}, "end: expected an id, a whole number, not True"),
        ({"end": [2, 1.0]}, "end: expected an id, a whole number, not 1.0"),
        ({"forbidden": 3}, "forbidden: expected a list of ids, not 3"),
        ({"forbidden": ["a"]}, "forbidden: expected an id, a whole number, not 'a'"),
        ({"forced": {0: "a"}}, "forced: expected an id, a whole number, not 'a'"),
        ({"samples": 2.5}, "samples: expected a whole number, not 2.5"),
        ({"samples": True}, "samples: expected a whole number, not True"),
        ({"length": 2.5}, "length: expected a whole number, not 2.5"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_numbers_that_are_none(how: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match="^" + re.escape(message)):
        generate(gpt(), IDS, **({"length": 3} | how))


# One result for one prompt


def test_generate() -> None:
    model, how = gpt(), {"length": 4, "temperature": 0.0}
    row = generate(model, [IDS], **how)[0]
    for one in (IDS, torch.tensor(IDS)):
        assert generate(model, one, **how) == row
        assert generate(model, one, samples=1, **how) == [row]
        assert generate(model, one, samples=2, **how) == [row, row]
    assert generate(model, [IDS], samples=1, **how) == [row]
    assert generate(model, torch.tensor([IDS]), **how) == [row]
    assert [token.id for token in stream(model, IDS, **how)] == row
    assert {token.row for token in stream(model, IDS, samples=2, **how)} == {0, 1}


@pytest.mark.parametrize("make", [rnn, transformer])
def test_translate(make: Any) -> None:
    model, how = make(), {"start": 1, "end": 2, "length": 4}
    actual = translate(model, torch.tensor([IDS, [5, 4, 3]]), **how)
    assert translate(model, IDS, **how) == actual[0]
    assert translate(model, torch.tensor(IDS), **how) == actual[0]
    assert translate(model, torch.tensor(IDS), torch.ones(3).bool(), **how) == actual[0]
    assert translate(model, IDS, samples=2, **how) == [actual[0], actual[0]]
    longer = translate(model, [IDS, [5, 4, 3], [6] * 5], **how)
    assert longer[:2] == actual
    assert longer[2] == translate(model, [6] * 5, **how)


@pytest.mark.parametrize("search", [beam_search, stochastic_beam_search])
def test_searches(search: Any) -> None:
    how = {"end": 2, "length": 3} | (
        {"samples": 2, "seed": [1]} if search is stochastic_beam_search else {}
    )
    translator = rnn()
    for model, more in ((gpt(), {}), (translator, {"start": 1})):
        (right,) = search(model, [IDS], **how, **more)
        assert search(model, IDS, **how, **more) == right
        assert search(model, torch.tensor(IDS), **how, **more) == right
    padded, padding_mask = torch.tensor([9, *IDS]), torch.tensor([False, True, True, True])
    assert search(translator, padded, padding_mask, start=1, **how) == search(
        translator, IDS, start=1, **how
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("characters", ["ROMEO: and mice, cats"] * 3, 40)


def small(tokenizer: Tokenizer) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"vocabulary": tokenizer.vocabulary, "context": 32, "width": 16, "depth": 1, "heads": 2}


def test_complete(tokenizer: Tokenizer) -> None:
    model, how = GPT(GPTConfig(**small(tokenizer))).eval(), {"length": 6, "temperature": 0.0}
    right = complete(model, tokenizer, ["ROMEO:"], **how)
    assert len(right) == 1
    text: str = complete(model, tokenizer, "ROMEO:", length=6, temperature=0.0)
    assert text == right[0]
    ids = tokenizer.encode("ROMEO:")
    assert complete(model, tokenizer, ids, **how) == right[0]
    assert complete(model, tokenizer, torch.tensor(ids), **how) == right[0]
    assert complete(model, tokenizer, torch.tensor([ids]), **how) == right
    assert complete(model, tokenizer, "ROMEO:", samples=2, **how) == right * 2
    assert complete(model, tokenizer, ["ROMEO:", ids], **how) == right * 2
    streamed = [piece.text for piece in stream_text(model, tokenizer, "ROMEO:", **how)]
    assert "".join(streamed) == right[0]


def test_one_stop_string(tokenizer: Tokenizer) -> None:
    """As in OpenAI's API it may be a string: that one, and not each of its characters."""
    model, how = GPT(GPTConfig(**small(tokenizer))).eval(), {"length": 20, "seed": 3}
    text = complete(model, tokenizer, "cats", **how)
    first, second = text[6:9], text[9]
    assert second not in first
    assert complete(model, tokenizer, "cats", stop=first, **how) == text[: text.index(first)]
    assert complete(model, tokenizer, "cats", stop=first, **how) == complete(
        model, tokenizer, "cats", stop=[first], **how
    )


@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_text(tokenizer: Tokenizer) -> None:
    model = GPT(GPTConfig(**small(tokenizer)))
    for given, message in (
        (5, "prompts: expected a list of token ids or several such lists, not 5"),
        ([], "prompts: expected one or more, not an empty list"),
        (["a", 1], "prompts: expected token ids, or lists of them, not both in one list"),
        ([["a"]], "prompts: expected token ids (whole numbers) in each row, not 'a'"),
    ):
        with pytest.raises((TypeError, ValueError), match="^" + re.escape(message)):
            complete(model, tokenizer, given, length=3)
    with pytest.raises(TypeError, match=r"^stop: number 0: expected one string, not 3"):
        complete(model, tokenizer, "a", length=3, stop=[3])
    for call, message in (
        (lambda: tokenizer.encode(["a"]), "text: expected a string, not ['a']"),  # type: ignore[arg-type]
        (
            lambda: tokenizer.encode_batch("ROMEO:"),
            "texts: expected a list of strings, not one string; encode(text)",
        ),
        (
            lambda: tokenizer.decode("12"),
            "ids: expected one list of token ids (whole numbers), not '12'",
        ),  # type: ignore[arg-type]
        (
            lambda: tokenizer.decode([[1, 2]]),
            "ids: expected one list of token ids (whole numbers), not [[1, 2]]",
        ),  # type: ignore[list-item]
        (
            lambda: tokenizer.with_special_tokens("[new]"),
            "names: expected a list of names, not one string",
        ),
    ):
        with pytest.raises(TypeError, match="^" + re.escape(message)):
            call()


@pytest.mark.usefixtures("without_shape_checks")
def test_translate_texts(tokenizer: Tokenizer) -> None:
    model = Transformer(TransformerConfig(**small(tokenizer))).eval()
    right = list(translate_texts([model], tokenizer, ["mice"]))
    assert list(translate_texts(model, tokenizer, "mice")) == right
    assert [position for position, _ in right] == [0]
    with pytest.raises(TypeError, match=r"^texts: number 1: expected one string, not 7"):
        translate_texts(model, tokenizer, ["mice", 7])  # type: ignore[list-item]


@pytest.mark.usefixtures("without_shape_checks")
def test_classify() -> None:
    model, tokenizer = small_tuned("classify", "gpt")
    right = classify(model, tokenizer, ["the cat sat"])
    assert [classify(model, tokenizer, "the cat sat")] == right
    with pytest.raises(TypeError, match=r"^examples: .*Examples"):
        list(answers(model, tokenizer, "the cat"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^text 1: .*strings"):
        classify(model, tokenizer, [5])  # type: ignore[list-item]


@pytest.mark.usefixtures("without_shape_checks")
def test_fill_and_look_take_one_text(tokenizer: Tokenizer) -> None:
    model = BERT(BERTConfig(**small(tokenizer)))
    with pytest.raises(TypeError, match=r"^text: expected one string, not \['\[mask\] cats'\]"):
        fill(model, tokenizer, ["[mask] cats"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^text: expected one string, not \['cats', 'mice'\]"):
        qkv.look(model, ["cats", "mice"], tokenizer=tokenizer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^source: expected one string, not 5"):
        qkv.look(Transformer(TransformerConfig(**small(tokenizer))), source=5, tokenizer=tokenizer)  # type: ignore[arg-type]
