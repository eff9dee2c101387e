"""Probe a model: what its layers encode, beside two controls.

The random model has the same config with untrained weights: its scores come from the tokens and
the probe alone. The shuffled labels are a control task: probes train on them with the model's own
vectors and are tested on the true labels, so that they score at chance level.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from qkv import storage
from qkv.bootstrap import ratio_intervals
from qkv.insight.probing.activations import (
    ActivationDtype,
    Activations,
    ActivationStorage,
    activations,
    ignore,
)
from qkv.insight.probing.linear_probe import FittedProbe, ProbeTraining, fit
from qkv.insight.probing.probe_tasks import Measure, ProbeTask
from qkv.models.model import Model
from qkv.models.registry import build

ProbeCondition = Literal["model", "random model", "shuffled labels"]
ProgressCallback = Callable[[str, float], object]
"""Called with the name of a stage and the share of it that was done since the last call."""
PARTS = ("training", "validation", "test")
READERS = {"model": "model", "random model": "random-weight control"}


class LayerScore(NamedTuple):
    """The score of one layer."""

    way: ProbeCondition
    measure: Measure
    layer: str
    seeds: tuple[float, ...]
    """The score of each seed on the test part."""
    low: float | None
    """Lower end of the 95% confidence interval of the mean over seeds; None for few texts."""
    high: float | None
    """Upper end."""
    validation: float
    """The mean over seeds on the validation part, by which the best layer is chosen."""

    @property
    def mean(self) -> float:
        """The mean over seeds on the test part."""
        return statistics.fmean(self.seeds)


def best_of(scores: Sequence[LayerScore]) -> LayerScore:
    """The best layer by its validation score; choosing by the test score would be optimistic."""
    if scores[0].measure == "accuracy":
        return max(scores, key=lambda score: score.validation)

    return min(scores, key=lambda score: score.validation)


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The scores of all layers of a model; `best` is the layer to report."""

    model: str
    target: str
    measures: tuple[Measure, ...]
    """The measures; the first is the main one."""
    layers: tuple[str, ...]
    scores: list[LayerScore]
    baseline: dict[Measure, float]
    """Majority-class baseline, or the score of always predicting the median."""
    facts: dict[str, Any]
    """Settings and sizes."""
    weights: dict[str, Tensor]
    """The weights of all probes, by way, layer and part; the first dimension is the seed."""

    def of(self, way: ProbeCondition, measure: Measure | None = None) -> list[LayerScore]:
        """The scores of the model or of a control by layer; by default of the main measure."""
        wanted = (way, measure or self.measures[0])
        return [score for score in self.scores if (score.way, score.measure) == wanted]

    @property
    def best(self) -> LayerScore:
        """The best layer of the model."""
        return best_of(self.of("model"))

    def as_object(self) -> dict[str, Any]:
        """The results for JSON."""
        best = self.best
        return {
            "model": self.model,
            "target": self.target,
            "measure": self.measures[0],
            "best": {"layer": best.layer, "score": best.mean, "validation": best.validation},
            "baseline": self.baseline,
            **self.facts,
            "layers": list(self.layers),
            "scores": [{**score._asdict(), "mean": score.mean} for score in self.scores],
        }

    def save(self, folder: Path) -> None:
        """Write results.json and probes.safetensors, each atomically."""
        results = json.dumps(self.as_object(), indent=1, ensure_ascii=False)
        storage.write_text(folder / "results.json", results + "\n")

        labels = json.dumps(self.facts.get("labels", []), ensure_ascii=False)
        metadata = {"labels": labels, "target": self.target}
        size = sum(tensor.nbytes for tensor in self.weights.values())
        with storage.replacing(folder / "probes.safetensors", size) as staged:
            save_file(self.weights, staged, metadata=metadata)


