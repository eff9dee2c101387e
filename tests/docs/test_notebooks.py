"""The notebooks run from top to bottom on a CPU, at the small size that each states itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
COLAB = "https://colab.research.google.com/github/{}/qkv/blob/main/examples/{}"


def read_notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def sources(book: dict[str, Any], kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == kind]


def run_notebook(path: Path) -> dict[str, Any]:
    """Run all cells in this process; parameters get their small values."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(read_notebook(path)["cells"]):
        if cell["cell_type"] != "code":
            continue

        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
        small = cell["metadata"].get("small", {})
        assert set(small) <= set(names), "small values of parameters that the cell does not set"
        names |= small

    return names


def test_there_are_eight() -> None:
    assert len(NOTEBOOKS) == 8


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_with_its_badge(path: Path) -> None:
    book = read_notebook(path)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert book["metadata"]["colab"]["name"] == path.name
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)

    (account,) = set(re.findall(r"github(?:\.com)?/([\w-]+)/qkv", path.read_text("utf-8")))
    assert f"({COLAB.format(account, path.name)})" in sources(book, "markdown")[0]
    assert 'find_spec("qkv")' in sources(book, "code")[0]
    assert not [source for source in sources(book, "code") if source.startswith(("%", "!"))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    try:
        names = run_notebook(path)
    finally:
        pyplot.close("all")

    check = CHECKS.get(path.stem)
    if check is not None:
        check(names)


def check_alignment(names: dict[str, Any]) -> None:
    assert abs(names["weights"].sum(-1) - 1).max() < 1e-4


def check_server(names: dict[str, Any]) -> None:
    assert len(names["completion"]["choices"][0]["text"]) > 0
    assert names["server"].returncode is not None


def check_losses(names: dict[str, Any]) -> None:
    assert names["losses"][-1][0] > 20


CHECKS = {
    "02_train": check_losses,
    "03_translate_and_align": check_alignment,
    "07_serve_and_call": check_server,
}
