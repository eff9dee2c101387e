"""RUN@STEP opens a checkpoint wherever a model is named: of training and of fine-tuning."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import artifact
from qkv.command_line.model_opening import Machine, load_on_device
from qkv.commands.serve import loader
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run_config import RunConfig
from qkv.training.setup.run_folder import read_description
from support.finetuning import make_models, tuning_job
from support.small_training import model_of, same_bits, small_job

CPU = Machine(device="cpu")


def raises(message: str) -> Any:
    return pytest.raises(ValueError, match=re.escape(message))


def weights(name: Path | str, **options: Any) -> dict[str, torch.Tensor]:
    return dict(qkv.load(name, **options).model.state_dict())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of twelve steps with all checkpoints and an exponential moving average."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("QKV_CACHE", str(folder / "cache"))
        small_job(
            "gpt",
            folder,
            keep="all",
            optimizer={"average": "exponential", "average_decay": 0.5},
        ).start()
        yield folder / "run"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


# Training


def test_every_checkpoint_opens_with_the_weights_that_were_validated(run: Path) -> None:
    checkpoints = Checkpoints(run / "checkpoints")
    # Every third step, and those that were the best so far
    assert checkpoints.steps() == [0, 3, 4, 6, 8, 9, 12]
    for checkpoint in checkpoints.intact(checkpoints.steps()):
        model, tokenizer = qkv.load(f"{run}@{checkpoint.step}")
        assert same_bits(dict(model.state_dict()), checkpoint.tensors("average/"))
        assert not model.training
        assert tokenizer is not None
        assert tokenizer.fingerprint == artifact.tokenizer_of(run).fingerprint
    best = checkpoints.best()
    assert best is not None
    assert same_bits(weights(f"{run}@{best.step}"), model_of(run))


def test_the_name_may_be_a_path_wherever_a_model_is_opened(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = weights(f"{run}@3")
    monkeypatch.chdir(run.parent)
    for name in ("run@3", "run/@3", "./run@0003", "run/checkpoints/step-00000003", Path("run@3")):
        assert same_bits(weights(name), expected)
    assert same_bits(dict(load_on_device("run@3", CPU).model.state_dict()), expected)
    assert same_bits(dict(loader("run@3", CPU)()[0].state_dict()), expected)
    vocabulary = load_on_device("run@3", CPU).model.config.vocabulary
    assert artifact.tokenizer_of("run@3").vocabulary == vocabulary


def test_a_folder_of_that_name_is_opened_itself(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(run, tmp_path / "run@3")
    assert same_bits(weights(tmp_path / "run@3"), model_of(run))
    assert same_bits(weights(f"{tmp_path / 'run@3'}@6"), weights(f"{run}@6"))


def test_errors_say_which_checkpoints_there_are(run: Path, tmp_path: Path) -> None:
    with raises(f"{run}@5: there is no checkpoint of step 5; {run} has 0, 3, 4, 6, 8, 9, 12"):
        qkv.load(f"{run}@5")
    with raises(f"{run}@last: expected the step of a checkpoint"):
        qkv.load(f"{run}@last")
    with raises(f"{tmp_path}@5: {tmp_path} has no checkpoints"):
        qkv.load(f"{tmp_path}@5")
    with raises("there is no such folder"):
        qkv.load(f"{tmp_path / 'nothing'}@5")
    with raises("is a whole model, not an adapter"):
        qkv.load(f"{run}@3", base=run)


def test_a_damaged_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "step-00000003" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with raises(f"{file}: damaged or cut short"):
        qkv.load(f"{tmp_path / 'run'}@3")
    (tmp_path / "run" / "run.json").write_text('{"model": {}}')
    with raises(f"{tmp_path / 'run' / 'run.json'}: damaged, or of another version"):
        qkv.load(f"{tmp_path / 'run'}@4")


def test_a_checkpoint_with_nan_opens_only_with_allow_nonfinite(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {
        name: torch.full_like(tensor, torch.nan) for name, tensor in weights(f"{run}@3").items()
    }
    monkeypatch.setattr(artifact.checkpoint, "weights_in", lambda path: broken)
    with raises("numbers are NaN or infinite: the training diverged"):
        qkv.load(f"{run}@3")
    assert torch.isnan(next(iter(weights(f"{run}@3", allow_nonfinite=True).values()))).all()


def test_valid_values_of_keep(tmp_path: Path) -> None:
    assert RunConfig(out=tmp_path, keep="all").keep == "all"
    for keep in (0, -1):
        with raises("keep: expected 1 or more, or all"):
            RunConfig(out=tmp_path, keep=keep)


def test_average_last_takes_three_checkpoints_when_all_are_kept(tmp_path: Path) -> None:
    for keep in ("all", 3):
        small_job(
            "gpt",
            tmp_path,
            tmp_path / str(keep),
            keep=keep,
            validate_every=12,
            optimizer={"average": "last"},
        ).start()
    assert same_bits(model_of(tmp_path / "all"), model_of(tmp_path / "3"))
    assert Checkpoints(tmp_path / "all" / "checkpoints").steps() == [0, 3, 6, 9, 12]


# Fine-tuning


@pytest.mark.parametrize(
    ("task", "train"), [("classify", "adapters"), ("classify", "last"), ("translate", "adapters")]
)
def test_a_checkpoint_without_the_frozen_weights_opens_as_a_whole_model(
    task: str, train: str, models: Path, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    family = "transformer" if task == "translate" else "bert"
    base = shutil.copytree(models / family, tmp_path / "base")
    job = tuning_job(
        tmp_path,
        tmp_path,
        task,
        "base",
        train=train,
        last=1,
        keep="all",
        validate_every=3,
        checkpoint_every=2,
    )
    stop_after(2)
    assert not job.start().outcome.finished
    out = job.run.out
    # Before the first validation the model has the newest weights
    assert same_bits(weights(out), weights(f"{out}@2"))
    stop_after(5)
    job.changed(resume=True).start()
    best = Checkpoints(out / "checkpoints").best()
    assert best is not None
    assert same_bits(weights(f"{out}@{best.step}"), model_of(out))
    assert not same_bits(weights(f"{out}@2"), model_of(out))
    if train == "adapters":
        assert same_bits(weights(out / "adapter"), model_of(out))
        moved = base.rename(tmp_path / "moved")
        with raises(f"its base, the model {str(base)!r}, is not here"):
            qkv.load(f"{out}@2")
        assert same_bits(weights(f"{out}@{best.step}", base=moved), model_of(out))
        make_models(tmp_path / "others")
        other = artifact.load(tmp_path / "others" / family).model
        torch.nn.init.ones_(next(other.parameters()))
        artifact.save(other, base)
        with raises("its adapters were trained on other weights than"):
            qkv.load(f"{out}@2")


def test_a_checkpoint_can_be_fine_tuned_and_resumed_from_another_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: Callable[[int], None]
) -> None:
    monkeypatch.chdir(run.parent)
    job = tuning_job(Path(), tmp_path, "classify", f"{run.name}@3", epochs=0.5)
    stop_after(2)
    job.start()
    assert read_description(job.run.out)["data"]["model"] == f"{run}@3"
    monkeypatch.chdir(tmp_path)
    stop_after(-1)
    assert job.changed(model=f"{run}@3", resume=True).start().outcome.finished
