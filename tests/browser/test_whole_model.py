"""The whole model on the page shows the numbers of the forward pass, in every family."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from qkv.insight.look import Look, look
from qkv.insight.walk.model_walk import ModelWalk, walk_model
from qkv.models import (
    BERT,
    GPT,
    RNN,
    BERTConfig,
    GPTConfig,
    RNNConfig,
    Transformer,
    TransformerConfig,
)
from qkv.text import train
from support.browser_fixtures import Open
from support.look_page import percents, settled, state, status
from support.playground_page import link
from support.sentences import SENTENCES

WORDS = train("words", SENTENCES, 80)
SMALL: dict[str, Any] = {"vocabulary": WORDS.vocabulary, "width": 16, "depth": 2, "heads": 2}
TEXT = " ".join(SENTENCES[0].split()[:5])


def made(model: Any, *texts: str, **more: Any) -> tuple[Look, ModelWalk]:
    """A look at a model with large weights, and its walk."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    result = look(model.eval(), *texts, tokenizer=WORDS, name="small", **more)
    return result, walk_model(model, result.reading, WORDS)


def small_gpt() -> tuple[Look, ModelWalk]:
    torch.manual_seed(0)
    return made(GPT(GPTConfig(context=16, position="rotary", **SMALL)), TEXT)


def numbers(page: Any, selector: str) -> list[float]:
    texts = page.locator(selector).all_text_contents()
    return [float(text.replace("−", "-")) for text in texts]


def lengths(page: Any) -> list[float]:
    return numbers(page, ".place-detail .length-list .number")


def norm(vectors: Any, token: int) -> float:
    return float(vectors[token].norm())


def go(page: Any, place: str, **more: Any) -> None:
    page.evaluate("hash => { location.hash = hash }", link(view="model", place=place, **more))
    settled(page, place=place, **more)


def check_blocks(page: Any, walk: ModelWalk, token: int) -> None:
    """The lengths of each block and of each step inside are the captured ones."""
    stack = walk.stacks[-1]
    for layer, parts in enumerate(stack.blocks):
        go(page, f"{stack.kind}.{layer}", token=token)
        expected = [norm(parts[0].before, token)]
        expected += [norm(part.added, token) for part in parts]
        expected.append(norm(parts[-1].after, token))
        assert lengths(page) == pytest.approx(expected, rel=6e-3)

    part = stack.blocks[-1][-1]
    go(page, f"{stack.kind}.{layer}.add_{part.name}", token=token)
    total = norm(part.before + part.added, token)
    shown = [norm(part.before, token), norm(part.added, token), total]
    assert lengths(page) == pytest.approx(shown, rel=6e-3)


def check_end(page: Any, walk: ModelWalk, token: int) -> None:
    assert walk.next is not None
    best = walk.next[token]
    go(page, "logits", token=token)
    shown = numbers(page, ".logit-list .number")
    assert shown == pytest.approx([one.logit for one in best], rel=6e-3)
    go(page, "softmax", token=token)
    shown = percents(page.inner_text(".softmax-list"))
    assert shown[: len(best)] == pytest.approx([one.probability for one in best], abs=6e-4)
    assert sum(shown) == pytest.approx(1, abs=6e-3)


def test_a_gpt(open_page: Open) -> None:
    result, walk = small_gpt()
    page = open_page(result, link(view="model"))
    last = len(walk.reading.text.ids) - 1
    assert f"at position {last}" in status(page)
    check_blocks(page, walk, 2)
    check_end(page, walk, 2)

    # The lens after a block, and the length of the stream in the chain
    assert walk.lens is not None
    go(page, "self.0", token=2)
    guesses = page.locator(".place-detail .bars:not(.length-list) .word").all_text_contents()
    assert guesses == [guess.text for guess in walk.lens[1][2]]
    stream = numbers(page, ".place.is-block .place-length")
    stack = walk.stacks[0]
    expected = [norm(block[-1].after, 2) for block in stack.blocks]
    assert stream == pytest.approx(expected, rel=6e-3)

    # The embedding: no position is added, and rotary angles are drawn
    go(page, "embedding", token=2)
    assert "turns each query and key" in status(page)
    token = norm(stack.embedding.token, 2)
    assert float(re.findall(r"length (\d+\.\d+)", status(page))[0]) == pytest.approx(
        token, rel=6e-3
    )
    assert page.is_visible(".position-map.framed canvas")


