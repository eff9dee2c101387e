"""Presenter mode, stories and pictures of a view, on a page and in the playground."""

from __future__ import annotations

import base64
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.insight.look import Look
from support.browser_fixtures import Open
from support.look_page import settled, state, status
from support.made_looks import CATS, HOSTILE, made_look
from support.playground_page import link

STORY = """
title = "Cats"

[[step]]
caption = "All heads <b>"
view = "heads"
layer = 0
head = 1

[[step]]
caption = "One head"
view = "head"
token = 2

[[step]]
caption = "The walk"
view = "walk"
head = 0
token = "none"
step = 6
"""
COLOURS = """async data => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: image.width, height: image.height });
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
  return [image.width, image.height, new Set(pixels).size];
}"""


@pytest.fixture(scope="module")
def look() -> Look:
    torch.manual_seed(0)
    return made_look(inside={4, 5}, depth=2, heads=2)


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.toml"
    path.write_text(STORY, encoding="utf-8")
    return path


def open_menu(page: Any) -> None:
    page.click("[aria-label='Present and save'][aria-expanded]")
    page.wait_for_selector(".present-menu:popover-open")


def saved(page: Any, name: str, folder: Path) -> Path:
    """The file that a button of the open menu saves."""
    with page.expect_download() as download:
        page.click(f".present-menu button:text-is('{name}')")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def texts(picture: Path) -> list[str]:
    """The texts of an SVG."""
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_story_is_walked_by_keys(open_page: Open, look: Look, story: Path) -> None:
    page = open_page(look, story=story)
    settled(page, view="heads", head=1, story=1)
    assert page.inner_text(".story-caption") == "All heads <b>"
    before = page.evaluate("getComputedStyle(document.documentElement).fontSize")
    page.keyboard.press("f")
    settled(page, present=1, story=1)
    assert not page.is_visible("nav")
    assert not page.is_visible("#choose-layer")
    after = page.evaluate("getComputedStyle(document.documentElement).fontSize")
    assert float(after.removesuffix("px")) > float(before.removesuffix("px"))

    page.keyboard.press("ArrowRight")
    settled(page, view="head", head=1, token=2, story=2)
    assert page.inner_text(".story-caption") == "One head"
    page.keyboard.press("PageDown")
    settled(page, view="walk", head=0, step=6, story=3)
    assert "token" not in state(page)
    page.keyboard.press("ArrowRight")  # the story has ended
    page.keyboard.press("ArrowLeft")
    settled(page, view="head", head=1, token=2, story=2)
    address = page.evaluate("location.hash")
    page.keyboard.press("Escape")
    page.wait_for_selector("#qkv:not(.presenting)")
    assert page.is_visible("nav")
    assert "present" not in state(page)

    # Without the mode the buttons walk, and arrows choose heads.
    page.click("text=Next ›")
    settled(page, view="walk", story=3)
    page.click(".story-pip >> nth=0")
    settled(page, view="heads", story=1)

    # The address restores the step and the mode.
    again = open_page(look, address, story=story)
    settled(again, view="head", token=2, story=2, present=1)
    assert again.locator("#qkv.presenting").count() == 1
    assert again.get_attribute(".story-pip >> nth=1", "aria-current") == "step"


