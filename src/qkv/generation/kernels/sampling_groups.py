"""Triton functions of sampling from a whole row by the sums of its groups of tokens.

First the group is found on which the number falls, then the token in it.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    from qkv.generation.kernels.sampling_search import LOG2_E, add_two, kept_weights, weights
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

if triton is not None:
    SMALLEST = tl.constexpr(2.0**-100)  # a group of this weight has tokens that may be drawn

    @triton.jit
    def larger(a, b):  # type: ignore[no-untyped-def]
        """The larger number; NaN if one is."""
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def one_of(V, IS_KNOWN: tl.constexpr):  # type: ignore[no-untyped-def]
        """1, which the compiler knows or not.

        Tokens at addresses with this factor are consecutive. If the compiler knows it, it reads
        several of them at once, but if they are not aligned, it gives them to different threads.
        If not, each thread has consecutive tokens in any case, and sums over them need few
        exchanges between threads.
        """
        one = 1
        if not IS_KNOWN:
            one = tl.minimum(V, 1)

        return one

    @triton.jit
    def tile_of(first, one, SIZE: tl.constexpr, EACH: tl.constexpr):  # type: ignore[no-untyped-def]
        """Token ids from `first` on in two dimensions, the second of which is within a thread."""
        each = tl.arange(0, EACH)[None, :] * one
        return first + tl.arange(0, SIZE // EACH)[:, None] * EACH + each

    @triton.jit
    def in_groups(x, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
        """One number of each thread's tokens, as one row for each group."""
        return tl.reshape(x, (x.shape[0] // GROUP, GROUP))

    @triton.jit
    def likeliest(row, V, group_top, top, GROUP: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
        """The first token with the largest logit."""
        group = tl.min(tl.where(group_top == top, tl.arange(0, GROUPS), GROUPS), 0)
        v = group * GROUP + tl.arange(0, GROUP)
        x = tl.load(row + v, mask=v < V, other=-float("inf")).to(tl.float32)

        return tl.min(tl.where(x == top, v, V), 0)

    @triton.jit
    def keep_in_groups(  # type: ignore[no-untyped-def]
        row, V, top, scale, low, high, min_p, kept, ties,
        SCAN: tl.constexpr, GROUP: tl.constexpr, EACH: tl.constexpr,
    ):  # fmt: skip
        """Store what `kept_weights` gives, summed over each group."""
        number = tl.arange(0, SCAN // GROUP)
        one = one_of(V, False)
        for first in range(0, V, SCAN):
            v = tile_of(first, one, SCAN, EACH)
            x = tl.load(row + v, mask=v < V, other=-float("inf")).to(tl.float32)
            weight, tie = kept_weights(x, top, scale, low, high, min_p)
            target = first // GROUP + number
            tl.store(kept + target, tl.sum(in_groups(tl.sum(weight, 1), GROUP // EACH), 1))
            tl.store(ties + target, tl.sum(in_groups(tl.sum(tie, 1), GROUP // EACH), 1))

        tl.debug_barrier()

    @triton.jit
    def drawn_in_groups(  # type: ignore[no-untyped-def]
        row, V, top, scale, low, high, ties, min_p, group_weight, group_ties, u,
        GROUP: tl.constexpr, GROUPS: tl.constexpr,
    ):  # fmt: skip
        """The token on which the number falls, of those that `cut_of` keeps.

        Sums are rounded, so the last token that is kept in the group is the end in any case.
        """
        # The group
        group = tl.arange(0, GROUPS)
        tie_weight = weights(low, top, scale)
        sum_before, ties_before = tl.associative_scan((group_weight, group_ties), 0, add_two)
        reached = sum_before + tl.minimum(ties_before, ties) * tie_weight
        sum_before -= group_weight
        ties_before -= group_ties
        has_ties = (group_ties > 0) & (ties_before < ties)
        reached = tl.where((group_weight > SMALLEST) | has_ties, reached, 0.0)
        target = u * tl.max(reached, 0)
        chosen = tl.min(tl.where((reached >= target) & (reached > 0), group, GROUPS), 0)
        sum_before, ties_before = tl.reduce(
            (
                tl.where(group == chosen, sum_before, 0.0),
                tl.where(group == chosen, ties_before, 0.0),
            ),
            0,
            add_two,
        )

        # The token
        v = chosen * GROUP + tl.arange(0, GROUP)
        x = tl.load(row + v, mask=v < V, other=-float("inf")).to(tl.float32)
        weight, tie = kept_weights(x, top, scale, low, high, min_p)
        sums, counts = tl.associative_scan((weight, tie), 0, add_two)
        counts += ties_before
        kept = (weight > 0) | ((tie > 0) & (counts <= ties))
        reached = sum_before + sums + tl.minimum(counts, ties) * tie_weight
        token = tl.min(tl.where(kept & (reached >= target), v, V), 0)
        last = tl.max(tl.where(kept, v, 0), 0)

        return tl.minimum(token, last)

    @triton.jit
    def drawn_of_groups(  # type: ignore[no-untyped-def]
        row, V, tops, sums, results, filtered, temperature, low, high, ties, min_p, u,
        GROUP: tl.constexpr, GROUPS: tl.constexpr,
    ):  # fmt: skip
        """The token of a row by its groups, or -1 without a likeliest one.

        Args:
            tops: The largest logit of each group; after filters, what `keep_in_groups` stored.
            sums: The sum of each group relative to that; after filters, what was stored.
        """
        group = tl.arange(0, GROUPS)
        inside = group * GROUP < V
        group_top = tl.load(tops + group, mask=inside, other=-float("inf"))
        top = tl.max(group_top, 0)
        if filtered:
            top = tl.load(results)

        token = -1
        if (top > -float("inf")) & (top < float("inf")):
            if temperature > 0:
                scale = LOG2_E / temperature
                group_weight = tl.load(sums + group, mask=inside, other=0.0)
                group_ties = tl.where(filtered & inside, group_top, 0.0)
                if not filtered:
                    group_weight *= weights(group_top, top, scale)

                token = drawn_in_groups(
                    row, V, top, scale, low, high, ties, min_p, group_weight, group_ties, u,
                    GROUP, GROUPS,
                )  # fmt: skip
            else:
                token = likeliest(row, V, group_top, top, GROUP, GROUPS)

        return token
