"""The experiments on translation: what they measure, and verdicts that follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.data.embedded import turkish
from qkv.data.sources.source import open_pairs
from qkv.lab import Cell, Experiment, Results, find
from qkv.lab.experiments.translation import alignment_lab, sampling_lab, table2_lab
from qkv.lab.experiments.translation import translators as tr
from qkv.lab.experiments.translation.newstest_table import TABLE_2, draw_table
from qkv.lab.surgery import free_running
from qkv.models import build
from qkv.models.model import Model
from qkv.nn.hooks import add_hook
from qkv.training.setup.training_task import TrainingTask

CPU = torch.device("cpu")
NAMES = ("table2", "scores", "alignment", "forcing", "sampling")
TINY: dict[str, dict[str, Any]] = {
    "table2": {"width": 8, "budget": 2e7, "points": 2, "sentences": 3},
    "scores": {"width": 8, "steps": 2, "points": 2, "sentences": 3},
    "alignment": {"width": 8, "steps": 1, "sentences": 3},
    "forcing": {"width": 8, "steps": 4, "points": 2, "sentences": 3},
    "sampling": {"width": 8, "steps": 1, "sentences": 2, "draws": 20, "samples": 2},
}
PROMISED = {
    "table2": {table2_lab.FINAL, table2_lab.LOST, table2_lab.FLOPS, table2_lab.STEPS, "BLEU"},
    "scores": {"BLEU", "final BLEU", "aligned words"},
    "alignment": {"aligned words", "by head", alignment_lab.ATTENDED, alignment_lab.OTHER},
    "forcing": {"BLEU", "mean BLEU", "errors"},
    "sampling": {"frequency", "rejected", "BLEU", tr.VARIETY},
}


@pytest.fixture(autouse=True)
def few_sentences(small_task: TrainingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 sentences in place of 120,000, small batches and short translations."""
    monkeypatch.setattr(tr, "turkish_task", lambda: small_task)
    monkeypatch.setattr(tr, "LONGEST", 3)
    sampling_lab.translator.cache_clear()


def tiny_cell(name: str, arm: str, seed: int = 0, **settings: Any) -> Cell:
    size = find(name).size("small", **{**TINY[name], **settings})
    return Cell(arm, seed, size, CPU)


def results_of(experiment: Experiment, measured: Mapping[tuple[str, int], Any]) -> Results:
    return Results(experiment, experiment.small, measured)


def planted(experiment: Experiment, by_arm: Mapping[str, Mapping[str, float]]) -> Results:
    """Five seeds with a little noise that all arms share."""
    measured = {}
    for seed in range(5):
        for arm, numbers in by_arm.items():
            measured[arm, seed] = {name: y * (1 + 0.001 * seed) for name, y in numbers.items()}

    return results_of(experiment, measured)


# What is measured


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_gives_finite_numbers_and_again_the_same(name: str) -> None:
    experiment = find(name)
    found: set[str] = set()
    for arm in experiment.arms:
        measured = experiment.measure(tiny_cell(name, arm))
        found |= set(measured)
        for by_x in measured.values():
            numbers = by_x.values() if isinstance(by_x, Mapping) else [by_x]
            assert all(math.isfinite(number) for number in numbers)  # type: ignore[arg-type]

        if arm == experiment.arms[-1]:  # again, from another state of the global generator
            sampling_lab.translator.cache_clear()
            assert experiment.measure(tiny_cell(name, arm)) == measured

    assert found == PROMISED[name]
    drawn = {panel.measure for panel in experiment.panels if panel.draw is None}
    assert drawn <= found


def test_arms_of_a_seed_read_the_same_sentences_from_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Tensor] = []
    started: list[Tensor] = []

    def record(model: Model, batch: Callable[[int], Batch], steps: int, **options: Any) -> None:
        started.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        for step in range(2):
            assert batch(step).source is not None
            read.append(batch(step).targets)

    monkeypatch.setattr(tr, "fit", record)
    for score in ("dot", "scaled_dot"):
        tr.train_translator(tr.rnn(8, score), 2, 7, CPU, rate=1e-2)

    assert torch.equal(read[0], read[2])
    assert torch.equal(read[1], read[3])
    assert torch.equal(*started)


def test_a_curve_crosses_a_level_between_two_points() -> None:
    assert tr.first_crossing({10: 20.0, 20: 40.0, 30: 60.0}, 50.0) == 25.0
    assert tr.first_crossing({10: 80.0}, 40.0) == 5.0
    assert tr.first_crossing({10: 20.0, 20: 40.0}, 50.0) == 20.0  # a bound: never reached


