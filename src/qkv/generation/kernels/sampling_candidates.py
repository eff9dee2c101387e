"""Triton functions of sampling from a few candidates: all tokens that reach a bound.

The bound follows from the largest logit and the sum of every group of tokens, so that top-k and
top-p keep nothing below it. Programs for parts of the vocabulary collect the candidates; one
program for the row then holds them in registers.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    from qkv.generation.kernels.sampling_search import (
        LOG2_E,
        add_three,
        add_two,
        cut_of,
        kept_weights,
        quarter,
        weights,
    )
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

if triton is not None:
    REACH = tl.constexpr(40.0)  # below exp(-40) of the likeliest, probabilities are rounding
    ROUNDS = tl.constexpr(12)  # each quarters the interval of the bound

    @triton.jit
    def add_and_bound(a1, a2, low, b1, b2, other_low):  # type: ignore[no-untyped-def]
        """Two sums and the smallest `low`."""
        return a1 + b1, a2 + b2, tl.minimum(low, other_low)

    @triton.jit
    def least_above(  # type: ignore[no-untyped-def]
        group_top, weight, mass, t, top, scale, others, share
    ):
        """What each group has above the logit t at least: mass, or tokens times `share` above 0.

        A group has n tokens above t of at most the weight of its likeliest, and others below t.
        """
        below = weights(t, top, scale)
        if share > 0:
            count = ((1 - 1e-5) * mass - others * below) / tl.maximum(weight - below, 1e-37)
            least = tl.maximum(share * count, 1.0)
        else:
            least = tl.maximum(mass - others * below, weight)

        return tl.where(group_top >= t, least, 0.0)

    @triton.jit
    def bound_reaching(  # type: ignore[no-untyped-def]
        group_top, weight, mass, low, start, top, scale, goal, others, share, near
    ):
        """A logit above which the groups have the goal, and hardly more; `low` without one.

        Args:
            group_top: The largest logit of each group.
            weight: Its weight.
            mass: The weight of the group.
            low: The result if the search, which begins at `start`, does not find one.
            others: How many tokens with the weight of the bound a group may have below it.
            share: 0 for a mass; otherwise each token counts as much as this, a group at least 1.
            near: The search ends when the interval is shorter, or when the count is that near.
        """
        bound = low
        high = top
        reached = float("inf")
        beyond = 0.0
        rounds = 0
        while (
            (rounds < ROUNDS)
            & (start < high)
            & (tl.where(share > 0, reached - goal, high - start) > near)
        ):
            t1 = 0.75 * start + 0.25 * high
            t2 = 0.5 * start + 0.5 * high
            t3 = 0.25 * start + 0.75 * high
            one = least_above(group_top, weight, mass, t1, top, scale, others, share)
            two = least_above(group_top, weight, mass, t2, top, scale, others, share)
            three = least_above(group_top, weight, mass, t3, top, scale, others, share)
            sum1, sum2, sum3 = tl.reduce((one, two, three), 0, add_three)
            start, high, reached, beyond = quarter(
                start, high, reached, beyond, goal, t1, t2, t3, sum1, sum2, sum3
            )
            if sum1 >= goal:
                bound = start

            rounds += 1

        return bound

    @triton.jit
    def bound_by_count(  # type: ignore[no-untyped-def]
        group_top, weight, mass, groups, V, top, scale, low, smallest, top_k, GROUP: tl.constexpr
    ):
        """A bound that k tokens reach; for large k one that they seem to reach."""
        all_groups = 1.0 * V / GROUP
        wanted = top_k
        if top_k > 0.5 * all_groups:
            # Fewer groups have as many tokens, if these are spread over all groups alike
            wanted = all_groups * (1 - tl.exp2(-1.15 * LOG2_E * top_k / all_groups))

        start = smallest
        if wanted > all_groups - 2:
            start = top  # nearly all groups say little: all tokens
        elif groups >= wanted:
            low = smallest

        return bound_reaching(
            group_top, weight, mass, low, start, top, scale, wanted, 1.0 * GROUP,
            wanted / top_k, 0.1 * wanted + 4,
        )  # fmt: skip

    @triton.jit
    def bound_by_mass(  # type: ignore[no-untyped-def]
        group_top, weight, mass, V, top, temperature, scale, low, smallest, goal,
        GROUP: tl.constexpr, CANDIDATES: tl.constexpr,
    ):  # fmt: skip
        """A bound above which the mass is the goal, at first for certain.

        If that seems to give more candidates than there is room for, by how many groups reach the
        bound, then one with less mass below it; whether that was too little shows at the end.
        """
        all_groups = 1.0 * V / GROUP
        most = all_groups * (1 - tl.exp2(-0.8 * LOG2_E * CANDIDATES / all_groups))
        others = 2.0 * GROUP
        reaching = most + 1
        bound = low
        while (reaching > most) & (others > 4):
            others *= 0.5
            bound = bound_reaching(
                group_top, weight, mass, low, smallest, top, scale, goal, others, 0.0,
                0.05 * temperature,
            )  # fmt: skip
            reaching = tl.sum(tl.where(group_top >= bound, 1.0, 0.0), 0)

        return bound

    @triton.jit
    def bound_of(  # type: ignore[no-untyped-def]
        group_top, group_sum, V, top, temperature, top_k, top_p, min_p,
        GROUP: tl.constexpr, FEW: tl.constexpr, CANDIDATES: tl.constexpr,
    ):  # fmt: skip
        """The bound of the candidates, the mass of the row, and whether they are surely enough."""
        scale = LOG2_E / temperature
        low = top - REACH * temperature
        weight = weights(group_top, top, scale)
        mass = group_sum * weight
        finite = group_top >= low
        groups, total, smallest = tl.reduce(
            (
                tl.where(finite, 1.0, 0.0),
                mass,
                tl.where(finite, group_top, float("inf")),
            ),
            0,
            add_and_bound,
        )

        bound = low
        if V > FEW:
            if top_k > 0:
                bound = bound_by_count(
                    group_top, weight, mass, groups, V, top, scale, low, smallest, top_k, GROUP
                )
            elif top_p < 1:
                bound = bound_by_mass(
                    group_top, weight, mass, V, top, temperature, scale, low, smallest,
                    top_p * total, GROUP, CANDIDATES,
                )  # fmt: skip

        complete = bound <= low
        if (min_p > 0) & (top_p >= 1):
            floor = top + tl.log2(min_p) / scale
            complete = complete | (floor >= bound)
            bound = tl.maximum(bound, floor)

        return bound, total, complete

    @triton.jit
    def list_groups(group_top, bound, first, span, listed, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Store which of a part's groups reach the bound; returns their number."""
        group = tl.arange(0, GROUPS)
        inside = (group >= first) & (group < first + span)
        chosen = tl.where(inside & (group_top >= bound), 1, 0)
        place = tl.cumsum(chosen, 0) - 1
        tl.store(listed + place, group, mask=chosen > 0)
        tl.debug_barrier()

        return tl.sum(chosen, 0)

    @triton.jit
    def collect(  # type: ignore[no-untyped-def]
        row, V, bound, first, number, listed, candidates, ids, room, one,
        IS_LISTED: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, EACH: tl.constexpr,
    ):  # fmt: skip
        """Store the tokens of groups that reach the bound in the order of their ids.

        Returns how many there are; only as many are stored as there is room for.

        Args:
            first: The first group, if they are not listed.
            number: Of groups.
            one: 1, known to the compiler or not, as `tile_of` has it.
        """
        count = 0
        lane = tl.arange(0, TILE // EACH) * EACH
        each = tl.arange(0, EACH)[None, :] * one
        for start in range(0, number, TILE // GROUP):
            place = start + lane // GROUP
            inside = place < number
            group = first + place
            if IS_LISTED:
                group = tl.load(listed + place, mask=inside, other=0)

            v = (group * GROUP + lane % GROUP)[:, None] + each
            x = tl.load(row + v, mask=inside[:, None] & (v < V), other=-float("inf"))
            reaches = tl.where(x.to(tl.float32) >= bound, 1, 0)
            own = tl.sum(reaches, 1)
            before = count + tl.cumsum(own, 0) - own
            target = before[:, None] + tl.cumsum(reaches, 1) - 1
            stored = (reaches > 0) & (target < room)
            tl.store(candidates + target, x, mask=stored)
            tl.store(ids + target, v, mask=stored)
            count += tl.sum(own, 0)

        return count

    @triton.jit
    def load_candidates(  # type: ignore[no-untyped-def]
        candidates, ids, counts, count, chunks, room, SIZE: tl.constexpr, LANES: tl.constexpr
    ):
        """The logits and the ids of all chunks' candidates, in the order of their ids.

        They have two dimensions, (SIZE / LANES, LANES); each thread has consecutive candidates,
        one column.
        """
        EACH: tl.constexpr = SIZE // LANES
        i = tl.arange(0, SIZE)
        place = i % LANES * EACH + i // LANES
        inside = place < count

        # A candidate's address: the gaps between the chunks before it come on top of its number
        gap = tl.zeros((SIZE,), tl.int32)
        before = 0
        for chunk in range(chunks):
            gap = tl.where(place >= before, chunk * room - before, gap)
            before += tl.load(counts + chunk)

        x = tl.load(candidates + place + gap, mask=inside, other=-float("inf")).to(tl.float32)
        id = tl.load(ids + place + gap, mask=inside, other=0)

        return tl.reshape(x, (EACH, LANES)), tl.reshape(id, (EACH, LANES))

    @triton.jit
    def running_sums(weight, tie):  # type: ignore[no-untyped-def]
        """The sums up to each candidate: within its thread, and over the threads before."""
        sums, ties = tl.associative_scan((weight, tie), 0, add_two)
        own_sum, own_ties = tl.reduce((weight, tie), 0, add_two)
        all_sums, all_ties = tl.associative_scan((own_sum, own_ties), 0, add_two)

        return sums + (all_sums - own_sum)[None, :], ties + (all_ties - own_ties)[None, :]

    @triton.jit
    def drawn_candidate(  # type: ignore[no-untyped-def]
        x, id, row, V, top, scale, bound, total, top_k, top_p, min_p, u
    ):
        """The token among the candidates on which the number falls, and whether they are enough.

        `total` is the mass of the row; with top-k that of the k likeliest counts.
        """
        weight = weights(x, top, scale)
        low, high, ties, enough = cut_of(
            x, weight, row, V, top, scale, bound, total, top_k, top_p, 0
        )
        weight, tie = kept_weights(x, top, scale, low, high, min_p)
        sums, counts = running_sums(weight, tie)
        kept = (weight > 0) | ((tie > 0) & (counts <= ties))
        reached = sums + tl.minimum(counts, ties) * weights(low, top, scale)
        reached = tl.where(kept, reached, 0.0)
        target = u * tl.max(tl.max(reached, 0), 0)
        token = tl.where(kept & (reached >= target), id, V)

        return tl.min(tl.min(token, 0), 0), enough

    @triton.jit
    def drawn_of_candidates(  # type: ignore[no-untyped-def]
        row, results, rows, counts, candidates, ids, V, temperature, top_k, top_p, min_p, u,
        chunks, room,
        SCAN: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr, CANDIDATES: tl.constexpr,
        LANES: tl.constexpr,
    ):  # fmt: skip
        """The token of a row with candidates, or -1; and whether it was found among them.

        Otherwise also what `cut_of` returns for the row, which is then read as a whole.
        """
        top = tl.load(results)
        total = tl.load(results + rows)
        bound = tl.load(results + 2 * rows)
        complete = tl.load(results + 3 * rows) > 0
        scale = LOG2_E / temperature
        token = -1
        low = bound
        high = bound
        ties = 0.0
        done = (top == float("inf")) | (top == -float("inf"))
        if not done:
            chunk = tl.arange(0, CHUNKS)
            count = tl.sum(tl.load(counts + chunk, mask=chunk < chunks, other=0), 0)
            if count <= FEW:
                x, id = load_candidates(candidates, ids, counts, count, chunks, room, FEW, LANES)
                token, enough = drawn_candidate(
                    x, id, row, V, top, scale, bound, total, top_k, top_p, min_p, u
                )
                done = enough | complete
            elif count <= CANDIDATES:
                x, id = load_candidates(
                    candidates, ids, counts, count, chunks, room, CANDIDATES, LANES
                )
                token, enough = drawn_candidate(
                    x, id, row, V, top, scale, bound, total, top_k, top_p, min_p, u
                )
                done = enough | complete

            if not done:
                low, high, ties, enough = cut_of(
                    0.0, 0.0, row, V, top, scale, top - REACH * temperature, total,
                    top_k, top_p, SCAN,
                )  # fmt: skip

        return token, done, low, high, ties
