"""The journey of a token: the files and functions of qkv that run for it.

    python -m benchmarks.journey

Training is `qkv train gpt` from text to a finished run, generation `qkv generate`, serving a POST
to /v1/completions until its last token. Commands and the parsing of their flags do not count, nor
does what runs while modules are imported.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import qkv
from qkv.cli import main

ROOT = str(Path(qkv.__file__).parent)
LIST = "--list" in sys.argv
LEFT_OUT = ("/commands/", "/command_line/", "/cli.py", "/lazy_imports.py", "/config.py")


def journey(run: Callable[[], Any]) -> tuple[set[str], set[tuple[str, str]]]:
    """The files, and the functions as (file, name), that run while this function does."""
    functions: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            name = code.co_qualname
            file = code.co_filename.removeprefix(ROOT)
            if "<module>" not in name and not any(part in file for part in LEFT_OUT):
                functions.add((file, name.split(".<locals>")[0]))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)

    return {file for file, _ in functions}, functions


def serve_one(folder: str) -> None:
    """An application in this process, one request, and its end."""
    from starlette.testclient import TestClient

    from qkv.artifact import load
    from qkv.serving.http.app import create_app
    from qkv.serving.http.middleware import AccessRules
    from qkv.serving.model_host import ModelHost

    model, tokenizer = load(folder)
    host = ModelHost(cache=1 << 24, rows=4)
    host.add("model", lambda: (model.eval(), tokenizer))
    host.start()
    with TestClient(create_app(host, AccessRules(names=("testserver",)))) as client:
        body = {"model": "model", "prompt": "the cat", "max_tokens": 8, "stream": True}
        client.post("/v1/completions", json=body).raise_for_status()

    host.close(5.0)


def count(name: str, run: Callable[[], Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run()  # imports, and what is only done once

    files, functions = journey(run)
    print(f"  {name:10} {len(files):4} files {len(functions):5} functions", flush=True)
    if LIST:
        for file in sorted(files):
            print(f"    {file}: {', '.join(sorted(name for f, name in functions if f == file))}")


def command(arguments: str) -> Callable[[], None]:
    def run() -> None:
        sys.argv = ["qkv", *arguments.split()]
        with contextlib.suppress(SystemExit):
            main()

    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text.txt"
        text.write_text("the cat sat on the mat and the dog sat on the cat\n" * 400)
        out = f"{scratch}/run"
        sizes = "--width 32 --depth 2 --heads 2 --context 16 --batch-tokens 64 --vocabulary 300"
        flags = f"--data {text} --out {out} --steps 2"

        def train() -> None:
            shutil.rmtree(out, ignore_errors=True)
            command(f"train gpt {flags} {sizes}")()

        count("training", train)
        count("generation", command(f"generate {out} the cat --length 8"))
        count("serving", lambda: serve_one(out))
