"""Fine-tuning end to end: every task, what is trained, adapters, and options of the data."""

from __future__ import annotations

import json
import math
import shutil
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.generation.classify import classify
from qkv.models import TaskModel
from qkv.models.convert.hf_folder import read_metadata
from qkv.training.finetune.finetune import assemble
from qkv.training.finetune.finetune_examples import split
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.finetuning import PLAIN, TASKS, TuningJob, answers_of, make_models, tuning_job
from support.small_training import model_of, same_bits


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


def task_of(job: TuningJob) -> Any:
    return assemble(job.tune, job.run)


def is_right(answer: Any, label: Any) -> list[bool]:
    """Whether an answer is right; of tags, one value per word."""
    if answer.tags is not None:
        return [tag == true for (_, tag, _), true in zip(answer.tags, label, strict=True)]
    if answer.choice is not None:
        return [str(answer.choice) == label]

    return [answer.label == label]


# Every task


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_learned_and_the_metrics_are_those_of_the_saved_model(
    task: str, family: str, models: Path, tmp_path: Path
) -> None:
    job = tuning_job(models, tmp_path, task, family, validate_every=12, checkpoint_every=24)
    result = job.start()
    assert result.outcome.finished
    assert result.outcome.steps == 24
    model, answers, labels = answers_of(job)
    assert model.config.head.task == job.tune.task
    scores = json.loads((job.run.out / "scores.json").read_text())
    assert scores["measured"] == pytest.approx(result.measured)

    if task in ("numbers", "regress"):
        predicted = np.array([answer.number for answer in answers])
        true = np.array([float(label) for label in labels])
        pearson = np.corrcoef(predicted, true)[0, 1]
        error = np.abs(predicted - true).mean()
        assert result.measured["pearson"] > 0.95
        assert pearson == pytest.approx(result.measured["pearson"], abs=1e-5)
        assert error == pytest.approx(result.measured["mean_absolute_error"], rel=1e-4)
        assert error < (0.8 if task == "numbers" else 8)
        return

    right: list[bool] = []
    for answer, label in zip(answers, labels, strict=True):
        right += is_right(answer, label)

    assert result.measured["accuracy"] == pytest.approx(np.mean(right))
    assert result.measured["accuracy"] > 0.95
    if task != "choice":
        assert result.labels == model.config.head.labels == tuple(sorted(result.labels))
        assert result.confusion is not None
        assert result.confusion.sum() == len(right)
        assert np.trace(result.confusion) == sum(right)


@pytest.mark.usefixtures("without_shape_checks")  # test_a_task has them
@pytest.mark.parametrize("train", ["last", "head", "adapters"])
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_what_is_trained_learns_and_the_rest_keeps_its_bits(
    train: str, family: str, models: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"train": train, "last": 1, "rank": 4, "validate_every": 24}
    if train == "head":
        options |= {"pooling": "mean", "optimizer": {"learning_rate": 0.1}}

    job = tuning_job(models, tmp_path, "classify", family, **options)
    assert job.start().measured["accuracy"] > 0.95
    _, answers, labels = answers_of(job)
    assert [answer.label for answer in answers] == labels

    before = model_of(models / family)
    after = model_of(job.run.out)
    changed = set()
    for name, weight in after.items():
        base_name = name.removeprefix("backbone.")
        if base_name != name and not torch.equal(weight, before[base_name]):
            changed.add(name)

    blocks = {name for name in after if "blocks." in name}
    expected = {
        "head": set(),
        "last": blocks | {name for name in after if ".stack.norm." in name or ".pooler." in name},
        "adapters": {name for name in blocks if name.endswith(("qkv.weight", "output.weight"))},
    }[train]
    assert changed == expected
    newest = Checkpoints(job.run.out / "checkpoints").newest()
    assert newest is not None
    saved = set(newest.tensors("model/"))
    heads = {name for name in after if name.startswith("head.")}
    if train == "adapters":
        expected = {name for name in saved if ".adapters." in name}

    assert saved == expected | heads


# Adapters


@pytest.mark.usefixtures("without_shape_checks")  # test_a_task has them
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_an_adapter_loads_over_its_base_and_equals_the_merged_model(
    family: str, models: Path, tmp_path: Path
) -> None:
    job = tuning_job(
        models,
        tmp_path,
        "pair",
        family,
        train="adapters",
        epochs=1,
        projections=("query", "value", "up"),
    )
    job.start()
    merged = qkv.load(job.run.out)
    alone = qkv.load(job.run.out / "adapter")
    assert isinstance(alone.model, TaskModel)
    assert alone.model.config == merged.model.config
    assert same_bits(dict(alone.model.state_dict()), dict(merged.model.state_dict()))
    adapter = job.run.out / "adapter" / "adapter_model.safetensors"
    assert adapter.stat().st_size < (job.run.out / "model.safetensors").stat().st_size
    assert read_metadata(adapter)


