"""What this machine has, as the system tells it. Needs no torch, so that it costs nothing to ask."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def nvidia_gpu_visible() -> bool:
    """Whether CUDA would probably find a device: a driver is loaded, and the environment does not hide every GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        return False
    if os.name == "nt":
        return shutil.which("nvidia-smi") is not None
    gpus = Path("/proc/driver/nvidia/gpus")
    return Path("/dev/nvidia0").exists() or (gpus.is_dir() and any(gpus.iterdir()))
