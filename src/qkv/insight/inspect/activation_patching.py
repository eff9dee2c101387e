"""Activation patching: which activations of a model carry an answer?

Two prompts of equal length have different answers, the clean and the corrupted one. The model reads
the corrupted prompt, but one activation is replaced by its value for the clean prompt. The result
is the share of the clean answer that this restores: 0 is none, 1 is all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading, ids_of
from qkv.insight.inspect.upper_layers import chunks_of, copies_per_pass, starting_at
from qkv.models.model import Model, backbone_of
from qkv.models.sites import attention_sites, stack_with
from qkv.nn.hooks import add_hook, capture
from qkv.text.printable import printable

PatchSite = Literal["residual", "heads", "feed_forward"]
POINTS = {
    "residual": "after",
    "heads": "attention.heads",
    "feed_forward": "feed_forward.hidden",
}
SAME = 1e-5
"""Relative difference up to which two answers count as equal (rounding)."""


class PatchResult(NamedTuple):
    """The result of activation patching."""

    at: PatchSite
    kind: str
    """self, or for a translator encoder, decoder or cross."""
    restored: Float[Tensor, "L N"]
    """Share of the clean answer that is restored, by layer and token, or by layer and head."""
    clean: float
    """The measure for the clean prompt."""
    corrupted: float
    """The measure for the corrupted prompt."""
    measure: str
    """difference (of the logits of two tokens), or probability (of one)."""
    answer: int
    against: int | None


def patch(
    model: Model,
    clean: Reading,
    corrupted: Reading,
    answer: int | None = None,
    against: int | None = None,
    at: PatchSite = "residual",
    progress: Callable[[int, int], None] | None = None,
    *,
    place: int | None = None,
    kind: str | None = None,
) -> PatchResult:
    """Patch every activation of one kind from the clean into the corrupted prompt, one at a time.

    Args:
        model: A GPT, BERT or translator.
        clean: The clean prompt, from `read`.
        corrupted: A prompt with as many tokens and another answer.
        answer: The token id of the clean answer; default the likeliest token.
        against: A token id whose logit is subtracted; without it the measure is a probability.
        at: The activation: the residual stream after a layer or the feed-forward hidden layer (one
            token at a time), or a head's output (at all tokens).
        progress: Called with the number of finished layers and of all layers.
        place: The position of the answer; default the last. A BERT needs it.
        kind: For a translator encoder (default), decoder, or with heads cross.

    Returns:
        The restored share of the answer by layer and token, or by layer and head.

    Raises:
        ValueError: If the prompts do not fit each other or the model, or have the same answer.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> clean = insight.read(model, tokenizer, "the cat")
        >>> corrupted = insight.read(model, tokenizer, "on cat")
        >>> insight.patch(model, clean, corrupted, at="heads").restored.shape
        torch.Size([1, 2])
    """
    kind = check_kind(model, at, kind)
    check_lengths(clean, corrupted)
    position = answer_position(model, clean, place)

    with torch.no_grad(), without_dropout(model):
        run = PatchRun(model, kind, at, position, against)
        run.read(clean, corrupted, answer)
        layers = []
        for layer in range(len(run.blocks)):
            layers.append(run.patch_layer(layer))
            if progress is not None:
                progress(layer + 1, len(run.blocks))

    return run.result(layers)


@dataclass(eq=False)
class PatchRun:
    """Captures both prompts, then patches the corrupted one layer by layer."""

    model: Model
    kind: str
    at: PatchSite
    position: int
    against: int | None

    def read(self, clean: Reading, corrupted: Reading, answer: int | None) -> None:
        """Run both prompts, and measure them; raise if their answers do not differ."""
        stack = stack_with(self.model, self.kind)
        self.blocks = stack.blocks
        self.arguments = ids_of(self.model, corrupted)
        self.point = "cross_attention.heads" if self.kind == "cross" else POINTS[self.at]

        # Tokens or heads of a layer, and how many of them are patched in one forward pass
        tokens = len(corrupted.queries(self.kind).ids)
        self.choices = tokens
        if self.at == "heads":
            self.choices = attention_sites(self.model)[0].heads

        self.rows = copies_per_pass(tokens, next(self.model.parameters()).device)

        # Both prompts once, for the clean activations and the corrupted block inputs
        self.names = [f"blocks.{layer}.{self.point}" for layer in range(len(self.blocks))]
        with capture_required(stack, self.names) as self.clean_values:
            logits = logits_at(self.model, ids_of(self.model, clean), self.position)  # (1, V)

        self.answer = int(logits.argmax()) if answer is None else answer
        self.clean = float(self.measure(logits))
        with capture(backbone_of(self.model), "*blocks.*.before") as self.block_inputs:
            logits = logits_at(self.model, self.arguments, self.position)

        self.corrupted = float(self.measure(logits))
        difference = abs(self.clean - self.corrupted)
        if difference <= SAME * max(abs(self.clean), abs(self.corrupted)):
            raise ValueError(
                "corrupted: the answer is the same as after the clean prompt, so there is nothing "
                "to restore; change a token that it depends on"
            )

    def measure(self, logits: Float[Tensor, "R V"]) -> Float[Tensor, "R"]:
        """The probability of the answer, or its logit minus that of `against`."""
        logits = logits.cpu().double()
        if self.against is None:
            return logits.softmax(-1)[:, self.answer]

        return logits[:, self.answer] - logits[:, self.against]

    def patch_layer(self, layer: int) -> Float[Tensor, "N"]:
        """The measure after patching each token, or each head, of a layer: one in each row."""
        clean = self.clean_values[self.names[layer]]
        parts = []
        for chosen in chunks_of(self.choices, self.rows):
            hook = partial(replace_values, clean=clean, chosen=chosen)
            with (
                starting_at(self.model, self.kind, layer, self.block_inputs, len(chosen)),
                add_hook(self.blocks[layer], self.point, hook),
            ):
                logits = logits_at(self.model, self.arguments, self.position, len(chosen))

            parts.append(self.measure(logits))

        return torch.cat(parts)

    def result(self, layers: list[Float[Tensor, "N"]]) -> PatchResult:
        """The restored share of the clean answer."""
        restored = (torch.stack(layers) - self.corrupted) / (self.clean - self.corrupted)  # (L, N)
        return PatchResult(
            self.at,
            self.kind,
            restored.float(),
            self.clean,
            self.corrupted,
            "probability" if self.against is None else "difference",
            self.answer,
            self.against,
        )


def replace_values(
    value: Float[Tensor, "R *n"], name: str, *, clean: Float[Tensor, "1 *n"], chosen: range
) -> Float[Tensor, "R *n"]:
    """Hook: row r gets the clean value of the r-th chosen token or head (dimension 1)."""
    value = value.clone()
    for row, index in enumerate(chosen):
        value[row, index] = clean[0, index]

    return value


def logits_at(
    model: Model, arguments: dict[str, Tensor], position: int, rows: int = 1
) -> Float[Tensor, "R V"]:
    """The logits at one position, for a number of copies of a prompt."""
    copies = {name: ids.expand(rows, -1) for name, ids in arguments.items()}
    return model.logits(model.hidden(**copies)[:, position])


# Checks


def check_kind(model: Model, at: str, kind: str | None) -> str:
    """Return the kind of attention that is patched, or raise if the model has no such site."""
    if model.predicts is None:
        raise ValueError(
            "model: patching needs a predicted token, and this model predicts none; expected a "
            "GPT, BERT or translator"
        )
    if at not in get_args(PatchSite):
        raise ValueError(f"at: expected one of {', '.join(get_args(PatchSite))}, not {at!r}")

    stack_with(model, "decoder")  # raises for an RNN, which has no layers
    kinds = [site.kind for site in attention_sites(model)]
    if kind is None:
        kind = kinds[0]

    if kind not in kinds:
        raise ValueError(f"kind: this model has {', '.join(kinds)}, not {kind}")
    if kind == "cross" and at != "heads":
        raise ValueError(f"kind: cross-attention has heads alone; expected at = heads, not {at}")

    return kind


def check_lengths(clean: Reading, corrupted: Reading) -> None:
    """Raise if the prompts have different numbers of tokens."""
    sides = (("text", clean.text, corrupted.text), ("source", clean.source, corrupted.source))
    for name, one, other in sides:
        if one is None or other is None or len(one.ids) == len(other.ids):
            continue

        clean_tokens = printable(" | ".join(one.tokens))
        corrupted_tokens = printable(" | ".join(other.tokens))
        raise ValueError(
            f"corrupted: its {name} has {len(other.ids)} tokens and the clean one {len(one.ids)}; "
            f"each needs a counterpart: {corrupted_tokens}; clean: {clean_tokens}"
        )


def answer_position(model: Model, clean: Reading, place: int | None) -> int:
    """The position of the answer: the given one, or the last."""
    last = len(clean.text.ids) - 1
    if place is None and model.predicts == "masked":
        raise ValueError(
            "place: a BERT predicts a token at every position; expected the position of the "
            "answer, such as that of its mask"
        )
    if place is None:
        return last
    if not 0 <= place <= last:
        raise ValueError(f"place: expected 0 to {last}, not {place}")

    return place
