"""Small models, and an easy task of every kind, to fine-tune within a second."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from safetensors.torch import load_file

from qkv import artifact
from qkv.data.sources.examples import open_examples
from qkv.generation.classify import Answer, answers
from qkv.models import BERT, GPT, BERTConfig, GPTConfig, TaskModel, Transformer, TransformerConfig
from qkv.text import train
from qkv.training.finetune.finetune import DEFAULTS, FinetuneResult, finetune
from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run_config import OptimizerConfig
from support.small_training import model_of, same_bits
from support.small_training import rows_of as metrics_of

PLAIN = ["boats", "rivers", "stones"]
GOOD = ["warm"]
BAD = ["cold"]
TAGS = {**dict.fromkeys(PLAIN, "noun"), **dict.fromkeys(GOOD + BAD, "adjective")}
SIZE: dict[str, Any] = {"context": 24, "width": 32, "depth": 1, "heads": 2, "hidden": 32}
COLUMNS = {
    "classify": ["sentence", "label"],
    "pair": ["premise", "hypothesis", "label"],
    "regress": ["sentence", "score"],
    "similarity": ["sentence1", "sentence2", "label"],
    "numbers": ["sentence1", "sentence2", "score"],
    "translate": [],
}
"""Columns of the tasks whose data is a table; translations have no header."""
TASKS = ["classify", "pair", "similarity", "numbers", "choice", "tag", "regress"]
"""Tasks with a head; `numbers` is similarity with numbers as labels."""


def make_models(folder: Path) -> Path:
    """Write an untrained GPT, BERT and Transformer with a tokenizer of whole words."""
    vocabulary = [*PLAIN, *GOOD, *BAD]
    tokenizer = train("words", [" ".join(vocabulary), " ".join(vocabulary[::-1])], 60)
    size = {"vocabulary": tokenizer.vocabulary, **SIZE}
    torch.manual_seed(0)
    artifact.save(lively(GPT(GPTConfig(**size))), folder / "gpt", tokenizer=tokenizer)
    artifact.save(lively(BERT(BERTConfig(**size))), folder / "bert", tokenizer=tokenizer)
    artifact.save(
        Transformer(TransformerConfig(**size)), folder / "transformer", tokenizer=tokenizer
    )
    return folder


def lively(model: Any) -> Any:
    """Spread the token embeddings, as in a trained model, so that a head can tell them apart."""
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue

        std = SIZE["width"] ** -0.5
        if "token" in name:
            std = 1.0
        elif "embedding" in name:
            std = 0.02

        torch.nn.init.normal_(weight, std=std)

    return model


class RowMaker:
    """Random rows of a task whose label depends on one word, warm or cold."""

    def __init__(self, task: str, seed: int) -> None:
        self.make = getattr(self, task)
        self.draw = random.Random(seed)

    def text(self, *words: str) -> str:
        """One to three plain words and these, in random order."""
        chosen = [*self.draw.choices(PLAIN, k=self.draw.randint(1, 3)), *words]
        self.draw.shuffle(chosen)
        return " ".join(chosen)

    def row(self, number: int) -> dict[str, Any]:
        good = number % 2 == 0
        word = self.draw.choice(GOOD if good else BAD)
        return self.make(number, good, word)

    def classify(self, number: int, good: bool, word: str) -> dict[str, Any]:
        return {"sentence": self.text(word), "label": "good" if good else "bad"}

    def pair(self, number: int, good: bool, word: str) -> dict[str, Any]:
        premise = self.text()
        return {
            "premise": premise,
            "hypothesis": self.text(word),
            "label": "yes" if good else "no",
        }

    def similarity(self, number: int, good: bool, word: str) -> dict[str, Any]:
        first, second = self.draw.sample([self.text(word), self.text()], 2)
        return {"sentence1": first, "sentence2": second, "label": "same" if good else "other"}

    def numbers(self, number: int, good: bool, word: str) -> dict[str, Any]:
        first, second = self.draw.sample([self.text(word), self.text()], 2)
        return {"sentence1": first, "sentence2": second, "score": "4.5" if good else "1.0"}

    def regress(self, number: int, good: bool, word: str) -> dict[str, Any]:
        return {"sentence": self.text(word), "score": "120" if good else "80"}

    def choice(self, number: int, good: bool, word: str) -> dict[str, Any]:
        choices = [self.text(self.draw.choice(GOOD))]
        for _ in range(1 + number % 2):
            choices.append(self.text(self.draw.choice(BAD)))

        self.draw.shuffle(choices)
        answer = 0
        while not set(choices[answer].split()) & set(GOOD):
            answer += 1

        return {"context": self.text(), "choices": choices, "answer": answer}

    def tag(self, number: int, good: bool, word: str) -> dict[str, Any]:
        words = self.text(word).split()
        return {"words": words, "tags": [TAGS[word] for word in words]}

    def chat(self, number: int, good: bool, word: str) -> dict[str, Any]:
        question = {"role": "user", "content": self.text()}
        return {"messages": [question, {"role": "assistant", "content": "warm boats"}]}

    def translate(self, number: int, good: bool, word: str) -> dict[str, Any]:
        return {"source": self.text(word), "target": word}


def rows_of(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a task, half of them with each label."""
    maker = RowMaker(task, seed)
    return [maker.row(number) for number in range(count)]


