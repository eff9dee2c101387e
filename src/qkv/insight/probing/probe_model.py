"""Probing a model: what each of its layers knows, beside two controls that should know little.

The random model has the same config and untrained weights: what it scores comes from the words
alone, and from the probe. Shuffled labels are learned from the model's own vectors, and tested on
the true ones: what they score is chance.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from qkv import storage
from qkv.bootstrap import ratio_intervals
from qkv.insight.probing.activations import Activations, Keep, Store, activations
from qkv.insight.probing.linear_probe import Fitted, Learning, begin_of, fit
from qkv.insight.probing.probe_tasks import ProbeTask
from qkv.models.registry import Model, build

Way = Literal["model", "random model", "shuffled labels"]
Measure = Literal["accuracy", "distance"]
Stage = Callable[[str, float], object]
"""Hears what is being done, and which part of it was done since."""


class Scored(NamedTuple):
    """One layer, asked in one way."""

    way: Way
    measure: Measure
    layer: str
    seeds: tuple[float, ...]
    """Of each seed, on all of the test part."""
    low: float | None
    high: float | None
    """The mean over the seeds lies between these 95 times in 100, the test's texts being only a
    sample.
    """
    validation: float
    """The mean over the seeds on the validation part, by which the best layer is chosen."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seeds)


def best_of(scores: Sequence[Scored]) -> Scored:
    """The layer that is best on the validation part. Chosen by the test part, its score there would
    be too good.
    """
    return (max if scores[0].measure == "accuracy" else min)(
        scores, key=lambda each: each.validation
    )


@dataclass(frozen=True, eq=False)
class Probed:
    """What came out of probing a model; `best` is the layer to remember."""

    model: str
    target: str
    measures: tuple[Measure, ...]
    """The first one is what the target is about."""
    layers: tuple[str, ...]
    scores: list[Scored]
    baseline: dict[Measure, float]
    """Who always says the same: the largest class, the middle place, the median number."""
    facts: dict[str, Any]
    """How it was done, and with how much."""
    weights: dict[str, Tensor]
    """Of all probes, by way, layer and part, seeds first."""

    def of(self, way: Way, measure: Measure | None = None) -> list[Scored]:
        """A way's scores by layer."""
        return [
            each
            for each in self.scores
            if (each.way, each.measure) == (way, measure or self.measures[0])
        ]

    @property
    def best(self) -> Scored:
        return best_of(self.of("model"))

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "target": self.target,
            "measure": self.measures[0],
            "best": {
                "layer": self.best.layer,
                "score": self.best.mean,
                "validation": self.best.validation,
            },
            "baseline": self.baseline,
            **self.facts,
            "layers": list(self.layers),
            "scores": [{**each._asdict(), "mean": each.mean} for each in self.scores],
        }

    def save(self, folder: Path) -> None:
        """results.json and probes.safetensors, each there whole or not at all."""
        storage.write_text(
            folder / "results.json",
            json.dumps(self.as_object(), indent=1, ensure_ascii=False) + "\n",
        )
        told = {
            "labels": json.dumps(self.facts.get("labels", []), ensure_ascii=False),
            "target": self.target,
        }
        size = sum(each.numel() * each.element_size() for each in self.weights.values())

        with storage.staging(folder, size, "probes.safetensors") as made:
            save_file(self.weights, made / "probes.safetensors", metadata=told)
            storage.flush(made / "probes.safetensors")
            storage.move(made / "probes.safetensors", folder / "probes.safetensors")


def probe(
    model: Model,
    question: ProbeTask,
    *,
    name: str = "model",
    layers: Sequence[str] | None = None,
    seeds: int = 3,
    learning: Learning = Learning(),  # noqa: B008 - it is frozen
    controls: bool = True,
    keep: Keep = "disk",
    store: Store = "float32",
    stage: Stage | None = None,
) -> Probed:
    """Train probes on every layer's output, the model itself being frozen, and test them.

    `probe(model, about_words(model, tokenizer, "train.conllu", "upos"))`; see questions.py for the
    other targets. The seeds are of the probes; the random model and the shuffled labels are drawn
    once.
    """
    if seeds < 1:
        raise ValueError(f"seeds: expected 1 or more, not {seeds}")

    numbers = range(seeds)
    how: dict[str, Any] = {"layers": layers, "keep": keep, "store": store, "stage": stage}

    with reading(model, question, "model", **how) as parts:
        ways: tuple[Way, ...] = ("model", "shuffled labels") if controls else ("model",)
        found = [asked(parts, question, ways, numbers, learning, stage, "probes of the model")]

    if controls:
        with reading(randomised(model), question, "random model", **how) as parts:
            ways = ("random model",)
            found.append(
                asked(parts, question, ways, numbers, learning, stage, "probes of the random model")
            )

    texts, words = (
        [counted(part) for part in question.parts]
        for counted in (len, lambda each: len(each.answers))
    )
    facts = {
        "texts": dict(zip(("training", "validation", "test"), texts, strict=True)),
        "places": dict(zip(("training", "validation", "test"), words, strict=True)),
        "hidden": learning.hidden,
        "seeds": seeds,
        "chosen": "best is the layer with the best validation score; its score is that of the test part",
        "interval": "95%, the test's texts drawn anew 1,000 times, of the mean over the seeds",
        "labels": list(question.labels),
    }

    scores = [score for asked_one in found for score in asked_one.scores]
    weights = {name: tensor for asked_one in found for name, tensor in asked_one.weights.items()}
    known = tuple(dict.fromkeys(score.layer for score in scores))

    return Probed(
        name, question.name, question.measures, known, scores, question.baseline(), facts, weights
    )


