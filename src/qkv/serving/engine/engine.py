"""The engine of one model with continuous batching: schedule, run, postprocess.

Requests join and leave between any two steps. On a GPU, decoding runs one step ahead of the host:
sampled tokens stay on the device, where the next step reads them, and the extra token of a
finished sequence is discarded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.models import GPT, RNN, Transformer
from qkv.models.model import Model
from qkv.serving.engine.admission import Admission
from qkv.serving.engine.beam import BeamSearcher
from qkv.serving.engine.block_allocator import BlockAllocator
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    JobResult,
    RequestHandle,
    RequestRefused,
)
from qkv.serving.engine.output_processor import Emit, OutputProcessor
from qkv.serving.engine.prefill_budget import PrefillBudget
from qkv.serving.engine.prompt_logprobs import score_prompts, wants_prompt_logprobs
from qkv.serving.engine.runner import PagedRunner
from qkv.serving.engine.sampler import LaunchedStep, launch_copy, sample_isolated
from qkv.serving.engine.scheduler import ScheduledStep, Scheduler
from qkv.serving.engine.sequence import ServingSequence
from qkv.serving.engine.stateful_runner import StatefulRunner
from qkv.serving.error_log import as_exception
from qkv.text.tokenizer import Tokenizer

COUNTERS = ("steps", "prompt_tokens", "said_tokens", "finished", "cancelled", "failed", "refused")
"""Names of the Prometheus counters."""
PREFILL_TOKENS = {"cpu": 512, "cuda": 8192}
"""Prompt tokens per step by device."""


class Engine:
    """Serves the requests and jobs of one model; a single thread calls `step`."""

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
        """Create an engine; a model that generates nothing only runs jobs.

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
        self.jobs: deque[tuple[RequestHandle, Callable[[Model, Tokenizer], Any]]] = deque()
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.pending: LaunchedStep | None = None
        self.runner: PagedRunner | StatefulRunner | None = None
        if not isinstance(model, GPT | Transformer | RNN):
            return

        # Runner: paged unless the model has a state of its own
        state_blocks = None
        if isinstance(model, RNN) or (isinstance(model, GPT) and model.config.memory):
            self.runner = StatefulRunner(model, cache, rows)
            state_blocks = self.runner.state_blocks
        else:
            self.runner = PagedRunner(model, cache, rows)

        paged = isinstance(self.runner, PagedRunner)

        # Scheduler and admission
        self.scheduler = Scheduler(
            BlockAllocator(range(1, self.runner.blocks)),
            rows,
            tokens or PREFILL_TOKENS.get(self.runner.device.type, 512),
            chunk_multiple=self.runner.chunk_multiple,
            prefix_caching=paged and isinstance(model, GPT),
            state_blocks=state_blocks,
            flush=self.postprocess,
        )
        self.admission = Admission(
            model, tokenizer, self.scheduler, depth=self.runner.depth, can_ablate=paged
        )
        self.output = OutputProcessor(self.scheduler, tokenizer, emit, self.counts)
        self.searcher = BeamSearcher(
            self.scheduler, self.runner, self.output.finish_search, self.output.fail
        )
        self.prefill_budget = PrefillBudget(self.scheduler.max_prefill_tokens)
        self.runs_ahead = paged and self.runner.device.type == "cuda"

    # Requests

    def check(self, request: GenerationRequest) -> None:
        """Raise an error if the request can never be served; any thread may call this."""
        if self.runner is None:
            family = type(self.model).__name__
            raise RequestRefused(
                400,
                f"model: a {family} does not generate text; GET /v1/models lists what it can do",
            )

        self.admission.check(request)

    def add_request(self, handle: RequestHandle) -> None:
        """Add a request to the queue; raises an error if it can never be served."""
        assert isinstance(handle.request, GenerationRequest)
        self.check(handle.request)
        self.scheduler.waiting += self.admission.create_sequences(handle)

    @property
    def waiting(self) -> int:
        """Number of requests and jobs that have not started."""
        count = len(self.jobs)
        if self.runner is not None:
            # A copy: other threads read this while the queue changes.
            for sequence in list(self.scheduler.waiting):
                count += sequence.first_sample is None

        return count

    @property
    def busy(self) -> bool:
        """Whether there is any work."""
        if self.jobs:
            return True
        if self.runner is None:
            return False

        return bool(self.scheduler.running or self.scheduler.waiting or self.pending)

    # A step

    def step(self, *, short: bool = False) -> bool:
        """Run one job and one step of the batch; returns whether there was any work.

        A `short` step is for a thread that other models wait for: it reads fewer prompt tokens and
        does not run ahead, so that its time is all that it costs.
        """
        worked = self.run_job()
        if self.runner is None:
            return worked

        self.end_aborted_and_late()
        if short:
            self.postprocess()

        # Schedule
        began = time.monotonic()
        batch = self.scheduler.schedule(self.prefill_budget.tokens if short else None)
        if not batch:
            return self.postprocess() or worked

        # Run
        self.counts["steps"] += 1
        launched = self.run_isolated(batch)

        # Postprocess the step before, while this one runs; this one too, if nothing runs ahead
        self.postprocess()
        self.pending = launched
        waits = short or not self.runs_ahead
        if waits or any(sequence.search is not None for sequence in batch.sequences):
            self.postprocess()

        if waits:
            self.prefill_budget.measure(batch.prefill_tokens, time.monotonic() - began)

        return True

    def run_job(self) -> bool:
        """Run the next job; returns whether there was one."""
        if not self.jobs:
            return False

        handle, work = self.jobs.popleft()
        if handle.aborted:
            return True

        self.postprocess()

        try:
            self.emit(handle, JobResult(work(self.model, self.tokenizer)))
        except BaseException as error:
            self.emit(handle, as_exception(error))

        return True

    def run_isolated(self, batch: ScheduledStep) -> LaunchedStep | None:
        """Run a step; if it fails, run its sequences one by one: only the faulty ones fail."""
        before = []
        for sequence in batch.sequences:
            before.append((sequence, sequence.computed, sequence.model_state))

        try:
            return self.run(batch)
        except BaseException as failure:
            error = as_exception(failure)
            if len({sequence.handle.id for sequence in batch.sequences}) == 1:
                self.output.fail(batch.sequences[0], error)
                return None

        # Undo the failed attempt
        for sequence, computed, state in before:
            sequence.computed = computed
            sequence.model_state = state

        self.postprocess()

        for part in batch.split():
            self.pending = None
            if not part.sequences[0].finished:
                self.pending = self.run_isolated(part)

            self.postprocess()

        return None

    @torch.inference_mode()
    def run(self, batch: ScheduledStep) -> LaunchedStep:
        """Launch a forward pass and sample the next tokens, without waiting for the device."""
        assert self.runner is not None

        # Greedy decoding: one CUDA graph samples and stores the tokens
        token_ids = self.runner.decode_greedy(batch)
        if token_ids is not None:
            for sequence in batch.decode:
                sequence.computed += 1
                sequence.generated += 1

            return launch_copy(batch.decode, token_ids, {})

        # Forward pass
        sequences = batch.decode + batch.completed_prefill
        logits = self.forward(batch)
        self.advance_positions(batch)

        # Sample
        if any(sequence.search is not None for sequence in sequences):
            logits, sequences = self.searcher.advance(logits, sequences)

        logits, sequences = self.finish_prompts(logits, sequences)
        sequences, token_ids, logprobs = sample_isolated(logits, sequences, self.output.fail)
        if sequences:
            self.runner.set_last_tokens(sequences, token_ids)

        for row, sequence in enumerate(sequences):
            if sequence.token_counts is not None:
                sequence.token_counts.add(token_ids[row : row + 1])

            sequence.generated += 1
            sequence.start_decoding()

        return launch_copy(sequences, token_ids, logprobs)

    def forward(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        """Logits of the next token of each sequence whose known tokens are all read."""
        assert self.runner is not None
        if not wants_prompt_logprobs(batch):
            return self.runner.run(batch)

        hidden = self.runner.hidden(batch)
        score_prompts(batch, hidden, self.runner.model.logits)
        for sequence in batch.completed_prefill:
            if sequence.new_tokens and not sequence.generated:
                self.emit(sequence.handle, sequence.take_chunk(None))

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

    def finish_prompts(
        self, logits: Float[Tensor, "M V"], sequences: list[ServingSequence]
    ) -> tuple[Float[Tensor, "L V"], list[ServingSequence]]:
        """Finish sequences that only read their prompt; returns the rows that are sampled."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.request.max_tokens]
        if len(rows) == len(sequences):
            return logits, sequences

        for sequence in sequences:
            if not sequence.request.max_tokens:
                self.output.finish(sequence, sequence.take_chunk("length"))

        index = torch.tensor(rows, dtype=torch.int64, device=logits.device)
        return logits[index], [sequences[row] for row in rows]

    # Output

    def postprocess(self) -> bool:
        """Read the tokens of the last step, and emit chunks; returns whether there was a step."""
        launched = self.pending
        self.pending = None
        if launched is None:
            return False

        self.output.process(launched)
        return True

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
        if self.runner is None:
            return

        sequences = self.sequences()
        for handle in unique(sequence.handle for sequence in sequences):
            if handle.aborted:
                self.counts["cancelled"] += 1
                self.output.drop(handle)

        now = time.monotonic()
        late: list[ServingSequence] = []
        for sequence in sequences:
            if (sequence.request.deadline or now) < now and not sequence.finished:
                late.append(sequence)

        if late:
            self.postprocess()

        for sequence in late:
            if not sequence.finished:
                self.output.finish_late(sequence)

    def sequences(self) -> list[ServingSequence]:
        """All running and waiting sequences."""
        if self.runner is None:
            return []

        return self.scheduler.sequences()

    def handles(self) -> list[RequestHandle]:
        """All requests and jobs that are not answered yet."""
        handles = [sequence.handle for sequence in self.sequences()]
        handles += [handle for handle, _ in self.jobs]
        return unique(handles)

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by the names that Prometheus sees."""
        metrics: dict[str, float] = {**self.counts, "waiting": self.waiting, "running": 0}
        if self.runner is not None:
            scheduler = self.scheduler
            metrics["running"] = len(scheduler.running)
            metrics["blocks_total"] = scheduler.blocks.total
            metrics["blocks_used"] = scheduler.blocks.used
            metrics["preempted"] = scheduler.preempted
            metrics["shared_tokens"] = scheduler.shared_tokens
            metrics["cache_bytes"] = self.runner.nbytes

        return metrics


def unique(handles: Any) -> list[RequestHandle]:
    """Each handle once, in order."""
    return list({handle.id: handle for handle in handles}.values())
