"""Training of translators and BERTs on a GPU: a whole `qkv train`, and PyTorch's own modules.

    python -m benchmarks.training.translate_train --data train.en train.de
    python -m benchmarks.training.translate_train --preset rnn-attention --batch-tokens 16384
    python -m benchmarks.training.translate_train --preset bert-small --batch-tokens 16384

Without --data the texts are random words, in sentences as long as those of Multi30k. The peer reads
the same batches, through the same prefetching thread, in bf16 autocast with a fused AdamW and
clipped gradients: nn.Transformer, nn.TransformerEncoder, or nn.GRU with packed rows and a loop of
additive attention. Tokens are those of both sides without padding, as `qkv train` counts them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from torch import Tensor, nn

from benchmarks.harness import machine
from qkv.data.batches.batch import IGNORE, Batch
from qkv.models import preset
from qkv.training.logging.metrics import read_metrics
from qkv.training.loop import training_loop
from qkv.training.run import Run
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingTask, assemble
from qkv.training.systems.distributed import World, device_named
from qkv.training.systems.precision import use_tf32
from qkv.training.systems.prefetcher import Prefetcher

DEVICE = device_named(None)
GPU = DEVICE.type == "cuda"
WARM_UP = 0.5
"""Fraction of the steps that is not timed: shapes are captured in it."""


@dataclass
class Options:
    preset: str = "transformer-small" if GPU else "transformer-tiny"
    data: tuple[str, ...] = ()
    """Files for --data of qkv train (default: random sentences)."""
    batch_tokens: int = 8192
    steps: int = 400 if GPU else 20
    compile: bool | None = None
    """As --compile of qkv train."""
    peer: bool = True
    peer_compiled: bool = False
    """Compile the peer, too, for shapes of any size."""
    peer_steps: int = 80 if GPU else 10


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of random words; their lengths have the mean and the spread of Multi30k's."""
    random = np.random.default_rng(seed)
    words = np.array([f"w{number}" for number in range(6000)])
    lengths = np.clip(random.lognormal(np.log(12.5), 0.33, count).astype(int), 4, 50)
    zipf = 1 / np.arange(10, 10 + len(words))
    drawn = random.choice(words, int(lengths.sum()), p=zipf / zipf.sum())

    return [" ".join(line) for line in np.split(drawn, np.cumsum(lengths)[:-1])]


def build_task(options: Options, folder: Path) -> TrainingTask:
    """The data of the run, made if no files are named."""
    config = preset(options.preset)
    if options.data:
        data = DataConfig(data=options.data)
    else:
        lines = sentences(30_000, 0)
        path = folder / "data.txt"
        if hasattr(config, "source_vocabulary"):
            path = folder / "data.tsv"
            lines = [f"{line}\t{line.upper()}" for line in lines]

        path.write_text("\n".join(lines) + "\n")
        data = DataConfig(data=(str(path),), tokenizer="words")

    return assemble(config, data, batch_tokens=options.batch_tokens, seed=0)


def time_qkv(task: TrainingTask, options: Options, folder: Path) -> tuple[float, float]:
    """Seconds up to the end of the first step, and tokens/s of the last steps of a run."""
    config = RunConfig(
        out=folder / "run",
        steps=options.steps,
        batch_tokens=options.batch_tokens,
        compile=options.compile,
        validate_every=options.steps,
        checkpoint_every=options.steps,
        log_every=options.steps,
    )
    begin = time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        console = Console(file=log)
        run = Run.create(task, OptimizerConfig(), config, World(DEVICE), console=console)
        created = time.perf_counter() - begin
        training_loop(run)

    rows = [row for row in read_metrics(config.out) if "tokens_per_second" in row]
    first = rows[0]
    middle = rows[int(len(rows) * WARM_UP)]
    last = rows[-1]
    tokens = last["tokens"] - middle["tokens"]

    return created + first["seconds"], tokens / (last["seconds"] - middle["seconds"])


class PeerEmbedding(nn.Module):
    """Tokens and learned positions, with dropout; the output layer shares the tokens' matrix."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.token(ids) + self.position(positions))

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.token.weight)


class TransformerPeer(nn.Module):
    """nn.Transformer with shared embeddings, as transformer-small has them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embedding = PeerEmbedding(config)
        self.transformer = nn.Transformer(
            config.width,
            config.heads,
            config.depth,
            config.depth,
            config.width_of_hidden,
            config.dropout,
            batch_first=True,
            norm_first=config.norm_placement == "before",
        )

    def forward(self, batch: Batch) -> Tensor:
        T = batch.ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=batch.ids.device).triu(1)
        hidden_source = None
        if batch.source_padding_mask is not None:
            hidden_source = ~batch.source_padding_mask

        hidden = self.transformer(
            self.embedding(batch.source),
            self.embedding(batch.ids),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=hidden_source,
            memory_key_padding_mask=hidden_source,
        )
        return self.embedding.logits(hidden)


