"""The walk on a page and in the terminal has the captured numbers."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.inspect.model_input import read
from qkv.insight.look import Look, look
from qkv.insight.render.page import page
from qkv.insight.render.terminal import show
from qkv.insight.render.views import ViewChoice
from qkv.insight.render.walk.model_walk_data import model_walk_data
from qkv.insight.render.walk.walk_data import walk_data
from qkv.insight.walk import walk_choice
from qkv.insight.walk.walk_choice import walks_first
from qkv.insight.walk.walk_effects import walk_effects
from qkv.models.variants.quantize import int8
from qkv.text import train
from support.families import bert, gpt, rnn, transformer

TEXT = "the cat sat on the mat"
TOKENIZER = train("words", [TEXT], 13)
BLOCK = re.compile(r'id="qkv\.(data|walk[^"]*)">(.*?)</script>')


def look_at(model: Any, **options: Any) -> Look:
    model = model.float()
    if model.has_source:
        return look(model, tokenizer=TOKENIZER, source=TEXT, target="the mat", **options)
    return look(model, TEXT, tokenizer=TOKENIZER, **options)


def numbers(array: Any) -> Tensor:
    kind = {"f4": "<f4", "u1": "u1"}[array["type"]]
    values = np.frombuffer(base64.b64decode(array["data"]), kind).reshape(array["shape"])
    return torch.from_numpy(values.copy())


def blocks_of(look: Look, **choice: Any) -> dict[str, Any]:
    text = page(look, ViewChoice(**choice))
    return {name: json.loads(content) for name, content in BLOCK.findall(text)}


def test_a_page_has_the_walks_of_all_heads_of_a_small_model() -> None:
    seen = look_at(gpt(position="relative"))
    blocks = blocks_of(seen, view="walk", layer=1, head=3, token=2)
    start = blocks["data"]["start"]
    assert (start["view"], start["layer"], start["head"], start["token"]) == ("walk", 1, 3, 2)
    assert len(blocks["data"]["walk"]["self"]["heads"]) == 8
    assert seen.walks is not None
    for (kind, layer, head), walk in seen.walks.items():
        data = blocks[f"walk.{kind}.{layer}.{head}"]
        assert data == walk_data(walk)
        for name in ("query", "key", "value", "bias"):
            assert_close(numbers(data[name]), getattr(walk.equation, name), rtol=0, atol=0)
        for name in ("scores", "weights", "output", "written"):
            assert_close(numbers(data[name]), getattr(walk, name), rtol=0, atol=0)
        assert numbers(data["visible"]).bool().equal(walk.visible)
        assert walk.written is not None
        assert walk.equation.bias is not None
        assert_close(torch.tensor(data["lengths"]["written"]), walk.written.norm(dim=-1))

        # The bias by distance, read as a page reads it, is that of the text.
        by_distance = numbers(data["by_distance"]["bias"])
        first = data["by_distance"]["first"]
        T, S = walk.scores.shape
        for t in range(T):
            for s in range(S):
                assert by_distance[t, t - s - first] == pytest.approx(
                    float(walk.equation.bias[t, s]), abs=1e-5
                )


def test_what_only_some_families_have() -> None:
    rotary = blocks_of(look_at(gpt(position="rotary")))["walk.self.0.0"]
    assert len(rotary["rotary"]["frequencies"]) == 2
    assert rotary["rotary"]["key"]["shape"] == rotary["key"]["shape"]
    assert blocks_of(look_at(bert(position="alibi")))["walk.self.0.1"]["slope"] == 2**-4
    translator = blocks_of(look_at(transformer()))
    assert translator["data"]["walk"].keys() == {"encoder", "decoder", "cross"}
    assert translator["walk.cross.0.0"]["position"] == "none"
    additive = blocks_of(look_at(rnn(attention="additive")))["walk.cross.0.0"]
    assert (additive["score"], additive["position"]) == ("additive", "recurrent")
    assert additive["additive"]["shape"] == [additive["query"]["shape"][1]]
    assert additive["written"] is additive["lengths"] is additive["lens"] is None


def test_heads_that_are_asked_for_come_first_and_the_telling_ones_fill_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = gpt()
    every = look_at(model)
    assert every.walks is not None
    ranked = walks_first(every.of())
    assert list(every.walks) == ranked
    monkeypatch.setattr(walk_choice, "WALK_MAX_BYTES", 1)
    some = look_at(model, walked=[(None, -1, 2)])
    assert some.walks is not None
    assert list(some.walks) == list(dict.fromkeys([("self", 1, 2), ranked[0]]))
    assert blocks_of(some, view="walk")["data"]["start"]["head"] == 2
    assert look_at(model, walks=False).walks is None
    with pytest.raises(ValueError, match="head: expected 0 to 3, not 4"):
        look_at(model, walked=[(None, 0, 4)])
    with pytest.raises(ValueError, match="view: there is no walk"):
        page(look_at(model, walks=False), ViewChoice(view="walk"))


def test_a_model_whose_numbers_are_not_finite_has_a_page_that_can_be_read() -> None:
    model = gpt().float()
    torch.nn.init.constant_(model.stack.blocks[0].attention.output.weight, torch.nan)
    blocks = blocks_of(look_at(model))
    data = json.loads(json.dumps(blocks["walk.self.0.0"], allow_nan=False))
    assert data["lengths"]["written"] == [None] * 6
    assert all(length > 0 for length in data["lengths"]["before"])
    assert data["lens"]["after"][0][0][2] is None
    reading = read(model, TOKENIZER, TEXT)
    with pytest.raises(ValueError, match="the model's numbers are not finite"):
        walk_effects(model, reading, TOKENIZER, (None, 0, 0))


def test_logits_are_exact_enough_for_their_differences() -> None:
    seen = look_at(gpt())
    walk = seen.model_walk
    assert walk is not None
    assert walk.next is not None
    for row, tokens in zip(model_walk_data(walk, {})["next"], walk.next, strict=True):
        for (_, id, logit, probability), token in zip(row, tokens, strict=True):
            assert id == token.id
            assert logit == pytest.approx(token.logit, rel=1e-6)
            assert probability == pytest.approx(token.probability, rel=1e-6)


def test_an_int8_model_walks() -> None:
    walks = look_at(int8(gpt().float()), walks=True).walks
    assert walks is not None
    for walk in walks.values():
        assert walk.equation.score == "scaled_dot"
        assert walk.written is not None
        assert bool(walk.written.isfinite().all())


# The terminal


def printed(look: Look, width: int, **choice: Any) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    show(look, console, ViewChoice(view="walk", **choice))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_the_numbers_of_the_walk() -> None:
    seen = look_at(gpt())
    text = printed(seen, 100, layer=1, head=2, token=3)
    title, formula, header, *lines = text.splitlines()
    assert title == "Self-attention, layer 1, head 2: token 3, on"
    assert formula == "output = softmax( q·k / √4 + mask ) v"
    assert header.split() == ["key", "q·k", "/", "√4", "weight", "|v|"]
    assert seen.walks is not None
    walk = seen.walks["self", 1, 2]
    raw = walk.equation.raw_scores()[3]
    for key, line in enumerate(lines[:6]):
        cells = line.split()
        assert cells[:4] == [
            str(key),
            seen.reading.text.tokens[key],
            f"{raw[key]:.2f}",
            f"{raw[key] / 2:.2f}",
        ]
        assert cells[4] == (f"{walk.weights[3, key]:.1%}" if key <= 3 else "hidden")
    assert lines[6].split()[:2] == ["sum", "100%"]
    assert "tokens alike" in text
    assert "the residual stream goes from" in " ".join(text.split())
    assert "Lens before" in text
    with pytest.raises(ValueError, match="token: expected 0 to 5, or -1 for the last, not 6"):
        printed(seen, 100, token=6)


@pytest.mark.parametrize("make", [bert, transformer, rnn])
def test_a_narrow_terminal(make: Any) -> None:
    text = printed(look_at(make()), 40)
    assert all(cell_len(line) <= 40 for line in text.splitlines())
    assert "sum" in text


def test_the_figure_has_a_bar_for_each_key(tmp_path: Path) -> None:
    out = look_at(gpt()).save(tmp_path / "walk.svg", view="walk", layer=0, head=1, token=2)
    text = out.read_text(encoding="utf-8")
    for part in ("q·k", "softmax", "hidden", "layer 0, head 1, token 2: sat"):
        assert part in text
