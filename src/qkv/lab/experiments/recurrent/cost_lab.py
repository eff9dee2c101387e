"""What do attention and an RNN cost, in operations, time and memory, as n and d grow?"""

from __future__ import annotations

from math import log2

import torch

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.experiments.recurrent import layer_costs as costs
from qkv.lab.experiments.recurrent.layer_costs import ATTENTION, PROJECTED, RNN, off_theory
from qkv.lab.experiments.recurrent.sequence_models import difference

CPU = torch.device("cpu")
COUNTED = 2048
"""The longest sequence of which operations and bytes are counted."""


def measure(cell: Cell) -> Measured:
    """Count multiply-adds and bytes on the CPU, and take the time on the device."""
    width, longest = cell.size.width, cell.size.longest
    counted = min(longest, COUNTED)
    lengths = [2**power for power in range(4, int(log2(longest)) + 1)]
    by_length = {n: costs.operations(cell.arm, n, width) for n in lengths if n <= counted}
    by_width = {d: costs.operations(cell.arm, width, d) for d in (width // 4, width // 2, width)}
    counted_layer = costs.layer(cell.arm, width, CPU)
    kept = {n: costs.bytes_kept(counted_layer, n, width) for n in by_length}
    timed = costs.layer(cell.arm, width, cell.device)
    with torch.no_grad():
        inputs = {n: torch.randn(1, n, width, device=cell.device) for n in lengths}
        time = {n: 1e3 * costs.seconds(timed, x) for n, x in inputs.items()}

    return {
        "operations": by_length,
        "operations by width": by_width,
        "milliseconds": time,
        "MiB kept": kept,
        "doublings with length": log2(by_length[counted] / by_length[counted // 2]),
        "doublings with width": log2(by_width[width] / by_width[width // 2]),
        "log2 operations at n = d": log2(by_length[width]),
        "log2 time at n = d / 4": log2(time[width // 4]),
        "doublings of time": log2(time[longest] / time[longest // 2]),
        "log2 MiB kept, longest": log2(kept[counted]),
    }


AT_N_EQUALS_D = difference("log2 operations at n = d", ATTENTION, RNN)
TIME_IF_SHORT = difference("log2 time at n = d / 4", RNN, ATTENTION)
GROWTH_OF_TIME = difference("doublings of time", ATTENTION, RNN)
MEMORY = difference("log2 MiB kept, longest", ATTENTION, RNN)

EXPERIMENT = Experiment(
    name="cost",
    claim="Attention costs n^2 d, an RNN n d^2: attention is cheap for short sequences only.",
    slides=("000 L11", "000 L61", "000 L17", "002 L91", "002 L94", "004 L104", "004 L112"),
    setup=(
        "One layer reads n vectors of width d; operations are the multiply-adds of its products.",
        "Attention is softmax(X X^T) X, alone or with projections; the RNN has one tanh layer.",
        "Memory is what a layer keeps for its gradient; time is that of the forward pass.",
        "The arms take turns: one seed is one turn.",
    ),
    arms=(ATTENTION, RNN, PROJECTED),
    measure=measure,
    checks=(
        Check("Operations grow as n^2 d and n d^2", off_theory, 0.01, "same", exact=True),
        Check("Operations are equal at n = d", AT_N_EQUALS_D, 0.01, "same", exact=True),
        Check("At n = d / 4, an RNN takes longer (log2 of the time)", TIME_IF_SHORT, 0.25),
        Check("Attention's time grows faster (log2 for twice the length)", GROWTH_OF_TIME, 0.25),
        Check("Attention keeps more memory at the end (log2 of the bytes)", MEMORY, 1, exact=True),
    ),
    panels=(
        Panel("operations", "length n", "multiply-adds", "Operations, d fixed", log="xy"),
        Panel("milliseconds", "length n", "milliseconds", "Time of a layer", log="xy"),
        Panel("MiB kept", "length n", "MiB", "Kept for the gradient", log="xy"),
    ),
    small=Size(seeds=7, minutes=0.5, width=64, longest=2048),
    large=Size(seeds=15, minutes=3, width=128, longest=16384),
    timed=True,
    remark="'O(1) per layer' (004 L104) is the number of sequential steps, which `qkv lab "
    "parallel` counts, not of operations. n^2 d leaves out the projections, 4 n d^2: with them "
    "attention needs more operations than this RNN at every length. Attention does not reduce "
    "memory (004 L112). At the small size, with n = 2,048 and d = 64, it keeps 33.5 MiB for the "
    "gradient, the RNN 0.5 MiB.",
    next_steps=(
        "qkv lab cost --set width=256: where is the crossing now?",
        "qkv lab sparse: attention with a pattern that skips most pairs.",
    ),
)
