"""qkv serve: an OpenAI-compatible HTTP API over models, and a playground page."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import tyro
from rich.console import Console
from rich.text import Text

from qkv import artifact
from qkv.command_line.model_opening import Machine, device_of, load_on_device
from qkv.models.model import Model
from qkv.serving.addresses import EVERY_ADDRESS
from qkv.serving.server_options import ServerOptions
from qkv.storage import last_part
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.serving.model_host import ModelHost

KEY_VARIABLE = "QKV_API_KEY"
INTERRUPTED = 130
FAILED = 1
MOST_FILES = 65_536
"""Open files to ask the system for: every connection is one, and 1,024 are a common limit."""
LOGS: dict[str, Any] = {
    "level": logging.INFO,
    "format": "%(asctime)s %(message)s",
    "datefmt": "%H:%M:%S",
}

Load = Callable[[], tuple[Model, Tokenizer]]


def run(
    models: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL]")
    ],
    server: tyro.conf.OmitArgPrefixes[ServerOptions] = ServerOptions(),  # noqa: B008 - tyro reads
    key: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    key_file: Path | None = None,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Serve models: an OpenAI-compatible API, and a page to try them and to look inside.

    Ctrl-C or SIGTERM: running requests are finished, new ones are refused, and the server stops; a
    second signal stops it at once.

    Args:
        models: Folders of runs or of transformers, GGUF files, smollm2 or minilm; name=path gives
            a model another name.
        server: Address and limits.
        key: A key that clients must send, as Authorization: Bearer KEY; may be repeated. Other
            users of this machine can see it in the list of processes: prefer --key-file, or the
            variable QKV_API_KEY.
        key_file: A file with keys, one a line.
        machine: Device and precision.
    """
    server.check()
    keys = read_keys(key, key_file)
    device = device_of(machine)
    loads: dict[str, Load] = {}
    for name, path in named_paths(models).items():
        loads[name] = loader(path, machine)

    from qkv.serving.serve import ModelServer

    running = ModelServer(server, keys, on_gpu=device.type == "cuda")
    engine = running.models
    console = Console(stderr=True)
    running.at_once = lambda: end_early(console, engine, signalled=running.force_exit)
    running.logs = LOGS
    logging.basicConfig(**LOGS)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    # Load the models in the background; the server listens meanwhile.
    loading = [engine.add(name, load) for name, load in loads.items()]
    arguments = (loading, engine, console)
    threading.Thread(target=exit_unless_loaded, args=arguments, daemon=True).start()

    welcome(console, running.address, list(loads), locked=bool(keys))
    if server.host in EVERY_ADDRESS:
        console.print("Others     at this machine's own address or name")

    raise_file_limit()
    running.run()
    exit_if_failed(console, engine)

    with suppress(KeyboardInterrupt):  # a further signal: do not wait
        running.close()

    leave(console, 0)


# Flags


def read_keys(typed: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    """The keys of the command line, of the environment and of a file."""
    from qkv.serving.http.access.auth import Keys

    keys = list(typed)
    if os.environ.get(KEY_VARIABLE):
        keys.append(os.environ[KEY_VARIABLE])

    if file is not None:
        keys += read_key_file(file)

    Keys(keys)  # refuses weak ones

    return tuple(keys)


def read_key_file(file: Path) -> list[str]:
    """The keys of a file, one a line."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"key-file: {file} cannot be read ({type(error).__name__})") from error

    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ValueError(f"key-file: there is no key in {file}; expected one on each line")

    return keys


def named_paths(models: tuple[str, ...]) -> dict[str, str]:
    """Each path by the name that clients use: name=path, or the last part of the path."""
    if not models:
        raise ValueError("models: expected the folder of a model, or its name, such as smollm2")

    paths: dict[str, str] = {}

    for argument in models:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name = last_part(argument)
            path = argument

        valid = name.strip() and name.isprintable() and "/" not in name and len(name) <= 200
        if not valid or not path:
            raise ValueError(f"models: expected a path, or name=path, not {argument!r}")
        if name in paths:
            raise ValueError(
                f"models: two are called {name}; give one of them another name, as in other={path}"
            )

        paths[name] = path

    return paths


def loader(path: str, machine: Machine) -> Load:
    """A function that loads a model; a missing path is refused now."""
    if not artifact.model_path(path).exists():
        raise ValueError(
            f"{path}: there is no such file or folder; models are read from this machine, "
            "not downloaded"
        )

    return lambda: load_on_device(path, machine)


# Start


def welcome(console: Console, address: str, names: list[str], *, locked: bool) -> None:
    """Print where the page and the API are."""
    console.print(Text.assemble("The page   ", (f"{address}/", "bold cyan")), soft_wrap=True)
    console.print(Text.assemble("The API    ", (f"{address}/v1", "bold cyan")), soft_wrap=True)
    if locked:
        console.print("Keys       needed, for all but /health")

    console.print(Text(f"Loading    {', '.join(names)}"), soft_wrap=True)


def exit_unless_loaded(
    loading: list[threading.Thread], engine: ModelHost, console: Console
) -> None:
    """Wait until all models are loaded; stop the server if none of them could be."""
    for thread in loading:
        thread.join()

    loaded = any(entry.engine is not None for entry in engine.entries.values())
    if not loaded and engine.failure is None:  # a failure is reported by the main thread
        console.print("qkv: no model could be loaded", markup=False)
        leave(console, FAILED)


def raise_file_limit() -> None:
    """Raise the limit of open files, hence of connections, as far as the system allows."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES
        if hard != resource.RLIM_INFINITY:
            most = min(hard, MOST_FILES)

        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# Stop


def end_early(console: Console, engine: ModelHost, *, signalled: bool) -> NoReturn:
    """Stop although requests still run: second signal, engine failure, or too long a drain."""
    exit_if_failed(console, engine)
    if not signalled:
        console.print(
            "qkv: draining took too long; requests that still ran were cut off", markup=False
        )

    leave(console, INTERRUPTED)


def exit_if_failed(console: Console, engine: ModelHost) -> None:
    if engine.failure is not None:
        console.print(f"qkv: {engine.failure}; no model can be used any more", markup=False)
        leave(console, FAILED)


def leave(console: Console, code: int) -> NoReturn:
    """Exit without Python's shutdown, which aborts if a thread still computes or loads a model."""
    console.print("qkv: server stopped", style="dim")
    logging.shutdown()

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()

    os._exit(code)
