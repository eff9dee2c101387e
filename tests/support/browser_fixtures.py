"""Chromium for pages on disk and for the playground of a local server.

A test fails if a page logs an error or sends a request elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from qkv.insight.look import Look
from support.shape_checks import unchecked

FEATURES_OFF = [
    # The address bar has pages of its own in every window, and a process waits for the next page:
    # nobody sees them, and they took a quarter of the time of these tests.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    # Only the last list of features counts: what Playwright's own list has for tests.
    *("PaintHolding", "Translate", "HttpsUpgrades", "OptimizationHints", "MediaRouter"),
]
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    f"--disable-features={','.join(FEATURES_OFF)}",
]
SHOWN = "#qkv[data-shown]"
LIMIT = 180_000
"""Milliseconds that an event may take on a busy machine; tests never wait for a fixed time."""


def skip_without(what: str) -> None:
    """Skip the test, or fail it in CI, where nothing may be left untested."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, so the pages cannot be tested")
    pytest.skip(f"{what} is not installed, so the pages are not tested in a browser")


def is_error(message: Any) -> bool:
    # Reading pixels, as the tests do, logs a warning.
    return message.type in ("error", "warning") and "getImageData" not in message.text


class PageLog:
    """The errors that pages logged, and the URLs they requested."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.urls: list[str] = []

    def listen(self, page: Any) -> None:
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if is_error(message) else None,
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.urls.append(request.url))


running = ExitStack()
"""Closes the Chromium of these tests and Playwright."""


@cache
def shared_browser() -> Any:
    """The Chromium of all browser tests, until `close_browser`."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        skip_without("Chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        skip_without("playwright")

    with ExitStack() as starting:
        playwright = starting.enter_context(sync_playwright())
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=LIMIT)
        starting.callback(opened.close)
        running.enter_context(starting.pop_all())
    return opened


def close_browser() -> None:
    """Close what `shared_browser` opened; without it, nothing happens.

    Playwright keeps an event loop in the thread, where tests of other folders start their own.
    """
    shared_browser.cache_clear()
    running.close()


@pytest.fixture(scope="module")
def browser() -> Any:
    """Shared by files that follow each other, since it takes over a second to start."""
    return shared_browser()


@pytest.fixture(scope="module", autouse=True)
def as_users_run_it() -> Iterator[None]:
    """Without shape checks inside the server, which has its own tests."""
    with unchecked():
        yield


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """open_page(look, "#view=head", width=380) returns the page when it is drawn."""
    log = PageLog()
    contexts = []

    def open(
        look: Look,
        hash: str = "",
        *,
        width: int = 1200,
        height: int = 800,
        theme: str = "light",
        **opening: Any,
    ) -> Any:
        out = look.save(tmp_path / f"page{len(contexts)}.html", **opening)
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT)
        log.listen(page)
        page.goto(out.as_uri() + hash)
        page.wait_for_selector(SHOWN)
        return page

    yield open
    for context in contexts:
        context.close()
    assert log.errors == []
    elsewhere = [url for url in log.urls if not url.startswith(("data:", tmp_path.as_uri()))]
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
    """visit("#tab=fill", width=390): the playground in a new tab, when its models are known.

    With `refused=True` a request will fail, which the console logs. `route` changes responses.
    """
    log = PageLog()
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
        log.listen(page)
        route(page)
        page.goto(f"{server.url}/{hash}")
        page.wait_for_selector(f"#playground[data-state={state}]")
        return page

    yield open
    for context in contexts:
        context.close()
    assert [error for error in log.errors if not error.startswith(tuple(expected))] == []
    assert [url for url in log.urls if not url.startswith(f"{server.url}/")] == []
