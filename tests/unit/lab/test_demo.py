"""The demo trains to its score, fits slow machines, and resumes where it was stopped."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console

import qkv
from qkv import cli
from qkv.data.embedded import python_library, turkish
from qkv.lab import demo
from qkv.models import Model, Transformer
from qkv.text import train
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingTask, assemble
from support.sentences import SENTENCES


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepare the data once for all of these tests, in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def buffer_console() -> Console:
    return Console(file=io.StringIO(), width=100)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def score(text: str) -> float:
    (value,) = re.findall(r"BLEU (\d+\.\d)", text)
    return float(value)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_translator_reaches_its_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BLEU of at least 95 on unseen combinations of nouns and verbs, and the right alignment."""
    monkeypatch.setattr(demo, "TRANSLATOR_SECONDS", 1e9)  # on a machine that is never too slow
    console = buffer_console()
    assert demo.show_translator(console, tmp_path / "turkish", demo.TRANSLATOR_STEPS)
    text = text_of(console)
    assert score(text) >= 95
    assert "cats chase mice: kediler fareleri kovalar\n" in text
    assert "kediler attends to cats; fareleri attends to mice; kovalar attends to chase." in text


@pytest.fixture
def little_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few sentences and few modules of Python, to prepare, to validate on and to translate.

    An untrained model translates slowly, since it ends no sentence.
    """
    monkeypatch.setattr(turkish, "SIZES", {"train": 4_000, "valid": 100, "test": 40})
    modules = ["typing.py", "inspect.py", "doctest.py", "queue.py"]  # the last for validation
    monkeypatch.setattr(python_library, "names", lambda folder: modules)
    turkish.corpus.cache_clear()
    yield
    turkish.corpus.cache_clear()


@pytest.mark.usefixtures("without_shape_checks", "little_data")
def test_a_finished_model_is_not_trained_again(tmp_path: Path) -> None:
    console = buffer_console()
    demo.show_demo(console, tmp_path, translator_steps=2, writer_steps=1)
    first = text_of(console)
    assert score(first) < 20  # measured
    assert first.count("class Reader:") == 2  # once while it is trained
    assert "is already trained" not in first
    before = {path: path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}
    assert len(before) == 2

    console = buffer_console()
    demo.show_demo(console, tmp_path, translator_steps=2, writer_steps=1)
    again = text_of(console)
    assert again.count("is already trained; delete it to train it again") == 2
    assert score(again) == score(first)
    continuation = "The prompt is bold"
    assert again[again.index(continuation) :] == first[first.index(continuation) :]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("without_shape_checks", "little_data")
def test_a_stopped_demo_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(task: TrainingTask) -> Callable[[Model], list[str]]:
        def make_samples(model: Model) -> list[str]:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
            return []

        return make_samples

    console = buffer_console()
    with monkeypatch.context() as patch:
        patch.setattr(demo, "sample_translation", stopping)
        demo.show_demo(console, tmp_path, translator_steps=5, writer_steps=1)
    assert "Stopped. qkv demo resumes the training." in text_of(console)
    assert "BLEU" not in text_of(console)
    assert not (tmp_path / "python").exists()

    assert demo.trained_translator(buffer_console(), tmp_path / "turkish", steps=5)
    assert demo.trained_translator(buffer_console(), tmp_path / "whole", steps=5)
    resumed = qkv.load(tmp_path / "turkish").model.state_dict()
    whole = qkv.load(tmp_path / "whole").model.state_dict()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.usefixtures("little_data")
def test_a_slow_machine_trains_for_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps of two seconds fit into eight; a shortened run is resumed with as many."""
    monkeypatch.setattr(demo, "FEWEST_STEPS", 2)
    monkeypatch.setattr(demo, "TRANSLATOR_SECONDS", 8.0)
    monkeypatch.setattr(demo, "seconds_per_step", lambda task, optimizer, run: 2.0)
    monkeypatch.setattr(demo, "sample_translation", lambda task: lambda model: [])
    console = buffer_console()
    assert demo.trained_translator(console, tmp_path / "turkish")
    printed = text_of(console).replace("\n", " ")
    assert "A step takes 2.00 s" in printed
    assert "trains for 4 steps instead of 300, about 8 s." in printed
    assert demo.read_run_flags(tmp_path / "turkish")[1]["steps"] == 4
    console = buffer_console()
    assert demo.trained_translator(console, tmp_path / "turkish")
    assert "is already trained" in text_of(console)
    assert "instead of" not in text_of(console)


@pytest.mark.usefixtures("little_data")
def test_timing_the_first_steps_changes_nothing(tmp_path: Path) -> None:
    data = DataConfig(data=("turkish",), tokenizer="words")
    task = assemble(demo.TRANSLATOR, data, batch_tokens=64, seed=0)
    run = RunConfig(out=tmp_path, steps=400)
    random_state = torch.get_rng_state()
    console = buffer_console()
    assert demo.affordable(console, task, OptimizerConfig(), run, seconds=1e6) == 400
    assert text_of(console) == ""
    assert demo.affordable(console, task, OptimizerConfig(), run, seconds=0) == demo.FEWEST_STEPS
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not list(tmp_path.iterdir())


def test_the_suggested_commands_exist() -> None:
    text = demo.next_steps(Path("runs/demo")).plain
    commands = re.findall(r"^    qkv (\w+)", text, flags=re.MULTILINE)
    assert set(commands) == {
        "translate",
        "look",
        "serve",
        "generate",
        "train",
        "finetune",
        "plot",
        "demo",
        "evaluate",
    }
    assert set(commands) <= set(cli.COMMANDS)
    assert max(map(len, text.splitlines())) < 80


def test_without_qkv_on_the_path_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)
    assert "source " in demo.next_steps(Path("runs/demo")).plain.splitlines()[1]
    monkeypatch.setattr(demo.shutil, "which", lambda name: "/usr/bin/qkv")
    assert "source " not in demo.next_steps(Path("runs/demo")).plain


@pytest.mark.usefixtures("little_data")
def test_an_empty_translation_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        demo, "in_turkish", lambda model, tokenizer, sentences: [""] * len(sentences)
    )
    console = buffer_console()
    demo.show_translator(console, tmp_path / "turkish", steps=1)
    assert score(text_of(console)) == 0
    assert "cats chase mice: \n" in text_of(console)


@pytest.mark.usefixtures("little_data")
def test_a_translation_is_not_read_as_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translation = "[bold]kediler[/bold] [/]"
    out = tmp_path / "[red]runs"
    monkeypatch.setattr(
        demo, "in_turkish", lambda model, tokenizer, sentences: [translation] * len(sentences)
    )
    result = demo.Aligned(translation, ["[/x]"], ["[bold]"], torch.ones(1, 1))
    monkeypatch.setattr(demo, "aligned", lambda model, tokenizer, english: result)
    monkeypatch.setattr(demo, "train", lambda *config, **options: None)
    console = buffer_console()
    model = Transformer(demo.TRANSLATOR)
    tokenizer = train("words", SENTENCES, 80)
    demo.show_score(console, model, tokenizer)
    assert translation in text_of(console)
    demo.show_alignment(console, model, tokenizer, "cats")
    assert f"cats: {translation}\n" in text_of(console)
    assert "[/x] attends to [bold].\n" in text_of(console)
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"step": 1, "event": "finished"}\n')
    assert not demo.trained_translator(console, out)
    assert f"{out} is already trained" in text_of(console)
