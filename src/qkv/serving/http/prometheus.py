"""Numbers about the server, as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

HELP = {
    "waiting": "Requests that wait for their first step.",
    "running": "Texts that are being said.",
    "blocks_total": "Blocks of the cache of keys and values.",
    "blocks_used": "Blocks that hold something.",
    "cache_bytes": "Bytes of the cache, fixed at start.",
    "steps": "Steps that the model made.",
    "prompt_tokens": "Tokens read.",
    "said_tokens": "Tokens said.",
    "finished": "Texts that were said to their end.",
    "cancelled": "Requests whose client left.",
    "refused": "Requests that found the queue full.",
    "preempted": "Texts that had to give their cache to an older one, and began anew.",
    "shared_tokens": "Tokens of prompts that were in the cache already.",
    "failed": "Requests that failed.",
}
GAUGES = {"waiting", "running", "blocks_total", "blocks_used", "cache_bytes"}
STATES = ("loading", "ready", "failed")


class ServerCounters:
    """Answers by route and status, and the seconds they took."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()

    def add(self, route: str, status: int, seconds: float) -> None:
        self.answers[route, status] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]


def prometheus(counted: ServerCounters, running: int, served: Mapping[str, Any]) -> str:
    return "\n".join(lines(counted, running, served)) + "\n"


def lines(counted: ServerCounters, running: int, served: Mapping[str, Any]) -> Iterator[str]:
    yield from head("qkv_http_requests_total", "counter", "Answers, by route and status.")
    for (route, status), number in sorted(counted.answers.items()):
        yield f"qkv_http_requests_total{labels(route=route, status=status)} {number}"

    yield from head(
        "qkv_http_request_seconds_total", "counter", "Seconds spent answering, by route."
    )

    for route, seconds in sorted(counted.seconds.items()):
        yield f"qkv_http_request_seconds_total{labels(route=route)} {seconds:.6f}"

    yield from head("qkv_http_requests_running", "gauge", "Requests that are being answered.")
    yield f"qkv_http_requests_running {running}"
    yield from head("qkv_model_state", "gauge", "1 for the state that a model is in.")

    for name, each in served.items():
        for state in STATES:
            yield f"qkv_model_state{labels(model=name, state=state)} {int(each.state == state)}"

    numbers = {name: each.numbers() for name, each in served.items()}

    for number in dict.fromkeys(key for found in numbers.values() for key in found):
        kind = "gauge" if number in GAUGES or number not in HELP else "counter"
        full = f"qkv_{number}" + "_total" * (kind == "counter")
        yield from head(full, kind, HELP.get(number, number.replace("_", " ")))
        for name, found in numbers.items():
            if number in found:
                yield f"{full}{labels(model=name)} {found[number]:.10g}"


def head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def labels(**values: Any) -> str:
    return "{" + ",".join(f'{name}="{escaped(str(value))}"' for name, value in values.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
