"""Running an experiment from Python: quiet, with facts; plans, and progress in a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import qkv
from qkv.lab.lab_run import page_path, plan, plan_all, prepare, progress_line
from qkv.version import __version__
from support.planted_experiment import SPEC


def test_run_is_quiet_and_returns_a_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = qkv.lab.run(SPEC, seeds=4, workers=1, out=None, effect=-1.0)
    captured = capfd.readouterr()

    assert (captured.out, captured.err) == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert results.units == [200, 201, 202, 203]
    assert results.verdict == "does not hold"
    assert results.size.effect == -1.0


def test_results_say_where_they_come_from() -> None:
    facts = qkv.lab.run(SPEC, workers=1, out=None, noise=0.5).facts
    assert facts["command"] == f"qkv lab {SPEC} --seeds 3 --set noise=0.5"
    assert facts["qkv"] == __version__
    assert facts["size"] == "small"
    assert "core" in facts["machine"]
    assert facts["minutes"] >= 0
    assert len(facts["date"]) == 10


def test_the_threads_of_the_caller_stay_as_they_were() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        qkv.lab.run(SPEC, seeds=1, workers=1, out=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "huge"}, "size: expected small or large, not 'huge'"),
        ({"steps": 3}, "steps: planted has no such setting"),
        ({"workers": 0}, "workers: expected 1 or more"),
        ({"device": "abacus"}, "device: expected cpu"),
    ],
)
def test_wrong_arguments_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qkv.lab.run(SPEC, out=None, **options)


def test_the_plan_says_what_is_left(tmp_path: Path) -> None:
    def planned(size: str = "small") -> str:
        return plan(prepare(SPEC, size, None, tmp_path, "cpu", 1, {}))  # type: ignore[arg-type]

    assert planned() == "planted, small: 2 arms x 3 seeds on cpu. Estimated time: 0:00:12."
    prepared = prepare(SPEC, "small", 1, tmp_path, "cpu", 1, {})
    prepared.sweep.run()
    assert "; 2 of 6 are measured. Estimated time: 0:00:0" in planned()
    assert planned("large").endswith("on a GPU, and much longer here.")
    assert plan_all([prepared]).startswith("0 experiments to run, 1 complete.")
    assert page_path(SPEC, "large", tmp_path) == tmp_path / "planted-large" / "index.html"


def test_a_terminal_shows_one_line_over_all_runs() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=90)
    plans = [prepare(SPEC, "small", 2, None, "cpu", 1, {}) for _ in range(2)]
    with progress_line(console, plans) as report:
        for planned in plans:
            planned.sweep.run(lambda measurement, sweep=planned.sweep: report(sweep))

    assert "8/8" in output.getvalue()
    assert "planted" in output.getvalue()
    assert output.getvalue().count("\n") == 1

    quiet = io.StringIO()
    with progress_line(Console(file=quiet), plans) as report:
        report(plans[0].sweep)

    assert quiet.getvalue() == ""
