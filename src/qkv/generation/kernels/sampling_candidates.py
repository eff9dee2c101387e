"""Triton functions of sampling from a few candidates: the likeliest tokens of a row.

They are collected by the largest logit of every group of tokens, and compared each with each, which
gives their ranks and the sums before them.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    from qkv.generation.kernels.sampling_search import weights
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

if triton is not None:

    @triton.jit
    def add_three(a1, a2, a3, b1, b2, b3):  # type: ignore[no-untyped-def]
        return a1 + b1, a2 + b2, a3 + b3

    @triton.jit
    def reached_by(group_top, wanted, low, high):  # type: ignore[no-untyped-def]
        """A logit that `wanted` groups reach, and hardly more; `low` if there are fewer groups."""
        finite = group_top > -float("inf")
        count = tl.sum(tl.where(finite, 1.0, 0.0), 0)
        bound = low
        if count >= wanted:
            bound = tl.maximum(low, tl.min(tl.where(finite, group_top, float("inf")), 0))

        rounds = 0
        while (rounds < 12) & (bound < high) & (count > 1.1 * wanted + 4):
            t1 = 0.75 * bound + 0.25 * high
            t2 = 0.5 * bound + 0.5 * high
            t3 = 0.25 * bound + 0.75 * high
            one = tl.where(group_top >= t1, 1.0, 0.0)
            two = tl.where(group_top >= t2, 1.0, 0.0)
            three = tl.where(group_top >= t3, 1.0, 0.0)
            c1, c2, c3 = tl.reduce((one, two, three), 0, add_three)
            if c3 >= wanted:
                bound = t3
                count = c3
            elif c2 >= wanted:
                bound = t2
                high = t3
                count = c2
            elif c1 >= wanted:
                bound = t1
                high = t2
                count = c1
            else:
                high = t1

            rounds += 1

        return bound

    @triton.jit
    def collect(  # type: ignore[no-untyped-def]
        row, V, top, scale, bound, group_top, candidates, ids,
        PART: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
    ):  # fmt: skip
        """Store the tokens of at least the bound in the order of their ids, as far as they fit.

        Returns their number and their mass.
        """
        chosen = tl.where(group_top >= bound, 1, 0)
        listed = CANDIDATES + tl.cumsum(chosen, 0) - 1
        tl.store(ids + listed, tl.arange(0, GROUPS), mask=chosen > 0)
        groups = tl.sum(chosen, 0)
        tl.debug_barrier()

        count = 0
        mass = 0.0
        lane = tl.arange(0, PART)
        for first in range(0, groups, PART // GROUP):
            number = first + lane // GROUP
            group = tl.load(ids + CANDIDATES + number, mask=number < groups, other=0)
            v = group * GROUP + lane % GROUP
            inside = (number < groups) & (v < V)
            x = tl.load(row + v, mask=inside, other=-float("inf"))
            reaches = tl.where(inside & (x.to(tl.float32) >= bound), 1, 0)
            place = count + tl.cumsum(reaches, 0) - 1
            fits = (reaches > 0) & (place < CANDIDATES)
            tl.store(candidates + place, x, mask=fits)
            tl.store(ids + place, v, mask=fits)
            weight = weights(x.to(tl.float32), top, scale)
            mass += tl.sum(tl.where(reaches > 0, weight, 0.0), 0)
            count += tl.sum(reaches, 0)

        tl.debug_barrier()
        return count, mass

    @triton.jit
    def drawn_candidate(  # type: ignore[no-untyped-def]
        candidates, ids, count, top, scale, total, top_k, top_p, min_p, u,
        CANDIDATES: tl.constexpr,
    ):  # fmt: skip
        """The token among the candidates on which the number falls.

        `total` is the mass of the whole row; with top-k that of the k likeliest counts.
        """
        place = tl.arange(0, CANDIDATES)
        inside = place < count
        x = tl.load(candidates + place, mask=inside, other=-float("inf")).to(tl.float32)
        weight = weights(x, top, scale)

        # Of each candidate, how many are before it, likeliest first, and their mass
        rank = tl.zeros((CANDIDATES,), tl.float32)
        before = tl.zeros((CANDIDATES,), tl.float32)
        for first in range(0, count, 32):
            other = first + tl.arange(0, 32)
            y = tl.load(candidates + other, mask=other < count, other=-float("inf"))
            y = y.to(tl.float32)
            other_weight = weights(y, top, scale)
            tie = (y[:, None] == x[None, :]) & (other[:, None] < place[None, :])
            ahead = ((y[:, None] > x[None, :]) | tie) & (other[:, None] < count)
            rank += tl.sum(tl.where(ahead, 1.0, 0.0), 0)
            before += tl.sum(tl.where(ahead, other_weight[:, None], 0.0), 0)

        keeps = inside
        if top_k > 0:
            keeps = keeps & (rank < top_k)
            total = tl.minimum(total, tl.sum(tl.where(keeps, weight, 0.0), 0))
        if top_p < 1:
            keeps = keeps & (before < top_p * total)
        if min_p > 0:
            keeps = keeps & ((x - top) * scale >= tl.log2(min_p))

        weight = tl.where(keeps, weight, 0.0)
        target = u * tl.sum(weight, 0)
        reached = (tl.cumsum(weight, 0) >= target) & (weight > 0)
        index = tl.min(tl.where(reached, place, CANDIDATES), 0)
        last = tl.max(tl.where(weight > 0, place, 0), 0)

        return tl.load(ids + tl.minimum(index, last)).to(tl.int64)
