"""Fine-tuning MiniLM on a CPU, a step as the loop takes it: ours against `transformers`, the same
weights and batches.

python -m benchmarks.training.finetune train.tsv                  SST-2, 32 sentences a step,
float32, two threads python -m benchmarks.training.finetune train.tsv --profile        and where our
time goes

Both have the same dropout, AdamW and clipping, and read the very same rows with the same padding.
Ours come sorted by length within stretches, as `qkv finetune` makes them; the last peer gets its
batches in random order, as it would make them itself. Before the clock starts, both must give the
same scores.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

from benchmarks.harness import machine
from qkv import artifact
from qkv.data.batches.batch import Batch
from qkv.data.batches.labelled import LabelledData
from qkv.models import TaskModel
from qkv.training.finetune.finetune import DEFAULTS, to_run_config
from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.labelled_task import labelled_task
from qkv.training.optimizer import gradient_norm
from qkv.training.run import Run
from qkv.training.step import gradients_of
from qkv.training.systems.distributed import World

Step = Callable[[Batch], None]


@dataclass
class Options:
    data: tyro.conf.Positional[str]
    """Labelled sentences, such as SST-2's train.tsv."""
    model: str = "minilm"
    batch: int = 32
    steps: int = 40
    """That are timed, after four."""
    threads: int = 2
    examples: int = 8000
    """So many of the data are enough."""
    cpu_time: bool = False
    """Count the CPU's seconds, not the wall's: for one thread on a machine that others use."""
    profile: bool = False


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        run = our_run(options, Path(folder) / "run")
        model, data = run.model, run.task.training
        assert isinstance(model, TaskModel)
        assert isinstance(data, LabelledData)
        assert same_scores(peer(options, model), model, data.batch(0))
        drawn = np.random.default_rng(0).permutation(len(data.framed))
        steps: dict[str, tuple[Step, Callable[[int], Batch]]] = {
            "qkv": (ours(run), data.batch),
            "transformers, AdamW fused": (theirs(peer(options, model), True), data.batch),
            "transformers, AdamW as it is": (theirs(peer(options, model), False), data.batch),
            "transformers, fused, random order": (
                theirs(peer(options, model), True),
                lambda step: data.chosen(drawn[step * options.batch : (step + 1) * options.batch]),
            ),
        }
        seconds = taken(steps, options)
        if options.profile:
            profile(steps["qkv"][0], [data.batch(step) for step in range(8)])
    report(seconds, [data.batch(step + 4) for step in range(options.steps)], options)


def our_run(options: Options, out: Path) -> Run:
    choices = {"task": "classify", "pooling": "first"}  # as the peer does it
    tune = FinetuneConfig(
        model=options.model, data=(options.data,), examples=options.examples, **choices
    )
    going = FinetuneRunConfig(out=out, batch=options.batch, device="cpu", precision="float32")
    return Run.create(
        labelled_task(tune, going), DEFAULTS, to_run_config(going), World(torch.device("cpu"))
    )


def ours(run: Run) -> Step:
    """What the loop does in a step, but for what it tells."""
    memory = run.learner
    taken = 0

    def step(batch: Batch) -> None:
        nonlocal taken
        loss, _ = gradients_of(
            run.objective, batch, run.world, scale=memory.scale.factor, seed=(0, taken)
        )
        norm = gradient_norm(run.model.parameters()) / memory.scale.factor
        bad = memory.guard.is_bad(taken, loss, norm)
        clip = (norm / run.optimizer.clip).clamp(min=1.0)
        memory.optimizers.set_rate(5e-5, 5e-5)
        memory.optimizers.step(bad, divisor=memory.scale.factor * clip)
        memory.optimizers.zero_gradients()
        taken += 1

    return step


def peer(options: Options, model: TaskModel) -> torch.nn.Module:
    """The same model of `transformers`, with our head."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    made = transformers.BertForSequenceClassification.from_pretrained(
        artifact.named(options.model), num_labels=len(model.config.head.labels)
    )
    backbone = model.config.backbone
    dropout = (made.config.hidden_dropout_prob, made.config.attention_probs_dropout_prob)
    assert dropout == (backbone.dropout, backbone.attention_dropout), "both must drop as much"
    made.classifier.load_state_dict(model.head.state_dict())
    return made


def arguments(batch: Batch) -> dict[str, torch.Tensor | None]:
    padding_mask = None if batch.padding_mask is None else batch.padding_mask.long()
    return {
        "input_ids": batch.ids,
        "attention_mask": padding_mask,
        "token_type_ids": batch.segments,
    }


def same_scores(theirs: torch.nn.Module, model: TaskModel, batch: Batch) -> bool:
    assert batch.places is not None
    theirs.eval(), model.eval()
    with torch.no_grad():
        expected = theirs(**arguments(batch)).logits
        found = model(
            batch.ids, places=batch.places, padding_mask=batch.padding_mask, segments=batch.segments
        )[:, 0]
    model.train()
    return torch.allclose(found, expected, atol=1e-5)


def theirs(model: torch.nn.Module, fused: bool) -> Step:
    model.train()
    how = {"fused": True} if fused else {}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=5e-5, weight_decay=DEFAULTS.weight_decay, **how
    )

    def step(batch: Batch) -> None:
        model(**arguments(batch), labels=batch.targets[:, 0]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), DEFAULTS.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def taken(
    steps: dict[str, tuple[Step, Callable[[int], Batch]]], options: Options
) -> dict[str, list[float]]:
    """Seconds of every step. All take turns after each step, so that a slow moment of the machine
    hits all alike.
    """
    now = time.process_time if options.cpu_time else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.steps + 4):
        for name, (step, batch_at) in steps.items():
            batch = batch_at(number)
            begin = now()
            step(batch)
            if number >= 4:
                seconds[name].append(now() - begin)
    return seconds


def report(seconds: dict[str, list[float]], batches: list[Batch], options: Options) -> None:
    read, padded = (
        sum(batch.tokens for batch in batches),
        sum(batch.ids.numel() for batch in batches),
    )
    which = "CPU seconds" if options.cpu_time else "wall"
    print(
        f"fine-tuning {options.model}, {options.batch} texts a step, float32, {which}; {machine()}"
    )
    print(
        f"{read / len(batches):.0f} words a step, {1 - read / padded:.0%} of what is read is padding"
    )
    for name, times in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(times, seconds["qkv"], strict=True)]
        speed, ratio, middle = (
            1 / statistics.mean(times),
            sum(times) / sum(seconds["qkv"]),
            statistics.median(ratios),
        )
        print(
            f"  {name:34} {speed:7.3f} steps/s   x {ratio:5.2f}   (median of the steps: {middle:.2f})"
        )


def profile(step: Step, batches: list[Batch]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        for batch in batches:
            step(batch)
    print(
        found.key_averages().table(
            sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=48
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
