"""Effects, explanations and chats' templates: the routes return what the library computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from qkv.generation.generate import generate
from qkv.generation.text import prompt_ids
from qkv.insight.attribute.answer_attribution import answer_contributions
from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.model_input import read
from qkv.insight.intervene.edit_effects import edit_effects
from qkv.insight.intervene.steering import steer, steering_direction
from qkv.serving.routes.effects import GreedyText
from qkv.text.chat_template import Message, encode_chat
from support.serving_fixtures import Models
from support.small_server import Running
from support.waiting import PATIENCE

SENTENCE = "the cat sat on the mat."
PROMPTS = {"from": "the cat sat", "to": "mice ran"}


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def reply_of(http: httpx.Client, route: str, **body: Any) -> Any:
    response = http.post(f"/v1/{route}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(http: httpx.Client, route: str, **body: Any) -> str:
    response = http.post(f"/v1/{route}", json=body)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_effects_equal_two_passes(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["gpt"]
    ids = prompt_ids(tokenizer, SENTENCE)
    row = torch.tensor([ids])
    steering = {"layer": 1, "strength": 1.5, **PROMPTS}
    heads = {"heads": ["0.1", "1.*"], "strength": 0.5}
    reply = reply_of(
        http, "effects", model="gpt", text=SENTENCE, **heads, steering=steering, top=4, length=5
    )
    edits = [Edit(0, 1, 0.5), Edit(1, None, 0.5)]
    direction = steering_direction(model, tokenizer, PROMPTS["to"], PROMPTS["from"], 1)
    with torch.no_grad():
        before = model(row)[0].double()
        plain = generate(model, ids, length=5, temperature=0, end=tokenizer.end)
        with apply_edits(model, edits), steer(model, direction, 1, 1.5):
            after = model(row)[0].double()
            changed = generate(model, ids, length=5, temperature=0, end=tokenizer.end)

    for side, logits, text in (("before", before, plain), ("after", after, changed)):
        logprob = logits.log_softmax(-1)
        expected = logprob[:-1].gather(1, row[0, 1:].unsqueeze(1))[:, 0]
        assert reply["tokens"][0][side] is None
        assert [token[side] for token in reply["tokens"][1:]] == pytest.approx(
            expected.tolist(), abs=1e-4
        )
        listed = [token["id"] for token in reply["next"]]
        assert set(logits[-1].topk(4).indices.tolist()) <= set(listed)
        probability = logprob[-1].exp()
        assert [token[side] for token in reply["next"]] == pytest.approx(
            probability[listed].tolist(), abs=1e-5
        )
        assert [token["id"] for token in reply["texts"][side]] == text

    p, q = before.log_softmax(-1), after.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert [token["kl"] for token in reply["tokens"]] == pytest.approx(kl.tolist(), abs=1e-4)
    assert reply["kl"] == reply["tokens"][-1]["kl"]
    change = sum(token["after"] - token["before"] for token in reply["tokens"][1:])
    assert reply["change"] == pytest.approx(change, abs=1e-6)
    again = reply_of(http, "effects", model="gpt", text=ids, heads_off=["0.1"], strength=1)
    assert again["change"] == pytest.approx(0, abs=1e-9)
    assert again["texts"] is None


def test_a_continuation_in_jobs_of_a_few_tokens(models: Models) -> None:
    model, tokenizer = models["gpt"]
    reading = read(model, tokenizer, SENTENCE)
    effect = edit_effects(model, tokenizer, reading, [Edit(0, 1), Edit(1, 0)], length=0)
    ids = list(reading.text.ids)
    with torch.no_grad():
        plain = model(torch.tensor([ids]))
    text = GreedyText(ids, 10, effect)
    counts = []
    while not text.ended:
        text.advance(model, tokenizer)
        counts.append(len(text.new_ids))
        with torch.no_grad():
            assert torch.equal(model(torch.tensor([ids])), plain)  # no hook is left between jobs

    with apply_edits(model, effect.edits):
        expected = generate(model, ids, length=10, temperature=0, end=tokenizer.end)
    assert text.new_ids == expected
    assert counts == [min(4 * job, len(expected)) for job in range(1, len(counts) + 1)]
    assert len(counts) > 1

    # The end of the context ends it, too.
    full = [5] * (model.config.context - 6)
    text = GreedyText(full, 48, None)
    while not text.ended:
        text.advance(model, tokenizer)
    assert text.new_ids == generate(model, full, length=48, temperature=0, end=tokenizer.end)
    assert len(text.new_ids) < 48


def test_invalid_effects(http: httpx.Client) -> None:
    body = {"model": "gpt", "text": SENTENCE}
    steering = {"layer": 2, **PROMPTS}
    assert "heads: expected one or more, or steering" in refusal(http, "effects", **body)
    assert "expected a head of 0 to 1, not 5" in refusal(http, "effects", **body, heads=["0.5"])
    wrong = [
        (steering, "steering: expected 0 to 1, not 2 (at layer)"),
        (
            {**steering, "layer": 0, "from": " "},
            "steering: it is empty; expected a prompt (at from)",
        ),
        ({**steering, "layer": 0, "to": "the " * 100}, "steering: 101 tokens are more than"),
    ]
    for fields, message in wrong:
        response = http.post("/v1/effects", json={**body, "steering": fields})
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "steering"
    long = {"model": "long", "text": [5] * 513, "heads": ["0.0"]}
    assert "limited to 512 tokens, not 513" in refusal(http, "effects", **long)
    assert "which does not continue a text" in refusal(
        http, "effects", model="bert", text="the cat", heads=["0.0"]
    )


def test_answers_are_explained(http: httpx.Client, models: Models) -> None:
    text = "the cat sat on the mat"
    reply = reply_of(http, "classify", model="tuned", text=[text], explain=True)
    explanation = reply["answers"][0]["explanation"]
    expected = answer_contributions(*models["tuned"], text)
    assert [token["id"] for token in explanation["tokens"]] == list(expected.ids)
    assert explanation["contributions"][0] == pytest.approx(
        expected.contributions[0].tolist(), rel=1e-4, abs=1e-5
    )
    assert sum(explanation["shares"][0]) == pytest.approx(1)
    plain = reply_of(http, "classify", model="tuned", text=[text])
    assert "explanation" not in plain["answers"][0]
    assert "explain: expected 8 texts or fewer" in refusal(
        http, "classify", model="tuned", text=[text] * 9, explain=True
    )


def test_a_chat_as_the_model_reads_it(http: httpx.Client, models: Models) -> None:
    tokenizer = models["chat"][1]
    messages = [Message(role="user", content="hello")]
    expected = encode_chat(tokenizer, messages)
    reply = reply_of(http, "tokenize", model="chat", messages=messages)
    assert [token["id"] for token in reply["tokens"]] == expected
    added = {id for id, _ in tokenizer.added_tokens.values()}
    assert [token["special"] for token in reply["tokens"]] == [id in added for id in expected]
    assert any(token["special"] for token in reply["tokens"])
    assert "has no chat template" in refusal(http, "tokenize", model="gpt", messages=messages)
    assert "expected one of text, ids and messages" in refusal(
        http, "tokenize", model="chat", text="a", messages=messages
    )


def test_an_answer_goes_on_after_its_first_tokens(http: httpx.Client) -> None:
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "tokens": True,
        "top_logprobs": 3,
    }
    whole = reply_of(http, "chat/completions", **body, max_tokens=8)["choices"][0]["tokens"]
    first = [token["id"] for token in whole[:3]]
    more = reply_of(http, "chat/completions", **body, max_tokens=5, answer_ids=first)
    rest = more["choices"][0]["tokens"]
    assert [token["id"] for token in rest] == [token["id"] for token in whole[3:]]
    assert [len(token["alternatives"]) for token in rest] == [3] * len(rest)
    assert "answer_ids: expected ids below" in refusal(
        http, "chat/completions", **body, answer_ids=[10**6]
    )
