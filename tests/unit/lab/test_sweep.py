"""Sweeps: what is kept, what is measured again, workers that fail or are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.lab import find
from qkv.lab.sweep import FIRST_SEED, CellResult, Sweep, from_json, plain, to_json
from support.planted_experiment import SPEC
from support.waiting import until

SOURCE = Path(__file__).parents[3] / "src"
COMMAND = "import sys; from qkv.cli import main; sys.argv[0] = 'qkv'; main()"


def sweep_of(folder: Path | None, workers: int = 1, seeds: int = 2, **settings: object) -> Sweep:
    experiment = find(SPEC)
    size = experiment.size("small", seeds, **settings)
    return Sweep(experiment, SPEC, size, folder, "cpu", workers)


def measured(sweep: Sweep) -> list[tuple[str, int]]:
    """What is measured by this call."""
    done: list[CellResult] = []
    sweep.run(done.append)
    return [(measurement.arm, measurement.seed) for measurement in done]


def test_a_sweep_measures_what_was_not_measured(tmp_path: Path) -> None:
    first = FIRST_SEED
    cells = [("with", first), ("without", first), ("with", first + 1), ("without", first + 1)]
    assert measured(sweep_of(tmp_path)) == cells
    assert measured(sweep_of(tmp_path)) == []
    assert measured(sweep_of(tmp_path, seeds=3)) == [
        ("with", FIRST_SEED + 2),
        ("without", FIRST_SEED + 2),
    ]
    assert measured(sweep_of(tmp_path, effect=2.0)) == cells


def test_two_sweeps_in_one_folder_do_not_destroy_each_other(tmp_path: Path) -> None:
    first = sweep_of(tmp_path)
    second = sweep_of(tmp_path)
    first.run()
    second.run()
    for cell, measurement in first.done.items():
        assert second.done[cell].measured == measurement.measured

    assert len(list((tmp_path / "measured").iterdir())) == 4
    assert sweep_of(tmp_path).to_do == []


def test_the_time_left_is_estimated_from_what_was_measured() -> None:
    sweep = sweep_of(None, seeds=2)
    assert sweep.seconds_left() == pytest.approx(60 * 0.1 * 2)  # on one core of the two
    for arm in ("with", "without"):
        sweep.done[arm, FIRST_SEED] = CellResult(arm, FIRST_SEED, {}, 5.0 if arm == "with" else 1.0)

    assert sweep.seconds_left() == pytest.approx(6.0)


def test_a_number_read_again_is_the_same(tmp_path: Path) -> None:
    first = sweep_of(tmp_path)
    first.run()
    second = sweep_of(tmp_path)
    assert second.done == first.done
    assert list(second.done["with", FIRST_SEED].measured["curve"]) == [
        1,
        2,
        4,
    ]  # integers, in order


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"measured": 3, "seconds": 1}', "half", '{"measured": {"a": NaN}}'],
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, content: str) -> None:
    sweep = sweep_of(tmp_path, seeds=1)
    sweep.run()
    path = sweep.path("without", FIRST_SEED)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2] if content == "half" else content)

    again = sweep_of(tmp_path, seeds=1)
    assert again.to_do == [("without", FIRST_SEED)]
    again.run()
    assert json.loads(path.read_text())["measured"] == json.loads(whole)["measured"]


def test_another_version_of_the_code_measures_again(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    other = sweep_of(tmp_path)
    other.code = "edited"
    assert sweep.path("with", FIRST_SEED) != other.path("with", FIRST_SEED)


def test_workers_measure_the_same_numbers_and_run_a_file_of_ones_own(tmp_path: Path) -> None:
    alone = sweep_of(tmp_path / "one", workers=1)
    alone.run()
    torch.rand(7)  # what was drawn before does not matter
    together = sweep_of(tmp_path / "two", workers=2)
    together.run()

    assert together.workers == 2
    assert sorted(together.done) == sorted(alone.done)
    for cell, measurement in alone.done.items():
        assert together.done[cell].measured == measurement.measured


def test_a_killed_worker_gives_a_sentence(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, workers=2, fault="killed")
    with pytest.raises(RuntimeError, match=r"planted: a process was killed.*1 worker"):
        sweep.run()


def test_a_measurement_that_fails_says_where(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, fault="without")
    with pytest.raises(RuntimeError, match="without, seed 200: KeyError: 'a planted fault'"):
        sweep.run()

    assert sweep_of(tmp_path, fault="without").done.keys() == {("with", FIRST_SEED)}


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"seed 200: ValueError: score is nan; .* finite"):
        sweep_of(tmp_path, fault="nan").run()


def test_workers_are_one_or_more() -> None:
    with pytest.raises(ValueError, match="workers: expected 1 or more, not 0"):
        sweep_of(None, workers=0)


def test_where_time_is_measured_nothing_runs_beside_it() -> None:
    sweep = sweep_of(None)
    object.__setattr__(sweep.experiment, "timed", True)
    try:
        assert sweep.most_workers(4) == 1
    finally:
        object.__setattr__(sweep.experiment, "timed", False)


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sweep = sweep_of(tmp_path / "file")
    done: list[CellResult] = []
    with pytest.raises(OSError):
        sweep.run(done.append)

    assert done == []


def test_tensors_and_arrays_become_numbers() -> None:
    measured = plain({"a": torch.tensor(1.5), "b": {np.int64(3): np.float32(0.5)}, "c": [1, 2]})
    assert measured == {"a": 1.5, "b": {3: 0.5}, "c": [1.0, 2.0]}
    assert json.dumps(measured["a"]) == "1.5"
    assert from_json(json.loads(json.dumps(to_json(measured)))) == measured
    with pytest.raises(ValueError, match="b at 2 is inf"):
        plain({"b": {2: float("inf")}})


def workers_of(pid: int) -> list[int]:
    """The children of a process that measure."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_sweep_goes_on_and_leaves_no_process(
    tmp_path: Path, end: signal.Signals
) -> None:
    """Two seeds: the measurements of the second would take ten minutes."""
    words = ["lab", SPEC, "--seeds", "2", "--out", str(tmp_path), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PLANTED_WAIT": "600"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # In a background job of a shell SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "planted" / "measured"
    until(lambda: len(list(folder.glob("*.json"))) == 2 or process.poll() is not None)
    children = workers_of(process.pid)
    if end == signal.SIGINT:
        os.killpg(process.pid, end)  # as a terminal does
    else:
        process.kill()

    _, errors = process.communicate(timeout=600)
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert "what was measured is kept" in errors
        assert "Traceback" not in errors

    assert len(children) >= 2
    until(lambda: not any(map(alive, children)))
    second = FIRST_SEED + 1
    assert measured(sweep_of(tmp_path / "planted")) == [("with", second), ("without", second)]
