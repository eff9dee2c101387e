"""qkv lab: the list, one experiment, all of them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.lab import find
from qkv.lab.experiments import modules
from qkv.lab.sweep import Sweep
from support.command_fixtures import Qkv
from support.planted_experiment import SPEC


def test_the_list_has_every_experiment_and_what_was_found(qkv: Qkv, tmp_path: Path) -> None:
    (tmp_path / "lookup").mkdir()
    result = {"verdict": "does not hold", "date": "2031-01-02"}
    (tmp_path / "lookup" / "result.json").write_text(json.dumps(result))

    listed = qkv("lab", "--out", tmp_path)

    assert listed.code == 0
    for name in (*modules(), "cats", "mask"):
        assert f"│ {name} " in listed.out
    assert "2031-01-02" in listed.out
    assert "qkv lab all" in listed.out


def test_help_explains_the_flags(qkv: Qkv) -> None:
    printed = qkv("lab", "--help")
    assert printed.code == 0
    for flag in ("--size", "--seeds", "--out", "--only", "--device", "--workers", "--set"):
        assert flag in printed.out


def test_one_experiment_prints_its_verdict_and_writes_its_page(qkv: Qkv, tmp_path: Path) -> None:
    printed = qkv("lab", SPEC, "--out", tmp_path, "--workers", "1", "--set", "noise=0.1")

    assert printed.code == 0, printed.error
    lines = printed.out.splitlines()
    assert lines[0].startswith("planted, small: 2 arms x 3 seeds on cpu. Estimated time:")
    verdict = next(line for line in lines if line.startswith("holds: The arm <with>"))
    finding = lines[lines.index(verdict) + 1]
    assert finding.startswith("  holds: With is better. Mean effect ")
    assert lines[-1] == str(tmp_path / "planted-noise-0.1" / "index.html")

    files = {path.name for path in (tmp_path / "planted-noise-0.1").iterdir()}
    names = ("index.html", "planted.png", "planted.svg", "result.json", "thumbnail.png")
    assert files >= {*names, "measured"}
    assert (tmp_path / "index.html").is_file()
    result = json.loads((tmp_path / "planted-noise-0.1" / "result.json").read_text())
    assert result["command"].endswith("--seeds 3 --set noise=0.1")

    again = qkv("lab", SPEC, "--out", tmp_path, "--set", "noise=0.1")
    assert "everything is measured" in again.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lokup"], "there is no experiment 'lokup'; did you mean lookup?"),
        (["lookup", "--set", "stops=3"], "stops: lookup has no such setting; it has"),
        (["lookup", "--set", "steps=many"], "not 'many'"),
        (["lookup", "--set", "steps"], "set: expected KEY=VALUE"),
        (["lookup", "--seeds", "0"], "seeds: expected 1 or more, not 0"),
        (["lookup", "--workers", "0"], "workers: expected 1 or more, not 0"),
        (["lookup", "--device", "abacus"], "device: expected cpu, cuda"),
        (["lookup", "--size", "huge"], "expected one of small, large"),
        (["lookup", "--only", "lookup"], "only: it is for qkv lab all"),
        (["all", "--set", "steps=3"], "set: it is for one experiment"),
        (["all", "--only", "scalling"], "there is no experiment 'scalling'"),
        (["missing.py:MINE"], "name: there is no file missing.py"),
    ],
)
def test_wrong_usage_is_one_sentence(
    qkv: Qkv, tmp_path: Path, words: list[str], sentence: str
) -> None:
    printed = qkv("lab", *words, "--out", tmp_path / "out")
    assert printed.code == 2, printed.error
    assert sentence in printed.error
    assert printed.error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_refused(qkv: Qkv, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    printed = qkv("lab", SPEC, "--out", tmp_path / "file", "--workers", "1")
    assert printed.code == 1
    assert printed.error.startswith(f"qkv: out: {tmp_path / 'file'}")
    assert printed.error.count("\n") == 1


def test_a_failing_measurement_is_one_sentence(qkv: Qkv, tmp_path: Path) -> None:
    printed = qkv("lab", SPEC, "--out", tmp_path, "--workers", "1", "--set", "fault=with")
    assert printed.code == 1
    assert printed.error.startswith("qkv: planted, with, seed 200: KeyError: 'a planted fault'")


def test_an_interrupted_experiment_says_how_to_go_on(
    qkv: Qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(sweep: Sweep, report: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "run", interrupt)
    printed = qkv("lab", SPEC, "--out", tmp_path)
    assert printed.code == 130
    assert "what was measured is kept" in printed.error
    assert "the same command goes on" in printed.error


def test_all_runs_the_rest_and_reports_failures(
    qkv: Qkv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three experiments fails; the book has the others, and a second call the third."""
    planted = replace(find(SPEC), panels=find(SPEC).panels[:1])
    broken = replace(planted, name="broken", small=planted.size("small", fault="without"))
    packaged = {"planted": planted, "broken": broken, "third": replace(planted, name="third")}
    monkeypatch.setattr("qkv.commands.lab.modules", lambda: packaged)
    for module in ("qkv.commands.lab", "qkv.lab.lab_run"):
        monkeypatch.setattr(f"{module}.find", lambda name: packaged[name])

    words = ["lab", "all", "--out", tmp_path, "--workers", "1"]
    printed = qkv(*words)

    assert printed.code == 1
    assert printed.out.startswith("3 experiments to run, 0 complete.\n  planted ")
    assert "planted: holds. The arm <with>" in printed.out
    assert "third: holds." in printed.out
    assert printed.error.startswith("qkv: broken: broken, without, seed 200: KeyError")
    book = (tmp_path / "index.html").read_text()
    assert 'href="planted/index.html"' in book
    assert 'href="third/index.html"' in book
    assert "broken" not in book
    assert book.count("data:image/png;base64,") == 2

    # Nothing is measured or drawn again, but the one that failed; others can be left out
    packaged["broken"] = replace(broken, small=planted.small)
    page = tmp_path / "planted" / "index.html"
    page.write_text("untouched")
    printed = qkv(*words, "--only", "broken", "planted")
    assert printed.code == 0, printed.error
    assert printed.out.startswith("1 experiment to run, 1 complete.")
    assert page.read_text() == "untouched"
    assert 'href="broken/index.html"' in (tmp_path / "index.html").read_text()
