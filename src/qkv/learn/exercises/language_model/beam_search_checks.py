"""Checks of exercise 12: beam search equals the library's; with width 1 it is greedy."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.generation.search.beam_search import beam_search as library_search
from qkv.generation.search.beams import SearchRule
from qkv.learn.exercises.language_model.matching_gpt import ChainModel, peaked_gpt
from qkv.learn.exercises.language_model.wrong_beams import WRONG_SEARCHES, wrong_search
from qkv.learn.expectations import Failed, FailingExample, InputDraw, check, expect_shape, table
from qkv.learn.result_kinds import (
    as_number,
    expect_ids,
    expect_number,
    expect_results,
)
from qkv.models import GPT

END = 0
CHAIN = torch.tensor([[0.05, 0.5, 0.45], [0.34, 0.33, 0.33], [0.01, 0.01, 0.98]])
"""Greedy search takes token 1 and regrets it."""
LATE = torch.tensor(
    [
        [0.25, 0.25, 0.25, 0.25],
        [0.6, 0.38, 0.01, 0.01],
        [0.01, 0.01, 0.97, 0.01],
        [0.4, 0.34, 0.25, 0.01],
    ]
)
"""From token 3 on, two beams end before the best one is complete."""


def draw_search(draw: InputDraw, steps: int = 4) -> tuple[GPT, list[int]]:
    """A GPT with some likely tokens, and a prompt."""
    model = peaked_gpt(draw, draw.size + 4, draw.size + 1 + steps)
    return model, draw.integers(draw.size + 4, draw.size + 1).tolist()


@check("log_probability", "The sum of log p of each token")
def summed_logs(mine: ModuleType, draw: InputDraw) -> None:
    model, prompt = draw_search(draw)
    ids = draw.integers(draw.size + 4, 3).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids]))[0]

    logs = logits.log_softmax(-1)
    where = torch.arange(3) + len(prompt) - 1
    right = logs[where, ids].sum().item()
    whole = logs[torch.arange(len(prompt) + 2), (prompt + ids)[1:]].sum().item()
    expect_number(
        mine.log_probability(model, list(prompt), list(ids)),
        right,
        "log_probability",
        {
            "log_probability: the position before a token predicts it, not its own": (
                logs[where + 1, ids].sum().item()
            ),
            "log_probability: a sum of logits; log_softmax makes log-probabilities of them": (
                logits[where, ids].sum().item()
            ),
            "log_probability: this is the probability; expected its logarithm": (
                logs[where, ids].sum().exp().item()
            ),
            "log_probability: a sum over the tokens, not their mean": right / 3,
            "log_probability: the tokens of the prompt do not count": whole,
        },
    )


@check("penalty", "((5 + tokens) / 6)^alpha")
def length_penalty(mine: ModuleType, draw: InputDraw) -> None:
    for tokens in (draw.size, draw.size + 4):
        for alpha in (0.0, 0.6, 1.0, 2.0):
            rule = SearchRule(end=END, length_penalty=alpha)
            expect_number(
                mine.penalty(tokens, alpha),
                rule.divisor(tokens),
                f"the penalty of {tokens} tokens with alpha = {alpha}",
                {
                    "penalty: this is tokens^alpha; expected ((5 + tokens) / 6)^alpha": float(
                        tokens**alpha
                    ),
                    "penalty: alpha is a power, not a factor": (5 + tokens) / 6 * alpha,
                    "penalty: only 5 / 6 is added; (5 + tokens) / 6 needs brackets": float(
                        (5 + tokens / 6) ** alpha
                    ),
                },
            )


@check("extend", "The best continuations of all beams together")
def extended_beams(mine: ModuleType, draw: InputDraw) -> None:
    V = draw.size + 3
    for width in (1, 2, 3):
        totals = (-draw.normal(width).abs() * draw.size).tolist()
        beams = [mine.Beam([row + 1], total) for row, total in enumerate(totals)]
        logs = draw_logs(draw, totals, V)
        found = expect_results(mine.extend(beams, logs.clone(), width, END), ("ended", "open"))
        compare_beams(found, totals, logs, width)


def draw_logs(draw: InputDraw, totals: list[float], V: int) -> Tensor:
    """Log-probabilities (R, V) for which two mistakes of extend give different beams."""
    while True:
        logs = (2 * draw.normal(len(totals), V)).log_softmax(-1)
        sums = logs + torch.tensor(totals).unsqueeze(1)
        if best_of_each(sums) != best_of_all(sums, len(totals)) or len(totals) == 1:
            return logs


@check("extend", "An ended beam takes no place of an open one")
def extended_ends(mine: ModuleType, draw: InputDraw) -> None:
    V = draw.size + 3
    totals = [-0.1, -0.3]
    beams = [mine.Beam([row + 1], total) for row, total in enumerate(totals)]
    logits = draw.normal(2, V)
    logits[0, END] += 4
    logits[1, END] -= 4
    logs = logits.log_softmax(-1)
    found = expect_results(mine.extend(beams, logs.clone(), 2, END), ("ended", "open"))
    compare_beams(found, totals, logs, 2)


Lists = tuple[list[tuple[list[int], float]], list[tuple[list[int], float]]]


def compare_beams(found: Any, totals: list[float], logs: Tensor, width: int) -> None:
    """Fail unless the ended and open beams are the right ones."""
    sums = logs + torch.tensor(totals).unsqueeze(1)
    expected = split_beams(sums, width)
    rows = [
        (f"beam {row}, total {total:.3g}", *(f"{x:.3g}" for x in sums[row].tolist()))
        for row, total in enumerate(totals)
    ]
    header = ("", *(f"token {token}" for token in range(logs.shape[1])))
    example = FailingExample("totals of all continuations; token 0 is the end", tuple(rows), header)
    mine = [[list(beam[0]) for beam in beams] for beams in found]
    right = [[ids for ids, _ in beams] for beams in expected]
    if mine != right:
        raise Failed(name_beams(mine, right, sums, logs, width), example)

    for beams, wanted in zip(found, expected, strict=True):
        for beam, (ids, total) in zip(beams, wanted, strict=True):
            expect_number(
                beam[1],
                total,
                f"extend: the total of the beam {ids}",
                {"extend: the total of the beam before is not added": (total - totals[ids[0] - 1])},
            )


def split_beams(sums: Tensor, width: int) -> Lists:
    """The ended and the open beams by the totals of all continuations."""
    ended: list[tuple[list[int], float]] = []
    still_open: list[tuple[list[int], float]] = []
    for rank, index in enumerate(sums.flatten().argsort(descending=True).tolist()):
        row, token = divmod(index, sums.shape[1])
        beam = ([row + 1, token], float(sums[row, token]))
        if token == END and rank < width:
            ended.append(beam)
        if token != END and len(still_open) < width:
            still_open.append(beam)

    return ended, still_open


def name_beams(
    mine: list[list[list[int]]],
    right: list[list[list[int]]],
    sums: Tensor,
    logs: Tensor,
    width: int,
) -> str:
    """What is wrong with the beams, in a sentence."""

    def tokens(beams: Lists) -> list[list[list[int]]]:
        return [[ids for ids, _ in part] for part in beams]

    if any(ids[-1:] == [END] for ids in mine[1]):
        return "extend: a beam whose last token is the end stays open"
    if mine == tokens(split_beams(logs, width)):
        return "extend: the continuations are ranked without the total of the beam before them"
    if mine == best_of_all(sums, width):
        return "extend: a beam that ends takes no place of an open one: width beams stay open"
    if mine == best_of_each(sums):
        return "extend: one continuation of each beam; all continuations of all beams compete"
    if mine[1] and mine[1] == tokens(split_beams(-sums, width))[1]:
        return "extend: these are the worst continuations; the highest totals are the best"
    if len(mine[0]) > len(right[0]):
        return f"extend: an end counts only if it is among the best {width} of all continuations"
    if mine[0] != right[0] and mine[1] == right[1]:
        return "extend: the ended beams are wrong; they are those ends among the best width"

    return "extend: the open beams are not the best continuations of all beams, best first"


def best_of_each(sums: Tensor) -> list[list[list[int]]]:
    """The likeliest continuation of each beam, ended and open."""
    ended = []
    still_open = []
    for row, token in enumerate(sums.argmax(1).tolist()):
        if token == END:
            ended.append([row + 1, token])
        else:
            still_open.append([row + 1, token])

    return [ended, still_open]


def best_of_all(sums: Tensor, width: int) -> list[list[list[int]]]:
    """The best continuations of all beams, ended and open together as many as width."""
    ended = []
    still_open = []
    for index in sums.flatten().argsort(descending=True).tolist()[:width]:
        row, token = divmod(index, sums.shape[1])
        if token == END:
            ended.append([row + 1, token])
        else:
            still_open.append([row + 1, token])

    return [ended, still_open]


class SearchCase(NamedTuple):
    """A search that is compared with the library's."""

    model: GPT
    prompt: list[int]
    width: int
    alpha: float


