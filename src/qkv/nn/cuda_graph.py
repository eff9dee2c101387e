"""CUDA graphs: the kernels of a step are captured once and then replayed with one launch.

A step of a small model is a hundred kernels of some microseconds. Launched one by one, the host is
slower than the GPU; replayed, they follow each other without a gap.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Output = TypeVar("Output")
WARM_UP = 2


class CudaGraph(Generic[Output]):
    """A captured step: it reads and writes tensors at fixed addresses.

    Random numbers come from the default generator, whose seed counts at the replay.
    """

    def __init__(
        self,
        step: Callable[[], Output],
        inputs: Sequence[Tensor] = (),
        *,
        pool: Any = None,
        reset: Callable[[], object] = lambda: None,
    ) -> None:
        """Run the step to warm up, then capture it.

        Args:
            step: Launches the kernels; it must not wait for the GPU.
            inputs: Tensors that the step reads, into which each replay copies its values.
            pool: Memory that several graphs share, one of which runs at a time.
            reset: Undoes what a run for the warm-up leaves behind.
        """
        self.inputs = inputs

        # Kernels are compiled and tuned before the capture, on another stream as CUDA requires.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
                reset()

        torch.cuda.current_stream().wait_stream(stream)

        # Other threads may use the GPU meanwhile.
        self.graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local")
        with without_collections(), capture:
            self.output = step()

    def replay(self, *values: Tensor) -> Output:
        """Run the step on these values of its inputs; the next replay overwrites the output."""
        for target, value in zip(self.inputs, values, strict=True):
            target.copy_(value, non_blocking=True)

        self.graph.replay()

        return self.output


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection inside: it may free an older graph, which CUDA forbids in a capture.

    Threads that capture at the same time would switch collections on for each other; captures of a
    server come one after the other (`INSTALLING`), and so do those of a run.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
