"""Heads are named by planted weights, telling heads come first, and left-out keys are rescaled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.heads.head_names import (
    explanation,
    name_heads,
    read_measurement,
    shares_of,
    telling_heads,
    with_measurement,
    without_keys,
)
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.model_input import Side
from support.made_looks import attention, side

TOKENS = ["A", "cat", "sat", "near", "one", "mat", "while", "he", "slept", "."]
T = len(TOKENS)


def uniform(causal: bool = True, length: int = T) -> Tensor:
    seen = torch.ones(length, length)
    if causal:
        seen = seen.tril()
    return seen / seen.sum(-1, keepdim=True)


def planted(targets: Sequence[int | None], share: float = 0.9, causal: bool = True) -> Tensor:
    """Each query gives a share of its weight to one key, and the rest to all that it sees."""
    weights = (1 - share) * uniform(causal, len(targets))
    for row, target in enumerate(targets):
        if target is None or (causal and target > row):
            weights[row] = uniform(causal, len(targets))[row]
        else:
            weights[row, target] += share
    return weights


def captured(
    *heads: Tensor, causal: bool = True, tokens: list[str] = TOKENS, text: Side | None = None
) -> CapturedAttention:
    text = text or side(tokens)
    return attention("self", text, text, [torch.stack(heads)], causal)


def names(found: CapturedAttention) -> list[str | None]:
    return [name and name.name for name in name_heads(found)[0]]


def test_patterns_of_one_text_name_its_heads() -> None:
    heads = (
        planted([None, *range(T - 1)]),
        planted([0] * T),
        planted(list(range(T))),
        planted([None, *[1] * (T - 1)]),
        uniform(),
        planted([None, *range(T - 1)], share=0.3),
    )
    found = captured(*heads)
    assert names(found) == ["previous", "first", "self", "subject", None, None]
    name = name_heads(found)[0][3]
    assert name is not None
    assert name.position == 1
    assert name.share == pytest.approx(float(heads[3][2:, 1].mean()))
    share = f"{name.share:.0%}"
    assert explanation(name, found.columns) == (
        f"Nearly every token looks at “cat” (mean {share}): a subject head."
    )
    assert telling_heads(found)[0] == (0, 3)
    assert set(telling_heads(found)[-2:]) == {(0, 1), (0, 2)}  # they rest


def test_a_bidirectional_head_looks_ahead_and_at_special_tokens() -> None:
    text = side(["[CLS]", *TOKENS, "[SEP]"])._replace(special=(0, T + 1))
    length = T + 2
    heads = (
        planted([*range(1, length), None], causal=False),
        planted([length - 1] * length, causal=False),
        planted([2] * length, causal=False),
    )
    found = captured(*heads, causal=False, text=text)
    assert names(found) == ["next", "special", "subject"]
    shares = shares_of(found)
    assert shares is not None
    expected = heads[1][1:, [0, length - 1]].sum(1).mean()
    assert float(shares.left_out[0, 1]) == pytest.approx(float(expected))


def test_induction_and_equal_tokens_need_a_repetition() -> None:
    once = side(["a", "b", "c", "d"])
    ids = (*once.ids, *once.ids)
    twice = Side(ids, once.tokens * 2, ())
    follows = planted([0] * 5 + [2, 3, 4])
    copies = planted([0] * 4 + [0, 1, 2, 3])
    follows[4] = planted([0] * 4 + [1, 0, 0, 0])[4]
    found = captured(follows, copies, text=twice)
    assert names(found) == ["induction", "same"]
    different = captured(follows, copies, text=side([f"w{position}" for position in range(8)]))
    assert not {"induction", "same"} & set(names(different))


def test_a_key_that_many_heads_look_at_is_a_sink_and_a_function_word_no_subject() -> None:
    looks = planted([None, None, *[2] * (T - 2)])
    assert set(names(captured(*[looks] * 4))) == {"sink"}
    assert set(names(captured(*[looks] * 3))) == {"subject"}
    tokens = [*TOKENS[:2], "is", *TOKENS[3:]]
    assert names(captured(looks, tokens=tokens)) == ["one token"]


def test_the_mean_of_all_heads_and_the_strongest_content_weight_equal_a_plain_loop() -> None:
    torch.manual_seed(0)
    weights = torch.randn(3, T, T).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    found = captured(*weights.softmax(-1))
    shares = shares_of(found)
    assert shares is not None
    heads = found.layers[0].double()
    assert_close(shares.mean.double(), heads.mean(0), atol=1e-6, rtol=0)
    for number, head in enumerate(heads):
        largest = [max(head[row, 1:row].tolist()) for row in range(2, T)]
        assert float(shares.strongest[0, number]) == pytest.approx(sum(largest) / len(largest))
        previous = [float(head[row, row - 1]) for row in range(1, T)]
        score = float(shares.scores["previous"][0, number])
        assert score == pytest.approx(sum(previous) / len(previous))


def test_names_of_a_measurement_replace_those_of_the_text(tmp_path: Path) -> None:
    found = captured(planted([0] * T), uniform())
    scores = [[0.1, 0.95]]
    site = {"attention": "self", "induction": {"scores": scores, "uniform": 0.02}}
    site["first"] = {"scores": [[0.2, 0.0]], "uniform": 0.1}
    path = tmp_path / "heads.json"
    path.write_text(json.dumps({"model": "a model", "patterns": [site]}))
    changed = with_measurement(found, read_measurement(path))
    assert names(changed) == [None, "induction"]
    assert changed.shares is not None
    assert changed.shares.measured == ("induction", "first")

    wrong = [{"attention": "self", "first": {"scores": [[0.1]], "uniform": 0.1}}]
    with pytest.raises(ValueError, match=r"^names: expected 1 layers of 2 heads.*not 1 of 1$"):
        with_measurement(found, wrong)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"^names: .* has no patterns; write it with qkv heads"):
        read_measurement(path)


def test_left_out_keys_are_zero_and_the_rest_sums_to_one() -> None:
    weights = planted([0] * T, share=0.6).double()
    rest = without_keys(weights, [0])
    assert_close(rest[0], torch.zeros(T).double())  # nothing is left
    for row in range(1, T):
        others = weights[row, 1:]
        assert_close(rest[row, 1:], others / others.sum())
        assert rest[row, 0] == 0