CASES = ((1, 0.0), (2, 0.6), (3, 0.0), (3, 1.0), (2, 2.0))
"""Widths and alphas."""


@check("beam_search", "Equal to the library's beam search")
def same_as_library(mine: ModuleType, draw: InputDraw) -> None:
    cases = []
    for _ in range(3):
        model, prompt = draw_search(draw)
        cases += [SearchCase(model, prompt, width, alpha) for width, alpha in CASES]

    found = []
    right = []
    for case in cases:
        model, prompt, width, alpha = case
        results = mine.beam_search(model, list(prompt), width, 4, END, alpha)
        ids, score = expect_results(results, ("ids", "score"))
        found.append((ids, as_number(score, "the score of beam_search")))
        best = library_search(model, prompt, end=END, length=4, beams=width, length_penalty=alpha)
        right.append((best[0].ids, best[0].score))

    name = ""
    if not all(map(same, found, right)):
        name = name_search(cases, found)

    for case, (ids, score), (best_ids, best_score) in zip(cases, found, right, strict=True):
        what = f"beam_search with width = {case.width} and alpha = {case.alpha}"
        ids_mistakes = {name: ids} if name else {}
        score_mistakes = {name: score} if name else {}
        shown = table("prompt", torch.tensor([case.prompt]))
        expect_ids(ids, best_ids, what, ids_mistakes, shown)
        expect_number(score, best_score, f"the score of {what}", score_mistakes)


