"""Triton functions of sampling from a whole row: which tokens stay, and which one is drawn.

The smallest logit that top-k or top-p keeps is found by narrowing an interval four-fold in every
pass over the row.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

if triton is not None:
    PASSES = tl.constexpr(40)  # each at least quarters the interval

    @triton.jit
    def weights(x, top, scale):  # type: ignore[no-untyped-def]
        """exp((x - top) / temperature), 0 for minus infinity."""
        return tl.where(x == -float("inf"), 0.0, tl.exp2((x - top) * scale))

    @triton.jit
    def add_and_bound(  # type: ignore[no-untyped-def]
        count1, count2, count3, mass1, mass2, mass3, low, high,
        other_count1, other_count2, other_count3, other_mass1, other_mass2, other_mass3,
        other_low, other_high,
    ):  # fmt: skip
        """Sums of the first six, the smallest `low` and the largest `high`."""
        return (
            count1 + other_count1, count2 + other_count2, count3 + other_count3,
            mass1 + other_mass1, mass2 + other_mass2, mass3 + other_mass3,
            tl.minimum(low, other_low), tl.maximum(high, other_high),
        )  # fmt: skip

    @triton.jit
    def find_cut(  # type: ignore[no-untyped-def]
        row, V, top, scale, low, by_count, goal, PART: tl.constexpr
    ):
        """The logit at which the tokens, likeliest first, reach the goal: a count or a mass.

        Returns it with the count and the mass of the tokens above it. `low` is no larger than it.
        """
        high = top
        end = float("inf")  # logits in the interval are below it
        above = 0.0
        mass_above = 0.0
        passes = 0
        while (low < high) & (passes < PASSES):
            # Three values split the interval; the third is above its lower end in any case
            t1 = 0.75 * low + 0.25 * high
            t2 = 0.5 * low + 0.5 * high
            t3 = 0.25 * low + 0.75 * high
            t3 = tl.where(t3 > low, t3, high)

            lane = tl.arange(0, PART)
            count1 = tl.zeros((PART,), tl.float32)
            count2 = tl.zeros((PART,), tl.float32)
            count3 = tl.zeros((PART,), tl.float32)
            mass1 = tl.zeros((PART,), tl.float32)
            mass2 = tl.zeros((PART,), tl.float32)
            mass3 = tl.zeros((PART,), tl.float32)
            smallest = tl.full((PART,), float("inf"), tl.float32)
            largest = tl.full((PART,), -float("inf"), tl.float32)
            for first in range(0, V, PART):
                v = first + lane
                x = tl.load(row + v, mask=v < V, other=-float("inf")).to(tl.float32)
                weight = weights(x, top, scale)
                count1 += tl.where(x >= t1, 1.0, 0.0)
                count2 += tl.where(x >= t2, 1.0, 0.0)
                count3 += tl.where(x >= t3, 1.0, 0.0)
                mass1 += tl.where(x >= t1, weight, 0.0)
                mass2 += tl.where(x >= t2, weight, 0.0)
                mass3 += tl.where(x >= t3, weight, 0.0)
                smallest = tl.minimum(smallest, tl.where(x >= low, x, float("inf")))
                largest = tl.maximum(largest, tl.where(x < end, x, -float("inf")))

            c1, c2, c3, m1, m2, m3, smallest_in, largest_in = tl.reduce(
                (count1, count2, count3, mass1, mass2, mass3, smallest, largest), 0, add_and_bound
            )

            # The quarter in which the goal is reached
            low = tl.maximum(low, smallest_in)
            high = tl.minimum(high, largest_in)
            reaches3 = tl.where(by_count, c3, m3) >= goal
            reaches2 = tl.where(by_count, c2, m2) >= goal
            reaches1 = tl.where(by_count, c1, m1) >= goal
            if reaches3:
                low = tl.maximum(low, t3)
            elif reaches2:
                low = tl.maximum(low, t2)
                high = tl.minimum(high, t3)
                end = t3
                above = c3
                mass_above = m3
            elif reaches1:
                low = tl.maximum(low, t1)
                high = tl.minimum(high, t2)
                end = t2
                above = c2
                mass_above = m2
            else:
                high = tl.minimum(high, t1)
                end = t1
                above = c1
                mass_above = m1

            passes += 1

        # Without a token in the interval, all tokens above its lower end are kept
        return tl.minimum(low, high), above, mass_above

    @triton.jit
    def kept_weights(  # type: ignore[no-untyped-def]
        row, v, V, top, scale, cut, ties, ties_before
    ):
        """Weights of the tokens above the cut and of the first `ties` tokens at it; else 0.

        Returns them with the number of tokens at the cut, `ties_before` included.
        """
        x = tl.load(row + v, mask=v < V, other=-float("inf")).to(tl.float32)
        weight = weights(x, top, scale)
        at_cut = tl.where(x == cut, 1, 0)
        count = ties_before + tl.sum(at_cut, 0)
        if (count > ties) & (count > ties_before):
            rank = ties_before + tl.cumsum(at_cut, 0)
            weight = tl.where((at_cut > 0) & (rank > ties), 0.0, weight)

        return tl.where(x >= cut, weight, 0.0), count

    @triton.jit
    def kept_sums(  # type: ignore[no-untyped-def]
        row, V, top, scale, cut, ties, PART: tl.constexpr, LANES: tl.constexpr
    ):
        """The kept weights of each part of the vocabulary, and its number of tokens at the cut."""
        part = tl.arange(0, LANES)
        part_sum = tl.zeros((LANES,), tl.float32)
        part_ties = tl.zeros((LANES,), tl.int32)
        ties_before = 0
        for first in range(0, V, PART):
            v = first + tl.arange(0, PART)
            weight, count = kept_weights(row, v, V, top, scale, cut, ties, ties_before)
            part_sum = tl.where(part == first // PART, tl.sum(weight, 0), part_sum)
            part_ties = tl.where(part == first // PART, count - ties_before, part_ties)
            ties_before = count

        return part_sum, part_ties

    @triton.jit
    def drawn(  # type: ignore[no-untyped-def]
        row, V, top, scale, cut, ties, part_sum, part_ties, u,
        PART: tl.constexpr, LANES: tl.constexpr,
    ):  # fmt: skip
        """The token on which the number falls: first its part of the vocabulary, then the token.

        Sums are rounded, so the last part, or token, of a weight above 0 is the end in any case.
        """
        part = tl.arange(0, LANES)
        target = u * tl.sum(part_sum, 0)
        reached = (tl.cumsum(part_sum, 0) >= target) & (part_sum > 0)
        chosen = tl.min(tl.where(reached, part, LANES), 0)
        last = tl.max(tl.where(part_sum > 0, part, 0), 0)
        chosen = tl.minimum(chosen, last)
        target -= tl.sum(tl.where(part < chosen, part_sum, 0.0), 0)
        ties_before = tl.sum(tl.where(part < chosen, part_ties, 0), 0)

        v = chosen * PART + tl.arange(0, PART)
        weight, _ = kept_weights(row, v, V, top, scale, cut, ties, ties_before)
        reached = (tl.cumsum(weight, 0) >= target) & (weight > 0)
        token = tl.min(tl.where(reached, v, V), 0)
        last = tl.max(tl.where(weight > 0, v, 0), 0)

        return tl.minimum(token, last)

    @triton.jit
    def cut_of(  # type: ignore[no-untyped-def]
        row, V, top, low, scale, total, top_k, top_p, min_p, PART: tl.constexpr
    ):
        """The smallest logit that is kept, and how many tokens with this logit are."""
        cut = -float("inf")
        ties = V
        if top_k > 0:
            cut, above, mass_above = find_cut(row, V, top, scale, low, True, top_k, PART)
            ties = (top_k - above).to(tl.int32)
            kept = mass_above + ties * tl.exp2((cut - top) * scale)
            total = tl.minimum(total, kept)  # fewer than k tokens may have a weight at all
            low = tl.maximum(low, cut)

        if top_p < 1:
            goal = top_p * total
            p_cut, above, mass_above = find_cut(row, V, top, scale, low, False, goal, PART)
            weight = tl.maximum(tl.exp2((p_cut - top) * scale), 1e-37)
            needed = tl.maximum(tl.ceil((goal - mass_above) / weight), 1.0)
            p_ties = tl.minimum(needed, V * 1.0).to(tl.int32)
            ties = tl.where(p_cut > cut, p_ties, tl.minimum(ties, p_ties))
            cut = tl.maximum(cut, p_cut)

        if min_p > 0:
            floor = top + tl.log2(min_p) / scale
            ties = tl.where(floor > cut, V, ties)
            cut = tl.maximum(cut, floor)

        return cut, ties
