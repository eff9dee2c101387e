"""qkv.serving.serve: a real server in a child process, and its invalid arguments."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from qkv.serving.addresses import host_names, page_address
from qkv.serving.serve import serve
from qkv.serving.server_options import ServerOptions
from support.engines import WORDS
from support.families import gpt
from support.waiting import PATIENCE, until

CHILD = """
import sys
import torch
import qkv.serving
from qkv.models import GPT, GPTConfig
from qkv.text import train

tokenizer = train("words", ["the cat sat on the mat"] * 3, 20)
torch.manual_seed(0)
model = GPT(GPTConfig(vocabulary=tokenizer.vocabulary, context=32, width=16, depth=1, heads=2))
qkv.serving.serve(
    {"tiny": (model, tokenizer)},
    port=0,
    cache=0.001,
    rows=4,
    front_ends=int(sys.argv[1]),
)
"""


def healthy(child: subprocess.Popen[str], url: str) -> bool:
    assert child.poll() is None, child.communicate()
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def started(front_ends: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(front_ends)],
        env=os.environ,
        stderr=subprocess.PIPE,
        text=True,
    )


def address_of(child: subprocess.Popen[str]) -> str:
    """The address that the child prints, with a port that the system chose."""
    assert child.stderr is not None
    printed = ""
    while (found := re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)", printed)) is None:
        line = child.stderr.readline()
        assert line, printed
        printed += line

    return found[1]


@pytest.mark.parametrize("front_ends", [0, 1])
def test_serve_answers_until_it_is_interrupted(front_ends: int) -> None:
    """The function returns after SIGINT, and the process ends normally."""
    child = started(front_ends)
    try:
        url = address_of(child)
        until(lambda: healthy(child, url))
        models = httpx.get(f"{url}/v1/models", timeout=PATIENCE).json()["data"]
        assert [model["id"] for model in models] == ["tiny"]
        body = {"model": "tiny", "prompt": "the cat", "max_tokens": 3}
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
        assert reply.status_code == 200
        assert reply.json()["choices"][0]["finish_reason"] in ("length", "stop")
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
    assert child.returncode == 0, errors


def children_of(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return list(map(int, listed.read_text().split()))


def has_ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("killed", ["engine", "front end"])
def test_a_process_that_is_killed_leaves_no_other_and_no_client_waits(killed: str) -> None:
    child = started(1)
    try:
        url = address_of(child)
        until(lambda: healthy(child, url))
        (front_end,) = children_of(child.pid)
        body = json.dumps({"model": "tiny", "prompt": "the cat", "max_tokens": 3}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        head += "\r\nContent-Type: application/json\r\n\r\n"
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
            line.sendall(head.encode() + body)
            assert line.recv(12) == b"HTTP/1.1 200"
            os.kill(child.pid if killed == "engine" else front_end, signal.SIGKILL)
            with suppress(ConnectionResetError):
                while line.recv(65536):  # until the connection is closed
                    pass
        _, errors = child.communicate(timeout=PATIENCE)
        until(lambda: has_ended(front_end))
    finally:
        child.kill()
    assert child.returncode == (-signal.SIGKILL if killed == "engine" else 1)
    if killed == "front end":
        assert "server: a front end's process ended (status -9)" in errors


@pytest.mark.parametrize(
    ("arguments", "field", "keyword"),
    [
        ({"models": {}}, "models", "one model"),
        ({"models": {"a/b": (None, None)}, "port": 0}, "models", "slash"),
        ({"host": ""}, "host", "empty"),
        ({"host": "0.0.0.0"}, "host", "no key"),
        ({"cors": ("example.org",)}, "cors", "origin"),
        ({"keys": ("short",)}, "key", "8 characters"),
        ({"cache": 0.0, "port": 0}, "cache", "0.001"),
        ({"front_ends": 65, "port": 0}, "front_ends", "0 to 64"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], field: str, keyword: str) -> None:
    models = {"gpt": (gpt(), WORDS)}
    with pytest.raises(ValueError, match=f"{field}: .*{keyword}"):
        serve(**{"models": models, **arguments})


def test_front_ends_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, expected in {1: 1, 4: 1, 8: 2, 64: 3}.items():
        monkeypatch.setattr("os.cpu_count", lambda processors=processors: processors)
        assert ServerOptions().processes(on_gpu=True) == expected
    assert ServerOptions().processes(on_gpu=False) == 0
    assert ServerOptions(front_ends=5).processes(on_gpu=False) == 5


def test_a_local_server_answers_to_its_own_names() -> None:
    names = host_names("127.0.0.2", has_keys=False, open_to_all=False)
    assert names == ("localhost", "127.0.0.1", "[::1]", "127.0.0.2")
    assert host_names("0.0.0.0", has_keys=True, open_to_all=False) is None
    assert page_address("::", 80) == "http://127.0.0.1:80"
    assert page_address("::1", 80) == "http://[::1]:80"
