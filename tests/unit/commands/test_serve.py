"""qkv serve: errors before it starts, and how it stops."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from qkv import artifact
from qkv.commands import serve
from qkv.models import GPT, GPTConfig
from qkv.serving.model_host import ModelHost
from qkv.serving.server_options import ServerOptions
from qkv.text import train
from support.command_fixtures import Qkv
from support.sentences import SENTENCES
from support.waiting import PATIENCE, until


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "models: expected the folder of a model"),
        (["nobody"], "nobody: there is no such file or folder"),
        (
            ["runs/mien"],
            "runs/mien: there is no such file or folder; models are read from this machine",
        ),
        (["smolm2"], "did you mean smollm2"),
        (["{gpt}", "{gpt}"], "models: two are called gpt; give one of them another name"),
        (["a/b={gpt}"], "models: expected a path, or name=path"),
        (
            ["{gpt}", "--host", "0.0.0.0"],
            "host: 0.0.0.0 can be reached from other machines, and there is no key",
        ),
        (["{gpt}", "--host", "192.0.2.1", "--open-to-all"], r"port: .*192\.0\.2\.1.*8000"),
        (
            ["{gpt}", "--host", "no.such.address.invalid", "--open-to-all"],
            r"host: .*address",
        ),
        (["{gpt}", "--port", "99999"], "port: expected 0 to 65,535"),
        (["{gpt}", "--cache", "0"], "cache: expected 0.001 to"),
        (["{gpt}", "--rows", "0"], "rows: expected 1 to"),
        (["{gpt}", "--queue", "-1"], "queue: expected 1 to"),
        (["{gpt}", "--deadline", "nan"], "deadline: expected 0.1 to"),
        (["{gpt}", "--key", "short"], r"key: .*8"),
        (["{gpt}", "--key-file", "{gpt}/nothing"], "key-file: .*nothing cannot be read"),
        (["{gpt}", "--key-file", "{empty}"], "key-file: there is no key in"),
        (
            ["{gpt}", "--cors", "example.org"],
            "cors: expected an origin such as https://example.org",
        ),
        (["{gpt}", "--precision", "bf16", "--device", "cpu"], "precision: bf16 is for GPUs"),
    ],
)
def test_errors_before_it_starts(
    qkv: Qkv, models: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").write_text("\n\n")
    printed = qkv(
        "serve",
        *(argument.format(gpt=models / "gpt", empty=tmp_path / "empty") for argument in arguments),
    )
    assert printed.code != 0
    assert re.search(message, printed.error.replace("\n", " ")), printed.error
    assert "Traceback" not in printed.error


def test_a_port_in_use_is_reported(qkv: Qkv, models: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        printed = qkv("serve", models / "gpt", "--port", str(port))

    assert re.search(rf"port: .*{port}", printed.error)


GATED = """
import os, time
from pathlib import Path
from qkv.cli import main
from qkv.serving.engine.engine import Engine

real = Engine.run

def gated(engine, batch):
    if engine.counts["steps"] > 3:
        while not Path(os.environ["QKV_TEST_GO"]).exists():
            time.sleep(0.01)
    return real(engine, batch)

Engine.run = gated
main()
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A server with a model under another name, and keys from a file and the environment.

    After three tokens the model waits until the file `go` exists in the folder of the test.
    """
    pairs = train("byte-pair", SENTENCES, 300)
    config = GPTConfig(
        vocabulary=pairs.vocabulary, context=4096, position="rotary", width=16, depth=1, heads=2
    )
    torch.manual_seed(0)
    artifact.save(GPT(config), tmp_path / "model", tokenizer=pairs)
    (tmp_path / "keys").write_text("key-from-a-file\n")
    command = [
        sys.executable,
        "-c",
        GATED,
        "serve",
        f"writer={tmp_path / 'model'}",
        "--port",
        "0",
        "--cache",
        "0.1",
    ]

    server = subprocess.Popen(
        [*command, "--key-file", str(tmp_path / "keys"), "--drain", str(PATIENCE)],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "QKV_API_KEY": "key-from-outside",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "QKV_TEST_GO": str(tmp_path / "go"),
        },
    )

    yield from killed_at_last(server)


def status(url: str) -> Any:
    return httpx.get(f"{url}/health", timeout=PATIENCE).json()["status"]


def test_a_signal_lets_a_stream_end_and_refuses_new_requests(
    child: subprocess.Popen[str], tmp_path: Path
) -> None:
    printed = printed_until(child, "The API")
    url = re.findall(r"http://127\.0\.0\.1:\d+", printed)[0]
    until(lambda: status(url) == "ready")
    assert httpx.get(f"{url}/v1/models", timeout=PATIENCE).status_code == 401
    ask: dict[str, Any] = {
        "model": "writer",
        "prompt": "the cat",
        "max_tokens": 100,
        "min_tokens": 100,
        "stream": True,
    }
    ask |= {"stream_options": {"include_usage": True}}
    headers = [
        {"authorization": f"Bearer {key}"} for key in ("key-from-a-file", "key-from-outside")
    ]
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=ask, headers=headers[0], timeout=PATIENCE
    ) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        until(lambda: status(url) == "draining")
        refused = httpx.post(
            f"{url}/v1/completions", json=ask, headers=headers[1], timeout=PATIENCE
        )
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        (tmp_path / "go").touch()
        events = [line.removeprefix("data: ") for line in lines if line]

    *chunks, usage = map(json.loads, events[:-1])
    assert events[-1] == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 100
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert child.wait(PATIENCE) == 0
    assert child.stderr is not None
    rest = printed + child.stderr.read()
    assert "writer is ready" in rest
    assert "POST /v1/completions 200" in rest
    assert "server stopped" in rest
    assert "key-from" not in rest
    assert "the cat" not in rest


STUCK = """
import sys, threading, time
import torch
from qkv.commands import serve
from qkv.models import GPT, GPTConfig
from qkv.serving.server_options import ServerOptions
from qkv.text import train

