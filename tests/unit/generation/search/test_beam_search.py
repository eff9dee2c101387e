"""Beam search equals an exhaustive search and `transformers`, and rows are independent."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from qkv.generation import generate, translate
from qkv.generation.sampling_params import NO_LIKELIEST
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.beams import Hypothesis
from qkv.generation.top_tokens import likeliest
from qkv.models import GPT
from qkv.models.convert import read_folder
from support.every_sequence import every_sequence, words_of
from support.families import gpt, rnn, transformer, words
from support.tiny_transformers import randomised, saved

V, START, END, LENGTH = 4, 1, 2, 4
EVERYTHING = V**LENGTH
TRANSLATORS: dict[str, Callable[[], Any]] = {
    "transformer": lambda: transformer(vocabulary=V),
    "learned positions": lambda: transformer(vocabulary=V, position="learned"),
    "gru": lambda: rnn(vocabulary=V),
    "lstm without attention": lambda: rnn(vocabulary=V, cell="lstm", attention="none"),
}
GENERATORS: dict[str, Callable[[], GPT]] = {
    "gpt": lambda: gpt(vocabulary=V),
    "rotary": lambda: gpt(vocabulary=V, position="rotary", window=3),
    "transformer-xl": lambda: gpt(vocabulary=V, position="relative", memory=20),
}
PENALTIES: list[dict[str, Any]] = [
    {"length_penalty": 0.0},
    {},
    {"length_penalty": 1.0},
    {"length_penalty": 2.5, "penalty": "paper"},
    {"length_penalty": 1.0, "penalty": "power"},
    {"length_penalty": -0.7, "penalty": "power"},
]


def divided(total: float, words: int, length_penalty: float = 0.6, penalty: str = "paper") -> float:
    return total / (((5 + words) / 6) if penalty == "paper" else words) ** length_penalty


def ranked(
    actual: dict[tuple[int, ...], float], length: int, **how: Any
) -> list[tuple[list[int], float, float]]:
    scored = [
        (list(text), divided(total, words_of(text, length), **how), total)
        for text, total in actual.items()
    ]
    return sorted(scored, key=lambda hypothesis: -hypothesis[1])


def translations(model: Any, source: Tensor, length: int = LENGTH) -> dict[tuple[int, ...], float]:
    def scores(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model(source.expand(len(ids), -1), ids)[:, -1].log_softmax(-1)

    return every_sequence(scores, [START], END, length, model.config.vocabulary)


def continuations(
    model: GPT, prompt: list[int], length: int = LENGTH
) -> dict[tuple[int, ...], float]:
    def scores(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return model(ids)[:, -1].log_softmax(-1)

    return every_sequence(scores, prompt, END, length, model.config.vocabulary)


def assert_same(actual: list[Hypothesis], right: list[tuple[list[int], float, float]]) -> None:
    assert [hypothesis.ids for hypothesis in actual] == [ids for ids, _, _ in right]
    for hypothesis, (_, score, total) in zip(actual, right, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-9)
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-9)


# All sequences


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_with_a_beam_for_everything_the_best_are_the_best_of_all(kind: str) -> None:
    model, source = TRANSLATORS[kind](), words(3, 5, vocabulary=V)
    all_of_them = [translations(model, row) for row in source]
    options: dict[str, Any] = {
        "start": START,
        "end": END,
        "length": LENGTH,
        "beams": EVERYTHING,
        "n_best": 20,
    }
    for how in PENALTIES:
        actual = beam_search(model, source, **options, **how)
        for row, every in zip(actual, all_of_them, strict=True):
            assert_same(row, ranked(every, LENGTH, **how)[:20])


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_gpt_goes_on_from_prompts_with_the_best_of_all(kind: str) -> None:
    model, prompts = GENERATORS[kind](), [[3, 1, 0], [0], [2, 2, 1]]
    options: dict[str, Any] = {"end": END, "length": LENGTH, "beams": EVERYTHING, "n_best": 20}
    for how in PENALTIES:
        actual = beam_search(model, prompts, **options, **how)
        for row, prompt in zip(actual, prompts, strict=True):
            assert_same(row, ranked(continuations(model, prompt), LENGTH, **how)[:20])


def test_enough_beams_find_all_sequences() -> None:
    model, source = TRANSLATORS["gru"](), words(1, 3, vocabulary=V)
    right = ranked(translations(model, source[0], 3), 3)
    (actual,) = beam_search(model, source, start=START, end=END, length=3, beams=200, n_best=200)
    assert_same(actual, right)
    assert len(actual) == 1 + 3 + 9 + 27


@pytest.mark.parametrize("minimum", [1, 3])
def test_forbidden_tokens_never_come_and_no_end_before_the_minimum(minimum: int) -> None:
    model, source = TRANSLATORS["transformer"](), words(2, 5, vocabulary=V)
    actual = beam_search(
        model,
        source,
        start=START,
        end=END,
        length=LENGTH,
        beams=100,
        n_best=50,
        minimum=minimum,
        forbidden=[3],
    )
    for row, its in zip(source, actual, strict=True):
        every = translations(model, row)
        may = {
            text: total for text, total in every.items() if 3 not in text and len(text) >= minimum
        }
        assert_same(its, ranked(may, LENGTH)[:50])


def test_without_an_end_every_sequence_has_the_full_length() -> None:
    model = GENERATORS["gpt"]()
    (actual,) = beam_search(model, [[1, 2]], end=None, length=3, beams=64, n_best=64)
    assert sorted(hypothesis.ids for hypothesis in actual) == [
        [a, b, c] for a in range(V) for b in range(V) for c in range(V)
    ]
    assert all(
        hypothesis.score == pytest.approx(divided(hypothesis.log_probability, 3))
        for hypothesis in actual
    )


# Other decoders


@pytest.mark.parametrize("kind", [{}, {"position": "learned"}, {"cell": "gru"}])
def test_one_beam_is_greedy(kind: dict[str, Any]) -> None:
    model, source = rnn(**kind) if "cell" in kind else transformer(**kind), words(12, 6)
    options: dict[str, Any] = {"start": START, "length": 7}
    for end in (1, 5, 8, 12):
        actual = beam_search(model, source, end=end, beams=1, length_penalty=0.0, **options)
        assert [row[0].ids for row in actual] == translate(model, source, end=end, **options)


def test_one_beam_of_a_gpt_is_greedy() -> None:
    model, prompts = gpt(position="rotary"), [words(1, n)[0].tolist() for n in (4, 2, 4, 1)]
    actual = beam_search(model, prompts, end=END, length=9, beams=1, length_penalty=0.0)
    assert [row[0].ids for row in actual] == generate(
        model, prompts, end=END, length=9, temperature=0
    )


MARIAN: dict[str, Any] = {
    "vocab_size": 31,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 30,
    "decoder_start_token_id": 30,
    "eos_token_id": 0,
    "forced_eos_token_id": None,
}


@pytest.mark.parametrize("seed", range(4))
def test_transformers_finds_the_same(seed: int, tmp_path: Path) -> None:
    """early_stopping = "never" is the exact rule; False assumes that no open beam gets better."""
    torch.manual_seed(seed)
    theirs = randomised(MarianMTModel(MarianConfig(**MARIAN)))
    with torch.no_grad():
        theirs.model.shared.weight[0] = 0
        theirs.final_logits_bias[0, 0] = 3.0  # an end is about as likely as another token
    ours = read_folder(saved(theirs, tmp_path))
    source = torch.randint(1, 30, (6, 9))
    padding_mask = torch.arange(9) < torch.tensor([[9], [4], [7], [1], [9], [2]])
    lengths = set()
    for alpha, minimum in ((0.0, 0), (0.6, 3), (1.0, 0), (1.3, 0), (-0.5, 6)):
        with torch.inference_mode():
            right = theirs.generate(
                source.masked_fill(~padding_mask, 30),
                attention_mask=padding_mask.long(),
                num_beams=4,
                num_return_sequences=3,
                min_new_tokens=minimum,
                max_new_tokens=12,
                length_penalty=alpha,
                early_stopping="never",
                bad_words_ids=[[30]],
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
            )
        how: dict[str, Any] = {
            "n_best": 3,
            "length_penalty": alpha,
            "penalty": "power",
            "minimum": minimum,
        }
        actual = beam_search(
            ours, source, padding_mask, start=30, end=0, length=12, forbidden=[30], **how
        )
        ids = [hypothesis.ids for row in actual for hypothesis in row]
        assert ids == [said(row) for row in right.sequences.tolist()]
        assert [hypothesis.score for row in actual for hypothesis in row] == pytest.approx(
            right.sequences_scores.tolist(), abs=1e-4
        )
        lengths |= {len(hypothesis) for hypothesis in ids}
    assert len(lengths) > 5  # so the test covers it


def said(row: list[int]) -> list[int]:
    return row[1 : row.index(0)] if 0 in row else [id for id in row[1:] if id != 30]


# Rows


@pytest.mark.parametrize("kind", [{}, {"cell": "gru"}])
@pytest.mark.parametrize("how", [{}, {"groups": 2, "diversity": 0.5}])
def test_a_sentence_finds_the_same_without_its_neighbours(
    kind: dict[str, Any], how: dict[str, Any]
) -> None:
    model = (rnn(**kind) if kind else transformer()).float()
    source, padding_mask = (
        words(9, 7),
        torch.arange(7) < torch.tensor([[7], [2], [4], [1], [7], [3], [5], [6], [2]]),
    )
    rows = [row[remaining].tolist() for row, remaining in zip(source, padding_mask, strict=True)]
    lengths = set()
    for end in (0, 5, 8, 11):
        options: dict[str, Any] = {
            "start": START,
            "end": end,
            "length": 6,
            "n_best": 4,
            "minimum": 1,
            **how,
        }
        together = ids_of(beam_search(model, source, padding_mask, **options))
        assert ids_of(beam_search(model, rows, batch=2, **options)) == together
        for row, its in zip(rows, together, strict=True):
            assert ids_of(beam_search(model, torch.tensor([row]), **options)) == [its]
        lengths |= {len(ids) for row in together for ids in row}
    assert len(lengths) > 2  # they left at different moments


def ids_of(actual: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in row] for row in actual]


@pytest.mark.parametrize(
    "how", [{}, {"groups": 4}, {"groups": 2, "diversity": 0.3}, {"length_penalty": 2.0}]
)
def test_the_n_best_are_sorted_and_different_and_more_of_them_begin_alike(
    how: dict[str, Any],
) -> None:
    model, source = transformer(), words(6, 5)
    options: dict[str, Any] = {"start": START, "end": END, "length": 8, "beams": 8, **how}
    actual = beam_search(model, source, n_best=8, **options)
    for row in actual:
        scores = [hypothesis.score for hypothesis in row]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.ids) for hypothesis in row}) == len(row)
    if "groups" not in how:
        for n in (1, 3):
            assert ids_of(beam_search(model, source, n_best=n, **options)) == [
                row[:n] for row in ids_of(actual)
            ]


def test_learned_positions_end_where_the_context_is_full() -> None:
    model = gpt(position="learned", context=6)
    actual = beam_search(model, [[1, 2, 3], [4], [5] * 6], end=None, length=30)
    assert [len(row[0].ids) for row in actual] == [4, 6, 1]
    translator = transformer(position="learned", context=6)
    assert (
        len(
            beam_search(translator, words(1, 4), start=START, end=END, length=30, minimum=30)[0][
                0
            ].ids
        )
        == 6
    )


def test_dropout_is_off_and_back_after_and_no_rows_find_nothing() -> None:
    model, source = transformer(dropout=0.5), words(3, 5)
    options: dict[str, Any] = {"start": START, "end": END, "length": 6}
    right = beam_search(model, source, **options)
    model.train()
    assert beam_search(model, source, **options) == right
    assert model.training
    assert beam_search(model, words(0, 3), **options) == []


# The likeliest tokens


@pytest.mark.parametrize("vocabulary", [3, 255, 256, 4000, 5121])
@pytest.mark.parametrize("count", [1, 8, 12])
def test_the_likeliest_tokens_are_those_of_a_sort(vocabulary: int, count: int) -> None:
    logits = torch.randn(7, vocabulary, dtype=torch.float64)
    values, actual = likeliest(logits, count, never=[0])
    right = logits.log_softmax(-1)
    right[:, 0] = -torch.inf
    expected = right.sort(descending=True)
    assert torch.equal(values, expected.values[:, :count])
    assert torch.equal(actual[:, :2], expected.indices[:, : min(2, count)])
    assert torch.equal(right.gather(1, actual), values)


# Bad input


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_best": 5}, "n_best: expected 1 to 4, the number of beams"),
        ({"n_best": 0}, "n_best: expected 1 to 4"),
        ({"beams": 0}, "beams: expected 1 to 1,024, not 0"),
        ({"beams": 1_000_000}, "beams: expected 1 to 1,024, not 1,000,000"),
        ({"length": -3}, "length: expected 1 token or more, not -3"),
        ({"minimum": -1}, "minimum: expected 0 tokens or more, not -1"),
        ({"groups": 3}, "groups: expected a divisor of beams = 4, not 3"),
        ({"groups": 0}, "groups: expected a divisor of beams = 4, not 0"),
        ({"diversity": -1.0}, "diversity: expected 0 or more, not -1"),
        ({"diversity": float("nan")}, "diversity: expected 0 or more, not nan"),
        (
            {"length_penalty": float("nan")},
            r"length_penalty: expected -10 to 10 \(0 for none\), not nan",
        ),
        ({"penalty": "google"}, "penalty: expected paper or power, not 'google'"),
        ({"end": 13}, "end: expected an id from 0 to 12, not 13"),
        ({"start": 13}, "start: expected an id from 0 to 12, not 13"),
        ({"start": None}, "start: expected an id from 0 to 12, not None"),
        ({"forbidden": [2, -1]}, "forbidden: expected an id from 0 to 12, not -1"),
        ({"forbidden": range(13)}, "forbidden: no token is left"),
        ({"batch": 0}, "batch: expected 1 sentence or more, not 0"),
        ({"source": [[1, 2], []]}, "source: expected one id or more in each row"),
        (
            {"source": words(2, 3), "padding_mask": torch.tensor([[True] * 3, [False] * 3])},
            "source: expected one id or more",
        ),
        (
            {"source": words(2, 3), "padding_mask": torch.ones(2, 4, dtype=torch.bool)},
            "padding_mask: expected the source's shape",
        ),
        (
            {"source": words(1, 2, 3)},
            r"source: expected token ids of shape \(T,\) or \(B, T\), not \(1, 2, 3\)",
        ),
        ({"source": [[1, 13]]}, "source: expected ids from 0 to 12, found 13"),
    ],
)
def test_a_wrong_question_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    options = {"source": words(2, 3), "start": START, "end": END, "length": 5} | wrong
    with pytest.raises(ValueError, match=message):
        beam_search(rnn(), options.pop("source"), **options)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_wrong_model_or_prompt_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"start: .*GPT"):
        beam_search(gpt(), [[1]], start=START, end=END, length=3)
    with pytest.raises(ValueError, match=r"prompts: .*context"):
        beam_search(gpt(), [[1] * 17], end=END, length=3)
    with pytest.raises(TypeError, match=r"model: .*Transformer"):
        beam_search(torch.nn.Linear(1, 1), [[1]], end=END, length=3)
    broken = rnn()
    torch.nn.init.constant_(broken.bridge.weight, float("nan"))
    with pytest.raises(ValueError, match=re.escape(NO_LIKELIEST)):
        beam_search(broken, words(2, 3), start=START, end=END, length=3)
