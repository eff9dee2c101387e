"""`qkv demo`: train the lecture's translator and a small GPT in two minutes on two cores.

On a slow or busy machine the demo measures the first steps, and trains for fewer.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
from qkv.models import GPTConfig, preset
from qkv.models.model import Model
from qkv.models.registry import Config
from qkv.tables import Table
from qkv.text import Tokenizer
from qkv.text.frame_tokens import translation_ends
from qkv.text.printable import printable
from qkv.training.logging.metrics import METRICS_FILE, read_metrics
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.run_folder import read_run_flags
from qkv.training.setup.step_timing import seconds_per_step
from qkv.training.setup.training_task import TrainingTask
from qkv.training.train import SampleMaker, train

DEMO_FOLDER = Path("runs/demo")
NEXT_STEPS = Path(__file__).with_name("next_steps.toml")
"""Commands to try with the trained models, by what they do."""
SENTENCE = "cats chase mice"
PROMPT = "class Reader:\n    def __init__(self,"

TRANSLATOR = preset("transformer-tiny")
TRANSLATOR_STEPS = 300
TRANSLATOR_SECONDS = 55.0
WRITER_CONFIG = GPTConfig(
    vocabulary=2048, context=64, width=128, depth=4, heads=4, position="rotary"
)
WRITER_STEPS = 500
WRITER_SECONDS = 75.0
FEWEST_STEPS = 30


def show_demo(
    console: Console | None = None,
    out: Path = DEMO_FOLDER,
    *,
    translator_steps: int = TRANSLATOR_STEPS,
    writer_steps: int = WRITER_STEPS,
) -> None:
    """Train and try both models; a finished model is kept, a stopped training is resumed."""
    console = console or Console(highlight=False)
    console.rule("[bold]1. A Transformer learns to translate")
    finished_part = show_translator(console, out / "turkish", translator_steps)

    if finished_part:
        console.print()
        console.rule("[bold]2. A GPT learns to write Python")
        finished_part = show_writer(console, out / "python", writer_steps)

    if not finished_part:
        console.print("Stopped. [bold]qkv demo[/bold] resumes the training.")
        return

    console.print()
    console.rule("[bold]What to try next")
    console.print(next_steps(out), soft_wrap=True)


# English into Turkish


def show_translator(console: Console, out: Path, steps: int) -> bool:
    """Train and try the translator; False if the training was stopped."""
    console.print("English and Turkish sentences of a small grammar. Turkish puts the verb last")
    console.print("and marks the object by an ending, so translating word by word is not enough.")
    examples = Table("English", "Turkish")
    for english, turkish in list(open_pairs(["turkish:train"]))[:3]:
        examples.add_row(english, turkish)

    console.print(examples)

    if not trained_translator(console, out, steps):
        return False

    model, tokenizer = load(out)
    show_score(console, model, tokenizer)
    show_alignment(console, model, tokenizer, SENTENCE)

    return True


def trained_translator(console: Console, out: Path, steps: int = TRANSLATOR_STEPS) -> bool:
    """Train the translator; False if the training was stopped."""
    data = DataConfig(data=("turkish",), tokenizer="words")
    optimizer = OptimizerConfig(learning_rate=3e-3, weight_decay=0.01, final_rate=0.0)
    return trained(
        console,
        TRANSLATOR,
        data,
        optimizer,
        out,
        steps,
        TRANSLATOR_SECONDS,
        samples=sample_translation,
    )


def show_score(console: Console, model: Any, tokenizer: Tokenizer) -> None:
    """BLEU on sentences whose nouns did not occur with their verb in training."""
    pairs = list(open_pairs(["turkish:test"]))
    references = [turkish for _, turkish in pairs]
    translations = in_turkish(model, tokenizer, [english for english, _ in pairs])
    table = Table("nouns that did not occur with their verb in training", "the translation", "")

    for row in range(0, len(pairs), len(pairs) // 5):
        verdict = f"reference: {references[row]}"
        if translations[row] == references[row]:
            verdict = "correct"

        table.add_row(pairs[row][0], Text(printable(translations[row])), verdict)

    console.print(table)
    score = bleu(translations, references)
    correct = sum(map(str.__eq__, translations, references))
    console.print(
        f"Of {len(pairs):,} such sentences {correct:,} are translated correctly: "
        f"[bold]BLEU {score.bleu:.1f}[/bold], chrF {score.chrf:.1f}"
    )
    console.print(Text(score.signature.replace(" ", "\n"), style="dim"))


class Aligned(NamedTuple):
    """A translation with its alignment."""

    translation: str
    target: list[str]
    """The target tokens."""
    source: list[str]
    """The source tokens."""
    weights: Float[Tensor, "T S"]
    """The cross-attention weights, averaged over layers and heads."""


def aligned(model: Any, tokenizer: Tokenizer, english: str) -> Aligned:
    """Translate a sentence, and align the target tokens with the source tokens."""
    (translation,) = in_turkish(model, tokenizer, [english])
    source, target = tokenizer.encode_batch([english, translation])
    source_tokens = [*map(tokenizer.token, source), "(end)"]
    if not target:  # after a few steps a translation may be empty
        return Aligned(translation, [], source_tokens, torch.empty(0, len(source_tokens)))

    start, end = translation_ends(tokenizer)
    source_row = torch.tensor([[*source, end]])
    weights = alignment(model, source_row, torch.tensor([target]), start=start)

    return Aligned(translation, list(map(tokenizer.token, target)), source_tokens, weights)


def show_alignment(console: Console, model: Any, tokenizer: Tokenizer, english: str) -> Aligned:
    """Print a translation and its alignment, and return them."""
    result = aligned(model, tokenizer, english)
    console.print(Text.assemble(f"\n{english}: ", (printable(result.translation), "bold")))
    if not result.target:
        return result

    title = "Cross-attention: each Turkish token (row) to the English ones"
    console.print(HeatMap(result.weights, result.target, result.source, title))
    pairs = []
    for token, position in zip(result.target, result.weights.argmax(1).tolist(), strict=True):
        pairs.append(f"{token} attends to {result.source[position]}")

    console.print(Text(f"{printable('; '.join(pairs))}."))

    return result


def in_turkish(model: Any, tokenizer: Tokenizer, sentences: Sequence[str]) -> list[str]:
    """Translate sentences greedily, in their order."""
    results = dict(translate_texts([model], tokenizer, sentences, beams=1, batch=500))
    return [results[number][0].text for number in range(len(sentences))]


def sample_translation(task: TrainingTask) -> Callable[[Model], list[str]]:
    """Translate the example sentence during training."""
    return lambda model: [f"{SENTENCE}: {in_turkish(model, task.tokenizer, [SENTENCE])[0]}"]


# Python


def show_writer(console: Console, out: Path, steps: int) -> bool:
    """Train and try the GPT; False if the training was stopped."""
    console.print("The text is the source of Python's standard library on this machine.")
    data = DataConfig(data=("python",))
    optimizer = OptimizerConfig(optimizer="muon", learning_rate=3e-3, final_rate=0.0)
    if not trained(
        console,
        WRITER_CONFIG,
        data,
        optimizer,
        out,
        steps,
        WRITER_SECONDS,
        samples=sample_completion,
    ):
        return False

    model, tokenizer = load(out)
    console.print("\nThe prompt is bold, and the model continues it:")
    text = Text.assemble((PROMPT, "bold"), completed(model, tokenizer, PROMPT, length=80))
    console.print(Padding(text, (0, 0, 0, 4), expand=False))

    return True


def completed(model: Any, tokenizer: Tokenizer, prompt: str, length: int) -> str:
    """The model's continuation of a prompt."""
    (text,) = complete(model, tokenizer, [prompt], length=length, temperature=0.5, top_k=40, seed=0)
    return text


