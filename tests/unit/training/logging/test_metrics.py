"""metrics.jsonl: every row survives a kill, a rewind removes rows, and trackers get them too."""

from __future__ import annotations

import json
import math
import resource
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qkv import storage
from qkv.training.logging.metrics import METRICS_FILE, Metrics, read_metrics
from support.killing import FORK, killed_before_every_touch


def row(step: int, loss: float = 1.0) -> dict[str, Any]:
    return {"step": step, "loss": loss}


def event(step: int, kind: str = "skipped") -> dict[str, Any]:
    return {"step": step, "event": kind}


def write(folder: Path, *rows: dict[str, Any]) -> Metrics:
    metrics = Metrics(folder)
    for item in rows:
        metrics.write(item)

    return metrics


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "loss": 3.25, "tokens": 409600, "utilisation": None},
        {"step": 1, "validation_loss": 3.4},
        {"step": 2, "event": "skipped", "reason": "nan", "position": 2},
        {"step": 3, "event": "finished", "flops": 1.2e15, "note": "kediler fareleri kovalar ı"},
    ]
    write(tmp_path / "run", *rows)
    assert read_metrics(tmp_path / "run") == rows


def test_nan_and_infinity_are_strings_in_the_file_and_floats_when_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"step": 1, "loss": math.nan, "gradient_norm": math.inf, "low": -math.inf, "reason": "nan"},
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    written = json.loads((tmp_path / METRICS_FILE).read_text(), parse_constant=refuse)
    assert written == {
        "step": 1,
        "loss": "nan",
        "gradient_norm": "inf",
        "low": "-inf",
        "reason": "nan",
    }
    (read,) = read_metrics(tmp_path)
    assert math.isnan(read["loss"])
    assert read["gradient_norm"] == math.inf
    assert read["low"] == -math.inf
    assert read["reason"] == "nan"


def test_numbers_of_numpy_and_torch(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "step": np.int64(3),
            "loss": torch.tensor(0.5),
            "norm": np.float32("nan"),
            "rate": np.float64(2),
        },
    )
    (read,) = read_metrics(tmp_path)
    assert (read["step"], read["loss"], read["rate"]) == (3, 0.5, 2.0)
    assert math.isnan(read["norm"])


def test_a_row_outlives_a_kill_right_after_it(tmp_path: Path) -> None:
    def run() -> None:
        metrics = write(tmp_path, *(row(step) for step in range(100)))
        assert metrics.file is not None
        storage.os.kill(storage.os.getpid(), 9)

    child = FORK.Process(target=run)
    child.start()
    child.join()
    assert read_metrics(tmp_path) == [row(step) for step in range(100)]


@pytest.mark.parametrize(
    "half", [b'{"step": 3, "lo', b'{"step": 3, "loss": "\xc4', b"\0" * 40, b'{"step"', b"3"]
)
def test_a_half_written_last_line_is_left_out_and_written_over(tmp_path: Path, half: bytes) -> None:
    write(tmp_path, row(1), row(2)).close()
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(half)
    assert read_metrics(tmp_path) == [row(1), row(2)]
    again = Metrics(tmp_path)
    again.write(row(3))
    assert read_metrics(tmp_path) == [row(1), row(2), row(3)]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(ValueError, match=rf"{METRICS_FILE}:2: expected a JSON object"):
        read_metrics(tmp_path)
    Metrics(tmp_path).rewind(3)  # a run goes on all the same
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 3}]


def test_rewinding_drops_what_will_be_written_again(tmp_path: Path) -> None:
    metrics = write(tmp_path, row(1), row(2), {"step": 2, "validation_loss": 1.5}, event(3), row(4))
    metrics.rewind(2)
    assert read_metrics(tmp_path) == [row(1), row(2), {"step": 2, "validation_loss": 1.5}]
    metrics.write(row(3, 0.5))
    assert read_metrics(tmp_path)[-1] == row(3, 0.5)
    metrics.rewind(0)
    assert read_metrics(tmp_path) == []


def test_rewinding_before_the_first_row_is_nothing(tmp_path: Path) -> None:
    Metrics(tmp_path / "new").rewind(0)
    assert not (tmp_path / "new" / METRICS_FILE).exists()


