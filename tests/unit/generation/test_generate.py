"""Decoding with a state equals whole forward passes, and rows do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.generation import generate, row_seeds, translate
from qkv.generation.sampling import distribution
from qkv.models import RNN, Transformer
from qkv.nn.cache import SegmentMemory
from support.families import (
    GPT_KINDS,
    RNN_KINDS,
    TRANSFORMER_KINDS,
    V,
    gpt,
    rnn,
    sources,
    transformer,
    words,
)
from support.shape_checks import unchecked

ROWS_ALONE = pytest.mark.usefixtures(
    "without_shape_checks"
)  # many runs of models whose shapes are checked above
B, S, LENGTH = 4, 6, 9
START, END = 1, 2
PADDING_MASK = torch.arange(S) < torch.tensor([[6], [2], [4], [1]])


def by_whole_passes(
    scores: Callable[[Tensor], Tensor], ids: Tensor, length: int
) -> list[list[int]]:
    """Greedy decoding with a whole forward pass for every token."""
    first = ids.shape[1]
    with unchecked():
        for _ in range(length):
            ids = torch.cat([ids, scores(ids)[:, -1:].argmax(-1)], dim=1)
    return ids[:, first:].tolist()


def up_to(end: int, rows: list[list[int]]) -> list[list[int]]:
    return [row[: row.index(end)] if end in row else row for row in rows]


def two_way(kind: dict[str, Any]) -> Transformer | RNN:
    return rnn(**kind) if "cell" in kind else transformer(**kind)


TRANSLATORS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "learned": {"position": "learned"},
    "rotary": {"position": "rotary"},
    "gru": {"cell": "gru"},
    "lstm": {"cell": "lstm", "depth": 2},
    "rnn without attention": {"cell": "rnn", "attention": "none"},
}
GENERATORS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "alibi": {"position": "alibi"},
    "window": {"position": "rotary", "window": 3},
    "transformer-xl": {"position": "relative", "memory": 5},
}


@pytest.mark.parametrize("kind", GPT_KINDS)
def test_gpt_generates_as_whole_passes_do(kind: str) -> None:
    model, ids = gpt(**GPT_KINDS[kind]), words(B, 4)
    right = by_whole_passes(model, ids, LENGTH)
    assert generate(model, ids, length=LENGTH, temperature=0) == right
    assert generate(model, ids, length=LENGTH, temperature=0, end=END) == up_to(END, right)


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_transformer_generates_as_whole_passes_do(kind: str) -> None:
    assert_translates_as_whole_passes(transformer(**TRANSFORMER_KINDS[kind]))


@pytest.mark.parametrize("kind", RNN_KINDS)
def test_rnn_generates_as_whole_passes_do(kind: str) -> None:
    assert_translates_as_whole_passes(rnn(**RNN_KINDS[kind]))


def assert_translates_as_whole_passes(model: Transformer | RNN) -> None:
    source = sources(model.config, B, S)
    for padding_mask in (None, PADDING_MASK):

        def scores(target: Tensor, padding_mask: Tensor | None = padding_mask) -> Tensor:
            return model(source, target, source_padding_mask=padding_mask)

        right = by_whole_passes(scores, torch.full((B, 1), START), LENGTH)
        for end in (END, right[1][4]):
            assert translate(
                model, source, padding_mask, start=START, end=end, length=LENGTH
            ) == up_to(end, right)


def test_transformer_xl_with_a_sufficient_memory_generates_as_whole_passes_do() -> None:
    model, ids = gpt(position="relative", memory=50), words(B, 4)
    assert generate(model, ids, length=LENGTH, temperature=0) == by_whole_passes(model, ids, LENGTH)


@pytest.mark.parametrize("memory", [1, 3, 8])
def test_transformer_xl_reads_a_long_prompt_in_segments_of_its_context(memory: int) -> None:
    model, ids = gpt(position="relative", memory=memory, context=4), words(B, 11)
    state = model.start()
    assert isinstance(state, SegmentMemory)
    scores = [model.decode(segment, state) for segment in ids.split([4, 4, 3], dim=1)][-1]
    right = []
    for _ in range(LENGTH):
        right.append(scores[:, -1:].argmax(-1))
        scores = model.decode(right[-1], state)
    assert generate(model, ids, length=LENGTH, temperature=0) == torch.cat(right, dim=1).tolist()


@ROWS_ALONE
@pytest.mark.parametrize("kind", GENERATORS)
def test_a_row_ends_at_its_own_end_and_the_others_go_on(kind: str) -> None:
    """With any token as the end, rows leave at different steps and no other row changes."""
    model, ids = gpt(**GENERATORS[kind]), words(B, 3)
    whole = generate(model, ids, length=12, seed=8)
    assert {len(row) for row in whole} == {12}
    stops = [up_to(end, whole) for end in range(V)]
    assert any(len({len(row) for row in rows}) == B for rows in stops)  # so the test covers it
    for end in range(V):
        assert generate(model, ids, length=12, seed=8, end=end) == stops[end]


@ROWS_ALONE
@pytest.mark.parametrize("kind", TRANSLATORS)
def test_a_translation_ends_at_its_own_end_and_the_others_go_on(kind: str) -> None:
    model, source = two_way(TRANSLATORS[kind]), words(B, S)
    actual = {
        end: translate(
            model, source, PADDING_MASK, start=START, end=end, length=8, temperature=1.5, seed=1
        )
        for end in range(V)
    }
    longest = [max((actual[end][row] for end in range(V)), key=len) for row in range(B)]
    for end in range(V):
        for row in range(B):
            assert actual[end][row] == longest[row][: len(actual[end][row])]
            assert end not in actual[end][row]
    assert any(len({len(row) for row in rows}) > 2 for rows in actual.values())


@ROWS_ALONE
@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize(
    "choice", [{"temperature": 0.0}, {}, {"temperature": 1.5, "top_k": 6, "top_p": 0.9}]
)
def test_a_row_does_not_depend_on_its_neighbours(kind: str, choice: dict[str, Any]) -> None:
    model, ids = gpt(**GENERATORS[kind]), words(B, 5)
    together = generate(model, ids, length=LENGTH, end=END, seed=3, **choice)
    assert len({tuple(row) for row in together}) > 1
    for row, seed in enumerate(row_seeds(3, B)):
        alone = generate(model, ids[row : row + 1], length=LENGTH, end=END, seed=[seed], **choice)
        assert alone == [together[row]]


@ROWS_ALONE
@pytest.mark.parametrize("kind", TRANSLATORS)
@pytest.mark.parametrize("choice", [{}, {"temperature": 1.5, "top_k": 6, "top_p": 0.9}])
def test_padded_sources_are_translated_as_each_alone(kind: str, choice: dict[str, Any]) -> None:
    model, source = two_way(TRANSLATORS[kind]), words(B, S)
    options: dict[str, Any] = {"start": START, "end": END, "length": LENGTH, **choice}
    together = translate(model, source, PADDING_MASK, seed=3, **options)
    assert len({tuple(row) for row in together}) > 1
    for row, seed in enumerate(row_seeds(3, B)):
        alone = translate(model, source[row : row + 1, PADDING_MASK[row]], seed=[seed], **options)
        assert alone == [together[row]]


def test_equal_prompts_draw_tokens_as_often_as_they_are_likely() -> None:
    """Pearson's chi-square with 12 degrees of freedom passes 32.9 once in a thousand times."""
    model, rows = gpt(), 5000
    ids = words(1, 3)
    drawn = torch.tensor(generate(model, ids.expand(rows, -1), length=1, seed=2))
    expected = rows * distribution(model(ids)[:, -1])[0]
    count = torch.bincount(drawn[:, 0], minlength=V)
    assert ((count - expected) ** 2 / expected).sum() < 32.9