def test_escape_leaves_the_mode_from_a_slider(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=walk&layer=0&head=0&step=6&present=1")
    settled(page, view="walk", step=6, present=1)
    page.locator(".walk-body input[type=range]:visible").first.focus()
    page.keyboard.press("f")  # a field keeps all other keys
    assert page.locator("#qkv.presenting").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_selector("#qkv:not(.presenting)")


def test_without_a_story_arrows_walk_the_steps_of_the_view(open_page: Open, look: Look) -> None:
    page = open_page(look, "#view=walk&layer=0&head=0&step=2&present=1")
    assert page.locator(".story").is_hidden()
    page.keyboard.press("ArrowRight")
    settled(page, step=3, present=1)
    page.keyboard.press("PageDown")
    settled(page, step=4)
    page.keyboard.press("PageUp")
    settled(page, step=3)
    page.keyboard.press("f")
    page.wait_for_selector("#qkv:not(.presenting)")


def test_a_story_is_made_by_clicking(open_page: Open, look: Look, tmp_path: Path) -> None:
    page = open_page(look, "#view=head&layer=1&head=1&token=3")
    captions = ('A "head"\nof two lines', "All heads")
    open_menu(page)
    assert page.is_disabled("text=Save the story")
    page.fill("#story-caption", captions[0])
    page.click("text=Add this state to the story")
    settled(page, story=1)
    page.keyboard.press("Escape")
    page.click("[data-view=heads]")
    settled(page, view="heads")
    open_menu(page)
    page.fill("#story-caption", captions[1])
    page.click("text=Add this state to the story")
    settled(page, story=2)
    path = saved(page, "Save the story", tmp_path)

    written = tomllib.loads(path.read_text(encoding="utf-8"))
    first, second = written["step"]
    assert (first["caption"], second["caption"]) == captions
    assert (first["view"], first["layer"], first["head"], first["token"]) == ("head", 1, 1, 3)
    assert second == {"caption": "All heads", "view": "heads"}

    # The file is opened by the library, and by another page.
    told = open_page(look, story=path)
    settled(told, view="head", layer=1, head=1, token=3, story=1)
    other = open_page(look)
    other.set_input_files("#story-file", path)
    settled(other, view="head", layer=1, head=1, token=3, story=1)
    assert other.inner_text(".story-caption") == captions[0]

    # A file that does not fit is refused with a sentence.
    path.write_text('[[step]]\ncaption = "x"\nlayer = 7\n')
    other.set_input_files("#story-file", path)
    message = "Step 1: layer: expected 0 to 1, or -1 for the last, not 7"
    other.wait_for_selector(f".present-menu .note:text-is('{message}')", state="attached")


@pytest.mark.parametrize("view", ["head", "heads", "lines", "walk", "lens", "norms"])
def test_a_view_is_saved_as_a_picture(
    open_page: Open, look: Look, tmp_path: Path, view: str
) -> None:
    page = open_page(look, f"#view={view}&layer=0&head=0&token=2&step=6", theme="dark")
    settled(page, view=view)
    heading = status(page)
    open_menu(page)
    picture = saved(page, "Save as SVG", tmp_path)
    heads = "-layer0-head0" if view in ("head", "lines", "walk") else ""
    step = "-step6" if view == "walk" else ""
    assert picture.name == f"a-model-{view}{heads}{step}.svg"

    found = texts(picture)
    assert found[0] == "a model"
    assert " ".join(found).startswith(f"a model {' '.join(heading.split())}"[:60])
    if view != "heads":
        assert {"the", "cats", "chase"} <= set(found)
    content = picture.read_text(encoding="utf-8")
    assert not re.search(r"foreignObject|<script|style=", content)
    if view in ("head", "heads", "lines", "walk"):
        assert "data:image/png" in content

    drawn = saved(page, "Save as PNG", tmp_path)
    width, height, colours = page.evaluate(COLOURS, base64.b64encode(drawn.read_bytes()).decode())
    root = ElementTree.fromstring(content)
    assert (width, height) == (2 * int(root.get("width", 0)), 2 * int(root.get("height", 0)))
    assert colours > 50


def test_a_picture_of_hostile_tokens_is_well_formed(open_page: Open, tmp_path: Path) -> None:
    page = open_page(made_look(HOSTILE, depth=1, heads=1), "#view=head&token=3")
    open_menu(page)
    found = texts(saved(page, "Save as SVG", tmp_path))
    assert "]]>" in found
    assert saved(page, "Save as PNG", tmp_path).stat().st_size > 10_000


def test_the_playground_presents_and_opens_a_story(
    visit: Open, story: Path, tmp_path: Path
) -> None:
    page = visit(link(tab="look", model="gpt", look_text=" ".join(CATS[:3])))
    settled(page, view="head")
    page.set_input_files("#story-file", story)
    settled(page, view="heads", head=1, story=1)
    page.click("#qkv canvas >> nth=0")
    settled(page, view="head", layer=0, head=0)
    open_menu(page)
    picture = saved(page, "Save as PNG", tmp_path)
    assert picture.name.startswith("gpt-")
    page.click("text=Present (f)")
    page.wait_for_selector("#qkv.presenting")
    box = page.locator("#qkv").bounding_box()
    assert (box["x"], box["y"]) == (0, 0)
    assert not page.is_visible(".tabs") or box["width"] >= page.viewport_size["width"] - 20
    page.keyboard.press("Escape")
    page.wait_for_selector("#qkv:not(.presenting)")
