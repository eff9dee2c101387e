"""Attention and Transformers: learn it, train it, look inside it, serve it, with the same model
object.
"""

import os
from typing import TYPE_CHECKING

from qkv.version import __version__

# OpenMP (libgomp) reads this once, when torch is loaded. By default its threads spin for
# milliseconds while they wait for each other, and threads that spin on a core that another process
# wants make training many times slower. Few spins keep the speed on an idle and on a busy machine
# (benchmarks/training/openmp.py).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from qkv.artifact import load, save
    from qkv.insight.look import look
else:
    from qkv.lazy_imports import attach

    attach(
        __name__,
        {"qkv.artifact": ("load", "save"), "qkv.insight.look": ("look",)},
        submodules=(
            "artifact",
            "data",
            "evaluation",
            "generation",
            "insight",
            "models",
            "nn",
            "text",
            "training",
        ),
    )

__all__ = ["__version__", "load", "look", "save"]
