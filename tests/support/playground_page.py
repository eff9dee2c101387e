"""The playground's server, and what its page shows, as words and numbers that a test can compare."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from support.browser_fixtures import LIMIT
from support.small_server import Running, hosting, running, small_models
from support.small_task_models import small_tuned

T = TypeVar("T")
TASKS = ("pair", "choice", "tag", "regress")
RUNNING = "async texts => (module => texts.map(module.running))(await import('qkv/words.js'))"


@contextmanager
def small_playground(folder: Path) -> Iterator[Running]:
    models = small_models(folder) | {task: small_tuned(task, "bert") for task in TASKS}
    host = hosting(models)
    try:
        with running(host) as server:
            yield server
    finally:
        host.close()


def link(**settings: Any) -> str:
    """The end of an address that chooses these."""
    return "#" + urllib.parse.urlencode(settings)


def settings_where(page: Any, ready: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """What the address says, once that is so: it is written a moment after a change."""

    def settings() -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(page.evaluate("location.hash").removeprefix("#")))

    return eventually(page, settings, ready)


def eventually(page: Any, ask: Callable[[], T], ready: Callable[[T], bool]) -> T:
    """Ask again and again, while the page goes on, until the answer is as it should be."""
    end = time.monotonic() + LIMIT / 1000
    while not ready(found := ask()):
        assert time.monotonic() < end, f"still {found!r}"
        page.wait_for_timeout(10)
    return found


def painted(page: Any) -> None:
    """Wait until what was asked for is laid out and on the screen."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def answered(server: Running, path: str, **body: Any) -> Any:
    """What the API says itself."""
    response = httpx.post(server.url + path, json=body, timeout=LIMIT / 1000)
    assert response.status_code == 200, response.text
    return response.json()


def completed(server: Running, **body: Any) -> Any:
    """Tokens of a completion, and the prompt's."""
    answer = answered(server, "/v1/completions", tokens=True, logprobs=10, **body)
    return answer["choices"][0], answer["prompt_tokens"]


def shown_as(page: Any, texts: list[str]) -> list[str]:
    """Texts as the page writes them: what cannot be seen is named."""
    return list(page.evaluate(RUNNING, texts))


def tokens(page: Any, selector: str = ".result .tokens .token:not(.given)") -> list[str]:
    return list(page.locator(selector).all_text_contents())


def written(page: Any) -> None:
    """Waits until nothing is being written."""
    page.wait_for_selector(".result .tokens[aria-busy=false]", state="attached")
    page.wait_for_selector("button:text-is('Generate'):visible")


def generate(page: Any) -> None:
    page.click("button:text-is('Generate')")
    page.wait_for_function(
        "() => document.querySelector('.result .state').textContent.match(/tokens?\\./)"
    )
    written(page)


def stale(page: Any) -> bool:
    """Whether the text is pale, as that of another prompt."""
    return "stale" in page.get_attribute(".result", "class").split()


def copied(page: Any) -> str:
    """The end of the address that is copied as a link."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("text=Copy link")
    page.wait_for_selector("[role=status].unseen:has-text('The link is copied')", state="attached")
    return "#" + page.evaluate("navigator.clipboard.readText()").split("#")[1]


def bodies(page: Any, path: str) -> list[dict[str, Any]]:
    """Gathers what the page will ask of a route."""
    found: list[dict[str, Any]] = []

    def hear(request: Any) -> None:
        if urllib.parse.urlsplit(request.url).path == path and request.method == "POST":
            found.append(json.loads(request.post_data))

    page.on("request", hear)
    return found


def alike(shown: list[str], probabilities: list[float]) -> bool:
    """Percentages that may differ in their last digit: halves are rounded differently by Python and
    by a browser.
    """
    found = [
        0.0 if text.startswith("under") else float(text.removesuffix("%")) / 100 for text in shown
    ]
    return len(found) == len(probabilities) and all(
        abs(one - other) < 0.00051 for one, other in zip(found, probabilities, strict=True)
    )
