"""Names of heads from one text: previous, first, induction, subject ...; and the telling heads.

`qkv heads` measures patterns over many texts. Here a head is named by what it does in the text
that is shown, or by such a measurement where one is given. Most heads have no name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.model_input import Side
from qkv.insight.inspect.weight_shares import ShareSums, WeightShares

LEAST = 0.5
"""A pattern names a head if it takes this share of the weight or more ..."""
OVER_UNIFORM = 1.5
"""... and this many times the share that it takes in a head that attends equally everywhere."""
QUERIES = 3
"""The number of queries that must be able to follow a pattern."""
NEARLY_ALL = 0.8
"""The share of the later tokens that clearly look at a subject."""
FEW = 0.02
"""The share of the heads (or three heads) up to which a key is a subject; beyond, it is a sink."""
FUNCTION_WORDS = (
    *("a", "an", "the", "this", "that", "is", "was", "are", "were", "be", "of", "to", "in"),
    *("on", "at", "by", "for", "with", "from", "as", "and", "or", "but", "not", "it"),
)
"""English tokens that are no subject."""
NOTHING = 0.001
"""A row with less weight than this on the keys that are not left out has none."""

SENTENCES = {
    "previous": "Most weight goes to the token before (mean {share}): a previous-token head.",
    "next": "Most weight goes to the token after (mean {share}): a next-token head.",
    "first": "Most weight goes to the first token (mean {share}): the head rests there.",
    "special": "Most weight goes to special tokens (mean {share}): the head rests there.",
    "self": "Most weight of a token stays on the token itself (mean {share}).",
    "same": "A token that occurs again looks at its copy (mean {share}): a same-token head.",
    "induction": "A token that occurs again looks at what followed it before (mean {share}): "
    "an induction head.",
    "subject": "Nearly every token looks at “{token}” (mean {share}): a subject head.",
    "one token": "Nearly every token looks at “{token}” (mean {share}).",
    "sink": "Nearly every token looks at “{token}” (mean {share}), as in many heads: "
    "an attention sink.",
}
"""What a head of each name does."""

TELLING = {"induction": 1.0, "subject": 1.0, "same": 0.5, "one token": -0.5}
"""Added to the score of a head by name ..."""
RESTING = ("first", "special", "self", "sink")
"""... and 1 is taken off a head that rests."""


class HeadName(NamedTuple):
    """The name of a head, and how far it deserves it."""

    name: str
    share: float
    """The mean weight that goes where the name says."""
    position: int | None = None
    """The key that nearly every token looks at, if the name is about one."""


def name_heads(attention: CapturedAttention) -> list[list[HeadName | None]]:
    """The name of each head by layer; None for a head without a clear pattern.

    A head has the name of the pattern with the largest share of its weight, if this share is half
    or more, is 1.5 times that of a uniform head or more, and three queries or more can follow the
    pattern. A key that nearly every later token clearly looks at is the subject; it is a sink if
    many other heads look at it, too.

    Args:
        attention: What `capture_attention` returns.
    """
    shares = shares_of(attention)
    if shares is None or attention.names:
        return [[None] * attention.heads for _ in range(attention.depth)]

    subjects = name_subjects(shares, attention.columns)
    names = []
    for layer in range(attention.depth):
        row = []
        for head in range(attention.heads):
            row.append(name_of(shares, layer, head, subjects.get((layer, head))))

        names.append(row)

    return names


def name_of(
    shares: WeightShares, layer: int, head: int, subject: HeadName | None
) -> HeadName | None:
    """The name of one head."""
    candidates = []
    for name, scores in shares.scores.items():
        score = float(scores[layer, head])
        needed = max(LEAST, OVER_UNIFORM * shares.uniform[name])
        if score >= needed and shares.queries[name] >= QUERIES and name in SENTENCES:
            candidates.append(HeadName(name, score))

    if subject is not None:
        candidates.append(subject)

    # A special first token counts as both; the name is then "special".
    return max(candidates, key=lambda name: (round(name.share, 2), name.name), default=None)


def name_subjects(shares: WeightShares, columns: Side) -> dict[tuple[int, int], HeadName]:
    """The heads in which nearly every later token clearly looks at one key."""
    clear = (shares.on_token >= LEAST) & (shares.clear >= NEARLY_ALL) & (shares.token >= 0)
    few = max(3.0, FEW * clear.numel())
    counts = shares.token[clear].bincount(minlength=len(columns.ids))

    names = {}
    for layer, head in clear.nonzero().tolist():
        position = int(shares.token[layer, head])
        token = columns.tokens[position].strip().casefold()
        name = "subject"
        if counts[position] > few:
            name = "sink"
        elif token in FUNCTION_WORDS or not any(map(str.isalnum, token)):
            name = "one token"

        names[layer, head] = HeadName(name, float(shares.on_token[layer, head]), position)

    return names


def explanation(name: HeadName, columns: Side) -> str:
    """What a head of this name does in this text, as a sentence."""
    token = ""
    if name.position is not None:
        token = columns.tokens[name.position].strip()

    return SENTENCES[name.name].format(share=f"{name.share:.0%}", token=token)


def telling_heads(attention: CapturedAttention) -> list[tuple[int, int]]:
    """All heads as (layer, head), the most telling first.

    The score of a head is the mean of the largest weight that a token gives to another token,
    neither the first nor a special one: heads that look at few tokens come before heads that look
    everywhere. Heads named induction or subject come first, heads that rest (on the first token,
    on special tokens, on themselves) come last.

    Args:
        attention: What `capture_attention` returns.
    """
    sites = []
    for layer in range(attention.depth):
        for head in range(attention.heads):
            sites.append((layer, head))

    shares = shares_of(attention)
    if shares is None or attention.names:
        return sites

    scores = telling_scores(shares, name_heads(attention))
    sites.sort(key=lambda site: -float(scores[site]))

    return sites


def telling_scores(
    shares: WeightShares, names: list[list[HeadName | None]]
) -> Float[Tensor, "L H"]:
    """The score of each head by which `telling_heads` sorts."""
    scores = shares.strongest.clone()
    for layer, row in enumerate(names):
        for head, name in enumerate(row):
            if name is None:
                continue

            scores[layer, head] += TELLING.get(name.name, 0.0)
            if name.name in RESTING:
                scores[layer, head] -= 1

    return scores


def shares_of(attention: CapturedAttention) -> WeightShares | None:
    """The weight shares, computed from the weights if these are all there; None otherwise."""
    if attention.shares is not None or len(attention.layers) < attention.depth:
        return attention.shares

    sums = ShareSums(attention.kind, attention.rows, attention.columns)
    for _, weights in sorted(attention.layers.items()):
        sums.add(weights)

    return sums.result()


# A measurement by `qkv heads`


def read_measurement(path: Path) -> list[dict[str, Any]]:
    """The patterns that `qkv heads MODEL --json` printed into a file."""
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))["patterns"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"names: {path} has no patterns; write it with qkv heads MODEL --json > {path.name}"
        ) from error

    return list(measured)


def with_measurement(
    attention: CapturedAttention, measured: list[dict[str, Any]]
) -> CapturedAttention:
    """The attention with pattern scores of many texts instead of those of this text.

    Args:
        attention: What `capture_attention` returns.
        measured: From `read_measurement`.

    Raises:
        ValueError: If the measurement is of a model with other layers or heads.
    """
    shares = shares_of(attention)
    of_kind = [site for site in measured if site.get("attention") == attention.kind]
    if shares is None or not of_kind:
        return attention

    scores = dict(shares.scores)
    uniform = dict(shares.uniform)
    queries = dict(shares.queries)
    names = []
    for name, values in of_kind[0].items():
        if name not in SENTENCES:
            continue

        table = torch.tensor(values["scores"])
        if table.shape != shares.left_out.shape:
            raise ValueError(
                f"names: expected {attention.depth} layers of {attention.heads} heads, as this "
                f"model has, not {' of '.join(map(str, table.shape))}"
            )

        scores[name] = table
        uniform[name] = values["uniform"]
        queries[name] = QUERIES
        names.append(name)

    changed = shares._replace(
        scores=scores, uniform=uniform, queries=queries, measured=tuple(names)
    )
    return attention._replace(shares=changed)


# Leaving keys out


def without_keys(weights: Float[Tensor, "*n T S"], positions: list[int]) -> Float[Tensor, "*n T S"]:
    """The weights without some keys, each row rescaled to sum to 1.

    A row that gave them all its weight (but 0.1%) stays empty.

    Args:
        weights: The weights; a row sums to 1.
        positions: The keys to leave out.
    """
    rest = weights.clone()
    rest[..., positions] = 0
    total = rest.sum(-1, keepdim=True)

    return torch.where(total > NOTHING, rest / total, torch.zeros_like(rest))
