"""Every field of a completion request has the effect of the library's argument."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from qkv.generation.text import complete, prompt_ids
from qkv.models import GPT, GPTConfig
from qkv.serving.http.middleware import AccessRules
from qkv.serving.model_host import ModelHost
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from support.deadlines import DEADLINES
from support.serving_fixtures import Models
from support.small_server import SMALL, Running, hosting, running
from support.waiting import PATIENCE

PROMPT = "the cat"


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def completion(http: httpx.Client, **body: Any) -> Any:
    response = http.post("/v1/completions", json={"model": "gpt", "prompt": PROMPT, **body})
    assert response.status_code == 200, response.text
    return response.json()


def stream_events(http: httpx.Client, **body: Any) -> list[Any]:
    text = http.post(
        "/v1/completions", json={"model": "gpt", "prompt": PROMPT, "stream": True, **body}
    ).text
    *events, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def texts(reply: Any) -> list[str]:
    return [choice["text"] for choice in reply["choices"]]


@pytest.mark.parametrize(
    ("field", "value", "how"),
    [
        ("temperature", 0.3, {"temperature": 0.3}),
        ("temperature", 0, {"temperature": 0}),
        ("top_p", 0.3, {"top_p": 0.3}),
        ("top_k", 2, {"top_k": 2}),
        ("min_p", 0.5, {"min_p": 0.5}),
        ("repetition_penalty", 3.0, {"repetition": 3.0}),
        ("frequency_penalty", 5.0, {"frequency": 5.0}),
        ("presence_penalty", 9.0, {"presence": 9.0}),
        ("min_tokens", 10, {"minimum": 10}),
        ("max_tokens", 5, {"length": 5}),
        ("stop", ["e", "a"], {"stop": ["e", "a"]}),
        ("stop", "e", {"stop": ["e"]}),
        ("n", 3, {"samples": 3}),
    ],
)
def test_a_field_has_the_effect_of_the_library_argument(
    http: httpx.Client, models: Models, field: str, value: Any, how: dict[str, Any]
) -> None:
    def expected(seed: int, **more: Any) -> list[str]:
        return complete(*models["gpt"], [PROMPT], **{"length": 10, "seed": seed, **more})

    # A seed for which the field makes a difference
    seed = next(seed for seed in range(100) if expected(seed) != expected(seed, **how))
    reply = completion(http, **{"max_tokens": 10, "seed": seed, field: value})
    assert texts(reply) == expected(seed, **how)
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(reply["choices"])))
    streamed = [""] * len(reply["choices"])
    for event in stream_events(http, **{"max_tokens": 10, "seed": seed, field: value}):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts(reply)


def test_a_negative_seed_is_a_seed_too(http: httpx.Client, models: Models) -> None:
    reply = [texts(completion(http, seed=seed, max_tokens=6)) for seed in (-1, -1, -(2**63), 1)]
    assert reply[0] == reply[1] == complete(*models["gpt"], [PROMPT], length=6, seed=2**63 - 1)
    assert reply[2] == complete(*models["gpt"], [PROMPT], length=6, seed=0)
    assert len({str(item) for item in reply}) == 3


def test_a_developer_message_and_max_completion_tokens(http: httpx.Client, models: Models) -> None:
    """The role developer is system, and max_completion_tokens takes precedence."""
    model, tokenizer = models["chat"]
    ids = encode_chat(
        tokenizer,
        [Message(role="system", content="be brief"), Message(role="user", content=PROMPT)],
    )
    expected = complete(
        model, tokenizer, [ids], length=6, seed=3, samples=2, end=end_of_turn_ids(tokenizer)
    )
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
    ]
    body = {
        "model": "chat",
        "messages": messages,
        "max_completion_tokens": 6,
        "max_tokens": 9,
        "seed": 3,
        "n": 2,
    }
    response = http.post("/v1/chat/completions", json=body)
    assert [choice["message"]["content"] for choice in response.json()["choices"]] == expected
    assert response.json()["usage"]["prompt_tokens"] == len(ids)


def test_the_chunks_of_a_stream_add_up_to_the_response(http: httpx.Client, models: Models) -> None:
    """Tokens, logprobs and usage; a chunk may have several tokens."""
    fields: dict[str, Any] = {"n": 2, "seed": 4, "max_tokens": 8, "tokens": True, "logprobs": 2}
    whole = completion(http, **fields)
    *chunks, last = stream_events(http, **fields, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert chunks[0]["prompt_tokens"] == whole["prompt_tokens"]
    assert [item["id"] for item in whole["prompt_tokens"]] == prompt_ids(models["gpt"][1], PROMPT)
    assert all("prompt_tokens" not in chunk for chunk in chunks[1:])
    for index, expected in enumerate(whole["choices"]):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [token for choice in mine for token in choice["tokens"]] == expected["tokens"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [item for choice in mine for item in choice["logprobs"][name]] == expected[
                "logprobs"
            ][name]
        assert [choice["reason"] for choice in mine if choice["reason"]] == [expected["reason"]]


def test_echo_repeats_the_prompt_in_every_sample(http: httpx.Client, models: Models) -> None:
    _, tokenizer = models["gpt"]
    ids = prompt_ids(tokenizer, PROMPT)
    fields: dict[str, Any] = {"n": 3, "seed": 4, "max_tokens": 4, "echo": True, "logprobs": 0}
    reply = completion(http, **fields)
    assert texts(reply) == [
        PROMPT + text for text in complete(*models["gpt"], [PROMPT], length=4, seed=4, samples=3)
    ]
    assert reply["usage"]["completion_tokens"] == 12
    for choice in reply["choices"]:
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(ids) + 4
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["text_offset"][: len(ids)] == [0, 3][: len(ids)]
    streamed = [""] * 3
    for event in stream_events(http, **fields):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts(reply)


# The end


def test_context_and_length_are_different_reasons(http: httpx.Client, models: Models) -> None:
    prompt = prompt_ids(models["gpt"][1], PROMPT) * 29
    room = 64 - len(prompt) + 1
    for wanted, reason in ((room + 1, "context"), (room, "length")):
        reply = completion(http, prompt=prompt, max_tokens=wanted, min_tokens=1000)
        assert (reply["choices"][0]["reason"], reply["choices"][0]["finish_reason"]) == (
            reason,
            "length",
        )
        assert reply["usage"]["completion_tokens"] == room


def test_the_deadline_of_the_server_is_an_upper_bound(host: ModelHost) -> None:
    """A longer timeout of the client has no effect; the tokens so far are returned."""
    fields = {
        "model": "long",
        "prompt": PROMPT,
        "max_tokens": 4000,
        "min_tokens": 4000,
        "timeout": 80_000,
    }
    with running(host) as server:
        for seconds in DEADLINES:
            server.app.app.state.rules = AccessRules(deadline=seconds)  # type: ignore[attr-defined]
            response = httpx.post(f"{server.url}/v1/completions", json=fields, timeout=PATIENCE)
            if response.status_code != 408:
                break
    (choice,) = response.json()["choices"]
    assert (choice["reason"], choice["finish_reason"]) == ("deadline", "length")
    assert choice["text"]


# Tokens joined by spaces, and characters of several bytes


@pytest.fixture(scope="module")
def word_client(models: Models) -> Iterator[httpx.Client]:
    """A client of a GPT whose tokens are words."""
    tokenizer = models["bert"][1]
    torch.manual_seed(1)
    host = hosting(
        {
            "gpt": (
                GPT(GPTConfig(vocabulary=tokenizer.vocabulary, context=64, **SMALL)).eval(),
                tokenizer,
            )
        }
    )
    with running(host) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http
    host.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_text_after_an_echo_continues_the_prompt(
    word_client: httpx.Client, models: Models, stream: bool
) -> None:
    tokenizer = models["bert"][1]
    fields: dict[str, Any] = {
        "prompt": "the cat",
        "max_tokens": 6,
        "min_tokens": 6,
        "seed": 1,
        "echo": True,
        "logprobs": 0,
    }
    replies = (
        stream_events(word_client, **fields) if stream else [completion(word_client, **fields)]
    )
    events = [choice for reply in replies for choice in reply["choices"]]
    text = "".join(choice["text"] for choice in events)
    names = [name for choice in events for name in choice["logprobs"]["tokens"]]
    offsets = [offset for choice in events for offset in choice["logprobs"]["text_offset"]]
    ids = [tokenizer.inner.token_to_id(name.strip()) for name in names]
    assert text == tokenizer.decode(ids)
    assert text.startswith("the cat ")
    without = completion(word_client, **{**fields, "logprobs": None})["choices"][0]["text"]
    assert without == text
    for name, first, last in zip(names, offsets, [*offsets[1:], len(text)], strict=True):
        special = tokenizer.inner.token_to_id(name) in tokenizer.special  # not part of the text
        assert text[first:last].strip() == ("" if special else name.strip())


def test_text_offsets_after_invalid_bytes(http: httpx.Client, models: Models) -> None:
    """An incomplete character is one replacement character; its further bytes share its offset."""
    inner = models["gpt"][1].inner
    first, second, third, letter = (
        inner.token_to_id(sign) for sign in "âĤ¬a"
    )  # the three bytes of €, and a letter
    assert None not in (first, second, third, letter)

    def read(*ids: int) -> tuple[str, list[int]]:
        choice = completion(http, prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
        return choice["text"], choice["logprobs"]["text_offset"]

    assert read(letter, first, letter, letter) == ("a\ufffdaa", [0, 1, 2, 3])
    assert read(letter, first, second, third, letter) == ("a€a", [0, 1, 1, 1, 2])
    assert read(letter, first, second, letter) == ("a\ufffda", [0, 1, 1, 2])
    assert read(letter, third, letter) == ("a\ufffda", [0, 1, 2])
    assert read(letter, first) == ("a\ufffd", [0, 1])
