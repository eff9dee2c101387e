"""Damaged checkpoints are reported and passed over; a full disk leaves the others intact."""

from __future__ import annotations

import errno
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from qkv import storage
from qkv.models.convert import hf_folder as files
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.killing import FORK
from support.small_checkpoints import (
    check,
    names,
    save,
    tensors_of,
)

# Damaged


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path, bit: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    if bit is None:
        bit = len(content) * 4

    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", [cut, flip, Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    name: str, harm: Callable[[Path], Any], checkpoints: Checkpoints, messages: list[str]
) -> None:
    save(checkpoints, 1, 2, 3)
    harm(checkpoints.folder / "step-00000003" / name)
    if harm is cut and name == "manifest.json":
        harm(checkpoints.folder / "step-00000003" / name)  # the first cut only removed a newline
    check(checkpoints.newest(), 2)
    assert len(messages) == 1
    assert str(checkpoints.folder / "step-00000003") in messages[0]
    assert name in messages[0]
    assert [checkpoint.step for checkpoint in checkpoints.last(2)] == [1, 2]


def test_any_flipped_bit_of_a_manifest_is_noticed(
    checkpoints: Checkpoints, messages: list[str]
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
    assert len(messages) == len(bits)


def test_a_folder_under_another_steps_name_is_refused(
    checkpoints: Checkpoints, messages: list[str]
) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / "step-00000001").rename(checkpoints.folder / "step-00000009")
    assert checkpoints.newest() is None
    assert "manifest.json: damaged, or the folder of another step" in messages[0]


def test_a_damaged_best_is_not_returned(checkpoints: Checkpoints, messages: list[str]) -> None:
    save(checkpoints, 1, 2, best=1)
    flip(checkpoints.folder / "step-00000001" / "tensors.safetensors")
    assert checkpoints.best() is None
    assert "step-00000001" in messages[0]


def test_a_damaged_step_can_be_saved_again(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, 2)
    (checkpoints.folder / "step-00000002" / "manifest.json").unlink()
    save(checkpoints, 2)
    check(checkpoints.newest(), 2)


# A full disk


def check_only_first(checkpoints: Checkpoints) -> None:
    """Only the checkpoint of step 1 is there, and it is intact."""
    assert names(checkpoints) == ["step-00000001"]
    check(checkpoints.newest(), 1)


def test_too_little_space_is_noticed_before_writing(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1)
    monkeypatch.setattr(storage, "free", lambda folder: 399)
    monkeypatch.setattr(files, "save_file", pytest.fail)
    with pytest.raises(OSError, match=r"step 2 needs 4\d\d bytes, 399 are free"):
        save(checkpoints, 2)
    check_only_first(checkpoints)


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
    check_only_first(checkpoints)


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
    check_only_first(checkpoints)


def test_a_limit_on_the_file_size(checkpoints: Checkpoints) -> None:
    """The operating system refuses a write halfway."""
    save(checkpoints, 1)

    def save_more() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(storage.DiskFull, match=r"needs 400,\d+ bytes, .*File too large"):
            checkpoints.save(2, tensors_of(2, size=100_000), {})

    child = FORK.Process(target=save_more)
    child.start()
    child.join()
    assert child.exitcode == 0
    check_only_first(checkpoints)


def test_other_system_errors_are_not_called_a_full_disk(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    save(checkpoints, 1)
    monkeypatch.setattr(files, "save_file", broken)
    with pytest.raises(OSError, match="Input/output error") as raised:
        save(checkpoints, 2)
    assert not isinstance(raised.value, storage.DiskFull)
    check_only_first(checkpoints)


def test_the_manifest_lists_sizes_and_checksums(checkpoints: Checkpoints) -> None:
    save(checkpoints, 7, best=7)
    folder = checkpoints.folder / "step-00000007"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["step"] == 7
    assert manifest["best"] is True
    assert manifest["files"]["state.json"] == {
        "bytes": len((folder / "state.json").read_bytes()),
        "sha256": storage.sha256_of(folder / "state.json"),
    }
