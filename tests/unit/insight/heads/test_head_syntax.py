"""Syntax scores equal brute force, and a head that points at syntactic heads scores 1."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.sources.conllu import ConlluSentence, read_sentences
from qkv.data.sources.files import find_files
from qkv.insight.heads.head_syntax import (
    DIRECTIONS,
    Arcs,
    best_head,
    encode_sentence,
    find_arcs,
    head_syntax,
)
from qkv.insight.inspect.model_input import read
from qkv.insight.inspect.whole_words import join_words
from qkv.nn.hooks import add_hook, capture
from qkv.text import train
from support.families import bert, gpt, transformer
from support.sentences import SENTENCES

WORDS = [
    ("the", 2, "det"), ("cats", 3, "nsubj"), ("sat", 0, "root"), ("on", 6, "case"), ("a", 6, "det"),
    ("mat", 3, "obl:tmod"), (".", 3, "punct"),
]  # fmt: skip
MORE = [("the", 2, "det"), ("cat", 3, "nsubj"), ("sat", 0, "root"), ("on", 3, "advmod")]
TOKENIZER = train("word-piece", SENTENCES, 110)
BYTES = train("byte-pair", SENTENCES, 300)
SIZE: dict[str, Any] = {"vocabulary": 320, "context": 60}


@pytest.fixture
def sentences(tmp_path: Path) -> list[ConlluSentence]:
    text = ""
    for words in (WORDS, MORE, MORE, WORDS):
        for number, (form, head, name) in enumerate(words, start=1):
            misc = "SpaceAfter=No" if form == "mat" else "_"
            text += f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{name}\t_\t{misc}\n"
        text += "\n"
    file = tmp_path / "small.conllu"
    file.write_text(text)
    (result,) = find_files(str(file), piped="conllu")
    return list(read_sentences(result))


@pytest.mark.parametrize(("make", "tokenizer"), [(bert, TOKENIZER), (gpt, BYTES)])
def test_the_positions_of_each_word(
    make: Any, tokenizer: Any, sentences: list[ConlluSentence]
) -> None:
    ids, words = encode_sentence(make(**SIZE), tokenizer, sentences[0])
    assert [word.text for word in words] == [form for form, _, _ in WORDS]
    assert tokenizer.decode(ids).strip() in ("the cats sat on a mat.", "the cats sat on a mat .")
    positions = [position for word in words for position in word.positions]
    first = int(make is bert)  # after [CLS]
    assert positions == list(range(first, first + len(positions)))
    assert [ids[0], ids[-1]] == list(
        read(make(**SIZE), tokenizer, "the cats sat on a mat.").text.ids[:: len(ids) - 1]
    )
    assert len(positions) > len(words)


def points_at_heads(
    model: Any, tokenizer: Any, sentences: list[ConlluSentence], from_head: bool
) -> Any:
    """A hook: head 2 attends from each piece of a word to all pieces of its head, or back."""
    texts = iter(sentences)

    def hook(value: Tensor, name: str) -> Tensor:
        sentence = next(texts)
        _, words = encode_sentence(model, tokenizer, sentence)
        value = value.clone()
        value[:, 2] = 0
        for word, parsed in zip(words, sentence.words, strict=True):
            if parsed.head:
                source, target = word, words[parsed.head - 1]
                if from_head:
                    source, target = target, source
                for query in source.positions:
                    value[:, 2, query, target.positions] = 1 / len(target.positions)
        return value

    return hook


@pytest.mark.parametrize("from_head", [False, True])
def test_a_head_that_points_at_syntactic_heads(
    from_head: bool, sentences: list[ConlluSentence]
) -> None:
    model = bert(**SIZE)
    hook = points_at_heads(model, TOKENIZER, sentences, from_head)
    with add_hook(model, "stack.blocks.1.attention.weights", hook):
        result = head_syntax(model, TOKENIZER, sentences, least=1)
    assert (result.sentences, result.left_out, result.halves) == (4, 0, True)
    relations = {relation.name: relation for relation in result.relations}
    assert list(relations)[:2] == ["all", "det"]
    best = relations["all"]  # of a rare relation another head may be right by accident
    assert (best.layer, best.head, best.direction) == (1, 2, DIRECTIONS[from_head])
    assert (best.accuracy, best.words) == (1, 8)
    assert (relations["det"].offset, relations["det"].baseline) == (1, 1)
    hook = points_at_heads(model, TOKENIZER, sentences, from_head)
    with add_hook(model, "stack.blocks.1.attention.weights", hook):
        arcs, _, _ = find_arcs(model, TOKENIZER, sentences)
    assert arcs.right[:, int(from_head), 1, 2].all()
    assert "punct" not in relations
    assert "root" not in relations
    assert "obl" in relations
    hook = points_at_heads(model, TOKENIZER, sentences, from_head)
    with add_hook(model, "stack.blocks.1.attention.weights", hook):
        again = head_syntax(model, TOKENIZER, sentences, least=1, subtypes=True, halves=False)
    words = {relation.name: relation.words for relation in again.relations}
    assert "obl:tmod" in words
    assert words["all"] == 2 * 5 + 2 * 3


@pytest.mark.parametrize(("make", "tokenizer"), [(bert, TOKENIZER), (gpt, BYTES)])
def test_by_brute_force(make: Any, tokenizer: Any, sentences: list[ConlluSentence]) -> None:
    model = make(**SIZE)
    arcs, count, _ = find_arcs(model, tokenizer, sentences)
    assert count == 4
    row = 0
    for number, sentence in enumerate(sentences, start=1):
        ids, words = encode_sentence(model, tokenizer, sentence)
        with torch.no_grad(), capture(model, "stack.blocks.*.attention.weights") as captured:
            model(torch.tensor([ids]))
        for word in sentence.words:
            if not word.head or word.deprel in ("root", "punct"):
                continue
            dependent = word.id - 1
            for layer in range(2):
                weights = captured[f"stack.blocks.{layer}.attention.weights"][0].float()
                weights = join_words(weights, words, words)
                for head, matrix in enumerate(weights):
                    others = [other for other in range(len(words)) if other != dependent]
                    to = max(others, key=lambda other, m=matrix, d=dependent: float(m[d, other]))
                    back = max(others, key=lambda other, m=matrix, d=dependent: float(m[other, d]))
                    expected = [
                        to == word.head - 1 and float(matrix[dependent, to]) > 0,
                        back == word.head - 1 and float(matrix[back, dependent]) > 0,
                    ]
                    assert arcs.right[row, :, layer, head].tolist() == expected
            assert arcs.offset[row] == word.head - word.id
            assert (arcs.sentence[row], arcs.relation[row]) == (number, word.deprel.split(":")[0])
            row += 1
    assert row == len(arcs.offset)


def test_heads_are_chosen_on_one_half_and_measured_on_the_other() -> None:
    random = np.random.default_rng(0)
    sentence = np.repeat(np.arange(200), 3)
    right = random.random((600, 2, 3, 4)) < 0.3
    right[:, 1, 2, 0] = random.random(600) < 0.6
    offset = random.choice([-2, -1, 1, 3], p=[0.2, 0.5, 0.2, 0.1], size=600)
    chosen = sentence % 2 == 0
    result = best_head("nsubj", Arcs([], sentence, offset, right), chosen, ~chosen)
    assert (result.layer, result.head, result.direction) == (2, 0, "from its head")
    assert (result.offset, result.words) == (-1, 300)
    assert result.accuracy == right[~chosen, 1, 2, 0].mean()
    assert result.baseline == (offset[~chosen] == -1).mean()
    assert Counter(offset[chosen].tolist()).most_common(1)[0][0] == -1
    assert result.low < result.accuracy < result.high
    assert result.gain_low < result.accuracy - result.baseline < result.gain_high


def test_invalid_sentences_are_refused(sentences: list[ConlluSentence]) -> None:
    calls: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match=r"sentences: .*20 times .*in 4"):
        head_syntax(
            bert(**SIZE), TOKENIZER, sentences, lambda done, total: calls.append((done, total))
        )
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    result = head_syntax(bert(**SIZE | {"context": 12}), TOKENIZER, sentences, least=1)
    assert (result.sentences, result.left_out) == (2, 2)
    with pytest.raises(ValueError, match=r"sentences: .*CoNLL-U"):
        head_syntax(bert(**SIZE), TOKENIZER, [])
    lost = sentences[1]._replace(words=(sentences[1].words[0]._replace(head=9),))
    with pytest.raises(ValueError, match=r"line \d+: .*word 9"):
        head_syntax(bert(**SIZE), TOKENIZER, [lost])
    with pytest.raises(ValueError, match=r"model: .*GPT or a BERT"):
        head_syntax(transformer(**SIZE), TOKENIZER, sentences)
