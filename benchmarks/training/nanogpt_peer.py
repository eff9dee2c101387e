"""A training step of nanoGPT, with nanoGPT's own model.py, which is imported from its folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from qkv.models import GPTConfig


def load_model_file(folder: Path) -> Any:
    """nanoGPT's model.py as a module."""
    path = folder / "model.py"
    if not path.is_file():
        raise ValueError(f"nanogpt_path: expected nanoGPT's folder, but there is no {path}")

    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    return module


def nanogpt_step(
    folder: Path, size: GPTConfig, device: torch.device, *, bias: bool
) -> Callable[[torch.Tensor], None]:
    """A step as in nanoGPT's train.py: compiled, bf16 by autocast, fused AdamW, clipped at 1.0.

    Its vocabulary is padded to a multiple of 64, as its own default is.
    """
    nanogpt = load_model_file(folder)
    config = nanogpt.GPTConfig(
        block_size=size.context,
        vocab_size=-(-size.vocabulary // 64) * 64,
        n_layer=size.depth,
        n_head=size.heads,
        n_embd=size.width,
        dropout=0.0,
        bias=bias,
    )
    with redirect_stdout(StringIO()):
        with device:
            model = nanogpt.GPT(config)

        optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), device.type)

    gpu = device.type == "cuda"
    compiled = model.train()
    if gpu:
        compiled = torch.compile(model)

    def step(ids: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            _, loss = compiled(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