def probe(
    model: Model,
    question: ProbeTask,
    *,
    name: str = "model",
    layers: Sequence[str] | None = None,
    seeds: int = 3,
    learning: ProbeTraining = ProbeTraining(),  # noqa: B008 - it is frozen
    controls: bool = True,
    keep: ActivationStorage = "disk",
    store: ActivationDtype = "float32",
    stage: ProgressCallback | None = None,
) -> ProbeResult:
    """Train and test probes on every layer of a frozen model.

    Args:
        model: The model; a translator's encoder is probed, a task model's backbone.
        question: The data, from `probe_task`.
        name: The name of the model in the results.
        layers: Names of layers ("embedding", "0", ..., "norm"); default all.
        seeds: The number of probes for each layer.
        learning: Hyperparameters of the probes.
        controls: Also probe a random model and shuffled labels; both are drawn once.
        keep: Keep activations on "disk", in "memory", or "recompute" them in each epoch.
        store: The dtype of activations on disk.
        stage: Called with the name of a stage and the share of it that was done.

    Returns:
        The scores with 95% confidence intervals, and the probes' weights.

    Raises:
        ValueError: If seeds is below 1, or a layer does not exist.

    Example:
        >>> import numpy as np
        >>> from qkv import insight, models
        >>> from qkv.data.tokens.token_arrays import Tokens
        >>> from qkv.insight.probing.linear_probe import ProbeTraining
        >>> from qkv.insight.probing.probe_tasks import position_task
        >>> model = models.GPT(models.GPTConfig(vocabulary=9, width=8, heads=2, depth=1))
        >>> tokens = Tokens([np.arange(200) % 9], np.array([200]), "")
        >>> task = position_task(tokens, length=4, windows=20)
        >>> result = insight.probe(model, task, seeds=1, learning=ProbeTraining(epochs=1))
        >>> [score.layer for score in result.of("random model")]
        ['embedding', '0', 'norm']
    """
    if seeds < 1:
        raise ValueError(f"seeds: expected 1 or more, not {seeds}")

    run = ProbeRun(question, range(seeds), learning, stage or ignore)
    options: dict[str, Any] = {"layers": layers, "keep": keep, "store": store}
    if controls:
        run.read("model", model, ["model", "shuffled labels"], **options)
        run.read("random model", randomised(model), ["random model"], **options)
    else:
        run.read("model", model, ["model"], **options)

    return run.result(name)


def facts_of(task: ProbeTask, learning: ProbeTraining, seeds: int) -> dict[str, Any]:
    """The settings and sizes that the results report."""
    return {
        "texts": dict(zip(PARTS, map(len, task.parts), strict=True)),
        "places": {name: len(part.targets) for name, part in zip(PARTS, task.parts, strict=True)},
        "hidden": learning.hidden,
        "seeds": seeds,
        "chosen": "best is the layer with the best validation score; its score is on the test part",
        "interval": "95%, of the mean over the seeds; bootstrap over test texts, 1,000 draws",
        "labels": list(task.labels),
    }


def randomised(model: Model, seed: int = 0) -> Model:
    """A model of the same config with random weights."""
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(model.config).to(parameter.device, parameter.dtype)


@dataclass(eq=False)
class ProbeRun:
    """The settings of a probing experiment, and the scores and weights so far."""

    task: ProbeTask
    seeds: Sequence[int]
    learning: ProbeTraining
    stage: ProgressCallback = ignore
    scores: list[LayerScore] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def read(self, name: str, model: Model, ways: Sequence[ProbeCondition], **options: Any) -> None:
        """Read the texts with one model, then train and test its probes.

        The options are those of `activations`.
        """
        reading = f"reading the texts with the {READERS[name]}"
        texts = sum(map(len, self.task.parts))

        def advance(count: int) -> None:
            self.stage(reading, count / texts)

        with activations(model, self.task.parts, advance=advance, **options) as parts:
            self.train(parts, ways, f"training probes on the {name}")

    def train(
        self, parts: Sequence[Activations], ways: Sequence[ProbeCondition], what: str = "probes"
    ) -> None:
        """Train and test the probes of all layers, one at a time unless together is as fast."""
        training, validation, test = parts
        layers = training.layers
        on_gpu = training.read(0, layers[:1]).device.type != "cpu"
        groups: list[tuple[str, ...]] = [(layer,) for layer in layers]
        if training.together or on_gpu:
            groups = [layers]

        self.stage(what, 0.0)  # announces the stage: the first probes may take a while
        for group in groups:

            def advance(part: float, share: float = len(group) / len(layers)) -> None:
                self.stage(what, part * share)

            fitted = fit(
                training,
                validation,
                target_sets(training, validation, ways),
                len(self.task.labels),
                layers=group,
                seeds=self.seeds,
                learning=self.learning,
                advance=advance,
            )
            validation_sums = sums_by_text(fitted, validation, self.task.measures)
            for measure, sums in sums_by_text(fitted, test, self.task.measures).items():
                total = validation_sums[measure].sum(-1).mean(1)  # (L, K)
                validated = total / len(validation.texts.targets)
                self.scores += layer_scores(group, ways, measure, sums, test, validated)

            self.weights |= weights_of(fitted, ways)

    def result(self, name: str) -> ProbeResult:
        """The scores and weights of all models so far."""
        return ProbeResult(
            name,
            self.task.name,
            self.task.measures,
            tuple(dict.fromkeys(score.layer for score in self.scores)),
            self.scores,
            self.task.baseline(),
            facts_of(self.task, self.learning, len(self.seeds)),
            self.weights,
        )


