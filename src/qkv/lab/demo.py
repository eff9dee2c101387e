"""Two minutes on two cores: the lecture's translator and a small GPT, trained before your eyes.
`qkv demo`

A slow or busy machine takes fewer steps: the first ones are timed, and the demo says how many it
can afford.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from qkv import artifact
from qkv.data.sources.source import open_pairs
from qkv.evaluation import bleu
from qkv.generation.text import complete
from qkv.generation.translate import translate_texts
from qkv.insight.inspect.alignment import alignment
from qkv.insight.render.terminal_cells import HeatMap
from qkv.models import GPT, GPTConfig, Transformer, preset
from qkv.models.registry import Config, Model
from qkv.tables import Table
from qkv.text import Tokenizer
from qkv.text.printable import printable
from qkv.training.logging.metrics import NAME as METRICS
from qkv.training.logging.metrics import read_metrics
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.run_folder import remembered
from qkv.training.setup.step_timing import seconds_per_step
from qkv.training.setup.training_task import TrainingTask
from qkv.training.train import SampleMaker, train

OUT = Path("runs/demo")
SENTENCE = "cats chase mice"
PROMPT = "class Reader:\n    def __init__(self,"

TRANSLATOR = preset("transformer-tiny")
TRANSLATOR_STEPS, TRANSLATOR_SECONDS = 400, 55.0
WRITER_STEPS, WRITER_SECONDS = 500, 75.0
FEWEST_STEPS = 30
WRITER = GPTConfig(vocabulary=2048, context=64, width=128, depth=4, heads=4, position="rotary")


def show(
    console: Console | None = None,
    out: Path = OUT,
    *,
    translator_steps: int = TRANSLATOR_STEPS,
    writer_steps: int = WRITER_STEPS,
) -> None:
    """Train both, try both. What is trained already is not trained again, and what was stopped goes
    on.
    """
    console = console or Console(highlight=False)
    parts: dict[str, Callable[[], bool]] = {
        "A Transformer learns to translate": lambda: show_translator(
            console, out / "turkish", translator_steps
        ),
        "A GPT learns to write Python": lambda: show_writer(console, out / "python", writer_steps),
    }

    for number, (title, part) in enumerate(parts.items(), start=1):
        console.rule(f"[bold]{number}. {title}")
        if not part():
            console.print("Stopped. [bold]qkv demo[/bold] goes on from here.")
            return

        console.print()

    console.rule("[bold]What to try next")
    console.print(next_steps(out), soft_wrap=True)


# English into Turkish


def show_translator(console: Console, out: Path, steps: int) -> bool:
    """False when training was stopped."""
    console.print("English and Turkish sentences of a small grammar. Turkish puts the verb last")
    console.print("and says by an ending who is chased: word by word in order will not do.")
    examples = Table("English", "Turkish")

    for english, turkish in list(open_pairs(["turkish:train"]))[:3]:
        examples.add_row(english, turkish)

    console.print(examples)

    if not trained_translator(console, out, steps):
        return False

    model, tokenizer = artifact.load(out)
    assert isinstance(model, Transformer)
    assert tokenizer is not None
    show_score(console, model, tokenizer)
    show_alignment(console, model, tokenizer, SENTENCE)

    return True


def trained_translator(console: Console, out: Path, steps: int = TRANSLATOR_STEPS) -> bool:
    data = DataConfig(data=("turkish",), tokenizer="words")
    optimizer = OptimizerConfig(learning_rate=3e-3, weight_decay=0.01, final_rate=0.0)
    limits = steps, TRANSLATOR_SECONDS
    return trained(console, TRANSLATOR, data, optimizer, out, *limits, samples=sample_translation)


def show_score(console: Console, model: Transformer, tokenizer: Tokenizer) -> None:
    """On sentences whose nouns never stood with their verb in training."""
    pairs = list(open_pairs(["turkish:test"]))
    said = in_turkish(model, tokenizer, [english for english, _ in pairs])
    right = [turkish for _, turkish in pairs]
    table = Table("nouns that never met their verb in training", "the model says", "")

    for row in range(0, len(pairs), len(pairs) // 5):
        verdict = "right" if said[row] == right[row] else f"not {right[row]}"
        table.add_row(pairs[row][0], Text(printable(said[row])), verdict)

    console.print(table)
    score, exact = (
        bleu(said, right),
        sum(one == other for one, other in zip(said, right, strict=True)),
    )
    console.print(
        f"Of {len(pairs):,} such sentences {exact:,} are right word for word: "
        f"[bold]BLEU {score.bleu:.1f}[/bold], chrF {score.chrf:.1f}"
    )
    console.print(Text(score.signature.replace(" ", "\n"), style="dim"))


class Aligned(NamedTuple):
    translated: str
    said: list[str]
    read: list[str]
    weights: Float[Tensor, "T S"]


def aligned(model: Transformer, tokenizer: Tokenizer, english: str) -> Aligned:
    """A translation, and the weights with which each of its words looked at those of the source."""
    (translated,) = in_turkish(model, tokenizer, [english])
    source, turkish = tokenizer.encode_batch([english, translated])
    read = [*map(tokenizer.token, source), "(end)"]
    if not turkish:  # after a few steps a model may say nothing yet
        return Aligned(translated, [], read, torch.empty(0, len(read)))

    weights = alignment(
        model,
        torch.tensor([[*source, tokenizer.end]]),
        torch.tensor([turkish]),
        start=number_of(tokenizer.start),
    )

    return Aligned(translated, [tokenizer.token(id) for id in turkish], read, weights)


def show_alignment(
    console: Console, model: Transformer, tokenizer: Tokenizer, english: str
) -> None:
    found = aligned(model, tokenizer, english)
    console.print(Text.assemble(f"\n{english}: ", (printable(found.translated), "bold")))
    if found.said:
        console.print(
            HeatMap(found.weights, found.said, found.read, "Where each Turkish word looked")
        )
        looked = [found.read[place] for place in found.weights.argmax(1).tolist()]
        pairs = "; ".join(
            f"{word} looked at {at}" for word, at in zip(found.said, looked, strict=True)
        )
        console.print(Text(f"{printable(pairs)}."))


def in_turkish(model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str]) -> list[str]:
    found = translate_texts([model], tokenizer, sentences, beams=1, batch=500)
    return [translations[0].text for _, translations in sorted(found, key=lambda each: each[0])]


def sample_translation(task: TrainingTask) -> Callable[[Model], list[str]]:
    def said(model: Model) -> list[str]:
        assert isinstance(model, Transformer)
        return [f"{SENTENCE}: {in_turkish(model, task.tokenizer, [SENTENCE])[0]}"]

    return said


# Python


def show_writer(console: Console, out: Path, steps: int) -> bool:
    """False when training was stopped."""
    console.print("The text is the source of Python's standard library, as it is on this machine.")
    data = DataConfig(data=("python",))
    optimizer = OptimizerConfig(optimizer="muon", learning_rate=3e-3, final_rate=0.0)
    limits = steps, WRITER_SECONDS
    if not trained(console, WRITER, data, optimizer, out, *limits, samples=sample_completion):
        return False

    model, tokenizer = artifact.load(out)
    assert isinstance(model, GPT)
    assert tokenizer is not None
    console.print("\nThe first words are ours, and the model goes on:")
    written = Text.assemble((PROMPT, "bold"), completed(model, tokenizer, PROMPT, length=80))
    console.print(Padding(written, (0, 0, 0, 4), expand=False))

    return True


def completed(model: GPT, tokenizer: Tokenizer, prompt: str, length: int) -> str:
    """What the model says after the prompt."""
    (said,) = complete(model, tokenizer, [prompt], length=length, temperature=0.5, top_k=40, seed=0)
    return said


def sample_completion(task: TrainingTask) -> Callable[[Model], list[str]]:
    def said(model: Model) -> list[str]:
        assert isinstance(model, GPT)
        return [PROMPT + completed(model, task.tokenizer, PROMPT, length=24)]

    return said


# Both


def trained(
    console: Console,
    config: Config,
    data: DataConfig,
    optimizer: OptimizerConfig,
    out: Path,
    steps: int,
    seconds: float,
    *,
    samples: SampleMaker,
) -> bool:
    """Train for `steps`, or for fewer that fit into `seconds` here; False when it was stopped
    before the last one.
    """
    if finished(out):
        there = Text(
            f"{printable(str(out))} is there already; delete it to see it trained from the beginning."
        )
        console.print(there, soft_wrap=True)

    before = remembered(out)
    if before is not None:
        steps = before[1]["steps"]  # of the run that is resumed, which may have been shortened

    def fit(task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig) -> RunConfig:
        return paced(run, affordable(console, task, optimizer, run, seconds))

    run = RunConfig(
        out=out, batch_tokens=1024, compile=False, resume=True
    )  # compiling takes longer than training
    run = paced(run, steps)
    outcome = train(config, data, optimizer, run, samples=samples, console=console, fit=fit)

    return outcome is not None and outcome.finished


def paced(run: RunConfig, steps: int) -> RunConfig:
    """Two validations and four samples in a run, however short."""
    half, quarter, tenth = -(-steps // 2), -(-steps // 4), max(1, steps // 10)
    return replace(run, steps=steps, validate_every=half, sample_every=quarter, log_every=tenth)


def affordable(
    console: Console, task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig, seconds: float
) -> int:
    """As many of the run's steps as fit into `seconds`, by the time that the first ones take."""
    if run.steps <= FEWEST_STEPS:
        return run.steps

    each = seconds_per_step(task, optimizer, run)
    steps = max(FEWEST_STEPS, min(run.steps, int(seconds / each)))
    if steps < run.steps:
        console.print(
            f"A step takes {each:.2f} s on this machine now, so the demo trains for {steps} steps instead of "
            f"{run.steps}, about {steps * each:.0f} s. The model will be less good than after all of them."
        )

    return steps