def write(task: str, file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as .tsv or .jsonl, depending on the task; return the path."""
    if task not in COLUMNS:
        lines = [json.dumps(row) for row in rows]
        file = file.with_suffix(".jsonl")
    else:
        lines = ["\t".join(row.values()) for row in rows]
        file = file.with_suffix(".tsv")
        if COLUMNS[task]:
            lines.insert(0, "\t".join(COLUMNS[task]))

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


class TuningJob(NamedTuple):
    """The arguments of `finetune`."""

    tune: FinetuneConfig
    optimizer: OptimizerConfig
    run: FinetuneRunConfig

    def changed(self, **changes: Any) -> TuningJob:
        """The same job with other fields of its FinetuneConfig or FinetuneRunConfig."""
        names = [name for name in changes if hasattr(self.tune, name)]
        tune = replace(self.tune, **{name: changes.pop(name) for name in names})
        return TuningJob(tune, self.optimizer, replace(self.run, **changes))

    def start(self) -> FinetuneResult:
        result = finetune(*self, console=Console(file=io.StringIO(), width=200))
        assert result is not None
        return result


def tuning_job(
    models: Path, folder: Path, task: str, family: str = "gpt", *, out: str = "run", **changes: Any
) -> TuningJob:
    """Sixty-four examples (twenty of chat, which is slow to write), three epochs of eight steps."""
    optimizer = {"learning_rate": 1e-2, **changes.pop("optimizer", {})}
    training_count, validation_count = (20, 6) if task == "chat" else (64, 24)
    training = write(task, folder / f"{task}-train", rows_of(task, training_count, 0))
    validation = write(task, folder / f"{task}-dev", rows_of(task, validation_count, 1))

    tune = FinetuneConfig(
        model=str(models / family),
        task="similarity" if task == "numbers" else task,  # type: ignore[arg-type]
        data=(str(training),),
        validation=(str(validation),),
    )
    run = FinetuneRunConfig(
        out=folder / out,
        epochs=3,
        batch=8,
        device="cpu",
        validate_every=8,
        checkpoint_every=9,
        log_every=1000,
    )

    return TuningJob(tune, replace(DEFAULTS, **optimizer), run).changed(**changes)


def answers_of(job: TuningJob) -> tuple[TaskModel, list[Answer], list[Any]]:
    """The model in the run's folder, its answers to the validation examples, and the labels."""
    model, tokenizer = artifact.load(job.run.out)
    assert isinstance(model, TaskModel)
    assert tokenizer is not None
    examples = list(open_examples(job.tune.validation, job.tune.task))
    predictions = list(answers(model, tokenizer, examples, rows=5))
    return model, predictions, [example.label for example in examples]


def assert_same_tuning(first: Path, second: Path) -> None:
    """Equal bit for bit: the model, its adapters, the newest checkpoint and the rows."""
    assert same_bits(model_of(first), model_of(second))
    file = Path("adapter") / "adapter_model.safetensors"
    if (second / file).exists():
        assert same_bits(load_file(first / file), load_file(second / file))

    newest = Checkpoints(first / "checkpoints").newest()
    expected = Checkpoints(second / "checkpoints").newest()
    assert newest is not None
    assert expected is not None
    assert same_bits(newest.tensors(), expected.tensors())
    assert newest.state | {"seconds": 0} == expected.state | {"seconds": 0}
    assert metrics_of(first) == metrics_of(second)