def test_events_stay_when_the_run_continues_on_other_data(tmp_path: Path) -> None:
    metrics = write(tmp_path, row(1), row(2), row(3), event(4), row(4), event(5))
    metrics.rewind(2, keep_events=True)
    metrics.write(event(2, "rewound"))
    past = [row(1), row(2), event(4), event(5), event(2, "rewound")]
    assert read_metrics(tmp_path) == past
    metrics.write(row(3, 0.5))
    metrics.write(event(6))
    metrics.rewind(3)  # resumed from a later checkpoint
    assert read_metrics(tmp_path) == [*past, row(3, 0.5)]
    metrics.rewind(1)  # before they happened
    assert read_metrics(tmp_path) == [row(1)]


def test_a_kill_while_rewinding_leaves_the_old_or_the_new_rows(tmp_path: Path) -> None:
    rows = [row(step) for step in range(1, 6)]
    write(tmp_path, *rows).close()
    before = (tmp_path / METRICS_FILE).read_bytes()
    kills = 0
    for _ in killed_before_every_touch(lambda: Metrics(tmp_path).rewind(3)):
        kills += 1
        assert read_metrics(tmp_path) in (rows, rows[:3])
        (tmp_path / METRICS_FILE).write_bytes(before)
    assert kills > 2
    assert read_metrics(tmp_path) == rows[:3]
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]


def test_a_full_disk_raises_and_leaves_whole_rows(tmp_path: Path) -> None:
    write(tmp_path, row(1)).close()
    size = (tmp_path / METRICS_FILE).stat().st_size

    def run() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, size + 5))
        with pytest.raises(storage.DiskFull, match=f"a line of {METRICS_FILE} needs"):
            write(tmp_path, row(2))
        storage.os._exit(0)

    child = FORK.Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert (tmp_path / METRICS_FILE).stat().st_size == size + 5  # a part of the second row went in
    assert read_metrics(tmp_path) == [row(1)]


def test_inactive_processes_write_nothing(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "run", sinks=["tensorboard"], active=False)
    metrics.write(row(1))
    metrics.rewind(0)
    metrics.close()
    assert not (tmp_path / "run").exists()


# Trackers


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    monkeypatch.setattr("qkv.training.logging.trackers.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=rf'sinks: {name} .*pip install "qkv\[{name}\]"'):
        Metrics(tmp_path, sinks=[name])


def test_an_unknown_sink_is_refused(tmp_path: Path, without_shape_checks: None) -> None:
    with pytest.raises(ValueError, match=r"sinks: .*'excel'"):
        Metrics(tmp_path, sinks=["excel"])  # type: ignore[list-item]


def test_tensorboard_gets_numbers_by_step_and_is_purged_on_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int | None = None) -> None:
            calls.append(("open", folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def add_text(self, name: str, text: str, step: int) -> None:
            calls.append((name, text, step))

        def close(self) -> None:
            calls.append(("close",))

    install(monkeypatch, "tensorboard")
    install(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    metrics = Metrics(tmp_path, sinks=["tensorboard"])
    metrics.write({"step": 7, "loss": 2.0, "utilisation": None, "memory": 3})
    metrics.write({"step": 8, "event": "skipped", "reason": "the loss is nan"})
    metrics.rewind(7)
    metrics.close()
    folder = str(tmp_path / "tensorboard")
    assert calls == [
        ("open", folder, None),
        ("loss", 2.0, 7),
        ("memory", 3.0, 7),
        ("event/skipped", "reason the loss is nan", 8),
        ("close",),
        ("open", folder, 8),
        ("close",),
    ]
    assert read_metrics(tmp_path) == [{"step": 7, "loss": 2.0, "utilisation": None, "memory": 3}]


def test_a_resumed_run_continues_the_same_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    logged: list[dict[str, Any]] = []

    def init(**settings: Any) -> SimpleNamespace:
        opened.append(settings)
        return SimpleNamespace(
            log=logged.append, finish=lambda: None, define_metric=lambda *_, **__: None
        )

    install(monkeypatch, "wandb", init=init)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    for step in (1, 2):
        metrics = Metrics(
            tmp_path / "mine", sinks=["wandb"], config={"out": Path("runs/mine"), "width": 4}
        )
        metrics.write(row(step))
        metrics.close()
    assert logged == [row(1), row(2)]
    assert opened[0]["id"] == opened[1]["id"]
    assert len(opened[0]["id"]) == 12
    assert {settings["resume"] for settings in opened} == {"allow"}
    assert opened[0]["config"] == {"out": "runs/mine", "width": 4}
    assert opened[0]["name"] == "mine"
    assert opened[0]["project"] == "qkv"
