"""The walk through a model has the numbers of the forward pass, in every family."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv import plugins
from qkv.insight.inspect.logit_lens import logit_lens, next_tokens
from qkv.insight.inspect.model_input import logits, read
from qkv.insight.walk.head_walk import walk_heads
from qkv.insight.walk.model_walk import ModelWalk, walk_model
from qkv.insight.walk.stack_walk import StackWalk
from qkv.models import build
from qkv.models.configs import OwnGPTConfig
from qkv.models.sites import attention_sites, predicts_tokens
from qkv.nn.hooks import capture
from qkv.text import train
from support.families import (
    BERT_KINDS,
    GPT_KINDS,
    RNN_KINDS,
    RNN_LM_KINDS,
    TRANSFORMER_KINDS,
    bert,
    gpt,
    rnn,
    rnn_lm,
    transformer,
    words,
)
from support.own_gpt_files import write_own_gpt
from support.readings import reading
from support.small_task_models import small_tuned

T, S = 6, 5
TOKENIZER = train("words", ["a b c d e f g h i"], 13)
STACKED = {gpt: GPT_KINDS, bert: BERT_KINDS, transformer: TRANSFORMER_KINDS}
RECURRENT = {rnn: RNN_KINDS, rnn_lm: RNN_LM_KINDS}


def cases(makers: dict[Any, Any]) -> list[tuple[Any, str]]:
    return [
        (make, kind) for make, kinds in makers.items() for kind in kinds if "activation" not in kind
    ]


def named(value: Any) -> Any:
    return getattr(value, "__name__", value)


def input_of(model: Any) -> Any:
    ids = words(T).tolist()
    if not model.has_source:
        return reading(ids)
    vocabulary = getattr(model.config, "source_vocabulary", None) or 13
    return reading(ids, words(S, vocabulary=vocabulary).tolist())


def close(one: Tensor, other: Tensor, by: float = 1e-9) -> None:
    assert_close(one, other, rtol=0, atol=by)


def check_sums(model: Any, stack: StackWalk) -> None:
    """Each part: the stream before plus the addition, in a post-norm model the norm of that."""
    for block, parts in zip(model.stacks[stack.name].blocks, stack.blocks, strict=True):
        for part in parts:
            total = part.before + part.added
            residual = getattr(block, f"{part.name}_residual")
            if residual.before:
                close(part.after, total)
                close(required(part.read), residual.norm(part.before))
            else:
                close(part.after, residual.norm(total))
                close(required(part.read), part.before)
        for part, following in pairwise(parts):
            close(part.after, following.before)


def required(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def check_embedding(model: Any, stack: StackWalk) -> None:
    """Token and position are what the embedding joins."""
    embedding = stack.embedding
    parts = embedding.token
    if embedding.position is not None:
        parts = {
            "sum": lambda a, b: a + b,
            "product": lambda a, b: a * b,
            "concatenate": lambda a, b: torch.cat([a, b], dim=-1),
        }[embedding.join](parts, embedding.position)
    if embedding.segment is not None:
        parts = parts + embedding.segment
    module = model.embedding
    if stack.name == "encoder" and model.source_embedding is not None:
        module = model.source_embedding
    assert embedding.normed == (module.norm is not None)
    if embedding.normed:
        parts = module.norm(parts)
    close(embedding.output, parts)


@pytest.mark.parametrize(("make", "kind"), cases(STACKED), ids=named)
@torch.no_grad()
def test_every_stack(make: Any, kind: str) -> None:
    torch.manual_seed(0)
    model = make(**STACKED[make][kind])
    text = input_of(model)
    walk = walk_model(model, text, TOKENIZER)
    with capture(model, "*") as captured:
        expected = logits(model, text)[0]

    assert [stack.name for stack in walk.stacks] == list(model.stacks)
    for stack in walk.stacks:
        check_embedding(model, stack)
        check_sums(model, stack)
        points = [f"{stack.name}.blocks.0.before"]
        points += [f"{stack.name}.blocks.{layer}.after" for layer in range(len(stack.blocks))]
        for x, point in zip(stack.stream, points, strict=True):
            close(x, captured[point][0])
        close(stack.output, captured[f"{stack.name}.output"][0])

    check_predictions(model, text, walk, expected)
    assert walk.position_kind == model.config.position
    assert (walk.positions is None) == (model.config.position == "none")


def check_predictions(model: Any, text: Any, walk: ModelWalk, expected: Tensor) -> None:
    """The last lens is the model's own prediction, and so are logits and softmax."""
    assert walk.next is not None
    assert walk.lens is not None
    own = next_tokens(model, TOKENIZER, text, top=3)
    assert walk.lens[-1] == own
    assert walk.lens == logit_lens(model, TOKENIZER, text, top=3)
    for row, scores in zip(walk.next, expected, strict=True):
        for token in row:
            assert token.logit == pytest.approx(float(scores[token.id]), abs=1e-4)
            assert token.probability == pytest.approx(float(scores.softmax(-1)[token.id]), abs=1e-6)


