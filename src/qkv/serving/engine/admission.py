"""Admission: checks a request against the model and the cache, and creates its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.generation.generate import context_limit
from qkv.generation.sampling import row_seeds
from qkv.models.model import Model
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle, RequestRefused
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import ServingSequence
from qkv.text.tokenizer import Tokenizer

MAX_SEQUENCE = 65_536
"""Tokens of a prompt, or of an output, in a model without a context limit."""


@dataclass
class Admission:
    """Decides which requests one model can serve; others are refused before they wait."""

    model: Model
    tokenizer: Tokenizer
    scheduler: Scheduler
    depth: int
    """Layers whose heads can be switched off."""

    def create_sequences(self, handle: RequestHandle) -> list[ServingSequence]:
        """One sequence per sample; for a beam search, the one that it starts from."""
        request: GenerationRequest = handle.request
        samples = 1 if request.beams > 1 else request.samples
        seeds = [0] * samples
        if request.sampling.temperature:
            seeds = row_seeds(request.seed, request.samples)

        sequences: list[ServingSequence] = []
        for sample in range(samples):
            token_ids = list(request.prompt)
            source = None
            if self.model.has_source:
                source = token_ids
                token_ids = [self.start_id]

            sequence = ServingSequence(
                handle,
                sample,
                token_ids,
                self.tokenizer,
                seed=seeds[sample],
                context_limit=context_limit(self.model, "refuse"),
                source=source,
                first_sample=sequences[0] if sequences else None,
            )
            sequences.append(sequence)

        self.check_fits_cache(sequences[0])

        return sequences

    @property
    def start_id(self) -> int:
        if self.tokenizer.start is None:
            raise RequestRefused(
                400, "model: its tokenizer has no start token, so it cannot translate"
            )

        return self.tokenizer.start

    def check(self, request: GenerationRequest) -> None:
        """Raise ValueError if the model can never serve the request."""
        check_prompt(self.model, request.prompt, request.prompt_name)
        self.check_beams(request)
        request.sampling.check(self.model.config.vocabulary, request.end_ids)
        self.check_heads_off(request)

    def check_beams(self, request: GenerationRequest) -> None:
        searches = request.beams > 1
        if request.max_tokens < int(searches):
            raise ValueError(f"max_tokens: expected 1 or more, not {request.max_tokens}")
        if searches and (
            len(request.end_ids) != 1 or request.stop or request.heads_off or request.echoes
        ):
            raise ValueError(
                "beams: a beam search needs one end id, and supports neither stop strings, "
                "prompt logprobs nor heads_off"
            )

    def check_heads_off(self, request: GenerationRequest) -> None:
        if not request.heads_off:
            return
        if not self.depth:
            family = type(self.model).__name__
            raise ValueError(f"heads_off: not supported while a {family} generates; leave it out")

        heads = self.model.config.heads
        for layer, head in request.heads_off:
            if not (0 <= layer < self.depth and 0 <= head < heads):
                raise ValueError(
                    f"heads_off: expected a layer of 0 to {self.depth - 1} and a head of 0 to "
                    f"{heads - 1}, not {layer}.{head}"
                )

    def check_fits_cache(self, sequence: ServingSequence) -> None:
        """Raise ValueError if the sequence does not fit into the cache even when it runs alone."""
        scheduler = self.scheduler
        beams = sequence.request.beams
        if beams > scheduler.max_sequences:
            raise ValueError(
                f"beams: expected at most {scheduler.max_sequences}, the number of sequences "
                f"that run at once, not {beams}"
            )

        needed = scheduler.max_blocks(sequence) * beams + scheduler.source_blocks(sequence)
        total = scheduler.blocks.total
        if needed > total:
            raise ValueError(
                f"max_tokens: prompt and output need {needed:,} blocks of the cache, which has "
                f"{total:,}; ask for fewer tokens, or serve with a larger --cache"
            )


def check_prompt(model: Model, ids: Sequence[int], field: str) -> None:
    """Raise ValueError if a model cannot read a prompt: its ids, or its length."""
    config: Any = model.config
    if not ids:
        raise ValueError(f"{field}: expected one token or more")

    check_ids(ids, getattr(config, "source_vocabulary", None) or config.vocabulary, field)
    limit = context_limit(model, "refuse")
    if limit is not None and len(ids) > limit:
        raise ValueError(
            f"{field}: {len(ids):,} tokens are more than the model's context of {limit:,}; "
            "shorten it"
        )
    if len(ids) > MAX_SEQUENCE:
        raise ValueError(
            f"{field}: {len(ids):,} tokens are more than the server's limit of {MAX_SEQUENCE:,}; "
            "shorten it"
        )


def check_ids(ids: Sequence[int], vocabulary: int, field: str) -> None:
    """Raise ValueError if an id is not in the vocabulary."""
    for id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= id < vocabulary:
            raise ValueError(
                f"{field}: expected ids below the vocabulary's {vocabulary:,}, from 0 to "
                f"{vocabulary - 1:,}, not {id:,}"
            )


def max_new_tokens(model: Model, ids: Sequence[int], wanted: int) -> int:
    """The number of new tokens to request: as many as wanted, but at most one more than fit.

    By the extra token the engine tells "context" from "length". The last token of a sequence is
    never read, so it needs no position.
    """
    limit = context_limit(model, "refuse")
    if limit is None:
        return min(wanted, MAX_SEQUENCE)

    return min(wanted, limit - len(ids) + 2)
