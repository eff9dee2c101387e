"""A sequence that is being generated: its tokens, its status and its blocks of the KV cache."""

from __future__ import annotations

import copy
import math
from enum import Enum, auto
from functools import cached_property
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from qkv.generation.sampling import UniformNumbers
from qkv.generation.sampling_params import BROKEN, NO_LIKELIEST, TokenCounts
from qkv.generation.stop import Reason, StopRule, StopStringFilter
from qkv.serving.engine.block_allocator import BlockAllocator, KnownPrefix
from qkv.serving.engine.generation_request import (
    Alternative,
    GenerationRequest,
    OutputChunk,
    RequestHandle,
    TokenLogprob,
)
from qkv.serving.engine.sequence_table import RowSettings, SequenceTable
from qkv.text.tokenizer import Tokenizer

ScoredToken = tuple[float, list[Alternative]]
"""The logprob and the alternatives of a sampled token."""


class SequenceStatus(Enum):
    """The life of a sequence; preemption takes it back to WAITING."""

    WAITING = auto()
    PREFILL = auto()
    """Admitted; some of its known tokens are not in the cache yet."""
    DECODE = auto()
    """Each step reads its last token and samples the next one."""
    FINISHED = auto()


TRANSITIONS = {
    SequenceStatus.WAITING: {SequenceStatus.PREFILL, SequenceStatus.FINISHED},
    SequenceStatus.PREFILL: set(SequenceStatus) - {SequenceStatus.PREFILL},
    SequenceStatus.DECODE: {SequenceStatus.WAITING, SequenceStatus.FINISHED},
    SequenceStatus.FINISHED: set(),
}


class Strategy(Protocol):
    """Advances sequences whose next token is not sampled, such as the beams of a search."""

    sequences: list[ServingSequence]
    """In the order of the rows of logits."""

    def advance(self, logits: Float[Tensor, "R V"]) -> list[OutputChunk]:
        """Read the next logits of all sequences; returns the last chunks when they are finished."""


