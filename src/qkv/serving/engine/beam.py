"""Beam search in the engine: a search's open beams are texts that run side by side, and branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    Reason,
    TokenLogprob,
)
from qkv.serving.engine.sequence import BeamSearchState, ServingSequence
from qkv.serving.http.error_log import ordinary

if TYPE_CHECKING:
    from qkv.serving.engine.engine import Engine


def advance(
    engine: Engine, logits: Float[Tensor, "M V"], texts: list[ServingSequence]
) -> tuple[Float[Tensor, "L V"], list[ServingSequence]]:
    """Searches choose which beams go on with which word; of the other texts, what they could say is
    left.
    """
    rest = [row for row, text in enumerate(texts) if text.search is None]
    for search in {
        id(text.search): text.search for text in texts if text.search is not None
    }.values():
        rows = [texts.index(beam) for beam in search.beams]
        first = search.beams[0]
        try:
            go_on(engine, search, search.advance(logits[torch.tensor(rows, device=logits.device)]))
        except BaseException as error:
            engine.fail(first, ordinary(error))

    return logits[torch.tensor(rest, dtype=torch.int64, device=logits.device)], [
        texts[row] for row in rest
    ]


def go_on(engine: Engine, search: BeamSearchState, chosen: Sequence[tuple[int, int]]) -> None:
    """Beams as old beam and new word: one that nobody goes on from leaves, one that several do has
    twins.
    """
    if not chosen:
        tell(engine, search)
        return

    old, runner = search.beams, engine.runner
    assert runner is not None
    goes_on = {number for number, _ in chosen}

    for number, beam in enumerate(old):
        if number not in goes_on:
            engine.scheduler.prune(beam, search)

    taken: set[int] = set()
    search.beams = []

    for number, _ in chosen:
        beam = old[number]
        if number in taken:
            twin, copied = engine.scheduler.branch(beam, search)
            runner.branch(beam, twin, copied)
            beam = twin

        taken.add(number)
        search.beams.append(beam)

    for beam, (_, word) in zip(search.beams, chosen, strict=True):
        beam.ids.append(word)
        beam.drawn, beam.speaks = beam.drawn + 1, True

    runner.hear(search.beams, torch.tensor([word for _, word in chosen], device=runner.device))


def tell(engine: Engine, search: BeamSearchState) -> None:
    """The best, each as a text of its own; those that were asked for and are not there, as nothing."""
    ticket, best = search.beams[0].ticket, search.sentence.best()
    assert isinstance(ticket.ask, GenerationRequest)
    engine.drop(ticket)
    engine.counts["finished"] += 1

    for row in range(ticket.ask.samples):
        if row >= len(best):
            engine.news(ticket, OutputChunk(row, "", [], "end", float("-inf")))
            continue

        ids, score, _ = best[row]
        reason: Reason = "length" if len(ids) >= search.length else "end"
        said = [TokenLogprob(id, None, []) for id in ids]
        engine.news(ticket, OutputChunk(row, engine.tokenizer.decode(ids), said, reason, score))
        engine.counts["said_tokens"] += len(ids)
