"""Fixtures: a host with a small model of every family, and a server, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qkv.serving.model_host import ModelHost
from qkv.text import Tokenizer
from support.small_server import Running, hosting, running, small_models

Models = dict[str, tuple[Any, Tokenizer]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return small_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def host(models: Models) -> Iterator[ModelHost]:
    host = hosting(models)
    yield host
    host.close()


@pytest.fixture(scope="module")
def server(host: ModelHost) -> Iterator[Running]:
    with running(host) as server:
        yield server
