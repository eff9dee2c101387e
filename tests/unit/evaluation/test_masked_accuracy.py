"""Masked accuracy against a plain loop in float64, at the masked positions of validation."""

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


def run_task(subject: Subject, data: str, **settings: Any) -> EvaluationResult:
    return evaluate(read_task("masked-words"), subject, [data], Protocol(**settings))


def test_equals_a_plain_loop(tokenizer: Tokenizer, data: str) -> None:
    """Scores, notes and progress equal a loop over rows; the model stays in training mode."""
    model = small_bert(tokenizer.vocabulary, dropout=0.2).double().train()
    with torch.no_grad():
        model.mlm_head.bias[tokenizer.encode("the")] = 40.0  # so that some predictions are right
    calls: list[tuple[int, int]] = []
    result = evaluate(
        read_task("masked-words"),
        Subject("b", model, tokenizer),
        [data],
        progress=lambda *call: calls.append(call),
    )
    assert model.training
    model.eval()
    correct = 0
    losses: list[float] = []
    tokens = prepare_texts(open_texts([data]), tokenizer)
    rows = list(MaskedData(tokens, 16, 1, 7, WordPieces.of(tokenizer)).ordered())
    for batch in rows:
        assert batch.target_positions is not None
        length = 16 if batch.padding_mask is None else int(batch.padding_mask.sum())
        with torch.no_grad():
            logprobs = model(batch.ids[:, :length])[0].log_softmax(-1)  # (T, V)
        for position, target in zip(
            batch.target_positions[0].tolist(), batch.targets[0].tolist(), strict=True
        ):
            if target >= 0:
                correct += int(logprobs[position].argmax()) == target
                losses.append(-float(logprobs[position, target]))
    accuracy, perplexity = result.scores
    assert 0 < correct < len(losses)
    assert accuracy.value == pytest.approx(correct / len(losses))
    assert perplexity.value == pytest.approx(math.exp(sum(losses) / len(losses)))
    for score in result.scores:
        assert score.low is not None
        assert score.high is not None
        assert score.low < score.value < score.high
    assert result.rows == len(rows)
    assert calls[-1] == (len(rows), len(rows))
    assert result.notes[:2] == (
        "15% of the tokens masked, always the same ones, in rows of 16 tokens",
        f"{len(tokens):,} tokens, {len(losses):,} masked",
    )
    assert "tokens are not in the vocabulary and are read as" in result.notes[-1]


def test_masked_positions_are_those_of_validation(
    tokenizer: Tokenizer, data: str, tmp_path: Path
) -> None:
    """The log-perplexity is training's validation loss, whatever the batch size and seed."""
    model = small_bert(tokenizer.vocabulary)
    tokenizer.write(tmp_path / "tokenizer.json")
    config = DataConfig(
        data=(data,), validation=(data,), tokenizer=str(tmp_path / "tokenizer.json")
    )
    task = assemble(model.config, config, batch_tokens=96, seed=5)
    loss, _ = validate(Objective(model).eval(), task.validation, World(torch.device("cpu")))
    _, perplexity = run_task(Subject("b", model, tokenizer), data).scores
    assert math.log(perplexity.value) == pytest.approx(loss, rel=1e-5)


def test_a_model_that_is_always_right_scores_100_percent(
    tokenizer: Tokenizer, tmp_path: Path, data: str
) -> None:
    (tmp_path / "same.txt").write_text("the " * 200)
    model = small_bert(tokenizer.vocabulary)
    (the,) = tokenizer.encode("the")
    with torch.no_grad():
        model.mlm_head.bias[the] = 1e4
    accuracy, perplexity = run_task(
        Subject("b", model, tokenizer), str(tmp_path / "same.txt")
    ).scores
    assert (accuracy.value, accuracy.low, accuracy.high, perplexity.value) == (1, 1, 1, 1)
    assert run_task(Subject("b", model, tokenizer), data).scores[0].value < 0.5


def test_a_limit_scores_only_the_first_rows(tokenizer: Tokenizer, data: str) -> None:
    subject = Subject("b", small_bert(tokenizer.vocabulary), tokenizer)
    some, more = run_task(subject, data, limit=5), run_task(subject, data, limit=10_000)
    assert (some.rows, more.rows) == (5, run_task(subject, data).rows)
    assert some.facts["tokens"] == 5 * 14
    assert (
        run_task(subject, data, limit=5, seed=3).scores[0].value == some.scores[0].value
    )  # another bootstrap, the same masked tokens
    assert "no examples" in run_task(subject, data, limit=5, shots=2).notes[-1]


def test_models_that_cannot_do_the_task_are_refused(tokenizer: Tokenizer, data: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^g: masked-words needs a BERT.*not a GPT$",
    ):
        run_task(Subject("g", small_gpt(tokenizer.vocabulary), tokenizer), data)
    bert = small_bert(tokenizer.vocabulary)
    with pytest.raises(ValueError, match=r"^b: a BERT .*: --task masked-words$"):
        evaluate(read_task("perplexity"), Subject("b", bert, tokenizer), [data])
    with pytest.raises(ValueError, match=r"^mlm_head: "):
        run_task(Subject("b", small_bert(tokenizer.vocabulary, mlm_head=False), tokenizer), data)
    with pytest.raises(
        ValueError,
        match=r"^data: .*masked",
    ):
        evaluate(read_task("masked-words"), Subject("b", bert, tokenizer), [])


def test_a_text_without_words_is_an_error(tokenizer: Tokenizer, tmp_path: Path, data: str) -> None:
    (tmp_path / "none.txt").write_text("ż ó ł\n")
    with pytest.raises(ValueError, match=r"none\.txt has no word that could be masked"):
        run_task(
            Subject("b", small_bert(tokenizer.vocabulary), tokenizer), str(tmp_path / "none.txt")
        )
