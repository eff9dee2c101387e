"""Time of a fine-tuning step of MiniLM on a CPU: qkv and `transformers`, same weights and batches.

SST-2, 32 sentences per step, float32, two threads; --profile shows where our time goes:
    python -m benchmarks.training.finetune train.tsv [--profile]

Both have the same dropout, AdamW and clipping, and read the same rows with the same padding. The
batches are sorted by length within chunks, as `qkv finetune` makes them; the last peer gets its
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
    """Steps that are timed, after four to warm up."""
    threads: int = 2
    examples: int = 8000
    """Examples that are read of the data."""
    cpu_time: bool = False
    """Count CPU time, not wall time: for one thread on a machine that is in use."""
    profile: bool = False


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        run = our_run(options, Path(folder) / "run")
        model = run.model
        data = run.task.training
        assert isinstance(model, TaskModel)
        assert isinstance(data, LabelledData)
        assert same_scores(peer(options, model), model, data.batch(0))
        order = np.random.default_rng(0).permutation(len(data.framed))
        steps: dict[str, tuple[Step, Callable[[int], Batch]]] = {
            "qkv": (ours(run), data.batch),
            "transformers, AdamW fused": (theirs(peer(options, model), True), data.batch),
            "transformers, AdamW as it is": (theirs(peer(options, model), False), data.batch),
            "transformers, fused, random order": (
                theirs(peer(options, model), True),
                lambda step: data.build(order[step * options.batch : (step + 1) * options.batch]),
            ),
        }
        seconds = time_steps(steps, options)
        if options.profile:
            profile(steps["qkv"][0], [data.batch(step) for step in range(8)])
    report(seconds, [data.batch(step + 4) for step in range(options.steps)], options)


def our_run(options: Options, out: Path) -> Run:
    tune = FinetuneConfig(
        model=options.model,
        data=(options.data,),
        examples=options.examples,
        task="classify",
        pooling="first",  # as the peer pools
    )
    run = FinetuneRunConfig(out=out, batch=options.batch, device="cpu", precision="float32")
    task = labelled_task(tune, run)
    return Run.create(task, DEFAULTS, to_run_config(run), World(torch.device("cpu")))


def ours(run: Run) -> Step:
    """One step of the training loop, without its logging."""
    learner = run.learner
    number = 0

    def step(batch: Batch) -> None:
        nonlocal number
        loss, _ = gradients_of(
            run.objective, batch, run.world, scale=learner.scale.factor, seed=(0, number)
        )
        norm = gradient_norm(run.model.parameters()) / learner.scale.factor
        bad = learner.guard.is_bad(number, loss, norm)
        clip = (norm / run.optimizer.clip).clamp(min=1.0)
        learner.optimizers.set_rate(5e-5, 5e-5)
        learner.optimizers.step(bad, divisor=learner.scale.factor * clip)
        learner.optimizers.zero_gradients()
        number += 1

    return step


def peer(options: Options, model: TaskModel) -> torch.nn.Module:
    """The same model of `transformers`, with our head."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    peer_model = transformers.BertForSequenceClassification.from_pretrained(
        artifact.model_path(options.model), num_labels=len(model.config.head.labels)
    )
    backbone = model.config.backbone
    dropout = (
        peer_model.config.hidden_dropout_prob,
        peer_model.config.attention_probs_dropout_prob,
    )
    assert dropout == (backbone.dropout, backbone.attention_dropout), (
        "both must have the same dropout"
    )
    peer_model.classifier.load_state_dict(model.head.state_dict())
    return peer_model


def arguments(batch: Batch) -> dict[str, torch.Tensor | None]:
    padding_mask = batch.padding_mask
    if padding_mask is not None:
        padding_mask = padding_mask.long()

    return {
        "input_ids": batch.ids,
        "attention_mask": padding_mask,
        "token_type_ids": batch.segments,
    }


def same_scores(theirs: torch.nn.Module, model: TaskModel, batch: Batch) -> bool:
    assert batch.target_positions is not None
    theirs.eval()
    model.eval()
    with torch.no_grad():
        expected = theirs(**arguments(batch)).logits
        scores = model(
            batch.ids,
            target_positions=batch.target_positions,
            padding_mask=batch.padding_mask,
            segments=batch.segments,
        )[:, 0]

    model.train()
    return torch.allclose(scores, expected, atol=1e-5)


def theirs(model: torch.nn.Module, fused: bool) -> Step:
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=5e-5, weight_decay=DEFAULTS.weight_decay, fused=fused or None
    )

    def step(batch: Batch) -> None:
        model(**arguments(batch), labels=batch.targets[:, 0]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), DEFAULTS.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def time_steps(
    steps: dict[str, tuple[Step, Callable[[int], Batch]]], options: Options
) -> dict[str, list[float]]:
    """Seconds of every step; all take turns, so that slow moments of the machine hit all alike."""
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
    tokens = sum(batch.tokens for batch in batches)
    padded = sum(batch.ids.numel() for batch in batches)
    which = "CPU seconds" if options.cpu_time else "wall"
    print(
        f"fine-tuning {options.model}, {options.batch} texts per step, float32, "
        f"{which}; {machine()}"
    )
    print(
        f"{tokens / len(batches):.0f} tokens per step, "
        f"{1 - tokens / padded:.0%} of the positions are padding"
    )
    for name, times in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(times, seconds["qkv"], strict=True)]
        speed = 1 / statistics.mean(times)
        ratio = sum(times) / sum(seconds["qkv"])
        print(
            f"  {name:34} {speed:7.3f} steps/s   x {ratio:5.2f}   "
            f"(median of the steps: {statistics.median(ratios):.2f})"
        )


def profile(step: Step, batches: list[Batch]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for batch in batches:
            step(batch)
    print(
        profiler.key_averages().table(
            sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=48
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
