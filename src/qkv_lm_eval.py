"""Registers `qkv` as a model of the lm-evaluation-harness, which has no plugin mechanism itself.

PyTorch calls `register` when it is imported, through its entry point for extensions
(torch.backends in pyproject.toml), and the harness imports PyTorch before it looks for its model.
Every other program that imports PyTorch calls it, too: so this module imports nothing at the top
and does nothing unless the harness is loaded.
"""

from __future__ import annotations

import sys


def register() -> None:
    """Register the model if the harness is loaded; never raises."""
    if "lm_eval" not in sys.modules:
        return

    try:
        # The harness lists its own models only while the registry is empty: load them first.
        import lm_eval.models  # noqa: F401
        from lm_eval.api.registry import model_registry

        if "qkv" not in model_registry:
            model_registry.register("qkv", target="qkv.evaluation.lm_eval_harness:Harness")
    except Exception:  # an unknown version of the harness must not break `import torch`
        return
