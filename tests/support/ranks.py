"""Small data-parallel runs, the same for one process and for several.

`torchrun tests/support/ranks.py FOLDER cpu gpt:fsdp:new ...` trains the case `gpt` with FSDP on the
data in FOLDER, into FOLDER/new, or resumes the run there. It takes several runs at once, because
starting the processes takes longer than training.

`python tests/support/ranks.py FOLDER cpu --ranks 2 gpt:fsdp:new ... --ranks 3 ...` does the same
with ranks that are forked after the imports, which take longest: two of them, and then three.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config  # which every run imports, and that takes a second
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from qkv.checkpoint import CHECKPOINTS
from qkv.models.bert import BERTConfig
from qkv.models.gpt import GPTConfig
from qkv.models.registry import Config
from qkv.models.rnn import RNNConfig
from qkv.models.transformer import TransformerConfig
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.resilience.sharded_checkpoints import ShardedCheckpoints, ShardWriter
from qkv.training.run import Run
from qkv.training.run_config import DataConfig, Distributed, OptimizerConfig, RunConfig
from qkv.training.setup.run_folder import describe, write_description
from qkv.training.setup.training_task import assemble
from qkv.training.systems.distributed import World, join_process_group

STEPS = 4
HALFWAY = 2  # the step that runs are resumed from
TEXT = "text.txt"
PAIRS = "pairs.tsv"
PORT_BYTES = 8


@dataclass(frozen=True)
class Case:
    """A model with its data, optimizer and run options."""

    model: Config
    data: str = TEXT
    optimizer: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)


SMALL: dict[str, Any] = {"width": 32, "heads": 2}
AT_THE_END = {"checkpoint_every": STEPS}
"""For cases whose runs are not resumed: a checkpoint takes longer than a step."""
CASES = {
    # Five rows per batch, which two or three ranks cannot share evenly; one row per micro-batch.
    "gpt": Case(
        GPTConfig(vocabulary=64, context=16, depth=2, **SMALL),
        optimizer={"average": "exponential", "average_decay": 0.9, "smoothing": 0.1},
        run={"micro_batch_tokens": 16},
    ),
    "muon": Case(
        GPTConfig(vocabulary=64, context=16, depth=2, position="rotary", **SMALL),
        optimizer={"optimizer": "muon"},
    ),
    "llama": Case(
        GPTConfig(
            vocabulary=64, context=16, depth=2, position="rotary", norm="rms", tied=False, **SMALL
        ),
        optimizer={"average": "last"},
        run={"recompute": True, "keep": 2},
    ),
    # Every block is called once per segment of a row.
    "memory": Case(
        GPTConfig(vocabulary=64, context=8, depth=2, position="relative", memory=8, **SMALL),
        run=AT_THE_END,
    ),
    "bert": Case(
        BERTConfig(
            vocabulary=64,
            context=16,
            depth=2,
            pooler=False,
            next_sentence=False,
            dropout=0.0,
            **SMALL,
        ),
        run=AT_THE_END,
    ),
    # Batches of one row and of many.
    "transformer": Case(
        TransformerConfig(vocabulary=64, depth=1, dropout=0.0, **SMALL),
        data=PAIRS,
        run={"batch_tokens": 64, "micro_batch_tokens": 16, **AT_THE_END},
    ),
    "rnn": Case(
        RNNConfig(vocabulary=64, width=16, dropout=0.0),
        data=PAIRS,
        run={"batch_tokens": 64, **AT_THE_END},
    ),
}


def train_case(
    name: str,
    data: Path,
    out: Path,
    world: World,
    distributed: Distributed = "ddp",
    **options: Any,
) -> TrainingResult:
    """Train a case, or resume it."""
    case = CASES[name]
    usual: dict[str, Any] = {
        "steps": STEPS,
        "batch_tokens": 80,
        "validate_every": HALFWAY,
        "checkpoint_every": HALFWAY,
        "keep": 9,
        "log_every": 1,
        "compile": False,
    }
    run = RunConfig(out=out, distributed=distributed, **{**usual, **case.run, **options})
    # A larger epsilon: gradients that are 0 but for rounding, such as those of the keys' biases,
    # would otherwise become full steps.
    optimizer = OptimizerConfig(**{"epsilon": 1e-5, "learning_rate": 1e-2, **case.optimizer})
    with world.first_rank_first():
        source = DataConfig(data=(str(data / case.data),), tokenizer="characters")
        task = assemble(case.model, source, batch_tokens=run.batch_tokens, seed=run.seed)
        if world.first:
            write_description(out, describe(task, source, optimizer, run))

    return training_loop(Run.create(task, optimizer, run, world))


def halfway(run: Path, copy: Path) -> None:
    """Copy a run as it was at its checkpoint halfway."""
    shutil.copytree(run, copy)
    checkpoints = Checkpoints(copy / CHECKPOINTS)
    for step in checkpoints.steps():
        if step > HALFWAY:
            shutil.rmtree(checkpoints.folder_of(step))
    (copy / "model.safetensors").unlink()


def fail_in_turn(world: World, folder: Path) -> None:
    """Fail on every rank in turn, and write down how each rank ends."""
    for failing in range(world.size):
        try:
            with world.all_or_none():
                if world.rank == failing:
                    raise OSError("no room")
        except (OSError, SystemExit) as error:
            (folder / f"{failing}-{world.rank}").write_text(type(error).__name__)
    try:
        with world.first_rank_first():
            (folder / f"turn-{world.rank}").touch()
            raise OSError("no room")
    except (OSError, SystemExit) as error:
        (folder / f"turns-{world.rank}").write_text(type(error).__name__)


def die_while_saving(world: World, step: int) -> None:
    """From now on the last rank is killed in the middle of writing the checkpoint of a step."""
    original = ShardWriter.write_data

    def write_data(self: ShardWriter, *args: Any) -> Any:
        if world.rank == world.size - 1 and str(self.path).endswith(f"step-{step:08}"):
            Path(self.path, "half").write_bytes(b"half a shard")
            Path(self.path).parent.with_name("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

        return original(self, *args)

    ShardWriter.write_data = write_data  # type: ignore[method-assign]


def save_empty_shards(world: World, folder: Path) -> None:
    """A layer with fewer rows than there are ranks, some of which have an empty shard."""
    layer = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(layer.weight, 5.0)
    fully_shard(layer)
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    checkpoints = ShardedCheckpoints(folder, None, print, world)
    checkpoints.save(1, weights, {})
    checkpoints.wait()
    newest = checkpoints.newest()
    assert newest is not None
    read = newest.tensors(like=dict(layer.named_parameters()))
    for name, weight in weights.items():
        assert torch.equal(read[name].to_local(), weight.to_local())


def main(folder: str, device: str, *items: str) -> None:
    with join_process_group(device) as world:
        for item in items:
            if item == "fail":
                fail_in_turn(world, Path(folder))
                continue
            if item == "die":
                die_while_saving(world, STEPS)
                continue
            if item == "empty":
                save_empty_shards(world, Path(folder, "empty"))
                continue

            if item.startswith(("copy:", "halfway:")):
                what, run, copy = item.split(":")
                copy_run = {"copy": shutil.copytree, "halfway": halfway}[what]
                with world.first_rank_first():
                    if world.first:
                        copy_run(Path(folder, run), Path(folder, copy))
                continue

            name, distributed, out, *precision = item.split(":")
            options: dict[str, Any] = {}
            if precision:
                options = {"precision": precision[0], "compile": len(precision) > 1}

            method: Any = distributed
            train_case(name, Path(folder), Path(folder, out), world, method, **options)


def train_on_forked_ranks(ranks: int, folder: str, device: str, items: list[str]) -> None:
    """Do the items on `ranks` processes, with the environment that torchrun gives them.

    When one fails, the others are ended. Exits unless all end well, or one dies that is to `die`.
    """
    reader, writer = os.pipe()
    running = set()
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            port = os.read(reader, PORT_BYTES).decode().strip()
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            main(folder, device, *items)
            sys.exit()

        running.add(process)

    # As torchrun's, the store of the ranks' addresses is here, on a port that nobody else can take.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writer, f"{store.port:<{PORT_BYTES}}".encode() * ranks)
    failures = []
    while running:
        process, status = os.wait()
        running.remove(process)
        if status:
            failures.append(os.waitstatus_to_exitcode(status))
            for other in running:
                os.kill(other, signal.SIGTERM)

    expected = not failures
    if "die" in items:
        expected = -signal.SIGKILL in failures
    if not expected:
        sys.exit(f"ranks ended with {failures}")


def train_groups(folder: str, device: str, *arguments: str) -> None:
    """Do the items of each `--ranks N ITEM ...` on as many ranks, one group after the other."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument == "--ranks":
            groups.append([])
        else:
            groups[-1].append(argument)

    for ranks, *items in groups:
        train_on_forked_ranks(int(ranks), folder, device, items)


if __name__ == "__main__":
    train = main
    if "--ranks" in sys.argv:
        train = train_groups

    train(*sys.argv[1:])
