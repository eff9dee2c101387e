"""A look as one HTML page: no network, opens by double click, drawn by the modules in `web`.

The weights of each head are a block of their own, decoded when the head is shown: a page of a
hundred heads opens as fast as that of one. Tokens and texts are JSON, and the content security
policy lets no script run but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from string import Template
from typing import Any

from qkv.generation.fill import Guess
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.look_data import LookData
from qkv.insight.inspect.model_input import Side
from qkv.insight.render.page_encoding import Code, as_json, block, numbers, packed, rounded
from qkv.insight.render.page_heads import (
    check_same_tokens,
    described_heads,
    first_head,
    with_shares,
)
from qkv.insight.render.page_parts import described_parts
from qkv.insight.render.page_text import heading, missing_views
from qkv.insight.render.script_bundle import bundle, module
from qkv.insight.render.story_file import Story, opened_story
from qkv.insight.render.views import MISSING, View, ViewChoice, head_numbers, numbered
from qkv.insight.render.walk.model_walk_data import model_walk_data
from qkv.insight.render.walk.walk_data import described_walks, walk_blocks

EXACT = 4_000_000
"""Weights up to which each has 16 bits; above, each has 8 bits of its root, precise near 0."""
THREADS = 4
STYLES = ("view.css", "tiles.css", "walk.css", "model_walk.css", "parts.css", "present.css")
"""Style sheets, in their order."""
NO_SPACES: Mapping[int, int] = {}


def page(
    look: LookData,
    choice: ViewChoice = ViewChoice(),  # noqa: B008 - it is frozen
    against: LookData | None = None,
    story: Story | None = None,
) -> str:
    """The page as text.

    Args:
        look: The look.
        choice: What is shown first. The default view is all heads, or one head if a layer or head
            is chosen; the default head is the most telling one whose weights were kept.
        against: A look of another model at the same tokens: its heads are shown beside.
        story: States with captions; the page opens with the first.

    Raises:
        ValueError: If the look has no such view, kind, layer or head, or the tokens differ.
    """
    look = replace(look, attention=with_shares(look))
    start = opening(look, choice)
    if against is not None:
        check_same_tokens(look, against)
        against = replace(against, attention=with_shares(against))
        if "kind" in start:
            second = against.of(start["kind"])
            site = first_head(second, second.layers, range(second.heads))
            start |= {"view": choice.view or "head", "compare": list(site)}

    if story is not None:
        start |= opened_story(look, story)

    return "".join(chunks(look, start, against))


# What is shown first


def opening(look: LookData, choice: ViewChoice, fetches: bool = False) -> dict[str, Any]:
    """The state in which the page opens; if it `fetches` layers, any head can be the first."""
    view = choice.view
    if view is not None and not has_view(look, view):
        raise ValueError(f"view: there is no {view} in this look at {look.model}")
    if not look.attention:
        return {"view": view}

    attention = look.of(choice.kind)
    if view is None:
        # One head if it is the only one or is requested, else all heads
        one = attention.depth * attention.heads == 1 or (choice.layer, choice.head) != (None, None)
        view = "head" if one else "heads"

    first, head, *others = opening_heads(attention, choice, fetches)
    start: dict[str, Any] = {
        "view": view,
        "kind": attention.kind,
        "layer": first,
        "head": head,
        "words": choice.words,
        "without": choice.without_first,
        "kept": [[first, number] for number in others],
    }
    if view == "numbers":
        start |= {"view": "heads", "glance": "entropy"}
    if choice.token is not None:
        rows = len(attention.rows.ids)
        start["token"] = numbered("token", choice.token, rows)
    if view == "walk":
        start |= opening_walk(look, choice, start)

    return start


def opening_heads(attention: CapturedAttention, choice: ViewChoice, fetches: bool) -> list[int]:
    """The layer and the head that are shown first, and further heads of that layer."""
    layers: Collection[int] = attention.layers
    if choice.layer is not None:
        layers = [numbered("layer", choice.layer, attention.depth)]
    elif fetches or not layers:
        layers = range(attention.depth)

    heads: tuple[int, ...] = ()
    if choice.head is not None:
        heads = head_numbers(choice.head, attention.heads)

    layer, head = first_head(attention, layers, heads[:1] or range(attention.heads))
    return [layer, head, *heads[1:]]


def opening_walk(look: LookData, choice: ViewChoice, start: dict[str, Any]) -> dict[str, Any]:
    """The head of a walk: the one that is chosen, or the first that the page has."""
    if choice.head is not None or not look.walks:
        return {}

    for kind, layer, head in look.walks:
        if kind == start["kind"] and choice.layer in (None, layer):
            return {"layer": layer, "head": head}

    return {}


def has_view(look: LookData, view: View) -> bool:
    """True if the look has data for this view."""
    if view == "walk":
        return bool(look.walks)
    if view == "model":
        return look.model_walk is not None
    if view in MISSING:
        return getattr(look, view) is not None

    return bool(look.attention)


# The file


def chunks(look: LookData, start: dict[str, Any], against: LookData | None = None) -> Iterator[str]:
    """The page in order: what is drawn first comes first, and is drawn while the rest is loaded."""
    script = bundle("standalone.js")
    yield page_head(look.model, script, "".join(map(module, STYLES)))

    # Tokens, shapes and small heat maps, then the script
    code = code_of(look)
    data = described(look, code) | {"start": start}
    if against is not None:
        data["against"] = described(against, code_of(against))

    yield block("data", as_json(data), "application/json")
    for name, content in overviews(look):
        yield block(name, content)

    yield f'<script type="module" async>{script}</script>\n'

    # The weights of each head, and the predictions
    for name, content in heads(look, code, str(start.get("kind")), start.get("layer", 0)):
        yield block(name, content)

    for part, guesses in (("next", look.next), ("lens", look.lens)):
        if guesses is not None:
            listed = as_json(compact(guesses, look.leading_spaces))
            yield block(part, listed, "application/json")

    if look.parts is not None:
        yield block("parts", as_json(described_parts(look)), "application/json")

    for name, walk in walk_blocks(look):
        yield block(name, as_json(walk), "application/json")

    if look.model_walk is not None:
        walk_data = model_walk_data(look.model_walk, look.leading_spaces)
        yield block("model_walk", as_json(walk_data), "application/json")

    if against is not None:
        for name, content in blocks(against, code_of(against), str(start.get("kind")), 0):
            yield block(f"against.{name}", content)

    yield "</body>\n</html>\n"


def code_of(look: LookData) -> Code:
    """16 bits for each weight, or 8 if there are many."""
    if cells(look) <= EXACT:
        return "linear16"

    return "root8"


def page_head(model: str, script: str, style: str) -> str:
    """The beginning of the page, with a policy that allows this script and this style alone."""
    name = html.escape(model).encode("utf-8", "replace").decode()
    return Template(module("page_head.html")).substitute(
        policy=content_policy(script, style), name=name, style=style
    )


def blocks(look: LookData, code: Code, kind: str, layer: int) -> Iterator[tuple[str, str]]:
    """All weights by name, packed: overviews of all heads, then each head, then attribution."""
    yield from overviews(look)
    yield from heads(look, code, kind, layer)


def overviews(look: LookData) -> Iterator[tuple[str, str]]:
    """The small heat maps of all heads, by name."""
    for attention in look.attention:
        content = packed(attention.overview, "root8", largest_weight(attention))
        yield f"{attention.kind}.overview", content


def heads(look: LookData, code: Code, kind: str, layer: int) -> Iterator[tuple[str, str]]:
    """The weights of each head, those of the kind and layer that are shown first before the rest.

    Attribution comes last.
    """
    sites: list[tuple[CapturedAttention, int, int]] = []
    for attention in look.attention:
        for number in attention.layers:
            for head in range(attention.heads):
                sites.append((attention, number, head))

    sites.sort(key=lambda site: (site[0].kind != kind, site[1] != layer))

    def pack(site: tuple[CapturedAttention, int, int]) -> tuple[str, str]:
        attention, number, head = site
        weights = packed(attention.layers[number][head], code, largest_weight(attention))
        return f"{attention.kind}.{number}.{head}", weights

    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(pack, sites)

    for attention in look.attention:
        if attention.shares is not None:
            mean = packed(attention.shares.mean, code, largest_weight(attention))
            yield f"{attention.kind}.mean", mean

    if look.attribution is not None:
        yield "attribution", packed(look.attribution, code, 1.0)


# The data that the page reads before any head


def described(look: LookData, code: Code) -> dict[str, Any]:
    """Everything but the weights and predictions, for JSON."""
    sides: list[Side] = []
    reading = look.reading
    data: dict[str, Any] = {
        "model": look.model,
        "heading": heading(look),
        "between": " · " if reading.source is None else " → ",
        "text": index_of(reading.text, sides),
        "follows": not look.bidirectional,  # predictions are of the next token
        "attention": [described_attention(attention, code, sides) for attention in look.attention],
        "next": look.next is not None,
        "lens": look.lens is not None,
        "norms": described_norms(look),
        "attribution": None,
        "parts": look.parts is not None,
        "walk": described_walks(look),
        "lacking": missing_views(look),
    }
    if look.attribution is not None:
        rows, columns = look.attribution.shape
        keys = reading.text
        if reading.source is not None and columns == len(reading.source.ids):
            keys = reading.source

        data["attribution"] = {
            "rows": index_of(reading.rows, sides),
            "columns": index_of(keys, sides),
            "shape": [rows, columns],
            "code": code,
            "most": 1.0,
        }

    data["sides"] = [described_side(side, look.leading_spaces) for side in sides]

    return data


def index_of(side: Side, sides: list[Side]) -> int:
    """The index of a side, which is added if it is new."""
    if side not in sides:
        sides.append(side)

    return sides.index(side)


def described_side(side: Side, spaces: Mapping[int, int]) -> dict[str, Any]:
    """The tokens of a side with their leading spaces, and its words."""
    tokens = []
    for id, token in zip(side.ids, side.tokens, strict=True):
        tokens.append(" " * spaces.get(id, 0) + token)

    words = [[word.text, word.positions] for word in side.words]
    return {"ids": side.ids, "tokens": tokens, "words": words}


def described_attention(
    attention: CapturedAttention, code: Code, sides: list[Side]
) -> dict[str, Any]:
    return {
        "kind": attention.kind,
        "rows": index_of(attention.rows, sides),
        "columns": index_of(attention.columns, sides),
        "shape": [len(attention.rows.ids), len(attention.columns.ids)],
        "layers": list(attention.layers),
        "depth": attention.depth,
        "heads": attention.heads,
        "causal": attention.causal,
        "code": code,
        "most": largest_weight(attention),
        "overview": overview_shape(attention),
        "entropy": numbers(attention.entropy),
        "distance": numbers(attention.distance),
        "names": list(attention.names) or None,
        **described_heads(attention),
    }


def described_norms(look: LookData) -> dict[str, Any] | None:
    if look.norms is None:
        return None

    residual = [rounded(layer.tolist()) for layer in look.norms.residual]
    gradient = [rounded(layer.tolist()) for layer in look.norms.gradient or ()]
    return {"residual": residual, "gradient": gradient or None}


def cells(look: LookData) -> int:
    """The number of weights on the page."""
    count = 0
    if look.attribution is not None:
        count += look.attribution.numel()

    for attention in look.attention:
        for weights in attention.layers.values():
            count += weights.numel()

    return count


def largest_weight(attention: CapturedAttention) -> float:
    """The number that encodes as 1: 1, or more where an edit has scaled the weights."""
    if attention.overview.numel() == 0:
        return 1.0

    largest = float(attention.overview.nan_to_num(0).amax())
    if largest <= 1.001:
        return 1.0

    return largest


def overview_shape(attention: CapturedAttention) -> list[int]:
    if attention.overview.shape[0] != attention.depth:
        raise ValueError(
            f"overview: expected one of each of {attention.depth} layers; "
            "capture it with overview=True"
        )

    return list(attention.overview.shape[2:])


def compact(guesses: Any, spaces: Mapping[int, int] = NO_SPACES) -> Any:
    """Guesses in nested lists as [text, id, probability]: there may be a hundred thousand.

    Each text has its leading spaces back, of which `spaces` has the number by id.
    """
    if isinstance(guesses, Guess):
        text = " " * spaces.get(guesses.id, 0) + guesses.text
        return [text, guesses.id, float(f"{guesses.probability:.4g}")]

    return [compact(part, spaces) for part in guesses]


def content_policy(script: str, style: str) -> str:
    """The content security policy of a page that allows its own script and style alone."""
    return (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def hashed(content: str) -> str:
    """The hash by which a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
