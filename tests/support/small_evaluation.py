"""A small GPT and its tokenizer for tests of evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import qkv
from qkv.models import GPT, GPTConfig
from qkv.text import Tokenizer
from qkv.text.tokenizer_training import train
from support.shape_checks import unchecked

TEXT = (
    "the cat sat on the mat. a dog ran to the man, and the man sat down! who? XYZ 0123456789 {}\n"
    * 3
)


def small_tokenizer() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'\":;- \n"
    return train("byte-pair", [TEXT + letters], 400)


def small_gpt(vocabulary: int, **fields: Any) -> GPT:
    """A random GPT with large weights, so that its predictions differ between texts."""
    config = {"context": 48, "width": 32, "depth": 2, "heads": 4, "dropout": 0.1} | fields
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=vocabulary, **config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model


def trained_briefly(model: GPT, tokenizer: Tokenizer, steps: int = 60) -> GPT:
    """The model after a few steps on TEXT, so that it predicts some of its tokens."""
    ids = torch.tensor(tokenizer.encode(TEXT))[None, : model.config.context]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with unchecked():
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]).backward()
            optimizer.step()
    return model


def small_folder(path: Path, **fields: Any) -> Path:
    tokenizer = small_tokenizer()
    qkv.save(
        trained_briefly(small_gpt(tokenizer.vocabulary, **fields), tokenizer),
        path,
        tokenizer=tokenizer,
    )
    return path
