"""Sampling on a GPU in two Triton kernels, each row with sampling parameters of its own.

The first kernel reduces parts of the vocabulary, so that also a single row occupies many
multiprocessors: their sums, and the largest logit of every group of 64 tokens. The second, one
program per row, collects the likeliest tokens by these, a few hundred, and compares each with each,
which gives their ranks and the sums before them. Where they are not enough, it reads the whole row
and finds the smallest logit that top-k and top-p keep by narrowing an interval four-fold in every
pass. Nothing is sorted, and the host never waits.

The result is that of `qkv.generation.sampling` up to the rounding of float32 sums. Of several
tokens with the logit at which top-k or top-p cuts, those with the lower ids stay.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.nn.decode.dependent_launch import launch_options

try:
    import triton
    import triton.language as tl

    from qkv.generation.kernels.sampling_candidates import collect, drawn_candidate, reached_by
    from qkv.generation.kernels.sampling_search import cut_of, drawn, kept_sums, weights
    from qkv.nn.decode.dependent_launch import start_next, wait
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

PART = 4096
"""Tokens of the vocabulary that a program reads at once."""
GROUP = 64
"""Tokens whose largest logit is kept."""
CANDIDATES = 1024
"""Tokens that are compared with each other."""
LARGEST = 1 << 18
"""Largest vocabulary: the results of all its parts fit into one program's registers."""
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
    groups = triton.next_power_of_2(parts * PART // GROUP)
    device = logits.device
    sums = torch.empty(3, B, parts, dtype=torch.float32, device=device)
    likeliest = torch.empty(B, parts, dtype=torch.int32, device=device)
    tops = torch.empty(B, parts * PART // GROUP, dtype=torch.float32, device=device)
    tokens = torch.empty(B, dtype=torch.int64, device=device)
    candidates = torch.empty(B, CANDIDATES, dtype=logits.dtype, device=device)
    ids = torch.empty(B, CANDIDATES + groups, dtype=torch.int32, device=device)

    # One set of parameters is passed by value; a table is read from memory
    same = isinstance(filters, RowFilters)
    table = sums
    row_filters = RowFilters.create(0, None, None, None)
    if isinstance(filters, RowFilters):
        row_filters = filters
    else:
        table = filters

    reduce_part[(B, parts)](
        logits, table, sums, likeliest, tops, row_filters.temperature,
        V, logits.stride(0), B * parts,
        SAME=same, PART=PART, GROUP=GROUP, num_warps=8, **launch_options(),
    )  # fmt: skip
    sample_row[(B,)](
        logits, table, uniform, sums, likeliest, tops, candidates, ids, tokens, *row_filters,
        V, logits.stride(0), table.stride(0), uniform.stride(0), B * parts, parts,
        SAME=same, PART=PART, GROUP=GROUP, GROUPS=groups, CANDIDATES=CANDIDATES,
        LANES=triton.next_power_of_2(parts), num_warps=32, **launch_options(),
    )  # fmt: skip

    return tokens


if triton is not None:
    LOG2_E = tl.constexpr(math.log2(math.e))
    REACH = tl.constexpr(40.0)  # below exp(-40) of the likeliest, probabilities are rounding

    # One compiled kernel for all numbers of rows: their strides only select addresses
    @triton.jit(do_not_specialize=["V", "next_sum"])
    def reduce_part(  # type: ignore[no-untyped-def]
        logits, filters, sums, likeliest, tops, temperature, V, logits_row, next_sum,
        SAME: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """Largest and smallest finite logit of a part, its sum of exponentials, its likeliest."""
        start_next(PDL)
        wait(PDL)
        row = tl.program_id(0)
        part = tl.program_id(1)
        target = row * tl.num_programs(1) + part
        if not SAME:
            temperature = tl.load(filters + row).to(tl.float32)

        v = part * PART + tl.arange(0, PART)
        source = logits + row.to(tl.int64) * logits_row + v
        if part * PART + PART <= V:
            x = tl.load(source).to(tl.float32)
        else:
            x = tl.load(source, mask=v < V, other=-float("inf")).to(tl.float32)

        broken = tl.max((x != x).to(tl.int32), 0)  # NaN is not equal to itself
        x = tl.where(x != x, -float("inf"), x)
        top = tl.max(x, 0)
        tl.store(likeliest + target, tl.min(tl.where(x == top, v, V), 0))
        tl.store(sums + target, tl.where(broken > 0, float("inf"), top))

        if temperature > 0:
            low = tl.min(tl.where(x == -float("inf"), float("inf"), x), 0)
            weight = weights(x, top, LOG2_E / temperature)
            tl.store(sums + next_sum + target, low)
            tl.store(sums + 2 * next_sum + target, tl.sum(weight, 0))
            group = tl.arange(0, PART // GROUP)
            group_top = tl.max(tl.reshape(x, (PART // GROUP, GROUP)), 1)
            tl.store(tops + target * (PART // GROUP) + group, group_top)

    @triton.jit(do_not_specialize=["V", "filters_row", "uniform_row", "next_sum", "parts"])
    def sample_row(  # type: ignore[no-untyped-def]
        logits, filters, uniform, sums, likeliest, tops, candidates, ids, tokens,
        temperature, top_k, top_p, min_p,
        V, logits_row, filters_row, uniform_row, next_sum, parts,
        SAME: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
        CANDIDATES: tl.constexpr, LANES: tl.constexpr, PDL: tl.constexpr,
    ):  # fmt: skip
        """The token of one row."""
        start_next(PDL)
        wait(PDL)
        b = tl.program_id(0).to(tl.int64)
        row = logits + b * logits_row
        if not SAME:
            temperature = tl.load(filters + b).to(tl.float32)
            top_k = tl.load(filters + filters_row + b).to(tl.float32)
            top_p = tl.load(filters + 2 * filters_row + b).to(tl.float32)
            min_p = tl.load(filters + 3 * filters_row + b).to(tl.float32)

        # The likeliest token
        part = tl.arange(0, LANES)
        source = sums + b * parts + part
        inside = part < parts
        part_top = tl.load(source, mask=inside, other=-float("inf"))
        top = tl.max(part_top, 0)
        first = tl.min(tl.where(part_top == top, part, LANES), 0)
        token = tl.load(likeliest + b * parts + first).to(tl.int64)
        broken = (top == float("inf")) | (top == -float("inf"))

        if (temperature > 0) & (not broken):
            scale = LOG2_E / temperature
            part_sum = tl.load(source + 2 * next_sum, mask=inside, other=0.0)
            part_sum *= tl.where(inside, tl.exp2((part_top - top) * scale), 0.0)
            part_ties = tl.zeros((LANES,), tl.int32)
            total = tl.sum(part_sum, 0)
            cut = -float("inf")
            ties = V
            collected = False
            u = tl.load(uniform + b * uniform_row).to(tl.float32)
            top_k = tl.where(top_k < V, top_k, 0.0)
            by_count = top_k > 0
            if by_count | (top_p < 1) | (min_p > 0):
                part_low = tl.load(source + next_sum, mask=inside, other=float("inf"))
                low = tl.maximum(tl.min(part_low, 0), top - REACH * temperature)

                # The likeliest tokens, if they are few and enough
                group = tl.arange(0, GROUPS)
                group_top = tl.load(
                    tops + b * parts * (PART // GROUP) + group,
                    mask=group < parts * (PART // GROUP),
                    other=-float("inf"),
                )
                bound = tl.maximum(low, top + tl.log2(tl.maximum(min_p, 1e-37)) / scale)
                if by_count | (top_p < 1):
                    wanted = tl.where(by_count, top_k, 0.6 * V / GROUP)
                    bound = reached_by(group_top, wanted, low, top)

                own = candidates + b * CANDIDATES
                own_ids = ids + b * (CANDIDATES + GROUPS)
                count, mass = collect(
                    row, V, top, scale, bound, group_top, own, own_ids,
                    PART, GROUP, GROUPS, CANDIDATES,
                )  # fmt: skip
                enough = by_count | (top_p >= 1) | (mass >= top_p * total)
                collected = (count <= CANDIDATES) & enough
                if collected:
                    token = drawn_candidate(
                        own, own_ids, count, top, scale, total, top_k, top_p, min_p, u, CANDIDATES
                    )
                else:
                    cut, ties = cut_of(row, V, top, low, scale, total, top_k, top_p, min_p, PART)
                    part_sum, part_ties = kept_sums(row, V, top, scale, cut, ties, PART, LANES)

            if not collected:
                token = drawn(
                    row, V, top, scale, cut, ties, part_sum, part_ties, u, PART, LANES
                ).to(tl.int64)

        tl.store(tokens + b, tl.where(broken, -1, token))
