"""The last page of the course: her losses beside the library's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from qkv import plugins
from qkv.learn import own_gpt_page
from qkv.learn.course import course
from qkv.learn.own_gpt_file import MINE
from qkv.learn.own_gpt_page import LossPair, finish, largest, table_of
from qkv.models import GPTConfig, build
from qkv.models.configs import OwnGPTConfig
from qkv.models.variants.own_gpt import unlike_the_library
from qkv.nn.hooks import capture
from support.own_gpt_files import BLOCK, FILES, forget_students


def write_course(folder: Path, **changes: str) -> Path:
    forget_students()
    folder.mkdir(exist_ok=True)
    for name, text in (FILES | {"mine": MINE} | changes).items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")

    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"vocabulary": 300, "context": 16, "width": 16, "depth": 1, "heads": 2}
    monkeypatch.setattr(own_gpt_page, "SIZES", sizes)
    monkeypatch.setattr(plugins, "allowed", set())


def test_the_page_says_that_both_are_equal(tmp_path: Path) -> None:
    page = finish(write_course(tmp_path / "course"), steps=3)
    assert page == tmp_path / "course" / "finish.html"
    text = page.read_text(encoding="utf-8")
    assert "learns as the library's does" in text
    assert "The texts are equal." in text
    assert "The same seed, weights and batches" in text
    difference = float(re.search(r"Largest difference: ([\d.e+-]+), at step", text)[1])
    assert difference <= 1e-5
    assert text.count("<svg") >= 3
    assert "http" not in re.sub(r"http://www.w3.org/[\w/]+", "", text.partition("</style>")[2])
    assert (page.parent / "finish-attention.html").stat().st_size > 10_000


def test_the_page_says_that_a_changed_gpt_is_not_equal(tmp_path: Path) -> None:
    changed = BLOCK.replace("return x + self.feed_forward(", "return x + 0.5 * self.feed_forward(")
    page = finish(write_course(tmp_path / "course", ex07_block=changed), 2, tmp_path / "out.html")
    text = page.read_text(encoding="utf-8")
    assert "not as the library's does" in text
    assert "The same batches; the weights of the first step may differ" in text
    assert "same seed" not in text
    assert (tmp_path / "course/runs/finish/mine/model.safetensors").is_file()


def test_a_folder_without_the_course_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no .*mine\.py; qkv learn start"):
        finish(tmp_path, 2)


def test_the_largest_difference_counts_and_a_nan_is_the_largest() -> None:
    pairs = [LossPair(1, 2.0, 2.0), LossPair(2, 1.5, 1.25), LossPair(3, 1.0, 1.125)]
    assert largest(pairs).step == 2
    assert largest([*pairs, LossPair(4, float("nan"), 1.0)]).step == 4
    heads, rows = table_of(pairs * 20)
    assert len(rows) == own_gpt_page.ROWS
    assert rows[0] == ["1", "2.000000", "2.000000", "0.0e+00"]
    assert len(heads) == len(rows[0])


@pytest.mark.skipif("gpt" not in course(), reason="the course has no exercise gpt")
def test_the_solutions_of_the_course_are_the_packages_gpt(tmp_path: Path) -> None:
    forget_students()
    for name in (*course()["gpt"].uses, "gpt"):
        exercise = course()[name]
        (tmp_path / f"{exercise.stem}.py").write_text(exercise.answer, encoding="utf-8")

    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    spec = plugins.allow_file(f"{tmp_path / 'mine.py'}:GPT", "model")
    torch.manual_seed(0)
    hers = build(OwnGPTConfig(**own_gpt_page.SIZES, model=spec))
    torch.manual_seed(0)
    ours = build(GPTConfig(**own_gpt_page.SIZES))
    ids = torch.arange(20).view(2, 10)
    assert unlike_the_library(hers) == []
    torch.testing.assert_close(hers(ids), ours(ids), atol=1e-5, rtol=1e-4)
    name = "stack.blocks.0.attention.weights"
    with capture(hers, name) as seen, capture(ours, name) as right:
        hers(ids)
        ours(ids)

    torch.testing.assert_close(seen[name], right[name], atol=1e-5, rtol=1e-4)
