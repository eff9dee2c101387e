"""POST /v1/walk returns the walk of the library, with edits and with heads off."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.model_input import logits, read
from qkv.insight.walk.head_walk import walk_head
from qkv.nn.hooks import add_hook
from support.serving_fixtures import Models
from support.small_server import Running
from support.waiting import PATIENCE

SENTENCE = "the cat sat on the mat."


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def walked(http: httpx.Client, model: str, **body: Any) -> Any:
    body = {"layer": 0, "head": 0, "text": SENTENCE, **body}
    response = http.post("/v1/walk", json={"model": model, **body})
    assert response.status_code == 200, response.text
    return response.json()


def numbers(array: Any) -> Tensor:
    """An array of the response."""
    kind = "<f4" if array["type"] == "f4" else "u1"
    values = np.frombuffer(base64.b64decode(array["data"]), kind).reshape(array["shape"])
    return torch.from_numpy(values.copy())


def after(reply: Any) -> dict[int, float]:
    return {id: probability for _, id, _, probability in reply["next"]["tokens"]}


def test_without_edits_it_is_the_plain_forward_pass(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["gpt"]
    text = read(model, tokenizer, SENTENCE)
    reply = walked(http, "gpt", layer=1, head=1)
    walk = walk_head(model, text, tokenizer, layer=1, head=1)
    for name, expected in (
        ("query", walk.equation.query),
        ("key", walk.equation.key),
        ("value", walk.equation.value),
        ("scores", walk.scores),
        ("weights", walk.weights),
        ("output", walk.output),
        ("written", walk.written),
    ):
        torch.testing.assert_close(numbers(reply["walk"][name]), expected, rtol=0, atol=1e-5)
    assert numbers(reply["walk"]["visible"]).bool().tolist() == walk.visible.tolist()

    with torch.no_grad():
        expected = logits(model, text)[0, -1].double().softmax(-1)
    assert len(reply["next"]["tokens"]) == 10
    for text, id, first, second in reply["next"]["tokens"]:
        assert isinstance(text, str)
        assert first == second == pytest.approx(float(expected[id]), rel=1e-3)
    entropy = float(torch.special.entr(expected).sum() / math.log(2))
    assert reply["next"]["entropy"]["before"] == pytest.approx(entropy, rel=1e-5)


def test_another_divisor_is_that_of_a_plain_computation(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["chat"]  # rotary positions
    text = read(model, tokenizer, SENTENCE)
    walk = walk_head(model, text, tokenizer, layer=0, head=1)
    raw = walk.equation.query.double() @ walk.equation.key.double().T
    weights = (raw / 0.5).masked_fill(~walk.visible, -math.inf).softmax(-1)

    def replace(value: Tensor, name: str) -> Tensor:
        value = value.clone()
        value[0, 1] = weights.float()
        return value

    with torch.no_grad(), add_hook(model, "stack.blocks.0.attention.weights", replace):
        expected = logits(model, text)[0, 3].double().softmax(-1)
    reply = walked(http, "chat", head=1, position=3, edits={"divisor": 0.5})
    assert reply["next"]["position"] == 3
    assert reply["walk"]["divisor"] == 0.5
    torch.testing.assert_close(
        numbers(reply["walk"]["weights"]).double(), weights, rtol=0, atol=1e-5
    )
    assert any(first != second for _, _, first, second in reply["next"]["tokens"])
    for id, probability in after(reply).items():
        assert probability == pytest.approx(float(expected[id]), rel=1e-3, abs=1e-6)


def test_strength_0_is_a_head_that_is_off(http: httpx.Client) -> None:
    off = walked(http, "gpt", layer=0, head=1, heads_off=["0.1"])
    weak = walked(http, "gpt", layer=0, head=1, edits={"strength": 0})
    shared = after(off).keys() & after(weak).keys()
    assert len(shared) >= 10
    for id in shared:
        assert after(weak)[id] == pytest.approx(after(off)[id], abs=1e-6)


def test_every_family(http: httpx.Client, models: Models) -> None:
    reply = walked(http, "bert", text="the cat [mask] on the mat", edits={"lift_mask": True})
    assert reply["next"]["position"] == 3  # [CLS] the cat [MASK]
    reply = walked(http, "tuned", text="the cat sat")
    assert reply["walk"]["score"] == "scaled_dot"
    body = {"text": None, "source": "the cat sat", "target": "the mat"}
    for kind in ("encoder", "decoder", "cross"):
        reply = walked(http, "translator", kind=kind, layer=1, **body)
        assert reply["walk"]["kind"] == kind
        assert (reply["walk"]["lens"] is None) == (kind == "encoder")
        assert reply["next"] is not None
    edits = {"weights": {"0": [1.0, 0.0, 0.0, 0.0]}, "swap_keys": [[0, 1]]}
    reply = walked(http, "rnn", edits=edits, **body)
    assert reply["walk"]["score"] == "additive"
    assert numbers(reply["walk"]["weights"])[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert reply["walk"]["written"] is reply["walk"]["lens"] is None

    model, tokenizer = models["gpt"]
    ids = list(read(model, tokenizer, SENTENCE).text.ids)
    assert walked(http, "gpt", text=ids)["next"] == walked(http, "gpt")["next"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"layer": 2}, "layer: expected 0 to 1, not 2"),
        ({"head": 2}, "head: expected 0 to 1, not 2"),
        ({"position": 99}, "position: expected 0 to"),
        ({"kind": "cross"}, "kind: this model has self, not cross"),
        ({"edits": {"move": {"0": 64}}}, "move: expected a position of 0 to 63, not 64"),
        ({"edits": {"weights": {"0": [1]}}}, "weights: expected"),
        ({"edits": {"divisor": 0}}, "divisor"),
        ({"edits": {"unknown": 0}}, "unknown"),
        ({"edits": {"divisor": "1"}}, "edits: it should be a valid number (at divisor)"),
        ({"edits": {"lift_mask": 1}}, "edits: it should be a valid boolean (at lift_mask)"),
        ({"edits": {"strength": True}}, "edits: it should be a valid number (at strength)"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(
    http: httpx.Client, body: dict[str, Any], message: str
) -> None:
    body = {"model": "gpt", "layer": 0, "head": 0, "text": SENTENCE, **body}
    response = http.post("/v1/walk", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_long_text_is_refused_and_has_no_walk_on_the_page(http: httpx.Client) -> None:
    body = {"model": "long", "text": "the cat " * 200}
    response = http.post("/v1/walk", json={**body, "layer": 0, "head": 0})
    assert response.status_code == 400
    assert "256 tokens" in response.json()["error"]["message"]
    data = http.post("/v1/attention", json={**body, "layers": [0]}).json()["data"]
    assert data["walk"] is None
    assert "256 tokens" in data["lacking"]["walk"]
    data = http.post("/v1/attention", json={"model": "long", "text": "the cat"}).json()["data"]
    assert data["walk"] == {"self": {"heads": None}}
    assert "walk" not in data["lacking"]


def test_heads_off_elsewhere_change_the_prediction_before(
    http: httpx.Client, models: Models
) -> None:
    model, tokenizer = models["gpt"]
    reply = walked(http, "gpt", heads_off=["1.0"])
    with torch.no_grad(), apply_edits(model, [Edit(1, 0)]):
        expected = logits(model, read(model, tokenizer, SENTENCE))[0, -1].double().softmax(-1)
    for _, id, first, _ in reply["next"]["tokens"]:
        assert first == pytest.approx(float(expected[id]), rel=1e-3)