def finished(run: Path) -> bool:
    """Whether it was trained to its last step."""
    return (run / METRICS).exists() and any(
        row.get("event") == "finished" for row in read_metrics(run)
    )


def number_of(id: int | None) -> int:
    assert id is not None, "a tokenizer that we train has all special tokens"
    return id


def next_steps(out: Path) -> Text:
    steps = {
        "Let it translate, and see where it looks:": f"qkv translate {out / 'turkish'} --text '{SENTENCE}' --alignment",
        "See inside while it reads, in a browser:": f"qkv look {out / 'turkish'} '{SENTENCE}' --out look.html",
        "Play with both on a page of your own:": f"qkv serve {out / 'turkish'} {out / 'python'}",
        "Let it write:": f"qkv generate {out / 'python'} 'import os'",
        "Train on your own text, and see what it learns:": "qkv train gpt --data my.txt --out runs/mine",
        "The translator before the Transformer:": "qkv train rnn --data turkish --out runs/rnn",
        "Teach the GPT to classify texts (my.tsv: sentence, label):": (
            f"qkv finetune {out / 'python'} --task classify --data my.tsv --out runs/my"
        ),
        "The curves of what you just saw, as a picture:": f"qkv plot {out / 'turkish'} {out / 'python'}",
        "From a hash table to attention, on the board:": "qkv demo --board-only",
        "How good is it, with an interval?": f"qkv evaluate {out / 'turkish'} --task translation --data turkish:test",
        "The model in your own program:": f"model, tokenizer = qkv.load({str(out / 'turkish')!r})",
    }

    if shutil.which("qkv") is None:
        steps = {
            "First, so that qkv is found:": f"source {Path(sys.prefix, 'bin', 'activate')}",
            **steps,
        }

    return Text("\n").join(
        Text.assemble(meaning, ("\n    " + command, "bold")) for meaning, command in steps.items()
    )
