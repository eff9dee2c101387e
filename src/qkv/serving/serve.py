"""serve: run an OpenAI-compatible server over models, until it is interrupted."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qkv import artifact
from qkv.models.model import Model
from qkv.serving.addresses import host_names, page_address
from qkv.serving.front_end.engine_service import EngineService
from qkv.serving.front_end.exit_status import DRAINED_TOO_LONG, EXPECTED, STOPPED_AT_ONCE
from qkv.serving.http.app import create_app
from qkv.serving.http.middleware import AccessRules
from qkv.serving.http.server import Server, bind_socket
from qkv.serving.model_host import ModelHost
from qkv.serving.server_options import ServerOptions
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fastapi import APIRouter

GIB = 1 << 30
SWITCH_INTERVAL = 0.0005
"""Seconds after which Python switches threads, between the engine and the event loop."""
LAST_STEP = 5.0
"""Seconds to wait for the engine's last step."""


def serve(
    models: Mapping[str, str | Path | tuple[Model, Tokenizer]],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    cache: float = 1.0,
    rows: int = 64,
    queue: int = 256,
    deadline: float = 600.0,
    drain: float = 30.0,
    keys: Sequence[str] = (),
    open_to_all: bool = False,
    cors: Sequence[str] = (),
    routers: Sequence[APIRouter] = (),
    device: str | None = None,
    front_ends: int | None = None,
) -> None:
    """Serve models over HTTP: OpenAI's API, qkv's own routes and the playground page.

    Blocks until it is interrupted. After the first Ctrl-C (or SIGTERM) running requests are
    finished and new ones are refused; a second one stops the server at once.

    Args:
        models: By the name that clients use: a path or known name that `qkv.load` accepts, or a
            model with its tokenizer, which stays on its device.
        host: Address to listen on; one that other machines can reach needs keys.
        port: Port to listen on; 0 takes any free one.
        cache: GiB of KV cache per model; on a CPU memory grows up to it with the tokens served.
        rows: Sequences that are generated at once, per model.
        queue: Requests that may wait for a model; further ones get 429 with Retry-After.
        deadline: Seconds after which a request ends.
        drain: Seconds that running requests have to finish after the first Ctrl-C.
        keys: API keys; clients send one of them as `Authorization: Bearer KEY`.
        open_to_all: Listen on an address that other machines can reach without any key.
        cors: Origins whose pages may use the API, such as https://example.org, or *.
        routers: Further routes, behind the same checks of keys, hosts, origins and bodies.
        device: Device of models given by path; None takes the GPU if there is one.
        front_ends: Processes that handle HTTP, templates and text beside the engine's; 0 handles
            them in this process. None is one for every four processors, at most 3, if a model is
            on a GPU, and else 0.

    Returns:
        None, after the server has stopped.

    Raises:
        ValueError: If an argument is invalid, a model cannot be loaded, or the address is in use.
        RuntimeError: If the engine fails while the server runs.

    Example:
        >>> from qkv.serving import serve
        >>> serve({"smollm2": "smollm2"}, port=8125)  # doctest: +SKIP
        qkv: serving smollm2 at http://127.0.0.1:8125 (Ctrl-C stops)
        >>> serve({})
        Traceback (most recent call last):
        ValueError: models: expected one model or more
    """
    if not models:
        raise ValueError("models: expected one model or more")

    options = ServerOptions(
        host=host,
        port=port,
        cache=cache,
        rows=rows,
        queue=queue,
        deadline=deadline,
        drain=drain,
        open_to_all=open_to_all,
        cors=tuple(cors),
        front_ends=front_ends,
    )
    server = ModelServer(options, keys, routers, on_gpu=uses_gpu(models, device))
    try:
        add_models(server.models, models, device)
        message = f"qkv: serving {', '.join(models)} at {server.address} (Ctrl-C stops)"
        print(message, file=sys.stderr, flush=True)
        server.run()
    finally:
        server.close()

    if server.models.failure is not None:
        raise RuntimeError(f"server: {server.models.failure}")


