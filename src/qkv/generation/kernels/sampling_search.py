"""Triton functions that find where top-k and top-p cut: the smallest logit that they keep.

An interval of logits is narrowed four-fold in every round, by the number or the mass of the tokens
that reach three values in it. The tokens are in registers, or they are read from memory in every
round.
"""

from __future__ import annotations

import math

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

if triton is not None:
    LOG2_E = tl.constexpr(math.log2(math.e))
    LARGEST_FLOAT = tl.constexpr(3e38)
    LARGEST_HALF = tl.constexpr(65504.0)

    @triton.jit
    def add_two(a1, a2, b1, b2):  # type: ignore[no-untyped-def]
        return a1 + b1, a2 + b2

    @triton.jit
    def add_three(a1, a2, a3, b1, b2, b3):  # type: ignore[no-untyped-def]
        return a1 + b1, a2 + b2, a3 + b3

    @triton.jit
    def weights(x, top, scale):  # type: ignore[no-untyped-def]
        """exp((x - top) / temperature) for a finite `top`."""
        return tl.exp2((x - top) * scale)

    @triton.jit
    def as_logit(x, row):  # type: ignore[no-untyped-def]
        """A value of the logits' type next to x, the smallest finite one for anything less."""
        if row.dtype.element_ty == tl.float16:
            x = tl.maximum(x, -LARGEST_HALF)
        else:
            x = tl.maximum(x, -LARGEST_FLOAT)

        return x.to(row.dtype.element_ty).to(tl.float32)

    @triton.jit
    def quarter(  # type: ignore[no-untyped-def]
        low, high, at_low, at_high, goal, t1, t2, t3, sum1, sum2, sum3
    ):
        """The part of the interval in which the goal is reached, and the sums at its ends."""
        if sum3 >= goal:
            low = t3
            at_low = sum3
        elif sum2 >= goal:
            low = t2
            at_low = sum2
            high = t3
            at_high = sum3
        elif sum1 >= goal:
            low = t1
            at_low = sum1
            high = t2
            at_high = sum2
        else:
            high = t1
            at_high = sum1

        return low, high, at_low, at_high

    @triton.jit
    def sums_reached(  # type: ignore[no-untyped-def]
        x, weight, row, V, top, scale, by_count, t1, t2, t3, SCAN: tl.constexpr
    ):
        """The count or the mass of the tokens that reach each of three logits.

        With SCAN 0 the tokens are `x` in two dimensions, the first within threads;
        otherwise they are those of the row, read in parts.
        """
        if SCAN == 0:
            measure = tl.where(by_count, 1.0, weight)
            reaching1 = tl.where(x >= t1, measure, 0.0)
            reaching2 = tl.where(x >= t2, measure, 0.0)
            reaching3 = tl.where(x >= t3, measure, 0.0)
            one, two, three = tl.reduce((reaching1, reaching2, reaching3), 0, add_three)
        else:
            one = tl.zeros((SCAN,), tl.float32)
            two = tl.zeros((SCAN,), tl.float32)
            three = tl.zeros((SCAN,), tl.float32)
            for first in range(0, V, SCAN):
                v = first + tl.arange(0, SCAN)
                y = tl.load(row + v, mask=v < V, other=-float("inf")).to(tl.float32)
                measure = tl.where(by_count, 1.0, weights(y, top, scale))
                one += tl.where(y >= t1, measure, 0.0)
                two += tl.where(y >= t2, measure, 0.0)
                three += tl.where(y >= t3, measure, 0.0)

        return tl.reduce((one, two, three), 0, add_three)

    @triton.jit
    def find_cut(  # type: ignore[no-untyped-def]
        x, weight, row, V, top, scale, low, at_low, at_top, by_count, goal, SCAN: tl.constexpr
    ):
        """The interval [low, high) of the logit at which the tokens, likeliest first, reach a goal.

        Returns its ends, and how many tokens in it are kept; those of at least `high` all are. All
        tokens in it have the logit `low`, or it is empty.

        Args:
            low: At most the result; the tokens of at least `low` have the sum `at_low`.
            at_top: The sum of the tokens with the logit `top`.
            goal: A count or a mass; if `at_low` is not more, all tokens are kept.
        """
        high = top
        at_high = at_top
        if at_top >= goal:
            low = top
            at_low = at_top
            high = float("inf")
            at_high = 0.0

        # All ends are values of the logits' type; their middle is inside while any such value is
        middle = as_logit(0.5 * low + 0.5 * high, row)
        unit = tl.where(by_count, 1.0, weights(low, top, scale))
        while (low < middle) & (middle < high) & (at_low > goal) & (at_low - at_high > 1.5 * unit):
            t1 = as_logit(0.75 * low + 0.25 * high, row)
            t3 = as_logit(0.25 * low + 0.75 * high, row)
            sum1, sum2, sum3 = sums_reached(
                x, weight, row, V, top, scale, by_count, t1, middle, t3, SCAN
            )
            low, high, at_low, at_high = quarter(
                low, high, at_low, at_high, goal, t1, middle, t3, sum1, sum2, sum3
            )
            middle = as_logit(0.5 * low + 0.5 * high, row)
            unit = tl.where(by_count, 1.0, weights(low, top, scale))

        needed = (goal - at_high) / tl.maximum(unit, 1e-37)
        ties = tl.maximum(tl.ceil(needed), 1.0)
        if (at_low <= goal) | (at_low - at_high <= 1.5 * unit):
            high = low  # all of them, or a single one

        return low, high, ties

    @triton.jit
    def cut_of(  # type: ignore[no-untyped-def]
        x, weight, row, V, top, scale, low, total, top_k, top_p, SCAN: tl.constexpr
    ):
        """What top-k and then top-p keep: an interval and a number as `find_cut` returns them.

        Returns also whether the tokens of at least `low` are as many as k, or as much as p of the
        `total` mass of the row. Without top-k and top-p all tokens are kept.
        """
        low = as_logit(low, row)
        high = low
        ties = 0.0
        enough = True
        begin = tl.where(top_k > 0, 0, 1)
        end = tl.where(top_p < 1, 2, 1)
        for step in range(begin, end):
            by_count = step == 0
            at_low, at_top, at_high = sums_reached(
                x, weight, row, V, top, scale, by_count, low, top, high, SCAN
            )
            goal = top_k
            if not by_count:
                kept = total
                if top_k > 0:
                    kept = at_high + ties * weights(low, top, scale)
                goal = top_p * kept

            if step == begin:
                enough = at_low >= goal

            new_low, new_high, new_ties = find_cut(
                x, weight, row, V, top, scale, low, at_low, at_top, by_count, goal, SCAN
            )
            if (new_low == low) & (high > low):  # top-k kept only some of the tokens at its cut
                if new_high > new_low:
                    ties = tl.minimum(ties, new_ties)
            else:
                low = new_low
                high = new_high
                ties = tl.where(new_high > new_low, new_ties, 0.0)

        return low, high, ties, enough

    @triton.jit
    def kept_weights(x, top, scale, low, high, min_p):  # type: ignore[no-untyped-def]
        """The weight of each token of at least `high`; and 1 for each token from `low` to there.

        Tokens less likely than min-p have 0. Without min-p so do those below 1e-37, which the sums
        cannot hold.
        """
        exponent = (x - top) * scale
        allowed = exponent >= tl.log2(tl.maximum(min_p, 1e-37))
        weight = tl.where(allowed & (x >= high), tl.exp2(exponent), 0.0)
        tie = tl.where(allowed & (x >= low) & (x < high), 1.0, 0.0)

        return weight, tie