class Stuck(GPT):
    def forward(self, *inputs, **options):
        print("it computes", file=sys.stderr, flush=True)
        time.sleep(600)
    step = hidden = forward

def load():
    if sys.argv[1] == "loading":
        print("it loads", file=sys.stderr, flush=True)
        numbers = torch.randn(800, 800)
        while True:
            numbers @ numbers
    tokenizer = train("words", ["the cat sat"], 20)
    config = GPTConfig(vocabulary=tokenizer.vocabulary, context=16, width=8, depth=1, heads=1)
    return Stuck(config), tokenizer

serve.loader = lambda path, machine: load
serve.run(("model",), ServerOptions(port=0, cache=0.01, drain=600))
"""


@contextmanager
def stuck(when: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK, when],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    yield from killed_at_last(child)


def killed_at_last(child: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def printed_until(child: subprocess.Popen[str], *texts: str) -> str:
    """What a server prints until all of these texts were printed, in any order."""
    assert child.stderr is not None
    printed = ""
    while not all(text in printed for text in texts):
        line = child.stderr.readline()
        assert line, printed
        printed += line

    return printed


def test_it_stops_in_order_while_a_model_is_loaded() -> None:
    """A thread is inside torch when the process ends; the status is 0."""
    with stuck("loading") as child:
        printed = printed_until(child, "it loads", "Loading")
        url = re.findall(r"http://127\.0\.0\.1:\d+", printed)[0]
        assert status(url) == "loading"
        soft, hard = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        assert soft in (hard, 65_536)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0
        assert child.stderr is not None
        assert "server stopped" in child.stderr.read()


def test_a_second_signal_does_not_wait() -> None:
    """The server exits while a step still runs, and cuts the request off."""
    with stuck("computing") as child:
        printed = printed_until(child, "model is ready", "The API")
        url = re.findall(r"http://127\.0\.0\.1:\d+", printed)[0]
        statuses: list[int] = []
        ask = {"model": "model", "prompt": "the"}

        def post() -> None:
            statuses.append(
                httpx.post(f"{url}/v1/completions", json=ask, timeout=PATIENCE).status_code
            )

        poster = threading.Thread(target=post)
        poster.start()
        printed_until(child, "it computes")
        child.send_signal(signal.SIGTERM)
        until(lambda: status(url) == "draining")
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 130
        poster.join(PATIENCE)
        assert statuses == [503]


def test_it_exits_if_no_model_could_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    server = subprocess.run(
        [sys.executable, "-m", "qkv", "serve", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    assert server.returncode == 1
    assert "cannot be served" in server.stderr
    assert "no model could be loaded" in server.stderr


class Left(BaseException):
    """Raised instead of ending this process."""


def test_a_failed_engine_ends_the_server_with_a_sentence(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 1, so that a supervisor restarts it."""
    codes: list[int] = []
    real = ModelHost.run_step

    def killed(host: ModelHost) -> bool:
        if host.entries["gpt"].state == "ready":
            raise Left

        return real(host)

    def leave(console: object, code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(ModelHost, "run_step", killed)
    monkeypatch.setattr(serve, "leave", leave)
    monkeypatch.setattr(serve.sys, "setswitchinterval", lambda seconds: None)
    with pytest.raises(Left):
        serve.run((str(models / "gpt"),), ServerOptions(port=0, cache=0.01))

    assert codes == [1]
    assert "qkv: the engine's thread ended (Left); no model" in capsys.readouterr().err
