"""How does the length of the path between two tokens change what is learned about them?"""

from __future__ import annotations

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.recurrent import sequence_models as models
from qkv.lab.experiments.recurrent.sequence_models import CELLS, difference

ATTENTION = "attention"
DEEP = "attention, 4 layers"
WINDOW = "window, 4 layers"
LAYERS = dict.fromkeys(CELLS, 1) | {ATTENTION: 1, DEEP: 4, WINDOW: 4}


def reach(farthest: int) -> int:
    """Tokens back that one layer with a window reaches: four layers reach 7/8 of the farthest."""
    return max(1, 7 * farthest // 32)


def measure(cell: Cell) -> Measured:
    """Train one model for each distance; the answer is the token that far back."""
    farthest = cell.size.farthest
    sizes = {"vocabulary": 8, "context": 3 * farthest // 2, "width": cell.size.width}
    if cell.arm in CELLS:
        sizes["width"] *= 2
    if cell.arm == WINDOW:
        sizes["window"] = reach(farthest) + 1

    sizes |= {"depth": LAYERS[cell.arm], "heads": 1}
    config = models.language_model(cell.arm, position="rotary", **sizes)
    right = {}
    for distance in (1, farthest // 8, farthest // 4, farthest // 2, farthest):
        right[distance] = models.learn_back(cell, config, distance)

    return {
        "right": right,
        "path": {distance: path(cell.arm, distance, farthest) for distance in right},
        "right, half way": right[farthest // 2],
        "right, farthest": right[farthest],
        "lost with distance": right[1] - right[farthest],
    }


def path(arm: str, distance: int, farthest: int) -> int:
    """Steps between the token and its answer, of recurrence or of attention."""
    if arm in CELLS:
        return distance
    if arm == WINDOW:
        return -(-distance // reach(farthest))

    return 1


FARTHEST = difference("right, farthest", ATTENTION, *CELLS)
HALF_WAY = difference("right, half way", DEEP, WINDOW)

EXPERIMENT = Experiment(
    name="distance",
    claim="The shorter the path between two tokens, the easier their dependency is learned.",
    slides=("000 L64", "004 L106", "001 L16", "000 L12"),
    setup=(
        "The task is to say the token k positions back; each k has a model of its own.",
        "RNNs are twice as wide as attention, and every arm reads the same tokens.",
        "The path is k steps in an RNN, 1 in attention, and more layers with a window.",
        "Four layers with a window reach 7/8 of the farthest distance: half way is within reach.",
    ),
    arms=tuple(LAYERS),
    measure=measure,
    checks=(
        Check("Farthest away, attention is right more often than the best RNN", FARTHEST, 0.1),
        Check(
            "Attention loses nothing with distance",
            lambda value: value(ATTENTION, "lost with distance"),
            0.05,
            "same",
        ),
        Check("Half way, of two models with four layers, the shorter path wins", HALF_WAY, 0.1),
    ),
    panels=(
        Panel("right", "tokens back", "right answers", log="x", levels={"chance": 0.125}),
        Panel("path", "tokens back", "steps between token and answer", log="xy"),
    ),
    small=Size(seeds=4, minutes=2, steps=200, farthest=32, width=32, rate=5e-3),
    large=Size(seeds=4, minutes=5, steps=600, farthest=256, width=64, rate=3e-3),
    remark="'Maximum sequence length O(1)' on the slide is the path length, the right panel "
    "here. At the farthest distance the window is at chance, whatever is learned: it does not "
    "reach it.",
    next_steps=(
        "qkv lab distance --set steps=1000: which arms get there with more training?",
        "qkv lab distance --set farthest=64: does attention stay level?",
    ),
)