def test_a_seed_reproduces_and_a_longer_text_begins_like_a_shorter() -> None:
    model, ids = gpt(position="rotary"), words(B, 3)
    text = generate(model, ids, length=20, seed=1)
    assert generate(model, ids, length=20, seed=1) == text
    assert generate(model, ids, length=6, seed=1) == [row[:6] for row in text]
    assert generate(model, ids, length=20, seed=2) != text
    assert generate(model, ids, length=20) != generate(model, ids, length=20)


def test_the_global_random_state_is_not_touched() -> None:
    model, ids = gpt(), words(B, 3)
    before = torch.get_rng_state()
    generate(model, ids, length=3)
    generate(model, ids, length=3, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("position", ["learned", "rotary"])
@pytest.mark.parametrize("prompt", [1, 10, 16])
def test_a_text_ends_where_the_context_is_full(position: str, prompt: int) -> None:
    model, ids = gpt(position=position, context=16), words(B, prompt)
    full = 16 - prompt + 1  # the last token is not read, so it needs no position
    for length in (1, full, full + 1, 30):
        actual = generate(model, ids, length=length, seed=0)
        assert {len(row) for row in actual} == {min(length, full)}
    if position == "rotary":
        assert {len(row) for row in generate(model, ids, length=30, seed=0, beyond="extend")} == {
            30
        }
    else:
        with pytest.raises(ValueError, match=r"beyond: .*positions"):
            generate(model, ids, length=30, beyond="extend")


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_a_translation_with_learned_positions_ends_there_too(position: str) -> None:
    model = transformer(position=position, context=7)
    actual = translate(
        model, words(40, S), start=START, end=END, length=12, temperature=2.0, seed=0
    )
    assert max(len(row) for row in actual) == (7 if position == "learned" else 12)


def test_dropout_is_off_while_generating_and_back_after() -> None:
    model, ids = gpt(dropout=0.6), words(B, 3)
    right = generate(model, ids, length=LENGTH, temperature=0)
    model.train()
    model.stack.blocks[1].eval()  # someone froze it
    before = {name: module.training for name, module in model.named_modules()}
    assert generate(model, ids, length=LENGTH, temperature=0) == right
    assert {name: module.training for name, module in model.named_modules()} == before
    with torch.no_grad():
        model.embedding.token.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="no likeliest token"):
        generate(model, ids, length=3)
    assert {name: module.training for name, module in model.named_modules()} == before


