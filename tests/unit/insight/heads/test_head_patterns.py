"""A head whose weights are set by hand plays exactly the role that they draw; others are counted by
brute force.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.heads import head_patterns as module
from qkv.insight.heads.head_patterns import HeadPatterns, head_patterns, ids_of_text, repeated_tokens
from qkv.models import HeadConfig, TaskModel, TaskModelConfig, Transformer
from qkv.nn.hooks import add_hook, capture
from qkv.text import train
from support.families import bert, gpt, rnn, transformer
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
SIZE: dict[str, Any] = {"vocabulary": TOKENIZER.vocabulary, "context": 40}
TEXTS = ["the cat sat on the mat", "the dog and the cat"]


def by_hand(pattern: Any) -> Any:
    """A listener that gives head 1 the weights of a pattern: query (T, 1), key (1, S) -> where to
    look.
    """

    def put(value: Tensor, name: str) -> Tensor:
        T, S = value.shape[-2:]
        drawn = (
            pattern(torch.arange(T).unsqueeze(1), torch.arange(S).unsqueeze(0))
            .to(value)
            .expand(T, S)
        )
        value = value.clone()
        value[:, 1] = drawn / drawn.sum(-1, keepdim=True)
        return value

    return put


def set_by_hand(model: Any, pattern: Any) -> HeadPatterns:
    with add_hook(model, "stack.blocks.0.attention.weights", by_hand(pattern)):
        (found,) = head_patterns(model, TOKENIZER, TEXTS)
    return found


@pytest.mark.parametrize(
    ("role", "pattern"),
    [
        ("previous", lambda q, k: k == (q - 1).clamp(min=0)),
        ("first", lambda q, k: k == 0),
        ("self", lambda q, k: k == q),
    ],
)
def test_a_pattern_by_hand_is_its_role_and_no_other(role: str, pattern: Any) -> None:
    found = set_by_hand(gpt(**SIZE), pattern)
    score = {name: float(scores[0, 1]) for name, scores in found.scores.items()}
    assert score[role] == pytest.approx(1)
    # Token 1's previous token is the first one: of eleven tokens but the two first ones, that is
    # one of each text.
    asked = found.tokens["previous"]
    sizes = [len(ids_of_text(gpt(**SIZE), TOKENIZER, text)["self"]) for text in TEXTS]
    assert asked == sum(sizes) - 2
    both = {"previous": 2 / asked, "first": 2 / asked, "self": 0} | {role: 1}
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
    assert torch.equal(
        twice[:, key - 1], twice[:, query]
    )  # what it looks at came after its own earlier self

    found = set_by_hand(
        model, lambda q, k: k == torch.where(q >= n, q - n + 1, torch.zeros_like(q))
    )
    assert found.scores["induction"][0, 1] == pytest.approx(1)
    assert found.tokens["induction"] == 4 * n
    found = set_by_hand(model, lambda q, k: k <= q)
    assert found.scores["induction"][0, 1] == pytest.approx(found.even["induction"])
    assert found.even["induction"] == pytest.approx(sum(1 / (q + 1) for q in query.tolist()) / n)


def test_random_words_stand_between_the_marks_of_a_text() -> None:
    """As a text of the same words would be read."""
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
            assert {kind: each[row].tolist() for kind, each in ids.items()} == {
                kind: each.tolist() for kind, each in sides.items()
            }
        for kind, pattern in wanted.items():
            query, key = pattern["induction"].nonzero().T
            assert torch.equal(ids[kind][:, key - 1], ids[kind][:, query])


def test_next_and_same_of_a_bert() -> None:
    found = set_by_hand(bert(**SIZE), lambda q, k: k == (q + 1).clamp(max=int(k.max())))
    assert found.scores["next"][0, 1] == pytest.approx(1)
    # All equal tokens, and nothing else: where there is none, itself.
    ids = [ids_of_text(bert(**SIZE), TOKENIZER, text)["self"] for text in TEXTS]
    place = iter([*ids, None])

    def put(value: Tensor, name: str) -> Tensor:
        own = next(place)
        if own is None:
            return value
        equal = (own.unsqueeze(1) == own) & ~torch.eye(len(own), dtype=torch.bool)
        drawn = equal | (~equal.any(1, keepdim=True) & torch.eye(len(own), dtype=torch.bool))
        return (drawn / drawn.sum(1, keepdim=True)).to(value).expand_as(value)

    with add_hook(bert_model := bert(**SIZE), "stack.blocks.1.attention.weights", put):
        (found,) = head_patterns(bert_model, TOKENIZER, TEXTS)
    assert_close(found.scores["same"][1], torch.ones(4))
    assert (found.scores["same"][0] < 1).all()


@pytest.mark.parametrize("make", [gpt, bert])
def test_by_brute_force(make: Any) -> None:
    model = make(**SIZE)
    (found,) = head_patterns(model, TOKENIZER, TEXTS)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    later = make is bert
    for text in TEXTS:
        ids = ids_of_text(model, TOKENIZER, text)["self"].tolist()
        T = len(ids)
        with torch.no_grad(), capture(model, "stack.blocks.*.attention.weights") as seen:
            model(torch.tensor([ids]))
        weights = torch.stack(
            [seen[f"stack.blocks.{layer}.attention.weights"][0] for layer in range(2)]
        )  # (L, H, T, S)
        for t in range(T):
            equal = [s for s in range(T) if ids[s] == ids[t] and (s < t or (later and s != t))]
            looks = {
                "previous": [t - 1] * (t > 0),
                "first": [0] * (t > 0),
                "self": [t] * (t > 0),
                "same": equal,
            }
            if later:
                looks["next"] = [t + 1] * (t + 1 < T)
            for role, keys in looks.items():
                if keys:
                    sums[role] = sums.get(role, 0) + weights[:, :, t, keys].sum(-1)
                    counts[role] = counts.get(role, 0) + 1
    assert set(found.scores) == {*sums, "induction"}
    for role, total in sums.items():
        assert found.tokens[role] == counts[role]
        assert_close(found.scores[role], (total / counts[role]).float())


def test_a_head_that_looks_everywhere_has_the_even_scores() -> None:
    for model, visible in ((gpt(**SIZE), lambda q, k: k <= q), (bert(**SIZE), lambda q, k: k >= 0)):
        found = set_by_hand(model, visible)
        for role, scores in found.scores.items():
            assert scores[0, 1] == pytest.approx(found.even[role], rel=1e-5)
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
def test_even_is_of_what_a_sparse_mask_shows(make: Any, sparse: dict[str, Any]) -> None:
    """Scores that are all alike wherever they are not minus infinity give every head the even
    score.
    """
    model = make(**SIZE, **sparse)
    with add_hook(
        model,
        "*blocks.*.attention.scores",
        lambda value, name: value.masked_fill(~value.isneginf(), 0),
    ):
        found = head_patterns(
            model, TOKENIZER, [(text, text) for text in TEXTS] if make is transformer else TEXTS
        )
    for each in found:
        assert ("previous" in each.scores) == (
            sparse != {"window": 1}
        )  # nobody is asked for what nobody sees
        for role, scores in each.scores.items():
            assert_close(scores, torch.full_like(scores, each.even[role]), rtol=1e-5, atol=0)


def test_a_translator_and_a_fine_tuned_model() -> None:
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
    tuned = TaskModel(TaskModelConfig(backbone=gpt(**SIZE).config, head=head))
    (found,) = head_patterns(tuned, TOKENIZER, TEXTS)
    assert found.scores["previous"].shape == (2, 4)


def test_the_strongest_come_first_and_nothing_is_kept() -> None:
    told: list[tuple[int, int]] = []
    model = gpt(**SIZE)
    (found,) = head_patterns(
        model, TOKENIZER, TEXTS, progress=lambda done, all: told.append((done, all))
    )
    best = found.strongest("previous", 3)
    assert [score for _, _, score in best] == sorted(
        found.scores["previous"].flatten().tolist(), reverse=True
    )[:3]
    assert found.scores["previous"][best[0][0], best[0][1]] == best[0][2]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert not any(getattr(part, "listeners", None) for part in model.modules())


def test_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 4)
    (found,) = head_patterns(gpt(**SIZE), TOKENIZER, TEXTS)
    assert found.tokens["previous"] == 6
    assert ids_of_text(bert(**SIZE), TOKENIZER, TEXTS[0])["self"][-1] == TOKENIZER.end


def test_a_text_longer_than_a_segment_is_cut() -> None:
    (found,) = head_patterns(
        gpt(**SIZE | {"context": 5, "memory": 4, "position": "relative"}), TOKENIZER, TEXTS
    )
    assert found.tokens["previous"] == 2 * 4


def test_bad_questions() -> None:
    for model in (gpt(**SIZE), bert(**SIZE)):
        with pytest.raises(ValueError, match="text: there is nothing to read"):
            head_patterns(model, TOKENIZER, [" "])
    with pytest.raises(ValueError, match="model: an RNN has no heads"):
        head_patterns(rnn(vocabulary=80), TOKENIZER, TEXTS)
    with pytest.raises(ValueError, match="texts: expected one or more"):
        head_patterns(gpt(**SIZE), TOKENIZER, [])
    with pytest.raises(ValueError, match="context: 3 tokens have no room to say two words twice"):
        head_patterns(gpt(vocabulary=80, context=3), TOKENIZER, ["cat"])


def test_a_long_text_of_a_bert_is_cut_before_its_last_mark() -> None:
    model = bert(**(SIZE | {"context": 8}))
    ids = ids_of_text(model, TOKENIZER, "the cat sat on the mat " * 3)["self"].tolist()
    words = TOKENIZER.encode("the cat sat on the mat")
    assert ids == [TOKENIZER.start, *words, TOKENIZER.end]
    masked = ids_of_text(model, TOKENIZER, "the [mask] sat")["self"].tolist()
    assert masked.count(TOKENIZER.mask) == 1
    with pytest.raises(ValueError, match="text: there is nothing to read"):
        ids_of_text(model, TOKENIZER, " ")
