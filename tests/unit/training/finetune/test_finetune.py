"""Fine-tuning from a folder and a file to a folder: every task, and every amount of training."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.generation.classify import classify
from qkv.models import TaskModel
from qkv.models.convert.hf_folder import read_metadata
from qkv.training.finetune.finetune_examples import split
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.finetuning import PLAIN, TASKS, Asked, answered, asked, make_models
from support.small_training import model_of, same_bits


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


def right(answer: Any, label: Any) -> list[bool]:
    if answer.tags is not None:
        return [tag == true for (_, tag, _), true in zip(answer.tags, label, strict=True)]
    return [str(answer.choice) == label if answer.choice is not None else answer.label == label]


# Every task


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_learned_and_what_is_told_is_what_the_folder_answers(
    task: str, family: str, models: Path, tmp_path: Path
) -> None:
    plan = asked(models, tmp_path, task, family, validate_every=12, checkpoint_every=24)
    made = plan.start()
    assert made.outcome.finished
    assert made.outcome.steps == 24
    model, said, true = answered(plan)
    assert model.config.head.task == plan.tune.task
    if task in ("numbers", "regress"):
        found, expected = [answer.number for answer in said], [float(label) for label in true]
        assert made.measured["pearson"] > 0.95
        assert np.corrcoef(found, expected)[0, 1] == pytest.approx(
            made.measured["pearson"], abs=1e-5
        )
        error = np.abs(np.array(found) - expected).mean()
        assert error == pytest.approx(made.measured["mean_absolute_error"], rel=1e-4)
        assert error < (0.8 if task == "numbers" else 8)
    else:
        correct = [
            each for answer, label in zip(said, true, strict=True) for each in right(answer, label)
        ]
        assert made.measured["accuracy"] == pytest.approx(np.mean(correct))
        assert made.measured["accuracy"] > 0.95
        if task != "choice":
            assert made.labels == model.config.head.labels == tuple(sorted(made.labels))
            assert made.confusion is not None
            assert (made.confusion.sum(), np.trace(made.confusion)) == (len(correct), sum(correct))
    told = json.loads((plan.run.out / "scores.json").read_text())
    assert told["measured"] == pytest.approx(made.measured)


@pytest.mark.usefixtures("without_shape_checks")  # which the tasks were taught with
@pytest.mark.parametrize("train", ["last", "head", "adapters"])
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_part_of_it_learns_too_and_the_rest_keeps_its_bits(
    train: str, family: str, models: Path, tmp_path: Path
) -> None:
    head = {"pooling": "mean", "optimizer": {"learning_rate": 0.1}} if train == "head" else {}
    plan = asked(
        models, tmp_path, "classify", family, train=train, last=1, rank=4, validate_every=24, **head
    )
    assert plan.start().measured["accuracy"] > 0.95
    _, said, true = answered(plan)
    assert all(answer.label == label for answer, label in zip(said, true, strict=True))
    before, after = model_of(models / family), model_of(plan.run.out)
    backbone = {
        name: before[name.removeprefix("backbone.")]
        for name in after
        if name.startswith("backbone.")
    }
    changed = {name for name in backbone if not torch.equal(after[name], backbone[name])}
    blocks = {name for name in after if "blocks." in name}
    expected = {
        "head": set(),
        "last": blocks | {name for name in after if ".stack.norm." in name or ".pooler." in name},
        "adapters": {name for name in blocks if name.endswith(("qkv.weight", "output.weight"))},
    }[train]
    assert changed == expected
    newest = Checkpoints(plan.run.out / "checkpoints").newest()
    assert newest is not None
    held = newest.tensors("model/")
    assert set(held) == (
        {n for n in held if ".adapters." in n} if train == "adapters" else expected
    ) | {name for name in after if name.startswith("head.")}


# Adapters


@pytest.mark.usefixtures("without_shape_checks")  # which the tasks were taught with
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_an_adapter_loads_over_its_base_and_equals_the_merged_model(
    family: str, models: Path, tmp_path: Path
) -> None:
    plan = asked(
        models,
        tmp_path,
        "pair",
        family,
        train="adapters",
        epochs=1,
        projections=("query", "value", "up"),
    )
    plan.start()
    merged, alone = qkv.load(plan.run.out), qkv.load(plan.run.out / "adapter")
    assert isinstance(alone.model, TaskModel)
    assert alone.model.config == merged.model.config
    assert same_bits(dict(alone.model.state_dict()), dict(merged.model.state_dict()))
    adapter = plan.run.out / "adapter" / "adapter_model.safetensors"
    assert adapter.stat().st_size < (plan.run.out / "model.safetensors").stat().st_size
    assert read_metadata(adapter)


# What is asked besides


def test_new_marks_make_the_vocabulary_and_the_tokenizer_larger(
    models: Path, tmp_path: Path
) -> None:
    old = qkv.load(models / "gpt")
    plan = asked(models, tmp_path, "pair", epochs=0.1)
    plan.start()
    new = qkv.load(plan.run.out)
    assert isinstance(new.model, TaskModel)
    assert old.tokenizer is not None
    assert new.tokenizer is not None
    assert new.tokenizer.vocabulary == old.tokenizer.vocabulary + 3 == new.model.config.vocabulary
    head = new.model.config.head
    marks = [new.tokenizer.id(name) for name in ("[begin]", "[delimiter]", "[extract]")]
    assert (
        [head.start, head.delimiter, head.extract]
        == marks
        == list(range(new.tokenizer.vocabulary))[-3:]
    )
    own = asked(models, tmp_path, "pair", epochs=0.1, marks="own", out="own")
    own.start()
    model = qkv.load(own.run.out).model
    assert model.config.vocabulary == old.model.config.vocabulary


def task_of(plan: Asked) -> Any:
    from qkv.training.finetune.finetune import assemble

    return assemble(plan.tune, plan.run)


def test_class_weights(models: Path, tmp_path: Path) -> None:
    def weights(*given: str) -> Any:
        return task_of(asked(models, tmp_path, "classify", class_weights=given)).objective.keywords[
            "class_weights"
        ]

    assert weights() is None
    assert weights("good=3") == (1.0, 3.0)
    assert weights("good=0.5", "bad=2") == (2.0, 0.5)
    assert weights("balanced") == (1.0, 1.0)
    file = tmp_path / "uneven.tsv"
    file.write_text("sentence\tlabel\n" + "warm boats\tgood\n" * 6 + "cold boats\tbad\n" * 2)
    uneven = asked(models, tmp_path, "classify", class_weights=("balanced",), data=(str(file),))
    assert task_of(uneven).objective.keywords["class_weights"] == (8 / (2 * 2), 8 / (2 * 6))


def test_so_many_examples_the_classes_even(models: Path, tmp_path: Path) -> None:
    data = task_of(asked(models, tmp_path, "classify", examples=10)).training
    assert len(data.framed) == 10
    assert sorted(data.targets.tolist()) == [0] * 5 + [1] * 5
    other = task_of(asked(models, tmp_path, "classify", examples=10, seed=1)).training
    assert not np.array_equal(data.framed.ids, other.framed.ids)


def test_similarity_has_numbers_if_any_row_that_is_read_has_a_fraction(
    models: Path, tmp_path: Path
) -> None:
    whole, fraction = (tmp_path / name for name in ("whole.tsv", "fraction.tsv"))
    rows = "".join(f"warm boats\tcold boats\t{number % 5}\n" for number in range(30))
    whole.write_text("sentence1\tsentence2\tscore\n" + rows)
    fraction.write_text("sentence1\tsentence2\tscore\nwarm\tcold\t1.5\ncold\tcold\t5\n")
    plan = asked(
        models, tmp_path, "numbers", data=(str(whole),), validation=(str(fraction),), examples=9
    )
    task = task_of(plan)
    assert task.config.head.numbers
    assert task.metric == "pearson"
    both = plan.but(
        data=(str(whole), str(fraction)), validation=()
    )  # wherever it falls, and whatever is chosen
    for seed in range(3):
        assert task_of(both.but(seed=seed, examples=4)).config.head.numbers
    assert task_of(plan.but(validation=(str(whole),), examples=None)).config.head.labels == tuple(
        "01234"
    )
    broken = tmp_path / "broken.tsv"
    broken.write_text("sentence1\tsentence2\tscore\nwarm\tcold\tmuch\n")
    with pytest.raises(
        ValueError, match=r"broken\.tsv:2: expected a number as the label, not 'much'"
    ):
        task_of(plan.but(data=(str(fraction), str(whole)), validation=(str(broken),)))
    with pytest.raises(
        ValueError, match=r"^examples: 9 are too few for 5 classes; expected 10 or more"
    ):
        task_of(plan.but(validation=(str(whole),)))


@pytest.mark.usefixtures("without_shape_checks")  # which the tasks were taught with
@pytest.mark.parametrize(("offset", "step"), [(1_700_000_000, 12), (0, 1e-7)])
def test_numbers_far_from_zero_and_very_small_ones(
    offset: float, step: float, models: Path, tmp_path: Path
) -> None:
    file = tmp_path / "far.tsv"
    lines = [
        f"{word} {plain}\t{offset + (word == 'warm') * step!r}\n"
        for word in ("warm", "cold")
        for plain in PLAIN
    ]
    file.write_text("sentence\tscore\n" + "".join(lines))
    plan = asked(models, tmp_path, "regress", data=(str(file),), validation=(str(file),), epochs=12)
    assert plan.start().measured["pearson"] > 0.95
    model, tokenizer = qkv.load(plan.run.out)
    warm, cold = (each.number for each in classify(model, tokenizer, ["warm boats", "cold boats"]))
    assert warm == pytest.approx(offset + step, abs=step / 4)
    assert cold == pytest.approx(offset, abs=step / 4)


def test_from_scratch_nothing_is_left_of_the_pre_trained_weights(
    models: Path, tmp_path: Path
) -> None:
    plan = asked(models, tmp_path, "classify", "bert", scratch=True, epochs=0.1)
    model, trained = task_of(plan).initial_model().state_dict(), model_of(models / "bert")
    for name, tensor in model.items():
        if name.startswith("backbone.") and tensor.dim() > 1:
            assert not torch.equal(tensor, trained[name.removeprefix("backbone.")]), name
    plan.start()


@pytest.mark.usefixtures("without_shape_checks")  # which the tasks were taught with
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_tuned_model_is_the_start_of_another_tuning(
    family: str, models: Path, tmp_path: Path
) -> None:
    first = asked(models, tmp_path, "pair", family, epochs=1)
    first.start()
    shutil.move(first.run.out, tmp_path / "intermediate")
    second = asked(models, tmp_path, "classify", family, model=str(tmp_path / "intermediate"))
    begun, middle = task_of(second).initial_model(), model_of(tmp_path / "intermediate")
    for name, tensor in begun.backbone.state_dict().items():
        assert torch.equal(tensor, middle[f"backbone.{name}"]), name
    assert second.start().measured["accuracy"] > 0.95
    # The marks of the first task are those of the second.
    assert (
        qkv.load(second.run.out).model.config.vocabulary
        == qkv.load(tmp_path / "intermediate").model.config.vocabulary
    )


def test_a_longest_text_that_is_asked_for(models: Path, tmp_path: Path) -> None:
    plan = asked(models, tmp_path, "pair", context=7, epochs=0.1)
    assert int(task_of(plan).training.framed.lengths.max()) == 7
    plan.start()
    model, tokenizer = qkv.load(plan.run.out)
    assert isinstance(model, TaskModel)
    assert tokenizer is not None
    one, other = classify(
        model, tokenizer, [("boats", "boats warm " * 3), ("boats", "boats warm boats")]
    )
    assert one.scores == other.scores, "what comes later is not read there either"


def test_validation_from_the_data(models: Path, tmp_path: Path) -> None:
    plan = asked(models, tmp_path, "classify", validation=(), held_out=0.25)
    task = task_of(plan)
    assert (len(task.training.framed), len(task.validation.framed)) == (48, 16)
    other = task_of(plan.but(seed=1))
    assert np.array_equal(task.validation.framed.ids, other.validation.framed.ids), (
        "all seeds have the same"
    )


def test_what_is_held_out_leaves_two_of_each_class() -> None:
    for rare in range(2, 19):
        examples = [
            (number, "rare" if number in (rare, rare + 1) else "common") for number in range(20)
        ]
        training, held_out = split(examples, 0.5, lambda each: each[1])
        assert len(held_out) == 10
        assert sorted(training + held_out) == examples
        assert (training, held_out) == (sorted(training), sorted(held_out)), "in their order"
        assert [each for each in training if each[1] == "rare"] == examples[rare : rare + 2]
    with pytest.raises(
        ValueError, match=r"^data: 4 examples are too few to hold some out; give --validation"
    ):
        split(examples[:2] + examples[18:], 0.5, lambda each: each[1])


def test_steps_and_rates(models: Path, tmp_path: Path) -> None:
    task = task_of(asked(models, tmp_path, "classify", epochs=0.3))
    assert task.steps == math.ceil(0.3 * 8)
    run = asked(models, tmp_path, "classify", epochs=None).run
    assert [run.steps(each) for each in (1, 20, 1000)] == [30, 300, 3000], (
        "more times through little data"
    )
    rates = {
        train: task_of(asked(models, tmp_path, "classify", train=train)).learning_rate
        for train in ("everything", "head")
    }
    assert rates["head"] > rates["everything"] > 0
