"""Attention edits: switch off a head, cut an edge between two tokens, or force a head pattern.

An edit is written as layer.head=value:

    3.5=off         switch off head 5 of layer 3
    3.5=0.5         halve its output
    3.*=off         switch off all heads of layer 3
    3.5:7>2=off     token 7 no longer attends to token 2; its other weights are renormalised
    3.5:7>2=0.8     that weight becomes 0.8; the others keep their proportions and sum to 0.2
    3.5=uniform     every token attends equally to all it may see; also =first and =previous
    cross:1.0=off   for a translator: encoder:, decoder: or cross:
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

from qkv.insight.inspect.capture import visible
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import Reading
from qkv.models.model import Model
from qkv.models.sites import AttentionSite, attention_sites

Pattern = Literal["uniform", "first", "previous"]
PATTERNS = get_args(Pattern)
WRITTEN = re.compile(r"(?:(\w+):)?(\d+)\.(\d+|\*)(?::(\d+)>(\d+))?=(\S+)")
SPELLING = (
    "expected such as 3.5=off, 3.5=0.5, 3.5=uniform, 3.*=off or '3.5:7>2=off', "
    "in quotation marks, because a shell treats a bare > as a redirection"
)


class Edit(NamedTuple):
    """One change of attention. Layers, heads and tokens are counted from 0.

    Args:
        layer: The layer.
        head: The head; None for all heads of the layer.
        value: A factor for the head's output, or the weight of the edge (0 is off), or a pattern.
        edge: The query token and the key token, to change a single weight.
        kind: encoder, decoder or cross; not needed for a model with one kind of attention.

    Example:
        >>> from qkv.insight import Edit
        >>> Edit.read("3.5=off")
        Edit(layer=3, head=5, value=0.0, edge=None, kind=None)
        >>> str(Edit(0, None, 0.5))
        '0.*=0.5'
    """

    layer: int
    head: int | None
    value: float | Pattern = 0.0
    edge: tuple[int, int] | None = None
    kind: str | None = None

    @classmethod
    def read(cls, text: str) -> Edit:
        """Parse an edit such as 3.5=off; the module's docstring lists the forms."""
        match = WRITTEN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"change: cannot make sense of {text!r}; {SPELLING}")

        kind, layer, head, query, key, value = match.groups()
        head_number = None
        if head != "*":
            head_number = int(head)

        edge = None
        if query is not None:
            edge = (int(query), int(key))

        return cls(int(layer), head_number, parse_value(value, edge is not None, text), edge, kind)

    def __str__(self) -> str:
        text = f"{self.layer}."
        if self.kind:
            text = f"{self.kind}:{text}"

        text += "*" if self.head is None else str(self.head)
        if self.edge:
            text += f":{self.edge[0]}>{self.edge[1]}"

        if isinstance(self.value, str):
            return f"{text}={self.value}"
        if self.value == 0:
            return f"{text}=off"

        return f"{text}={self.value:g}"


def parse_value(value: str, edge: bool, text: str) -> float | Pattern:
    """The value of an edit: off, a number, or without an edge a pattern."""
    if value == "off":
        return 0.0
    if not edge and value in PATTERNS:
        return value  # type: ignore[return-value]

    try:
        number = float(value)
    except ValueError:
        names = "off or a number" if edge else f"off, a number, {', '.join(PATTERNS)}"
        raise ValueError(f"change: {text!r}: expected {names} after the =, not {value!r}") from None

    if edge and not 0 <= number <= 1:
        raise ValueError(f"change: {text!r}: expected a weight of 0 to 1, not {value}")
    if not math.isfinite(number):
        raise ValueError(f"change: {text!r}: expected a finite number, not {value}")

    return number


