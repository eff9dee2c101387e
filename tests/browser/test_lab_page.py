"""Pages of the lab in a browser: numbers under the pointer, keys, themes, narrow windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.lab.report.lab_book import write_book
from qkv.lab.report.result_files import write_results
from support.browser_fixtures import LIMIT, Open, PageLog
from support.planted_experiment import planted_results

COLOUR = "getComputedStyle(document.body.parentNode).backgroundColor"
TYPE = "getComputedStyle(document.querySelector('h1')).fontSize"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    write_results(planted_results(), folder / "planted")
    write_book(folder)
    return folder


@pytest.fixture
def visit_lab(browser: Any, book: Path) -> Iterator[Open]:
    """Open a page of the book; it may log no error and load nothing from elsewhere."""
    log = PageLog()
    contexts = []

    def open(path: str, *, width: int = 1280, height: int = 720, theme: str = "light") -> Any:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT)
        log.listen(page)
        page.goto(f"{book.as_uri()}/{path}")
        page.wait_for_selector("html[data-ready]")
        return page

    yield open
    for context in contexts:
        context.close()

    assert log.errors == []
    assert [url for url in log.urls if not url.startswith(("data:", book.as_uri()))] == []


def test_the_numbers_of_a_mean_are_shown_under_the_pointer(visit_lab: Open) -> None:
    page = visit_lab("planted/index.html")
    assert page.locator("#tip").is_hidden()
    page.locator("#mark-0-1-2 use").hover(force=True)
    assert page.inner_text("#tip b") == "without, length 4"
    assert "±" in page.inner_text("#tip")
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()


def test_arrows_walk_through_points_and_series(visit_lab: Open) -> None:
    page = visit_lab("planted/index.html")
    titles = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        titles.append(page.inner_text("#status").partition(":")[0])

    assert titles == [
        "with, length 1",
        "with, length 2",
        "without, length 2",
        "without, length 1",
        "with",
        "without, length 1",
    ]
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_keys_switch_table_theme_projector_and_help(visit_lab: Open) -> None:
    page = visit_lab("planted/index.html")
    light = page.evaluate(COLOUR)
    page.keyboard.press("d")
    assert page.evaluate(COLOUR) != light
    page.keyboard.press("d")
    assert page.evaluate(COLOUR) == light

    assert page.locator("#table").is_visible()
    page.keyboard.press("t")
    assert page.locator("#table").is_hidden()

    small = page.evaluate(TYPE)
    page.keyboard.press("p")
    assert float(page.evaluate(TYPE)[:-2]) >= 1.3 * float(small[:-2])

    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.click("#close")
    assert page.locator("#help").is_hidden()


def test_the_system_theme_is_followed_and_colours_change(visit_lab: Open) -> None:
    fill = "getComputedStyle(document.querySelector('.panels text')).fill"
    pages = [visit_lab("planted/index.html", theme=theme) for theme in ("light", "dark")]
    assert pages[0].evaluate(COLOUR) != pages[1].evaluate(COLOUR)
    assert pages[0].evaluate(fill) != pages[1].evaluate(fill)


def test_the_legend_emphasises_an_arm(visit_lab: Open) -> None:
    page = visit_lab("planted/index.html")
    page.click('.legend button[data-arm="with"]')
    faded = "document.getElementById('{}').classList.contains('faded')"
    assert page.evaluate(faded.format("mark-0-1-0"))
    assert not page.evaluate(faded.format("mark-0-0-0"))
    page.keyboard.press("Escape")
    assert not page.evaluate(faded.format("mark-0-1-0"))


@pytest.mark.parametrize(
    "path", ["planted/index.html", "planted/index.html#projector", "index.html"]
)
@pytest.mark.parametrize("width", [390, 720, 1280])
def test_no_window_is_too_narrow(visit_lab: Open, path: str, width: int) -> None:
    page = visit_lab(path, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_panel_fits_a_projector(visit_lab: Open) -> None:
    page = visit_lab("planted/index.html#projector")
    for panel in page.locator(".panels svg").all():
        assert panel.bounding_box()["height"] <= 720


def test_keys_turn_from_part_to_part(visit_lab: Open) -> None:
    page = visit_lab("planted/index.html#projector")
    places = [page.evaluate("scrollY")]
    for key in ("n", "n", "n", "b", "b"):
        page.keyboard.press(key)
        places.append(page.evaluate("scrollY"))

    assert places[0] < places[1] < places[2] < places[3]
    assert places[4] == places[2]
    assert places[5] == places[1]


def test_the_book_leads_to_the_page(visit_lab: Open) -> None:
    page = visit_lab("index.html")
    assert page.locator("img").evaluate("image => image.naturalWidth") > 100
    page.click("text=planted")
    page.wait_for_selector("#verdict")
    assert page.inner_text(".verdict .word") == "holds"
