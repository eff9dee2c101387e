"""The official client of OpenAI, unchanged: what it gets is what our own functions say, streamed or
not.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch

from qkv.generation.text import complete, prompt_ids
from qkv.text.chat_template import Message, encode_chat, ends_of_turn
from support.serving_fixtures import Models
from support.small_server import Running
from support.waiting import PATIENCE

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the cat sat on the mat."},
]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:
        yield client


def ours(models: Models, prompt: str, **how: Any) -> list[str]:
    model, tokenizer = models["gpt"]
    return complete(model, tokenizer, [prompt], **how)


def joined(stream: Any) -> str:
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


# Models


def test_models_are_listed_with_what_they_can(client: openai.OpenAI) -> None:
    found = {each.id: each.model_extra["qkv"] for each in client.models.list()}  # type: ignore[index]
    assert list(found) == ["gpt", "chat", "bert", "translator", "long", "rnn", "tuned"]
    assert found["gpt"]["can"] == ["complete", "attention", "tokenize"]
    assert "chat" in found["chat"]["can"]
    assert found["bert"]["can"] == ["fill", "embed", "attention", "tokenize"]
    assert found["translator"]["kinds"] == ["encoder", "decoder", "cross"]
    assert found["tuned"]["labels"] == ["bad", "good", "so so"]
    assert (
        found["gpt"] | {"context": 64, "layers": 2, "heads": 2, "family": "gpt", "state": "ready"}
        == found["gpt"]
    )
    assert client.models.retrieve("gpt").id == "gpt"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no 'nobody' here") as error:
        client.completions.create(model="nobody", prompt="the cat")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


# Completions


def test_a_completion_is_what_our_own_function_says(client: openai.OpenAI, models: Models) -> None:
    how: dict[str, Any] = {"temperature": 0.9, "seed": 7}
    found = client.completions.create(
        model="gpt", prompt="the cat", max_tokens=12, top_p=0.9, **how
    )
    assert [found.choices[0].text] == ours(models, "the cat", length=12, top_p=0.9, **how)
    assert found.choices[0].finish_reason == "length"
    assert found.object == "text_completion"
    read = len(prompt_ids(models["gpt"][1], "the cat"))
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (read, 12)
    assert found.usage.total_tokens == read + 12


def test_a_stream_says_the_same_and_counts(client: openai.OpenAI, models: Models) -> None:
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
    assert [joined(chunks)] == ours(models, "the cat", length=12, seed=7)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_texts_of_several_prompts(client: openai.OpenAI, models: Models) -> None:
    how: dict[str, Any] = {
        "model": "gpt",
        "prompt": ["the cat", "mice"],
        "n": 3,
        "max_tokens": 6,
        "seed": 5,
    }
    found = client.completions.create(**how)
    expected = [
        text
        for prompt in ("the cat", "mice")
        for text in ours(models, prompt, length=6, seed=5, samples=3)
    ]
    assert [choice.text for choice in found.choices] == expected
    assert [choice.index for choice in found.choices] == list(range(6))
    assert found.usage is not None
    assert found.usage.completion_tokens == 36
    streamed = [""] * 6
    for chunk in client.completions.create(**how, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == expected


def test_a_prompt_of_ids_and_an_empty_one(client: openai.OpenAI, models: Models) -> None:
    ids = prompt_ids(models["gpt"][1], "the cat")
    found = client.completions.create(model="gpt", prompt=ids, max_tokens=6, seed=1)
    assert [found.choices[0].text] == ours(models, "the cat", length=6, seed=1)
    begun = client.completions.create(model="gpt", prompt="", max_tokens=6, seed=1)
    assert [begun.choices[0].text] == ours(models, "", length=6, seed=1)


def test_a_stop_string_is_never_said(client: openai.OpenAI, models: Models) -> None:
    (whole,) = ours(models, "the cat", length=20, seed=7)
    stop = whole[5:7]
    (expected,) = ours(models, "the cat", length=20, seed=7, stop=[stop])
    how: dict[str, Any] = {
        "model": "gpt",
        "prompt": "the cat",
        "max_tokens": 20,
        "seed": 7,
        "stop": stop,
    }
    found = client.completions.create(**how)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected, "stop")
    assert stop not in expected
    assert joined(client.completions.create(**how, stream=True)) == expected


def test_log_probabilities_are_the_models_own(client: openai.OpenAI, models: Models) -> None:
    model, tokenizer = models["gpt"]
    found = client.completions.create(
        model="gpt", prompt="the cat", max_tokens=5, seed=2, logprobs=3, echo=True
    )
    choice = found.choices[0]
    assert choice.text.startswith("the cat")
    assert choice.text == "the cat" + ours(models, "the cat", length=5, seed=2)[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    tokens = client.completions.create(
        model="gpt", prompt="the cat", max_tokens=5, seed=2, logprobs=3, extra_body={"tokens": True}
    ).choices[0]
    said = [each["id"] for each in tokens.model_extra["tokens"]]  # type: ignore[index]
    assert "".join(each["text"] for each in tokens.model_extra["tokens"]) == tokens.text.rstrip("�")  # type: ignore[index]
    ids = [*prompt_ids(tokenizer, "the cat"), *said]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).log_softmax(-1)[0]  # (T, V)
    own = [float(expected[place, id]) for place, id in enumerate(ids[1:])]
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
    assert logprobs.top_logprobs is not None
    for place, top in enumerate(logprobs.top_logprobs[1:]):
        assert len(top) <= 3
        assert max(top.values()) == pytest.approx(float(expected[place].max()), abs=1e-4)
    for each, row in zip(tokens.model_extra["tokens"], expected[len(ids) - 6 : -1], strict=True):  # type: ignore[index]
        assert [other["id"] for other in each["alternatives"]] == row.topk(3).indices.tolist()
        assert each["alternatives"][0]["probability"] == pytest.approx(
            float(row.max().exp()), rel=1e-3
        )


def test_only_the_prompt_can_be_scored(client: openai.OpenAI) -> None:
    found = client.completions.create(
        model="gpt", prompt="the cat sat", max_tokens=0, logprobs=0, echo=True
    )
    choice = found.choices[0]
    assert choice.text == "the cat sat"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == 4
    assert choice.logprobs.text_offset == [0, 3, 7, 9]
    assert found.usage is not None
    assert found.usage.completion_tokens == 0


def test_a_head_that_is_off_changes_the_text(client: openai.OpenAI) -> None:
    def likeliest(**more: Any) -> str:
        how: dict[str, Any] = {
            "model": "gpt",
            "prompt": "the cat",
            "max_tokens": 12,
            "temperature": 0,
        }
        return client.completions.create(**how, extra_body=more).choices[0].text

    assert likeliest(heads_off=["0.*", "1.*"]) != likeliest()
    assert likeliest(heads_off=[]) == likeliest()


def test_what_cannot_be_asked_is_a_bad_request(client: openai.OpenAI) -> None:
    def refused(message: str, **how: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=message) as error:
            client.completions.create(**{"model": "gpt", "prompt": "the cat", **how})
        assert error.value.param == message.partition(":")[0]

    refused("prompt: .* tokens are more than the model's context of 64", prompt="the cat " * 100)
    refused("temperature: it should be greater than or equal to 0", temperature=-1)
    refused("n: prompts times n", prompt=["a"] * 100, n=2)
    refused("best_of: ", best_of=3)
    refused("heads_off: 5.0: expected a layer of 0 to 1", extra_body={"heads_off": ["5.0"]})
    refused("heads_off: 0.7: expected a head of 0 to 1", extra_body={"heads_off": ["0.7"]})
    refused("prompt: expected ids below the vocabulary", prompt=[5, 100_000])
    refused(
        "max_token: there is no such field; did you mean max_tokens", extra_body={"max_token": 3}
    )
    refused("logit_bias: this is not done here", logit_bias={"5": 1})
    refused("model: bert is a BERT, which does not go on from a prompt", model="bert")


# Chats


def test_a_chat_is_what_our_own_function_says(client: openai.OpenAI, models: Models) -> None:
    model, tokenizer = models["chat"]
    ids = encode_chat(
        tokenizer, [Message(role=each["role"], content=each["content"]) for each in TALK]
    )
    (expected,) = complete(model, tokenizer, [ids], length=16, seed=3, end=ends_of_turn(tokenizer))
    how: dict[str, Any] = {"model": "chat", "messages": TALK, "max_tokens": 16, "seed": 3}
    found = client.chat.completions.create(**how, logprobs=True, top_logprobs=2)
    choice = found.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", expected)
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(ids)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == found.usage.completion_tokens
    assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)
    bytes_said = bytes(byte for each in choice.logprobs.content for byte in each.bytes or [])
    assert bytes_said.decode("utf-8", "replace") == expected
    chunks = list(client.chat.completions.create(**how, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_a_model_without_a_template_does_not_talk(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="gpt has no chat template"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hello"}])
    with pytest.raises(
        openai.BadRequestError, match=r"messages: it should be 'system'.* \(at 0.role\)"
    ):
        client.chat.completions.create(
            model="chat", messages=[{"role": "tool", "content": "x", "tool_call_id": "y"}]
        )


def test_an_answer_is_sent_back_as_it_came(client: openai.OpenAI) -> None:
    """As its object, and as its dictionary with all fields that OpenAI's messages have."""
    talk: dict[str, Any] = {"model": "chat", "max_tokens": 4, "seed": 1}
    said = client.chat.completions.create(**talk, messages=TALK).choices[0].message
    for message in (
        said,
        said.model_dump(),
        {**said.model_dump(), "annotations": [], "tool_calls": []},
    ):
        assert (
            client.chat.completions.create(**talk, messages=[*TALK, message, TALK[1]])
            .choices[0]
            .message.content
        )


