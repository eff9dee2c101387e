"""CPU, memory and GPU of this machine, from the operating system; does not import torch."""

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
"""Instructions that make matrix products fast, and their names in /proc/cpuinfo."""
AMD = "AuthenticAMD"
INTEL = "GenuineIntel"


def nvidia_gpu_visible() -> bool:
    """Whether a driver is loaded and the environment does not hide every GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        return False
    if os.name == "nt":
        return shutil.which("nvidia-smi") is not None

    gpus = Path("/proc/driver/nvidia/gpus")

    return Path("/dev/nvidia0").exists() or (gpus.is_dir() and any(gpus.iterdir()))


def cpu_model() -> str:
    """The name of the CPU."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    if match is None:
        return platform.processor() or platform.machine()

    return match[1].strip()


def cpu_vendor() -> str:
    """The vendor that an x86 CPU names, such as `AMD`; empty if the system does not say."""
    match = re.search(r"^vendor_id\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    if match is not None:
        return match[1].strip()
    if platform.system() != "Windows":
        return ""

    _, comma, vendor = platform.processor().rpartition(", ")  # "AMD64 Family ..., AuthenticAMD"
    return vendor if comma else ""


def cpu_features() -> dict[str, bool] | None:
    """Which fast instructions the CPU has; None if the system does not report them."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    if match is None:
        return None

    flags = set(match[1].split())

    return {name: bool(flags & set(spellings)) for name, spellings in CPU_FEATURES.items()}


def usable_cores() -> int:
    """Logical cores that this process may use: its affinity and its container's limit count."""
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))

    limit = read("/sys/fs/cgroup/cpu.max").split()
    if len(limit) == 2 and limit[0] != "max":
        allowed = min(allowed, max(1, math.ceil(int(limit[0]) / int(limit[1]))))

    return allowed


def memory() -> tuple[int, int] | None:
    """Total and available memory in bytes; a container's limit counts."""
    kibibytes = dict(
        re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", read("/proc/meminfo"), re.MULTILINE)
    )
    if len(kibibytes) < 2:
        return None

    total = int(kibibytes["MemTotal"]) * 1024
    available = int(kibibytes["MemAvailable"]) * 1024
    limit = read("/sys/fs/cgroup/memory.max").strip()
    used = read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit() and int(limit) < total:
        total = int(limit)
        available = min(available, int(limit) - int(used))

    return total, available


def load() -> float | None:
    """The load average of the last minute; None if the system does not report it."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]

    return None


def read(path: str) -> str:
    """The content of a small system file; empty if there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
