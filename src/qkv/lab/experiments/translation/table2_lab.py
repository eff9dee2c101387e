"""Table 2: does the Transformer translate better, and learn it with fewer FLOPs?"""

from __future__ import annotations

import math
from typing import Any

from qkv.lab.experiment import Cell, Experiment, Measured, Panel, Size
from qkv.lab.experiments.translation import translators as tr
from qkv.lab.experiments.translation.newstest_table import draw_table

NEW = "Transformer"
RIVAL = "RNN with attention"
PAIR = "two RNNs with attention"
RATES = {"RNN": 1e-2, RIVAL: 1e-2, PAIR: 1e-2, NEW: 3e-3}
FINAL, LOST = "final BLEU", "lost on new combinations"
FLOPS, STEPS = "log2 FLOPs to BLEU 50", "log2 steps to BLEU 50"
LEVEL = 50.0


def measure(cell: Cell) -> Measured:
    """Train until the budget of FLOPs is spent, and translate the test sentences on the way."""
    size = cell.size
    members = 2 if cell.arm == PAIR else 1
    config: Any = tr.transformer(size.width)
    if cell.arm != NEW:
        config = tr.rnn(size.width, "none" if cell.arm == "RNN" else "additive")

    per_step = members * tr.flops_per_step(config)
    steps = int(size.budget / per_step)
    rate = RATES[cell.arm]
    models, by_step = tr.follow(cell, config, steps, members=members, rate=rate)
    step = tr.first_crossing(by_step, LEVEL)
    equal_steps = step
    if max(by_step.values()) < LEVEL:  # as late as the rival's last step at least
        equal_steps = max(step, size.budget / tr.flops_per_step(tr.rnn(size.width)))

    shares = [size.budget * point / size.points / 1e9 for point in range(1, size.points + 1)]
    final = by_step[steps]
    return {
        "BLEU": dict(zip(shares, by_step.values(), strict=True)),
        FINAL: final,
        LOST: tr.bleu_of(models, size.sentences, "valid") - final,
        FLOPS: math.log2(step * per_step),
        STEPS: math.log2(equal_steps),
    }


EXPERIMENT = Experiment(
    name="table2",
    claim="A Transformer reaches a better BLEU than RNNs, and needs fewer FLOPs to get there.",
    slides=("000 L102", "000 L14", "004 L113"),
    setup=(
        "English to Turkish; in the test sentences no noun occurs with its verb as in training.",
        "GRU encoder-decoders without and with additive attention, two that translate together, "
        "and a Transformer with 2 + 2 layers: equal width.",
        "Each gets the same FLOPs (the count of `qkv train`); two models get half each.",
        "Who never reaches BLEU 50 counts as if at the end, and not before the RNN's last step.",
        "Learning rates: the best of 0.001, 0.003 and 0.01 for each model, with another seed.",
        "BLEU of greedy translations along the way; right: the ten rows of the lecture's table.",
    ),
    arms=tuple(RATES),
    measure=measure,
    checks=(
        tr.differs("At equal FLOPs the Transformer has the better BLEU", NEW, RIVAL, FINAL, 2.0),
        tr.differs("The RNN with attention needs more FLOPs (log2)", RIVAL, NEW, FLOPS, 0.5),
        tr.differs("The RNN with attention needs more steps (log2)", RIVAL, NEW, STEPS, 0.5),
        tr.differs("The RNN without attention needs more FLOPs (log2)", "RNN", NEW, FLOPS, 0.5),
        tr.differs("The RNN loses more BLEU on new combinations", RIVAL, NEW, LOST, 1.0),
    ),
    panels=(
        Panel("BLEU", "training cost (10⁹ FLOPs)", "BLEU", "Equal FLOPs, measured here"),
        Panel("table", "training FLOPs", "BLEU", "The lecture's Table 2", draw=draw_table),
    ),
    small=Size(seeds=4, minutes=2, width=64, budget=3.2e11, points=8, sentences=200),
    large=Size(seeds=4, minutes=4, width=128, budget=2.2e12, points=10, sentences=1000),
    remark="At the small size a step of the Transformer costs 2.7 times as many FLOPs as one of "
    "the RNN with attention, so it saves FLOPs only if it needs far fewer steps. FLOPs leave out "
    "that the steps of an RNN wait for each other. In the lecture's table the base model costs a "
    "third of the cheapest rival into German, and is below all rivals into French (38.1).",
    next_steps=(
        "qkv lab table2 --set width=128 --set budget=1e12: does a wider Transformer gain more?",
        "qkv train transformer --data turkish: the line `training cost (FLOPs)` is this x axis.",
        "Which of the two matters more here: fewer steps, or cheaper steps?",
    ),
)
