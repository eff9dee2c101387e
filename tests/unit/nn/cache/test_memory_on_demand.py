"""The memory of a KV cache on a CPU: zeros that take pages when written, and their limit."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.nn.cache import memory_on_demand
from qkv.nn.cache.memory_on_demand import zeros_on_demand
from qkv.nn.cache.paged import PagedCache

SLOT = {"depth": 2, "kv_heads": 2, "head_width": 8, "like": torch.ones(1)}
TOO_LARGE = r"cache: .* GiB of KV cache do not fit into"


@pytest.mark.parametrize("shape", [(0, 2, 4), (1, 1, 1), (33, 3, 5), (1000, 2, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zeros_on_demand_are_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zeros = zeros_on_demand(shape, torch.ones(1, dtype=dtype))
    assert torch.equal(zeros, torch.zeros(shape, dtype=dtype))
    assert zeros.is_contiguous()
    assert zeros.data_ptr() % mmap.PAGESIZE == 0 or not zeros.numel()
    zeros.fill_(2)
    assert (zeros == 2).all()


def resident_bytes(tensor: Tensor) -> int:
    """Bytes of the tensor's own pages that are in memory, whatever else the process holds."""
    begin = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - begin
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    call = ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), pages)
    assert call == 0

    return sum(page & 1 for page in pages) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are in memory")
def test_zeros_on_demand_take_memory_when_they_are_written() -> None:
    zeros = zeros_on_demand((1 << 20, 8, 8), torch.ones(1))  # 256 MiB
    assert resident_bytes(zeros) < 16 << 20
    zeros[: 1 << 19] = 1
    assert 128 << 20 <= resident_bytes(zeros) < 144 << 20


@pytest.fixture
def memory_of_16_slots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """A machine with as much memory as 16 slots need, without containers."""
    memory = 16 * PagedCache.bytes_per_slot(**SLOT)
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": memory}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)
    monkeypatch.setattr(memory_on_demand, "CONTAINER_LIMITS", [tmp_path / "v2", tmp_path / "v1"])
    return memory


def test_a_paged_cache_larger_than_the_memory_is_refused(memory_of_16_slots: int) -> None:
    assert PagedCache(16, 1, 4, **SLOT).nbytes == memory_of_16_slots
    with pytest.raises(ValueError, match=TOO_LARGE):
        PagedCache(17, 1, 4, **SLOT)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_paged_cache_fits_into_its_container(
    version: str, tmp_path: Path, memory_of_16_slots: int
) -> None:
    limit = tmp_path / version
    limit.write_text(f"{memory_of_16_slots // 2}\n")
    assert PagedCache(8, 1, 4, **SLOT).nbytes == memory_of_16_slots // 2
    with pytest.raises(ValueError, match=TOO_LARGE):
        PagedCache(9, 1, 4, **SLOT)

    for unlimited in ("max\n", "9223372036854771712\n"):
        limit.write_text(unlimited)
        assert PagedCache(16, 1, 4, **SLOT).nbytes == memory_of_16_slots
        with pytest.raises(ValueError, match=TOO_LARGE):
            PagedCache(17, 1, 4, **SLOT)


@pytest.mark.parametrize("answer", [-1, ValueError("unrecognized configuration name")])
def test_a_system_that_does_not_tell_its_memory_accepts_any_cache(
    answer: int | ValueError, monkeypatch: pytest.MonkeyPatch, memory_of_16_slots: int
) -> None:
    def sysconf(name: str) -> int:
        if isinstance(answer, ValueError):
            raise answer

        return answer if name == "SC_PHYS_PAGES" else 4096

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert PagedCache(17, 1, 4, **SLOT).nbytes > memory_of_16_slots
