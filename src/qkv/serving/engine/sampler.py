"""From logits to words: every text by its own settings, and those with the same ones together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.sampling import distribution
from qkv.generation.sampling_params import (
    BROKEN,
    SamplingParams,
    TokenCounts,
    processed,
    sample_tokens,
)
from qkv.serving.engine.generation_request import Alternative, TokenLogprob
from qkv.serving.engine.sequence import ServingSequence


class Top(NamedTuple):
    """What was likely where a text said its word; of the likeliest first, each (k,)."""

    own: Float[Tensor, ""]
    ids: Int[Tensor, "k"]
    logprobs: Float[Tensor, "k"]
    probabilities: Float[Tensor, "k"]

    def said(self, word: int) -> TokenLogprob:
        both = zip(
            self.ids.tolist(), self.logprobs.tolist(), self.probabilities.tolist(), strict=True
        )
        return TokenLogprob(word, self.own.item(), [Alternative(*each) for each in both])


def words_of(
    logits: Float[Tensor, "M V"], texts: Sequence[ServingSequence]
) -> tuple[Int[Tensor, "M"], dict[int, Top]]:
    """A word for each text, on the device; and for those that ask, by their row, what else was
    likely.
    """
    device = logits.device
    words = torch.empty(len(texts), dtype=torch.int64, device=device)
    tops: dict[int, Top] = {}

    for rows in alike(texts):
        together = len(rows) == len(texts)
        some = logits if together else logits[brought(rows, device)]
        ask = texts[rows[0]].ask
        heard = (
            remembered(texts[rows[0]], logits.shape[1], device) if ask.choice.remembers else None
        )
        allowed = processed(some, ask.choice, heard, texts[rows[0]].place, ask.ends)
        uniform = some[:, 0]
        if ask.choice.temperature:
            uniform = brought([texts[row].uniform() for row in rows], device)

        chosen = sample_tokens(allowed, uniform, ask.choice)
        if together:
            words = chosen
        else:
            words[brought(rows, device)] = chosen

        for at, row in enumerate(rows):
            if texts[row].ask.top is not None:
                tops[row] = top(
                    some[at], allowed[at], chosen[at], ask.choice, texts[row].ask.top or 0
                )

    return words, tops


def brought(numbers: Sequence[int] | Sequence[float], device: torch.device) -> Tensor:
    """Numbers of the host's on the device; a GPU's host does not wait until they are there."""
    exact = torch.float64 if numbers and isinstance(numbers[0], float) else torch.int64
    cuda = device.type == "cuda"
    return torch.tensor(numbers, dtype=exact, pin_memory=cuda).to(device, non_blocking=cuda)


def alike(texts: Sequence[ServingSequence]) -> list[list[int]]:
    """Rows that choose in the same way; a text that must not repeat itself is by itself."""
    found: dict[object, list[int]] = {}
    for row, text in enumerate(texts):
        choice, place = text.ask.choice, text.place
        stage = (
            place if place in choice.forced else place < choice.minimum
        )  # other places are alike
        found.setdefault((text.key, stage, row if text.remembers else None), []).append(row)

    return list(found.values())


def remembered(text: ServingSequence, vocabulary: int, device: torch.device) -> TokenCounts:
    """Its words so far; kept with it from its first word on."""
    if text.heard is None:
        text.heard = TokenCounts(
            torch.tensor([text.ids[: text.prompt]], device=device), None, vocabulary
        )
        for word in text.ids[text.prompt :]:
            text.heard.said[0, word] += 1

    return text.heard


def top(
    logits: Float[Tensor, "V"],
    allowed: Float[Tensor, "V"],
    word: Tensor,
    choice: SamplingParams,
    count: int,
) -> Top:
    logprobs = logits.float().log_softmax(-1)
    likeliest, ids = logprobs.topk(min(count, len(logprobs)))
    if choice.temperature == 0:
        drawn = (ids == allowed.argmax()).float()
    else:
        filters = {"top_k": choice.top_k, "top_p": choice.top_p, "min_p": choice.min_p}
        drawn = distribution(allowed.unsqueeze(0), temperature=choice.temperature, **filters)[
            0, ids
        ]

    own = logprobs[word.clamp(min=0)].where(word != BROKEN, torch.nan)

    return Top(own, ids, likeliest, drawn)
