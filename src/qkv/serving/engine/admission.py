"""Admission: checks a request against the model and the cache, and creates its sequences."""

from __future__ import annotations

from typing import Any

from qkv.generation.generate import context_limit
from qkv.generation.sampling import row_seeds
from qkv.models import GPT
from qkv.models.model import Model
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle, RequestRefused
from qkv.serving.engine.scheduler import Scheduler
from qkv.serving.engine.sequence import BeamSearchState, ServingSequence
from qkv.text.tokenizer import Tokenizer


class Admission:
    """Decides which requests one model can serve; others are refused before they wait."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        *,
        depth: int,
        can_ablate: bool,
    ) -> None:
        """`depth` is the number of layers whose heads can be switched off, if `can_ablate`."""
        self.model = model
        self.tokenizer = tokenizer
        self.scheduler = scheduler
        self.depth = depth
        self.can_ablate = can_ablate
        self.context_limit: int | None
        if isinstance(model, GPT):
            self.context_limit = context_limit(model, "refuse")
        else:
            self.context_limit = getattr(model.config, "context", None)

    def create_sequences(self, handle: RequestHandle) -> list[ServingSequence]:
        """One sequence per sample; for a beam search, the one that it starts from."""
        request = handle.request
        assert isinstance(request, GenerationRequest)
        self.check(request)
        searches = request.beams > 1
        seeds = row_seeds(request.seed, request.samples)

        sequences: list[ServingSequence] = []
        for sample in range(1 if searches else request.samples):
            token_ids = list(request.prompt)
            source = None
            if not isinstance(self.model, GPT):
                source = token_ids
                token_ids = [self.start_id]

            sequence = ServingSequence(
                handle,
                sample,
                token_ids,
                self.tokenizer,
                seed=seeds[sample],
                context_limit=self.context_limit,
                source=source,
                first_sample=sequences[0] if sequences else None,
            )
            sequences.append(sequence)

        first = sequences[0]
        if searches:
            first.search = BeamSearchState(request, request.end_ids[0], first.max_new_tokens)

        self.check_fits_cache(first)

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
        self.check_prompt(request)
        self.check_beams(request)
        request.sampling.check(self.model.config.vocabulary, request.end_ids)
        self.check_heads_off(request)

    def check_prompt(self, request: GenerationRequest) -> None:
        config: Any = self.model.config
        vocabulary = getattr(config, "source_vocabulary", None) or config.vocabulary
        length = len(request.prompt)
        if not length:
            raise ValueError("prompt: expected one token or more")
        if min(request.prompt) < 0 or max(request.prompt) >= vocabulary:
            raise ValueError(f"prompt: expected ids from 0 to {vocabulary - 1}")
        if self.context_limit is not None and length > self.context_limit:
            raise ValueError(
                f"prompt: {length:,} tokens are more than the model's context of "
                f"{self.context_limit:,}; shorten it"
            )

    def check_beams(self, request: GenerationRequest) -> None:
        searches = request.beams > 1
        if request.max_tokens < int(searches):
            raise ValueError(f"max_tokens: expected 1 or more, not {request.max_tokens}")
        if not searches:
            return

        scored = request.prompt_logprobs is not None
        if len(request.end_ids) != 1 or request.stop or request.heads_off or scored:
            raise ValueError(
                "beams: a beam search needs one end id, and supports neither stop strings, "
                "prompt logprobs nor heads_off"
            )

    def check_heads_off(self, request: GenerationRequest) -> None:
        if not request.heads_off:
            return
        if not self.can_ablate:
            family = type(self.model).__name__
            raise ValueError(f"heads_off: not supported while a {family} generates; leave it out")

        config: Any = self.model.config
        for layer, head in request.heads_off:
            if not (0 <= layer < self.depth and 0 <= head < config.heads):
                raise ValueError(
                    f"heads_off: expected a layer of 0 to {self.depth - 1} and a head of 0 to "
                    f"{config.heads - 1}, not {layer}.{head}"
                )

    def check_fits_cache(self, sequence: ServingSequence) -> None:
        """Raise ValueError if the sequence does not fit into the cache even when it runs alone."""
        scheduler = self.scheduler
        beams = 1
        if sequence.search is not None:
            beams = sequence.search.rule.beams

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