def target_sets(
    training: Activations, validation: Activations, ways: Sequence[ProbeCondition]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The training and validation targets of each way: the true ones, or shuffled ones."""
    random = np.random.default_rng(0)
    targets = (training.texts.targets, validation.texts.targets)
    shuffled = (random.permutation(targets[0]), random.permutation(targets[1]))

    sets = []
    for way in ways:
        sets.append(shuffled if way == "shuffled labels" else targets)

    return sets


def sums_by_text(
    fitted: FittedProbe, test: Activations, measures: Sequence[Measure]
) -> dict[Measure, Float[np.ndarray, "L S K texts"]]:
    """For each text the number of right predictions, or the sum of absolute errors."""
    texts = test.texts
    shape = (len(fitted.layers), fitted.probes.first.shape[1], fitted.probes.targets)
    result: dict[Measure, np.ndarray] = {}
    for measure in measures:
        result[measure] = np.zeros((*shape, len(texts)))

    for number, block in enumerate(test.blocks):
        span = test.span(number)
        ends = texts.ends[block.start : block.stop]
        vectors = test.read(number, fitted.layers)
        predicted = fitted.predict(vectors).double().cpu().numpy()  # (L, S, K, n)
        error = np.abs(predicted - texts.targets[span.start : span.stop])
        for measure, sums in result.items():
            values = error == 0 if measure == "accuracy" else error
            cumulative = np.cumsum(values, axis=-1)
            cumulative = np.concatenate([np.zeros((*shape, 1)), cumulative], axis=-1)
            up_to_end = cumulative[..., ends - span.start]  # (L, S, K, texts of the block)
            sums[..., block.start : block.stop] = np.diff(up_to_end, axis=-1, prepend=0)

    return result


def layer_scores(
    layers: Sequence[str],
    ways: Sequence[ProbeCondition],
    measure: Measure,
    sums: Float[np.ndarray, "L S K texts"],
    test: Activations,
    validated: Float[np.ndarray, "L K"],
) -> Iterator[LayerScore]:
    """The scores of each layer and way with confidence intervals over the texts."""
    counts = np.array(list(map(len, test.texts.positions)), dtype=np.float64)  # (texts,)
    means = sums.sum(-1) / counts.sum()  # (L, S, K)
    by_text = sums.mean(1).reshape(-1, len(counts)).T  # (texts, L K), the mean over seeds
    low, high = ratio_intervals(by_text, counts[:, None])
    low = low.reshape(len(layers), -1)  # (L, K)
    high = high.reshape(len(layers), -1)

    for k, way in enumerate(ways):
        for number, layer in enumerate(layers):
            yield LayerScore(
                way,
                measure,
                layer,
                tuple(map(float, means[number, :, k])),
                number_or_none(low[number, k]),
                number_or_none(high[number, k]),
                float(validated[number, k]),
            )


def number_or_none(value: float) -> float | None:
    """None for NaN, since JSON has no NaN."""
    if np.isnan(value):
        return None

    return float(value)


def weights_of(fitted: FittedProbe, ways: Sequence[ProbeCondition]) -> dict[str, Tensor]:
    """The weights of all probes by name: `way/layer/first` is (S, E, H), and so on.

    The output of a probe is (x - mean) / deviation @ first + first_bias, or with a hidden layer
    relu of that @ second + second_bias. For numbers it is multiplied by units[1] and shifted by
    units[0].
    """
    probes = fitted.probes
    K = probes.targets
    result: dict[str, Tensor] = {}

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

            for part, value in parts.items():
                result[f"{way}/{layer}/{part}"] = value.detach().cpu().clone()

    return result
