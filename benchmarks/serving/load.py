"""Load generator for OpenAI-compatible servers: each client sends its next request at once.

    python -m benchmarks.serving.load http://127.0.0.1:8000 smollm2 --clients 16 --requests 32 \\
        --tokens 64 --stream

While the clock runs, responses are only stored with their times; they are parsed at the end, so
that a slow client is not mistaken for a slow server. `--processes 4` distributes the clients over
more processes. Every response must have all requested tokens, by the server's own count. This
module needs Python only, and other benchmarks run it in a process that has loaded nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, NamedTuple
from urllib.parse import urlsplit

END_OF_CHUNKS = b"0\r\n\r\n"
Prompt = str | list[int]


@dataclass
class Load:
    url: str
    model: str
    prompts: list[Prompt] = field(default_factory=lambda: ["Once upon a time"])
    """Request i has prompt i; after the last one they start again."""
    clients: int = 1
    requests: int = 1
    """Requests of all clients together."""
    tokens: int = 64
    """Tokens of each response, exactly."""
    stream: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as min_tokens."""
    processes: int = 1
    limit: float = 600
    """Time limit of the whole load in seconds."""

    def body(self, number: int) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompts[number % len(self.prompts)],
        }
        body |= {"max_tokens": self.tokens, "temperature": 0, "stream": self.stream}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body | self.extra).encode()


class Answer(NamedTuple):
    number: int
    sent: float
    arrived: list[float]
    """Arrival of each event with text; without streaming, of the whole response."""
    ended: float
    tokens: int
    prompt_tokens: int
    text: str


class Figures(NamedTuple):
    seconds: float
    tokens: int
    first: list[float]
    """Seconds to the first text of each response, sorted."""
    between: list[float]
    """Seconds between two texts of a stream, sorted."""
    texts: list[str]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    def __str__(self) -> str:
        line = f"{self.speed:9,.1f} tokens/s, {self.tokens:,} in {self.seconds:.2f} s"
        for name, times in {"first text": self.first, "between": self.between}.items():
            if times:
                line += f"; {name} p50 {at(times, 0.5) * 1e3:.1f} ms"
                line += f", p99 {at(times, 0.99) * 1e3:.1f} ms"
        return line


def at(ordered: list[float], share: float) -> float:
    """A quantile of sorted values."""
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


