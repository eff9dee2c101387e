"""FSDP checkpoints: each rank's shards, a name only when all are written, any number of ranks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open

import qkv
from qkv import storage
from qkv.checkpoint import CHECKPOINTS
from qkv.training.resilience import sharded_checkpoints
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.resilience.sharded_checkpoints import ShardedCheckpoints
from qkv.training.systems.distributed import World
from support.launching import train_on_cpu, write_data
from support.ranks import HALFWAY, STEPS, train_case
from support.small_checkpoints import check, names, same_bits, save

CPU = torch.device("cpu")


# Two ranks, one of which is killed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`killed` lost a rank while it saved; `resumed` is that run, continued on two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(folder / "cache"))
        write_data(folder)
        killed = ["die", "gpt:fsdp:killed"]
        resumed = ["copy:killed:resumed", "gpt:fsdp:whole", "gpt:fsdp:resumed", "empty"]
        train_on_cpu(folder, (2, killed), (2, resumed))
        yield folder


def newest(run: Path) -> Any:
    return Checkpoints(run / CHECKPOINTS, log=pytest.fail).newest()


def test_no_rank_writes_a_whole_model(runs: Path) -> None:
    folder = newest(runs / "whole").path
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) == 2
    assert not (folder / "tensors.safetensors").exists()
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] * 2 + [".safetensors"] * 2
    expected = {name: weight.shape for name, weight in newest(runs / "whole").tensors().items()}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                shape = file.get_slice(name).get_shape()
                assert not shape or shape[0] == expected[name][0] // 2


def test_a_half_written_checkpoint_has_no_name(runs: Path) -> None:
    assert (runs / "killed" / "died").exists()
    assert newest(runs / "killed").step == HALFWAY < STEPS
    assert Checkpoints(runs / "killed" / CHECKPOINTS).steps()[-1] == HALFWAY


def test_the_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(runs: Path) -> None:
    assert same_bits(newest(runs / "resumed").tensors(), newest(runs / "whole").tensors())
    weights = qkv.load(runs / "resumed").model.state_dict()
    assert same_bits(dict(weights), dict(qkv.load(runs / "whole").model.state_dict()))
    left = [path.name for path in (runs / "resumed" / CHECKPOINTS).iterdir()]
    assert all(name.startswith("step-") for name in left)


def test_a_checkpoint_opens_in_one_process(runs: Path) -> None:
    checkpoint = newest(runs / "whole")
    weights = qkv.load(f"{runs / 'whole'}@{checkpoint.step}").model.state_dict()
    assert same_bits(dict(weights), checkpoint.tensors("average/"))


def test_a_killed_run_has_no_model_and_opens_its_best_checkpoint(runs: Path) -> None:
    run = runs / "killed"
    assert not (run / "model.safetensors").exists()
    best = Checkpoints(run / CHECKPOINTS).best() or newest(run)
    weights = qkv.load(run).model.state_dict()
    assert same_bits(dict(weights), best.tensors("average/"))


def test_shards_may_be_empty(runs: Path) -> None:
    weights = Checkpoints(runs / "empty").newest().tensors()
    assert weights["weight"].tolist() == [[5.0, 5.0, 5.0]]
    assert weights["bias"].shape == (1,)


# One rank, without other processes


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A process group of this process alone, with which a model can be sharded."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World(CPU, cpu_group=dist.group.WORLD)
    dist.destroy_process_group()


@pytest.fixture
def sharded(world: World, tmp_path: Path) -> ShardedCheckpoints:
    return ShardedCheckpoints(tmp_path / "checkpoints", 2, pytest.fail, world)


def test_a_checkpoint_has_its_name_after_waiting(sharded: ShardedCheckpoints) -> None:
    save(sharded, 1, 2, 3, best=1)
    sharded.wait()
    assert names(sharded) == ["step-00000001", "step-00000002", "step-00000003"]
    check(sharded.newest(), 3)
    check(sharded.best(), 1)


def test_training_may_change_the_tensors_while_they_are_written(
    sharded: ShardedCheckpoints,
) -> None:
    weight = torch.ones(1000)
    sharded.save(1, {"weight": weight}, {})
    weight.zero_()
    sharded.wait()
    assert sharded.newest().tensors()["weight"].tolist() == [1.0] * 1000


def test_a_damaged_or_additional_shard_is_refused(
    sharded: ShardedCheckpoints, tmp_path: Path
) -> None:
    save(sharded, 1)
    sharded.wait()
    messages: list[str] = []
    shard = next((sharded.folder / "step-00000001").glob("shard*"))
    shutil.copy(shard, shard.with_name("shard-00009.safetensors"))
    assert Checkpoints(sharded.folder, log=messages.append).newest() is None
    assert "shard-00009.safetensors: damaged" in messages[0]
    shard.with_name("shard-00009.safetensors").unlink()
    shard.write_bytes(shard.read_bytes()[:-1])
    assert Checkpoints(sharded.folder, log=messages.append).newest() is None
    assert f"{shard.name}: damaged or cut short" in messages[1]


def test_a_disk_that_fills_up_is_reported_and_leaves_the_others_intact(
    sharded: ShardedCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(sharded, 1)
    sharded.wait()

    def full(path: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded_checkpoints, "describe", full)
    save(sharded, 2)
    with pytest.raises(storage.DiskFull, match="the checkpoint of step 2 needs"):
        sharded.wait()
    assert names(sharded) == ["step-00000001"]


def test_too_little_space_is_noticed_before_writing(
    sharded: ShardedCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free", lambda folder: 399)
    with pytest.raises(storage.DiskFull, match=r"step 2 needs 4\d\d bytes, 399 are free"):
        save(sharded, 2)


def test_frozen_weights_are_in_the_checkpoint_and_in_the_model(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with FSDP writes its model from a checkpoint alone."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    write_data(tmp_path)
    initial: dict[str, torch.Tensor] = {}

    def freeze(task: Any, *args: Any, **kwargs: Any) -> Any:
        model, objective = original(task, *args, **kwargs)
        model.embedding.requires_grad_(False)
        for name, weight in model.named_parameters():
            initial[name] = weight.detach().full_tensor().clone()

        return model, objective

    from qkv.training import run as run_module

    original = run_module.build_objective
    monkeypatch.setattr(run_module, "build_objective", freeze)
    train_case("llama", tmp_path, tmp_path / "run", world, "fsdp", steps=2)
    frozen = newest(tmp_path / "run").tensors("frozen/")
    assert frozen
    for name, weight in qkv.load(tmp_path / "run").model.state_dict().items():
        assert torch.equal(weight, initial[name]) == (name in frozen)
