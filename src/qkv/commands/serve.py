"""qkv serve: models behind an API that OpenAI's clients use unchanged, and a page to play with
them.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import tyro
from rich.console import Console
from rich.text import Text

from qkv import artifact
from qkv.command_line.model_opening import Machine, device_of, prepared
from qkv.models.registry import Model
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.serving.model_host import ModelEntry, ModelHost

GIB = 1 << 30
# seconds: the engine's thread and that of the clients share one interpreter, and neither waits long
SWITCH = 0.0005
KEY = "QKV_API_KEY"
STOPPED = 130  # as a shell calls what was interrupted
FAILED = 1
LAST_STEP = 5.0
"""Seconds that the engine's last step is waited for."""
MOST_FILES = 65_536
"""Connections are files to the system, and 1,024 of them, as many allow, are few."""


def run(
    models: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL]")
    ],
    host: str = "127.0.0.1",
    port: int = 8000,
    cache: float = 1.0,
    rows: int = 64,
    queue: int = 256,
    deadline: float = 600.0,
    drain: float = 30.0,
    key: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    key_file: Path | None = None,
    open_to_all: bool = False,
    cors: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Serve models: an API as OpenAI's, and a page where one sees them think.

    Ctrl-C, or SIGTERM: what runs is finished, what is new is refused, and the server leaves; once
    more, and it leaves at once.

    Args: models: Folders of runs or of transformers, GGUF files, smollm2 or minilm; name=path gives
        another name. host: The address to listen at; others than this machine's own need a key.
        port: The port to listen at; 0 takes any that is free. cache: GiB for what the texts of each
        model remember; taken at the start, and never exceeded. rows: So many texts of a model are
        said at once. queue: So many requests may wait for a model; who comes then is told to come
        again. deadline: Seconds after which a request is not worked on any more. drain: Seconds for
        what runs to be finished when the server is asked to leave. key: A key that clients must
        send, as Authorization: Bearer KEY; may be given several times. Other people of this machine
        see it in the list of processes: better a file, or the variable QKV_API_KEY. key_file: A
        file with keys, one on each line. open_to_all: Listen at another address than this machine's
        own without any key. cors: An origin whose pages may ask, such as https://example.org; may
        be given several times. machine: Where and how it computes.
    """
    check_numbers(cache, rows, queue, deadline, drain, port)
    keys = keys_of(key, key_file)
    names = names_for(host, bool(keys), open_to_all)
    check_origins(cors)
    device_of(machine)
    loads = {name: loader(path, machine) for name, path in named(models).items()}

    from qkv.serving.http.app import served
    from qkv.serving.http.middleware import AccessRules
    from qkv.serving.http.server import Server, bound
    from qkv.serving.model_host import ModelHost

    rules = AccessRules(keys=keys, names=names, cors=cors, deadline=deadline)
    engine = ModelHost(cache=int(cache * GIB), rows=rows, queue=queue)
    door = served(engine, rules)
    listening = bound(host, port)
    console = Console(stderr=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    for name, load in loads.items():
        engine.add(name, load)
        threading.Thread(
            target=announced, args=(engine.served[name], engine, console), daemon=True
        ).start()

    engine.start()
    anywhere = host in (
        "0.0.0.0",
        "::",
    )  # then it has many addresses, of which a person here can open one
    address = f"http://{'127.0.0.1' if anywhere else f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    welcome(console, address, list(loads), bool(keys))
    if anywhere:
        console.print("Others     at this machine's own address or name")

    allow_connections()
    sys.setswitchinterval(SWITCH)
    server = Server(
        door, drain, at_once=lambda: end_early(console, engine, signalled=server.force_exit)
    )
    engine.on_failure = server.stop
    if not engine.alive:  # it failed before it was listened to
        server.stop()

    server.run(sockets=[listening])
    leave_if_failed(console, engine)

    with suppress(KeyboardInterrupt):  # once more: then it is not waited for
        engine.close(LAST_STEP)

    leave(console, 0)


def end_early(console: Console, engine: ModelHost, *, signalled: bool) -> NoReturn:
    """Something still runs, and is not waited for: after the second signal, a failure, or too long
    a draining.
    """
    leave_if_failed(console, engine)
    if not signalled:
        console.print(
            "qkv: draining took too long; requests that still ran were cut off", markup=False
        )

    leave(console, STOPPED)


def leave_if_failed(console: Console, engine: ModelHost) -> None:
    if engine.failure is not None:
        console.print(f"qkv: {engine.failure}; no model can be asked any more", markup=False)
        leave(console, FAILED)


def leave(console: Console, code: int) -> NoReturn:
    """Without Python's own way out: a thread that still computes, or loads a model, would make it
    abort there.
    """
    console.print("qkv: the server has left", style="dim")
    logging.shutdown()

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()

    os._exit(code)


def allow_connections() -> None:
    """As many as the system lets one ask for."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def welcome(console: Console, address: str, names: list[str], locked: bool) -> None:
    console.print(Text.assemble("The page   ", (f"{address}/", "bold cyan")), soft_wrap=True)
    console.print(Text.assemble("The API    ", (f"{address}/v1", "bold cyan")), soft_wrap=True)
    if locked:
        console.print("Keys       needed, for all but /health")

    console.print(Text(f"Loading    {', '.join(names)}"), soft_wrap=True)