def test_keys_levels_and_heads(open_page: Open) -> None:
    result, walk = small_gpt()
    page = open_page(result, link(view="model"))
    for place in ("embedding", "self.0"):
        page.keyboard.press("ArrowRight")
        settled(page, place=place)
    page.keyboard.press("ArrowUp")
    settled(page, place="self.0", token=walk.position - 1)
    page.keyboard.press("Enter")
    settled(page, place="self.0.norm_attention")
    page.keyboard.press("ArrowRight")
    settled(page, place="self.0.attention")

    # A tile for each head with the length of what it adds
    heads = walk.stacks[0].blocks[0][0].heads
    assert heads is not None
    shown = numbers(page, ".head-tile .tile-added")
    assert shown == pytest.approx(heads[:, walk.position - 1].tolist(), rel=6e-3)

    # The focus stays in the view: on the current place, when the button is gone that had it
    page.keyboard.press("Escape")
    settled(page, place="self.0")
    page.focus(".place[aria-current]")
    page.keyboard.press("Enter")
    settled(page, place="self.0.norm_attention")
    assert page.evaluate("document.activeElement.dataset.place") == "self.0.norm_attention"
    page.keyboard.press("Escape")
    settled(page, place="self.0")
    page.click(".open-block")
    settled(page, place="self.0.norm_attention")
    assert page.evaluate("document.activeElement.dataset.place") == "self.0.norm_attention"
    page.keyboard.press("Escape")
    settled(page, place="self.0")
    page.click(".place[data-place='self.1']")
    settled(page, place="self.1.norm_attention")
    assert page.inner_text(".crumbs").split("\n") == ["Model", "›", "Block 1"]
    page.click(".crumb")
    settled(page, place="self.1")
    go(page, "self.1.attention")
    page.click(".head-tile[data-head='1']")
    settled(page, view="walk", layer=1, head=1)


def test_the_draw(open_page: Open) -> None:
    result, walk = small_gpt()
    page = open_page(result, link(view="model", place="draw", token=1))
    assert walk.next is not None
    row = walk.next[1]
    for seed in (1, 2, 3):
        page.click("button.draw")
        text = page.inner_text(".draw-result")
        assert text.startswith(f"Seed {seed} draws ")
        number = float(re.findall(r"0\.\d+", text)[0])
        total = 0.0
        drawn = ""
        for token in row:
            total += token.probability
            if number < total and not drawn:
                drawn = str(token.id)
        assert page.get_attribute(".draw-result", "data-drawn") == drawn
    page.fill("#draw-seed", "1")
    page.press("#draw-seed", "Enter")
    assert page.inner_text(".draw-result").startswith("Seed 1 draws ")


def test_a_bert(open_page: Open) -> None:
    torch.manual_seed(0)
    result, walk = made(BERT(BERTConfig(context=16, norm_placement="after", **SMALL)), TEXT)
    page = open_page(result, link(view="model"), width=380)
    check_blocks(page, walk, 1)
    check_end(page, walk, 1)
    go(page, "self.0.norm_attention", token=1)
    part = walk.stacks[0].blocks[0][0]
    expected = [norm(part.before + part.added, 1), norm(part.after, 1)]
    assert lengths(page) == pytest.approx(expected, rel=6e-3)
    go(page, "embedding", token=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    names = page.locator(".vector-line .strip-name").all_text_contents()
    starts = ["token", "position 1", "segment", "normed"]
    assert [name.split(":")[0] for name in names] == starts


def test_a_translator(open_page: Open) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(context=16, **SMALL))
    result, walk = made(model, source=TEXT, target=SENTENCES[1])
    page = open_page(result, link(view="model"))
    check_blocks(page, walk, 2)
    check_end(page, walk, 2)
    decoder = walk.stacks[1]
    go(page, "decoder.1.cross_attention", token=2)
    part = decoder.blocks[1][1]
    assert lengths(page)[1] == pytest.approx(norm(part.added, 2), rel=6e-3)

    # Keys up and down choose a token of the source where the encoder is shown
    go(page, "encoder.0", token=2)
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".whole-model[data-token='1']")
    first = walk.stacks[0].blocks[0]
    assert lengths(page)[0] == pytest.approx(norm(first[0].before, 1), rel=6e-3)
    assert state(page)["token"] == "2"


def test_an_rnn(open_page: Open) -> None:
    torch.manual_seed(0)
    config = RNNConfig(vocabulary=WORDS.vocabulary, width=16, attention="additive")
    result, walk = made(RNN(config), source=TEXT, target=SENTENCES[1])
    page = open_page(result, link(view="model"))
    for step in walk.steps:
        go(page, step.name, token=1)
        token = 0 if step.side is walk.reading.source else 1
        text = page.inner_text(".vector-line .strip-name")
        shown = float(text.rpartition(" ")[2])
        assert shown == pytest.approx(norm(step.vectors, token), rel=6e-3), step.name
        if step.name == "context":
            weights = result.of("cross").layers[0][0, 1]
            listed = percents(page.inner_text(".place-detail .bars"))
            assert listed[0] == pytest.approx(float(weights.max()), abs=6e-4)
    check_end(page, walk, 1)


def test_the_playground(visit: Open) -> None:
    page = visit(link(tab="write", model="gpt", prompt="the cat sat", think=1, look="view=model"))
    page.wait_for_selector(".whole-model[data-place=tokens]")
    page.click(".place[data-place=softmax]")
    page.wait_for_selector(".whole-model[data-place=softmax]")
    assert sum(percents(page.inner_text(".softmax-list"))) == pytest.approx(1, abs=6e-3)
