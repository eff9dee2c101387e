"""A BERT that can fill masks, trained here on the embedded English at its first use.

The packaged BERT (minilm) has no head that predicts tokens. This one is small, knows everyday
sentences only, and answers the lecture's example: I took my [mask] for a walk.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from qkv.lab.demo import DEMO_FOLDER, finished, paced
from qkv.models import BERTConfig
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.train import train

NAME = "english"
CONFIG = BERTConfig(
    vocabulary=4096, context=32, width=64, depth=2, heads=4, norm_placement="before"
)
STEPS = 1500


def trained_bert(
    console: Console, out: Path = DEMO_FOLDER / NAME, steps: int = STEPS
) -> Path | None:
    """The folder of the BERT, trained if it is not there; None if the training was stopped.

    Args:
        console: Where to print the progress.
        out: The folder; a training that was stopped is resumed.
        steps: Training steps.
    """
    if finished(out):
        return out

    console.print("A small BERT learns from everyday sentences first, which takes some minutes.")
    # Sentences apart: what surrounds a gap is all in its own sentence.
    data = DataConfig(data=(NAME,), tokenizer="words", across_documents=False, mask_rate=0.2)
    optimizer = OptimizerConfig(learning_rate=3e-3)
    run = paced(RunConfig(out=out, batch_tokens=2048, compile=False, resume=True), steps)
    outcome = train(CONFIG, data, optimizer, run, console=console)
    if outcome is None or not outcome.finished:
        console.print("Stopped. The same command resumes the training.")
        return None

    return out
