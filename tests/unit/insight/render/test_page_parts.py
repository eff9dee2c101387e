"""The page has the parts of each position's logit, as the method gives them."""

from __future__ import annotations

import json
import re

import pytest

from qkv import insight
from qkv.insight.attribute.logit_attribution import logit_attribution
from qkv.insight.inspect.model_input import read
from qkv.insight.render.page import page
from qkv.insight.render.page_parts import described_parts
from qkv.models import BERT, GPT, BERTConfig, GPTConfig
from qkv.text import train


def test_the_parts_of_every_position() -> None:
    tokenizer = train("words", ["the cat sat on the mat"], 20)
    model = GPT(GPTConfig(vocabulary=20, context=8, width=8, heads=2, depth=2))
    look = insight.look(model, "the cat sat", tokenizer=tokenizer, attribution=True)
    found = re.search(r'id="qkv\.parts">(.*?)</script>', page(look))
    assert found is not None
    parts = json.loads(found[1])
    assert (parts["heads"], parts["cross"], len(parts["positions"])) == (2, 0, 3)
    reading = read(model, tokenizer, "the cat sat")
    for position, numbers in enumerate(parts["positions"]):
        split = logit_attribution(model, reading, position)
        for layer, row in enumerate(numbers["layers"]):
            expected = [
                *split.heads[layer].tolist(),
                float(split.attention_bias[layer]),
                float(split.feed_forward[layer]),
            ]
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-7)
        total = sum(map(sum, numbers["layers"]))
        total += numbers["embedding"] + numbers["positional"] + numbers["bias"]
        assert total == pytest.approx(numbers["total"], abs=1e-4)
        assert look.next is not None
        assert numbers["token"].strip() == look.next[position][0].text


def test_without_attribution_or_a_sum_there_are_none() -> None:
    tokenizer = train("words", ["the cat sat on the mat"], 20)
    model = GPT(GPTConfig(vocabulary=20, context=8, width=8, heads=2, depth=2))
    assert insight.look(model, "the cat", tokenizer=tokenizer).parts is None
    bert = BERT(BERTConfig(vocabulary=20, context=12, width=8, heads=2, depth=1)).eval()
    special = train("word-piece", ["the cat sat on the mat"] * 20, 60)
    bert = BERT(BERTConfig(vocabulary=special.vocabulary, context=12, width=8, heads=2, depth=1))
    look = insight.look(bert.eval(), "the cat", tokenizer=special, attribution=True)
    assert look.parts is None
    assert described_parts(look) is None
    assert 'id="qkv.parts"' not in page(look)
