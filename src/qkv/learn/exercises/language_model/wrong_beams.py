"""Beam search with one of the mistakes that a student may make."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

END = 0
LENGTH = 4

WRONG_SEARCHES = {
    "beam_search: the end counts, too: the penalty is that of all tokens with the end": (
        "end not counted"
    ),
    "beam_search: the penalty is missing": "no penalty",
    "beam_search: the total is divided by the penalty, not multiplied": "multiplied",
    "beam_search: the ended beams are forgotten; keep them and compare at the end": "ended lost",
    "beam_search: the search stops at the first end; another beam may still be better": (
        "first end"
    ),
    "beam_search: the search stops when width beams have ended; one that is open may still be "
    "better": "enough ended",
    "beam_search: beams that are still open after the last step count, too": "open lost",
    "beam_search: the sequence is returned without the end token": "end returned",
    "beam_search: the totals are sums of logits; log_softmax makes log-probabilities of them": (
        "logits"
    ),
    "beam_search: one step too few: a sequence has up to length tokens": "short",
    "beam_search: this is the total; the score is the total divided by the penalty": (
        "total returned"
    ),
    "beam_search: this is greedy search; all beams are extended in each step": "greedy",
}
"""The mistakes, by what the student is told."""


class WrongBeam(NamedTuple):
    """A beginning and its total."""

    ids: list[int]
    total: float


def wrong_search(
    model: Any, prompt: list[int], width: int, alpha: float, mistake: str
) -> tuple[list[int], float]:
    """The sequence and score that a search with a mistake finds."""
    paths = [WrongBeam([], 0.0)]
    finished: list[WrongBeam] = []
    for _ in range(LENGTH - (mistake == "short")):
        with torch.no_grad():
            scores = model(torch.tensor([prompt + path.ids for path in paths]))[:, -1]

        if mistake != "logits":
            scores = scores.log_softmax(-1)

        ended, paths = continue_paths(paths, scores, 1 if mistake == "greedy" else width)
        if mistake != "ended lost":
            finished += ended
        enough = {"first end": 1, "enough ended": width}.get(mistake, LENGTH * width + 1)
        if len(finished) >= enough:
            break

    if mistake != "open lost" or not finished:
        finished += paths

    best = max(finished, key=lambda path: score_of(path, alpha, mistake))
    ids = best.ids
    if ids[-1] == END and mistake != "end returned":
        ids = ids[:-1]

    if mistake == "total returned":
        return ids, best.total

    return ids, score_of(best, alpha, mistake)


def continue_paths(
    paths: list[WrongBeam], scores: Tensor, width: int
) -> tuple[list[WrongBeam], list[WrongBeam]]:
    """The ended and the open continuations."""
    totals = scores + torch.tensor([[path.total] for path in paths])
    ended: list[WrongBeam] = []
    still_open: list[WrongBeam] = []
    for rank, index in enumerate(totals.flatten().argsort(descending=True).tolist()):
        row, token = divmod(index, totals.shape[1])
        path = WrongBeam([*paths[row].ids, token], float(totals[row, token]))
        if token == END and rank < width:
            ended.append(path)
        if token != END and len(still_open) < width:
            still_open.append(path)

    return ended, still_open


def score_of(path: WrongBeam, alpha: float, mistake: str) -> float:
    """What a path is ranked by."""
    tokens = len(path.ids)
    if mistake == "end not counted" and path.ids[-1] == END:
        tokens -= 1

    divisor = ((5 + tokens) / 6) ** alpha
    if mistake == "no penalty":
        return path.total
    if mistake == "multiplied":
        return path.total * divisor

    return path.total / divisor
