"""Steps in which every text says one word, on a GPU: recorded once for so many texts, then replayed
(a CUDA graph).

Launched one by one, the kernels of a small model leave the GPU waiting for the host. Texts come and
go between two replays: which ones they are, where they stand and where their words go are numbers
that the recording reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.sampling_params import sample_tokens
from qkv.models import GPT
from qkv.nn.attention.kernels.decode import PART
from qkv.nn.cache import PackedBatch, SequenceGroup
from qkv.nn.hooks import hook_points_of
from qkv.nn.unchanged import all_unchanged, forward_hooks
from qkv.serving.engine.block_allocator import BLOCK
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import LIKELIEST, ServingSequence

if TYPE_CHECKING:
    from qkv.serving.engine.runner import PagedRunner

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""So many texts a recording is for; fewer fill it up with nobody."""
BUFFERS = (
    4  # of numbers on their way to the GPU: a step may begin before the last one has read its own
)


class StepGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    logits: Float[Tensor, "R V"]
    """Where each replay leaves them."""
    words: Int[Tensor, "R"]
    """The likeliest."""


class StepGraphs:
    def __init__(self, runner: PagedRunner) -> None:
        self.runner = runner
        self.recorded: dict[tuple[int, int], StepGraph] = {}
        self.hook_points = [
            hooks for part in runner.model.modules() if (hooks := hook_points_of(part)) is not None
        ]
        self.hooks = forward_hooks(*runner.model.modules())
        self.nobody = runner.pages.at.shape[0] - 1
        most = max(SIZES)
        self.inputs = torch.zeros(3, most, dtype=torch.int64, device=runner.device)
        self.host = [
            torch.zeros(3, most, dtype=torch.int64, pin_memory=True) for _ in range(BUFFERS)
        ]
        self.numbers = [each.numpy() for each in self.host]
        """The same bytes, which are quicker to write as NumPy's."""
        self.turn = 0
        self.pool = torch.cuda.graph_pool_handle()

    @classmethod
    def of(cls, runner: PagedRunner) -> StepGraphs | None:
        """For models whose every step looks alike: no sparse pattern, no positions that count from
        the last place.
        """
        config = runner.model.config
        plain = config.sparsity() is None and config.position not in ("alibi", "relative")
        return (
            cls(runner)
            if isinstance(runner.model, GPT) and plain and all_unchanged(runner.model)
            else None
        )

    def serve(self, batch: ScheduledStep) -> bool:
        if (
            batch.reading
            or not 0 < len(batch.speaking) <= max(SIZES)
            or any(text.ask.off for text in batch.speaking)
        ):
            return False

        return not any(points.listeners for points in self.hook_points) and not any(self.hooks)

    def warm_up(self, rows: int) -> None:
        """Record what is likely needed before anyone waits for it."""
        for size in SIZES:
            if size < 2 * rows:
                self.recording(size, 1)

    def run(
        self, texts: Sequence[ServingSequence]
    ) -> tuple[Float[Tensor, "R V"], Int[Tensor, "R"]]:
        """What each text could say next; and the likeliest of it, which they have heard already."""
        count = len(texts)
        self.turn = (self.turn + 1) % BUFFERS
        positions, places, slots = numbers = self.numbers[self.turn]
        positions[:count] = [text.read for text in texts]
        blocks = [text.table[text.read // BLOCK] for text in texts]
        places[:count] = np.array(blocks) * BLOCK + positions[:count] % BLOCK
        slots[:count] = [text.slot for text in texts]
        numbers[:, count:] = [[0], [0], [self.nobody]]
        size = next(size for size in SIZES if size >= count)
        parts = -(-(int(positions[:count].max()) + 1) // PART)
        graph, logits, words = self.recording(size, 1 << (parts - 1).bit_length())
        self.inputs.copy_(self.host[self.turn], non_blocking=True)
        graph.replay()

        return logits[:count], words[:count]

    def recording(self, size: int, parts: int) -> StepGraph:
        """For so many texts, the longest of which fits into so many parts."""
        if (size, parts) not in self.recorded:
            self.inputs[:2], self.inputs[2] = (
                0,
                self.nobody,
            )  # what is run before it is recorded, nobody says
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels are compiled before they are recorded
                for _ in range(2):
                    self.step(size, parts * PART)

            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                logits, words = self.step(size, parts * PART)

            self.recorded[size, parts] = StepGraph(graph, logits, words)

        return self.recorded[size, parts]

    def step(self, size: int, longest: int) -> tuple[Float[Tensor, "R V"], Int[Tensor, "R"]]:
        runner, (positions, places, slots) = self.runner, self.inputs[:, :size]
        assert isinstance(runner.model, GPT)
        runner.pages.at[slots, positions] = places.int()
        group = SequenceGroup(0, size, 1, slots, positions + 1, longest)
        state = PackedBatch(runner.pages, [group], places)
        hidden = runner.model.hidden(
            runner.last[slots].unsqueeze(0), positions=positions.unsqueeze(0), state=state
        )
        logits = runner.model.logits(hidden[0])
        words = sample_tokens(logits, logits[:, 0], LIKELIEST)
        runner.last[slots] = words.clamp(
            min=0
        )  # should another word be chosen, it is heard after this one

        return logits, words
