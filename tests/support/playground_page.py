"""The playground's server, and what its page shows as text and numbers that a test can compare."""

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
PRINTABLE = (
    "async texts => (module => texts.map(module.printable))(await import('qkv/token_text.js'))"
)


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
    """The end of an address with these settings."""
    return "#" + urllib.parse.urlencode(settings)


def settings_where(page: Any, ready: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """The settings of the address once they are ready: it is written shortly after a change."""

    def settings() -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(page.evaluate("location.hash").removeprefix("#")))

    return eventually(page, settings, ready)


def eventually(page: Any, read: Callable[[], T], ready: Callable[[T], bool]) -> T:
    """Poll, while the page goes on, until the value is ready; then return it."""
    end = time.monotonic() + LIMIT / 1000
    while not ready(value := read()):
        assert time.monotonic() < end, f"still {value!r}"
        page.wait_for_timeout(10)
    return value


def painted(page: Any) -> None:
    """Wait until the page is laid out and on the screen."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def answered(server: Running, path: str, **body: Any) -> Any:
    """The JSON that the API itself responds with."""
    response = httpx.post(server.url + path, json=body, timeout=LIMIT / 1000)
    assert response.status_code == 200, response.text
    return response.json()


def completed(server: Running, **body: Any) -> Any:
    """A completion, and the tokens of its prompt."""
    answer = answered(server, "/v1/completions", tokens=True, logprobs=10, **body)
    return answer["choices"][0], answer["prompt_tokens"]


def shown_as(page: Any, texts: list[str]) -> list[str]:
    """Texts as the page writes them, with names for invisible characters."""
    return list(page.evaluate(PRINTABLE, texts))


def tokens(page: Any, selector: str = ".result .tokens .token:not(.given)") -> list[str]:
    return list(page.locator(selector).all_text_contents())


def written(page: Any) -> None:
    """Wait until generation has ended."""
    page.wait_for_selector(".result .tokens[aria-busy=false]", state="attached")
    page.wait_for_selector("button:text-is('Generate'):visible")


def generate(page: Any) -> None:
    page.click("button:text-is('Generate')")
    page.wait_for_function(
        "() => document.querySelector('.result .state').textContent.match(/tokens?\\./)"
    )
    written(page)


def stale(page: Any) -> bool:
    """Whether the text is marked as that of another prompt."""
    return "stale" in page.get_attribute(".result", "class").split()


def copied(page: Any) -> str:
    """The end of the address that `Copy link` copies."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    # It may still say that another link was copied.
    page.evaluate("document.querySelector('[role=status].unseen').textContent = ''")
    page.click("text=Copy link")
    page.wait_for_selector("[role=status].unseen:has-text('Link copied')", state="attached")
    return "#" + page.evaluate("navigator.clipboard.readText()").split("#")[1]


def bodies(page: Any, path: str) -> list[dict[str, Any]]:
    """A list that collects the JSON of the page's requests to a route."""
    requests: list[dict[str, Any]] = []

    def collect(request: Any) -> None:
        if urllib.parse.urlsplit(request.url).path == path and request.method == "POST":
            requests.append(json.loads(request.post_data))

    page.on("request", collect)
    return requests


def alike(shown: list[str], probabilities: list[float]) -> bool:
    """True if percentages agree up to their last digit: Python and a browser round differently."""
    if len(shown) != len(probabilities):
        return False

    for text, probability in zip(shown, probabilities, strict=True):
        value = 0.0
        if not text.startswith("<"):
            value = float(text.removesuffix("%")) / 100
        if abs(value - probability) >= 0.00051:
            return False

    return True
