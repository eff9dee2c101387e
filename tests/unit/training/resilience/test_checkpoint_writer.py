"""Checkpoints are atomic: complete or absent, whatever happens to the process or the disk."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest
import torch

from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.killing import FORK, killed_before_every_touch
from support.small_checkpoints import (
    check,
    names,
    same_bits,
    save,
    tensors_of,
)

# Saving and reading


def test_every_bit_is_restored(checkpoints: Checkpoints) -> None:
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
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.state == state
    expected = {name: tensor.detach() for name, tensor in tensors.items()}
    assert same_bits(newest.tensors(), expected)


def test_tensors_outlive_their_file(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    tensors = checkpoints.newest().tensors()
    file = checkpoints.folder / "step-00000001" / "tensors.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert same_bits(tensors, tensors_of(1))


def test_a_reserved_tensor_name_is_refused(checkpoints: Checkpoints) -> None:
    with pytest.raises(ValueError, match="__metadata__: "):
        checkpoints.save(1, {"__metadata__": torch.ones(1)}, {})
    assert names(checkpoints) == []


def test_a_state_that_is_not_json_is_refused_before_anything_is_written(
    checkpoints: Checkpoints,
) -> None:
    save(checkpoints, 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoints.save(1, tensors_of(1), {"seed": torch.ones(1)})
    check(checkpoints.newest(), 1)


def test_files_have_the_usual_permissions(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / "plain").touch()
    plain = (checkpoints.folder / "plain").stat().st_mode
    for path in (checkpoints.folder / "step-00000001").iterdir():
        assert path.stat().st_mode == plain


# Which checkpoints stay


def test_no_checkpoints(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None
    assert checkpoints.best() is None
    assert checkpoints.steps() == []
    assert checkpoints.last(2) == []


def test_the_last_and_the_best_stay(checkpoints: Checkpoints) -> None:
    save(checkpoints, *range(10, 80, 10), best=20)
    assert checkpoints.steps() == [20, 50, 60, 70]
    check(checkpoints.newest(), 70)
    check(checkpoints.best(), 20)
    assert [checkpoint.step for checkpoint in checkpoints.last(2)] == [60, 70]
    assert [checkpoint.step for checkpoint in checkpoints.last(9)] == [20, 50, 60, 70]
    save(checkpoints, 80, best=80)
    assert checkpoints.steps() == [60, 70, 80]
    check(checkpoints.best(), 80)
    assert names(checkpoints) == ["step-00000060", "step-00000070", "step-00000080"]


def test_the_best_is_known_to_the_next_process(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20, 30, 40, best=10)
    again = Checkpoints(checkpoints.folder, keep=1)
    save(again, 50)
    assert again.steps() == [10, 50]
    check(again.best(), 10)


def test_a_temporary_checkpoint_does_not_count_and_is_removed_with_the_next(
    checkpoints: Checkpoints,
) -> None:
    save(checkpoints, 10, 20, 30)
    checkpoints.save(35, tensors_of(35), {"seed": 35}, temporary=True)
    assert checkpoints.steps() == [10, 20, 30, 35]
    check(checkpoints.newest(), 35)
    assert [checkpoint.step for checkpoint in checkpoints.last(3)] == [10, 20, 30]
    assert [checkpoint.step for checkpoint in checkpoints.last(1, up_to=29)] == [20]
    save(checkpoints, 40)
    assert checkpoints.steps() == [20, 30, 40]


def test_steps_beyond_eight_digits_are_in_order(checkpoints: Checkpoints) -> None:
    save(checkpoints, 99_999_999, 100_000_000)
    assert checkpoints.steps() == [99_999_999, 100_000_000]
    check(checkpoints.newest(), 100_000_000)


def test_a_step_saved_again_replaces_the_first(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, 2)
    checkpoints.save(2, {"other": torch.ones(2)}, {"again": True}, best=True)
    assert names(checkpoints) == ["step-00000001", "step-00000002"]
    assert checkpoints.newest().state == {"again": True}
    assert checkpoints.best().step == 2


def test_saving_removes_checkpoints_of_later_steps(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10, 20, 30, best=30)
    save(checkpoints, 15)
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.best() is None


def test_other_files_in_the_folder_stay(checkpoints: Checkpoints) -> None:
    for name in ("notes", "step-00000001.old", ".hidden"):
        (checkpoints.folder / name).mkdir(parents=True)
    save(checkpoints, 1, 2, 3, 4)
    assert checkpoints.steps() == [2, 3, 4]
    assert {"notes", "step-00000001.old", ".hidden"} <= set(names(checkpoints))


def test_keep_and_step_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keep: .*1 or more"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match=r"step: .*0 or more"):
        save(Checkpoints(tmp_path), -1)


# Killed


def test_leftovers_of_a_killed_process_are_removed_by_the_writer(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    for name in (".writing-abc", ".removing-abc"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "state.json").write_text("{")
    Checkpoints(checkpoints.folder).newest()
    assert len(names(checkpoints)) == 3, "a reader removes nothing: another may be writing it"
    save(Checkpoints(checkpoints.folder), 2)
    assert names(checkpoints) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("step", [2, 3])
def test_kills_before_every_touch_of_the_disk(step: int, tmp_path: Path) -> None:
    """A new step is saved, or one that exists already."""
    save(Checkpoints(tmp_path / "before", keep=1), 1, 2, best=1)
    here = Checkpoints(tmp_path / "here", keep=1, log=pytest.fail)
    results = set()
    shutil.copytree(tmp_path / "before", here.folder)
    for _ in killed_before_every_touch(lambda: save(here, step, best=step)):
        newest = here.newest()
        assert newest is not None
        check(newest, newest.step)
        results.add((newest.step, newest.best))
        best = step if newest.best else 1
        check(here.best(), best)
        resumed = Checkpoints(here.folder, keep=1)
        save(resumed, 4)
        assert names(resumed) == [f"step-{best:08}", "step-00000004"]
        shutil.rmtree(here.folder)
        shutil.copytree(tmp_path / "before", here.folder)

    assert results == {(2, False), (step, True)}


def test_kills_at_random_moments(tmp_path: Path) -> None:
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