def test_no_autograd_graph_is_built() -> None:
    captured = []
    model = gpt()
    model.embedding.register_forward_hook(
        lambda module, args, output: captured.append(output.requires_grad)
    )
    generate(model, words(1, 3), length=2)
    assert captured == [False, False]


def test_no_rows_give_an_empty_list() -> None:
    assert generate(gpt(), words(0, 3), length=5) == []
    assert translate(rnn(), words(0, 3), start=START, end=END, length=5) == []


@pytest.mark.gpu
@pytest.mark.usefixtures(
    "qkv_unchecked"
)  # Triton cannot compile a function that the shape checks have rewritten
@pytest.mark.parametrize("kind", GENERATORS)
def test_a_gpu_generates_what_the_cpu_generates(kind: str) -> None:
    from qkv.generation import generate
    from qkv.models import GPT, GPTConfig

    like, ids = gpt(**GENERATORS[kind]), words(B, 5)
    model = GPT(GPTConfig(**vars(like.config))).eval()
    model.load_state_dict(like.state_dict())
    choices: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9},
    ]
    right = [generate(model, ids, length=LENGTH, end=END, seed=3, **choice) for choice in choices]
    model.cuda()
    assert [
        generate(model, ids.cuda(), length=LENGTH, end=END, seed=3, **choice) for choice in choices
    ] == right


# Bad input


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "length: expected 1 token or more, not 0"),
        ({"end": 13}, "end: expected an id from 0 to 12, not 13"),
        ({"temperature": -1.0}, "temperature: expected 0"),
        ({"top_k": 0}, "top_k: expected 1 or more"),
        ({"seed": -4}, "seed: expected 0 or more"),
        ({"seed": [1, 2]}, "seed: expected one, or one for each of 4 rows, not 2"),
        (
            {"prompts": torch.zeros(4, 0, dtype=torch.long)},
            "prompts: expected one id or more in each row",
        ),
        (
            {"prompts": torch.zeros(1, 2, 3).long()},
            r"prompts: expected token ids of shape \(T,\) or \(B, T\), not \(1, 2",
        ),
        ({"prompts": torch.full((4, 2), 13)}, "prompts: expected ids from 0 to 12, found 13"),
        (
            {"prompts": torch.zeros(4, 17, dtype=torch.long)},
            "prompts: 17 tokens are more than the model's context of 16; shorten",
        ),
    ],
)
def test_a_wrong_question_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    options = {"prompts": words(B, 3), "length": 5} | wrong
    with pytest.raises(ValueError, match=message):
        generate(gpt(position="learned"), options.pop("prompts"), **options)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_wrong_source_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="start: expected an id from 0 to 12, not -1"):
        translate(rnn(), words(B, S), start=-1, end=END, length=5)
    with pytest.raises(
        ValueError, match=r"source: expected token ids of shape \(T,\) or \(B, T\), not \(1, 6, 1\)"
    ):
        translate(rnn(), words(1, S, 1), start=START, end=END, length=5)
    with pytest.raises(
        ValueError, match=r"padding_mask: expected the source's shape, \(4, 6\), not \(6,\)"
    ):
        translate(
            rnn(), words(B, S), torch.ones(S, dtype=torch.bool), start=START, end=END, length=5
        )
    with pytest.raises(ValueError, match=r"padding_mask: .*leave it out for lists"):
        translate(rnn(), [[1, 2]], torch.ones(1, 2).bool(), start=START, end=END, length=5)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_model_of_the_other_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model: expected a GPT.* not RNN"):
        generate(rnn(), words(B, 3), length=5)
    with pytest.raises(TypeError, match=r"model: .*Transformer"):
        translate(gpt(), words(B, 3), start=START, end=END, length=5)
