"""Metrics of the server in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

HELP = {
    "waiting": "Requests that wait for their first step.",
    "running": "Sequences that are being generated.",
    "blocks_total": "Blocks of the KV cache.",
    "blocks_used": "Blocks of the KV cache in use.",
    "cache_bytes": "Bytes of the KV cache, fixed at start.",
    "steps": "Steps of the engine.",
    "prompt_tokens": "Prompt tokens computed.",
    "said_tokens": "Tokens generated.",
    "finished": "Sequences finished.",
    "cancelled": "Requests whose client disconnected.",
    "refused": "Requests refused because the queue was full.",
    "preempted": "Sequences preempted by older ones and recomputed.",
    "shared_tokens": "Prompt tokens found in the prefix cache.",
    "failed": "Requests that failed.",
}
GAUGES = {"waiting", "running", "blocks_total", "blocks_used", "cache_bytes"}
STATES = ("loading", "ready", "failed")


class ServerCounters:
    """Responses by route and status, and the seconds they took."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count one response."""
        self.responses[route, status] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]


def prometheus(counters: ServerCounters, running: int, entries: Mapping[str, Any]) -> str:
    """All metrics as text: of the server and of the models by name."""
    lines = [*server_lines(counters, running), *model_lines(entries)]
    return "\n".join(lines) + "\n"


def server_lines(counters: ServerCounters, running: int) -> Iterator[str]:
    name = "qkv_http_requests_total"
    yield from header(name, "counter", "Responses, by route and status.")
    for (route, status), count in sorted(counters.responses.items()):
        yield f"{name}{labels(route=route, status=status)} {count}"

    name = "qkv_http_request_seconds_total"
    yield from header(name, "counter", "Seconds spent on requests, by route.")
    for route, seconds in sorted(counters.seconds.items()):
        yield f"{name}{labels(route=route)} {seconds:.6f}"

    name = "qkv_http_requests_running"
    yield from header(name, "gauge", "Requests that are being answered.")
    yield f"{name} {running}"


def model_lines(entries: Mapping[str, Any]) -> Iterator[str]:
    yield from header("qkv_model_state", "gauge", "1 for the state that a model is in.")
    for model, entry in entries.items():
        for state in STATES:
            active = int(entry.state == state)
            yield f"qkv_model_state{labels(model=model, state=state)} {active}"

    # Metrics by name, then by model
    values: dict[str, dict[str, float]] = {}
    for model, entry in entries.items():
        for metric, value in entry.metrics().items():
            values.setdefault(metric, {})[model] = value

    for metric, by_model in values.items():
        name = f"qkv_{metric}"
        kind = "gauge"
        if metric in HELP and metric not in GAUGES:
            kind = "counter"
            name += "_total"

        yield from header(name, kind, HELP.get(metric, metric.replace("_", " ")))
        for model, value in by_model.items():
            yield f"{name}{labels(model=model)} {value:.10g}"


def header(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def labels(**values: Any) -> str:
    pairs = [f'{name}="{escaped(str(value))}"' for name, value in values.items()]
    return "{" + ",".join(pairs) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