@pytest.mark.parametrize(("make", "kind"), cases(RECURRENT), ids=named)
@torch.no_grad()
def test_every_rnn(make: Any, kind: str) -> None:
    torch.manual_seed(0)
    model = make(**RECURRENT[make][kind])
    text = input_of(model)
    walk = walk_model(model, text, TOKENIZER)
    expected = logits(model, text)[0]
    steps = {step.name: step.vectors for step in walk.steps}

    assert walk.stacks == []
    assert walk.position_kind == "recurrent"
    close(steps["embedding"], model.embedding.weight[list(text.text.ids)], by=0)
    last = steps["state"]
    if model.has_source:
        close(steps["source_embedding"], model.source_embedding.weight[list(text.source.ids)], by=0)
        state = model.start(torch.tensor([text.source.ids]))
        if state.encoded is not None:
            close(steps["encoder"], state.encoded[0])
    if "context" in steps:
        last = torch.tanh(model.combine(torch.cat([steps["state"], steps["context"]], dim=-1)))
        close(steps["hidden"], last)
        # The decoder's state after a token is the query before the next one.
        if not getattr(model.config, "residual", False):
            close(steps["query"][1:], steps["state"][:-1])
    close(model.logits(last), expected)
    assert walk.next is not None
    assert [row[0].id for row in walk.next] == expected.argmax(-1).tolist()


def test_the_heads_add_what_the_walk_of_each_head_writes() -> None:
    model = transformer(head_width=6)
    text = input_of(model)
    walk = walk_model(model, text, TOKENIZER)
    names = []
    for site in attention_sites(model):
        for layer in range(site.depth):
            names += [(site.kind, layer, head) for head in range(site.heads)]
    heads = walk_heads(model, text, TOKENIZER, names)

    for (kind, layer, head), one in heads.items():
        encoder, decoder = walk.stacks
        stack = encoder if kind == "encoder" else decoder
        part = stack.blocks[layer][1 if kind == "cross" else 0]
        assert part.name == ("cross_attention" if kind == "cross" else "attention")
        lengths = required(part.heads)[head]
        close(lengths.double(), required(one.written).norm(dim=-1), by=1e-5)


def test_a_task_model_and_an_encoder_without_a_token_head() -> None:
    model, tokenizer = small_tuned("classify", "bert")
    walk = walk_model(model, read(model, tokenizer, "the cat"), tokenizer)
    assert (walk.next is None) == (not predicts_tokens(model))
    assert len(walk.stacks[0].blocks) == len(next(iter(model.stacks.values())).blocks)

    encoder = bert(mlm_head=False)
    walk = walk_model(encoder, input_of(encoder), TOKENIZER)
    assert walk.next is None
    assert walk.lens is None


def test_a_gpt_of_a_students_own(tmp_path: Path) -> None:
    spec = plugins.allow_file(f"{write_own_gpt(tmp_path)}:GPT", "model")
    sizes: dict[str, Any] = {"vocabulary": 13, "context": 16, "width": 16, "depth": 2, "heads": 4}
    model = build(OwnGPTConfig(**sizes, model=spec))
    text = reading(words(T).tolist())
    (stack,) = walk_model(model, text, TOKENIZER).stacks
    with capture(model, "*") as captured:
        logits(model, text)
    for layer, parts in enumerate(stack.blocks):
        assert [part.name for part in parts] == ["attention", "feed_forward"]
        attention, feed_forward = parts
        close(attention.before, captured[f"stack.blocks.{layer}.before"][0].detach(), by=0)
        total = attention.before + attention.added + feed_forward.added
        close(total, captured[f"stack.blocks.{layer}.after"][0].detach(), by=1e-5)


def test_positions() -> None:
    model = gpt()
    text = reading(words(T).tolist())
    assert walk_model(model, text, TOKENIZER).position == T - 1
    assert walk_model(model, text, TOKENIZER, 2).position == 2
    assert walk_model(model, text, TOKENIZER, -2).position == T - 2
    with pytest.raises(ValueError, match="position: expected 0 to 5, not 6"):
        walk_model(model, text, TOKENIZER, 6)
    assert TOKENIZER.mask is not None
    masked = reading([1, TOKENIZER.mask, 3])
    assert walk_model(bert(), masked, TOKENIZER).position == 1


def test_a_known_lens_is_not_computed_again() -> None:
    model = gpt()
    text = reading(words(T).tolist())
    known = logit_lens(model, TOKENIZER, text, top=5)
    walk = walk_model(model, text, TOKENIZER, lens=known)
    assert walk.lens == walk_model(model, text, TOKENIZER).lens