def sample_completion(task: TrainingTask) -> Callable[[Model], list[str]]:
    """Continue the example prompt during training."""
    return lambda model: [PROMPT + completed(model, task.tokenizer, PROMPT, length=24)]


# Both


def load(out: Path) -> tuple[Any, Tokenizer]:
    """A trained model with its tokenizer."""
    model, tokenizer = artifact.load(out)
    assert tokenizer is not None
    return model, tokenizer


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
    """Train for `steps`, or for fewer that fit into `seconds`; False if it was stopped."""
    if finished(out):
        note = f"{printable(str(out))} is already trained; delete it to train it again."
        console.print(Text(note), soft_wrap=True)

    resumed = read_run_flags(out)
    if resumed is not None:
        steps = resumed[1]["steps"]  # which may have been shortened

    def fit(task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig) -> RunConfig:
        return paced(run, affordable(console, task, optimizer, run, seconds))

    # Without torch.compile, which would take longer than the training
    run = RunConfig(out=out, batch_tokens=1024, compile=False, resume=True)
    run = paced(run, steps)
    outcome = train(config, data, optimizer, run, samples=samples, console=console, fit=fit)

    return outcome is not None and outcome.finished


def paced(run: RunConfig, steps: int) -> RunConfig:
    """The run with two validations and four samples, however short it is."""
    return replace(
        run,
        steps=steps,
        validate_every=-(-steps // 2),
        sample_every=-(-steps // 4),
        log_every=max(1, steps // 10),
    )


def affordable(
    console: Console, task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig, seconds: float
) -> int:
    """The number of steps that fit into `seconds`, measured by the first ones."""
    if run.steps <= FEWEST_STEPS:
        return run.steps

    step_seconds = seconds_per_step(task, optimizer, run)
    steps = max(FEWEST_STEPS, min(run.steps, int(seconds / step_seconds)))
    if steps < run.steps:
        console.print(
            f"A step takes {step_seconds:.2f} s on this machine now, so the demo trains for "
            f"{steps} steps instead of {run.steps}, about {steps * step_seconds:.0f} s. The model "
            "will be worse than after all steps."
        )

    return steps


def finished(run: Path) -> bool:
    """Whether a run was trained to its last step."""
    if not (run / METRICS_FILE).exists():
        return False

    return any(row.get("event") == "finished" for row in read_metrics(run))


def next_steps(out: Path) -> Text:
    """Commands to try with the trained models."""
    table = tomllib.loads(NEXT_STEPS.read_text(encoding="utf-8"))
    names = {"turkish": f"{out}/turkish", "python": f"{out}/python", "sentence": SENTENCE}
    steps = {meaning: command.format(**names) for meaning, command in table.items()}

    if shutil.which("qkv") is None:
        activate = f"source {Path(sys.prefix, 'bin', 'activate')}"
        steps = {"First, so that the shell finds qkv:": activate, **steps}

    lines = []
    for meaning, command in steps.items():
        lines.append(Text.assemble(meaning, ("\n    " + command, "bold")))

    return Text("\n").join(lines)
