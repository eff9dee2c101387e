"""Activation patching: where in the model does an answer come from?

Two prompts of equal length have different answers. The model reads the corrupted one, but at one
place it gets what it had there when it read the clean one; and it is measured how much of the clean
answer comes back: 0 is none, 1 is all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.heads.upper_layers import at_once, stack_with, starting_at
from qkv.insight.inspect.capture import attention_sites
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.logit_lens import predicts_tokens
from qkv.insight.inspect.model_input import Reading, hidden_of, ids_of
from qkv.models import BERT, TaskModel
from qkv.models.registry import Model, backbone_of
from qkv.nn.hooks import add_hook, capture
from qkv.text.printable import printable

At = Literal["residual", "heads", "feed_forward"]
SAME = 1e-5  # answers that differ by no more than this part of them are alike, but for rounding


class Patched(NamedTuple):
    at: At
    kind: str
    """self, or of a translator encoder, decoder, cross."""
    restored: Float[Tensor, "L N"]
    """By layer and token, or by layer and head: how much of the clean answer comes back."""
    clean: float
    corrupted: float
    """What is measured of each prompt by itself."""
    measure: str
    """difference, of the logits of two tokens; or probability, of one."""
    answer: int
    against: int | None


def patch(
    model: Model,
    clean: Reading,
    corrupted: Reading,
    answer: int | None = None,
    against: int | None = None,
    at: At = "residual",
    progress: Callable[[int, int], None] | None = None,
    *,
    place: int | None = None,
    kind: str | None = None,
) -> Patched:
    """(L, T): one token's residual stream after a layer, or what its feed-forward layer says; (L,
    H): a head's output at all tokens.

    `answer` is what the clean prompt should lead to, its likeliest token unless given. What is
    measured is its logit less that of `against`, or, without that, its probability; at `place`, the
    last one unless given. A BERT needs one. Of a translator, `kind` says whose: encoder (unless
    given), decoder, or with heads cross.
    """
    kind = check(model, clean, corrupted, at, place, kind)
    place = len(clean.text.ids) - 1 if place is None else place
    point = {
        "residual": "after",
        "heads": "attention.heads",
        "feed_forward": "feed_forward.hidden",
    }[at]
    point = "cross_attention.heads" if kind == "cross" else point
    blocks = stack_with(model, kind).blocks

    with torch.no_grad(), without_dropout(model):
        names = [f"blocks.{layer}.{point}" for layer in range(len(blocks))]
        with capture_required(stack_with(model, kind), names) as wanted:
            right = logits_at(model, ids_of(model, clean), place)  # (1, V)

        with capture(backbone_of(model), "*blocks.*.before") as seen:
            wrong = logits_at(model, ids_of(model, corrupted), place)

        answer = int(right.argmax()) if answer is None else answer
        measured = partial(measure, answer=answer, against=against)
        high, low = float(measured(right)), float(measured(wrong))
        if abs(high - low) <= SAME * max(abs(high), abs(low)):
            raise ValueError(
                "corrupted: the answer is the same as after the clean prompt, so there is nothing to bring back; "
                "change a word that it hangs on"
            )

        source = kind == "encoder"
        tokens = (
            len(corrupted.source.ids)
            if source and corrupted.source is not None
            else len(corrupted.text.ids)
        )
        choices = attention_sites(model)[0].heads if at == "heads" else tokens
        rows = at_once(tokens, next(model.parameters()).device)
        found = []
        for layer, block in enumerate(blocks):
            parts = []
            for first in range(0, choices, rows):
                chosen = range(first, min(first + rows, choices))
                put = partial(put_in, clean=wanted[f"blocks.{layer}.{point}"], chosen=chosen)
                with (
                    starting_at(model, kind, layer, seen, len(chosen)),
                    add_hook(block, point, put),
                ):
                    parts.append(
                        measured(logits_at(model, ids_of(model, corrupted), place, len(chosen)))
                    )

            found.append(torch.cat(parts))  # (N,)
            if progress is not None:
                progress(layer + 1, len(blocks))

    restored = (torch.stack(found) - low) / (high - low)  # (L, N)
    name = "probability" if against is None else "difference"

    return Patched(at, kind, restored.float(), high, low, name, answer, against)


def put_in(
    value: Float[Tensor, "R *n"], name: str, *, clean: Float[Tensor, "1 *n"], chosen: range
) -> Float[Tensor, "R *n"]:
    """Each row gets what the clean prompt had at another token, or of another head; both are the
    second dimension.
    """
    value = value.clone()
    for row, one in enumerate(chosen):
        value[row, one] = clean[0, one]

    return value


def logits_at(
    model: Any, given: dict[str, Tensor], place: int, rows: int = 1
) -> Float[Tensor, "R V"]:
    """What is said at a place, in so many copies of a prompt."""
    copies = {name: ids.expand(rows, -1) for name, ids in given.items()}
    hidden = hidden_of(model, copies)  # (R, T, E)
    return model.logits(hidden[:, place])


def measure(
    logits: Float[Tensor, "R V"], *, answer: int, against: int | None
) -> Float[Tensor, "R"]:
    logits = logits.cpu().double()
    return (
        logits.softmax(-1)[:, answer] if against is None else logits[:, answer] - logits[:, against]
    )


def check(
    model: Model, clean: Reading, corrupted: Reading, at: str, place: int | None, kind: str | None
) -> str:
    """A sentence for what cannot be patched; the kind that is meant."""
    if isinstance(model, TaskModel) or not predicts_tokens(model):
        raise ValueError(
            "model: patching asks for a word, and this model says none; expected a GPT, BERT or translator"
        )
    if at not in get_args(At):
        raise ValueError(f"at: expected one of {', '.join(get_args(At))}, not {at!r}")

    stack_with(model, "decoder")  # says that an RNN has no layers
    kinds = [each.kind for each in attention_sites(model)]
    kind = kinds[0] if kind is None else kind
    if kind not in kinds:
        raise ValueError(f"kind: this model has {', '.join(kinds)}, not {kind}")
    if kind == "cross" and at != "heads":
        raise ValueError(f"kind: cross-attention has heads alone; expected at = heads, not {at}")

    for name, one, other in (
        ("text", clean.text, corrupted.text),
        ("source", clean.source, corrupted.source),
    ):
        if one is not None and other is not None and len(one.ids) != len(other.ids):
            parts = [printable(" | ".join(each.tokens)) for each in (other, one)]
            raise ValueError(
                f"corrupted: its {name} has {len(other.ids)} tokens and the clean one {len(one.ids)}; each needs a "
                f"counterpart: {parts[0]}; clean: {parts[1]}"
            )

    if place is None and isinstance(model, BERT):
        raise ValueError(
            "place: a BERT says a word at every place; expected the one that is asked, such as its mask"
        )
    if place is not None and not 0 <= place < len(clean.text.ids):
        raise ValueError(f"place: expected 0 to {len(clean.text.ids) - 1}, not {place}")

    return kind
