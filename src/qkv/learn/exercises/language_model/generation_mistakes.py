"""What sampling and generation return after known mistakes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.generation.sampling import distribution
from qkv.learn.exercises.language_model.matching_gpt import HistoryModel
from qkv.learn.expectations import InputDraw


def kept_until(
    logits: Tensor, p: float, *, order: str = "descending", crossing: bool = True
) -> Tensor:
    """The softmax after a top-p that may sum in a wrong order, or drop the crossing token."""
    if order == "ids":
        values, back = logits, torch.arange(logits.shape[-1]).expand(logits.shape)
    else:
        values, back = logits.sort(-1, descending=order == "descending")

    probabilities = values.softmax(-1)
    total = probabilities.cumsum(-1)
    dropped = total - probabilities >= p if crossing else total > p
    kept = values.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter(-1, back, kept).softmax(-1)


def wrong_distributions(
    logits: Tensor, t: float, k: int | None, p: float | None
) -> dict[str, Tensor]:
    """What next_token would draw from, (1, V), after known mistakes with the filters."""
    row = logits.unsqueeze(0)
    plain = distribution(row, temperature=t or 1)
    if t == 0:
        return {"next_token: t = 0 takes the likeliest token": plain}

    late = distribution(row, top_k=k, top_p=p).log() / t
    nucleus = distribution(row, temperature=t, top_p=p)
    return {
        "next_token: the temperature comes first: it changes how many tokens sum to p": (
            late.softmax(-1)
        ),
        "next_token: top_p comes before top_k; top_k is first, and p is a share of what it "
        "leaves": distribution(nucleus.log(), top_k=k),
        "next_token: top_k is left out": nucleus,
        "next_token: top_p is left out": distribution(row, temperature=t, top_k=k),
        "next_token: top_k and top_p are left out": plain,
    }


def draw_generation(
    draw: InputDraw, length: int
) -> tuple[HistoryModel, list[int], list[int], dict[str, list[int]]]:
    """A model, a prompt, the right tokens, and those of mistakes, all of them different."""
    V = draw.size + 4
    while True:
        model = HistoryModel(draw.normal(31, V))
        prompt = draw.integers(V, draw.size + 1).tolist()
        full = greedy_tokens(model, prompt, length)
        mistakes = {
            "generate: the new tokens are returned without the prompt": prompt + full,
            "generate: one token too few": full[:-1],
            "generate: the model reads the prompt alone in every step; it has to read the new "
            "tokens, too": [full[0]] * length,
            "generate: the model reads the last token alone; it has to read the whole sequence": (
                greedy_tokens(model, prompt, length, read=1)
            ),
            "generate: these are the logits of the first position; the last predicts the next "
            "token": greedy_tokens(model, prompt, length, position=0),
        }
        different = {tuple(tokens) for tokens in (full, *mistakes.values())}
        if len(different) == len(mistakes) + 1 and len(set(full[:3])) == 3:
            return model, prompt, full, mistakes


def greedy_tokens(
    model: Any, prompt: list[int], length: int, *, read: int = 0, position: int = -1
) -> list[int]:
    """Greedy generation that reads the last `read` tokens (0 for all) and uses one position."""
    new: list[int] = []
    with torch.no_grad():
        for _ in range(length):
            ids = torch.tensor([(prompt + new)[-read:]])
            new.append(int(model(ids)[0, position].argmax()))

    return new
