"""Exercises 5 to 8: other right solutions pass, and solutions of special cases do not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import models

from qkv.learn.exercises.blocks import byte_pair_reference as byte_pairs
from qkv.learn.expectations import Failed, expect_untouched
from support.student_files import report_with

MASKED_ATTEND = "        _, weights = masked_attend(query, key, value, mask)\n"
OWN_ATTENTION = """        scores = (query @ key.mT) / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask.logical_not(), -1e9)
        weights = scores.softmax(-1)
"""
SPLIT = "x.view(batch, length, heads, width // heads).transpose(1, 2)"
MERGE = "x.transpose(1, 2).reshape(batch, length, heads * head_width)"
NORM = "self.weight * (x - mean) / torch.sqrt(variance + self.eps) + self.bias"
COUNT = "max(counts, key=lambda pair: counts[pair])"
BYTES = 'ids = list(text.encode("utf-8"))\n    for'

RIGHT = [
    ("multi_head", SPLIT, "__import__('torch').stack(x.chunk(heads, -1), 1)"),
    ("multi_head", MERGE, "__import__('torch').cat(x.unbind(1), -1)"),
    ("multi_head", MASKED_ATTEND, OWN_ATTENTION),
    (
        "multi_head",
        "key = key.repeat_interleave(group, dim=1)",
        "key = key.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)",
    ),
    (
        "positions",
        "position / 10000 ** (pair / width)",
        "position * torch.exp(-pair / width * torch.tensor(10000.0).log())",
    ),
    (
        "positions",
        "base ** (-torch.arange(half) / half)",
        "1 / base ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])",
    ),
    ("block", NORM, "F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)"),
    ("block", "F.gelu(self.up(x))", "(lambda z: z * (1 + torch.erf(z / 2**0.5)) / 2)(self.up(x))"),
    ("byte_pairs", COUNT, "__import__('collections').Counter(counts).most_common(1)[0][0]"),
]
"""Exercise, lines of the solution, other right lines."""

WRONG = [
    ("multi_head", "self.output(merge_heads(heads))", "self.output(merge_heads(heads))[:1]"),
    ("multi_head", "self.output(merge_heads(heads))", "self.output(merge_heads(heads)).squeeze()"),
    (
        "multi_head",
        "value, mask)",
        "value, None if mask is None else mask.reshape(-1, x.shape[1]))",
    ),
    ("multi_head", "value, mask)", "value, mask if x.shape[1] < 5 else None)"),
    ("multi_head", "self.weights(weights)", "self.weights(weights.detach())"),
    (
        "multi_head",
        "group = self.heads // self.kv_heads",
        "group = 2 - (self.heads == self.kv_heads)",
    ),
    ("multi_head", "query = split_heads", "x -= x.mean()\n        query = split_heads"),
    (
        "multi_head",
        "return 2 * depth * length * kv_heads * head_width",
        "return 128 * depth * length * kv_heads",
    ),
    ("positions", "10000 ** (pair / width)", "10000 ** (pair / 4)"),
    ("positions", "positions.unsqueeze(-1)", "positions.clamp(max=64).unsqueeze(-1)"),
    ("positions", "half = x.shape[-1] // 2", "half = x.shape[-1] // 2\n    x = x.detach()"),
    ("positions", "first, second", "x /= 2\n    first, second"),
    ("positions", "* distance", "* distance.clamp(max=3)"),
    ("block", NORM, "F.layer_norm(x, x.shape[-1:], self.weight, self.bias)"),
    ("block", "(x - mean)", "x.sub_(mean)"),
    ("block", NORM, NORM.replace("self.bias", "self.bias.mean()")),
    ("block", "self.down(F.gelu(self.up(x)))", "self.down(F.gelu(self.up(x)) * 1.001)"),
    ("block", "(x), mask)", "(x), mask if x.shape[1] < 4 else None)"),
    ("block", "x = x + self.attention", "x = 2 * x + self.attention"),
    ("byte_pairs", "max(counts.values(), default=0)", "max(counts.values())"),
    ("byte_pairs", "range(256, 256 + count)", "range(max(ids, default=0) + 1, 256 + count)"),
    ("byte_pairs", BYTES, BYTES.replace("text.", "text.strip().")),
    ("byte_pairs", BYTES, BYTES.replace("utf-8", "latin-1")),
    ("byte_pairs", "merge(ids, pair, 256 + number)", "merge(ids, merges.pop(0), 256 + number)"),
]
"""Exercise, lines of the solution, lines that are right for some inputs only."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("name", "old", "new"), RIGHT)
def test_another_right_solution_passes(name: str, old: str, new: str, tmp_path: Path) -> None:
    report = report_with(tmp_path, name, old, new)
    assert report.state == "passed", [result.message for result in report.results]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_a_special_case_fails(name: str, old: str, new: str, tmp_path: Path) -> None:
    assert report_with(tmp_path, name, old, new).state == "failed"


def test_the_expected_tokens_are_those_of_the_tokenizers_library() -> None:
    letters = random.Random(0).choices("ab é", k=300)
    text = "".join(letters)
    merges = byte_pairs.learn(list(text.encode()), 30)
    assert len(merges) == 30

    # One character for each byte; tokens must differ as strings for the library.
    named = [piece.decode("latin-1") for piece in byte_pairs.pieces(merges)]
    assert len(set(named)) == len(named)
    vocabulary = {piece: token for token, piece in enumerate(named)}
    by_name = [(named[first], named[second]) for first, second in merges]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=by_name))

    for sample in (text, text[::-1], "baba é", ""):
        expected = library.encode(sample.encode().decode("latin-1")).ids
        assert byte_pairs.encoded(sample, merges) == expected


def test_a_change_in_place_is_found() -> None:
    x = torch.ones(2)
    with expect_untouched("f", x=x):
        x + 1

    with pytest.raises(Failed, match="f changes its input x in place"), expect_untouched("f", x=x):
        x += 1
