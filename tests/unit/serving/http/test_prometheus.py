"""GET /metrics: names that dashboards use, histograms, and a registry per application."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import generate_latest

from qkv.serving.http.prometheus import ServerMetrics
from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost
from support.small_server import Running
from support.waiting import PATIENCE


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def test_metrics_are_prometheus_text(http: httpx.Client) -> None:
    ask = {"model": "gpt", "prompt": "the cat", "max_tokens": 3, "min_tokens": 3}
    assert http.post("/v1/completions", json=ask).status_code == 200
    response = http.get("/metrics")
    text = response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    metrics = samples_of(text)
    assert metrics['qkv_http_requests_total{route="/v1/completions",status="200"}'] >= 1
    assert metrics['qkv_http_request_seconds_total{route="/v1/completions"}'] > 0
    assert metrics["qkv_http_requests_running"] == 1
    assert metrics['qkv_model_state{model="gpt",state="ready"}'] == 1
    assert metrics['qkv_said_tokens_total{model="gpt"}'] >= 3
    assert metrics['qkv_blocks_used{model="gpt"}'] == 0
    assert text.count("# TYPE qkv_said_tokens_total counter") == 1
    assert text.count("# TYPE qkv_blocks_total gauge") == 1


def samples_of(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_have_histograms_of_requests_and_steps(http: httpx.Client) -> None:
    def counts() -> dict[str, float]:
        samples = samples_of(http.get("/metrics").text)
        names = ("queue_seconds", "time_to_first_token_seconds", "time_per_token_seconds")
        found = {name: samples.get(f'qkv_{name}_count{{model="gpt"}}', 0) for name in names}
        found["rows"] = samples.get('qkv_batch_size_sum{model="gpt"}', 0)
        return found

    before = counts()
    for stream in (False, True):
        ask = {"model": "gpt", "prompt": "the cat", "max_tokens": 4, "min_tokens": 4}
        assert http.post("/v1/completions", json={**ask, "stream": stream}).status_code == 200
    after = counts()
    assert {name: after[name] - before[name] for name in after} == {
        "queue_seconds": 2,
        "time_to_first_token_seconds": 2,
        "time_per_token_seconds": 2,
        "rows": 8,
    }


def test_two_applications_of_one_host_have_metrics_of_their_own(host: ModelHost) -> None:
    one, other = ServerMetrics(host), ServerMetrics(host)
    one.count("/", 200, 0.5)
    text = generate_latest(one.registry).decode()
    assert 'qkv_http_requests_total{route="/",status="200"} 1.0' in text
    assert "route=" not in generate_latest(other.registry).decode()


def test_the_name_of_a_model_is_escaped() -> None:
    host = ModelHost()
    name = 'a "name" \\ and\na line'
    host.entries[name] = ModelEntry(name)
    text = generate_latest(ServerMetrics(host).registry).decode()
    assert r'qkv_model_state{model="a \"name\" \\ and\na line",state="loading"} 1.0' in text
