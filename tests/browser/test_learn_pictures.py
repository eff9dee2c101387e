"""The pictures of the Learn pages draw themselves and answer to their controls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser_fixtures import LIMIT, PageLog

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = [
    re.search(r"```picture\n(.*)\n```", page.read_text(encoding="utf-8"))[1]
    for page in sorted((DOCS / "learn").glob("[01]*.md"))
]


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One page with all pictures, as narrow as a phone."""
    assets = DOCS / "assets"
    boxes = "".join(f'<div class="picture" data-picture="{name}"></div>' for name in PICTURES)
    scripts = "".join(
        f'<script src="{(assets / name).as_uri()}"></script>'
        for name in ("drawing.js", "pictures.js")
    )
    style = f'<link rel="stylesheet" href="{(assets / "site.css").as_uri()}">'
    path = tmp_path_factory.mktemp("pictures") / "pictures.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{style}{boxes}{scripts}", encoding="utf-8")
    context = browser.new_context(viewport={"width": 390, "height": 844})
    opened = context.new_page()
    opened.set_default_timeout(LIMIT)
    log = PageLog()
    log.listen(opened)
    opened.goto(path.as_uri())
    yield opened
    context.close()
    assert log.errors == []
    assert all(url.startswith("file:") for url in log.urls)


def test_there_are_sixteen() -> None:
    assert len(set(PICTURES)) == 16


def drawn(box: Any) -> str:
    """What the picture shows and says."""
    return box.locator("svg").inner_html() + box.locator(".says").inner_text()


def set_slider(control: Any, value: str) -> None:
    control.evaluate(
        """(control, value) => {
            control.value = value;
            control.dispatchEvent(new Event("input"));
        }""",
        value,
    )


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_changes_with_its_controls(page: Any, name: str) -> None:
    box = page.locator(f'[data-picture="{name}"]')
    before = box.inner_html()
    assert box.locator("svg > *").count() >= 5
    assert box.locator("svg[aria-label]").count() == 1
    assert len(box.locator(".says").inner_text()) > 20
    assert "NaN" not in before

    controls = box.locator("input[type=range], button")
    assert controls.count() >= 1
    for control in controls.all():
        shown = drawn(box)
        if control.evaluate("control => control.tagName") == "BUTTON":
            control.click()
            after = drawn(box)
        else:
            value = control.input_value()
            set_slider(control, control.get_attribute("max"))
            after = drawn(box)
            set_slider(control, control.get_attribute("min"))
            after += drawn(box)
            set_slider(control, value)
            assert drawn(box) == shown

        if name != "masks":  # there a causal mask has nothing to set
            assert after not in (shown, shown + shown)
        assert "NaN" not in after

    for selector in box.locator("select").all():
        for option in selector.locator("option").all_inner_texts():
            selector.select_option(option)
            assert "NaN" not in box.inner_html()


def test_pictures_fit_a_phone(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_softmax_picture_shows_a_distribution(page: Any) -> None:
    box = page.locator('[data-picture="lookup"]')
    box.locator("select").select_option("softmax")
    texts = box.locator("svg text").all_text_contents()
    weights = [float(text) for text in texts if re.fullmatch(r"[01]\.\d{3}", text)]
    assert len(weights) == 5
    assert abs(sum(weights) - 1) < 0.01