# Options of the data and the model


def test_new_special_tokens_enlarge_vocabulary_and_tokenizer(models: Path, tmp_path: Path) -> None:
    old = qkv.load(models / "gpt")
    job = tuning_job(models, tmp_path, "pair", epochs=0.1)
    job.start()
    new = qkv.load(job.run.out)
    assert isinstance(new.model, TaskModel)
    assert old.tokenizer is not None
    assert new.tokenizer is not None
    assert new.tokenizer.vocabulary == old.tokenizer.vocabulary + 3 == new.model.config.vocabulary
    head = new.model.config.head
    marks = [new.tokenizer.id(name) for name in ("[begin]", "[delimiter]", "[extract]")]
    assert [head.start, head.delimiter, head.extract] == marks
    assert marks == list(range(new.tokenizer.vocabulary))[-3:]

    other = tuning_job(models, tmp_path, "pair", epochs=0.1, marks="own", out="own")
    other.start()
    model = qkv.load(other.run.out).model
    assert model.config.vocabulary == old.model.config.vocabulary


def test_class_weights(models: Path, tmp_path: Path) -> None:
    def weights(*class_weights: str, **options: Any) -> Any:
        job = tuning_job(models, tmp_path, "classify", class_weights=class_weights, **options)
        return task_of(job).objective.keywords["class_weights"]

    assert weights() is None
    assert weights("good=3") == (1.0, 3.0)
    assert weights("good=0.5", "bad=2") == (2.0, 0.5)
    assert weights("balanced") == (1.0, 1.0)
    file = tmp_path / "uneven.tsv"
    file.write_text("sentence\tlabel\n" + "warm boats\tgood\n" * 6 + "cold boats\tbad\n" * 2)
    assert weights("balanced", data=(str(file),)) == (8 / (2 * 2), 8 / (2 * 6))


def test_a_number_of_examples_with_even_classes(models: Path, tmp_path: Path) -> None:
    data = task_of(tuning_job(models, tmp_path, "classify", examples=10)).training
    assert len(data.framed) == 10
    assert sorted(data.targets.tolist()) == [0] * 5 + [1] * 5
    other = task_of(tuning_job(models, tmp_path, "classify", examples=10, seed=1)).training
    assert not np.array_equal(data.framed.ids, other.framed.ids)


