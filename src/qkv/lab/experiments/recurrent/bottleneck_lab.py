"""How much of a sequence gets through one hidden vector, and how much past it with attention?"""

from __future__ import annotations

from qkv.data.batches.batch import Batch
from qkv.data.embedded.synthetic_batches import copy_batch
from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.recurrent.sequence_models import copied, copier, difference
from qkv.lab.fit import fit

NARROW = "GRU, a quarter as wide"
EQUAL = "GRU"
WIDE = "GRU, twice as wide"
ATTENTION = "GRU + attention"
MODELS = {
    NARROW: (0.25, "none"),
    EQUAL: (1, "none"),
    WIDE: (2, "none"),
    ATTENTION: (1, "additive"),
    "Transformer": (1, "only"),
}
VOCABULARY = 16


def measure(cell: Cell) -> Measured:
    """Train to copy sequences of 1 to `longest` tokens; then copy greedily, length by length."""
    size = cell.size
    factor, attention = MODELS[cell.arm]
    model = copier(int(factor * size.width), VOCABULARY, attention).to(cell.device)

    def batch(step: int) -> Batch:
        return copy_batch(cell.seed, step, 32, size.longest, VOCABULARY, shortest=1)

    fit(model, batch, size.steps, rate=size.rate)
    curve = {}
    for length in (size.longest // 8, size.longest // 4, size.longest // 2, size.longest):
        test = copy_batch(cell.seed, 0, 100, length, VOCABULARY, split="test")
        curve[length] = copied(model, test.to(cell.device))

    first, *_, last = curve.values()
    return {"copied": curve, "copied, longest": last, "lost with length": first - last}


EXPERIMENT = Experiment(
    name="bottleneck",
    claim="With attention, the hidden state no longer has to hold the entire input.",
    slides=("001 L12", "001 L47", "003 L76", "000 L12"),
    setup=(
        "The task is to copy a sequence of random tokens: nothing can be guessed or left out.",
        "Without attention, the whole sequence has to pass through the encoder's last vector.",
        "Recurrent models without attention have a quarter, the same and twice the width.",
        "Counted are tokens copied right by greedy decoding of new sequences, by length.",
    ),
    arms=tuple(MODELS),
    measure=measure,
    checks=(
        Check(
            "Attention copies long sequences better than a vector of twice the width",
            difference("copied, longest", ATTENTION, WIDE),
            0.1,
        ),
        Check(
            "Without attention, more is lost as sequences get longer",
            difference("lost with length", EQUAL, ATTENTION),
            0.1,
        ),
        Check(
            "A wider vector holds more of a long sequence",
            difference("copied, longest", WIDE, NARROW),
            0.05,
        ),
    ),
    panels=(Panel("copied", "length", "tokens right", levels={"chance": 1 / (VOCABULARY - 3)}),),
    small=Size(seeds=4, minutes=1.5, steps=300, width=64, longest=16, rate=3e-3),
    large=Size(seeds=4, minutes=4, steps=500, width=128, longest=32, rate=1e-3),
    remark=(
        "What fits through a vector also depends on training: a model without attention may only "
        "need more steps. The first next step tells."
    ),
    next_steps=(
        "qkv lab bottleneck --set steps=1000: how much of the gap is a matter of training?",
        "qkv train rnn --attention none --data turkish-long, then with --attention additive.",
    ),
)
