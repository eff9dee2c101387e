"""Checks of exercise 11: filters and draws equal the library's; the cache changes nothing."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.generation import generate as library_generate
from qkv.generation.sampling import distribution
from qkv.generation.sampling import draw as library_draw
from qkv.learn.exercises.language_model.cache_mistakes import (
    count_reads,
    uncached_logits,
    wrong_rows,
)
from qkv.learn.exercises.language_model.generation_mistakes import (
    draw_generation,
    kept_until,
    wrong_distributions,
)
from qkv.learn.exercises.language_model.matching_gpt import draw_gpt, peaked_gpt
from qkv.learn.expectations import (
    Failed,
    InputDraw,
    check,
    compare,
    expect_equal,
    expect_shape,
    is_close,
    table,
)
from qkv.learn.result_kinds import as_number, expect_ids, expect_number, expect_results


@check("temperature", "Above 1 flatter, below 1 sharper")
def temperature_of_logits(mine: ModuleType, draw: InputDraw) -> None:
    logits = draw.normal(2, draw.size + 1)
    for t in (0.5, 1.0, 3.0):
        found = mine.temperature(logits.clone(), t)
        expect_shape(found, tuple(logits.shape), "temperature", "(B, V)")
        expect_equal(
            found.softmax(-1),
            distribution(logits, temperature=t).float(),
            f"the softmax of temperature(logits, {t})",
            {
                "temperature: the logits are multiplied by t, so a high temperature makes them "
                "sharper; divide": (logits * t).softmax(-1),
                "temperature: these are probabilities; return logits, the softmax comes later": (
                    (logits / t).softmax(-1).softmax(-1)
                ),
            },
            inputs={"logits": logits},
        )


@check("top_k", "The k likeliest tokens of each row")
def k_likeliest(mine: ModuleType, draw: InputDraw) -> None:
    V = draw.size + 2
    logits = draw.normal(2, V)
    for k in range(1, V + 1):
        found = mine.top_k(logits.clone(), k)
        expect_shape(found, (2, V), "top_k", "(B, V)")
        kept = logits.topk(k).values[:, -1:]
        lowest = logits.topk(k, largest=False).values[:, -1:]
        overall = logits.flatten().topk(k).values[-1]
        expect_equal(
            found.softmax(-1),
            distribution(logits, top_k=k).float(),
            f"the softmax of top_k(logits, {k})",
            {
                "top_k: a logit of 0 still has a probability, exp(0) = 1; only -inf gives 0": (
                    logits.masked_fill(logits < kept, 0.0).softmax(-1)
                ),
                "top_k: only k - 1 tokens stay; the k-th belongs to them": (
                    logits.masked_fill(logits <= kept, -torch.inf).softmax(-1)
                ),
                "top_k: these are the k smallest logits": (
                    logits.masked_fill(logits > lowest, -torch.inf).softmax(-1)
                ),
                "top_k: the k largest of all rows together; each row keeps k of its own": (
                    logits.masked_fill(logits < overall, -torch.inf).softmax(-1)
                ),
            },
            inputs={"logits": logits},
        )


@check("top_p", "The fewest likeliest tokens that sum to p or more")
def nucleus(mine: ModuleType, draw: InputDraw) -> None:
    V = draw.size + 2
    logits = 2 * draw.normal(2, V)
    probabilities = logits.softmax(-1)
    for p in (0.05, 0.3, 0.6, 0.9, 0.99):
        found = mine.top_p(logits.clone(), p)
        expect_shape(found, (2, V), "top_p", "(B, V)")
        right = distribution(logits, top_p=p).float()
        expect_equal(
            found.softmax(-1),
            right,
            f"the softmax of top_p(logits, {p})",
            {
                "top_p: the token with which the sum reaches p is dropped; it is kept": (
                    kept_until(logits, p, crossing=False)
                ),
                "top_p: the tokens are summed in the order of their ids; the likeliest come "
                "first": kept_until(logits, p, order="ids"),
                "top_p: the least likely tokens come first; sort the largest first": (
                    kept_until(logits, p, order="ascending")
                ),
                "top_p: the tokens are still sorted; put them back in the order of their ids": (
                    right.sort(-1, descending=True).values
                ),
                "top_p: each alone is compared with p; it is the sum that has to reach p": (
                    logits.masked_fill(probabilities < p, -torch.inf).softmax(-1)
                ),
                "top_p: a dropped token has the logit 0, which has a probability; only -inf "
                "gives 0": logits.masked_fill(right == 0, 0.0).softmax(-1),
            },
            inputs={"probabilities": probabilities},
        )


@check("draw", "Every token as often as it is likely")
def drawn_token(mine: ModuleType, draw: InputDraw) -> None:
    probabilities = draw.normal(draw.size + 1).softmax(0)
    if draw.size > 2:
        probabilities = probabilities * (draw.permutation(draw.size + 1) != 0)
        probabilities = probabilities / probabilities.sum()

    last = len(probabilities) - 1
    values, order = probabilities.sort(descending=True)
    for step in range(1, 40):
        uniform = step / 40 + 0.003
        right = int(library_draw(probabilities.unsqueeze(0), torch.tensor([uniform]))[0])
        in_order = int(order[int(library_draw(values.unsqueeze(0), torch.tensor([uniform]))[0])])
        found = mine.draw(probabilities.clone(), uniform)
        if found is not None and found != right:
            example = table(
                "probabilities and their sums",
                torch.stack([probabilities, probabilities.cumsum(0)]),
                ["probability", "sum"],
            )
            wrong = {
                "one token too far: its piece begins after the number": min(right + 1, last),
                "the likeliest token whatever the number": int(probabilities.argmax()),
                "the tokens are sorted; they lie in the order of the ids": in_order,
                "one token too early: its piece ends before the number": right - 1,
            }
            for text, token in named_draws(mine, probabilities, wrong).items():
                if found == token:
                    raise Failed(f"draw, with the number {uniform:.3f}: {text}", example)

            raise Failed(f"draw: {uniform:.3f} falls on token {right}, not {found}", example)

        expect_number(found, right, f"draw with the number {uniform:.3f}")


@check("draw", "Never a token of probability 0, nor one beyond the last")
def drawn_at_the_edges(mine: ModuleType, draw: InputDraw) -> None:
    p = 1 / (draw.size + 1)
    for probabilities, uniform, right in (
        ([0.0, p, 1 - p], 0.0, 1),
        ([0.0, 0.0, 1.0], 0.0, 2),
        ([p, 1 - p - 1e-3, 0.0], 0.9999, 1),
    ):
        given = torch.tensor(probabilities)
        found = as_number(mine.draw(given.clone(), uniform), "draw")
        if found != right:
            raise Failed(
                f"draw, with the number {uniform}: token {found:g} has no piece of the line; "
                f"expected token {right}",
                table("probabilities", given),
            )


def named_draws(mine: ModuleType, probabilities: Tensor, wrong: dict[str, int]) -> dict[str, int]:
    """The mistakes that fit, the likeliest token first if every number draws the same one."""
    tokens = {int(mine.draw(probabilities.clone(), uniform)) for uniform in (0.03, 0.5, 0.97)}
    order = sorted(wrong, key=lambda text: ("likeliest" in text) != (len(tokens) == 1))
    if len(tokens) > 1:
        order = [text for text in order if "likeliest" not in text]

    return {text: wrong[text] for text in order}


@check("next_token", "Temperature, top-k, top-p, then one draw")
def chosen_token(mine: ModuleType, draw: InputDraw) -> None:
    V = draw.size + 3
    logits = 2 * draw.normal(V)
    for t, k, p in (
        (1.0, None, None),
        (0.0, None, None),
        (2.0, None, 0.7),
        (0.4, 3, None),
        (2.0, 3, 0.7),
        (0.5, None, 0.8),
    ):
        filters: dict[str, Any] = {"top_k": k, "top_p": p}
        row = logits.unsqueeze(0)
        right = distribution(row, temperature=t, **filters) if t else row.argmax(-1)
        numbers = torch.arange(1, 20) / 20 + 0.003
        expected = drawn_tokens(right, numbers) if t else right.tolist() * len(numbers)
        found = []
        for number in numbers.tolist():
            token = mine.next_token(logits.clone(), number, t, k, p)
            found.append(as_number(token, "next_token"))

        # A mistake is named if it explains all draws: one token alone may fit several.
        named = []
        for text, wrong in wrong_distributions(logits, t, k, p).items():
            if found == drawn_tokens(wrong, numbers):
                named.append(text)

        for number, chosen, right_token in zip(numbers.tolist(), found, expected, strict=True):
            expect_number(
                chosen,
                right_token,
                f"next_token with t = {t}, k = {k}, p = {p} and the number {number:.3f}",
                dict.fromkeys(named, chosen),
            )


def drawn_tokens(probabilities: Tensor, numbers: Tensor) -> list[int]:
    """The token that each number draws, by the library."""
    tokens: list[int] = library_draw(probabilities.expand(len(numbers), -1), numbers).tolist()
    return tokens


@check("generate", "Each new token is read before the next is chosen")
def generated_ids(mine: ModuleType, draw: InputDraw) -> None:
    length = 4
    model, prompt, full, mistakes = draw_generation(draw, length)
    shown = table("prompt", torch.tensor([prompt]))
    expect_ids(
        mine.generate(model, list(prompt), length),
        full,
        f"generate with length = {length}",
        mistakes,
        shown,
    )
    expect_ids(
        mine.generate(model, list(prompt), length, end=full[2]),
        full[:2],
        f"generate with end = {full[2]}",
        {
            "generate: the end token is not returned": full[:3],
            "generate: the end token stops the generation; nothing comes after it": full,
            "generate: the end token stops the generation; nothing comes after it, and it is not "
            "skipped": [*full[:2], *full[3:]],
        },
        shown,
    )


@check("generate", "It asks choose for each token; greedy, it is the library's")
def generated_by_choice(mine: ModuleType, draw: InputDraw) -> None:
    V, T, length = draw.size + 4, draw.size + 1, 4
    model = peaked_gpt(draw, V, T + length)
    prompt = draw.integers(V, T).tolist()
    greedy = library_generate(model, prompt, length=length, temperature=0)
    given = list(prompt)
    expect_ids(mine.generate(model, given, length), greedy, "generate with a GPT")
    if given != prompt:
        raise Failed("generate: the list prompt is longer afterwards; collect new tokens elsewhere")

    def least_likely(logits: Tensor) -> int:
        expect_shape(logits, (V,), "the logits that choose gets", "(V,)")
        return int(logits.argmin())

    expected: list[int] = []
    with torch.no_grad():
        for _ in range(length):
            expected.append(int(model(torch.tensor([prompt + expected]))[0, -1].argmin()))

    expect_ids(
        mine.generate(model, list(prompt), length, choose=least_likely),
        expected,
        "generate with a choose that takes the least likely token",
        {"generate: choose is not asked; the likeliest token is taken": greedy},
    )


# The cache


@check("cached_attention", "Step by step equal to the full pass")
def cached_steps(mine: ModuleType, draw: InputDraw) -> None:
    for heads, kv_heads in ((2, 2), (4, 2), (2, 1)):
        attention = mine.MultiHeadAttention(4 * draw.size, heads, kv_heads)
        T = draw.size + 3
        x = draw.normal(2, T, 4 * draw.size)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        with torch.no_grad():
            full = attention(x, mask)
            layers = (attention.key, attention.value)
            cached = [layer(x).unflatten(-1, (kv_heads, -1)).transpose(1, 2) for layer in layers]

        for steps in ([1] * T, [2, 1, T - 3], [1, T - 1]):
            run_cached(mine, attention, x, full, cached, steps)


def run_cached(
    mine: ModuleType,
    attention: Any,
    x: Tensor,
    full: Tensor,
    cached: list[Tensor],
    steps: list[int],
) -> None:
    """Fail unless the student's cached attention, so many positions at a time, changes nothing."""
    cache = None
    done = 0
    for N in steps:
        if N == 0:
            continue

        with torch.no_grad():
            results = mine.cached_attention(attention, x[:, done : done + N], cache)

        output, cache = expect_results(results, ("output", "cache"))
        past, done = done, done + N
        expect_results(cache, ("the keys", "values of the cache"))
        for name, found, right in zip(("keys", "values"), cache, cached, strict=True):
            expect_cache(found, right[:, :, :done], name)

        where = f"positions {past} to {done - 1} with {past} in the cache"
        expect_equal(
            output,
            full[:, past:done],
            f"cached_attention of {where}",
            partial(wrong_rows, attention, x[:, :done], N),
            shape="(B, N, E)",
        )


