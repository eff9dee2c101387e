"""Fixtures of the browser tests, and the end of their Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser_fixtures import (
    as_users_run_it,
    browser,
    close_browser,
    open_page,
    server,
    visit,
)

__all__ = ["as_users_run_it", "browser", "open_page", "server", "visit"]
HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Chromium ends before a test of another folder begins."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            close_browser()


def pytest_sessionfinish() -> None:
    """Chromium also ends after an interruption."""
    close_browser()
