"""A sequence that is being generated: its tokens, its status and its blocks of the KV cache."""

from __future__ import annotations

import copy
from enum import Enum, auto
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from qkv.generation.sampling_params import BROKEN, NO_LIKELIEST, SamplingParams, TokenCounts
from qkv.generation.search.beam_search import SearchRule, SentenceBeams
from qkv.generation.stop import StopStringFilter
from qkv.serving.engine.block_allocator import BlockAllocator
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    OutputChunk,
    Reason,
    RequestHandle,
    TokenLogprob,
)
from qkv.text.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0)


class SequenceStatus(Enum):
    """The life of a sequence; preemption takes it back to WAITING."""

    WAITING = auto()
    PREFILL = auto()
    """Admitted; some of its known tokens are not in the cache yet."""
    DECODE = auto()
    """Each step reads its last token and samples the next one."""
    FINISHED = auto()


class ServingSequence:
    """One sample of a request, or one beam of its search."""

    def __init__(
        self,
        handle: RequestHandle,
        sample: int,
        token_ids: list[int],
        tokenizer: Tokenizer,
        *,
        seed: int,
        context_limit: int | None,
        source: list[int] | None = None,
        first_sample: ServingSequence | None = None,
    ) -> None:
        assert isinstance(handle.request, GenerationRequest)
        self.handle = handle
        self.request = handle.request
        self.sample = sample
        self.token_ids = token_ids
        self.prompt_length = len(token_ids)
        self.context_limit = context_limit
        self.source = source
        """Source ids of a translator."""
        self.first_sample = first_sample
        """Waits until that sample has read the prompt, to share its cached blocks."""

        self.max_new_tokens = self.request.max_tokens
        if context_limit is not None:
            self.max_new_tokens = min(self.max_new_tokens, context_limit - len(token_ids) + 1)

        # Sampling
        sampling = self.request.sampling
        self.seed = seed
        self.rng: np.random.Generator | None = None
        self.uniforms: list[float] = []
        self.sampling_key = repr((sampling, self.request.end_ids))
        """Sequences with equal keys are sampled together."""
        self.counts_tokens = sampling.needs_counts
        self.greedy = self.request.logprobs is None and sampling == GREEDY
        """Plain argmax without logprobs, which a CUDA graph can compute by itself."""
        self.token_counts: TokenCounts | None = None
        self.search: BeamSearchState | None = None

        # Output
        self.stop_filter = StopStringFilter(tokenizer, self.request.stop)
        self.detokenized = len(token_ids)
        """Number of ids already detokenised."""
        self.prompt_scored = 0
        """Number of prompt tokens whose logprobs are reported."""
        self.new_tokens: list[TokenLogprob] = []
        """Tokens since the last chunk."""

        # KV cache
        self.prefix_key = repr(sorted(set(self.request.heads_off)))
        """Only sequences with equal ones share prefixes: ablated heads change the cached keys."""
        self.slot: int | None = None
        self.block_table: list[int] = []
        self.source_block_table: list[int] = []
        self.model_state: Any = None
        """State of a model without pages: an RNN, or a Transformer-XL."""
        self.reset()

    def reset(self) -> None:
        """Wait, with nothing in the cache: the next prefill computes every known token again."""
        self.status = SequenceStatus.WAITING
        self.computed = 0
        """Number of positions in the cache, or being written by the current step."""
        self.generated = len(self.token_ids) - self.prompt_length
        """Number of sampled tokens; the last one may still be on the device only."""
        self.model_state = None

    def start_decoding(self) -> None:
        """Leave prefill after the first sampled token; a finished sequence stays finished."""
        if self.status is SequenceStatus.PREFILL:
            self.status = SequenceStatus.DECODE

    @property
    def decoding(self) -> bool:
        return self.status is SequenceStatus.DECODE

    @property
    def finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens, including those that only the device has."""
        return self.prompt_length + self.generated

    @property
    def at_max_tokens(self) -> bool:
        """Whether its last token is sampled, even if the host has not read it yet."""
        return self.generated >= self.max_new_tokens

    def uniform(self) -> float:
        """The uniform number that the next token is drawn by; the same when a step is repeated."""
        if self.rng is None:
            self.rng = np.random.default_rng(self.seed)

        while len(self.uniforms) <= self.generated:
            self.uniforms.append(1 - self.rng.random())

        return self.uniforms[self.generated]

    def append_token(self, token_id: int, token: TokenLogprob) -> Reason | None:
        """Add a sampled token; returns the reason to finish, if it is the last one."""
        if token_id == BROKEN:
            raise RuntimeError(NO_LIKELIEST)
        if token_id in self.request.end_ids:
            return "end"

        self.token_ids.append(token_id)
        self.new_tokens.append(token)
        if self.request.stop:
            self.detokenize()
            if self.stop_filter.stopped:
                return "stop"

        if len(self.token_ids) - self.prompt_length >= self.request.max_tokens:
            return "length"
        if self.context_limit is not None and len(self.token_ids) > self.context_limit:
            return "context"

        return None

    def detokenize(self) -> None:
        """Turn all ids since the last call into text at once, which is faster than one by one."""
        if self.detokenized < len(self.token_ids):
            self.stop_filter.add_tokens(self.token_ids[self.detokenized :])
            self.detokenized = len(self.token_ids)

    def take_chunk(self, reason: Reason | None) -> OutputChunk:
        """The output since the last chunk."""
        self.detokenize()
        if reason is not None:
            self.stop_filter.close()
            if self.stop_filter.stopped:
                reason = "stop"

        tokens = self.new_tokens
        self.new_tokens = []
        return OutputChunk(self.sample, self.stop_filter.take(), tokens, reason)

    def fork(self) -> ServingSequence:
        """A sequence with the same tokens, without a slot or blocks."""
        other = copy.copy(self)
        other.token_ids = list(self.token_ids)
        other.new_tokens = []
        other.slot = None
        other.block_table = []
        other.source_block_table = []
        return other


class BeamSearchState:
    """A beam search in the engine: its open beams are sequences of the same batch."""

    def __init__(self, request: GenerationRequest, end_id: int, max_tokens: int) -> None:
        self.rule = SearchRule(
            end=end_id,
            beams=request.beams,
            n_best=request.samples,
            length_penalty=request.length_penalty,
            penalty="paper",
            minimum=request.sampling.minimum,
            forbidden=request.sampling.forbidden,
            groups=1,
            diversity=0.0,
        )

        self.max_tokens = max_tokens
        self.steps = 0
        self.hypotheses = SentenceBeams(self.rule, max_tokens)
        self.beams: list[ServingSequence] = []
        self.blocks: BlockAllocator | None = None
        """Blocks reserved while the search runs: as many as its beams can need."""
        self.slots: list[int] = []
        """Reserved slots that no beam uses."""

    def advance(self, logits: Float[Tensor, "R V"]) -> list[tuple[int, int]]:
        """Continuations as (beam, token id); none when the search is over."""
        (chosen,) = self.rule.advance(logits, [self.hypotheses], self.steps)
        self.steps += 1
        return chosen