@contextmanager
def apply_edits(model: Model, edits: Sequence[Edit]) -> Iterator[None]:
    """Apply edits to a model's attention while the context is open, in their order.

    Args:
        model: The model.
        edits: The edits.

    Returns:
        A context manager that restores the attention at its end.

    Raises:
        ValueError: If the model has no such layer, head or kind of attention.

    Example:
        >>> import torch
        >>> from qkv.insight import Edit, apply_edits
        >>> from qkv.models import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocabulary=9, width=8, heads=2, depth=1)).eval()
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> plain = model(ids)
        >>> with apply_edits(model, [Edit(0, None)]):
        ...     without_heads = model(ids)
        >>> torch.equal(plain, without_heads)
        False
    """
    with ExitStack() as hooks:
        for edit in edits:
            for point, hook in edit_hooks(model, edit):
                hooks.enter_context(require_hook(model, point, hook))

        yield


class EditHooks:
    """The hooks of one edit: on scores, on weights, or on the output of heads."""

    def __init__(self, edit: Edit, site: AttentionSite) -> None:
        self.edit = edit
        self.site = site
        self.heads = slice(None)
        if edit.head is not None:
            self.heads = slice(edit.head, edit.head + 1)

        self.steps = 0
        """Target tokens of an RNN that have attended so far: it attends once for each."""

    def restart(self, value: Tensor, name: str) -> None:
        """Hook on an RNN's encoder: a new forward pass begins."""
        self.steps = 0

    def query_positions(self, scores: Float[Tensor, "B H T S"]) -> Int[Tensor, "T"]:
        """The token of each row: in self-attention the last T of S tokens."""
        T, S = scores.shape[-2:]
        first = S - T
        if self.site.kind == "cross":
            first = self.steps
        if not self.site.point:
            self.steps += T

        return torch.arange(first, first + T, device=scores.device)

    def change_scores(
        self, scores: Float[Tensor, "B H T S"], name: str
    ) -> Float[Tensor, "B H T S"]:
        """Cut an edge or force a pattern: a score of minus infinity gives a weight of 0."""
        scores = scores.clone()
        query = self.query_positions(scores)
        selected = scores[:, self.heads]  # (B, h, T, S), a view
        if self.edit.edge is not None:
            position, key = self.edit.edge
            selected[:, :, query == position, key] = -math.inf
            return scores

        visible = ~selected.isneginf()
        selected.masked_fill_(visible, 0)
        if self.edit.value == "first":
            selected.masked_fill_(visible.cumsum(-1) > 1, -math.inf)
        elif self.edit.value == "previous":
            selected.masked_fill_(~previous(visible, query), -math.inf)

        return scores

    def set_weight(self, weights: Float[Tensor, "B H T S"], name: str) -> Float[Tensor, "B H T S"]:
        """Set the weight of the edge; the others of its row keep their proportions."""
        assert self.edit.edge is not None
        weights = weights.clone()
        query = self.query_positions(weights)
        position, key = self.edit.edge
        if not bool((query == position).any()):
            return weights

        value = float(self.edit.value)
        row = int((query == position).nonzero())
        selected = weights[:, self.heads, row]  # (B, h, S)
        rest = selected.sum(-1, keepdim=True) - selected[..., key : key + 1]
        scaled = selected * (1 - value) / rest.clamp(min=1e-30)
        selected = torch.where(rest > 0, scaled, selected)
        selected[..., key] = torch.where(rest[..., 0] > 0, value, selected[..., key])
        weights[:, self.heads, row] = selected

        return weights

    def scale_output(self, output: Float[Tensor, "B H *n"], name: str) -> Float[Tensor, "B H *n"]:
        """Multiply the output of the heads, or the context vector (B, 1, E) of an RNN."""
        output = output.clone()
        output[:, self.heads] *= float(self.edit.value)
        return output


def previous(visible: Bool[Tensor, "B H T S"], query: Int[Tensor, "T"]) -> Bool[Tensor, "B H T S"]:
    """The token before each query, or the query itself if that token is not visible."""
    key = torch.arange(visible.shape[-1], device=visible.device)
    before = visible & (key == query.unsqueeze(1) - 1)
    return before | (~before.any(-1, keepdim=True) & visible & (key == query.unsqueeze(1)))


