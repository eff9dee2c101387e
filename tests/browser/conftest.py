"""Fixtures of the browser tests."""

from support.browser_fixtures import as_users_run_it, browser, open_page, server, visit

__all__ = ["as_users_run_it", "browser", "open_page", "server", "visit"]
