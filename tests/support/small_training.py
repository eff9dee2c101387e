"""Small training jobs of every model family, from a text file to a folder with a model."""

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
from qkv.models import BERTConfig, Config, GPTConfig, RNNConfig, RNNLMConfig, TransformerConfig
from qkv.models.convert.hf_folder import read_metadata
from qkv.training.logging.metrics import read_metrics
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run import Run
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
    "rnn-lm": RNNLMConfig(vocabulary=64, context=16, width=16, depth=2, dropout=0.1),
}
NOUNS = ["cats", "mice", "dogs", "birds", "boats"]
VERBS = ["chase", "see", "hear", "follow"]
VARYING = ("seconds", "tokens_per_second", "utilisation", "memory")
"""Metrics that depend on the machine."""


def sentences(count: int = 240) -> list[str]:
    draw = random.Random(0)
    return [f"{draw.choice(NOUNS)} {draw.choice(VERBS)} {draw.choice(NOUNS)}" for _ in range(count)]


def data_of(family: str, folder: Path) -> DataConfig:
    """Data for a family, written on the first call.

    Texts are sentences; pairs are a sentence and its last two or three words in reverse order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if family in ("gpt", "bert", "rnn-lm"):
        file = folder / "text.txt"
        if not file.exists():
            file.write_text("\n".join(sentences()) + "\n")

        return DataConfig(data=(str(file),), tokenizer="words")

    file = folder / "pairs.tsv"
    if not file.exists():
        lines = []
        for number, sentence in enumerate(sentences()):
            reversed_words = sentence.split()[::-1]
            lines.append(f"{sentence}\t{' '.join(reversed_words[: 2 + number % 2])}\n")

        file.write_text("".join(lines))

    return DataConfig(data=(str(file),), tokenizer="words")


class TrainingJob(NamedTuple):
    """The arguments of `train`."""

    config: Config
    data: DataConfig
    optimizer: OptimizerConfig
    run: RunConfig

    def with_run(self, **changes: Any) -> TrainingJob:
        """The same job with other fields of its RunConfig."""
        return self._replace(run=replace(self.run, **changes))

    def start(self, **options: Any) -> TrainingResult | None:
        """Train through the public function."""
        return train(*self, console=Console(width=200, force_terminal=False), **options)

    def task(self) -> TrainingTask:
        return assemble(
            self.config, self.data, batch_tokens=self.run.batch_tokens, seed=self.run.seed
        )

    def create_run(self, task: TrainingTask | None = None, **options: Any) -> Run:
        self.run.out.mkdir(parents=True, exist_ok=True)
        return Run.create(task or self.task(), self.optimizer, self.run, ALONE, **options)

    def train(self, task: TrainingTask | None = None, **options: Any) -> TrainingResult:
        """Train without a run.json."""
        return training_loop(self.create_run(task, **options))


def small_job(
    family: str,
    folder: Path,
    out: Path | None = None,
    *,
    optimizer: dict[str, Any] | None = None,
    **run: Any,
) -> TrainingJob:
    """Twelve steps, a checkpoint after every third, a validation after every fourth."""
    usual: dict[str, Any] = {
        "steps": 12,
        "batch_tokens": 64,
        "checkpoint_every": 3,
        "validate_every": 4,
        "device": "cpu",
        "log_every": 100,
    }
    optimizer_config = OptimizerConfig(**{"learning_rate": 3e-3, "warmup": 2, **(optimizer or {})})
    run_config = RunConfig(out=out or folder / "run", **{**usual, **run})
    data = data_of(family, folder / "data")

    return TrainingJob(MODELS[family], data, optimizer_config, run_config)


# Comparison of runs


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    if first.keys() != second.keys():
        return False

    return all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name])
        for name in first
    )


def model_of(out: Path) -> dict[str, Tensor]:
    return load_file(out / "model.safetensors")


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without what depends on the machine."""
    rows = read_metrics(out)
    for row in rows:
        for name in VARYING:
            row.pop(name, None)

    return rows


def assert_same_run(first: Path, second: Path) -> None:
    """Equal bit for bit: the model, the newest checkpoint, the list of checkpoints and the rows."""
    assert same_bits(model_of(first), model_of(second))
    # Compared as dictionaries: safetensors writes the metadata in random order.
    assert read_metadata(first / "model.safetensors") == read_metadata(second / "model.safetensors")
    first_checkpoints = Checkpoints(first / "checkpoints")
    second_checkpoints = Checkpoints(second / "checkpoints")
    assert first_checkpoints.steps() == second_checkpoints.steps()
    newest = first_checkpoints.newest()
    expected = second_checkpoints.newest()
    assert newest is not None
    assert expected is not None
    assert newest.step == expected.step
    assert same_bits(newest.tensors(), expected.tensors())
    assert newest.state | {"seconds": 0} == expected.state | {"seconds": 0}
    assert rows_of(first) == rows_of(second)


# Random batches


def random_batch(family: str, rows: int = 7, length: int = 9, vocabulary: int = 64) -> Batch:
    """Random tokens in rows of different lengths, padded at their ends."""
    draw = torch.Generator().manual_seed(5)

    def ids(*shape: int) -> Tensor:
        return torch.randint(5, vocabulary, shape, generator=draw)

    lengths = torch.randint(3, length + 1, (rows,), generator=draw)
    lengths[0] = length
    padding_mask = torch.arange(length) < lengths[:, None]

    if family in ("transformer", "rnn"):
        targets = ids(rows, length).where(padding_mask, IGNORE)
        source_padding_mask = padding_mask.flip(0)[:, : length - 1].clone()
        source_padding_mask[:, 0] = True
        source = ids(rows, length - 1).where(source_padding_mask, 0)
        return Batch(
            ids(rows, length).where(padding_mask, 0),
            targets,
            padding_mask=padding_mask,
            source=source,
            source_padding_mask=source_padding_mask,
        )

    if family == "bert":
        positions = torch.stack([torch.randperm(3, generator=draw)[:2] for _ in range(rows)])
        targets = ids(rows, 2)
        targets[1, 1] = targets[-1, 0] = IGNORE
        return Batch(
            ids(rows, length).where(padding_mask, 0),
            targets,
            target_positions=positions,
            padding_mask=padding_mask,
        )

    return Batch(
        ids(rows, length).where(padding_mask, 0),
        ids(rows, length).where(padding_mask, IGNORE),
        padding_mask=padding_mask,
    )
