"""Small models of every family, with random weights, behind a real server on a free port."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fastapi import APIRouter

from qkv.models import (
    BERT,
    GPT,
    RNN,
    BERTConfig,
    GPTConfig,
    RNNConfig,
    Transformer,
    TransformerConfig,
)
from qkv.serving.front_end.engine_service import EngineService
from qkv.serving.http.app import create_app
from qkv.serving.http.middleware import AccessRules, RequestMiddleware
from qkv.serving.http.server import Server, bind_socket
from qkv.serving.model_host import ModelHost
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES
from support.small_task_models import small_tuned
from support.tokenizer_kinds import gguf_file
from support.waiting import PATIENCE, until

IMPLEMENTATIONS = {
    "h11": {"http": "h11", "loop": "asyncio"},
    "httptools": {"http": "httptools", "loop": "uvloop"},
}
"""Options of uvicorn's implementations of HTTP, both of which hold all bounds."""
SMALL = {"width": 16, "depth": 2, "heads": 2}


def small_models(folder: Path) -> dict[str, tuple[Any, Tokenizer]]:
    """One model of each family by name, with its tokenizer."""
    torch.manual_seed(0)
    pairs = train("byte-pair", SENTENCES, 300)
    words = train("words", SENTENCES, 80)
    chat = Tokenizer.read(gguf_file(folder / "tiny.gguf"))
    models = {
        "gpt": (GPT(GPTConfig(vocabulary=pairs.vocabulary, context=64, **SMALL)), pairs),
        "chat": (
            GPT(GPTConfig(vocabulary=chat.vocabulary, context=96, position="rotary", **SMALL)),
            chat,
        ),
        "bert": (BERT(BERTConfig(vocabulary=words.vocabulary, context=16, **SMALL)), words),
        "translator": (
            Transformer(TransformerConfig(vocabulary=words.vocabulary, context=40, **SMALL)),
            words,
        ),
        "long": (
            GPT(GPTConfig(vocabulary=pairs.vocabulary, context=4096, position="rotary", **SMALL)),
            pairs,
        ),
        "rnn": (RNN(RNNConfig(vocabulary=words.vocabulary, width=16, attention="additive")), words),
        "tuned": small_tuned("classify", "bert"),
    }
    for model, _ in models.values():
        model.eval()
        with torch.no_grad():
            for weight in model.parameters():  # large weights, for distributions far from uniform
                if weight.dim() > 1:
                    weight.mul_(4)
    return models


def hosting(models: dict[str, tuple[Any, Tokenizer]], **options: Any) -> ModelHost:
    """A started host, once all models are ready."""
    host = ModelHost(**{"cache": 4 << 20, "rows": 16, "queue": 64, **options})
    for name, pair in models.items():
        host.add(name, lambda pair=pair: pair)
    host.start()
    for entry in host.entries.values():
        until(lambda entry=entry: entry.state != "loading")
        assert entry.state == "ready", entry.error
    return host


class Running:
    """A server that answers at `url`."""

    def __init__(
        self,
        host: ModelHost,
        rules: AccessRules | None = None,
        drain: float = 5.0,
        buffer: int | None = None,
        **options: Any,
    ) -> None:
        """Start a server.

        `buffer` is the number of bytes the system keeps for a client that does not read; `options`
        are those of uvicorn.
        """
        self.host = host
        self.app = create_app(host, rules)
        listening = bind_socket("127.0.0.1", 0)
        if buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(self.app, drain, **options)
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=PATIENCE)
        assert not self.thread.is_alive(), "the server did not stop"


class Separated:
    """A server whose front end is a process of its own; the engine is in this one."""

    def __init__(
        self,
        host: ModelHost,
        rules: AccessRules | None = None,
        drain: float = 5.0,
        count: int = 1,
        routers: Sequence[APIRouter] = (),
    ) -> None:
        rules = rules or AccessRules()
        listening = bind_socket("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.app = create_app(host, rules, routers)
        self.service = EngineService(host, self.app, count)
        self.status: int | None = None
        settings = {"rules": rules, "drain": drain, "queue": host.queue, "logs": {}}

        def run() -> None:
            self.status = self.service.run(listening, settings)
            listening.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        until(lambda: all(hasattr(link, "child") for link in self.service.links))

    @property
    def children(self) -> list[subprocess.Popen[bytes]]:
        return [link.child for link in self.service.links]

    @property
    def handles(self) -> list[Any]:
        """Requests that the engine's process works on."""
        # Copies: the event loop changes them meanwhile.
        return [handle for link in self.service.links for handle in list(link.handles.values())]

    def ended(self) -> int:
        """The exit status of the front end, once it has ended."""
        self.thread.join(timeout=PATIENCE)
        assert not self.thread.is_alive(), "the front end did not end"
        assert self.status is not None
        return self.status


@contextmanager
def separated(host: ModelHost, rules: AccessRules | None = None, **options: Any) -> Iterator[Any]:
    """A server with a front end of its own over a host, which stops at the end."""
    server = Separated(host, rules, **options)
    try:
        yield server
    finally:
        if server.thread.is_alive():
            server.service.stop()

        server.ended()


@contextmanager
def running(host: ModelHost, rules: AccessRules | None = None, **options: Any) -> Iterator[Running]:
    """A server over a host, which stops at the end."""
    server = Running(host, rules, **options)
    try:
        yield server
    finally:
        server.stop()


def asgi_app(host: ModelHost, **rules: Any) -> RequestMiddleware:
    """The application without a network, for ASGI clients."""
    return create_app(host, AccessRules(**{"names": None, **rules}))
