"""qkv.serving.serve: a real server in a child process, and its invalid arguments."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest

from qkv.serving.addresses import host_names, page_address
from qkv.serving.serve import serve
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
qkv.serving.serve({"tiny": (model, tokenizer)}, port=int(sys.argv[1]), cache=0.001, rows=4)
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def healthy(child: subprocess.Popen[str], url: str) -> bool:
    assert child.poll() is None, child.communicate()
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def test_serve_answers_until_it_is_interrupted() -> None:
    """The function returns after SIGINT, and the process ends normally."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(port)],
        env=os.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
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
    assert f"serving tiny at {url}" in errors


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
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], field: str, keyword: str) -> None:
    models = {"gpt": (gpt(), WORDS)}
    with pytest.raises(ValueError, match=f"{field}: .*{keyword}"):
        serve(**{"models": models, **arguments})


def test_a_local_server_answers_to_its_own_names() -> None:
    names = host_names("127.0.0.2", has_keys=False, open_to_all=False)
    assert names == ("localhost", "127.0.0.1", "[::1]", "127.0.0.2")
    assert host_names("0.0.0.0", has_keys=True, open_to_all=False) is None
    assert page_address("::", 80) == "http://127.0.0.1:80"
    assert page_address("::1", 80) == "http://[::1]:80"