class RowNumber:
    """A number of a sequence, kept in its row of the table while it has a slot."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.alone = f"{name}_alone"

    def __get__(self, sequence: ServingSequence, owner: type | None = None) -> int:
        if sequence.table is None:
            number: int = sequence.__dict__[self.alone]
            return number

        return int(getattr(sequence.table, self.name)[sequence.slot])

    def __set__(self, sequence: ServingSequence, number: int) -> None:
        if sequence.table is None:
            sequence.__dict__[self.alone] = number
        else:
            getattr(sequence.table, self.name)[sequence.slot] = number


class ServingSequence:
    """One sample of a request, or one beam of its search."""

    computed = RowNumber()
    """Number of positions in the cache, or being written by the current step."""
    generated = RowNumber()
    """Number of sampled tokens; the last one may still be on the device only."""
    chunk_start = RowNumber()
    """Where in its tokens the next chunk begins."""
    status = SequenceStatus.WAITING
    strategy: Strategy | None = None
    """None samples every token."""
    token_counts: TokenCounts | None = None
    pool: BlockAllocator | None = None
    """Where its slot and blocks come from; None while it waits."""
    table: SequenceTable | None = None
    """Where its numbers are while it has a slot."""
    slot: int | None = None

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
        request: GenerationRequest = handle.request
        self.handle = handle
        self.request = request
        self.sample = sample
        self.known_ids = token_ids
        self.prompt_length = len(token_ids)
        self.source = source
        """Source ids of a translator."""
        self.first_sample = first_sample
        """Waits until that sample has read the prompt, to share its cached blocks."""

        # Sampling
        self.rule = StopRule(request.end_ids, request.max_tokens, context_limit)
        self.max_new_tokens = request.max_tokens
        if context_limit is not None:
            self.max_new_tokens = min(request.max_tokens, context_limit - len(token_ids) + 1)

        self.deadline = math.inf if request.deadline is None else request.deadline
        self.uniforms = UniformNumbers(seed)
        self.counts_tokens = request.sampling.needs_counts
        self.samples_logits = samples_logits(request)
        """The token depends on the logits alone: a CUDA graph can sample it."""

        # Output
        self.text = StopStringFilter(tokenizer, request.stop)
        self.text_per_token = bool(request.stop) or request.logprobs is not None
        """Otherwise a chunk is turned into text at once, which is faster."""
        self.chunk_start = len(token_ids)
        self.text_end = len(token_ids)
        """Number of its tokens that `text` has read, unless `text_per_token`."""
        self.scored: list[TokenLogprob] = []
        """The tokens of the next chunk with their texts and logprobs, if `text_per_token`."""
        self.prompt_tokens: list[TokenLogprob] = []
        """The scored tokens of the prompt."""
        self.scores_prompt = request.prompt_logprobs is not None and first_sample is None
        self.reports_prompt = request.prompt_logprobs is not None
        """Whether the logprobs of the prompt are still to be sent."""
        if request.echoes and not self.scores_prompt:
            self.echo(first_sample)

        # KV cache
        self.prefix_key = repr(sorted(set(request.heads_off)))
        """Only sequences with equal ones share prefixes: ablated heads change the cached keys."""
        self.known_prefix = KnownPrefix(self.prefix_key)
        self.block_table: list[int] = []
        self.source_block_table: list[int] = []
        self.reset()

    def echo(self, first_sample: ServingSequence | None) -> None:
        """Begin the text with the prompt's; the first sample's is copied where it has one."""
        if first_sample is not None and not first_sample.scores_prompt:
            self.text.detokenizer = first_sample.text.detokenizer.copy()
            self.text.certain = list(first_sample.text.certain)
        else:
            self.text.add_tokens(self.token_ids)

    def reset(self) -> None:
        """Forget what is in the cache: the next prefill computes every known token again."""
        self.computed = 0
        self.generated = len(self.token_ids) - self.prompt_length
        self.model_state: Any = None
        """State of a model without pages: an RNN, or a Transformer-XL."""

    def change_status(self, status: SequenceStatus) -> None:
        """Change the status; raises RuntimeError if it cannot follow the present one."""
        if status not in TRANSITIONS[self.status]:
            raise RuntimeError(f"a sequence cannot go from {self.status.name} to {status.name}")

        self.status = status
        if self.table is not None:
            self.table.version += 1
        if status is SequenceStatus.WAITING:
            self.reset()

    # Its row of the table

    def join(self, table: SequenceTable, slot: int) -> None:
        """Move to a slot; the table then has its numbers."""
        relays = self.request.stream and not self.request.detokenize
        settings = RowSettings(
            max_new_tokens=self.max_new_tokens,
            end_ids=self.request.end_ids,
            filters=self.request.sampling.row_filters,
            uniforms=self.uniforms.between,
            samples_logits=self.samples_logits and self.strategy is None,
            collects=not self.text_per_token and self.strategy is None,
            streams=self.request.stream,
            ablated=bool(self.request.heads_off),
            outlet=self.handle.outlet if relays else None,
            number=self.handle.number + self.sample,
        )
        start = self.chunk_start
        table.join(slot, self.computed, self.generated, settings, chunk_start=start)
        table.hold_blocks(slot, self.block_table)
        self.table = table
        self.slot = slot

    def leave(self) -> int:
        """Give the slot back, which is returned, and take the numbers along."""
        assert self.table is not None
        assert self.slot is not None
        slot = self.slot
        self.add_buffered()
        computed = self.computed
        generated = self.generated
        chunk_start = self.chunk_start
        self.table.leave(slot)
        self.table = None
        self.slot = None
        self.computed = computed
        self.generated = generated
        self.chunk_start = chunk_start
        return slot

    def add_buffered(self) -> None:
        """Add the tokens that the table has buffered to the list."""
        if self.table is None or self.slot is None or not self.table.buffered[self.slot]:
            return

        self.known_ids += self.table.take_tokens(self.slot)

    @property
    def token_ids(self) -> list[int]:
        """Prompt and generated tokens that the host knows."""
        self.add_buffered()
        return self.known_ids

    @cached_property
    def sampling_key(self) -> str:
        """Sequences with equal keys are sampled together."""
        return repr((self.request.sampling, self.request.end_ids))

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
        return self.uniforms[self.generated]

    def count_token(self) -> None:
        """Count the next token as generated; it ends the prefill."""
        self.generated += 1
        if self.status is SequenceStatus.PREFILL:
            self.change_status(SequenceStatus.DECODE)

    def append_token(self, token_id: int, top: ScoredToken | None) -> Reason | None:
        """Add a sampled token; returns the reason to finish, if it is the last one.

        `top` has its logprob and alternatives, if they were requested.
        """
        if token_id == BROKEN:
            raise RuntimeError(NO_LIKELIEST)

        offset = 0
        if top is not None:
            offset = self.text.detokenizer.offset_of(token_id)

        stops = self.text.add_token if self.text_per_token else None
        reason = self.rule.append(self.token_ids, token_id, self.prompt_length, stops)
        if reason == "end":
            return reason

        if self.text_per_token:
            logprob, alternatives = top or (None, [])
            likely = alternatives[: self.request.logprobs]
            token = TokenLogprob(token_id, self.text.last, offset, logprob, likely)
            self.scored.append(token)

        if self.table is not None:
            self.table.received[self.slot] += 1

        return reason

    def take_chunk(self, reason: Reason | None) -> OutputChunk:
        """The output since the last chunk."""
        token_ids = self.token_ids[self.chunk_start :]
        self.chunk_start += len(token_ids)
        scored = None
        if self.text_per_token:
            scored = self.scored
            self.scored = []
        else:
            self.detokenize()

        if reason is not None:
            self.text.close()
            if self.text.stopped:
                reason = "stop"

        generated = len(self.token_ids) - self.prompt_length
        return OutputChunk(
            self.sample, self.text.take(), token_ids, reason, scored=scored, generated=generated
        )

    def detokenize(self) -> None:
        """Turn all known tokens into text; what is text already is not read again."""
        token_ids = self.token_ids
        if self.request.detokenize:
            self.text.add_tokens(token_ids[self.text_end :])

        self.text_end = len(token_ids)

    def take_prompt_chunk(self) -> OutputChunk:
        """The prompt with its logprobs."""
        self.reports_prompt = False
        tokens = self.prompt_tokens
        if self.first_sample is not None:
            tokens = self.first_sample.prompt_tokens

        token_ids = [token.id for token in tokens]
        return OutputChunk(
            self.sample, self.text.take(), token_ids, None, prompt=True, scored=tokens
        )

    def fork(self) -> ServingSequence:
        """A sequence with the same tokens, without a slot or blocks."""
        other = copy.copy(self)
        other.table = None
        other.slot = None
        other.known_ids = list(self.token_ids)
        other.computed = self.computed
        other.generated = self.generated
        other.chunk_start = self.chunk_start
        other.block_table = []
        other.source_block_table = []
        return other


def samples_logits(request: GenerationRequest) -> bool:
    """Whether the next token depends on the logits alone: no penalties, logprobs or search."""
    sampling = request.sampling
    if sampling.forbidden or sampling.forced or sampling.minimum or sampling.needs_counts:
        return False

    return request.logprobs is None and request.beams == 1 and not request.heads_off
