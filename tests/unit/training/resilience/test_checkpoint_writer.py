"""A checkpoint is there whole or not at all, whatever happens to the process, the files or the
disk.
"""

from __future__ import annotations

import errno
import json
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv import storage
from qkv.models.convert import hf_folder as files
from qkv.training.resilience.checkpoint_writer import Checkpoint, Checkpoints
from support.killing import FORK, killed_before_every_touch


def tensors_of(step: int, size: int = 100) -> dict[str, Tensor]:
    return {
        "weight": torch.randn(size, generator=torch.Generator().manual_seed(step)),
        "step": torch.tensor(step),
    }


def check(found: Checkpoint | None, step: int, size: int = 100) -> None:
    assert found is not None
    assert (found.step, found.state) == (step, {"seed": step})
    assert same_bits(found.tensors(), tensors_of(step, size))


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    def bits(tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {
            name: (
                tensor.dtype,
                tensor.shape,
                tensor.contiguous().reshape(-1).view(torch.uint8).tolist(),
            )
            for name, tensor in tensors.items()
        }

    return bits(one) == bits(other)


def save(checkpoints: Checkpoints, *steps: int, best: int | None = None) -> None:
    for step in steps:
        checkpoints.save(step, tensors_of(step), {"seed": step}, best=step == best)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, said: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", log=said.append)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


# What is saved is what is read


def test_every_bit_comes_back(checkpoints: Checkpoints) -> None:
    matrix = torch.nn.Parameter(torch.randn(3, 4))
    optimizer = torch.optim.AdamW([matrix])
    matrix.square().sum().backward()
    optimizer.step()
    optimizer_state = {f"adam.{name}": value for name, value in optimizer.state[matrix].items()}
    assert optimizer_state["adam.step"].shape == ()
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    tensors = {
        **optimizer_state,
        "matrix": matrix,
        "transposed": matrix.T,
        "same memory": matrix,
        "a row": matrix[1],
        "odd": odd,
        "half": odd.half(),
        "bf16": torch.randn(7).bfloat16(),
        "double": torch.randn(2, dtype=torch.float64),
        "ids": torch.randint(-(2**62), 2**62, (5,)),
        "generator": torch.get_rng_state(),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "": torch.tensor(7),
        'ğ"\n\0/..': torch.tensor(8),
    }
    state = {
        "loss": 0.1 + 0.2,
        "inf": float("inf"),
        "big": 2**80,
        "none": None,
        "list": [1, "ş"],
        "inner": {"a": True},
    }
    checkpoints.save(3, tensors, state)
    found = checkpoints.newest()
    assert found is not None
    assert found.state == state
    assert same_bits(found.tensors(), {name: tensor.detach() for name, tensor in tensors.items()})


def test_tensors_outlive_their_file(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    tensors = checkpoints.newest().tensors()
    file = checkpoints.folder / "step-00000001" / "tensors.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert same_bits(tensors, tensors_of(1))


def test_a_name_that_could_not_be_read_back_is_refused(checkpoints: Checkpoints) -> None:
    with pytest.raises(ValueError, match="__metadata__: a safetensors file keeps this name"):
        checkpoints.save(1, {"__metadata__": torch.ones(1)}, {})
    assert names(checkpoints) == []


def test_a_state_that_is_no_json_is_refused_before_anything_is_written(
    checkpoints: Checkpoints,
) -> None:
    save(checkpoints, 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoints.save(1, tensors_of(1), {"seed": torch.ones(1)})
    check(checkpoints.newest(), 1)


def test_a_checkpoint_can_be_read_by_whom_the_folder_allows(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / "plain").touch()
    plain = (checkpoints.folder / "plain").stat().st_mode
    assert {path.stat().st_mode for path in (checkpoints.folder / "step-00000001").iterdir()} == {
        plain
    }


# Which ones stay


def test_none_yet(checkpoints: Checkpoints) -> None:
    assert (checkpoints.newest(), checkpoints.best(), checkpoints.steps(), checkpoints.last(2)) == (
        None,
        None,
        [],
        [],
    )


def test_the_last_and_the_best_stay(checkpoints: Checkpoints) -> None:
    save(checkpoints, *range(10, 80, 10), best=20)
    assert checkpoints.steps() == [20, 50, 60, 70]
    check(checkpoints.newest(), 70)
    check(checkpoints.best(), 20)
    assert [found.step for found in checkpoints.last(2)] == [60, 70]
    assert [found.step for found in checkpoints.last(9)] == [20, 50, 60, 70]
    save(checkpoints, 80, best=80)
    assert checkpoints.steps() == [60, 70, 80]
    check(checkpoints.best(), 80)
    assert names(checkpoints) == ["step-00000060", "step-00000070", "step-00000080"]


def test_the_best_is_remembered_by_the_next_process(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20, 30, 40, best=10)
    again = Checkpoints(checkpoints.folder, keep=1)
    save(again, 50)
    assert again.steps() == [10, 50]
    check(again.best(), 10)


def test_a_passing_one_takes_no_place_and_goes_with_the_next(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20, 30)
    checkpoints.save(35, tensors_of(35), {"seed": 35}, temporary=True)
    assert checkpoints.steps() == [10, 20, 30, 35]
    check(checkpoints.newest(), 35)
    assert [found.step for found in checkpoints.last(3)] == [10, 20, 30]
    assert [found.step for found in checkpoints.last(1, up_to=29)] == [20]
    save(checkpoints, 40)
    assert checkpoints.steps() == [20, 30, 40]


def test_steps_beyond_eight_digits_are_in_order(checkpoints: Checkpoints) -> None:
    save(checkpoints, 99_999_999, 100_000_000)
    assert checkpoints.steps() == [99_999_999, 100_000_000]
    check(checkpoints.newest(), 100_000_000)


def test_a_step_saved_again_takes_the_place_of_the_first(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, 2)
    checkpoints.save(2, {"other": torch.ones(2)}, {"again": True}, best=True)
    assert names(checkpoints) == ["step-00000001", "step-00000002"]
    assert checkpoints.newest().state == {"again": True}
    assert checkpoints.best().step == 2


def test_a_run_that_went_back_does_not_find_its_old_future(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20, 30, best=30)
    save(checkpoints, 15)
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.best() is None


def test_other_things_in_the_folder_are_left_alone(checkpoints: Checkpoints) -> None:
    for name in ("notes", "step-00000001.old", ".hidden"):
        (checkpoints.folder / name).mkdir(parents=True)
    save(checkpoints, 1, 2, 3, 4)
    assert checkpoints.steps() == [2, 3, 4]
    assert {"notes", "step-00000001.old", ".hidden"} <= set(names(checkpoints))


def test_keep_and_step_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep: expected 1 or more, not 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match="step: expected 0 or more, not -1"):
        save(Checkpoints(tmp_path), -1)


# Killed


def test_what_a_killed_process_left_is_swept(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    for name in (".writing-abc", ".removing-abc"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "state.json").write_text("{")
    Checkpoints(checkpoints.folder).newest()
    assert len(names(checkpoints)) == 3, (
        "someone who only reads must not remove what another may be writing"
    )
    save(Checkpoints(checkpoints.folder), 2)
    assert names(checkpoints) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("step", [2, 3])
def test_killed_before_any_touch_of_the_disk(step: int, tmp_path: Path) -> None:
    """Of a new step, and of one that is there already and that nothing else could stand in for."""

    save(Checkpoints(tmp_path / "before", keep=1), 1, 2, best=1)
    here, seen = Checkpoints(tmp_path / "here", keep=1, log=pytest.fail), set()
    shutil.copytree(tmp_path / "before", here.folder)
    for _ in killed_before_every_touch(lambda: save(here, step, best=step)):
        found = here.newest()
        assert found is not None
        check(found, found.step)
        seen.add((found.step, found.best))
        check(here.best(), step if found.best else 1)
        resumed = Checkpoints(here.folder, keep=1)
        save(resumed, 4)
        assert names(resumed) == [f"step-{kept:08}" for kept in (step if found.best else 1, 4)]
        shutil.rmtree(here.folder)
        shutil.copytree(tmp_path / "before", here.folder)
    assert seen == {(2, False), (step, True)}


def test_killed_at_random_moments(tmp_path: Path) -> None:
    size = 300_000
    random_moment = random.Random(0)

    def save_for_ever() -> None:
        checkpoints = Checkpoints(tmp_path, keep=2)
        step = max(checkpoints.steps(), default=0)
        while True:
            step += 1
            checkpoints.save(step, tensors_of(step, size), {"seed": step}, best=step % 5 == 0)

    reached = 0
    for _ in range(20):
        child = FORK.Process(target=save_for_ever)
        child.start()
        while not Checkpoints(tmp_path).steps():
            time.sleep(0.001)
        time.sleep(random_moment.uniform(0, 0.1))
        child.kill()
        child.join()
        checkpoints = Checkpoints(tmp_path, log=pytest.fail)
        check(checkpoints.newest(), checkpoints.steps()[-1], size)
        assert checkpoints.steps()[-1] >= reached
        reached = checkpoints.steps()[-1]
        if reached >= 5:
            assert checkpoints.best().step == reached // 5 * 5


# Damaged


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path, bit: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    bit = len(content) * 4 if bit is None else bit
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", [cut, flip, Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    name: str, harm: Callable[[Path], Any], checkpoints: Checkpoints, said: list[str]
) -> None:
    save(checkpoints, 1, 2, 3)
    harm(checkpoints.folder / "step-00000003" / name)
    if harm is cut and name == "manifest.json":
        harm(checkpoints.folder / "step-00000003" / name)  # the first cut took an empty line
    check(checkpoints.newest(), 2)
    assert len(said) == 1
    assert str(checkpoints.folder / "step-00000003") in said[0]
    assert name in said[0]
    assert [found.step for found in checkpoints.last(2)] == [1, 2]


def test_any_flipped_bit_of_a_manifest_is_noticed(
    checkpoints: Checkpoints, said: list[str]
) -> None:
    save(checkpoints, 1, best=1)
    file = checkpoints.folder / "step-00000001" / "manifest.json"
    whole = file.read_bytes()
    bits = range(0, len(whole) * 8, 3)
    for bit in bits:
        flip(file, bit)
        assert checkpoints.newest() is None
        file.write_bytes(whole)
    check(checkpoints.best(), 1)
    assert len(said) == len(bits)


def test_a_folder_under_another_steps_name_is_refused(
    checkpoints: Checkpoints, said: list[str]
) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / "step-00000001").rename(checkpoints.folder / "step-00000009")
    assert checkpoints.newest() is None
    assert "manifest.json: damaged, or the folder of another step" in said[0]


def test_a_damaged_best_is_not_handed_out(checkpoints: Checkpoints, said: list[str]) -> None:
    save(checkpoints, 1, 2, best=1)
    flip(checkpoints.folder / "step-00000001" / "tensors.safetensors")
    assert checkpoints.best() is None
    assert "step-00000001" in said[0]


def test_a_damaged_step_can_be_saved_again(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, 2)
    (checkpoints.folder / "step-00000002" / "manifest.json").unlink()
    save(checkpoints, 2)
    check(checkpoints.newest(), 2)


# A full disk


def intact(checkpoints: Checkpoints) -> None:
    assert names(checkpoints) == ["step-00000001"]
    check(checkpoints.newest(), 1)


def test_too_little_space_is_noticed_before_writing(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1)
    monkeypatch.setattr(storage, "free", lambda folder: 399)
    monkeypatch.setattr(files, "save_file", pytest.fail)
    with pytest.raises(
        OSError,
        match=r"no room on the disk: the checkpoint of step 2 needs 4\d\d bytes, 399 are free",
    ):
        save(checkpoints, 2)
    intact(checkpoints)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
    ],
)
def test_a_disk_that_fills_up_half_way(
    error: Exception, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(tensors: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise error

    save(checkpoints, 1)
    monkeypatch.setattr(files, "save_file", write_half)
    with pytest.raises(storage.DiskFull, match="the checkpoint of step 2 needs") as raised:
        save(checkpoints, 2)
    assert raised.value.errno == errno.ENOSPC
    intact(checkpoints)


def test_a_disk_that_fills_up_at_the_last_file(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device")

    save(checkpoints, 1)
    monkeypatch.setattr(storage, "flush", full)
    with pytest.raises(storage.DiskFull):
        save(checkpoints, 2)
    intact(checkpoints)


def test_files_that_the_system_does_not_let_grow(checkpoints: Checkpoints) -> None:
    """A real refusal in the middle of a write, through all the layers below."""
    save(checkpoints, 1)

    def save_more() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(storage.DiskFull, match=r"needs 400,\d+ bytes, .*File too large"):
            checkpoints.save(2, tensors_of(2, size=100_000), {})

    child = FORK.Process(target=save_more)
    child.start()
    child.join()
    assert child.exitcode == 0
    intact(checkpoints)


def test_other_errors_of_the_system_stay_what_they_are(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    save(checkpoints, 1)
    monkeypatch.setattr(files, "save_file", broken)
    with pytest.raises(OSError, match="Input/output error") as raised:
        save(checkpoints, 2)
    assert not isinstance(raised.value, storage.DiskFull)
    intact(checkpoints)


def test_the_manifest_is_for_people_too(checkpoints: Checkpoints) -> None:
    save(checkpoints, 7, best=7)
    manifest = json.loads((checkpoints.folder / "step-00000007" / "manifest.json").read_text())
    assert (manifest["step"], manifest["best"]) == (7, True)
    assert manifest["files"]["state.json"] == {
        "bytes": len((checkpoints.folder / "step-00000007" / "state.json").read_bytes()),
        "sha256": storage.sha256_of(checkpoints.folder / "step-00000007" / "state.json"),
    }