class ModelServer(Server):
    """A server that listens at an address, and the host of its models, which has none yet."""

    def __init__(
        self,
        options: ServerOptions,
        keys: Sequence[str],
        routers: Sequence[APIRouter] = (),
        *,
        on_gpu: bool = False,
    ) -> None:
        options.check()
        names = host_names(options.host, has_keys=bool(keys), open_to_all=options.open_to_all)
        rules = AccessRules(
            keys=tuple(keys), names=names, cors=options.cors, deadline=options.deadline
        )
        self.models = ModelHost(
            cache=int(options.cache * GIB), rows=options.rows, queue=options.queue
        )
        super().__init__(create_app(self.models, rules, routers), options.drain)
        self.service: EngineService | None = None
        processes = options.processes(on_gpu=on_gpu)
        if processes:
            self.service = EngineService(self.models, self.app, processes)

        self.logs: dict[str, Any] = {}
        """Arguments of logging.basicConfig for a process of the front end."""
        self.models.on_failure = self.stop
        self.listening = bind_socket(options.host, options.port)
        self.address = page_address(options.host, self.listening.getsockname()[1])

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the engine, and serve until the server is stopped or the engine fails."""
        self.models.start()
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            if self.service is None:
                super().run(sockets or [self.listening])
            else:
                self.run_front_end(self.service)
        finally:
            sys.setswitchinterval(before)

    def run_front_end(self, service: EngineService) -> None:
        """Run the front ends in processes of their own, until they end."""
        settings = {
            "rules": self.app.rules,
            "drain": self.drain,
            "queue": self.models.queue,
            "logs": self.logs,
        }
        status = service.run(self.listening, settings)
        self.force_exit = status == STOPPED_AT_ONCE
        if status in (STOPPED_AT_ONCE, DRAINED_TOO_LONG) and self.at_once is not None:
            self.at_once()

        if status not in EXPECTED and self.models.failure is None:
            self.models.failure = f"a front end's process ended (status {status})"

    def stop(self) -> None:
        """Stop now, without draining; any thread may call this."""
        if self.service is None:
            super().stop()
        else:
            self.service.stop()

    def close(self) -> None:
        """Close the socket and end the engine."""
        self.listening.close()
        self.models.close(LAST_STEP)


def uses_gpu(
    models: Mapping[str, str | Path | tuple[Model, Tokenizer]], device: str | None
) -> bool:
    """Whether any model is, or will be, on a GPU."""
    for source in models.values():
        if isinstance(source, tuple):
            parameters = getattr(source[0], "parameters", list)
            if any(parameter.is_cuda for parameter in parameters()):
                return True
        elif (device or default_device()).startswith("cuda"):
            return True

    return False


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def add_models(
    host: ModelHost,
    models: Mapping[str, str | Path | tuple[Model, Tokenizer]],
    device: str | None,
) -> None:
    """Add all models to a host, each when the one before is ready."""
    for name, source in models.items():
        if not name.strip() or "/" in name:
            raise ValueError(f"models: expected a name without a slash, not {name!r}")

        pair = source if isinstance(source, tuple) else load_pair(source, device)
        host.add(name, lambda pair=pair: pair).join()  # type: ignore[misc]
        entry = host.entries[name]
        if entry.state == "failed":
            raise ValueError(f"models: {name} cannot be served: {entry.error}")


def load_pair(path: str | Path, device: str | None) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer from a path; on a GPU, a GPT is in bfloat16."""
    model, tokenizer = artifact.load(path)
    tokenizer = tokenizer or artifact.tokenizer_of(path)
    target = torch.device(device or default_device())
    dtype = torch.float32
    if target.type == "cuda" and model.predicts == "next":
        dtype = torch.bfloat16

    return model.to(target, dtype), tokenizer
