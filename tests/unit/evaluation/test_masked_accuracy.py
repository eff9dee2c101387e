"""Masked-word accuracy: as a plain loop in float64 finds it, of the places of training's own
validation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.sources.source import open_texts
from qkv.data.tokens.prepare import prepare_texts
from qkv.evaluation.evaluate import EvaluationResult, Protocol, Subject, evaluate
from qkv.evaluation.task_file import read_task
from qkv.models import BERT, BERTConfig
from qkv.text import Tokenizer
from qkv.text.tokenizer_training import train
from qkv.training.objective import Objective
from qkv.training.run_config import DataConfig
from qkv.training.setup.training_task import assemble
from qkv.training.step import validate
from qkv.training.systems.distributed import World
from support.small_evaluation import TEXT, small_gpt

SENTENCES = [line for line in TEXT.replace(".", ".\n").splitlines() if line] * 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("word-piece", [TEXT], 120)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    (tmp_path / "valid.txt").write_text("\n".join([*SENTENCES, "a żółw sat"]))
    return str(tmp_path / "valid.txt")


def small_bert(vocabulary: int, **fields: Any) -> BERT:
    torch.manual_seed(0)
    model = BERT(
        BERTConfig(
            vocabulary=vocabulary, **({"context": 16, "width": 32, "depth": 1, "heads": 2} | fields)
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model


def asked(subject: Subject, data: str, **how: Any) -> EvaluationResult:
    return evaluate(read_task("masked-words"), subject, [data], Protocol(**how))


def test_equals_a_plain_loop(tokenizer: Tokenizer, data: str) -> None:
    """Row by row, word by word, and the model stays in the mode it was in."""
    model = small_bert(tokenizer.vocabulary, dropout=0.2).double().train()
    with torch.no_grad():
        model.mlm_head.bias[tokenizer.encode("the")] = 40.0  # so that some guesses are right
    told: list[tuple[int, int]] = []
    result = evaluate(
        read_task("masked-words"),
        Subject("b", model, tokenizer),
        [data],
        progress=lambda *some: told.append(some),
    )
    assert model.training
    model.eval()
    right, surprises = 0, []
    tokens = prepare_texts(open_texts([data]), tokenizer)
    rows = list(MaskedData(tokens, 16, 1, 7, WordPieces.of(tokenizer)).ordered())
    for batch in rows:
        assert batch.target_positions is not None
        length = 16 if batch.padding_mask is None else int(batch.padding_mask.sum())
        with torch.no_grad():
            chances = model(batch.ids[:, :length])[0].log_softmax(-1)  # (T, V)
        for place, target in zip(
            batch.target_positions[0].tolist(), batch.targets[0].tolist(), strict=True
        ):
            if target >= 0:
                right += int(chances[place].argmax()) == target
                surprises.append(-float(chances[place, target]))
    accuracy, perplexity = result.scores
    assert 0 < right < len(surprises)
    assert accuracy.value == pytest.approx(right / len(surprises))
    assert perplexity.value == pytest.approx(math.exp(sum(surprises) / len(surprises)))
    for score in result.scores:
        assert score.low is not None
        assert score.high is not None
        assert score.low < score.value < score.high
    assert result.rows == len(rows)
    assert told[-1] == (len(rows), len(rows))
    assert result.said[:2] == (
        "15% of the words hidden, always the same ones, in rows of 16 tokens",
        f"{len(tokens):,} tokens, {len(surprises):,} asked",
    )
    assert "tokens are not in the vocabulary and are read as" in result.said[-1]


def test_is_of_the_places_that_validation_asks_about(
    tokenizer: Tokenizer, data: str, tmp_path: Path
) -> None:
    """The logarithm of the perplexity is the validation loss of training, whatever its batches and
    its seed.
    """
    model = small_bert(tokenizer.vocabulary)
    tokenizer.write(tmp_path / "tokenizer.json")
    given = DataConfig(data=(data,), validation=(data,), tokenizer=str(tmp_path / "tokenizer.json"))
    task = assemble(model.config, given, batch_tokens=96, seed=5)
    loss, _ = validate(Objective(model).eval(), task.validation, World(torch.device("cpu")))
    _, perplexity = asked(Subject("b", model, tokenizer), data).scores
    assert math.log(perplexity.value) == pytest.approx(loss, rel=1e-5)


def test_a_model_that_knows_the_answers_has_them_all(
    tokenizer: Tokenizer, tmp_path: Path, data: str
) -> None:
    (tmp_path / "same.txt").write_text("the " * 200)
    model = small_bert(tokenizer.vocabulary)
    (the,) = tokenizer.encode("the")
    with torch.no_grad():
        model.mlm_head.bias[the] = 1e4
    accuracy, perplexity = asked(Subject("b", model, tokenizer), str(tmp_path / "same.txt")).scores
    assert (accuracy.value, accuracy.low, accuracy.high, perplexity.value) == (1, 1, 1, 1)
    assert asked(Subject("b", model, tokenizer), data).scores[0].value < 0.5


def test_a_limit_asks_the_first_rows_alone(tokenizer: Tokenizer, data: str) -> None:
    subject = Subject("b", small_bert(tokenizer.vocabulary), tokenizer)
    some, more = asked(subject, data, limit=5), asked(subject, data, limit=10_000)
    assert (some.rows, more.rows) == (5, asked(subject, data).rows)
    assert some.facts["tokens"] == 5 * 14
    assert (
        asked(subject, data, limit=5, seed=3).scores[0].value == some.scores[0].value
    )  # other draws, same words
    assert "no examples" in asked(subject, data, limit=5, shots=2).said[-1]


def test_who_cannot_be_asked_is_told(tokenizer: Tokenizer, data: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^g: masked-words is asked of a BERT, which sees both ways, not of a GPT$",
    ):
        asked(Subject("g", small_gpt(tokenizer.vocabulary), tokenizer), data)
    bert = small_bert(tokenizer.vocabulary)
    with pytest.raises(ValueError, match=r"^b: a BERT sees .*: --task masked-words$"):
        evaluate(read_task("perplexity"), Subject("b", bert, tokenizer), [data])
    with pytest.raises(ValueError, match=r"^mlm_head: "):
        asked(Subject("b", small_bert(tokenizer.vocabulary, mlm_head=False), tokenizer), data)
    with pytest.raises(
        ValueError,
        match=r"^data: the task masked-words has none of its own; give --data FILE, files",
    ):
        evaluate(read_task("masked-words"), Subject("b", bert, tokenizer), [])


def test_a_text_without_words_is_an_error(tokenizer: Tokenizer, tmp_path: Path, data: str) -> None:
    (tmp_path / "none.txt").write_text("ż ó ł\n")
    with pytest.raises(ValueError, match=r"none\.txt has no word that could be hidden"):
        asked(Subject("b", small_bert(tokenizer.vocabulary), tokenizer), str(tmp_path / "none.txt"))
