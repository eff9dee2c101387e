"""Small runs of every family, from a file of text to a folder with a model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models import BERTConfig, Config, GPTConfig, RNNConfig, TransformerConfig
from qkv.models.convert.hf_folder import read_metadata
from qkv.training.logging.metrics import read_metrics
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run import Run, begin
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingTask, assemble
from qkv.training.systems.distributed import World
from qkv.training.train import train

ALONE = World(torch.device("cpu"))
SIZE: dict[str, Any] = {"vocabulary": 64, "width": 16, "depth": 2, "heads": 2, "hidden": 24}
MODELS: dict[str, Config] = {
    "gpt": GPTConfig(**SIZE, context=16, dropout=0.1, attention_dropout=0.1),
    "bert": BERTConfig(**SIZE, context=16, dropout=0.1),
    "transformer": TransformerConfig(**SIZE, context=32, dropout=0.1),
    "rnn": RNNConfig(vocabulary=64, width=16, dropout=0.1),
}
NOUNS, VERBS = ["cats", "mice", "dogs", "birds", "boats"], ["chase", "see", "hear", "follow"]
VARYING = ("seconds", "tokens_per_second", "utilisation", "memory")
"""What depends on the machine and the moment."""


def sentences(count: int = 240) -> list[str]:
    draw = random.Random(0)
    return [f"{draw.choice(NOUNS)} {draw.choice(VERBS)} {draw.choice(NOUNS)}" for _ in range(count)]


def data_of(family: str, folder: Path) -> DataConfig:
    """Written on the first call: sentences, or each with itself turned round and a word more here
    and there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if family in ("gpt", "bert"):
        file = folder / "text.txt"
        if not file.exists():
            file.write_text("".join(f"{sentence}\n" for sentence in sentences()))
        return DataConfig(data=(str(file),), tokenizer="words")
    file = folder / "pairs.tsv"
    if not file.exists():
        rows = [
            (one, " ".join(one.split()[::-1][: 2 + place % 2]))
            for place, one in enumerate(sentences())
        ]
        file.write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    return DataConfig(data=(str(file),), tokenizer="words")


class Plan(NamedTuple):
    """What `start` is asked for."""

    config: Config
    data: DataConfig
    optimizer: OptimizerConfig
    run: RunConfig

    def but(self, **changes: Any) -> Plan:
        return Plan(self.config, self.data, self.optimizer, replace(self.run, **changes))

    def start(self, **more: Any) -> TrainingResult | None:
        return train(*self, console=Console(width=200, force_terminal=False), **more)

    def task(self) -> TrainingTask:
        return assemble(
            self.config, self.data, batch_tokens=self.run.batch_tokens, seed=self.run.seed
        )

    def begin(self, task: TrainingTask | None = None, **more: Any) -> Run:
        self.run.out.mkdir(parents=True, exist_ok=True)
        return begin(task or self.task(), self.optimizer, self.run, ALONE, **more)

    def train(self, task: TrainingTask | None = None, **more: Any) -> TrainingResult:
        return training_loop(self.begin(task, **more))


def plan(
    family: str,
    folder: Path,
    out: Path | None = None,
    *,
    optimizer: dict[str, Any] | None = None,
    **run: Any,
) -> Plan:
    """Twelve steps, a checkpoint after every third, a validation after every fourth."""
    usual: dict[str, Any] = {
        "steps": 12, "batch_tokens": 64, "checkpoint_every": 3, "validate_every": 4, "device": "cpu", "log_every": 100,
    }  # fmt: skip
    learning = OptimizerConfig(**{"learning_rate": 3e-3, "warmup": 2, **(optimizer or {})})
    config = RunConfig(out=out or folder / "run", **{**usual, **run})
    return Plan(MODELS[family], data_of(family, folder / "data"), learning, config)


# What came out


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def model_of(out: Path) -> dict[str, Tensor]:
    return load_file(out / "model.safetensors")


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Of metrics.jsonl, without what varies."""
    return [{name: row[name] for name in row if name not in VARYING} for row in read_metrics(out)]


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit: the model, the newest checkpoint and the list of checkpoints; and the same rows."""
    assert same_bits(model_of(one), model_of(other))
    # The order of these differs from file to file: safetensors draws it at random.
    assert read_metadata(one / "model.safetensors") == read_metadata(other / "model.safetensors")
    ours, theirs = Checkpoints(one / "checkpoints"), Checkpoints(other / "checkpoints")
    assert ours.steps() == theirs.steps()
    newest, expected = ours.newest(), theirs.newest()
    assert newest is not None
    assert expected is not None
    assert newest.step == expected.step
    assert same_bits(newest.tensors(), expected.tensors())
    assert newest.state | {"seconds": 0} == expected.state | {"seconds": 0}
    assert rows_of(one) == rows_of(other)


# Batches made by hand


def made_batch(family: str, rows: int = 7, length: int = 9, vocabulary: int = 64) -> Batch:
    """Random words, with padding at the ends of rows, and rows of different lengths."""
    draw = torch.Generator().manual_seed(5)

    def ids(*shape: int) -> Tensor:
        return torch.randint(5, vocabulary, shape, generator=draw)

    lengths = torch.randint(3, length + 1, (rows,), generator=draw)
    lengths[0] = length
    keep = torch.arange(length) < lengths[:, None]
    if family in ("transformer", "rnn"):
        targets = ids(rows, length).where(keep, IGNORE)
        source_padding_mask = keep.flip(0)[:, : length - 1].clone()
        source_padding_mask[:, 0] = True
        source = ids(rows, length - 1).where(source_padding_mask, 0)
        return Batch(
            ids(rows, length).where(keep, 0),
            targets,
            keep=keep,
            source=source,
            source_padding_mask=source_padding_mask,
        )
    if family == "bert":
        target_positions = torch.stack([torch.randperm(3, generator=draw)[:2] for _ in range(rows)])
        targets = ids(rows, 2)
        targets[1, 1] = targets[-1, 0] = IGNORE
        return Batch(
            ids(rows, length).where(keep, 0), targets, target_positions=target_positions, keep=keep
        )
    return Batch(ids(rows, length).where(keep, 0), ids(rows, length).where(keep, IGNORE), keep=keep)
