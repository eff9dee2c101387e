"""Diverse beam search equals a plain implementation, and its groups begin differently."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.generation.search.beam_search import beam_search
from support.families import rnn, transformer, words
from support.shape_checks import unchecked
from unit.generation.search.test_beam_search import divided

START, END = 1, 2


def diverse(
    model: Any, source: Tensor, *, beams: int, groups: int, diversity: float, length: int
) -> list[list[int]]:
    """Diverse beam search in plain Python: whole forward passes, all tokens sorted."""
    width = beams // groups
    open_: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(groups)]
    for generated in range(1, length + 1):
        spoken: Counter[int] = Counter()
        for group in range(groups):
            if not open_[group]:
                continue
            ids = torch.tensor([[START, *text] for _, text in open_[group]])
            with torch.no_grad(), unchecked():
                table = model(source.expand(len(ids), -1), ids)[:, -1].log_softmax(-1).tolist()
            candidates = [
                (total + value - diversity * spoken[token], total + value, text, token)
                for (total, text), row in zip(open_[group], table, strict=True)
                for token, value in enumerate(row)
            ]
            candidates.sort(key=lambda item: -item[0])
            for _, total, text, token in candidates[:width]:
                if token == END or generated == length:
                    ended[group].append(
                        (divided(total, generated), text if token == END else [*text, token])
                    )
            going = [
                (total, [*text, token]) for _, total, text, token in candidates if token != END
            ][:width]
            open_[group] = [] if generated == length else going
            spoken.update(text[-1] for _, text in open_[group])
    best = [item for group in ended for item in sorted(group, key=lambda item: -item[0])[:width]]
    return [
        list(text)
        for text in dict.fromkeys(
            tuple(text) for _, text in sorted(best, key=lambda item: -item[0])
        )
    ]


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("diversity", [0.0, 0.4, 3.0])
def test_groups_find_what_a_naive_diverse_search_finds(groups: int, diversity: float) -> None:
    for model in (transformer(), rnn()):
        for source in words(2, 1, 5):
            how: dict[str, Any] = {
                "beams": 6,
                "groups": groups,
                "diversity": diversity,
                "length": 5,
            }
            (actual,) = beam_search(model, source, start=START, end=END, n_best=6, **how)
            assert [item.ids for item in actual] == diverse(model, source, **how)


def test_groups_that_mind_each_other_begin_differently() -> None:
    model, source = transformer(), words(5, 4)
    options: dict[str, Any] = {
        "start": START,
        "end": END,
        "length": 6,
        "n_best": 4,
        "groups": 4,
        "minimum": 1,
    }
    alike = beam_search(model, source, **options)
    assert {len(row) for row in alike} == {
        1
    }  # four groups of one beam that do not mind find one thing
    apart = beam_search(model, source, diversity=100.0, **options)
    assert all(len({item.ids[0] for item in row}) == 4 for row in apart)