def test_similarity_has_numbers_if_any_label_has_a_fraction(models: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.tsv"
    fraction = tmp_path / "fraction.tsv"
    rows = "".join(f"warm boats\tcold boats\t{number % 5}\n" for number in range(30))
    whole.write_text("sentence1\tsentence2\tscore\n" + rows)
    fraction.write_text("sentence1\tsentence2\tscore\nwarm\tcold\t1.5\ncold\tcold\t5\n")
    job = tuning_job(
        models, tmp_path, "numbers", data=(str(whole),), validation=(str(fraction),), examples=9
    )
    task = task_of(job)
    assert task.config.head.numbers
    assert task.metric == "pearson"

    # Also if the fraction is held out, or not among the chosen examples
    both = job.changed(data=(str(whole), str(fraction)), validation=())
    for seed in range(3):
        assert task_of(both.changed(seed=seed, examples=4)).config.head.numbers

    classes = task_of(job.changed(validation=(str(whole),), examples=None))
    assert classes.config.head.labels == tuple("01234")

    broken = tmp_path / "broken.tsv"
    broken.write_text("sentence1\tsentence2\tscore\nwarm\tcold\tmuch\n")
    with pytest.raises(ValueError, match=r"broken\.tsv:2: .*number .*'much'"):
        task_of(job.changed(data=(str(fraction), str(whole)), validation=(str(broken),)))
    with pytest.raises(ValueError, match=r"^examples: 9 .*too few"):
        task_of(job.changed(validation=(str(whole),)))


@pytest.mark.usefixtures("without_shape_checks")  # test_a_task has them
@pytest.mark.parametrize(("offset", "step"), [(1_700_000_000, 12), (0, 1e-7)])
def test_numbers_far_from_zero_and_very_small_differences(
    offset: float, step: float, models: Path, tmp_path: Path
) -> None:
    file = tmp_path / "far.tsv"
    lines = ["sentence\tscore\n"]
    for word, number in (("warm", offset + step), ("cold", offset)):
        for plain in PLAIN:
            lines.append(f"{word} {plain}\t{number!r}\n")

    file.write_text("".join(lines))
    job = tuning_job(
        models, tmp_path, "regress", data=(str(file),), validation=(str(file),), epochs=12
    )
    assert job.start().measured["pearson"] > 0.95
    model, tokenizer = qkv.load(job.run.out)
    warm, cold = classify(model, tokenizer, ["warm boats", "cold boats"])
    assert warm.number == pytest.approx(offset + step, abs=step / 4)
    assert cold.number == pytest.approx(offset, abs=step / 4)


def test_from_scratch_no_pre_trained_weights_are_used(models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "classify", "bert", scratch=True, epochs=0.1)
    pretrained = model_of(models / "bert")
    for name, tensor in task_of(job).initial_model().state_dict().items():
        if name.startswith("backbone.") and tensor.dim() > 1:
            assert not torch.equal(tensor, pretrained[name.removeprefix("backbone.")]), name
    job.start()


@pytest.mark.usefixtures("without_shape_checks")  # test_a_task has them
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_fine_tuned_model_can_be_fine_tuned_again(
    family: str, models: Path, tmp_path: Path
) -> None:
    first = tuning_job(models, tmp_path, "pair", family, epochs=1)
    first.start()
    shutil.move(first.run.out, tmp_path / "intermediate")
    second = tuning_job(models, tmp_path, "classify", family, model=str(tmp_path / "intermediate"))
    weights = model_of(tmp_path / "intermediate")
    for name, tensor in task_of(second).initial_model().backbone.state_dict().items():
        assert torch.equal(tensor, weights[f"backbone.{name}"]), name

    assert second.start().measured["accuracy"] > 0.95
    # The special tokens of the first task are used by the second.
    vocabulary = qkv.load(tmp_path / "intermediate").model.config.vocabulary
    assert qkv.load(second.run.out).model.config.vocabulary == vocabulary


def test_context_limits_the_length_in_training_and_use(models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "pair", context=7, epochs=0.1)
    assert int(task_of(job).training.framed.lengths.max()) == 7
    job.start()
    model, tokenizer = qkv.load(job.run.out)
    assert isinstance(model, TaskModel)
    assert tokenizer is not None
    long, short = classify(
        model, tokenizer, [("boats", "boats warm " * 3), ("boats", "boats warm boats")]
    )
    assert long.scores == short.scores


def test_validation_is_held_out_of_the_data(models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "classify", validation=(), held_out=0.25)
    task = task_of(job)
    assert len(task.training.framed) == 48
    assert len(task.validation.framed) == 16
    other = task_of(job.changed(seed=1))
    assert np.array_equal(task.validation.framed.ids, other.validation.framed.ids), "every seed"


@pytest.mark.parametrize("rare", range(2, 19))
def test_holding_out_leaves_two_of_each_class(rare: int) -> None:
    examples = [(number, "common") for number in range(20)]
    for number in (rare, rare + 1):
        examples[number] = (number, "rare")

    training, held_out = split(examples, 0.5, itemgetter(1))
    assert len(held_out) == 10
    assert sorted(training + held_out) == examples
    assert training == sorted(training)
    assert held_out == sorted(held_out)
    assert [kind for _, kind in training].count("rare") == 2


def test_too_few_examples_to_hold_some_out() -> None:
    examples = [(0, "common"), (1, "common"), (18, "rare"), (19, "rare")]
    with pytest.raises(ValueError, match=r"^data: 4 examples .*--validation"):
        split(examples, 0.5, itemgetter(1))


def test_default_steps_and_learning_rates(models: Path, tmp_path: Path) -> None:
    task = task_of(tuning_job(models, tmp_path, "classify", epochs=0.3))
    assert task.steps == math.ceil(0.3 * 8)
    run = tuning_job(models, tmp_path, "classify", epochs=None).run
    assert [run.steps(steps) for steps in (1, 20, 1000)] == [30, 300, 3000], (
        "more epochs of few data"
    )
    everything = task_of(tuning_job(models, tmp_path, "classify", train="everything"))
    head = task_of(tuning_job(models, tmp_path, "classify", train="head"))
    assert head.learning_rate > everything.learning_rate > 0
