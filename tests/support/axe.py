"""axe-core on a page: which rules of accessibility it breaks."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from support.browser_fixtures import skip_without

RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ html, any }) => `${id}: ${html.slice(0, 160)} (${any.map(({ message }) => message)})`));
}"""


@cache
def axe_script() -> str:
    """The script of axe-core, which a test-only package brings along."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        skip_without("axe-playwright-python")

    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Any) -> list[str]:
    """The rules that the page breaks now, each with the element and the reason."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(axe_script())

    return list(page.evaluate(RUN))
