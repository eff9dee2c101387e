"""Lets `lm_eval --model qkv` find us: the harness knows only its own models, and asks no package
for more.

PyTorch calls `register` when it is imported, by its entry point for extensions (torch.backends in
pyproject.toml), and the harness imports PyTorch before it looks for its model. Every other program
that imports PyTorch comes by here, too: so this module stands alone, imports nothing, and does
nothing unless the harness is there.
"""

from __future__ import annotations

import sys


def register() -> None:
    if "lm_eval" not in sys.modules:
        return

    try:
        import lm_eval.models  # noqa: F401 - its own models first: it lists them only while no other is there
        from lm_eval.api.registry import model_registry

        if "qkv" not in model_registry:
            model_registry.register("qkv", target="qkv.evaluation.lm_eval_harness:Harness")
    except Exception:  # whatever harness that is: `import torch` is not the place to fail for it
        return
