"""The examples of the page Serve run against a server on a free port."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from support.document_pages import blocks, read_page
from support.small_server import hosting, running, small_models

PAGE = read_page(Path("docs/serve/index.md"))
ADDRESS = "http://127.0.0.1:8000"
CURLS = [line for block in blocks(PAGE, "sh") for line in block.splitlines() if "curl " in line]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose small models have the names of the page."""
    models = small_models(tmp_path_factory.mktemp("models"))
    host = hosting(
        {"smollm2": models["gpt"], "de": models["translator"], "encoder": models["bert"]}
    )
    try:
        with running(host) as server:
            yield server.url
    finally:
        host.close()


def test_the_client_of_the_page_gets_a_stream(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(PAGE, "python")
    assert ADDRESS in block
    exec(compile(block.replace(ADDRESS, url), "docs/serve/index.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", CURLS)
def test_a_request_of_the_page_is_answered(url: str, line: str) -> None:
    _, address, _, header, _, body = shlex.split(line)
    name, _, value = header.partition(": ")
    request = Request(address.replace(ADDRESS, url), body.encode(), {name: value})
    with urlopen(request) as response:
        answer: dict[str, Any] = json.loads(response.read())

    assert response.status == 200
    assert answer


def test_the_page_has_requests() -> None:
    assert len(CURLS) == 4
