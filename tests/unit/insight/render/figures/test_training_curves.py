"""Training curves: every run is drawn where it was measured, with missing and non-finite values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color

from qkv.insight.render.figures.curve_smoothing import BUCKETS, smoothed, thinned
from qkv.insight.render.figures.figure_style import COLOURS
from qkv.insight.render.figures.run_metrics import names, read_run, short
from qkv.insight.render.figures.training_curves import draw, plot
from qkv.training.logging.metrics import METRICS_FILE, Metrics


def row(step: int, loss: float | None = None, **more: Any) -> dict[str, Any]:
    falling = 2.0 + 5.0 / step if loss is None else loss
    measured = {
        "gradient_norm": 0.9,
        "learning_rate": 6e-4,
        "tokens": 100 * step,
        "seconds": 0.5 * step,
    }
    return {"step": step, "loss": falling, **measured, **more}


def run(folder: Path, *rows: dict[str, Any]) -> Path:
    metrics = Metrics(folder)
    for values in rows:
        metrics.write(values)
    metrics.close()
    return folder


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def curve(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """The points of the one line with this marker."""
    (line,) = (
        line
        for line in axes.lines
        if line.get_marker() == marker and len(np.asarray(line.get_xdata()))
    )
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_the_figure_of_one_run_goes_into_its_folder(tmp_path: Path) -> None:
    folder = run(
        tmp_path / "mine",
        *(row(step) for step in range(1, 101)),
        {"step": 100, "validation_loss": 2.5},
    )
    assert plot([folder]) == folder / "curves.png"
    assert is_png(folder / "curves.png")
    assert (
        plot([folder / METRICS_FILE], tmp_path / "new" / "other.png")
        == tmp_path / "new" / "other.png"
    )
    assert is_png(tmp_path / "new" / "other.png")


def test_the_figure_of_several_runs_goes_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [run(tmp_path / "runs" / name, row(1), row(2)) for name in ("one", "two")]
    assert plot(runs).resolve() == tmp_path / "curves.png"
    assert is_png(tmp_path / "curves.png")
    assert plot([runs[0], str(runs[0])]) == runs[0] / "curves.png"  # a run named twice counts once


@pytest.mark.parametrize(("name", "begins"), [("c.svg", b"<?xml"), ("c.PDF", b"%PDF")])
def test_other_file_formats(tmp_path: Path, name: str, begins: bytes) -> None:
    out = plot([run(tmp_path / "run", row(1), row(2))], tmp_path / name)
    assert out.read_bytes().startswith(begins)


def test_points_lie_where_they_were_measured(tmp_path: Path) -> None:
    folder = run(
        tmp_path / "run",
        *(row(step) for step in range(1, 11)),
        {"step": 4, "validation_loss": 3.5},
        {"step": 10, "validation_loss": 2.75},
        {"step": 5, "event": "skipped", "position": 5},
        {"step": 8, "event": "rewound"},
        {"step": 10, "event": "finished", "flops": 1.2e15, "validation_loss": 9.0},
    )
    for x, scale, label in (
        ("step", 1.0, "step"),
        ("tokens", 100.0, "tokens"),
        ("seconds", 0.5, "seconds"),
    ):
        figure = draw([read_run(folder, "run", x)], x, 0)  # type: ignore[arg-type]
        main, rate, norm = figure.axes
        assert curve(main, "o") == [(4 * scale, 3.5), (10 * scale, 2.75)]
        assert [at for at, _ in curve(main, "x")] == [5 * scale]
        assert [at for at, _ in curve(main, "<")] == [8 * scale]
        assert main.get_xlabel() == label
        loss = np.asarray(main.lines[0].get_xydata())
        assert loss[:, 0].tolist() == [step * scale for step in range(1, 11)]
        assert math.isnan(loss[4, 1])  # the skipped step has a mark, and no loss
        assert np.delete(loss[:, 1], 4) == pytest.approx(
            [2 + 5 / step for step in range(1, 11) if step != 5]
        )
        assert (rate.get_title(loc="left"), norm.get_title(loc="left")) == (
            "learning rate",
            "gradient norm",
        )
        assert np.asarray(rate.lines[0].get_ydata()).tolist() == [6e-4] * 10
        assert rate.get_xlim() == norm.get_xlim() == main.get_xlim()
    assert main.get_title(loc="left") == "run"
    assert main.texts[0].get_text() == (
        "10 steps, 1,000 tokens, 0:00:05, 1.2e15 FLOPs; best validation loss 2.75 at step 10"
    )
    assert labels(main) == ["training", "validation", "step skipped", "went back to a checkpoint"]


def test_a_step_taken_twice_has_its_last_loss(tmp_path: Path) -> None:
    folder = run(
        tmp_path / "run",
        row(1),
        row(2, 90.0),
        {"step": 2, "event": "skipped"},
        row(2, 1.5),
        row(3, 1.25),
    )
    read = read_run(folder, "run", "step")
    assert read.columns["loss"].tolist() == [7.0, 1.5, 1.25]
    assert read.skipped.tolist() == [2.0]


def test_runs_have_their_colour_and_name(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / name, row(1), row(2), {"step": 2, "validation_loss": loss})
        for name, loss in (("a/small", 3.0), ("b/small", 2.5), ("_c$x$", math.nan))
    ]
    assert names(folders) == [f"{folder.parent.name}/{folder.name}" for folder in folders]
    read = [read_run(folder, folder.name, "step") for folder in folders]
    figure = draw(read, "step", 0.02)
    assert labels(figure.axes[0])[:3] == ["small  (best 3)", "small  (best 2.5)", "./_c$x$"]
    assert figure.axes[0].get_title(loc="left") == "3 runs compared"
    strong = [line for line in figure.axes[0].lines if line.get_linewidth() == 2.2]
    assert [
        same_color(line.get_color(), colour) for line, colour in zip(strong, COLOURS, strict=False)
    ] == [True] * 3
    assert is_png(plot(folders, tmp_path))


def test_many_runs_have_different_styles(tmp_path: Path) -> None:
    read = [read_run(run(tmp_path / str(n), row(1), row(2)), str(n), "step") for n in range(16)]
    strong = [
        line for line in draw(read, "step", 0.02).axes[0].lines if line.get_linewidth() == 2.2
    ]
    styles = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in strong}  # type: ignore[attr-defined]
    assert len(styles) == len(strong) == 16


@pytest.mark.parametrize(
    "rows",
    [
        [row(1)],
        [{"step": 0, "validation_loss": 10.8}],
        [{"step": 1, "loss": 2.0}],
        [row(1, math.nan), row(2, math.inf)],
        [
            row(1),
            row(2, math.nan, gradient_norm=math.inf),
            row(3),
            {"step": 3, "validation_loss": math.nan},
        ],
        [row(step, 2.0, learning_rate=0.0, gradient_norm=0.0) for step in range(1, 5)],
        [row(1), {"step": 2, "event": "skipped"}],
    ],
    ids=[
        "one row",
        "validation alone",
        "no panels",
        "no finite loss",
        "some not finite",
        "flat",
        "event at the end",
    ],
)
@pytest.mark.filterwarnings("error")
def test_runs_with_little_to_show_are_drawn(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert is_png(plot([run(tmp_path / "run", *rows)]))


def test_an_unfinished_line_of_metrics_is_ignored(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", row(1), row(2))
    with (folder / METRICS_FILE).open("a") as file:
        file.write('{"step": 3, "lo')
    assert read_run(folder, "run", "step").summary.startswith("2 steps so far")
    assert is_png(plot([folder]))


def test_a_single_spike_does_not_flatten_the_curve(tmp_path: Path) -> None:
    rows = [row(step, 1e6 if step == 500 else 3.0 - step / 1000) for step in range(1, 1001)]
    low, high = (
        draw([read_run(run(tmp_path / "run", *rows), "run", "step")], "step", 0.02)
        .axes[0]
        .get_ylim()
    )
    assert 1.5 < low < 2.01
    assert 2.9 < high < 3.5


# Numbers


def test_smoothing_keeps_a_line_and_halves_noise_without_shifting() -> None:
    line = np.linspace(3.0, 2.0, 1001)
    assert smoothed(line, 0.1)[:900] == pytest.approx(line[:900])
    noise = np.random.default_rng(0).normal(size=1001)
    assert smoothed(line + noise, 0.1)[100:900] == pytest.approx(line[100:900], abs=0.4)
    bump = np.zeros(1001)
    bump[500] = 1.0
    assert smoothed(bump, 0.1).argmax() == 500
    assert smoothed(noise, 0).tolist() == noise.tolist()


def test_smoothing_leaves_out_what_is_not_finite() -> None:
    values = np.array([1.0, np.nan, 1.0, np.inf, 1.0, 1e30, 1.0, 1.0])
    assert smoothed(values, 0.5).tolist() == [1.0] * 8
    assert np.isnan(smoothed(np.array([np.nan, np.nan]), 0.5)).all()


def test_a_long_run_keeps_its_extremes() -> None:
    x = np.arange(100_000, dtype=np.float64)
    values = np.random.default_rng(0).normal(size=100_000)
    values[31_234] = 50.0
    values[71_234] = -50.0
    values[200:300] = np.nan
    few, extremes = thinned(x, values)
    assert len(few) <= 2 * BUCKETS
    assert (np.diff(few) > 0).all()
    assert (few[extremes.argmax()], few[extremes.argmin()]) == (31_234, 71_234)
    assert np.isfinite(extremes).all()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1500, "1,500"), (0.5, "0.5"), (2.5e6, "2.5M"), (3e9, "3B")]
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


# Errors


def test_errors_say_what_is_wrong(tmp_path: Path, without_shape_checks: None) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / METRICS_FILE).touch()
    good = run(tmp_path / "good", {"step": 1, "loss": 2.0})
    for runs, settings, message in (
        ([], {}, "runs: .*one run"),
        ([tmp_path / "none"], {}, "none: there is no such folder"),
        ([good, tmp_path / "empty"], {}, f"empty: .*no {METRICS_FILE}"),
        ([tmp_path / "begun"], {}, f"begun/{METRICS_FILE}: no losses"),
        ([good], {"x": "tokens"}, f"x: no row of .*{METRICS_FILE} has tokens"),
        ([good], {"x": "epoch"}, "x: .*'epoch'"),
        ([good], {"smooth": 1.0}, "smooth: .*1.0"),
        (
            [good],
            {"out": tmp_path / "c.jpeg"},
            r"out: .*\.pdf.*c\.jpeg",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            plot(runs, **settings)  # type: ignore[arg-type]
