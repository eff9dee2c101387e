"""OpenAI's official client, unchanged, gets what qkv's own functions return, streamed or not."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch

from qkv.generation.text import complete, prompt_ids
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from support.serving_fixtures import Models
from support.small_server import Running
from support.waiting import PATIENCE

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the cat sat on the mat."},
]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:
        yield client


def expected_texts(models: Models, prompt: str, **options: Any) -> list[str]:
    model, tokenizer = models["gpt"]
    return complete(model, tokenizer, [prompt], **options)


def joined(stream: Any) -> str:
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


# Models


def test_models_are_listed_with_their_abilities(client: openai.OpenAI) -> None:
    listed = list(client.models.list())
    reply = {model.id: (model.model_extra or {})["qkv"] for model in listed}
    assert list(reply) == ["gpt", "chat", "bert", "translator", "long", "rnn", "tuned"]
    assert reply["gpt"]["can"] == ["complete", "attention", "tokenize"]
    assert "chat" in reply["chat"]["can"]
    assert reply["bert"]["can"] == ["fill", "embed", "attention", "tokenize"]
    assert reply["translator"]["kinds"] == ["encoder", "decoder", "cross"]
    assert reply["tuned"]["labels"] == ["bad", "good", "so so"]
    assert (
        reply["gpt"] | {"context": 64, "layers": 2, "heads": 2, "family": "gpt", "state": "ready"}
        == reply["gpt"]
    )
    assert client.models.retrieve("gpt").id == "gpt"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="model: 'nobody' does not exist") as error:
        client.completions.create(model="nobody", prompt="the cat")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


# Completions


def test_a_completion_equals_the_library_function(client: openai.OpenAI, models: Models) -> None:
    fields: dict[str, Any] = {"temperature": 0.9, "seed": 7}
    reply = client.completions.create(
        model="gpt", prompt="the cat", max_tokens=12, top_p=0.9, **fields
    )
    assert [reply.choices[0].text] == expected_texts(
        models, "the cat", length=12, top_p=0.9, **fields
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.object == "text_completion"
    read = len(prompt_ids(models["gpt"][1], "the cat"))
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (read, 12)
    assert reply.usage.total_tokens == read + 12


def test_a_stream_has_the_same_text_and_the_usage(client: openai.OpenAI, models: Models) -> None:
    chunks = list(
        client.completions.create(
            model="gpt",
            prompt="the cat",
            max_tokens=12,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [joined(chunks)] == expected_texts(models, "the cat", length=12, seed=7)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_samples_of_several_prompts(client: openai.OpenAI, models: Models) -> None:
    fields: dict[str, Any] = {
        "model": "gpt",
        "prompt": ["the cat", "mice"],
        "n": 3,
        "max_tokens": 6,
        "seed": 5,
    }
    reply = client.completions.create(**fields)
    expected = [
        text
        for prompt in ("the cat", "mice")
        for text in expected_texts(models, prompt, length=6, seed=5, samples=3)
    ]
    assert [choice.text for choice in reply.choices] == expected
    assert [choice.index for choice in reply.choices] == list(range(6))
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 36
    streamed = [""] * 6
    for chunk in client.completions.create(**fields, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == expected


def test_a_prompt_of_ids_and_an_empty_one(client: openai.OpenAI, models: Models) -> None:
    ids = prompt_ids(models["gpt"][1], "the cat")
    reply = client.completions.create(model="gpt", prompt=ids, max_tokens=6, seed=1)
    assert [reply.choices[0].text] == expected_texts(models, "the cat", length=6, seed=1)
    begun = client.completions.create(model="gpt", prompt="", max_tokens=6, seed=1)
    assert [begun.choices[0].text] == expected_texts(models, "", length=6, seed=1)


def test_a_stop_string_is_never_returned(client: openai.OpenAI, models: Models) -> None:
    (whole,) = expected_texts(models, "the cat", length=20, seed=7)
    stop = whole[5:7]
    (expected,) = expected_texts(models, "the cat", length=20, seed=7, stop=[stop])
    fields: dict[str, Any] = {
        "model": "gpt",
        "prompt": "the cat",
        "max_tokens": 20,
        "seed": 7,
        "stop": stop,
    }
    reply = client.completions.create(**fields)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (expected, "stop")
    assert stop not in expected
    assert joined(client.completions.create(**fields, stream=True)) == expected


def test_logprobs_are_those_of_the_model(client: openai.OpenAI, models: Models) -> None:
    model, tokenizer = models["gpt"]
    reply = client.completions.create(
        model="gpt", prompt="the cat", max_tokens=5, seed=2, logprobs=3, echo=True
    )
    choice = reply.choices[0]
    assert choice.text.startswith("the cat")
    assert choice.text == "the cat" + expected_texts(models, "the cat", length=5, seed=2)[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    tokens = client.completions.create(
        model="gpt", prompt="the cat", max_tokens=5, seed=2, logprobs=3, extra_body={"tokens": True}
    ).choices[0]
    assert tokens.model_extra is not None
    items = tokens.model_extra["tokens"]
    assert "".join(item["text"] for item in items) == tokens.text.rstrip("�")
    ids = [*prompt_ids(tokenizer, "the cat"), *(item["id"] for item in items)]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).log_softmax(-1)[0]  # (T, V)
    own_logprobs = [float(expected[position, id]) for position, id in enumerate(ids[1:])]
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(own_logprobs, abs=1e-4)
    assert logprobs.top_logprobs is not None
    for position, top in enumerate(logprobs.top_logprobs[1:]):
        assert len(top) <= 3
        assert max(top.values()) == pytest.approx(float(expected[position].max()), abs=1e-4)
    for item, row in zip(items, expected[len(ids) - 6 : -1], strict=True):
        assert [other["id"] for other in item["alternatives"]] == row.topk(3).indices.tolist()
        assert item["alternatives"][0]["probability"] == pytest.approx(
            float(row.max().exp()), rel=1e-3
        )


def test_only_the_prompt_can_be_scored(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="gpt", prompt="the cat sat", max_tokens=0, logprobs=0, echo=True
    )
    choice = reply.choices[0]
    assert choice.text == "the cat sat"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == 4
    assert choice.logprobs.text_offset == [0, 3, 7, 9]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 0


def test_an_ablated_head_changes_the_text(client: openai.OpenAI) -> None:
    def greedy_text(**more: Any) -> str:
        fields: dict[str, Any] = {
            "model": "gpt",
            "prompt": "the cat",
            "max_tokens": 12,
            "temperature": 0,
        }
        return client.completions.create(**fields, extra_body=more).choices[0].text

    assert greedy_text(heads_off=["0.*", "1.*"]) != greedy_text()
    assert greedy_text(heads_off=[]) == greedy_text()


def test_invalid_fields_are_bad_requests(client: openai.OpenAI) -> None:
    def refused(field: str, keyword: str, **fields: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=f"{field}.*{keyword}") as error:
            client.completions.create(**{"model": "gpt", "prompt": "the cat", **fields})
        assert error.value.param == field

    refused("prompt", "context of 64", prompt="the cat " * 100)
    refused("temperature", "greater than or equal to 0", temperature=-1)
    refused("n", "prompts times n", prompt=["a"] * 100, n=2)
    refused("best_of", "n", best_of=3)
    refused("heads_off", "layer of 0 to 1", extra_body={"heads_off": ["5.0"]})
    refused("heads_off", "head of 0 to 1", extra_body={"heads_off": ["0.7"]})
    refused("prompt", "vocabulary", prompt=[5, 100_000])
    refused("max_token", "did you mean max_tokens", extra_body={"max_token": 3})
    refused("logit_bias", "not supported", logit_bias={"5": 1})
    refused("model", "bert is a BERT", model="bert")


# Chats


def test_a_chat_equals_the_library_function(client: openai.OpenAI, models: Models) -> None:
    model, tokenizer = models["chat"]
    ids = encode_chat(
        tokenizer,
        [Message(role=message["role"], content=message["content"]) for message in MESSAGES],
    )
    (expected,) = complete(
        model, tokenizer, [ids], length=16, seed=3, end=end_of_turn_ids(tokenizer)
    )
    fields: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "max_tokens": 16, "seed": 3}
    reply = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", expected)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(ids)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == reply.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    content = bytes(byte for token in choice.logprobs.content for byte in token.bytes or [])
    assert content.decode("utf-8", "replace") == expected
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_a_model_without_a_template_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="gpt has no chat template"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hello"}])
    with pytest.raises(
        openai.BadRequestError, match=r"messages: it should be 'system'.* \(at 0.role\)"
    ):
        client.chat.completions.create(
            model="chat", messages=[{"role": "tool", "content": "x", "tool_call_id": "y"}]
        )


def test_a_message_can_be_sent_back_as_received(client: openai.OpenAI) -> None:
    """As an object, and as a dictionary with all fields of OpenAI's messages."""
    fields: dict[str, Any] = {"model": "chat", "max_tokens": 4, "seed": 1}
    reply = client.chat.completions.create(**fields, messages=MESSAGES).choices[0].message
    for message in (
        reply,
        reply.model_dump(),
        {**reply.model_dump(), "annotations": [], "tool_calls": []},
    ):
        assert (
            client.chat.completions.create(**fields, messages=[*MESSAGES, message, MESSAGES[1]])
            .choices[0]
            .message.content
        )


