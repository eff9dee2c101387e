"""Head patterns equal brute force, and a head with weights set by hand scores 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.heads import head_patterns as module
from qkv.insight.heads.head_patterns import (
    HeadPatterns,
    head_patterns,
    repeated_tokens,
    text_tokens,
)
from qkv.models import HeadConfig, TaskModel, TaskModelConfig, Transformer
from qkv.nn.hooks import add_hook, capture, has_hooks
from qkv.text import train
from support.families import bert, gpt, rnn, transformer
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
SIZE: dict[str, Any] = {"vocabulary": TOKENIZER.vocabulary, "context": 40}
TEXTS = ["the cat sat on the mat", "the dog and the cat"]


def ids_of_text(model: Any, tokenizer: Any, text: Any) -> dict[str, Tensor]:
    """The ids of each side of a text."""
    ids, _ = text_tokens(model, tokenizer, text)
    return {kind: rows[0] for kind, rows in ids.items()}


def by_hand(pattern: Any) -> Any:
    """A hook that gives head 1 uniform weights where pattern(query (T, 1), key (1, S)) is True."""

    def hook(value: Tensor, name: str) -> Tensor:
        T, S = value.shape[-2:]
        mask = pattern(torch.arange(T).unsqueeze(1), torch.arange(S).unsqueeze(0))
        mask = mask.to(value).expand(T, S)
        value = value.clone()
        value[:, 1] = mask / mask.sum(-1, keepdim=True)
        return value

    return hook


def set_by_hand(model: Any, pattern: Any) -> HeadPatterns:
    with add_hook(model, "stack.blocks.0.attention.weights", by_hand(pattern)):
        (result,) = head_patterns(model, TOKENIZER, TEXTS)
    return result


@pytest.mark.parametrize(
    ("role", "pattern"),
    [
        ("previous", lambda q, k: k == (q - 1).clamp(min=0)),
        ("first", lambda q, k: k == 0),
        ("self", lambda q, k: k == q),
    ],
)
def test_a_pattern_by_hand_scores_1(role: str, pattern: Any) -> None:
    result = set_by_hand(gpt(**SIZE), pattern)
    score = {name: float(scores[0, 1]) for name, scores in result.scores.items()}
    assert score[role] == pytest.approx(1)
    # The previous token of token 1 is the first token, once in each text.
    count = result.tokens["previous"]
    sizes = [len(ids_of_text(gpt(**SIZE), TOKENIZER, text)["self"]) for text in TEXTS]
    assert count == sum(sizes) - 2
    both = {"previous": 2 / count, "first": 2 / count, "self": 0} | {role: 1}
    for name in ("previous", "first", "self"):
        expected = both[name] if role != "self" else float(name == "self")
        assert score[name] == pytest.approx(expected)


def test_induction_by_hand() -> None:
    model = gpt(**SIZE)
    ids, wanted = repeated_tokens(model, TOKENIZER, 0)
    twice, n = ids["self"], ids["self"].shape[1] // 2
    assert torch.equal(twice[:, :n], twice[:, n:])
    (query, key) = wanted["self"]["induction"].nonzero().T
    assert query.tolist() == list(range(n, 2 * n))
    # The target of induction follows the first occurrence of the query.
    assert torch.equal(twice[:, key - 1], twice[:, query])

    result = set_by_hand(
        model, lambda q, k: k == torch.where(q >= n, q - n + 1, torch.zeros_like(q))
    )
    assert result.scores["induction"][0, 1] == pytest.approx(1)
    assert result.tokens["induction"] == 4 * n
    result = set_by_hand(model, lambda q, k: k <= q)
    assert result.scores["induction"][0, 1] == pytest.approx(result.uniform["induction"])
    assert result.uniform["induction"] == pytest.approx(
        sum(1 / (q + 1) for q in query.tolist()) / n
    )


def test_repeated_tokens_are_framed_as_a_text() -> None:
    """Their ids equal those of a text with the same tokens."""
    mark = TOKENIZER.end or 0
    head = HeadConfig(task="classify", labels=("a", "b"), delimiter=mark, extract=mark, padding=0)
    for model in (
        gpt(**SIZE),
        bert(**SIZE),
        transformer(**SIZE),
        TaskModel(TaskModelConfig(backbone=gpt(**SIZE).config, head=head)),
    ):
        ids, wanted = repeated_tokens(model, TOKENIZER, 0)
        texts = [
            TOKENIZER.decode([id for id in row if id not in TOKENIZER.special])
            for row in next(iter(ids.values()))
        ]
        for row, text in enumerate(texts):
            sides = ids_of_text(
                model, TOKENIZER, (text, text) if isinstance(model, Transformer) else text
            )
            assert ids.keys() == sides.keys()
            for kind, side in sides.items():
                assert ids[kind][row].tolist() == side.tolist()
        for kind, pattern in wanted.items():
            query, key = pattern["induction"].nonzero().T
            assert torch.equal(ids[kind][:, key - 1], ids[kind][:, query])


def test_next_and_same_of_a_bert() -> None:
    result = set_by_hand(bert(**SIZE), lambda q, k: k == (q + 1).clamp(max=int(k.max())))
    assert result.scores["next"][0, 1] == pytest.approx(1)
    # A head that attends to all equal tokens, or if there is none to itself.
    ids = [ids_of_text(bert(**SIZE), TOKENIZER, text)["self"] for text in TEXTS]
    texts = iter([*ids, None])

    def attend_to_equal(value: Tensor, name: str) -> Tensor:
        row = next(texts)
        if row is None:
            return value
        diagonal = torch.eye(len(row), dtype=torch.bool)
        equal = (row.unsqueeze(1) == row) & ~diagonal
        mask = equal | (~equal.any(1, keepdim=True) & diagonal)
        return (mask / mask.sum(1, keepdim=True)).to(value).expand_as(value)

    with add_hook(bert_model := bert(**SIZE), "stack.blocks.1.attention.weights", attend_to_equal):
        (result,) = head_patterns(bert_model, TOKENIZER, TEXTS)
    assert_close(result.scores["same"][1], torch.ones(4))
    assert (result.scores["same"][0] < 1).all()


@pytest.mark.parametrize("make", [gpt, bert])
def test_by_brute_force(make: Any) -> None:
    model = make(**SIZE)
    (result,) = head_patterns(model, TOKENIZER, TEXTS)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    later = make is bert
    for text in TEXTS:
        ids = ids_of_text(model, TOKENIZER, text)["self"].tolist()
        T = len(ids)
        with torch.no_grad(), capture(model, "stack.blocks.*.attention.weights") as captured:
            model(torch.tensor([ids]))
        weights = torch.stack(
            [captured[f"stack.blocks.{layer}.attention.weights"][0] for layer in range(2)]
        )  # (L, H, T, S)
        for t in range(T):
            equal = [s for s in range(T) if ids[s] == ids[t] and (s < t or (later and s != t))]
            keys_of = {
                "previous": [t - 1] * (t > 0),
                "first": [0] * (t > 0),
                "self": [t] * (t > 0),
                "same": equal,
            }
            if later:
                keys_of["next"] = [t + 1] * (t + 1 < T)
            for role, keys in keys_of.items():
                if keys:
                    sums[role] = sums.get(role, 0) + weights[:, :, t, keys].sum(-1)
                    counts[role] = counts.get(role, 0) + 1
    assert set(result.scores) == {*sums, "induction"}
    for role, total in sums.items():
        assert result.tokens[role] == counts[role]
        assert_close(result.scores[role], (total / counts[role]).float())


def test_a_uniform_head_has_the_uniform_baseline() -> None:
    for model, visible in ((gpt(**SIZE), lambda q, k: k <= q), (bert(**SIZE), lambda q, k: k >= 0)):
        result = set_by_hand(model, visible)
        for role, scores in result.scores.items():
            assert scores[0, 1] == pytest.approx(result.uniform[role], rel=1e-5)
            assert 0 <= scores.min() <= scores.max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "sparse",
    [
        {"window": 3},
        {"sparse": "strided", "stride": 3},
        {"sparse": "fixed", "stride": 3},
        {"window": 1},
    ],
)
@pytest.mark.parametrize("make", [gpt, bert, transformer])
def test_the_uniform_baseline_of_sparse_masks(make: Any, sparse: dict[str, Any]) -> None:
    """Equal attention scores at all visible tokens give every head the baseline."""
    model = make(**SIZE, **sparse)
    with add_hook(
        model,
        "*blocks.*.attention.scores",
        lambda value, name: value.masked_fill(~value.isneginf(), 0),
    ):
        result = head_patterns(
            model, TOKENIZER, [(text, text) for text in TEXTS] if make is transformer else TEXTS
        )
    for patterns in result:
        # With a window of 1 no previous token is visible.
        assert ("previous" in patterns.scores) == (sparse != {"window": 1})
        for role, scores in patterns.scores.items():
            uniform = torch.full_like(scores, patterns.uniform[role])
            assert_close(scores, uniform, rtol=1e-5, atol=0)


def test_a_translator_and_a_task_model() -> None:
    encoder, decoder = head_patterns(
        transformer(**SIZE), TOKENIZER, [(TEXTS[0], TEXTS[1]), TEXTS[0]]
    )
    assert (encoder.kind, decoder.kind) == ("encoder", "decoder")
    assert "next" in encoder.scores
    assert "next" not in decoder.scores
    head = HeadConfig(
        task="pair",
        labels=("a", "b"),
        delimiter=TOKENIZER.end or 0,
        extract=TOKENIZER.end or 0,
        padding=0,
    )
    task_model = TaskModel(TaskModelConfig(backbone=gpt(**SIZE).config, head=head))
    (result,) = head_patterns(task_model, TOKENIZER, TEXTS)
    assert result.scores["previous"].shape == (2, 4)


def test_the_strongest_heads_come_first_and_hooks_are_removed() -> None:
    calls: list[tuple[int, int]] = []
    model = gpt(**SIZE)
    (result,) = head_patterns(
        model, TOKENIZER, TEXTS, progress=lambda done, total: calls.append((done, total))
    )
    best = result.strongest("previous", 3)
    assert [score for _, _, score in best] == sorted(
        result.scores["previous"].flatten().tolist(), reverse=True
    )[:3]
    assert result.scores["previous"][best[0][0], best[0][1]] == best[0][2]
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert not has_hooks(model)


def test_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 4)
    (result,) = head_patterns(gpt(**SIZE), TOKENIZER, TEXTS)
    assert result.tokens["previous"] == 6
    assert ids_of_text(bert(**SIZE), TOKENIZER, TEXTS[0])["self"][-1] == TOKENIZER.end


def test_a_text_longer_than_a_segment_is_cut() -> None:
    (result,) = head_patterns(
        gpt(**SIZE | {"context": 5, "memory": 4, "position": "relative"}), TOKENIZER, TEXTS
    )
    assert result.tokens["previous"] == 2 * 4


def test_invalid_requests_are_refused() -> None:
    for model in (gpt(**SIZE), bert(**SIZE)):
        with pytest.raises(ValueError, match=r"text: .*nothing to read"):
            head_patterns(model, TOKENIZER, [" "])
    with pytest.raises(ValueError, match=r"model: .*RNN"):
        head_patterns(rnn(vocabulary=80), TOKENIZER, TEXTS)
    with pytest.raises(ValueError, match=r"texts: .*one or more"):
        head_patterns(gpt(**SIZE), TOKENIZER, [])
    with pytest.raises(ValueError, match=r"context: 3 tokens"):
        head_patterns(gpt(vocabulary=80, context=3), TOKENIZER, ["cat"])


def test_a_long_text_of_a_bert_is_cut_before_its_end_token() -> None:
    model = bert(**(SIZE | {"context": 8}))
    ids = ids_of_text(model, TOKENIZER, "the cat sat on the mat " * 3)["self"].tolist()
    kept_ids = TOKENIZER.encode("the cat sat on the mat")
    assert ids == [TOKENIZER.start, *kept_ids, TOKENIZER.end]
    masked = ids_of_text(model, TOKENIZER, "the [mask] sat")["self"].tolist()
    assert masked.count(TOKENIZER.mask) == 1
    with pytest.raises(ValueError, match=r"text: .*nothing to read"):
        ids_of_text(model, TOKENIZER, " ")
