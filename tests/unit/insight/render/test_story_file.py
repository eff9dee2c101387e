"""Story files: what they may say, and errors that name the step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.insight.render.page import page
from qkv.insight.render.story_file import Story, opened_story, read_story
from support.made_looks import made_look

TWO = "[[step]]\ncaption = 'Two'"
EXAMPLE = Path(__file__).parents[4] / "examples" / "stories" / "it_finds_cat.toml"


def written(tmp_path: Path, steps: str, above: str = "") -> Path:
    path = tmp_path / "story.toml"
    path.write_text(f"{above}\n[[step]]\ncaption = 'One'\n{steps}\n", encoding="utf-8")
    return path


def test_a_story_is_embedded_and_the_page_opens_with_its_first_step(tmp_path: Path) -> None:
    steps = f"view = 'walk'\nlayer = 0\nhead = 0\ntoken = -1\n{TWO}\nview = 'lens'"
    story = read_story(written(tmp_path, steps, "title = 'Cats </script>'"))
    content = page(made_look(), story=story)
    data = json.loads(re.findall(r'id="qkv.data"[^>]*>(.*?)</script>', content, re.DOTALL)[0])
    start = data["start"]
    assert (start["view"], start["layer"], start["token"], start["told"]) == ("walk", 0, 7, 0)
    assert start["story"]["title"] == "Cats </script>"
    assert start["story"]["steps"][1] == {"caption": "Two", "view": "lens"}


def test_what_a_step_does_not_name_stays(tmp_path: Path) -> None:
    steps = (
        f"view = 'walk'\nlayer = 2\nhead = 1\n{TWO}\nhead = 3\n"
        "[[step]]\ncaption = 'Three'\nview = 'lens'\nlayer = 5"
    )
    story = read_story(written(tmp_path, steps))
    assert story.walked == [(None, 2, 1), (None, 2, 3)]
    assert story.views == {"walk", "lens"}
    assert story.layers == (2, 5)


def test_the_example_can_be_read() -> None:
    story = read_story(EXAMPLE)
    assert story.walked == [(None, 13, 8)]
    assert story.text == "The cat sat on the mat because it was tired"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("laier = 1", "step 1: unknown key laier; did you mean layer?"),
        ("layer = 9", "step 1: layer: expected 0 to 2, or -1 for the last, not 9"),
        ("head = -3", "step 1: head: expected 0 to 1, or -1 for the last, not -3"),
        ("token = 8", "step 1: token: expected 0 to 7, or -1 for the last, not 8"),
        ("step = 11", "step 1: step: expected 1 to 10, not 11"),
        ("layer = '1'", "step 1: layer: expected a whole number, not '1'"),
        ("words = 1", "step 1: words: expected true or false, not 1"),
        ("view = 'norms'", "step 1: view: norms is not on this page. It was not requested"),
        ("view = 'hats'", "step 1: view: expected walk, model, head"),
        ("kept = [1, 2]", "step 1: kept: expected a list of [layer, head], not [1, 2]"),
        ("compare = [3, 0]", "step 1: compare: layer: expected 0 to 2"),
        (f"{TWO}\nview = 'walk'\nlayer = 1\nhead = 1", "step 2: this look has no walk of layer 1"),
        ("[[step]]\nview = 'head'", "step 2: expected a caption"),
        ("kind = 'cross'", "step 1: kind: "),
    ],
)
def test_an_error_names_the_step_and_the_key(tmp_path: Path, steps: str, expected: str) -> None:
    path = written(tmp_path, steps)
    with pytest.raises(ValueError, match=re.escape(f"{path}, {expected}")):
        opened_story(replace(made_look(), norms=None), read_story(path))


def test_a_file_without_steps_and_one_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "story.toml"
    path.write_text("title = 'x'")
    with pytest.raises(ValueError, match="expected one or more steps"):
        read_story(path)
    path.write_text("title: x")
    with pytest.raises(ValueError, match="not a TOML file"):
        read_story(path)
    with pytest.raises(FileNotFoundError, match="story: no such file"):
        read_story(tmp_path / "none.toml")


def test_a_story_needs_a_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="story: a page tells a story"):
        made_look().save(tmp_path / "look.png", story=Story("x", ({"caption": "x"},)))
