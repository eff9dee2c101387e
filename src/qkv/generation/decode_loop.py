"""The decode loop: prefill the prompts, then one token per row and decode step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.padding import pad_rows
from qkv.generation.generation_batch import GenerationBatch, Steps
from qkv.generation.prefill import next_logits
from qkv.generation.sampling_params import process_logits, sample_tokens
from qkv.nn.decode.cpu_block import CpuBlocks
from qkv.nn.linear.onednn import Prepacked, prepacking, small_enough
from qkv.nn.native.native_library import most_float_rows

# On a CPU, prepacking the weights pays from this many rows or tokens on.
MANY_ROWS = 4
MANY_TOKENS = 16


class DecodeLoop:
    """Generates the tokens of a batch; rows leave it when they have ended.

    Args:
        model: A GPT, Transformer, RNN or ensemble.
        start: Makes an empty state for the prompts of the batch.
        batch: What to generate; its caller adds each step to it.
    """

    def __init__(self, model: Any, start: Callable[[], Any], batch: GenerationBatch) -> None:
        self.model = model
        self.start = torch.no_grad()(start)
        self.batch = batch
        self.device = next(model.parameters()).device
        self.running = batch.running
        self.counts = batch.token_counts(self.running, model.config.vocabulary, self.device)
        self.blocks = CpuBlocks(model)
        self.matrices: Prepacked | None = None
        rows = len(self.running)
        many = rows >= MANY_ROWS and rows > most_float_rows() and batch.length >= MANY_TOKENS
        if many and small_enough(model):
            self.matrices = {}

    def steps(self) -> Steps:
        """The running rows and their tokens, step by step; at least one row must run."""
        # Samples of one prompt share its prefill; rows that have generated tokens differ.
        samples = 1 if self.batch.steps else self.batch.samples
        self.prefill(self.running[::samples])

        for step in range(self.batch.steps, self.batch.length):
            logits = self.forward()
            if samples > 1:
                logits = self.repeat(logits, samples)
                samples = 1

            tokens = self.sample(logits, step)
            yield self.running, tokens.tolist()

            tokens = self.drop_ended(tokens)
            if not self.running:
                return

            self.prepare_next(tokens)

    def prefill(self, rows: list[int]) -> None:
        """Begin a new state with the prompts of these rows."""
        self.state = self.start()
        prompts = list(map(self.batch.within_context, rows))
        self.ids, self.padding_mask = pad_rows(prompts, left=True, device=self.device)

    def forward(self) -> Float[Tensor, "B V"]:
        packed = nullcontext() if self.matrices is None else prepacking(self.matrices)
        with packed, self.blocks.installed():
            return next_logits(self.model, self.ids, self.state, self.padding_mask)

    def repeat(self, logits: Float[Tensor, "P V"], samples: int) -> Float[Tensor, "B V"]:
        """Let every sample continue from the cache of its prompt."""
        prompt = torch.arange(len(self.running), device=self.device) // samples
        self.state.reorder(prompt)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask[prompt]

        return logits[prompt]

    def sample(self, logits: Float[Tensor, "B V"], step: int) -> Int[Tensor, "B"]:
        params = self.batch.sampling_params
        logits = process_logits(logits, params, self.counts, step, self.batch.ends)
        # A copy: Triton compiles a kernel again for numbers at an address of another alignment.
        numbers = self.batch.uniforms[:, step].clone()  # (rows of the batch,)
        if len(self.running) < len(numbers):
            numbers = numbers[self.running]  # (B,)

        tokens = sample_tokens(logits, numbers, params)
        if self.counts is not None:
            self.counts.add(tokens)

        return tokens

    def drop_ended(self, tokens: Int[Tensor, "B"]) -> Int[Tensor, "R"]:
        """Remove the rows that have ended, and return the tokens of the others."""
        indices = [at for at, row in enumerate(self.running) if row not in self.batch.ended]
        if len(indices) == len(self.running):
            return tokens

        self.running = self.batch.running
        if not indices:
            return tokens[:0]

        rows = torch.tensor(indices, device=self.device)
        self.state.reorder(rows)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask[rows]

        if self.counts is not None:
            self.counts.reorder(rows)

        return tokens[rows]

    def prepare_next(self, tokens: Int[Tensor, "B"]) -> None:
        """The input of the next step: the new tokens, or a new prefill if the context is full."""
        if self.batch.limit is not None and self.state.length == self.batch.limit:
            self.prefill(self.running)
            return

        self.ids = tokens.unsqueeze(1)  # (B, 1)
        if self.padding_mask is not None:
            new = self.padding_mask.new_ones(len(tokens), 1)
            self.padding_mask = torch.cat([self.padding_mask, new], dim=1)  # (B, S + 1)
