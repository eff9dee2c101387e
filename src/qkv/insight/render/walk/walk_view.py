"""What a walk shows of one head, in the terminal and in a figure: its query, keys and equation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.views import ViewChoice, numbered, view_data
from qkv.insight.walk.head_walk import HeadWalk


def chosen_walk(look: LookData, choice: ViewChoice) -> HeadWalk:
    """The walk that was chosen, or the first of the look."""
    walks = view_data(look, "walks")
    attention = look.of(choice.kind)
    layer = head = None
    if choice.layer is not None:
        layer = numbered("layer", choice.layer, attention.depth)
    if choice.head is not None:
        first = choice.head if isinstance(choice.head, int) else choice.head[0]
        head = numbered("head", first, attention.heads)

    for name, walk in walks.items():
        if name[0] == attention.kind and layer in (None, name[1]) and head in (None, name[2]):
            return walk

    raise ValueError("walk: this look has no walk of this head; look at it again")


def chosen_query(look: LookData, walk: HeadWalk, choice: ViewChoice) -> int:
    """The query whose walk is shown: the token that was chosen, or the last."""
    token = -1 if choice.token is None else choice.token
    return numbered("token", token, len(look.of(walk.kind).rows.ids))


def formula(walk: HeadWalk, plain: bool = False) -> str:
    """The equation of this head in one line; `plain` is for ASCII."""
    equation = walk.equation
    dot, root = symbols(plain)
    score = f"q{dot}k"
    if equation.score == "additive":
        score = f"v{dot}tanh(q + k)"
    elif equation.divisor != 1:
        score = f"q{dot}k / {root}{equation.query.shape[-1]}"

    if equation.bias is not None:
        score += " + bias"

    if not bool(walk.visible.all()):
        score += " + mask"

    return f"output = softmax( {score} ) v"


def column_names(walk: HeadWalk, plain: bool = False) -> tuple[str, str]:
    """What the numbers before and after the division are called."""
    equation = walk.equation
    dot, root = symbols(plain)
    raw = f"q{dot}k"
    if equation.additive is not None:
        raw = f"v{dot}tanh"
    if equation.divisor == 1 or equation.bias is not None:
        return raw, "score"

    return raw, f"/ {root}{equation.query.shape[-1]}"


def symbols(plain: bool = False) -> tuple[str, str]:
    """The signs of a product and of a root; `plain` is for ASCII."""
    if plain:
        return ".", "sqrt "

    return "·", "√"


def open_scores(walk: HeadWalk, query: int) -> Float[Tensor, "S"]:
    """The scores of a query as they are before the mask."""
    if walk.equation.score == "other":
        return walk.scores[query]

    return walk.equation.scores(torch.ones_like(walk.visible))[query]


def listed_keys(walk: HeadWalk, query: int, most: int) -> list[int]:
    """The keys with rows of their own: all, or the `most` with the largest weights."""
    weights = walk.weights[query]
    if len(weights) <= most:
        return list(range(len(weights)))

    return sorted(weights.topk(most).indices.tolist())
