"""Training on a busy CPU: OpenMP threads that spin for long, shortly or not at all while waiting.

Beside no, one and four busy processes, or beside other numbers of them:
    python -m benchmarks.training.openmp [0 1]

Each policy trains the demo's GPT in a process of its own, since OpenMP reads its variables when it
is loaded. All take the same steps from the same weights, and their losses must be equal. qkv sets
GOMP_SPINCOUNT=1000.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

POLICIES = {
    "OpenMP's default": {},
    "GOMP_SPINCOUNT=1000 (qkv's default)": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
ROUNDS = 3
STEPS = 20
ROWS = 16


def train() -> None:
    """In a child process: print tokens per second and the last loss."""
    import torch  # before qkv, which would set the policy

    from qkv.data.batches.batch import Batch
    from qkv.lab import demo
    from qkv.models import build
    from qkv.training.objective import Objective
    from qkv.training.optimizer import Optimizers
    from qkv.training.run_config import OptimizerConfig
    from qkv.training.step import gradients_of
    from qkv.training.systems.distributed import World

    torch.manual_seed(0)
    model = build(demo.WRITER_CONFIG).train()
    objective = Objective(model)
    optimizers = Optimizers(model, OptimizerConfig())
    optimizers.set_rate(1e-3, 1e-3)
    ids = torch.randint(demo.WRITER_CONFIG.vocabulary, (ROWS, demo.WRITER_CONFIG.context + 1))
    batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
    bad = torch.zeros(())
    divisor = torch.ones(())
    world = World(torch.device("cpu"))

    begin = time.perf_counter()
    for step in range(STEPS + 3):
        if step == 3:
            begin = time.perf_counter()
        loss, _ = gradients_of(objective, batch, world)
        optimizers.step(bad, divisor)
        optimizers.zero_gradients()
    speed = STEPS * batch.tokens / (time.perf_counter() - begin)
    print(speed, loss.item())


def measure(policy: dict[str, str]) -> tuple[float, str]:
    """Tokens per second and the last loss of a child process with a policy."""
    replaced = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in replaced}
    child = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--child"],
        env=environment | policy,
        capture_output=True,
        text=True,
        check=True,
    )
    speed, loss = child.stdout.split()
    return float(speed), loss


@contextmanager
def busy(processes: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    print(
        f"demo's GPT, AdamW, {STEPS} steps of {ROWS} x 64 tokens, {os.cpu_count()} cores; "
        f"median of {ROUNDS} rounds"
    )
    for others in list(map(int, sys.argv[1:])) or [0, 1, 4]:
        speeds: dict[str, list[float]] = {name: [] for name in POLICIES}
        losses = set()
        with busy(others):
            for _ in range(ROUNDS):
                for name, policy in POLICIES.items():
                    speed, loss = measure(policy)
                    speeds[name].append(speed)
                    losses.add(loss)
        assert len(losses) == 1, f"the policy changed the loss: {losses}"
        print(f"beside {others} busy processes")
        for name, values in speeds.items():
            print(f"  {name:36} {statistics.median(values):8,.0f} tokens/s")


if __name__ == "__main__":
    if "--child" in sys.argv:
        train()
    else:
        main()
