"""The demo does what it promises, ends by itself, and goes on where it was stopped."""

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
from qkv.data.sources.source import open_pairs
from qkv.lab import demo
from qkv.models import Model, Transformer
from qkv.text import train
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingTask, assemble
from support.sentences import SENTENCES


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared once for all of these tests, and not where a person's own data is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def paper() -> Console:
    return Console(file=io.StringIO(), width=100)


def on(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def score(text: str) -> float:
    (found,) = re.findall(r"BLEU (\d+\.\d)", text)
    return float(found)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_translator_keeps_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the demo's own steps: BLEU 95 and more on nouns and verbs that never met, and an
    alignment to look at.
    """
    monkeypatch.setattr(demo, "TRANSLATOR_SECONDS", 1e9)  # on a machine that is never too slow
    console = paper()
    assert demo.show_translator(console, tmp_path / "turkish", steps=400)
    text = on(console)
    assert score(text) >= 95
    assert "cats chase mice: kediler fareleri kovalar\n" in text
    assert "kediler looked at cats; fareleri looked at mice; kovalar looked at chase." in text


@pytest.fixture
def few_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that learned little ends no sentence: forty are enough to see that it is asked."""
    monkeypatch.setattr(demo, "open_pairs", lambda names: list(open_pairs(names))[:40])


@pytest.mark.usefixtures("without_shape_checks", "few_sentences")
def test_everything_is_shown_and_nothing_is_trained_twice(tmp_path: Path) -> None:
    console = paper()
    demo.show(console, tmp_path, translator_steps=2, writer_steps=1)
    first = on(console)
    assert score(first) < 20  # measured, not told
    assert first.count("class Reader:") == 2  # once while it is trained
    assert "is there already" not in first
    before = {path: path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}
    assert len(before) == 2

    console = paper()
    demo.show(console, tmp_path, translator_steps=2, writer_steps=1)
    again = on(console)
    assert again.count("is there already; delete it to see it trained from the beginning") == 2
    assert score(again) == score(first)
    assert (
        again[again.index("The first words are ours") :]
        == first[first.index("The first words are ours") :]
    )
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("without_shape_checks")
def test_a_demo_that_is_stopped_goes_on_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(task: TrainingTask) -> Callable[[Model], list[str]]:
        def say(model: Model) -> list[str]:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
            return []

        return say

    console = paper()
    with monkeypatch.context() as patch:
        patch.setattr(demo, "sample_translation", stopping)
        demo.show(console, tmp_path, translator_steps=8, writer_steps=1)
    assert "Stopped. qkv demo goes on from here." in on(console)
    assert "BLEU" not in on(console)
    assert not (tmp_path / "python").exists()

    assert demo.trained_translator(paper(), tmp_path / "turkish", steps=8)
    assert demo.trained_translator(paper(), tmp_path / "whole", steps=8)
    resumed, right = (qkv.load(tmp_path / name).model.state_dict() for name in ("turkish", "whole"))
    assert all(torch.equal(resumed[name], right[name]) for name in right)


def test_a_slow_machine_takes_fewer_steps_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps of two seconds fit into eight; a run that was shortened is resumed with as many."""
    monkeypatch.setattr(demo, "FEWEST_STEPS", 2)
    monkeypatch.setattr(demo, "TRANSLATOR_SECONDS", 8.0)
    monkeypatch.setattr(demo, "seconds_per_step", lambda task, optimizer, run: 2.0)
    monkeypatch.setattr(demo, "sample_translation", lambda task: lambda model: [])
    console = paper()
    assert demo.trained_translator(console, tmp_path / "turkish")
    told = "A step takes 2.00 s on this machine now, so the demo trains for 4 steps instead of 400, about 8 s."
    assert told in on(console).replace("\n", " ")
    assert demo.remembered(tmp_path / "turkish")[1]["steps"] == 4
    console = paper()
    assert demo.trained_translator(console, tmp_path / "turkish")
    assert "is there already" in on(console)
    assert "instead of" not in on(console)


def test_timing_the_first_steps_changes_nothing(tmp_path: Path) -> None:
    data = DataConfig(data=("turkish",), tokenizer="words")
    task, run = (
        assemble(demo.TRANSLATOR, data, batch_tokens=64, seed=0),
        RunConfig(out=tmp_path, steps=400),
    )
    random_state = torch.get_rng_state()
    console = paper()
    assert demo.affordable(console, task, OptimizerConfig(), run, seconds=1e6) == 400
    assert on(console) == ""
    assert demo.affordable(console, task, OptimizerConfig(), run, seconds=0) == demo.FEWEST_STEPS
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not list(tmp_path.iterdir())


def test_what_to_try_next_can_be_tried() -> None:
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


def test_who_has_no_qkv_is_told_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)
    assert "source " in demo.next_steps(Path("runs/demo")).plain.splitlines()[1]
    monkeypatch.setattr(demo.shutil, "which", lambda name: "/usr/bin/qkv")
    assert "source " not in demo.next_steps(Path("runs/demo")).plain


def test_a_model_that_says_nothing_yet_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        demo, "in_turkish", lambda model, tokenizer, sentences: [""] * len(sentences)
    )
    console = paper()
    demo.show_translator(console, tmp_path / "turkish", steps=1)
    assert score(on(console)) == 0
    assert "cats chase mice: \n" in on(console)


def test_what_a_model_says_is_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, out = "[bold]kediler[/bold] [/]", tmp_path / "[red]runs"
    monkeypatch.setattr(
        demo, "in_turkish", lambda model, tokenizer, sentences: [said] * len(sentences)
    )
    found = demo.Aligned(said, ["[/x]"], ["[bold]"], torch.ones(1, 1))
    monkeypatch.setattr(demo, "aligned", lambda model, tokenizer, english: found)
    monkeypatch.setattr(demo, "start", lambda *config, **how: None)
    console, model, tokenizer = paper(), Transformer(demo.TRANSLATOR), train("words", SENTENCES, 80)
    demo.show_score(console, model, tokenizer)
    assert said in on(console)
    demo.show_alignment(console, model, tokenizer, "cats")
    assert f"cats: {said}\n" in on(console)
    assert "[/x] looked at [bold].\n" in on(console)
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"step": 1, "event": "finished"}\n')
    assert not demo.trained_translator(console, out)
    assert f"{out} is there already" in on(console)