def test_what_is_not_looked_at_and_what_is_not_done(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "chat", "messages": TALK, "max_tokens": 2, "temperature": 0}
    plain = client.chat.completions.create(**ask).choices[0].message.content
    unseen: dict[str, Any] = {
        "service_tier": "auto", "prompt_cache_key": "x", "safety_identifier": "x", "reasoning_effort": "low",
        "verbosity": "low", "store": True, "metadata": {"a": "b"}, "parallel_tool_calls": True, "modalities": ["text"],
        "tool_choice": "none", "tools": [], "response_format": {"type": "text"}, "user": "x",
    }  # fmt: skip
    assert client.chat.completions.create(**ask, **unseen).choices[0].message.content == plain
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="tools: this is not done here; leave it out"):
        client.chat.completions.create(**ask, tools=[tool])
    with pytest.raises(
        openai.BadRequestError, match="functions: this is not done here; leave it out"
    ):
        client.chat.completions.create(**ask, functions=[tool["function"]])
    with pytest.raises(
        openai.BadRequestError, match=r"response_format: it should be 'text' \(at type\)"
    ):
        client.chat.completions.create(**ask, response_format={"type": "json_object"})


# Embeddings


def test_embeddings_are_the_mean_of_the_words_with_length_1(
    client: openai.OpenAI, models: Models
) -> None:
    model, tokenizer = models["bert"]
    texts = ["the cat sat", "mice", "the teacher said the mice ran"]
    found = client.embeddings.create(
        model="bert", input=texts
    )  # in base64, which the client asks for by itself
    for text, each in zip(texts, found.data, strict=True):
        row = torch.tensor([[tokenizer.start, *tokenizer.encode(text), tokenizer.end]])
        with torch.no_grad():
            mean = model.hidden(row)[0].mean(0)
        assert each.embedding == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)
    floats = client.embeddings.create(model="bert", input=texts, encoding_format="float")
    assert [each.embedding for each in floats.data] == [
        pytest.approx(each.embedding) for each in found.data
    ]
    assert found.usage.prompt_tokens == sum(len(tokenizer.encode(text)) + 2 for text in texts)
    raw: Any = (
        client.embeddings.create(model="bert", input="mice", encoding_format="base64")
        .data[0]
        .embedding
    )
    numbers = struct.unpack("<16f", base64.b64decode(raw)) if isinstance(raw, str) else raw
    assert list(numbers) == pytest.approx(found.data[1].embedding)


def test_a_gpt_makes_no_embeddings(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="gpt is a GPT, which makes no vectors"):
        client.embeddings.create(model="gpt", input="the cat")
    with pytest.raises(
        openai.BadRequestError, match=r"input: .* more than the model's context of 16"
    ):
        client.embeddings.create(model="bert", input="the cat " * 20)
    with pytest.raises(openai.BadRequestError, match="dimensions: this model's vectors have 16"):
        client.embeddings.create(model="bert", input="the cat", dimensions=3)