def announced(served: ModelEntry, engine: ModelHost, console: Console) -> None:
    """A person hears when a model is there; when it is not to be had, the host says so. Without
    any, there is nothing to serve."""
    while served.state == "loading":
        time.sleep(0.1)

    if served.state == "ready":
        logging.getLogger("qkv.serving").info("%s is ready", served.name)
    elif engine.failure is not None:  # of which the main thread tells
        return
    elif all(each.engine is None and each.state == "failed" for each in engine.served.values()):
        console.print("qkv: no model could be loaded", markup=False)
        leave(console, FAILED)


def loader(path: str, machine: Machine) -> Callable[[], tuple[Model, Tokenizer]]:
    found = artifact.named(path)
    if not found.exists():  # which is said before anything starts
        raise ValueError(
            f"{path}: there is no such file or folder; models are read from this machine, not downloaded"
        )

    return lambda: prepared(path, machine)


def named(models: tuple[str, ...]) -> dict[str, str]:
    """Each path by the name that clients call it: the last part of it, unless another is given."""
    if not models:
        raise ValueError("model: expected the folder of a model, or its name, such as smollm2")

    found: dict[str, str] = {}

    for each in models:
        name, given, path = each.partition("=")
        if not given or Path(each).exists():
            name, path = Path(each).resolve().name if Path(each).exists() else Path(each).name, each

        if not name.strip() or not path or "/" in name or len(name) > 200 or not name.isprintable():
            raise ValueError(f"model: expected a path, or name=path, not {each!r}")
        if name in found:
            raise ValueError(
                f"model: two are called {name}; give one of them another name, as in other={path}"
            )

        found[name] = path

    return found


def check_numbers(
    cache: float, rows: int, queue: int, deadline: float, drain: float, port: int
) -> None:
    bounds: dict[str, tuple[float, float, float]] = {
        "cache": (cache, 0.001, 4096),
        "rows": (rows, 1, 4096),
        "queue": (queue, 1, 100_000),
        "deadline": (deadline, 0.1, 86_400),
        "drain": (drain, 0, 3600),
        "port": (port, 0, 65535),
    }

    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise ValueError(f"{name}: expected {least:,} to {most:,}, not {value:,}")


def keys_of(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    """From the command line, a file and the environment, all together."""
    from qkv.serving.http.auth import Keys

    found = [*given, *([os.environ[KEY]] if os.environ.get(KEY) else [])]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"key-file: {file} cannot be read ({type(error).__name__})") from error

        from_file = [line.strip() for line in lines if line.strip()]
        if not from_file:
            raise ValueError(f"key-file: there is no key in {file}; expected one on each line")

        found += from_file

    Keys(found)

    return tuple(found)


def names_for(host: str, locked: bool, open_to_all: bool) -> tuple[str, ...] | None:
    """What clients may call the server. On this machine alone only its own names: a page elsewhere
    may have given its name this address, and would else be taken for ours."""
    from qkv.serving.http.middleware import LOOPBACK

    if not host.strip():
        raise ValueError("host: expected an address, such as 127.0.0.1, not an empty one")
    if loopback(host):
        return tuple(dict.fromkeys([*LOOPBACK, f"[{host}]" if ":" in host else host.lower()]))
    if not locked and not open_to_all:
        raise ValueError(
            f"host: {host} can be reached from other machines, and there is no key; give --key-file, or, to let "
            "everybody in, --open-to-all"
        )

    return None


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_origins(origins: tuple[str, ...]) -> None:
    from urllib.parse import urlsplit

    for each in origins:
        parts = urlsplit(each)
        if each != "*" and (
            parts.scheme not in ("http", "https") or not parts.netloc or parts.path
        ):
            raise ValueError(
                f"cors: expected an origin such as https://example.org, or *, not {each!r}"
            )