def expect_cache(found: Any, right: Tensor, name: str) -> None:
    """Fail unless the cache has the keys, or values, of all positions so far."""
    if isinstance(found, Tensor) and found.dim() == 4:
        _, heads, S, _ = right.shape
        if found.shape[2] != S:
            raise Failed(
                f"cached_attention: the {name} of the cache have {found.shape[2]} positions, but "
                f"{S} have been read: the cache has all positions, old and new"
            )
        if found.shape[1] > heads:
            raise Failed(
                f"cached_attention: the {name} of the cache have {found.shape[1]} heads, not "
                f"{heads}: repeat them after the cache, which fewer heads make smaller"
            )

    expect_shape(found, tuple(right.shape), f"the {name} of the cache", "(B, kv_heads, S, D)")
    if is_close(found, right, 1e-5):
        return

    shown = compare(f"{name} of the cache, first head", found, right, 1e-5)
    if is_close(found.sum(2), right.sum(2), 1e-4):
        raise Failed(
            f"cached_attention: the {name} of the cache are not in order; oldest first", shown
        )

    raise Failed(f"cached_attention: the {name} of the cache are not those of all positions", shown)


@check("cached_logits", "Step by step equal to the GPT's full pass")
def cached_gpt(mine: ModuleType, draw: InputDraw) -> None:
    T = draw.size + 3
    model = draw_gpt(mine, draw, context=T)
    ids = draw.integers(draw.size + 3, 2, T)
    with torch.no_grad():
        full = model(ids)

    for steps in ([1] * T, [2, T - 2]):
        caches = None
        done = 0
        for N in steps:
            with torch.no_grad(), count_reads(model) as reads:
                results = mine.cached_logits(model, ids[:, done : done + N], caches)

            logits, caches = expect_results(results, ("logits", "caches"))
            past, done = done, done + N
            expect_equal(
                logits,
                full[:, past:done],
                f"cached_logits of positions {past} to {done - 1}",
                partial(uncached_logits, model, ids[:, :done], past),
                shape="(B, N, V)",
                inputs={"ids": ids},
                tolerance=1e-4,
            )
            if max(reads) > N:
                raise Failed(
                    f"cached_logits: the logits are right, but a block reads {max(reads)} "
                    f"positions and only {N} are new; keys and values of the others are cached"
                )
