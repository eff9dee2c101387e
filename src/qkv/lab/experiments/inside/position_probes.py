"""Models that differ in their positional encoding, and probes for the position of a token."""

from __future__ import annotations

from typing import Any

from qkv.insight.probing.activations import activations
from qkv.insight.probing.linear_probe import ProbeTraining
from qkv.insight.probing.probe_model import ProbeRun, best_of
from qkv.insight.probing.probe_tasks import ProbeTask
from qkv.models import BERTConfig, GPTConfig
from qkv.models.model import Model

CAUSAL = ("none", "learned", "sinusoidal", "rotary", "alibi")
BIDIRECTIONAL = "bidirectional, none"
ARMS = (*(f"causal, {position}" for position in CAUSAL), BIDIRECTIONAL)


def position_config(arm: str, **shape: Any) -> GPTConfig | BERTConfig:
    """A causal model with a positional encoding, or a bidirectional one without.

    Args:
        arm: One of `ARMS`.
        shape: Sizes of the model.
    """
    if arm == BIDIRECTIONAL:
        shape |= {"segments": 0, "pooler": False, "next_sentence": False, "norm_epsilon": 1e-5}
        return BERTConfig(position="none", norm_placement="before", **shape)

    position: Any = arm.removeprefix("causal, ")
    # Token embeddings start at 0.02, and would vanish beside waves of amplitude 1.
    return GPTConfig(position=position, scaled_embedding=position == "sinusoidal", **shape)


def probe_positions(
    model: Model, task: ProbeTask, *, seed: int, hidden: int, epochs: int = 6
) -> dict[str, Any]:
    """Train a linear probe and one with a hidden layer on every layer of a fixed model.

    Args:
        model: The model.
        task: The position task.
        seed: Seed of the probes.
        hidden: Width of the hidden layer.
        epochs: Passes over the vectors.

    Returns:
        "accuracy, linear" and the like by layer (0 is the embedding) on test windows; and
        "best accuracy, linear" and the like for the layer that is best on validation windows; and
        the accuracy of "chance".
    """
    measured: dict[str, Any] = {"chance": 1 / len(task.labels)}
    with activations(model, task.parts, keep="memory") as parts:
        for kind, width in (("linear", 0), ("hidden layer", hidden)):
            learning = ProbeTraining(hidden=width, batch=512, rate=3e-3, epochs=epochs)
            run = ProbeRun(task, [seed], learning)
            run.train(parts, ("model",))
            for name in ("accuracy", "distance"):
                scores = [score for score in run.scores if score.measure == name]
                measured[f"{name}, {kind}"] = {x: score.mean for x, score in enumerate(scores)}
                measured[f"best {name}, {kind}"] = best_of(scores).mean

    return measured
