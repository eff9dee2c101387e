"""Beam search in the engine: a search's open beams are sequences that run side by side and fork."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.serving.engine.generation_request import OutputChunk, Reason, TokenLogprob
from qkv.serving.engine.runner import PagedRunner
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import BeamSearchState, ServingSequence
from qkv.serving.engine.stateful_runner import StatefulRunner
from qkv.serving.error_log import as_exception
from qkv.text.tokenizer import Tokenizer


class BeamSearcher:
    """Advances all beam searches of a step."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PagedRunner | StatefulRunner,
        on_finish: Callable[[BeamSearchState], None],
        on_error: Callable[[ServingSequence, Exception], None],
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.on_finish = on_finish
        self.on_error = on_error

    def advance(
        self, logits: Float[Tensor, "M V"], sequences: list[ServingSequence]
    ) -> tuple[Float[Tensor, "L V"], list[ServingSequence]]:
        """Advance each search by a token; returns the rows and sequences that are not beams."""
        searches: dict[int, BeamSearchState] = {}
        other_rows: list[int] = []
        for row, sequence in enumerate(sequences):
            if sequence.search is None:
                other_rows.append(row)
            else:
                searches[id(sequence.search)] = sequence.search

        for search in searches.values():
            rows = [sequences.index(beam) for beam in search.beams]
            first = search.beams[0]
            try:
                self.extend(search, search.advance(logits[rows_tensor(rows, logits)]))
            except BaseException as error:
                self.on_error(first, as_exception(error))

        others = [sequences[row] for row in other_rows]
        return logits[rows_tensor(other_rows, logits)], others

    def extend(self, search: BeamSearchState, chosen: Sequence[tuple[int, int]]) -> None:
        """Continue beams as (beam, token id): fork some, drop those that are not continued."""
        if not chosen:
            self.on_finish(search)
            return

        old_beams = search.beams
        continued = {index for index, _ in chosen}
        for index, beam in enumerate(old_beams):
            if index not in continued:
                self.scheduler.prune(beam, search)

        # The first continuation keeps the beam's cache, every further one forks it
        search.beams = []
        used: set[int] = set()
        for index, _ in chosen:
            beam = old_beams[index]
            if index in used:
                twin, copies = self.scheduler.fork(beam, search)
                self.runner.fork(beam, twin, copies)
                beam = twin

            used.add(index)
            search.beams.append(beam)

        token_ids: list[int] = []
        for beam, (_, token_id) in zip(search.beams, chosen, strict=True):
            beam.token_ids.append(token_id)
            beam.generated += 1
            beam.start_decoding()
            token_ids.append(token_id)

        on_device = torch.tensor(token_ids, device=self.runner.device)
        self.runner.set_last_tokens(search.beams, on_device)


def rows_tensor(rows: list[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device)


def search_chunks(search: BeamSearchState, samples: int, tokenizer: Tokenizer) -> list[OutputChunk]:
    """The best hypotheses, each as one chunk; empty chunks where the search has fewer."""
    best = search.hypotheses.best()
    chunks: list[OutputChunk] = []

    for sample in range(samples):
        if sample >= len(best):
            chunks.append(OutputChunk(sample, "", [], "end", float("-inf")))
            continue

        token_ids, score, _ = best[sample]
        reason: Reason = "length" if len(token_ids) >= search.max_tokens else "end"
        tokens = [TokenLogprob(token_id, None, []) for token_id in token_ids]
        chunks.append(OutputChunk(sample, tokenizer.decode(token_ids), tokens, reason, score))

    return chunks
