"""Beam search in the engine: a search's open beams are sequences that run side by side and fork."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.search.beams import SearchRule, SentenceBeams
from qkv.generation.stop import Reason
from qkv.serving.engine.generation_request import OutputChunk
from qkv.serving.engine.runners.runner import Runner
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import ServingSequence
from qkv.text.tokenizer import Tokenizer


class BeamSearch:
    """The strategy of a request with several beams."""

    def __init__(
        self, first: ServingSequence, scheduler: Scheduler, runner: Runner, tokenizer: Tokenizer
    ) -> None:
        """`first` is the sequence that the search starts from."""
        request = first.request
        self.request = request
        self.scheduler = scheduler
        self.runner = runner
        self.tokenizer = tokenizer
        self.sequences = [first]
        self.steps = 0
        self.max_tokens = first.max_new_tokens
        self.rule = SearchRule(
            end=request.end_ids[0],
            beams=request.beams,
            n_best=request.samples,
            length_penalty=request.length_penalty,
            minimum=request.sampling.minimum,
            forbidden=request.sampling.forbidden,
        )
        self.hypotheses = SentenceBeams(self.rule, self.max_tokens)

    def advance(self, logits: Float[Tensor, "R V"]) -> list[OutputChunk]:
        """Continue the best beams: fork some, and drop those that are not continued."""
        (chosen,) = self.rule.advance(logits, [self.hypotheses], self.steps)
        self.steps += 1
        if not chosen:
            return self.chunks()

        old_beams = self.sequences
        continued = {index for index, _ in chosen}
        for index, beam in enumerate(old_beams):
            if index not in continued:
                self.scheduler.finish(beam)

        # The first continuation keeps the beam's cache, every further one forks it
        self.sequences = []
        for index, _ in chosen:
            beam = old_beams[index]
            if beam in self.sequences:
                twin, copies = self.scheduler.fork(beam)
                self.runner.fork(beam, twin, copies)
                beam = twin

            self.sequences.append(beam)

        token_ids = [token_id for _, token_id in chosen]
        for beam, token_id in zip(self.sequences, token_ids, strict=True):
            beam.token_ids.append(token_id)
            beam.count_token()

        on_device = torch.tensor(token_ids, device=self.runner.device)
        self.runner.set_last_tokens(self.sequences, on_device)

        return []

    def chunks(self) -> list[OutputChunk]:
        """The best hypotheses, each as one chunk; empty chunks where the search has fewer."""
        best = self.hypotheses.best()
        chunks: list[OutputChunk] = []

        for sample in range(self.request.samples):
            if sample >= len(best):
                chunks.append(OutputChunk(sample, "", [], "end", float("-inf")))
                continue

            token_ids, score, _ = best[sample]
            reason: Reason = "length" if len(token_ids) >= self.max_tokens else "end"
            text = self.tokenizer.decode(token_ids)
            chunks.append(OutputChunk(sample, text, token_ids, reason, score))

        return chunks
