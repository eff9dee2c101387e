"""Sampling on a GPU in three Triton kernels, each row with sampling parameters of its own.

The first kernel reduces groups of 64 tokens to their largest logit and their sum, so that also a
single row occupies many multiprocessors. Without top-k, top-p and min-p the last kernel, one
program per row, finds the group on which the row's number falls, and the token in it.

With them, the second kernel derives a bound from the groups' results, and its programs collect the
tokens that reach it, each from a part of the vocabulary: the candidates, hardly more than top-k or
top-p keeps. The last kernel holds them in registers, finds the smallest logit that is kept by
narrowing an interval four-fold in every round, and draws. Where the candidates are too many, or not
enough, it reads the whole row in every round. Nothing is sorted, and the host never waits.

The result is that of `qkv.generation.sampling` up to the rounding of float32 sums. Of several
tokens with the logit at which top-k or top-p cuts, those with the lower ids stay.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.decode.dependent_launch import launch_options

try:
    import triton
    import triton.language as tl

    from qkv.generation.kernels.sampling_candidates import (
        bound_of,
        collect,
        drawn_of_candidates,
        list_groups,
    )
    from qkv.generation.kernels.sampling_groups import (
        drawn_of_groups,
        in_groups,
        keep_in_groups,
        larger,
        one_of,
        tile_of,
    )
    from qkv.generation.kernels.sampling_search import LOG2_E, weights
    from qkv.nn.decode.dependent_launch import start_next, wait
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

PART = 4096
"""Tokens of the vocabulary that a program reads at once."""
GROUP = 64
"""Tokens of which the largest logit and the sum are kept."""
READ = 16
"""Bytes of consecutive tokens that a thread reads at once, if they are aligned."""
FEW = 1024
"""Candidates that are sampled from soonest."""
CANDIDATES = 4096
"""Most candidates of a row."""
TILE = 2048
"""Tokens that a program collects candidates from at once."""
CHUNKS = 32
"""Most programs that collect candidates of a row; each derives the bound for itself."""
PROGRAMS = 1024
"""Programs that collect candidates of all rows, while there are fewer rows."""
SCAN = 2048
"""Tokens that the last kernel reads at once, if it must read the whole row; divides PART."""
REDUCE_WARPS = 8
COLLECT_WARPS = 4
SAMPLE_WARPS = 8
SAMPLE_REGISTERS = 128
"""Registers of a thread of the last kernel: two programs fit on a multiprocessor."""
LARGEST = 1 << 18
"""Largest vocabulary: the results of all its groups fit into one program's registers."""
COLDEST = 1e-30
"""Lower temperatures would overflow in float32, and give the same token."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def supports(logits: Tensor) -> bool:
    """True for logits on a GPU; torch.compile keeps the eager definition."""
    if triton is None or not logits.is_cuda or torch.compiler.is_compiling():
        return False
    if logits.dtype not in DTYPES or logits.stride(-1) != 1:
        return False

    return 0 < logits.shape[-1] <= LARGEST and len(logits) > 0


class RowFilters(NamedTuple):
    """The sampling parameters of one row in float32: top-k 0, top-p 1 and min-p 0 do nothing."""

    temperature: float
    top_k: float
    top_p: float
    min_p: float

    @classmethod
    def create(
        cls, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
    ) -> RowFilters:
        """The filters within the range of float32."""
        if temperature > 0:
            temperature = min(max(temperature, COLDEST), 1 / COLDEST)

        mass = 1.0
        if top_p is not None and top_p < 1:
            mass = min(top_p, 1 - 2**-24)  # the largest float32 below 1

        count = min(top_k or 0, LARGEST)
        return cls(float(temperature), float(count), mass, float(min_p or 0))

    @property
    def leaves_out(self) -> bool:
        """True if top-k, top-p or min-p may leave out tokens."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def sample_rows(
    logits: Float[Tensor, "B V"],
    uniform: Float[Tensor, "B"],
    filters: Float[Tensor, "4 B"] | RowFilters,
) -> Int[Tensor, "B"]:
    """A token for each row, or -1 for a row without a likeliest one.

    Args:
        logits: Scores of all tokens.
        uniform: A number in (0, 1] for each row.
        filters: The `RowFilters` of each row, one per column; or those of all rows.
    """
    B, V = logits.shape
    parts = triton.cdiv(V, PART)
    groups = parts * PART // GROUP
    lanes = triton.next_power_of_2(groups)
    reduced = torch.empty(2, B, groups, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(B, dtype=torch.int64, device=logits.device)

    # One set of parameters is passed by value; a table is read from memory
    table = reduced
    row_filters = RowFilters.create(0, None, None, None)
    same = isinstance(filters, RowFilters)
    if isinstance(filters, RowFilters):
        row_filters = filters
    else:
        table = filters

    filtering = not same or row_filters.leaves_out
    memory = CandidateMemory.create(logits, filtering)
    next_row = logits.stride(0) if B > 1 else 0  # a single row is as aligned as the tensor
    aligned = next_row % READ == 0 and logits.data_ptr() % READ == 0
    each = READ // logits.element_size()
    reduce_groups[(B, parts)](
        logits, table, reduced, row_filters.temperature, V, next_row,
        SAME=same, IS_ALIGNED=aligned, PART=PART, GROUP=GROUP, EACH=each,
        num_warps=REDUCE_WARPS, **launch_options(),
    )  # fmt: skip
    if filtering:
        collect_candidates[(B, memory.chunks)](
            logits, table, reduced, *memory.tensors, *row_filters,
            V, next_row, table.stride(0), groups, memory.span, memory.room,
            SAME=same, IS_ALIGNED=aligned, IS_LISTED=memory.span > TILE // GROUP,
            TILE=TILE, GROUP=GROUP, EACH=each, GROUPS=lanes, FEW=FEW, CANDIDATES=CANDIDATES,
            num_warps=max(COLLECT_WARPS, lanes // 512), **launch_options(),
        )  # fmt: skip

    sample_row[(B,)](
        logits, table, uniform, reduced, *memory.tensors, tokens, *row_filters,
        V, next_row, table.stride(0), uniform.stride(0), groups, memory.chunks, memory.room,
        SAME=same, FILTERING=filtering, SCAN=SCAN, GROUP=GROUP, EACH=each,
        GROUPS=lanes, CHUNKS=CHUNKS, FEW=FEW, CANDIDATES=CANDIDATES,
        LANES=32 * SAMPLE_WARPS, num_warps=SAMPLE_WARPS, maxnreg=SAMPLE_REGISTERS,
        **launch_options(),
    )  # fmt: skip

    return tokens


class CandidateMemory(NamedTuple):
    """Memory for the candidates, which programs for chunks of the vocabulary collect."""

    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    """Results of each row, the chunks' counts, the candidates' logits, their ids, lists of groups.
    """
    chunks: int
    """Number of chunks."""
    span: int
    """Groups of a chunk."""
    room: int
    """Candidates of a chunk for which there is memory."""

    @classmethod
    def create(cls, logits: Float[Tensor, "B V"], filtering: bool) -> CandidateMemory:
        """Chunks of one tile or more; without filters, no memory."""
        B, V = logits.shape
        tiles = triton.cdiv(V, TILE)
        each = triton.cdiv(tiles, min(max(PROGRAMS // B, 1), CHUNKS))
        chunks = triton.cdiv(tiles, each)
        span = each * TILE // GROUP
        room = min(each * TILE, CANDIDATES)
        rows = B if filtering else 0

        return cls(
            (
                logits.new_empty(4, rows, dtype=torch.float32),
                logits.new_empty(rows, chunks, dtype=torch.int32),
                logits.new_empty(rows, chunks, room),
                logits.new_empty(rows, chunks, room, dtype=torch.int32),
                logits.new_empty(rows, chunks, span, dtype=torch.int32),
            ),
            chunks,
            span,
            room,
        )


if triton is not None:

    @triton.jit
    def filters_of(  # type: ignore[no-untyped-def]
        filters, b, filters_row, temperature, top_k, top_p, min_p, V, SAME: tl.constexpr
    ):
        """The parameters of a row, and whether they leave out tokens."""
        if not SAME:
            temperature = tl.load(filters + b).to(tl.float32)
            top_k = tl.load(filters + filters_row + b).to(tl.float32)
            top_p = tl.load(filters + 2 * filters_row + b).to(tl.float32)
            min_p = tl.load(filters + 3 * filters_row + b).to(tl.float32)

        top_k = tl.where(top_k < V, top_k, 0.0)
        filtered = (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))

        return temperature, top_k, top_p, min_p, filtered

    # One compiled kernel for all numbers of rows: their strides only select addresses
    @triton.jit(do_not_specialize=["V"])
    def reduce_groups(  # type: ignore[no-untyped-def]
        logits, filters, reduced, temperature, V, logits_row,
        SAME: tl.constexpr, IS_ALIGNED: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr,
        EACH: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """The largest logit of each group, infinity for NaN, and its sum relative to that."""
        start_next(PDL)
        wait(PDL)
        row = tl.program_id(0)
        part = tl.program_id(1)
        if not SAME:
            temperature = tl.load(filters + row).to(tl.float32)

        v = tile_of(part * PART, one_of(V, IS_ALIGNED), PART, EACH)
        source = logits + row.to(tl.int64) * logits_row + v
        if part * PART + PART <= V:
            x = tl.load(source).to(tl.float32)
        else:
            x = tl.load(source, mask=v < V, other=-float("inf")).to(tl.float32)

        own_top = tl.reduce(x, 1, larger)  # of each thread's tokens
        own_tops = in_groups(own_top, GROUP // EACH)
        top = tl.reduce(own_tops, 1, larger)
        groups = tl.num_programs(1) * (PART // GROUP)
        target = reduced + row * groups + part * (PART // GROUP) + tl.arange(0, PART // GROUP)
        tl.store(target, tl.where(top != top, float("inf"), top))
        if temperature > 0:
            scale = LOG2_E / temperature
            own_top = tl.where(own_top == -float("inf"), 0.0, own_top)
            top = tl.where(top == -float("inf"), 0.0, top)
            own_sum = tl.sum(weights(x, own_top[:, None], scale), 1)
            sums = in_groups(own_sum, GROUP // EACH) * weights(own_tops, top[:, None], scale)
            tl.store(target + tl.num_programs(0) * groups, tl.sum(sums, 1))

    @triton.jit(do_not_specialize=["V", "filters_row", "groups", "span", "room"])
    def collect_candidates(  # type: ignore[no-untyped-def]
        logits, filters, reduced, results, counts, candidates, ids, listed,
        temperature, top_k, top_p, min_p,
        V, logits_row, filters_row, groups, span, room,
        SAME: tl.constexpr, IS_ALIGNED: tl.constexpr, IS_LISTED: tl.constexpr,
        TILE: tl.constexpr, GROUP: tl.constexpr, EACH: tl.constexpr, GROUPS: tl.constexpr,
        FEW: tl.constexpr, CANDIDATES: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """The candidates of a chunk of the vocabulary, in the order of their ids."""
        start_next(PDL)
        wait(PDL)
        rows = tl.num_programs(0)
        b = tl.program_id(0).to(tl.int64)
        chunk = tl.program_id(1)
        temperature, top_k, top_p, min_p, filtered = filters_of(
            filters, b, filters_row, temperature, top_k, top_p, min_p, V, SAME
        )
        if filtered:
            # The bound
            group = tl.arange(0, GROUPS)
            source = reduced + b * groups + group
            group_top = tl.load(source, mask=group < groups, other=-float("inf"))
            group_sum = tl.load(source + rows * groups, mask=group < groups, other=0.0)
            top = tl.max(group_top, 0)
            finite = (top > -float("inf")) & (top < float("inf"))
            bound = top
            total = 0.0
            complete = True
            if finite:
                bound, total, complete = bound_of(
                    group_top, group_sum, V, top, temperature, top_k, top_p, min_p,
                    GROUP, FEW, CANDIDATES,
                )  # fmt: skip
            if chunk == 0:
                tl.store(results + b, top)
                tl.store(results + rows + b, total)
                tl.store(results + 2 * rows + b, bound)
                tl.store(results + 3 * rows + b, tl.where(complete, 1.0, 0.0))

            # The tokens
            if finite:
                number = span
                first = chunk * span
                segment = b * tl.num_programs(1) + chunk
                own = listed + segment * span
                if IS_LISTED:
                    number = list_groups(group_top, bound, first, span, own, GROUPS)

                count = collect(
                    logits + b * logits_row, V, bound, first, number, own,
                    candidates + segment * room, ids + segment * room, room,
                    one_of(V, IS_ALIGNED), IS_LISTED, TILE, GROUP, EACH,
                )  # fmt: skip
                tl.store(counts + segment, count)

    # Sums have the same order, and so the same rounding, whether rows are aligned or not
    @triton.jit(
        do_not_specialize=[
            "V", "logits_row", "filters_row", "uniform_row", "groups", "chunks", "room",
        ]
    )  # fmt: skip
    def sample_row(  # type: ignore[no-untyped-def]
        logits, filters, uniform, reduced, results, counts, candidates, ids, listed, tokens,
        temperature, top_k, top_p, min_p,
        V, logits_row, filters_row, uniform_row, groups, chunks, room,
        SAME: tl.constexpr, FILTERING: tl.constexpr, SCAN: tl.constexpr, GROUP: tl.constexpr,
        EACH: tl.constexpr, GROUPS: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr,
        CANDIDATES: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """The token of one row."""
        start_next(PDL)
        wait(PDL)
        rows = tl.num_programs(0)
        b = tl.program_id(0).to(tl.int64)
        row = logits + b * logits_row
        tops = reduced + b * groups
        sums = tops + rows * groups
        temperature, top_k, top_p, min_p, filtered = filters_of(
            filters, b, filters_row, temperature, top_k, top_p, min_p, V, SAME
        )
        u = tl.load(uniform + b * uniform_row).to(tl.float32)
        token = -1
        done = False
        low = -float("inf")
        high = -float("inf")
        ties = 0.0
        if FILTERING:  # noqa: SIM102  the compiler leaves this out without filters
            if filtered:
                segments = b * chunks * room
                token, done, low, high, ties = drawn_of_candidates(
                    row, results + b, rows, counts + b * chunks, candidates + segments,
                    ids + segments, V, temperature, top_k, top_p, min_p, u, chunks, room,
                    SCAN, CHUNKS, FEW, CANDIDATES, LANES,
                )  # fmt: skip
                if not done:
                    keep_in_groups(
                        row, V, tl.load(results + b), LOG2_E / temperature, low, high, min_p,
                        sums, tops, SCAN, GROUP, EACH,
                    )  # fmt: skip

        if not done:
            token = drawn_of_groups(
                row, V, tops, sums, results + b, FILTERING & filtered,
                temperature, low, high, ties, min_p, u, GROUP, GROUPS,
            )  # fmt: skip

        tl.store(tokens + b, token)
