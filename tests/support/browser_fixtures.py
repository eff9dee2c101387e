"""A real Chromium that opens pages from the disk, or of a server of ours, and fails a test in which
a page complains or asks anyone else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.insight.look import Look
from qkv.insight.render.page import write_page
from support.shape_checks import unchecked

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
SHOWN = "#qkv[data-shown]"
LIMIT = 180_000
"""Milliseconds that anything may take on a machine that others use; a test waits for an event,
never for a time.
"""


def lacking(what: str) -> None:
    """Where changes are accepted nothing may be left untested."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, so the pages cannot be tested")
    pytest.skip(f"{what} is not installed, so the pages are not tested in a browser")


def complains(message: Any) -> bool:
    return (
        message.type in ("error", "warning") and "getImageData" not in message.text
    )  # the tests read pixels


class Heard:
    """What pages complained of, and whom they asked."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def listen(self, page: Any) -> None:
        page.on(
            "console",
            lambda message: self.complaints.append(message.text) if complains(message) else None,
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Closed after each file: Playwright keeps an event loop, and the tests of serving start their
    own.
    """
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        lacking("Chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        lacking("playwright")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=LIMIT)
        yield opened
        opened.close()


@pytest.fixture(scope="module", autouse=True)
def as_users_run_it() -> Iterator[None]:
    """The pages are tested here; the shapes inside the server that they ask are checked in its own
    tests.
    """
    with unchecked():
        yield


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """open_page(look, "#view=head", width=380): the page when it is drawn."""
    heard = Heard()
    contexts = []

    def open(
        look: Look,
        hash: str = "",
        *,
        width: int = 1200,
        height: int = 800,
        theme: str = "light",
        **how: Any,
    ) -> Any:
        out = write_page(look, tmp_path / f"page{len(contexts)}.html", **how)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT)
        heard.listen(page)
        page.goto(out.as_uri() + hash)
        page.wait_for_selector(SHOWN)
        return page

    yield open
    for context in contexts:
        context.close()
    assert heard.complaints == []
    elsewhere = [url for url in heard.asked if not url.startswith(("data:", tmp_path.as_uri()))]
    assert elsewhere == []


# The playground


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small model of every family behind a real server."""
    from support.playground_page import small_playground

    with small_playground(tmp_path_factory.mktemp("models")) as server:
        yield server


@pytest.fixture
def visit(browser: Any, server: Any) -> Iterator[Open]:
    """visit("#tab=fill", width=390): the playground in a tab of its own, when its models are known.

    `refused=True`: the server will say no, which a browser's console repeats. `route` changes what
    the server says.
    """
    heard = Heard()
    contexts = []
    expected: list[str] = []

    def open(
        hash: str = "",
        *,
        width: int = 1280,
        theme: str = "light",
        refused: bool = False,
        route: Callable[[Any], None] = lambda page: None,
        state: str = "ready",
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=theme)
        contexts.append(context)
        if refused:
            expected.append("Failed to load resource")
        page = context.new_page()
        page.set_default_timeout(LIMIT)
        heard.listen(page)
        route(page)
        page.goto(f"{server.url}/{hash}")
        page.wait_for_selector(f"#playground[data-state={state}]")
        return page

    yield open
    for context in contexts:
        context.close()
    assert [each for each in heard.complaints if not each.startswith(tuple(expected))] == []
    assert [url for url in heard.asked if not url.startswith(f"{server.url}/")] == []
