"""qkv's own routes return what the library functions behind them return."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from qkv.generation.classify import classify
from qkv.generation.fill import fill
from qkv.generation.text import prompt_ids
from qkv.generation.translate import source_ids, translate_texts
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.attribution import attribution
from qkv.insight.inspect.logit_lens import next_tokens
from qkv.insight.inspect.model_input import read
from qkv.insight.look import look
from qkv.insight.render.page import page
from support.serving_fixtures import Models
from support.small_server import Running
from support.waiting import PATIENCE

SENTENCE = "the cat sat on the mat."


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def reply_of(http: httpx.Client, route: str, **body: Any) -> Any:
    response = http.post(f"/v1/{route}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(http: httpx.Client, route: str, **body: Any) -> str:
    """The message of a 400."""
    response = http.post(f"/v1/{route}", json=body)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


def events(http: httpx.Client, route: str, **body: Any) -> list[Any]:
    response = http.post(f"/v1/{route}", json={**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# Next token and tokenize


def test_next_returns_the_models_and_the_sampled_distribution(
    http: httpx.Client, models: Models
) -> None:
    model, tokenizer = models["gpt"]
    ids = torch.tensor([prompt_ids(tokenizer, "the cat")])
    with torch.no_grad():
        logits = model(ids)[0, -1].double()
    reply = reply_of(http, "next", model="gpt", prompt="the cat", top=10, temperature=0.5, top_k=4)
    best = logits.topk(10).indices.tolist()
    assert [token["id"] for token in reply["tokens"]] == best
    logprob, drawn = logits.log_softmax(-1), (logits.topk(4).values / 0.5).softmax(-1)
    assert [token["logprob"] for token in reply["tokens"]] == pytest.approx(
        logprob[best].tolist(), abs=1e-4
    )
    assert [token["probability"] for token in reply["tokens"][:4]] == pytest.approx(
        drawn.tolist(), abs=1e-4
    )
    assert [token["probability"] for token in reply["tokens"][4:]] == [0] * 6
    assert reply["rest"] == pytest.approx(0, abs=1e-6)
    assert [token["text"] for token in reply["tokens"]] == [tokenizer.decode([id]) for id in best]
    by_ids = reply_of(
        http, "next", model="gpt", prompt=ids[0].tolist(), top=10, temperature=0.5, top_k=4
    )
    assert by_ids == reply
    with torch.no_grad(), apply_edits(model, [Edit(0, 0), Edit(1, None)]):
        without = model(ids)[0, -1].log_softmax(-1)
    off = reply_of(http, "next", model="gpt", prompt="the cat", top=5, heads_off=["0.0", "1.*"])
    assert [token["logprob"] for token in off["tokens"]] == pytest.approx(
        without.topk(5).values.tolist(), abs=1e-4
    )


def test_tokenize_and_back(http: httpx.Client, models: Models) -> None:
    for name in ("gpt", "bert", "chat", "tuned"):
        tokenizer = models[name][1]
        reply = reply_of(http, "tokenize", model=name, text=SENTENCE)
        assert [token["id"] for token in reply["tokens"]] == tokenizer.encode(SENTENCE)
        assert reply["count"] == len(reply["tokens"])
        assert [token["token"] for token in reply["tokens"]] == [
            tokenizer.token(token["id"]) for token in reply["tokens"]
        ]
        back = reply_of(
            http, "tokenize", model=name, ids=[token["id"] for token in reply["tokens"]]
        )
        assert back["text"] == tokenizer.decode(tokenizer.encode(SENTENCE))
        assert "".join(item["text"] for item in back["tokens"]) == back["text"]
    assert "ids: expected ids below" in refusal(http, "tokenize", model="gpt", ids=[100_000])
    assert reply_of(http, "tokenize", model="gpt", text="") == {
        "tokens": [],
        "count": 0,
        "text": "",
    }


# Translations


@pytest.mark.parametrize("name", ["translator", "rnn"])
def test_translations_equal_the_library_function(
    http: httpx.Client, models: Models, name: str
) -> None:
    model, tokenizer = models[name]
    texts = [SENTENCE, "mice", ""]
    reply = reply_of(
        http, "translate", model=name, text=texts, beams=3, n_best=2, max_tokens=9, alignment=True
    )
    expected = dict(translate_texts([model], tokenizer, texts, beams=3, n_best=2, length=9))
    for index in (0, 1):
        assert [item["text"] for item in reply["translations"][index]] == [
            item.text for item in expected[index]
        ]
        scores = [item.score for item in expected[index]]
        assert [item["score"] for item in reply["translations"][index]] == pytest.approx(
            scores, abs=1e-4
        )
    assert reply["translations"][2] == [{"text": "", "score": None}]
    (source,) = source_ids([model], tokenizer, [SENTENCE])
    target = expected[0][0].ids
    weights = alignment(
        model, torch.tensor([source]), torch.tensor([target]), start=tokenizer.start or 0
    )
    shown = reply["alignment"][0]
    assert shown["source"][-1] == "(end)"
    assert len(shown["target"]) == len(shown["weights"])
    assert np.allclose(np.array(shown["weights"]).sum(1), 1, atol=1e-4)
    assert shown["weights"][0][0] == pytest.approx(
        float(weights[0, 0]), abs=1e-4
    )  # words of one token
    assert reply["alignment"][2]["weights"] == []


def test_a_translation_is_streamed(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["translator"]
    *chunks, last = events(
        http, "translate", model="translator", text=SENTENCE, beams=1, max_tokens=6
    )
    ((_, (expected,)),) = translate_texts([model], tokenizer, [SENTENCE], beams=1, length=6)
    assert "".join(chunk["text"] for chunk in chunks).strip() == expected.text
    assert last["translations"][0][0]["text"] == expected.text
    assert last["usage"]["completion_tokens"] == len(expected.ids)


def test_invalid_translation_requests(http: httpx.Client) -> None:
    assert "temperature: a beam search" in refusal(
        http, "translate", model="translator", text="a", temperature=1
    )
    assert "n_best: expected 1 to 2" in refusal(
        http, "translate", model="translator", text="a", beams=2, n_best=3
    )
    assert "stream: only one text" in refusal(
        http, "translate", model="translator", text="a", stream=True
    )
    assert "heads_off: not supported" in refusal(
        http, "translate", model="translator", text="a", heads_off=["0.0"]
    )
    assert "gpt is a GPT, which does not translate" in refusal(
        http, "translate", model="gpt", text="a"
    )
    assert "context of 40" in refusal(http, "translate", model="translator", text="cat " * 60)


# Masks and classes


def test_masks_are_filled(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["bert"]
    text = "the [mask] sat on the [mask]"
    reply = reply_of(http, "fill", model="bert", text=text, top=3)
    expected = fill(model, tokenizer, text, top=3)
    assert [[(item["id"], item["text"]) for item in guesses] for guesses in reply["masks"]] == [
        [(item.id, item.text) for item in guesses] for guesses in expected
    ]
    assert reply["masks"][0][0]["probability"] == pytest.approx(
        expected[0][0].probability, rel=1e-4
    )
    assert [item["mask"] for item in reply["tokens"]].count(True) == 2
    assert "text: there is no mask in it" in refusal(http, "fill", model="bert", text="the cat")
    assert "gpt is a GPT, which does not predict masked tokens" in refusal(
        http, "fill", model="gpt", text=text
    )


def test_texts_are_classified(http: httpx.Client, models: Models) -> None:
    texts = ["the cat sat on the mat", "mice"] * 10
    reply = reply_of(http, "classify", model="tuned", text=texts)
    expected = classify(*models["tuned"], texts)
    assert reply["task"] == "classify"
    assert [item["label"] for item in reply["answers"]] == [item.label for item in expected]
    assert [item["probability"] for item in reply["answers"]] == pytest.approx(
        [item.probability for item in expected]
    )
    assert "text 1: this model reads one text" in refusal(
        http, "classify", model="tuned", text=[["a", "b"]]
    )
    assert "which is not fine-tuned" in refusal(http, "classify", model="bert", text="a")
    one = reply_of(http, "classify", model="tuned", text=texts[0])["answers"]
    assert one == reply_of(http, "classify", model="tuned", text=texts[:1])["answers"]
    assert [item["label"] for item in one] == [expected[0].label]


def test_text_is_the_same_field_on_every_route(http: httpx.Client) -> None:
    """`text`; the other names of a route are aliases."""
    for name in ("text", "prompt"):
        assert reply_of(http, "next", **{"model": "gpt", name: "the cat", "top": 3}) == reply_of(
            http, "next", model="gpt", prompt="the cat", top=3
        )
    for route, model, text in (
        ("classify", "tuned", ["the cat", "mice"]),
        ("attention", "bert", ["the cat", "mice ran"]),
    ):
        assert reply_of(http, route, model=model, texts=text) == reply_of(
            http, route, model=model, text=text
        )
    named = reply_of(http, "attention", model="translator", source="the cat", target="mice")
    assert reply_of(http, "attention", model="translator", text="the cat", target="mice") == named
    assert "texts: unknown field" in refusal(http, "classify", model="tuned", text="a", texts=["a"])
    assert "text: this field is missing" in refusal(http, "classify", model="tuned")
    assert "text: a GPT reads one text, not 2" in refusal(
        http, "attention", model="gpt", text=["a", "b"]
    )


# Attention


def unpacked(block: str, shape: list[int]) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(block)), "<u2").reshape(shape) / 65535


def test_attention_equals_the_page_of_look(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["gpt"]
    reply = reply_of(http, "attention", model="gpt", text=SENTENCE, lens=True, norms=True)
    chosen = {"lens": True, "norms": True, "model_walk": False}
    whole = page(look(model, SENTENCE, tokenizer=tokenizer, name="gpt", **chosen))
    for name, block in reply["blocks"].items():
        assert f'id="qkv.{name}">{block}</script>' in whole
    assert reply["blocks"].keys() == {
        "self.mean",
        "self.overview",
        "self.0.0",
        "self.0.1",
        "self.1.0",
        "self.1.1",
    }
    (data,) = (part for part in whole.split("<script") if 'id="qkv.data"' in part)
    of_page = json.loads(data.partition(">")[2].partition("</script>")[0])
    ids = prompt_ids(tokenizer, SENTENCE)
    added = {"walk": {"self": {"heads": None}}, "predicted": len(ids) - 1}  # walks are fetched
    assert reply["data"] == {**of_page, **added}
    assert len(reply["lens"]) == 3
    assert reply["next"] == reply["lens"][-1]
    assert reply_of(http, "attention", model="gpt", text=ids, lens=True, norms=True) == reply


def test_one_layer_of_attention_with_an_ablated_head(http: httpx.Client, models: Models) -> None:
    model, tokenizer = models["gpt"]
    reply = reply_of(http, "attention", model="gpt", text=SENTENCE, layers=[1], heads_off=["0.1"])
    assert reply["blocks"].keys() == {"self.mean", "self.overview", "self.1.0", "self.1.1"}
    with apply_edits(model, [Edit(0, 1)]):
        expected = look(model, SENTENCE, tokenizer=tokenizer).of("self").layers[1][0]
    shape = reply["data"]["attention"][0]["shape"]
    assert np.allclose(unpacked(reply["blocks"]["self.1.0"], shape), expected.numpy(), atol=1e-4)
    assert reply["lens"] is None


def test_attribution_and_more_predictions(http: httpx.Client, models: Models) -> None:
    for name, text in (("gpt", {"text": SENTENCE}), ("translator", {"source": "the cat sat"})):
        model, tokenizer = models[name]
        reply = reply_of(
            http, "attention", model=name, **text, layers=[0], attribution=True, top=20
        )
        reading = read(model, tokenizer, *text.values())
        described = reply["data"]["attribution"]
        shares = unpacked(reply["blocks"]["attribution"], described["shape"])
        assert np.allclose(shares, attribution(model, reading).numpy(), atol=1e-4)
        if name == "translator":  # as the page assumes before it has asked
            cross = next(item for item in reply["data"]["attention"] if item["kind"] == "cross")
            for field in ("rows", "columns", "shape", "code"):
                assert described[field] == cross[field]

        guesses = next_tokens(model, tokenizer, reading, top=20)
        for row, expected in zip(reply["next"], guesses, strict=True):
            assert [id for _, id, _ in row] == [guess.id for guess in expected]

    long = [5] * 49
    message = refusal(http, "attention", model="long", text=long, layers=[0], attribution=True)
    assert "attribution: limited to texts of 48 tokens, not 49" in message
    message = refusal(http, "attention", model="long", text=[5] * 257, layers=[0], top=20)
    assert "top: limited to texts of 256 tokens, not 257" in message


def test_attention_of_the_other_families(http: httpx.Client) -> None:
    reply = reply_of(
        http, "attention", model="translator", source="the cat", target="mice ran", kind="cross"
    )
    assert [item["kind"] for item in reply["data"]["attention"]] == ["encoder", "decoder", "cross"]
    assert reply["data"]["start"]["kind"] == "cross"
    assert reply_of(http, "attention", model="translator", source="the cat", heads_off=["0.0"])[
        "blocks"
    ]
    assert reply_of(http, "attention", model="rnn", source="the cat")["blocks"].keys() == {
        "cross.mean",
        "cross.overview",
        "cross.0.0",
    }
    assert reply_of(http, "attention", model="bert", text=["the cat", "mice ran"])["next"]
    assert reply_of(http, "attention", model="tuned", text="the cat")["next"] is None


def test_invalid_attention_requests(http: httpx.Client) -> None:
    assert "layer: expected 0 to 1" in refusal(
        http, "attention", model="gpt", text="the cat", layers=[5]
    )
    assert "context of 64" in refusal(http, "attention", model="gpt", text="the cat " * 100)
    assert "context of 16" in refusal(http, "attention", model="bert", text="the cat " * 100)
    assert "text: expected one of" in refusal(http, "attention", model="gpt")
    assert "nothing to read" in refusal(http, "attention", model="bert", text=" ")
    assert "this model has self, not cross" in refusal(
        http, "attention", model="gpt", text="the cat", kind="cross"
    )


def test_too_many_weights_are_refused_before_they_are_computed(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.serving.routes.attention.MAX_WEIGHTS", 4 * 40 * 40 - 1)
    text = list(range(10, 50))
    message = refusal(http, "attention", model="gpt", text=text)
    assert "layers: the heads of 2 layers have 6,400 weights for 40 tokens" in message
    assert "ask for 1 at a time" in message
    assert reply_of(http, "attention", model="gpt", text=text, layers=[0])["blocks"]
    monkeypatch.undo()
    assert reply_of(http, "attention", model="long", text=[5] * 600, layers=[0])[
        "blocks"
    ]  # not all at once, but some