def edit_hooks(
    model: Model, edit: Edit
) -> Iterator[tuple[str, Callable[[Tensor, str], Tensor | None]]]:
    """The hook points of an edit, each with its hook."""
    site = check_edit(model, edit)
    hooks = EditHooks(edit, site)
    if isinstance(edit.value, str) or (edit.edge is not None and edit.value == 0):
        yield site.hook_point(edit.layer, "scores"), hooks.change_scores
    elif edit.edge is not None:
        yield site.hook_point(edit.layer, "weights"), hooks.set_weight
    else:
        point = site.hook_point(edit.layer, "heads") if site.point else "context"
        yield point, hooks.scale_output

    if not site.point:
        yield "encoder", hooks.restart


# Checks


def check_edit(model: Model, edit: Edit, reading: Reading | None = None) -> AttentionSite:
    """Return the attention site of an edit.

    Raises:
        ValueError: If the model has no such site, layer or head, or the text no such token.
    """
    site = site_of(model, edit)
    for name, number, count in (
        ("layer", edit.layer, site.depth),
        ("head", edit.head, site.heads),
    ):
        if number is not None and number >= count:
            raise refusal(edit, f"expected a {name} of 0 to {count - 1}, not {number}")

    if edit.value == "previous" and site.kind == "cross":
        problem = "in cross-attention no key precedes the query; expected uniform or first"
        raise refusal(edit, problem)

    if edit.edge is not None:
        size = max(edit.edge) + 2  # with one later token, which a bidirectional model sees
        if reading is not None:
            size = check_edge_tokens(edit, edit.edge, site.kind, reading)
        if site.kind != "cross":
            check_edge_visible(model, edit, edit.edge, site.kind, size)

    return site


def refusal(edit: Edit, problem: str) -> ValueError:
    """The error for an edit that does not fit the model or the text."""
    return ValueError(f"change: {edit}: {problem}")


def site_of(model: Model, edit: Edit) -> AttentionSite:
    """The attention site that an edit names, or the only one of the model."""
    sites = {site.kind: site for site in attention_sites(model)}
    if edit.kind is None and len(sites) == 1:
        return next(iter(sites.values()))
    kinds = ", ".join(sites)
    if edit.kind is None:
        raise refusal(edit, f"specify which attention, as in cross:{edit}; one of {kinds}")
    if edit.kind not in sites:
        raise refusal(edit, f"this model has {kinds} attention, not {edit.kind}")

    return sites[edit.kind]


def check_edge_tokens(edit: Edit, edge: tuple[int, int], kind: str, reading: Reading) -> int:
    """Return the number of query tokens; raise if the text lacks one of the edge's tokens."""
    rows = reading.queries(kind)
    for position, side in zip(edge, (rows, reading.keys(kind)), strict=True):
        count = len(side.ids)
        if position < count:
            continue

        name = "source" if side is reading.source else "text"
        only = "only token 0"
        if count > 1:
            only = f"only {count:,} tokens, 0 to {count - 1}"

        raise refusal(edit, f"there is no token {position}, for the {name} has {only}")

    return len(rows.ids)


def check_edge_visible(
    model: Model, edit: Edit, edge: tuple[int, int], kind: str, size: int
) -> None:
    """Raise if the mask hides the key from the query, or the query sees only itself."""
    query, key = edge
    allowed = visible(model, kind, torch.tensor([query]), size)[0]  # (S,)
    causal = model.is_causal or kind == "decoder"
    token = f"token {query}"
    if not allowed[key] and causal and key > query:
        raise refusal(edit, f"{token} of a causal model cannot see token {key}, which comes later")
    if not allowed[key]:
        hidden = f"cannot see token {key}, which the model's mask hides from it"
        raise refusal(edit, f"{token} {hidden}")
    if int(allowed.sum()) == 1:
        alone = "sees only itself, with a weight of 1; use off for the whole head"
        raise refusal(edit, f"{token} {alone}")
