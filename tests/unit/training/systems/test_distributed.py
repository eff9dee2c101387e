"""Two and three ranks with DDP and FSDP2 train like one process; none waits for one that died."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import qkv
from qkv.checkpoint import CHECKPOINTS
from qkv.models.gpt import GPTConfig
from qkv.training.logging.metrics import read_metrics
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.training_task import assemble
from qkv.training.systems.distributed import World
from qkv.training.train import train
from support.launching import RANKS, finish, launch, train_on_cpu, write_data
from support.ranks import CASES, HALFWAY, PAIRS, STEPS, TEXT, halfway, train_case

ALONE = World(torch.device("cpu"))
WAYS = ["ddp", "fsdp"]
# Sums in another order differ in the last bits of a float32, which Muon makes larger.
TOLERANCE = dict.fromkeys(CASES, 1e-06) | {"muon": 1e-5}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: None) -> Path:
    """Runs named RANKS-METHOD-CASE; 1-then-2-fsdp-gpt was resumed on two ranks with FSDP."""
    folder = tmp_path_factory.mktemp("runs")
    write_data(folder)
    for name in CASES:
        train_case(name, folder, folder / f"1-{name}", ALONE)
    for way in WAYS:
        halfway(folder / "1-gpt", folder / f"1-then-2-{way}-gpt")
    started = [f"{name}:{way}:2-{way}-{name}" for name in CASES for way in WAYS]
    resumed = [f"gpt:{way}:1-then-2-{way}-gpt" for way in WAYS]
    two = [*started, *resumed, "fail"]
    three = [
        "halfway:2-fsdp-gpt:2-fsdp-then-3-ddp-gpt",
        "halfway:2-ddp-gpt:2-ddp-then-3-fsdp-gpt",
        "halfway:2-fsdp-gpt:2-fsdp-then-3-fsdp-gpt",
        "gpt:ddp:2-fsdp-then-3-ddp-gpt",
        "gpt:fsdp:2-ddp-then-3-fsdp-gpt",
        "gpt:fsdp:2-fsdp-then-3-fsdp-gpt",
        "transformer:ddp:3-ddp-transformer",
        "transformer:fsdp:3-fsdp-transformer",
    ]
    printed = train_on_cpu(folder, (2, two), (3, three))
    (folder / "printed").write_text(printed)

    for way in WAYS:
        halfway(folder / f"2-{way}-gpt", folder / f"2-{way}-then-1-gpt")
        train_case("gpt", folder, folder / f"2-{way}-then-1-gpt", ALONE)
    halfway(folder / "2-fsdp-muon", folder / "2-fsdp-then-1-muon")
    train_case("muon", folder, folder / "2-fsdp-then-1-muon", ALONE)
    return folder


def column(run: Path, name: str) -> list[float]:
    return [row[name] for row in read_metrics(run) if name in row]


def assert_same(run: Path, reference: Path, tolerance: float) -> None:
    """Equal metrics at every step, and in the end equal models and checkpoints."""
    for name in ("step", "loss", "gradient_norm", "validation_loss", "tokens"):
        expected = column(reference, name)
        relative = tolerance
        if name == "gradient_norm":
            relative = 10 * tolerance  # it adds up the differences of all weights

        assert column(run, name) == pytest.approx(expected, rel=relative)

    assert column(run, "loss")[-1] < column(run, "loss")[0]
    weights = qkv.load(run).model.state_dict()
    assert_close(weights, qkv.load(reference).model.state_dict(), tolerance)
    newest = Checkpoints(run / CHECKPOINTS).newest()
    expected_newest = Checkpoints(reference / CHECKPOINTS).newest()
    assert newest is not None
    assert expected_newest is not None
    assert newest.step == expected_newest.step == STEPS
    assert_close(newest.tensors(), expected_newest.tensors(), tolerance)


def assert_close(
    tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float
) -> None:
    """Close relative to the norm of each tensor."""
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        distance = (tensors[name] - tensor).norm() / max(tensor.norm(), 1e-3)
        assert distance <= 100 * tolerance, f"{name} differs by {distance:.1e}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_like_one_process(runs: Path, name: str, way: str) -> None:
    assert_same(runs / f"2-{way}-{name}", runs / f"1-{name}", TOLERANCE[name])


def test_cases_have_batches_that_ranks_cannot_share(runs: Path) -> None:
    """The other tests rely on this."""
    case = CASES["transformer"]
    source = DataConfig(data=(str(runs / PAIRS),), tokenizer="characters")
    data = assemble(case.model, source, batch_tokens=case.run["batch_tokens"], seed=0).training
    rows = [data.batch(step).rows for step in range(STEPS)]
    assert min(rows) == 1
    assert max(rows) > 3


@pytest.mark.parametrize("way", WAYS)
def test_three_ranks_with_batches_of_one_row(runs: Path, way: str) -> None:
    assert_same(runs / f"3-{way}-transformer", runs / "1-transformer", TOLERANCE["transformer"])


@pytest.mark.parametrize(
    "path",
    [
        "1-then-2-ddp",
        "1-then-2-fsdp",
        "2-fsdp-then-3-ddp",
        "2-ddp-then-3-fsdp",
        "2-fsdp-then-3-fsdp",
        "2-ddp-then-1",
        "2-fsdp-then-1",
    ],
)
def test_a_checkpoint_resumes_with_another_number_of_ranks(runs: Path, path: str) -> None:
    assert_same(runs / f"{path}-gpt", runs / "1-gpt", TOLERANCE["gpt"])


def test_muons_state_resumes_too(runs: Path) -> None:
    assert_same(runs / "2-fsdp-then-1-muon", runs / "1-muon", TOLERANCE["muon"])


def test_only_the_first_rank_prints(runs: Path) -> None:
    lines = (runs / "printed").read_text().splitlines()
    steps = [line for line in lines if line.startswith(f"step 1/{STEPS} ")]
    assert len(steps) == len(WAYS) * (len(CASES) + 1)  # resumed runs begin later
    resumed = [line for line in lines if line.startswith(f"Resuming after step {HALFWAY} ")]
    assert len(resumed) == len(WAYS) + 3


def test_if_one_rank_fails_the_others_stop(runs: Path) -> None:
    for failing in (0, 1):
        for rank in (0, 1):
            error = "OSError" if rank == failing else "SystemExit"
            assert (runs / f"{failing}-{rank}").read_text() == error

    assert (runs / "turns-0").read_text() == "OSError"
    assert (runs / "turns-1").read_text() == "SystemExit"
    assert not (runs / "turn-1").exists()  # its block did not run


# The command, under torchrun

FLAGS = [
    "--width",
    "32",
    "--depth",
    "2",
    "--heads",
    "2",
    "--context",
    "16",
    "--tokenizer",
    "characters",
    "--batch-tokens",
    "80",
    "--schedule",
    "constant",
    "--warmup",
    "1",
    "--learning-rate",
    "1e-3",
    "--epsilon",
    "1e-5",
    "--device",
    "cpu",
    "--log-every",
    "1",
]


def wait_for(
    ready: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120
) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def steps_done(run: Path) -> int:
    if not (run / "metrics.jsonl").exists():
        return 0

    return len(column(run, "loss"))


def test_torchrun_saves_when_stopped_and_one_process_resumes(tmp_path: Path, cache: None) -> None:
    write_data(tmp_path)
    out = tmp_path / "run"
    paths = ["--data", str(tmp_path / TEXT), "--out", str(out)]
    command = ["-m", "qkv", "train", "gpt", *paths, *FLAGS]
    process = launch(2, *command, "--distributed", "fsdp", "--steps", "100000")
    try:
        wait_for(lambda: steps_done(out) >= 5, process)
        process.terminate()
    finally:
        printed = finish(process)
    stopped = Checkpoints(out / CHECKPOINTS).newest()
    assert stopped is not None
    assert stopped.step == steps_done(out) >= 5
    assert printed.count(f"Stopped after step {stopped.step} of 100000; all is saved.") == 1
    assert printed.count("The plan") == 1

    steps = stopped.step + 5
    options = {"batch_tokens": 80, "device": "cpu", "steps": steps, "sample_every": 0}
    data = DataConfig(data=(str(tmp_path / TEXT),), tokenizer="characters")
    optimizer = OptimizerConfig(schedule="constant", warmup=1, learning_rate=1e-3, epsilon=1e-5)
    model = GPTConfig(vocabulary=4096, context=16, width=32, depth=2, heads=2)
    resumed = RunConfig(out=out, resume=True, **options)
    alone = RunConfig(out=tmp_path / "alone", **options)
    for run in (resumed, alone):
        outcome = train(model, data, optimizer, run)
        assert outcome is not None
        assert outcome.finished
    losses = column(tmp_path / "alone", "loss")
    assert len(losses) == steps
    assert column(out, "loss") == pytest.approx(losses, rel=1e-4)  # rounding adds up


# Triton cannot compile a function that the shape checks have rewritten.
@pytest.mark.gpu
@pytest.mark.usefixtures("qkv_unchecked")
def test_one_rank_on_a_gpu_trains_like_one_process(
    tmp_path: Path, cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nccl, half precision, compiled or not; the losses differ by bf16's rounding."""
    monkeypatch.delitem(sys.modules, "support.ranks")
    from qkv.training.systems.distributed import World
    from support.ranks import train_case

    write_data(tmp_path)
    items = []
    for name in ("gpt", "llama"):
        train_case(
            name, tmp_path, tmp_path / f"1-{name}", World(torch.device("cuda")), precision="bf16"
        )
        items += [f"{name}:{way}:{way}-{name}:bf16" for way in WAYS]
    items += [f"gpt:{way}:compiled-{way}-gpt:bf16:compiled" for way in WAYS]
    ranks = launch(1, str(RANKS), str(tmp_path), "cuda", *items)
    printed = finish(ranks)
    assert ranks.returncode == 0, printed
    for item in items:
        name, _, out, *_ = item.split(":")
        alone = tmp_path / f"1-{name}"
        assert column(tmp_path / out, "loss") == pytest.approx(column(alone, "loss"), rel=2e-2)
        names = qkv.load(alone).model.state_dict().keys()
        assert qkv.load(tmp_path / out).model.state_dict().keys() == names
