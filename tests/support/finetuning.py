"""Small models, and a separable toy task of every kind, to fine-tune in a moment."""

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
GOOD, BAD = ["warm"], ["cold"]
TAGS = {**dict.fromkeys(PLAIN, "noun"), **dict.fromkeys(GOOD + BAD, "adjective")}
SIZE: dict[str, Any] = {"context": 24, "width": 32, "depth": 1, "heads": 2, "hidden": 32}
COLUMNS = {
    "classify": ["sentence", "label"], "pair": ["premise", "hypothesis", "label"], "regress": ["sentence", "score"],
    "similarity": ["sentence1", "sentence2", "label"], "numbers": ["sentence1", "sentence2", "score"],
    "translate": [],
}  # fmt: skip
TASKS = ["classify", "pair", "similarity", "numbers", "choice", "tag", "regress"]
"""Those with a head; numbers is similarity with numbers."""


def make_models(folder: Path) -> Path:
    """A GPT, a BERT and a Transformer with a tokenizer of words, fresh: what they must know is
    little.
    """
    words = [*PLAIN, *GOOD, *BAD]
    tokenizer = train("words", [" ".join(words), " ".join(words[::-1])], 60)
    size = {"vocabulary": tokenizer.vocabulary, **SIZE}
    torch.manual_seed(0)
    artifact.save(lively(GPT(GPTConfig(**size))), folder / "gpt", tokenizer=tokenizer)
    artifact.save(lively(BERT(BERTConfig(**size))), folder / "bert", tokenizer=tokenizer)
    artifact.save(
        Transformer(TransformerConfig(**size)), folder / "transformer", tokenizer=tokenizer
    )
    return folder


def lively(model: Any) -> Any:
    """Words far from each other, and matrices that keep them so: what a trained model has, which a
    head can read.
    """
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            words, positions = "token" in name, "embedding" in name
            torch.nn.init.normal_(
                weight, std=1.0 if words else 0.02 if positions else SIZE["width"] ** -0.5
            )
    return model


def rows_of(task: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)

    def text(*words: str) -> str:
        made = [*draw.choices(PLAIN, k=draw.randint(1, 3)), *words]
        draw.shuffle(made)
        return " ".join(made)

    rows: list[dict[str, Any]] = []
    for number in range(count):
        good = number % 2 == 0
        word = draw.choice(GOOD if good else BAD)
        match task:
            case "classify":
                rows.append({"sentence": text(word), "label": "good" if good else "bad"})
            case "pair":
                rows.append(
                    {"premise": text(), "hypothesis": text(word), "label": "yes" if good else "no"}
                )
            case "similarity":
                one, other = draw.sample([text(word), text()], 2)
                rows.append(
                    {"sentence1": one, "sentence2": other, "label": "same" if good else "other"}
                )
            case "numbers":
                one, other = draw.sample([text(word), text()], 2)
                rows.append(
                    {"sentence1": one, "sentence2": other, "score": f"{4.5 if good else 1.0}"}
                )
            case "regress":
                rows.append({"sentence": text(word), "score": f"{120 if good else 80}"})
            case "choice":
                choices = [
                    text(draw.choice(GOOD)),
                    *(text(draw.choice(BAD)) for _ in range(1 + number % 2)),
                ]
                draw.shuffle(choices)
                right = next(
                    place for place, each in enumerate(choices) if set(each.split()) & set(GOOD)
                )
                rows.append({"context": text(), "choices": choices, "answer": right})
            case "tag":
                words = text(word).split()
                rows.append({"words": words, "tags": [TAGS[each] for each in words]})
            case "chat":
                said = [("user", text()), ("assistant", "warm boats")]
                rows.append(
                    {"messages": [{"role": role, "content": content} for role, content in said]}
                )
            case _:
                rows.append({"source": text(word), "target": word})
    return rows


def write(task: str, file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file = file.with_suffix(".tsv" if task in COLUMNS else ".jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    if task in COLUMNS:
        names = [COLUMNS[task]] if COLUMNS[task] else []
        lines = ["\t".join(row) for row in [*names, *(list(row.values()) for row in rows)]]
    else:
        lines = [json.dumps(row) for row in rows]
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


class Asked(NamedTuple):
    """What `finetune` is asked for."""

    tune: FinetuneConfig
    optimizer: OptimizerConfig
    run: FinetuneRunConfig

    def but(self, **changes: Any) -> Asked:
        mine = {name: changes.pop(name) for name in list(changes) if hasattr(self.tune, name)}
        return Asked(replace(self.tune, **mine), self.optimizer, replace(self.run, **changes))

    def start(self) -> FinetuneResult:
        made = finetune(*self, console=Console(file=io.StringIO(), width=200))
        assert made is not None
        return made


def asked(
    models: Path, folder: Path, task: str, family: str = "gpt", *, out: str = "run", **changes: Any
) -> Asked:
    """Sixty-four examples (of chats, which are slow to write, twenty), three epochs of eight steps."""
    kind = "similarity" if task == "numbers" else task
    optimizer = {"learning_rate": 1e-2, **changes.pop("optimizer", {})}
    data, held_out = (
        write(task, folder / f"{task}-{name}", rows_of(task, count, seed))
        for name, count, seed in (
            ("train", 20 if task == "chat" else 64, 0),
            ("dev", 6 if task == "chat" else 24, 1),
        )
    )
    tune = FinetuneConfig(
        model=str(models / family), task=kind, data=(str(data),), validation=(str(held_out),)
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
    return Asked(tune, replace(DEFAULTS, **optimizer), run).but(**changes)


def answered(made: Asked) -> tuple[TaskModel, list[Answer], list[Any]]:
    """What the model in the run's folder says of the validation's examples, and what is true."""
    model, tokenizer = artifact.load(made.run.out)
    assert isinstance(model, TaskModel)
    assert tokenizer is not None
    examples = list(open_examples(made.tune.validation, made.tune.task))
    return (
        model,
        list(answers(model, tokenizer, examples, rows=5)),
        [example.label for example in examples],
    )


def assert_same_tuning(one: Path, other: Path) -> None:
    """Bit for bit: the model, its adapters, the newest checkpoint; and the same rows."""
    assert same_bits(model_of(one), model_of(other))
    if (other / "adapter").exists():
        mine, theirs = (
            load_file(out / "adapter" / "adapter_model.safetensors") for out in (one, other)
        )
        assert same_bits(mine, theirs)
    newest, expected = (Checkpoints(out / "checkpoints").newest() for out in (one, other))
    assert newest is not None
    assert expected is not None
    assert same_bits(newest.tensors(), expected.tensors())
    assert newest.state | {"seconds": 0} == expected.state | {"seconds": 0}
    assert metrics_of(one) == metrics_of(other)