def name_search(cases: list[SearchCase], found: list[tuple[Any, float]]) -> str:
    """The mistake that explains all results of a student; empty if none does."""
    for text, mistake in WRONG_SEARCHES.items():
        wrong = [wrong_search(*case, mistake) for case in cases]
        if all(map(same, found, wrong)):
            return text

    return ""


def same(found: tuple[Any, float], other: tuple[list[int], float]) -> bool:
    """Whether ids and score are both the same."""
    return found[0] == other[0] and abs(found[1] - other[1]) < 1e-4


@check("beam_search", "Width 1 is greedy; width 2 finds what greedy search misses")
def better_than_greedy(mine: ModuleType, draw: InputDraw) -> None:
    model, prompt = draw_search(draw)
    greedy = mine.generate(model, list(prompt), 4, end=END)
    found = mine.beam_search(model, list(prompt), 1, 4, END, 0.0)
    expect_ids(
        expect_results(found, ("ids", "score"))[0],
        greedy,
        "beam_search with width = 1 and alpha = 0, compared with your generate",
    )

    chain = ChainModel(CHAIN)
    found = mine.beam_search(chain, [0], 2, 2, 3, 0.0)
    ids, _ = expect_results(found, ("ids", "score"))
    expect_ids(
        ids,
        [2, 2],
        "beam_search with width = 2 in a model whose next token depends on the last one alone",
        {"beam_search: this is what greedy search finds; 0.45 * 0.98 > 0.5 * 0.34": [1, 0]},
        table("probability of the next token (column) after a token (row)", CHAIN),
    )


@check("beam_search", "An open beam may still win after others have ended")
def patient_search(mine: ModuleType, draw: InputDraw) -> None:
    found = mine.beam_search(ChainModel(LATE), [3], 2, 4, END, 2.0)
    ids, _ = expect_results(found, ("ids", "score"))
    expect_ids(
        ids,
        [2, 2, 2, 2],
        "beam_search with width = 2 and alpha = 2 after token 3",
        {
            "beam_search: the search stops when width beams have ended; one that is open may "
            "still be better, because the penalty favours long sequences": []
        },
        table("probability of the next token (column) after a token (row); 0 is the end", LATE),
    )


@check("trap", "Greedy search misses the likeliest pair")
def greedy_trap(mine: ModuleType, draw: InputDraw) -> None:
    found = mine.trap()
    expect_shape(found, (3, 3), "trap", "(tokens, next tokens)")
    probabilities = found.detach().double()
    shown = table("probability of the next token (column) after a token (row)", found)
    if bool((probabilities < 0).any()):
        raise Failed("trap: a probability is below 0", shown)

    for row, total in enumerate(probabilities.sum(1).tolist()):
        if abs(total - 1) > 1e-4:
            raise Failed(f"trap: row {row} sums to {total:.3g}, not 1", shown)

    first = int(probabilities[0].argmax())
    greedy = float(probabilities[0, first] * probabilities[first].max())
    pairs = probabilities[0].unsqueeze(1) * probabilities  # (first token, second token)
    two = probabilities[0].topk(2).indices
    if float(pairs.max()) <= greedy + 1e-6:
        raise Failed(
            f"trap: greedy search finds the likeliest pair, with a probability of {greedy:.3g}",
            shown,
            table("probabilities of all pairs from token 0 on", pairs),
        )
    if float(pairs[two].max()) <= greedy + 1e-6:
        raise Failed(
            "trap: beam search with width 2 misses the likeliest pair, too: its first token is not "
            "among the two likeliest",
            shown,
            table("probabilities of all pairs from token 0 on", pairs),
        )