def test_all_models_spend_the_same_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {}

    def record(cell: Cell, config: Any, steps: int, *, members: int, **options: Any) -> Any:
        spent[cell.arm] = members * steps * tr.flops_per_step(config)
        return tr.Followed([], {steps // 2: 10.0, steps: 60.0})

    monkeypatch.setattr(tr, "follow", record)
    monkeypatch.setattr(tr, "bleu_of", lambda *arguments: 60.0)
    for arm in table2_lab.EXPERIMENT.arms:
        measured = table2_lab.measure(tiny_cell("table2", arm, budget=1e10))
        assert 0.97e10 < spent[arm] <= 1e10
        # BLEU 50 is reached at 90% of the steps, and so of the budget
        assert measured[table2_lab.FLOPS] == pytest.approx(math.log2(0.9e10), abs=0.05)
        assert list(measured["BLEU"]) == [5.0, 10.0]  # type: ignore[arg-type]


def test_a_transformer_that_learns_nothing_does_not_need_fewer_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached = {table2_lab.RIVAL: 60.0, table2_lab.NEW: 10.0}

    def record(cell: Cell, config: Any, steps: int, **options: Any) -> Any:
        return tr.Followed([], {steps // 2: 1.0, steps: reached[cell.arm]})

    monkeypatch.setattr(tr, "follow", record)
    monkeypatch.setattr(tr, "bleu_of", lambda *arguments: 60.0)

    def effect(name: str) -> float:
        found = {}
        for arm in reached:
            found[arm] = table2_lab.measure(tiny_cell("table2", arm, budget=1e10))[name]

        return found[table2_lab.RIVAL] - found[table2_lab.NEW]  # type: ignore[operator]

    assert -0.3 < effect(table2_lab.STEPS) < 0  # the RNN reaches 50 before its last step
    assert effect(table2_lab.FLOPS) < 0

    reached[table2_lab.RIVAL] = 10.0  # neither
    assert effect(table2_lab.STEPS) == pytest.approx(0, abs=0.01)
    assert effect(table2_lab.FLOPS) == pytest.approx(0, abs=0.02)

    reached[table2_lab.NEW] = 60.0  # the Transformer only
    assert effect(table2_lab.STEPS) > 0.5


def test_a_curve_needs_a_step_for_each_point() -> None:
    with pytest.raises(ValueError, match="points: 2 points need as many steps, and RNN has 0"):
        table2_lab.measure(tiny_cell("table2", "RNN", budget=1.0))


def test_the_lectures_table_is_complete() -> None:
    assert len(TABLE_2) == 10
    assert sum(row[0] is not None for row in TABLE_2.values()) == 8
    assert sum(row[1] is not None for row in TABLE_2.values()) == 7
    assert sum(row[2] is not None for row in TABLE_2.values()) == 9
    assert sum(row[3] is not None for row in TABLE_2.values()) == 7
    axes = Figure().subplots()
    draw_table(axes, planted(table2_lab.EXPERIMENT, {}))
    labels = [text.get_text() for text in axes.texts]
    assert len(labels) == 17
    assert sum("no FLOPs" in label for label in labels) == 3


# Alignment


def test_fixed_connections_are_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["cats chase mice", "the cat sees a mouse"]
    assert turkish.alignment(sentences[0]) == [0, 2, 1]
    assert turkish.alignment(sentences[1]) == [1, 3, 4, 2]
    monkeypatch.setattr(tr, "chosen_pairs", lambda *a: [(text, "") for text in sentences])
    tr.usual_places.cache_clear()
    assert tr.fixed_accuracy(True, 2) == 1 / 7
    assert tr.fixed_accuracy(False, 2) == 1.0
    tr.usual_places.cache_clear()


def planted_attention(model: Model, english: str) -> Any:
    """A hook that replaces all scores, so that each word attends to its true source."""
    truth = torch.tensor(turkish.alignment(english))

    def replace_scores(scores: Tensor, name: str) -> Tensor:
        wanted = torch.zeros_like(scores)
        wanted[..., torch.arange(len(truth)), truth] = 50.0
        return wanted

    return add_hook(model, "*cross_attention.scores", replace_scores)


def test_accuracy_is_1_for_planted_attention_and_0_beside_it(
    small_task: TrainingTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(replace(tr.transformer(8), vocabulary=small_task.tokenizer.vocabulary))
    english = "the cat sees a mouse"
    monkeypatch.setattr(tr, "chosen_pairs", lambda *a: [(english, "")])
    with planted_attention(model, english):
        accuracy = tr.alignment_accuracy(model, 1)

    assert len(accuracy) == 9  # 2 layers x 4 heads, and their mean
    assert set(accuracy.values()) == {1.0}

    monkeypatch.setattr(turkish, "alignment", lambda text: [0, 0, 0, 0])
    with add_hook(model, "*cross_attention.scores", lambda s, name: s + 50 * torch.eye(6)[5]):
        assert set(tr.alignment_accuracy(model, 1).values()) == {0.0}


@pytest.mark.parametrize("config", [tr.rnn(8), tr.transformer(8)], ids=["rnn", "transformer"])
def test_log_probabilities_are_those_of_the_model(config: Any, small_task: TrainingTask) -> None:
    model = build(replace(config, vocabulary=small_task.tokenizer.vocabulary)).double().eval()
    english = "cats chase mice"
    source, target = tr.forced_rows(model, english)
    with torch.no_grad():
        expected = model(source, target[:, :-1])[0].log_softmax(-1)
        hidden_source = source.clone()
        hidden_source[0, 2] = small_task.tokenizer.unknown or 0
        expected_hidden = model(hidden_source, target[:, :-1])[0].log_softmax(-1)

    found = tr.target_log_probabilities(model, english).double()
    found_hidden = tr.target_log_probabilities(model, english, torch.tensor([2, 2, 2])).double()
    places = torch.arange(3)
    torch.testing.assert_close(found, expected[places, target[0, 1:]], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        found_hidden, expected_hidden[places, target[0, 1:]], rtol=1e-5, atol=1e-5
    )


def test_an_untrained_model_does_not_align() -> None:
    experiment = alignment_lab.EXPERIMENT
    measured = {}
    for seed in range(3):
        for arm in experiment.arms:
            cell = tiny_cell("alignment", arm, seed, sentences=5)
            measured[arm, seed] = experiment.measure(cell)

    assert results_of(experiment, measured).verdict == "does not hold"


# Sampling


def test_chi_square_by_hand() -> None:
    chances = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    counts = torch.tensor([[60, 20, 20]])
    # (10^2 / 50 + 10^2 / 30 + 0) = 5.3333, two degrees: exp(-x / 2)
    assert tr.chi_square_p(counts, chances).item() == pytest.approx(math.exp(-16 / 6))
    # Tokens expected 2 and 3 times are joined: 5 of 100, as observed
    chances = torch.tensor([[0.95, 0.02, 0.03]], dtype=torch.float64)
    assert tr.chi_square_p(torch.tensor([[95, 5, 0]]), chances).item() == pytest.approx(1.0)
    # A certain token leaves nothing to test
    assert tr.chi_square_p(torch.tensor([[100, 0]]), torch.tensor([[1.0, 0.0]])).item() == 1.0


def test_p_values_are_uniform_if_the_counts_follow_the_probabilities() -> None:
    random = torch.Generator().manual_seed(0)
    chances = torch.rand(400, 8, generator=random, dtype=torch.float64)
    chances /= chances.sum(-1, keepdim=True)
    drawn = torch.multinomial(chances, 500, replacement=True, generator=random)
    counts = torch.zeros(400, 8, dtype=torch.long).scatter_add_(1, drawn, torch.ones_like(drawn))
    p = tr.chi_square_p(counts, chances)
    assert 0.02 < (p < 0.05).double().mean() < 0.09
    assert 0.44 < p.mean() < 0.56


def test_tokens_drawn_at_another_temperature_are_rejected(
    small_task: TrainingTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real generator passes the test; one that draws at temperature 3 fails it."""
    torch.manual_seed(0)
    model = build(replace(tr.transformer(8), vocabulary=small_task.tokenizer.vocabulary)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.shape[0] == small_task.tokenizer.vocabulary:
                parameter.mul_(4)  # a few likely tokens

    monkeypatch.setattr(sampling_lab, "translator", lambda *arguments: model)
    cell = tiny_cell("sampling", sampling_lab.USUAL, sentences=5, draws=200)
    assert sampling_lab.measure(cell)["rejected"] <= 0.4  # type: ignore[operator]

    counts = tr.first_token_counts

    def too_hot(model: Model, english: Any, draws: int, temperature: float, seed: int) -> Tensor:
        return counts(model, english, draws, 3 * temperature, seed)

    monkeypatch.setattr(tr, "first_token_counts", too_hot)
    assert sampling_lab.measure(cell)["rejected"] > 0.7  # type: ignore[operator]


def test_scores_and_errors_of_translations_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("", "a b c d"), ("", "a b c d e")]
    monkeypatch.setattr(tr, "chosen_pairs", lambda *a: pairs)
    said = ["a b c d", "a x c", "a b c d e", "a b c d e"]
    monkeypatch.setattr(tr, "in_turkish", lambda *a, **options: said)
    assert tr.translation_scores(None, 2, samples=2)[tr.VARIETY] == 1.5  # type: ignore[arg-type]

    monkeypatch.setattr(tr, "in_turkish", lambda *a, **options: said[1:3])
    assert tr.errors_by_place(None, 2) == {1: 0, 2: 0.5, 3: 0, 4: 0.5}  # type: ignore[arg-type]


def test_several_ways_of_decoding_agree_where_they_must(small_task: TrainingTask) -> None:
    torch.manual_seed(0)
    model = build(replace(tr.transformer(8), vocabulary=small_task.tokenizer.vocabulary)).eval()
    english = [source for source, _ in open_pairs(["turkish:test"])][:4]
    greedy = tr.in_turkish(model, english)
    assert tr.in_turkish(model, english, beams=1, length_penalty=0.0) == greedy
    assert tr.in_turkish([model, model], english) == greedy


def test_forced_batches_are_unchanged_and_free_ones_are_not(small_task: TrainingTask) -> None:
    torch.manual_seed(0)
    model = build(replace(tr.rnn(8), vocabulary=small_task.tokenizer.vocabulary))
    batch = small_task.training.batch(0)
    random = torch.Generator().manual_seed(0)
    assert torch.equal(free_running(model, batch, share=0.0, generator=random).ids, batch.ids)
    free = free_running(model, batch)
    assert not torch.equal(free.ids, batch.ids)
    assert torch.equal(free.targets, batch.targets)


# Verdicts

FOLLOWS: dict[str, dict[str, dict[str, float]]] = {
    "table2": {
        "RNN": {"final BLEU": 20, table2_lab.LOST: 9, table2_lab.FLOPS: 40, table2_lab.STEPS: 12},
        table2_lab.RIVAL: {
            "final BLEU": 60, table2_lab.LOST: 9, table2_lab.FLOPS: 39, table2_lab.STEPS: 10,
        },
        table2_lab.NEW: {
            "final BLEU": 90, table2_lab.LOST: 1, table2_lab.FLOPS: 37, table2_lab.STEPS: 7,
        },
    },
    "scores": {
        "no attention": {"final BLEU": 30},
        "best fixed": {"aligned words": 0.48},
        **{
            arm: {"final BLEU": 80, "aligned words": 0.9}
            for arm in ("dot", "scaled dot", "general", "additive")
        },
    },
    "alignment": {
        "RNN": {"aligned words": 0.9, alignment_lab.ATTENDED: 8, alignment_lab.OTHER: 2},
        "Transformer": {"aligned words": 0.95, alignment_lab.ATTENDED: 9, alignment_lab.OTHER: 3},
        "diagonal": {"aligned words": 0.24},
        "best fixed": {"aligned words": 0.48},
    },
    "forcing": {
        "RNN, forced": {"mean BLEU": 50},
        "RNN, free-running": {"mean BLEU": 5},
        "Transformer, forced": {"mean BLEU": 60},
        "Transformer, free-running": {"mean BLEU": 10},
    },
    "sampling": {
        "greedy": {"BLEU": 90},
        sampling_lab.COOL: {"BLEU": 85, tr.VARIETY: 2},
        sampling_lab.USUAL: {"BLEU": 60, tr.VARIETY: 5, "rejected": 0.06},
        sampling_lab.HOT: {"BLEU": 5, tr.VARIETY: 10, "rejected": 0.8},
    },
}  # fmt: skip
SWAPPED = {
    "table2": (table2_lab.RIVAL, table2_lab.NEW),
    "scores": ("no attention", "dot"),
    "alignment": ("RNN", "best fixed"),
    "forcing": ("RNN, forced", "RNN, free-running"),
    "sampling": (sampling_lab.COOL, sampling_lab.HOT),
}


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_follow_the_numbers(name: str) -> None:
    experiment = find(name)
    assert planted(experiment, FOLLOWS[name]).verdict == "holds"

    # Two arms swapped: what one lacks, it keeps
    one, other = SWAPPED[name]
    swapped = dict(FOLLOWS[name])
    swapped[one] = FOLLOWS[name][one] | FOLLOWS[name][other]
    swapped[other] = FOLLOWS[name][other] | FOLLOWS[name][one]
    assert planted(experiment, swapped).verdict == "does not hold"

    # All arms equal
    everything: dict[str, float] = {}
    for numbers in FOLLOWS[name].values():
        everything |= numbers

    equal = dict.fromkeys(FOLLOWS[name], everything)
    assert planted(experiment, equal).verdict == "does not hold"


def test_wrong_frequencies_alone_overturn_the_verdict_on_sampling() -> None:
    wrong = {arm: dict(numbers) for arm, numbers in FOLLOWS["sampling"].items()}
    wrong[sampling_lab.USUAL]["rejected"] = 0.6
    assert planted(find("sampling"), wrong).verdict == "does not hold"

    # A model so sure that the test can reject nothing
    for arm in sampling_lab.TEMPERATURES:
        wrong[arm]["rejected"] = 0.0

    assert planted(find("sampling"), wrong).verdict == "does not hold"


def test_fixed_connections_as_good_as_a_score_overturn_the_verdict_on_scores() -> None:
    equal = dict(FOLLOWS["scores"])
    equal["best fixed"] = {"aligned words": 0.9}
    assert planted(find("scores"), equal).verdict == "does not hold"
