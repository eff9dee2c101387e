"""How much of the work can be done at the same time, in an LSTM and in Transformers?"""

from __future__ import annotations

from math import log2

from qkv.data.batches.batch import Batch
from qkv.data.embedded.synthetic_batches import random_batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.recurrent import sequence_models as models
from qkv.lab.experiments.recurrent.layer_costs import threads, training_speed
from qkv.lab.experiments.recurrent.sequence_models import difference
from qkv.models.registry import build
from qkv.training.objective import Objective

SHALLOW = "GPT, 2 layers x 8 heads"
DEEP = "GPT, 8 layers x 2 heads"
MIDDLE = "GPT, 4 layers x 4 heads"
SHAPES = {"LSTM": (2, 1, 1.25), SHALLOW: (2, 8, 1), MIDDLE: (4, 4, 0.72), DEEP: (8, 2, 0.5)}
"""Layers, heads, and the factor of the width that makes the numbers of parameters equal."""


def measure(cell: Cell) -> Measured:
    """Count steps that have to follow each other, and take the time of training steps."""
    size = cell.size
    lengths = [size.longest // 32, size.longest // 8, size.longest // 2, size.longest]
    depth, heads, factor = SHAPES[cell.arm]
    width = 4 * round(factor * size.width / 4)
    sizes = {"vocabulary": 64, "context": size.longest, "width": width}
    config = models.language_model(cell.arm, depth=depth, heads=heads, **sizes)
    objective = Objective(build(config))
    chains = {n: models.longest_chain(objective.model, batch(n, n).ids) for n in (8, 16, 32, 64)}

    with threads(1):
        alone = training_speed(objective, batch(min(size.tokens, 4096), size.longest // 2))

    objective.to(cell.device)
    with threads(size.threads):
        speeds = {n: training_speed(objective, batch(size.tokens, n)) for n in lengths}

    return {
        "chain": chains,
        "tokens a second": speeds,
        "added by a token": (chains[64] - chains[32]) / 32,
        "log2 speed": log2(speeds[size.longest // 2]),
        "log2 slow-down": log2(speeds[lengths[0]] / speeds[size.longest]),
        "speed-up": speeds[size.longest // 2] / alone,
    }


def batch(tokens: int, length: int) -> Batch:
    """Random tokens in rows of a length."""
    return random_batch(0, 0, max(1, tokens // length), length, 64)


CHAIN = difference("added by a token", "LSTM", SHALLOW, DEEP)
SLOW_DOWN = difference("log2 slow-down", "LSTM", SHALLOW)
SPEED_UP = difference("speed-up", SHALLOW, "LSTM")
SPEED = difference("log2 speed", SHALLOW, DEEP)

EXPERIMENT = Experiment(
    name="parallel",
    claim="An RNN computes one token after another; a Transformer computes all at once.",
    slides=("000 L15", "001 L96", "001 L218", "002 L83", "004 L104", "004 L105", "004 L111"),
    setup=(
        "An LSTM and three GPTs of equal parameters are trained on random tokens.",
        "A step has the same number of tokens whether its rows are few and long or many and short.",
        "A chain counts matrix products that need each other's results: sequential steps.",
        "The speed-up is over one CPU thread: by two threads, or by a GPU in the large size.",
        "The arms take turns: one seed is one turn.",
    ),
    arms=tuple(SHAPES),
    measure=measure,
    checks=(
        Check("A token makes an LSTM's chain longer, not a GPT's", CHAIN, 0.5, exact=True),
        Check("Long rows slow an LSTM's training down more than a GPT's (log2)", SLOW_DOWN, 0.5),
        Check("A GPT gains more from parallel hardware than an LSTM", SPEED_UP, 0.1),
        Check("More heads and fewer layers are faster (log2 of the speed)", SPEED, 0.25),
    ),
    panels=(
        Panel("chain", "length", "products after each other", "Sequential steps", log="xy"),
        Panel("tokens a second", "length", "tokens a second", "Speed of training", log="xy"),
        Panel("speed-up", "", "times faster than one thread", "Parallel hardware", kind="dots"),
    ),
    small=Size(seeds=7, minutes=1.5, tokens=1024, longest=512, width=128, threads=2),
    large=Size(seeds=7, minutes=5, tokens=65536, longest=2048, width=512, threads=4),
    timed=True,
    remark="'O(1) per layer' (004 L104) is true of these chains: that of a GPT with 2 layers has "
    "11 products at every length, that of an LSTM with 2 layers gets 2 longer with each token. On "
    "two CPU cores that costs little: long rows slow GPTs down more, as attention costs n^2.",
    next_steps=(
        "qkv lab parallel --set threads=1: is the LSTM still slower on long rows?",
        "qkv lab cost: the operations that are done at once, or one after another.",
    ),
)