@contextmanager
def reading(
    model: Model, question: ProbeTask, what: str, stage: Stage | None = None, **how: Any
) -> Iterator[list[Activations]]:
    """The activations of all three parts, with word of how far the model is."""
    total = sum(map(len, question.parts))

    def advance(texts: int) -> None:
        if stage is not None:
            stage(f"the {what} reads", texts / total)

    with activations(model, question.parts, advance=advance, **how) as parts:
        yield parts


def randomised(model: Model, seed: int = 0) -> Model:
    """Of the same config, as it was before it learned anything."""
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(model.config).to(parameter.device, parameter.dtype)


class ProbeSetup(NamedTuple):
    scores: list[Scored]
    weights: dict[str, Tensor]


def asked(
    parts: Sequence[Activations],
    question: ProbeTask,
    ways: Sequence[Way],
    seeds: Sequence[int],
    learning: Learning,
    stage: Stage | None = None,
    what: str = "probes",
) -> ProbeSetup:
    """Train and test the probes of all layers: one layer after the other, or all at once where that
    costs no more.
    """
    training, validation, test = parts
    answers = training.texts.answers, validation.texts.answers
    random = np.random.default_rng(0)
    shuffled = random.permutation(answers[0]), random.permutation(answers[1])
    targets = [shuffled if way == "shuffled labels" else answers for way in ways]
    known = training.layers
    on_gpu = training.read(0, known[:1]).device.type != "cpu"
    groups = [known] if training.together or on_gpu else [(layer,) for layer in known]
    made = ProbeSetup([], {})
    if stage is not None:
        stage(what, 0.0)  # it begins: the first probes may take a while

    for group in groups:

        def advance(part: float, share: float = len(group) / len(known)) -> None:
            if stage is not None:
                stage(what, part * share)

        fitted = fit(
            training, validation, targets, len(question.labels),
            layers=group, seeds=seeds, learning=learning, advance=advance,
        )  # fmt: skip
        chosen_by = tested(fitted, validation, question.measures)
        for measure, sums in tested(fitted, test, question.measures).items():
            validated = chosen_by[measure].sum(-1).mean(1) / len(validation.texts.answers)  # (L, K)
            made.scores.extend(scored(fitted.layers, ways, measure, sums, test, validated))

        made.weights.update(weights_of(fitted, ways))

    return made


def tested(
    fitted: Fitted, test: Activations, measures: Sequence[Measure]
) -> dict[Measure, Float[np.ndarray, "L S K texts"]]:
    """For each text the sum of its right answers, or of how far its answers are off."""
    texts = test.texts
    L, S, K = len(fitted.layers), fitted.probes.first.shape[1], fitted.probes.targets
    sums: dict[Measure, np.ndarray] = {
        measure: np.zeros((L, S, K, len(texts))) for measure in measures
    }

    for number, block in enumerate(test.blocks):
        begin, ends = begin_of(test, number), texts.ends[block.start : block.stop]
        said = (
            fitted.answers(test.read(number, fitted.layers)).double().cpu().numpy()
        )  # (L, S, K, n)
        off = np.abs(said - texts.answers[begin : ends[-1]])
        for measure, total in sums.items():
            added = np.cumsum(off == 0 if measure == "accuracy" else off, axis=-1)
            added = np.concatenate([np.zeros((L, S, K, 1)), added], axis=-1)[
                ..., ends - begin
            ]  # up to each text's end
            total[..., block.start : block.stop] = np.diff(added, axis=-1, prepend=0)

    return sums


def scored(
    layers: Sequence[str], ways: Sequence[Way], measure: Measure, sums: Float[np.ndarray, "L S K texts"],
    test: Activations, validated: Float[np.ndarray, "L K"],
) -> Iterator[Scored]:  # fmt: skip
    counts = np.array([len(each) for each in test.texts.places], dtype=np.float64)  # (texts,)
    means = sums.sum(-1) / counts.sum()  # (L, S, K)
    by_text = sums.mean(1).reshape(-1, len(counts)).T  # (texts, L K): of the mean over the seeds
    ends = [
        found.reshape(means.shape[0], -1) for found in ratio_intervals(by_text, counts[:, None])
    ]  # (L, K) each

    for k, way in enumerate(ways):
        for number, layer in enumerate(layers):
            low, high = (
                None if np.isnan(end[number, k]) else float(end[number, k]) for end in ends
            )
            seeds = tuple(map(float, means[number, :, k]))
            yield Scored(way, measure, layer, seeds, low, high, float(validated[number, k]))


def weights_of(fitted: Fitted, ways: Sequence[Way]) -> dict[str, Tensor]:
    """`way/layer/first` (S, E, H) and so on: (x - mean) / deviation @ first + first_bias is what a
    probe says, or with a hidden layer, relu of it @ second + second_bias; times scale, plus offset
    for numbers."""
    made: dict[str, Tensor] = {}
    probes, K = fitted.probes, fitted.probes.targets

    for number, layer in enumerate(fitted.layers):
        for k, way in enumerate(ways):
            parts = {"mean": fitted.mean[number, 0], "deviation": fitted.deviation[number, 0]}
            parts["first"] = probes.first[number].chunk(K, dim=-1)[k]  # (S, E, H)
            parts["first_bias"] = probes.first_bias[number, :, 0].chunk(K, dim=-1)[k]  # (S, H)
            if probes.second is not None and probes.second_bias is not None:
                parts["second"] = probes.second[number, :, k]  # (S, H, C)
                parts["second_bias"] = probes.second_bias[number, :, k, 0]  # (S, C)

            if not fitted.classes:
                parts["units"] = torch.tensor([fitted.offset, fitted.scale])

            made |= {
                f"{way}/{layer}/{part}": value.detach().cpu().clone()
                for part, value in parts.items()
            }

    return made
