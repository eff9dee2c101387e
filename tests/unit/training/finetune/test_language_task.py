"""Fine-tuning without a head: a GPT learns to chat, an encoder-decoder to translate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import artifact
from qkv.data.batches.batch import IGNORE
from qkv.models import GPT, RNN, GPTConfig, RNNConfig, Transformer
from qkv.text import Tokenizer
from qkv.text.chat_template import encode_chat
from qkv.training.finetune.finetune import assemble
from support.finetuning import SIZE, assert_same_tuning, lively, make_models, tuning_job
from support.small_training import model_of, same_bits


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of every test, a GPT with a chat template, and an RNN."""
    folder = make_models(tmp_path_factory.mktemp("models"))
    tokenizer = Tokenizer.read(folder / "gpt")
    artifact.save(
        RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=16)),
        folder / "rnn",
        tokenizer=tokenizer,
    )
    template = (
        "{% for message in messages %}"
        "<{{ message['role'] }}> {{ message['content'] }} <over>"
        "{% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    chatting = tokenizer.with_special_tokens(
        ("<user>", "<assistant>", "<over>"), chat_template=template
    )
    config = GPTConfig(vocabulary=chatting.vocabulary, **SIZE)
    artifact.save(lively(GPT(config)), folder / "chatting", tokenizer=chatting)
    return folder


# Chat


def test_a_gpt_learns_to_chat(models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "chat", batch=6, epochs=8)
    result = job.start()
    assert result.outcome.finished
    assert result.measured["loss"] < 0.1
    model, tokenizer = qkv.load(job.run.out)
    assert isinstance(model, GPT)
    assert tokenizer is not None
    old = qkv.load(models / "gpt")
    assert old.tokenizer is not None
    assert old.tokenizer.chat_template is None
    assert tokenizer.chat_template is not None
    assert model.config.vocabulary == tokenizer.vocabulary == old.tokenizer.vocabulary + 2
    prompt = encode_chat(tokenizer, [{"role": "user", "content": "stones rivers"}], reply=True)
    next_id = int(model(torch.tensor([prompt]))[0, -1].argmax())
    assert tokenizer.decode([next_id]).strip() == "warm"


@pytest.mark.parametrize("train", ["last", "adapters"])
def test_the_tokenizers_own_chat_template_is_used(train: str, models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "chat", "chatting", train=train, last=1, batch=6, epochs=8)
    task = assemble(job.tune, job.run)
    assert task.config.vocabulary == qkv.load(models / "chatting").model.config.vocabulary
    assert job.start().measured["loss"] < 0.3
    before = model_of(models / "chatting")
    after = model_of(job.run.out)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed <= {name for name in after if name.startswith(("stack.", "head."))}
    assert changed
    if train == "adapters":
        alone = qkv.load(job.run.out / "adapter").model
        assert same_bits(dict(alone.state_dict()), after)


def test_some_conversations_are_held_out(models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "chat", "chatting", validation=(), held_out=0.2)
    task = assemble(job.tune, job.run)
    assert "16 conversations to train on" in task.notes[0]
    assert "4 to validate on" in task.notes[0]


@pytest.mark.parametrize(("batch", "steps"), [(4, 5), (32, 1), (3, 7)])
def test_a_batch_is_a_number_of_conversations(
    batch: int, steps: int, models: Path, tmp_path: Path
) -> None:
    job = tuning_job(models, tmp_path, "chat", "chatting", batch=batch, epochs=3)
    task = assemble(job.tune, job.run)
    assert task.training.steps_per_epoch == steps
    assert task.steps == 3 * steps
    over = task.tokenizer.id("<over>")
    ends = [int((task.training.batch(step).targets == over).sum()) for step in range(steps)]
    assert ends[0] == min(batch, 20)
    assert sum(ends) == 20, "every conversation once per epoch"


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_a_batch_is_a_number_of_pairs_even_if_one_is_long(
    family: str, models: Path, tmp_path: Path
) -> None:
    job = tuning_job(models, tmp_path, "translate", family, batch=8)
    with Path(job.tune.data[0]).open("a") as file:
        file.write(f"{'boats ' * 20}\tboats\n")

    task = assemble(job.tune, job.run)
    steps = range(task.training.steps_per_epoch)
    assert sorted(task.training.batch(step).rows for step in steps) == [1] + [8] * 8


def test_only_answers_have_a_loss_and_conversations_do_not_attend_to_each_other(
    models: Path, tmp_path: Path
) -> None:
    job = tuning_job(models, tmp_path, "chat", "chatting", batch=6)
    task = assemble(job.tune, job.run)
    batch = task.training.batch(0)
    assert batch.documents is not None
    assert batch.positions is not None
    targets = batch.targets[batch.targets != IGNORE]
    answer = {task.tokenizer.id(token) for token in ("warm", "boats", "<over>")}
    assert set(targets.tolist()) == answer
    assert int(batch.documents[0].max()) > 1, "several conversations share a row"


@pytest.mark.usefixtures("without_shape_checks")
def test_a_stopped_and_resumed_run_equals_an_undisturbed_one(
    models: Path, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    options: dict[str, Any] = {"train": "adapters", "adapter_dropout": 0.2, "batch": 6, "epochs": 2}
    # Muon updates everything here: adapters are matrices inside blocks.
    options["optimizer"] = {"optimizer": "muon"}
    whole = tuning_job(models, tmp_path, "chat", "chatting", out="whole", **options)
    whole.start()
    stop_after(3)
    stopped = tuning_job(models, tmp_path, "chat", "chatting", out="stopped", **options)
    assert not stopped.start().outcome.finished
    assert stopped.changed(resume=True).start().outcome.finished
    assert_same_tuning(stopped.run.out, whole.run.out)


# Translation


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_an_encoder_decoder_learns_to_translate(family: str, models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "translate", family, epochs=4)
    result = job.start()
    assert result.measured["loss"] < 0.4, "log 2 is the loss of guessing between two words"
    assert isinstance(qkv.load(job.run.out).model, Transformer | RNN)


def test_adapters_of_an_encoder_decoder(models: Path, tmp_path: Path) -> None:
    job = tuning_job(models, tmp_path, "translate", "transformer", train="adapters", epochs=0.5)
    job.start()
    alone = qkv.load(job.run.out / "adapter").model
    assert same_bits(dict(alone.state_dict()), model_of(job.run.out))


# Errors


@pytest.mark.parametrize(
    ("task", "family", "options", "message"),
    [
        ("chat", "bert", {}, "model: .*expects a GPT"),
        ("chat", "gpt", {"train": "adapters"}, "train: .*new to this model"),
        ("chat", "gpt", {"examples": 21}, "examples: there are 20"),
        ("translate", "gpt", {}, "model: .*no encoder-decoder"),
        ("translate", "rnn", {"train": "last"}, "train: .*no blocks"),
        ("translate", "transformer", {"examples": 3}, "examples: .*all pairs"),
        ("classify", "transformer", {}, "model: .*expects a GPT or a BERT"),
    ],
)
def test_errors_come_before_anything_is_written(
    task: str, family: str, options: dict[str, Any], message: str, models: Path, tmp_path: Path
) -> None:
    job = tuning_job(models, tmp_path, task, family, **options)
    with pytest.raises(ValueError, match=f"^{message}"):
        job.start()

    assert [path.name for path in job.run.out.iterdir()] == [".lock"]
