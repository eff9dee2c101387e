"""The engine of one model with continuous batching: schedule, run, postprocess.

Requests join and leave between any two steps. On a GPU, decoding runs one step ahead of the host:
sampled tokens stay on the device, where the next step reads them, and the extra token of a
finished sequence is discarded.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models.model import Model
from qkv.serving.engine.admission import Admission
from qkv.serving.engine.beam import BeamSearch
from qkv.serving.engine.block_allocator import BlockAllocator
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    RequestHandle,
    RequestRefused,
)
from qkv.serving.engine.output_processor import Emit, OutputProcessor
from qkv.serving.engine.prefill_budget import PrefillBudget
from qkv.serving.engine.prompt_logprobs import PromptOnly, score_prompts
from qkv.serving.engine.runners.runner import PagedRunner, Runner
from qkv.serving.engine.runners.stateful_runner import StatefulRunner
from qkv.serving.engine.sampler import (
    LaunchedStep,
    Logprobs,
    launch_copy,
    sample_isolated,
    to_device,
)
from qkv.serving.engine.scheduler import ScheduledStep, Scheduler
from qkv.serving.engine.sequence import ServingSequence, Strategy
from qkv.serving.engine.sequence_table import SequenceTable
from qkv.serving.error_log import as_exception
from qkv.text.tokenizer import Tokenizer

COUNTERS = ("steps", "prompt_tokens", "said_tokens", "finished", "cancelled", "failed", "refused")
"""Names of the Prometheus counters."""
PREFILL_TOKENS = {"cpu": 512, "cuda": 8192}
"""Prompt tokens per step by device."""


class Engine:
    """Serves the requests of one model; a single thread calls `step`."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        emit: Emit,
        *,
        cache: int = 1 << 30,
        rows: int = 64,
        tokens: int | None = None,
    ) -> None:
        """Create an engine; a model that generates nothing has jobs only.

        Args:
            model: The model, in evaluation mode.
            tokenizer: Its tokenizer.
            emit: Called with every update of a request.
            cache: Bytes of KV cache.
            rows: Sequences that run at once.
            tokens: Prompt tokens per step at most; None chooses by device.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.emit = emit
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.pending: list[LaunchedStep] = []
        """Steps whose tokens are not read yet."""

        # Runner: paged unless the model has a state of its own
        self.generates = model.predicts in ("next", "target")
        paged = self.generates and model.uses_kv_cache
        table = SequenceTable(rows)
        self.runner = Runner(model, table)
        prefill_tokens = tokens or PREFILL_TOKENS.get(self.runner.device.type, 512)
        if paged:
            self.runner = PagedRunner(model, table, cache, rows, prefill_tokens)
        elif self.generates:
            self.runner = StatefulRunner(model, table, cache)

        # Scheduler and admission
        self.scheduler = Scheduler(
            BlockAllocator(range(1, self.runner.blocks), reversed(range(rows))),
            table,
            rows,
            prefill_tokens,
            self.postprocess,
            self.runner.chunk_multiple,
            prefix_caching=paged and not model.has_source,
            state_blocks=self.runner.state_blocks,
        )
        self.admission = Admission(model, tokenizer, self.scheduler, self.runner.depth)
        self.output = OutputProcessor(self.scheduler, table, emit, self.counts)
        self.prefill_budget = PrefillBudget(self.scheduler.max_prefill_tokens)
        self.runs_ahead = paged and self.runner.device.type == "cuda"

    # Requests

    def check(self, request: GenerationRequest) -> None:
        """Raise an error if the request can never be served; any thread may call this."""
        if not self.generates:
            family = type(self.model).__name__
            raise RequestRefused(
                400,
                f"model: a {family} does not generate text; GET /v1/models lists what it can do",
            )

        self.admission.check(request)

    def add_request(self, handle: RequestHandle) -> None:
        """Add a checked request to the queue; raises ValueError if the cache is too small."""
        sequences = self.admission.create_sequences(handle)
        for sequence in sequences:
            if sequence.request.beams > 1:
                sequence.strategy = BeamSearch(
                    sequence, self.scheduler, self.runner, self.tokenizer
                )
            elif not sequence.request.max_tokens:
                sequence.strategy = PromptOnly(sequence)

        self.scheduler.waiting += sequences

    @property
    def waiting_requests(self) -> list[RequestHandle]:
        """The requests that have not started."""
        # A copy: other threads read this while the queue changes.
        sequences = list(self.scheduler.waiting)
        return [sequence.handle for sequence in sequences if sequence.first_sample is None]

    @property
    def waiting(self) -> int:
        """Number of requests that have not started."""
        return len(self.waiting_requests)

    @property
    def busy(self) -> bool:
        """Whether there is any work."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.pending)

    # A step

    def step(self, *, short: bool = False) -> bool:
        """Run one step of the batch; returns whether there was any work.

        A `short` step is for a thread that other models wait for: it reads fewer prompt tokens and
        does not run ahead, so that its time is all that it costs.
        """
        self.end_aborted_and_late()
        if short:
            self.postprocess()

        # Schedule
        began = time.monotonic()
        batch = self.scheduler.schedule(self.prefill_budget.tokens if short else None)
        if not batch:
            return self.postprocess()

        # Run
        self.counts["steps"] += 1
        launched: list[LaunchedStep] = []
        first, *rest = self.parts(batch)
        launched += self.run_isolated(first)
        for part in rest:
            # A failure of the first part may have ended sequences of this one
            launched += self.run_isolated(part if launched else part.unfinished())

        # Postprocess the step before, while this one runs; this one too, if nothing runs ahead
        self.postprocess()
        self.pending = launched
        if short or not self.runs_ahead:
            self.postprocess()
            self.prefill_budget.measure(batch.prefill_tokens, time.monotonic() - began)

        return True

    def parts(self, batch: ScheduledStep) -> list[ScheduledStep]:
        """The step, or its prompts and its decoding by themselves, if a CUDA graph decodes."""
        if not batch.prefill or not self.runner.decodes_alone(batch):
            return [batch]

        return [
            ScheduledStep([], batch.prefill),
            ScheduledStep(batch.decode, [], batch.slots),
        ]

    def run_isolated(self, batch: ScheduledStep) -> list[LaunchedStep]:
        """Run a step; if it fails, run its requests one by one: only the faulty ones fail.

        Returns the step that was started, unless its tokens have been read already.
        """
        table = self.runner.table
        computed = table.computed.copy()
        states: dict[ServingSequence, Any] = {}
        if self.runner.has_states:
            states = {sequence: sequence.model_state for sequence in batch.sequences}

        try:
            return [self.run(batch)] if batch else []
        except BaseException as failure:
            error = as_exception(failure)
            sequences = batch.sequences
            if len({sequence.handle for sequence in sequences}) == 1:
                self.output.fail(sequences[0], error)
                return []

        # Undo the failed attempt
        table.computed[:] = computed
        for sequence, state in states.items():
            sequence.model_state = state

        self.postprocess()

        for part in batch.split():
            self.pending = self.run_isolated(part)
            self.postprocess()

        return []

    @torch.inference_mode()
    def run(self, batch: ScheduledStep) -> LaunchedStep:
        """Launch a forward pass and sample the next tokens, without waiting for the device."""
        table = self.runner.table
        if batch.prefill and self.runner.samples_prefill(batch):
            return self.run_prefill(batch)
        if batch.prefill or not self.runner.samples_decode(batch):
            sequences, token_ids, logprobs = self.run_and_sample(batch)
            slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
            return launch_copy(sequences, slots, table.owner[slots], token_ids, logprobs)

        # One CUDA graph samples and stores the tokens
        token_ids = self.runner.decode(batch)
        table.advance(batch.slots)

        return launch_copy(batch.decode, batch.slots, table.owner[batch.slots], token_ids, {})

    def run_prefill(self, batch: ScheduledStep) -> LaunchedStep:
        """Read prompts by one CUDA graph, which samples and stores their next tokens."""
        table = self.runner.table
        completed = batch.completed_prefill
        token_ids = self.runner.prefill(batch)
        self.advance_positions(batch)
        for sequence in completed:
            sequence.count_token()

        slots = np.array([sequence.slot for sequence in completed], dtype=np.int64)
        return launch_copy(completed, slots, table.owner[slots], token_ids, {})

    def run_and_sample(
        self, batch: ScheduledStep
    ) -> tuple[list[ServingSequence], Int[Tensor, "M"], Logprobs]:
        """The sequences that got a token, the tokens, and the logprobs that were requested."""
        # Forward pass
        sequences = batch.decode + batch.completed_prefill
        logits = self.forward(batch)
        self.advance_positions(batch)

        # Sample
        logits, sequences = self.advance_strategies(logits, sequences)
        sequences, token_ids, logprobs = sample_isolated(logits, sequences, self.output.fail)
        if sequences:
            self.runner.set_last_tokens(sequences, token_ids)

        for row, sequence in enumerate(sequences):
            if sequence.token_counts is not None:
                sequence.token_counts.add(token_ids[row : row + 1])

            sequence.count_token()

        return sequences, token_ids, logprobs

    def forward(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        """Logits of the next token of each sequence whose known tokens are all read."""
        if not any(sequence.reports_prompt for sequence, _ in batch.prefill):
            return self.runner.run(batch)

        hidden = self.runner.hidden(batch)
        score_prompts(batch, hidden, self.model.logits)
        for sequence in batch.completed_prefill:
            if sequence.reports_prompt:
                self.emit(sequence.handle, sequence.take_prompt_chunk())

        return self.runner.logits(batch, hidden)

    def advance_positions(self, batch: ScheduledStep) -> None:
        """Count the new tokens as computed, and make finished prompts available as prefixes."""
        completed = batch.completed_prefill
        for sequence, count in batch.new_tokens:
            sequence.computed += count
            if not sequence.decoding:
                self.counts["prompt_tokens"] += count

        for sequence in completed:
            self.scheduler.cache_prefix(sequence)

    def advance_strategies(
        self, logits: Float[Tensor, "M V"], sequences: list[ServingSequence]
    ) -> tuple[Float[Tensor, "L V"], list[ServingSequence]]:
        """Advance the sequences with a strategy; returns the rows and sequences to sample."""
        strategies: dict[int, Strategy] = {}
        sampled: list[int] = []
        for row, sequence in enumerate(sequences):
            if sequence.strategy is None:
                sampled.append(row)
            else:
                strategies[id(sequence.strategy)] = sequence.strategy

        for strategy in strategies.values():
            first = strategy.sequences[0]
            rows = list(map(sequences.index, strategy.sequences))
            try:
                chunks = strategy.advance(logits[to_device(rows, logits.device)])
                if chunks:
                    self.counts["said_tokens"] += sum(len(chunk.token_ids) for chunk in chunks)
                    self.output.finish(strategy.sequences, chunks)
            except BaseException as error:
                self.output.fail(first, as_exception(error))

        if strategies:
            logits = logits[to_device(np.array(sampled, dtype=np.int64), logits.device)]

        return logits, [sequences[row] for row in sampled]

    # Output

    def postprocess(self) -> bool:
        """Read the tokens of the last step, and emit chunks; returns whether there was a step."""
        pending = self.pending
        self.pending = []
        for launched in pending:
            self.output.process(launched)

        return bool(pending)

    # Aborts and deadlines

    def catch_up(self, *, others: bool) -> bool:
        """Do what must not wait for this model's next step: deadlines, aborts and pending tokens.

        Tokens of a step that ran ahead are read only while `others` wait for the thread. Returns
        whether there were any.
        """
        self.end_aborted_and_late()
        return others and self.postprocess()

    def end_aborted_and_late(self) -> None:
        """Drop requests whose client is gone, and end those whose deadline has passed."""
        sequences = self.sequences()
        aborted = [sequence.handle for sequence in sequences if sequence.handle.aborted]
        for handle in dict.fromkeys(aborted):
            self.counts["cancelled"] += 1
            self.output.drop(handle)

        now = time.monotonic()
        late = [sequence for sequence in sequences if sequence.deadline < now]
        if late:
            self.postprocess()

        for sequence in late:
            if not sequence.finished:
                self.output.finish_late(sequence)

    def sequences(self) -> list[ServingSequence]:
        """All running and waiting sequences."""
        return self.scheduler.sequences()

    def handles(self) -> list[RequestHandle]:
        """All requests that are not answered yet."""
        return list(dict.fromkeys(sequence.handle for sequence in self.sequences()))

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by the names that Prometheus sees."""
        scheduler = self.scheduler
        metrics: dict[str, float] = {**self.counts, "waiting": self.waiting}
        metrics["running"] = len(scheduler.running)
        if self.generates:
            metrics["blocks_total"] = scheduler.blocks.total
            metrics["blocks_used"] = scheduler.blocks.used
            metrics["preempted"] = scheduler.preempted
            metrics["shared_tokens"] = scheduler.shared_tokens
            metrics["cache_bytes"] = self.runner.nbytes

        return metrics