def test_fields_without_effect_and_unsupported_fields(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "chat",
        "messages": MESSAGES,
        "max_tokens": 2,
        "temperature": 0,
    }
    plain = client.chat.completions.create(**fields).choices[0].message.content
    without_effect: dict[str, Any] = {
        "service_tier": "auto",
        "prompt_cache_key": "x",
        "safety_identifier": "x",
        "reasoning_effort": "low",
        "verbosity": "low",
        "store": True,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "tool_choice": "none",
        "tools": [],
        "response_format": {"type": "text"},
        "user": "x",
    }
    assert (
        client.chat.completions.create(**fields, **without_effect).choices[0].message.content
        == plain
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="tools is not supported"):
        client.chat.completions.create(**fields, tools=[tool])
    with pytest.raises(openai.BadRequestError, match="functions is not supported"):
        client.chat.completions.create(**fields, functions=[tool["function"]])
    with pytest.raises(
        openai.BadRequestError, match=r"response_format: it should be 'text' \(at type\)"
    ):
        client.chat.completions.create(**fields, response_format={"type": "json_object"})


# Embeddings


def test_embeddings_are_the_normalised_mean_over_tokens(
    client: openai.OpenAI, models: Models
) -> None:
    model, tokenizer = models["bert"]
    texts = ["the cat sat", "mice", "the teacher said the mice ran"]
    reply = client.embeddings.create(
        model="bert", input=texts
    )  # in base64, which the client asks for by itself
    for text, item in zip(texts, reply.data, strict=True):
        row = torch.tensor([[tokenizer.start, *tokenizer.encode(text), tokenizer.end]])
        with torch.no_grad():
            mean = model.hidden(row)[0].mean(0)
        assert item.embedding == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)
    floats = client.embeddings.create(model="bert", input=texts, encoding_format="float")
    assert [item.embedding for item in floats.data] == [
        pytest.approx(item.embedding) for item in reply.data
    ]
    assert reply.usage.prompt_tokens == sum(len(tokenizer.encode(text)) + 2 for text in texts)
    raw: Any = (
        client.embeddings.create(model="bert", input="mice", encoding_format="base64")
        .data[0]
        .embedding
    )
    numbers = struct.unpack("<16f", base64.b64decode(raw)) if isinstance(raw, str) else raw
    assert list(numbers) == pytest.approx(reply.data[1].embedding)


def test_invalid_embedding_requests(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="model: gpt is a GPT"):
        client.embeddings.create(model="gpt", input="the cat")
    with pytest.raises(
        openai.BadRequestError, match=r"input: .* more than the model's context of 16"
    ):
        client.embeddings.create(model="bert", input="the cat " * 20)
    with pytest.raises(openai.BadRequestError, match=r"dimensions: .*16"):
        client.embeddings.create(model="bert", input="the cat", dimensions=3)
