"""What this machine has, as the system tells it. Needs no torch, so that it costs nothing to ask."""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
from contextlib import suppress
from pathlib import Path

CPU_FEATURES = {
    "avx2": ("avx2",),
    "avx512": ("avx512f",),
    "bf16": ("avx512_bf16", "bf16"),  # x86, Arm
    "amx": ("amx_bf16",),
}
"""Instructions that make matrix products fast, and the names that /proc/cpuinfo has for them."""


def nvidia_gpu_visible() -> bool:
    """Whether CUDA would probably find a device: a driver is loaded, and the environment does not
    hide every GPU.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        return False
    if os.name == "nt":
        return shutil.which("nvidia-smi") is not None

    gpus = Path("/proc/driver/nvidia/gpus")

    return Path("/dev/nvidia0").exists() or (gpus.is_dir() and any(gpus.iterdir()))


def cpu_model() -> str:
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_features() -> dict[str, bool] | None:
    """Which fast instructions the CPU announces; None where the system does not tell."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    if found is None:
        return None

    flags = set(found[1].split())

    return {name: bool(flags & set(spellings)) for name, spellings in CPU_FEATURES.items()}


def usable_cores() -> int:
    """Logical cores that this process may use: its affinity and its container's limit count."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    limit = read("/sys/fs/cgroup/cpu.max").split()
    if len(limit) == 2 and limit[0] != "max":
        allowed = min(allowed, max(1, math.ceil(int(limit[0]) / int(limit[1]))))

    return allowed


def memory() -> tuple[int, int] | None:
    """Bytes of memory in all, and available without swapping; a container's limit counts."""
    found = dict(
        re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", read("/proc/meminfo"), re.MULTILINE)
    )
    if len(found) < 2:
        return None

    total, available = int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    limit, used = (read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total, available = int(limit), min(available, int(limit) - int(used))

    return total, available


def load() -> float | None:
    """Processes that wanted to run in the last minute, on average."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]

    return None


def read(path: str) -> str:
    """A small file of the system; empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
