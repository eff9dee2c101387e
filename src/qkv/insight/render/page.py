"""A look as one HTML file: no network, opens by double click, drawn by the modules in `web`, which
know no file.

The weights of each head are a block of their own, decoded when the head is shown: a page of a
hundred heads opens as fast as that of one. What a person or a model wrote is JSON, and the page's
policy lets no script but ours run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkv import storage
from qkv.generation.fill import Guess
from qkv.insight.inspect.capture import Attention
from qkv.insight.inspect.model_input import Side
from qkv.insight.look import Look
from qkv.insight.render.page_text import heading, lacking
from qkv.insight.render.script_bundle import bundle, module
from qkv.insight.render.views import View, numbered

EXACT = 4_000_000
"""Up to so many weights each has 16 bits; more have 8, of their square root, which spares the small
ones.
"""
THREADS = 4

Code = Literal["linear16", "root8"]


def page(
    look: Look,
    *,
    view: View | None = None,
    kind: str | None = None,
    layer: int | None = None,
    head: int | Sequence[int] | None = None,
    words: bool = False,
) -> str:
    """The file's text. It opens with all heads at a glance, or as it is asked to; layers and heads
    count from 0.
    """
    return "".join(chunks(look, opening(look, view, kind, layer, head, words)))


def write_page(look: Look, out: Path, **how: Any) -> Path:
    """`how` it opens is said as for `page`."""
    storage.write_text(out, page(look, **how))
    return out


def opening(
    look: Look,
    view: View | None,
    kind: str | None,
    layer: int | None,
    head: int | Sequence[int] | None,
    words: bool,
) -> dict[str, Any]:
    """What is shown first."""
    there = {
        "next": look.next,
        "lens": look.lens,
        "norms": look.norms,
        "attribution": look.attribution,
    }

    if view is not None and there.get(view, look.attention or None) is None:
        raise ValueError(f"view: there is no {view} in this look at {look.model}")
    if not look.attention:
        return {"view": view}

    attention = look.of(kind)
    first = (
        min(attention.layers, default=0)
        if layer is None
        else numbered("layer", layer, attention.depth)
    )
    asked = [0] if head is None else [head] if isinstance(head, int) else list(head)
    heads = [numbered("head", each, attention.heads) for each in asked]
    if view is None:
        alone = attention.depth * attention.heads == 1
        view = "head" if alone or layer is not None or head is not None else "heads"

    start = {"view": view, "kind": attention.kind, "layer": first, "head": heads[0], "words": words}
    if view == "numbers":
        start |= {"view": "heads", "glance": "entropy"}

    return start | {"kept": [[first, each] for each in heads[1:]]}


def chunks(look: Look, start: dict[str, Any]) -> Iterator[str]:
    """The page in order: what is drawn first comes first, and is drawn while the rest is still
    read.
    """
    script, style = bundle("standalone.js"), module("view.css")
    policy = (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    name = html.escape(look.model).encode("utf-8", "replace").decode()
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{name}: a look inside</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<div id="qkv"><p class="note">Opening …</p></div>\n'
        "<noscript>This page draws with JavaScript, which is switched off.</noscript>\n"
    )

    code: Code = "linear16" if cells(look) <= EXACT else "root8"
    yield block("data", as_json(described(look, code) | {"start": start}), "application/json")

    for name, content in overviews(look):
        yield block(name, content)

    yield f'<script type="module" async>{script}</script>\n'

    for name, content in heads(look, code, str(start.get("kind")), start.get("layer", 0)):
        yield block(name, content)

    for part, guesses in (("next", look.next), ("lens", look.lens)):
        if guesses is not None:
            yield block(part, as_json(compact(guesses)), "application/json")

    yield "</body>\n</html>\n"


def blocks(look: Look, code: Code, kind: str, layer: int) -> Iterator[tuple[str, str]]:
    """All weights by name, packed: the heads at a glance, then each head, then the attribution."""
    yield from overviews(look)
    yield from heads(look, code, kind, layer)


def overviews(look: Look) -> Iterator[tuple[str, str]]:
    for each in look.attention:
        yield f"{each.kind}.overview", packed(each.overview, "root8", most(each))


def heads(look: Look, code: Code, kind: str, layer: int) -> Iterator[tuple[str, str]]:
    """A block for each head, those of the layer that is shown first before the others; then the
    attribution.
    """
    there = [
        (each, number, head)
        for each in look.attention
        for number in each.layers
        for head in range(each.heads)
    ]

    there.sort(key=lambda at: (at[0].kind != kind, at[1] != layer))

    def pack(at: tuple[Attention, int, int]) -> tuple[str, str]:
        attention, number, head = at
        weights = packed(attention.layers[number][head], code, most(attention))
        return f"{attention.kind}.{number}.{head}", weights

    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(pack, there)

    if look.attribution is not None:
        yield "attribution", packed(look.attribution, code, 1.0)


# What the page knows before any head is read


def described(look: Look, code: Code) -> dict[str, Any]:
    sides: list[Side] = []

    def place(side: Side) -> int:
        if side not in sides:
            sides.append(side)

        return sides.index(side)

    source = look.reading.source
    found: dict[str, Any] = {
        "model": look.model,
        "heading": heading(look),
        "text": place(look.reading.text),
        "follows": not look.both_ways,  # whether a guess is about the next word, or about this one
        "attention": [
            {
                "kind": each.kind, "rows": place(each.rows), "columns": place(each.columns),
                "shape": [len(each.rows.ids), len(each.columns.ids)], "layers": list(each.layers),
                "depth": each.depth, "heads": each.heads, "causal": each.causal, "code": code, "most": most(each),
                "overview": overview_shape(each), "entropy": numbers(each.entropy), "distance": numbers(each.distance),
                "names": list(each.names) or None,
            }
            for each in look.attention
        ],
        "next": look.next is not None,
        "lens": look.lens is not None,
        "norms": None,
        "attribution": None,
        "lacking": lacking(look),
    }  # fmt: skip

    if look.norms is not None:
        residual, gradient = (
            [rounded(each.tolist()) for each in some or ()] for some in look.norms
        )
        found["norms"] = {"residual": residual, "gradient": gradient or None}

    if look.attribution is not None:
        rows, columns = look.attribution.shape
        of_source = source is not None and columns == len(source.ids)
        to = place(source) if of_source and source is not None else place(look.reading.text)
        found["attribution"] = {
            "rows": place(look.reading.rows), "columns": to, "shape": [rows, columns], "code": code, "most": 1.0,
        }  # fmt: skip

    found["sides"] = [
        {
            "ids": side.ids,
            "tokens": side.tokens,
            "words": [[word.text, word.places] for word in side.words],
        }
        for side in sides
    ]

    return found


def cells(look: Look) -> int:
    of_attribution = 0 if look.attribution is None else look.attribution.numel()
    return of_attribution + sum(
        weights.numel() for each in look.attention for weights in each.layers.values()
    )


def most(attention: Attention) -> float:
    """The largest number that is written: 1, but weights that someone scaled may be larger."""
    found = attention.overview.nan_to_num(0).amax().item() if attention.overview.numel() else 0
    return 1.0 if found <= 1.001 else float(found)


def overview_shape(attention: Attention) -> list[int]:
    if attention.overview.shape[0] != attention.depth:
        raise ValueError(
            f"overview: expected one of each of {attention.depth} layers; capture it with overview=True"
        )

    return list(attention.overview.shape[2:])


def numbers(values: Float[Tensor, "*n"]) -> Any:
    """With five digits, as many as are ever shown; None for all where one is no number."""
    if not bool(values.isfinite().all()):
        return None

    return rounded(values.tolist())


def rounded(values: Any) -> Any:
    if isinstance(values, float):
        return float(f"{values:.5g}") if math.isfinite(values) else None

    return [rounded(each) for each in values]


def compact(guesses: Any) -> Any:
    """A guess as a list: there may be a hundred thousand."""
    if isinstance(guesses, Guess):
        return [guesses.text, guesses.id, float(f"{guesses.probability:.4g}")]

    return [compact(each) for each in guesses]


# From values to text


def packed(weights: Float[Tensor, "*n"], code: Code, most: float) -> str:
    """As numbers of the code, deflated, in base64."""
    part = (weights.float() / most).nan_to_num(0).clamp_(0, 1)
    if code == "root8":
        coded = part.sqrt_().mul_(255).round_().to(torch.uint8).numpy()
    else:
        coded = part.mul_(65535).round_().to(torch.int32).numpy().astype("<u2")

    return base64.b64encode(zlib.compress(coded.tobytes(), level=1)).decode()


def as_json(value: Any) -> str:
    """In ASCII, and without the signs that could end a block or begin one."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def block(name: str, content: str, kind: str = "text/plain") -> str:
    return f'<script type="{kind}" id="qkv.{html.escape(name)}">{content}</script>\n'


def hashed(content: str) -> str:
    """How the page's policy names a script that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
