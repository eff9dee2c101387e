"""Fine-tuning without a head: a GPT learns to chat, an encoder-decoder to translate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import artifact
from qkv.models import GPT, RNN, GPTConfig, RNNConfig, Transformer
from qkv.text import Tokenizer
from qkv.text.chat_template import encode_chat
from qkv.training.finetune.finetune import assemble
from support.finetuning import SIZE, asked, assert_same_tuning, lively, make_models
from support.small_training import model_of, same_bits


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of every test, a GPT that knows a template of chats, and an RNN."""
    folder = make_models(tmp_path_factory.mktemp("models"))
    tokenizer = Tokenizer.read(folder / "gpt")
    artifact.save(
        RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=16)),
        folder / "rnn",
        tokenizer=tokenizer,
    )
    template = (
        "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <over>{% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    chatting = tokenizer.with_special(("<user>", "<assistant>", "<over>"), chat_template=template)
    config = GPTConfig(vocabulary=chatting.vocabulary, **SIZE)
    artifact.save(lively(GPT(config)), folder / "chatting", tokenizer=chatting)
    return folder


# Chats


def test_a_gpt_learns_to_chat(models: Path, tmp_path: Path) -> None:
    plan = asked(models, tmp_path, "chat", batch=6, epochs=8)
    made = plan.start()
    assert made.outcome.finished
    assert made.measured["loss"] < 0.1
    model, tokenizer = qkv.load(plan.run.out)
    assert isinstance(model, GPT)
    assert tokenizer is not None
    old = qkv.load(models / "gpt")
    assert old.tokenizer is not None
    assert old.tokenizer.chat_template is None
    assert tokenizer.chat_template is not None
    assert model.config.vocabulary == tokenizer.vocabulary == old.tokenizer.vocabulary + 2
    asking = encode_chat(tokenizer, [{"role": "user", "content": "stones rivers"}], reply=True)
    said = model(torch.tensor([asking]))[0, -1].argmax()
    assert tokenizer.decode([int(said)]).strip() == "warm"


@pytest.mark.parametrize("train", ["last", "adapters"])
def test_a_template_of_its_own_is_used_and_a_part_learns(
    train: str, models: Path, tmp_path: Path
) -> None:
    plan = asked(models, tmp_path, "chat", "chatting", train=train, last=1, batch=6, epochs=8)
    task = assemble(plan.tune, plan.run)
    assert task.config.vocabulary == qkv.load(models / "chatting").model.config.vocabulary
    first = plan.start().measured["loss"]
    assert first < 0.3
    before, after = model_of(models / "chatting"), model_of(plan.run.out)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed <= {name for name in after if name.startswith(("stack.", "head."))}
    assert changed
    if train == "adapters":
        alone = qkv.load(plan.run.out / "adapter").model
        assert same_bits(dict(alone.state_dict()), after)


def test_some_conversations_are_held_out(models: Path, tmp_path: Path) -> None:
    task = assemble(*asked(models, tmp_path, "chat", "chatting", validation=(), held_out=0.2)[::2])
    assert "16 conversations to train on" in task.notes[0]
    assert "4 to validate on" in task.notes[0]


@pytest.mark.parametrize(("batch", "steps"), [(4, 5), (32, 1), (3, 7)])
def test_a_batch_is_a_number_of_conversations(
    batch: int, steps: int, models: Path, tmp_path: Path
) -> None:
    task = assemble(*asked(models, tmp_path, "chat", "chatting", batch=batch, epochs=3)[::2])
    assert (task.training.steps_per_epoch, task.steps) == (steps, 3 * steps)
    over = task.tokenizer.id("<over>")
    ends = [int((task.training.batch(step).targets == over).sum()) for step in range(steps)]
    assert ends[0] == min(batch, 20)
    assert sum(ends) == 20, "each of the conversations once an epoch"


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_a_batch_is_a_number_of_pairs_though_one_is_long(
    family: str, models: Path, tmp_path: Path
) -> None:
    plan = asked(models, tmp_path, "translate", family, batch=8)
    with Path(plan.tune.data[0]).open("a") as file:
        file.write(f"{'boats ' * 20}\tboats\n")
    task = assemble(plan.tune, plan.run)
    assert (
        sorted(task.training.batch(step).rows for step in range(task.training.steps_per_epoch))
        == [1] + [8] * 8
    )


def test_only_answers_are_asked_and_no_conversation_sees_another(
    models: Path, tmp_path: Path
) -> None:
    task = assemble(*asked(models, tmp_path, "chat", "chatting", batch=6)[::2])
    batch = task.training.batch(0)
    assert batch.documents is not None
    assert batch.positions is not None
    asked_for = batch.targets[batch.targets != -100]
    words = {task.tokenizer.id(name) for name in ("warm", "boats", "<over>")}
    assert set(asked_for.tolist()) == words
    assert int(batch.documents[0].max()) > 1, "several conversations share a row"


@pytest.mark.usefixtures("without_shape_checks")
def test_stopped_and_resumed_is_never_stopped(
    models: Path, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    choices: dict[str, Any] = {"train": "adapters", "adapter_dropout": 0.2, "batch": 6, "epochs": 2}
    choices["optimizer"] = {
        "optimizer": "muon"
    }  # which has all of it: adapters are matrices inside blocks
    whole = asked(models, tmp_path, "chat", "chatting", out="whole", **choices)
    whole.start()
    stop_after(3)
    stopped = asked(models, tmp_path, "chat", "chatting", out="stopped", **choices)
    assert not stopped.start().outcome.finished
    assert stopped.but(resume=True).start().outcome.finished
    assert_same_tuning(stopped.run.out, whole.run.out)


# Translation


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_an_encoder_decoder_learns_to_translate(family: str, models: Path, tmp_path: Path) -> None:
    plan = asked(models, tmp_path, "translate", family, epochs=4)
    made = plan.start()
    assert made.measured["loss"] < 0.4, "it is log 2 where the right word is not read"
    assert isinstance(qkv.load(plan.run.out).model, Transformer | RNN)


def test_adapters_of_an_encoder_decoder(models: Path, tmp_path: Path) -> None:
    plan = asked(models, tmp_path, "translate", "transformer", train="adapters", epochs=0.5)
    plan.start()
    alone = qkv.load(plan.run.out / "adapter").model
    assert same_bits(dict(alone.state_dict()), model_of(plan.run.out))


# What cannot be


@pytest.mark.parametrize(
    ("task", "family", "choices", "said"),
    [
        ("chat", "bert", {}, "model: .* does not go on from a text; chat expects a GPT"),
        ("chat", "gpt", {"train": "adapters"}, "train: this model never saw a chat's marks"),
        (
            "chat",
            "gpt",
            {"metric": "accuracy"},
            "metric: chat is judged by its loss, not by accuracy",
        ),
        ("chat", "gpt", {"examples": 21}, "examples: there are 20 to train on, not 21"),
        ("translate", "gpt", {}, "model: .* is no encoder-decoder"),
        ("translate", "rnn", {"train": "last"}, "train: an RNN has no blocks"),
        ("translate", "transformer", {"examples": 3}, "examples: translate trains on all pairs"),
        (
            "classify",
            "transformer",
            {},
            "model: .* is an encoder-decoder; classify expects a GPT or a BERT",
        ),
    ],
)
def test_what_is_refused_before_anything_is_left(
    task: str, family: str, choices: dict[str, Any], said: str, models: Path, tmp_path: Path
) -> None:
    plan = asked(models, tmp_path, task, family, **choices)
    with pytest.raises(ValueError, match=f"^{said}"):
        plan.start()
    assert [path.name for path in plan.run.out.iterdir()] == [".lock"]
