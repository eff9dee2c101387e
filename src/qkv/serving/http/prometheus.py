"""Metrics of the server for Prometheus; every application has a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost

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


class ServerMetrics:
    """Responses by route and status, and the metrics of a host's models."""

    def __init__(self, host: ModelHost) -> None:
        self.registry = registry = CollectorRegistry()
        meaning = "Responses, by route and status."
        labels = ("route", "status")
        self.responses = Counter("qkv_http_requests", meaning, labels, registry=registry)
        meaning = "Seconds spent on requests, by route."
        self.seconds = Counter("qkv_http_request_seconds", meaning, ("route",), registry=registry)
        meaning = "Requests that are being answered."
        self.running = Gauge("qkv_http_requests_running", meaning, registry=registry)
        self.registry.register(ModelCollector(host.entries))
        for histogram in host.timings.histograms:
            self.registry.register(histogram)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one response."""
        self.responses.labels(route, status).inc()
        self.seconds.labels(route).inc(seconds)


class ModelCollector(Collector):
    """The state of every model, and the counters and gauges of its engine."""

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        self.entries = entries

    def collect(self) -> Iterator[Metric]:
        """The present values, read when Prometheus asks for them."""
        states = GaugeMetricFamily(
            "qkv_model_state", "1 for the state that a model is in.", labels=("model", "state")
        )
        families: dict[str, Any] = {}

        for model, entry in list(self.entries.items()):
            for state in STATES:
                states.add_metric((model, state), entry.state == state)

            for name, value in entry.metrics().items():
                if name not in families:
                    kind = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
                    families[name] = kind(f"qkv_{name}", HELP.get(name, name), labels=("model",))

                families[name].add_metric((model,), value)

        return iter([states, *families.values()])
