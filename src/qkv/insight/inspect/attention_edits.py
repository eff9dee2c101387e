"""Attention changed by hand: a head off, an edge between two words cut, a pattern in place of the
learned one.

3.5=off         head 5 of layer 3 says nothing 3.5=0.5         what it says, halved 3.*=off
all heads of layer 3 3.5:7>2=off     token 7 no longer looks at token 2; its other weights grow
until they sum to 1 3.5:7>2=0.8     that weight is 0.8, and the others share the rest as they did
3.5=uniform     every token looks at all that it may see alike; =first, =previous: at one of them
alone cross:1.0=off   of a translator: encoder:, decoder: or cross:
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.insight.inspect.capture import AttentionSite, attention_sites
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import Reading
from qkv.insight.inspect.visible_tokens import visible
from qkv.models import GPT
from qkv.models.registry import Model, backbone_of

Pattern = Literal["uniform", "first", "previous"]
PATTERNS = get_args(Pattern)
WRITTEN = re.compile(r"(?:(\w+):)?(\d+)\.(\d+|\*)(?::(\d+)>(\d+))?=(\S+)")
SPELLING = (
    "expected such as 3.5=off, 3.5=0.5, 3.5=uniform, 3.*=off or '3.5:7>2=off', "
    "in quotation marks, for a shell takes a bare > and what follows for itself"
)


class Edit(NamedTuple):
    """One change. Layers, heads and tokens are counted from 0."""

    layer: int
    head: int | None
    """None is all heads of the layer."""
    value: float | Pattern = 0.0
    """What a head's output is multiplied by, or the weight that an edge gets, 0 for off; or a
    pattern.
    """
    edge: tuple[int, int] | None = None
    """From the token that looks to the one that is looked at."""
    kind: str | None = None
    """encoder, decoder or cross; of a model with one kind of attention, that one."""

    @classmethod
    def read(cls, text: str) -> Edit:
        found = WRITTEN.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"change: cannot make sense of {text!r}; {SPELLING}")

        kind, layer, head, query, key, value = found.groups()
        edge = None if query is None else (int(query), int(key))

        return cls(
            int(layer),
            None if head == "*" else int(head),
            as_value(value, edge is not None, text),
            edge,
            kind,
        )

    def __str__(self) -> str:
        kind, head = f"{self.kind}:" if self.kind else "", "*" if self.head is None else self.head
        edge = f":{self.edge[0]}>{self.edge[1]}" if self.edge else ""
        value = (
            self.value
            if isinstance(self.value, str)
            else "off"
            if self.value == 0
            else f"{self.value:g}"
        )

        return f"{kind}{self.layer}.{head}{edge}={value}"


def as_value(value: str, edge: bool, text: str) -> float | Pattern:
    if value == "off":
        return 0.0
    if not edge and value in PATTERNS:
        return value  # type: ignore[return-value]

    try:
        number = float(value)
    except ValueError:
        names = "off or a number" if edge else f"off, a number, {', '.join(PATTERNS)}"
        raise ValueError(f"change: {text!r}: expected {names} after the =, not {value!r}") from None

    if not math.isfinite(number) or (edge and not 0 <= number <= 1):
        raise ValueError(
            f"change: {text!r}: expected {'a weight of 0 to 1' if edge else 'a finite number'}, not {value}"
        )

    return number


@contextmanager
def edited(model: Model, edits: Sequence[Edit]) -> Iterator[None]:
    """While the context is open, the model attends as the edits say; several are done in their
    order.
    """
    with ExitStack() as listening:
        for edit in edits:
            for point, listener in listeners(model, edit):
                listening.enter_context(require_hook(model, point, listener))

        yield


class Changed:
    """One edit of one layer, as what listens to its scores, its weights and what its heads say."""

    def __init__(self, edit: Edit, place: AttentionSite) -> None:
        self.edit, self.place = edit, place
        self.heads = slice(None) if edit.head is None else slice(edit.head, edit.head + 1)
        self.words = 0
        """An RNN looks once a word: how many words have looked."""

    def read_anew(self, value: Tensor, name: str) -> None:
        self.words = 0

    def queries(self, scores: Float[Tensor, "B H T S"]) -> Int[Tensor, "T"]:
        """The token that each row is of: the last ones, where a text looks at itself."""
        T, S = scores.shape[-2:]
        first = S - T if self.place.kind != "cross" else self.words
        self.words += 0 if self.place.point else T

        return torch.arange(first, first + T, device=scores.device)

    def scores(self, scores: Float[Tensor, "B H T S"], name: str) -> Float[Tensor, "B H T S"]:
        """Cut an edge, or put a pattern in place: a score of minus infinity is a weight of 0."""
        edit, scores, query = self.edit, scores.clone(), self.queries(scores)
        own = scores[:, self.heads]  # (B, h, T, S)
        if edit.edge is not None:
            asked, key = edit.edge
            own[:, :, query == asked, key] = -math.inf
            return scores

        visible = ~own.isneginf()
        own.masked_fill_(visible, 0)
        if edit.value == "first":
            own.masked_fill_(visible.cumsum(-1) > 1, -math.inf)
        elif edit.value == "previous":
            own.masked_fill_(~previous(visible, query), -math.inf)

        return scores

    def weights(self, weights: Float[Tensor, "B H T S"], name: str) -> Float[Tensor, "B H T S"]:
        """Set a weight; the others of its row share what is left as they did before."""
        assert self.edit.edge is not None
        weights, query = weights.clone(), self.queries(weights)
        asked, key = self.edit.edge
        if not bool((query == asked).any()):
            return weights

        row = int((query == asked).nonzero())
        own = weights[:, self.heads, row]  # (B, h, S)
        rest = own.sum(-1, keepdim=True) - own[..., key : key + 1]
        own = torch.where(rest > 0, own * (1 - float(self.edit.value)) / rest.clamp(min=1e-30), own)
        own[..., key] = torch.where(rest[..., 0] > 0, float(self.edit.value), own[..., key])
        weights[:, self.heads, row] = own

        return weights

    def output(self, heads: Float[Tensor, "B H T D"], name: str) -> Float[Tensor, "B H T D"]:
        heads = heads.clone()
        heads[:, self.heads] *= float(self.edit.value)
        return heads

    def context(self, context: Float[Tensor, "B 1 E"], name: str) -> Float[Tensor, "B 1 E"]:
        return context * float(self.edit.value)


def previous(visible: Bool[Tensor, "B H T S"], query: Int[Tensor, "T"]) -> Bool[Tensor, "B H T S"]:
    """The token before each one, or itself where that is not to be seen."""
    key = torch.arange(visible.shape[-1], device=visible.device)
    before = visible & (key == query.unsqueeze(1) - 1)
    return before | (~before.any(-1, keepdim=True) & visible & (key == query.unsqueeze(1)))


def listeners(
    model: Model, edit: Edit
) -> Iterator[tuple[str, Callable[[Tensor, str], Tensor | None]]]:
    """The points that an edit listens to, and what it does there."""
    place = check(model, edit)
    changed = Changed(edit, place)
    if isinstance(edit.value, str) or (edit.edge is not None and edit.value == 0):
        yield place.tap(edit.layer, "scores"), changed.scores
    elif edit.edge is not None:
        yield place.tap(edit.layer, "weights"), changed.weights
    elif place.point:
        yield place.tap(edit.layer, "heads"), changed.output
    else:
        yield "context", changed.context

    if not place.point:
        yield "encoder", changed.read_anew


def check(model: Model, edit: Edit, reading: Reading | None = None) -> AttentionSite:
    """Where the edit is in the model; a sentence if it is nowhere, or is about a token that the
    text does not have.
    """
    places = {place.kind: place for place in attention_sites(model)}
    if edit.kind is not None and edit.kind not in places:
        raise ValueError(
            f"change: {edit}: this model has {', '.join(places)} attention, not {edit.kind}"
        )
    if edit.kind is None and len(places) > 1:
        raise ValueError(
            f"change: {edit}: say which attention is meant, as in cross:{edit}; one of {', '.join(places)}"
        )

    place = places[edit.kind] if edit.kind is not None else next(iter(places.values()))
    if edit.layer >= place.depth:
        raise ValueError(
            f"change: {edit}: expected a layer of 0 to {place.depth - 1}, not {edit.layer}"
        )
    if edit.head is not None and edit.head >= place.heads:
        raise ValueError(
            f"change: {edit}: expected a head of 0 to {place.heads - 1}, not {edit.head}"
        )
    if edit.value == "previous" and place.kind == "cross":
        raise ValueError(
            f"change: {edit}: a source has no word before a target's word; expected uniform or first"
        )

    if edit.edge is not None:
        check_edge(model, edit, edit.edge, place.kind, reading)

    return place


def check_edge(
    model: Model, edit: Edit, edge: tuple[int, int], kind: str, reading: Reading | None
) -> None:
    query, key = edge
    size = max(edge) + 2  # one token more, to be seen by the last if the model sees later ones
    if reading is not None:
        rows = reading.source if kind == "encoder" else reading.text
        columns = reading.source if kind in ("encoder", "cross") else reading.text
        assert rows is not None
        assert columns is not None
        size = len(rows.ids)
        for number, side in ((query, rows), (key, columns)):
            if number >= len(side.ids):
                count, its = len(side.ids), "source" if side is reading.source else "text"
                only = f"only {count:,} tokens, 0 to {count - 1}" if count > 1 else "only token 0"
                raise ValueError(
                    f"change: {edit}: there is no token {number}, for the {its} has {only}"
                )

    if kind == "cross":
        return

    seen = visible(model, kind, torch.tensor([query]), size)[0]  # (S,)
    causal = isinstance(backbone_of(model), GPT) or kind == "decoder"
    if not seen[key] and causal and key > query:
        raise ValueError(
            f"change: {edit}: token {query} of a causal model cannot see token {key}, which comes later"
        )
    if not seen[key]:
        raise ValueError(
            f"change: {edit}: token {query} cannot see token {key}, which the model's mask hides from it"
        )
    if int(seen.sum()) == 1:
        raise ValueError(
            f"change: {edit}: token {query} sees only itself, with a weight of 1; use off for the whole head"
        )