class Client(asyncio.Protocol):
    """A keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self.missing: int | None = None
        """Bytes of the body that are missing; None before the headers, and for chunked bodies."""
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.perf_counter(), data))
        if len(self.parts) == 1:
            head, _, data = data.partition(b"\r\n\r\n")
            headers = head.lower()
            if b"content-length:" in headers:
                self.missing = int(headers.partition(b"content-length:")[2].split()[0])
        if self.missing is not None:
            self.missing -= len(data)
            whole = self.missing <= 0
        else:
            whole = data.endswith(END_OF_CHUNKS) or self.ends_in_two()
        if whole and self.done is not None and not self.done.done():
            self.done.set_result(None)

    def ends_in_two(self) -> bool:
        """Whether the end of the body arrived in two small parts."""
        return len(self.parts) > 1 and (self.parts[-2][1][-5:] + self.parts[-1][1]).endswith(
            END_OF_CHUNKS
        )

    def connection_lost(self, error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(
                ConnectionError(f"the server closed the connection during a response ({error})")
            )

    async def post(self, head: bytes, body: bytes) -> tuple[float, list[tuple[float, bytes]]]:
        self.parts = []
        self.missing = None
        self.done = asyncio.get_running_loop().create_future()
        sent = time.perf_counter()
        self.transport.write(head % len(body) + body)
        await self.done
        return sent, self.parts


def share(load: Load, which: int, ready: Any, out: Any) -> None:
    """Body of one process: run its clients, then parse the responses."""
    numbers = iter(range(which, load.requests, load.processes))
    bodies = {number: load.body(number) for number in range(which, load.requests, load.processes)}
    clients = len(range(which, load.clients, load.processes))
    url = urlsplit(load.url)
    address = (url.hostname or "", url.port or 80)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: " + url.netloc.encode()
    head += b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    raw: list[tuple[int, float, list[tuple[float, bytes]]]] = []

    async def client() -> None:
        _, connection = await asyncio.get_running_loop().create_connection(Client, *address)
        unconnected[0] -= 1
        if not unconnected[0]:
            await asyncio.to_thread(ready.wait)  # until every client of every process is connected
            go.set()
        await go.wait()
        for number in numbers:
            raw.append((number, *await connection.post(head, bodies[number])))
        connection.transport.close()

    async def all_clients() -> None:
        async with asyncio.timeout(load.limit):
            await asyncio.gather(*(client() for _ in range(clients)))

    unconnected = [clients]
    go = asyncio.Event()
    try:
        asyncio.run(all_clients())
        out.send([read(load, *response) for response in raw])
    except Exception as error:
        ready.abort()
        out.send(error)


def read(load: Load, number: int, sent: float, parts: list[tuple[float, bytes]]) -> Answer:
    whole = b"".join(data for _, data in parts)
    head, _, body = whole.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0]
    if b" 200 " not in status:
        raise RuntimeError(
            f"request {number}: {status.decode()}: {body[:300].decode(errors='replace')}"
        )
    usage: dict[str, int] | None = None
    text = ""
    arrived: list[float] = []
    if load.stream:
        for when, event in events(parts):
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                text += choice["text"]
                if choice["text"]:
                    arrived.append(when)
    else:
        answer = json.loads(body)
        usage = answer["usage"]
        text = answer["choices"][0]["text"]
    if usage is None or usage["completion_tokens"] != load.tokens:
        raise RuntimeError(
            f"request {number}: expected {load.tokens} tokens, and the server counts {usage}"
        )
    arrived = arrived or [parts[-1][0]]
    return Answer(
        number,
        sent,
        arrived,
        parts[-1][0],
        usage["completion_tokens"],
        usage["prompt_tokens"],
        text,
    )


def events(parts: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The server-sent events, with the arrival of their end."""
    pending = b""
    for when, data in parts:
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield when, json.loads(line[len(b"data: ") :])


def run(load: Load) -> Figures:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(load.processes)
    pipes = [context.Pipe(duplex=False) for _ in range(load.processes)]
    for which, (_, out) in enumerate(pipes):
        context.Process(target=share, args=(load, which, ready, out), daemon=True).start()
        out.close()
    results = [receiver.recv() for receiver, _ in pipes]
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    answers: list[Answer] = sorted(answer for result in results for answer in result)
    if len(answers) != load.requests:
        raise RuntimeError(f"{len(answers)} of {load.requests} requests were answered")
    return Figures(
        seconds=max(answer.ended for answer in answers) - min(answer.sent for answer in answers),
        tokens=sum(answer.tokens for answer in answers),
        first=sorted(answer.arrived[0] - answer.sent for answer in answers),
        between=sorted(
            later - earlier for answer in answers for earlier, later in pairwise(answer.arrived)
        ),
        texts=[answer.text for answer in answers],
    )


def measure(load: Load) -> Figures:
    """Run a load in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--job"],
        input=json.dumps(asdict(load)),
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the load on {load.url} failed: see above")
    return Figures(*json.loads(done.stdout))


def main() -> None:
    if sys.argv[1:] == ["--job"]:
        print(json.dumps(run(Load(**json.load(sys.stdin)))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument(
        "--prompts", type=Path, help="a file with a JSON list of texts, or of lists of ids"
    )
    for name in ("clients", "requests", "tokens", "processes"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Load, name))
    parser.add_argument("--stream", action="store_true")
    parser.add_argument(
        "--extra", type=json.loads, default={}, help="more fields of each request, as JSON"
    )
    fields = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if "prompts" in fields:
        fields["prompts"] = json.loads(fields["prompts"].read_text())
    print(run(Load(**fields)))


if __name__ == "__main__":
    main()