class BERTPeer(nn.Module):
    """nn.TransformerEncoder, and logits at the masked positions."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embedding = PeerEmbedding(config)
        layer = nn.TransformerEncoderLayer(
            config.width,
            config.heads,
            config.width_of_hidden,
            config.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=config.norm_placement == "before",
        )
        self.encoder = nn.TransformerEncoder(layer, config.depth, enable_nested_tensor=False)

    def forward(self, batch: Batch) -> Tensor:
        x = self.encoder(self.embedding(batch.ids))
        assert batch.target_positions is not None
        index = batch.target_positions.unsqueeze(-1).expand(-1, -1, x.shape[-1])

        return self.embedding.logits(x.gather(1, index))


class RNNPeer(nn.Module):
    """A bidirectional GRU over packed rows, and a decoder with additive attention."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        E = config.width
        self.source_embedding = nn.Embedding(config.vocabulary, E)
        self.embedding = nn.Embedding(config.vocabulary, E)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.GRU(E, E // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(E, E)
        self.W_q = nn.Linear(E, E, bias=False)
        self.W_k = nn.Linear(E, E, bias=False)
        self.v = nn.Linear(E, 1, bias=False)
        self.decoder = nn.GRUCell(2 * E, E)
        self.combine = nn.Linear(2 * E, E)
        self.output = nn.Linear(E, config.vocabulary)

    def forward(self, batch: Batch) -> Tensor:
        assert batch.source is not None
        mask = batch.source_padding_mask
        if mask is None:
            mask = torch.ones_like(batch.source, dtype=torch.bool)

        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.source_embedding(batch.source)),
            mask.sum(1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        packed_outputs, last = self.encoder(packed)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(
            packed_outputs, batch_first=True, total_length=batch.source.shape[1]
        )
        h = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=-1)))
        keys = self.W_k(outputs)

        steps = []
        for token in self.dropout(self.embedding(batch.ids)).unbind(1):
            scores = self.v(torch.tanh(self.W_q(h).unsqueeze(1) + keys)).squeeze(-1)
            weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
            context = (weights.unsqueeze(1) @ outputs).squeeze(1)
            h = self.decoder(torch.cat([token, context], dim=-1), h.to(token.dtype))
            steps.append(torch.tanh(self.combine(torch.cat([h, context], dim=-1))))

        return self.output(torch.stack(steps, dim=1))


def time_peer(task: TrainingTask, options: Options, compiled: bool) -> tuple[float, float]:
    """The same for PyTorch's modules."""
    begin = time.perf_counter()
    peers: dict[str, Callable[[Any], nn.Module]] = {
        "transformer": TransformerPeer,
        "bert": BERTPeer,
        "rnn": RNNPeer,
    }
    model = peers[options.preset.split("-")[0]](task.config).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward: Any = torch.compile(model, dynamic=True) if compiled else model

    def step(batch: Batch) -> None:
        moved = batch.pin().to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=GPU):
            logits = forward(moved)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), moved.targets.flatten(), ignore_index=IGNORE
            )

        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    middle = int(options.peer_steps * WARM_UP)
    tokens = 0
    ready = 0.0
    started = 0.0
    with closing(Prefetcher(task.training)) as prefetcher:
        for number in range(options.peer_steps):
            if number == middle:
                wait()
                started = time.perf_counter()

            batch = prefetcher.take(number, number + 1)
            step(batch)
            if number == 0:
                wait()
                ready = time.perf_counter() - begin
            if number >= middle:
                tokens += batch.tokens

        wait()

    return ready, tokens / (time.perf_counter() - started)


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def main(options: Options) -> None:
    use_tf32(torch.device("cuda" if GPU else "cpu"))
    print(f"{options.preset}, {options.batch_tokens} tokens a step and side; {machine()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = build_task(options, folder)
        print(f"  {task.training.tokens_per_step:,} tokens a step, {'; '.join(task.notes[:1])}")
        results = {"qkv": time_qkv(task, options, folder)}
        if options.peer:
            results["PyTorch, eager"] = time_peer(task, options, compiled=False)
        if options.peer_compiled:
            results["PyTorch, compiled"] = time_peer(task, options, compiled=True)

        for title, (first, speed) in results.items():
            ratio = results["qkv"][1] / speed
            print(
                f"  {title:18} first step after {first:6.1f} s, then {speed:12,.0f} tokens/s"
                f"   x {ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
