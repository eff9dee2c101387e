"""LAMBADA with SmolLM2 on a CPU: qkv evaluate against lm-evaluation-harness with `transformers`.

    python -m benchmarks.insight.lambada lambada_test.jsonl --items 100

Both use the same weights. The harness's default is batch size 1; the best of several sizes is
compared. The time of qkv includes reading the data and the confidence intervals; that of the
harness is for its log-likelihoods alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.harness import clock, machine

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "LMEVAL_LOG_LEVEL": "ERROR"}
logging.disable(logging.WARNING)

import qkv  # noqa: E402
from qkv.evaluation.evaluate import Protocol, Subject, evaluate  # noqa: E402
from qkv.evaluation.task_file import read_task  # noqa: E402
from qkv.models.convert import write_folder  # noqa: E402


@dataclass
class Options:
    data: tyro.conf.Positional[Path]
    """LAMBADA's test set: a file of lines {"text": ...}."""
    items: int = 100
    """Number of rows, from the first on."""
    batch_sizes: tuple[int, ...] = (1, 8, 16)
    """Batch sizes of the harness; the first is its default."""
    rounds: int = 3


def main(options: Options) -> None:
    model, tokenizer = qkv.load("smollm2")
    assert tokenizer is not None
    subject = Subject("smollm2", model, tokenizer)
    scores: dict[str, tuple[float, float]] = {}

    def ours() -> None:
        result = evaluate(
            read_task("lambada"), subject, [str(options.data)], Protocol(limit=options.items)
        )
        scores["qkv evaluate"] = (result.scores[0].value, result.scores[1].value)

    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, Path(folder) / "smollm2")
        tokenizer.write(Path(folder) / "smollm2")
        runs = {"qkv evaluate": ours} | theirs(options, Path(folder) / "smollm2", scores)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        # In turns, so that a slow minute of the machine affects all alike
        for _ in range(options.rounds):
            for name, run in runs.items():
                seconds[name].append(clock(run, "cpu"))
    print(f"LAMBADA, first {options.items} rows, SmolLM2 135M, float32; {machine()}")
    best = {name: min(times) for name, times in seconds.items()}
    for name, took in best.items():
        accuracy, perplexity = scores[name]
        score = f"accuracy {accuracy:.4f} perplexity {perplexity:.3f}"
        print(f"  {name:32} {took:8.2f} s   x {took / best['qkv evaluate']:5.2f}   {score}")
    assert len({accuracy for accuracy, _ in scores.values()}) == 1, "they do not agree"


def theirs(
    options: Options, folder: Path, scores: dict[str, tuple[float, float]]
) -> dict[str, Callable[[], None]]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    lines = options.data.read_text(encoding="utf-8").splitlines()[: options.items]
    pairs = [json.loads(line)["text"].rpartition(" ") for line in lines]
    requests = []
    for number, (context, space, word) in enumerate(pairs):
        requests.append(Instance("loglikelihood", {}, (context, space + word), number))

    runs: dict[str, Callable[[], None]] = {}
    for size in options.batch_sizes:
        name = f"lm_eval, transformers, batch {size}"
        harness = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=size)

        def run(name: str = name, harness: HFLM = harness) -> None:
            answers = harness.loglikelihood(requests, disable_tqdm=True)
            correct = sum(greedy for _, greedy in answers)
            total = sum(logprob for logprob, _ in answers)
            scores[name] = (correct / len(answers), math.exp(-total / len(answers)))

        runs[name] = run
    return runs


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
