"""The walk of a head has the numbers of the forward pass, in every family."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv import plugins
from qkv.insight.inspect.logit_lens import logit_lens
from qkv.insight.inspect.model_input import read
from qkv.insight.walk.head_walk import HeadWalk, walk_head, walk_heads
from qkv.insight.walk.walk_edits import WalkEdits
from qkv.insight.walk.walk_effects import walk_effects
from qkv.models import build
from qkv.models.configs import OwnGPTConfig
from qkv.models.model import backbone_of
from qkv.models.sites import attention_sites
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.hooks import capture
from qkv.text import train
from support.families import (
    BERT_KINDS,
    GPT_KINDS,
    RNN_KINDS,
    TRANSFORMER_KINDS,
    bert,
    gpt,
    rnn,
    transformer,
    words,
)
from support.own_gpt_files import MASKS, write_own_gpt
from support.readings import reading
from support.small_task_models import small_tuned

T, S = 6, 5
TOKENIZER = train("words", ["a b c d e f g h i"], 13)
MAKERS = {
    gpt: GPT_KINDS,
    bert: BERT_KINDS,
    transformer: TRANSFORMER_KINDS,
    rnn: {kind: value for kind, value in RNN_KINDS.items() if "none" not in kind},
}
CASES = [
    (make, kind) for make, kinds in MAKERS.items() for kind in kinds if "activation" not in kind
]


def input_of(model: Any) -> Any:
    """A reading, and the arguments of the same forward pass."""
    ids = words(T)
    if not model.has_source:
        return reading(ids.tolist()), (ids.unsqueeze(0),)
    vocabulary = getattr(model.config, "source_vocabulary", None) or 13
    source = words(S, vocabulary=vocabulary)
    return reading(ids.tolist(), source.tolist()), (source.unsqueeze(0), ids.unsqueeze(0))


def every_head(model: Any) -> list[tuple[str, int, int]]:
    names = []
    for site in attention_sites(model):
        for layer in range(site.depth):
            names += [(site.kind, layer, head) for head in range(site.heads)]
    return names


def weights_by_hand(walk: HeadWalk) -> Tensor:
    """softmax(score / divisor + bias), one number after the other."""
    equation = walk.equation
    weights = torch.zeros_like(walk.weights)
    for t, query in enumerate(equation.query):
        powers = {}
        for s, key in enumerate(equation.key):
            if not walk.visible[t, s]:
                continue
            if equation.additive is None:
                score = sum(float(q) * float(k) for q, k in zip(query, key, strict=True))
            else:
                terms = zip(equation.additive, query, key, strict=True)
                score = sum(float(v) * math.tanh(float(q + k)) for v, q, k in terms)
            score /= equation.divisor
            if equation.bias is not None:
                score += float(equation.bias[t, s])
            powers[s] = math.exp(score)
        for s, power in powers.items():
            weights[t, s] = power / sum(powers.values())
    return weights


@pytest.mark.parametrize(
    ("make", "kind"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_every_head_of_every_family(make: Any, kind: str) -> None:
    torch.manual_seed(0)
    model = make(**MAKERS[make][kind])
    text, arguments = input_of(model)
    names = every_head(model)
    walks = walk_heads(model, text, TOKENIZER, names)
    assert list(walks) == names

    with capture(model, "*") as captured, torch.no_grad():
        model(*arguments)

    for (place, layer, head), walk in walks.items():
        assert walk.equation.score != "other"
        assert_close(walk.weights, weights_by_hand(walk), rtol=0, atol=1e-5)
        assert_close(walk.weights @ walk.equation.value, walk.output, rtol=0, atol=1e-9)
        site = next(site for site in attention_sites(model) if site.kind == place)
        if not site.point:
            expected = torch.cat(captured.every["context"], dim=1)[0]
            assert_close(walk.output, expected, rtol=0, atol=0)
            assert (walk.written, walk.lens, walk.before) == (None, None, None)
            continue
        at = site.point.format(layer)
        for name, mine in (("scores", walk.scores), ("weights", walk.weights)):
            assert_close(mine, captured[f"{at}.{name}"][0, head], rtol=0, atol=0)
        assert_close(walk.output, captured[f"{at}.heads"][0, head], rtol=0, atol=0)


def total_written(walks: Any, kind: str, layer: int, heads: int) -> Tensor:
    return torch.stack([walks[kind, layer, head].written for head in range(heads)]).sum(0)


@pytest.mark.parametrize(
    "model",
    [
        lambda: gpt(position="rotary", kv_heads=2),
        lambda: gpt(norm_placement="after"),
        lambda: bert(),
        lambda: transformer(head_width=6),
    ],
    ids=["gpt", "norm after", "bert", "transformer"],
)
def test_what_the_heads_write_sums_to_the_output_of_attention(model: Any) -> None:
    model = model()
    text, arguments = input_of(model)
    walks = walk_heads(model, text, TOKENIZER, every_head(model))
    seen: dict[str, Tensor] = {}
    for site in attention_sites(model):
        for layer in range(site.depth):
            at = site.point.format(layer)

            def see(module: Any, inputs: Any, output: Any, at: str = at) -> None:
                seen[at] = output

            model.get_submodule(at).output.register_forward_hook(see)

    with torch.no_grad():
        model(*arguments)

    for site in attention_sites(model):
        for layer in range(site.depth):
            at = site.point.format(layer)
            written = total_written(walks, site.kind, layer, site.heads)
            bias = model.get_submodule(at).output.bias
            assert_close(written + bias, seen[at][0], rtol=0, atol=1e-9)


def test_the_residual_stream_before_attention() -> None:
    model = transformer()
    text, arguments = input_of(model)
    with capture(model, "*") as captured, torch.no_grad():
        model(*arguments)

    encoder = walk_head(model, text, TOKENIZER, kind="encoder", layer=1, head=0)
    decoder = walk_head(model, text, TOKENIZER, kind="decoder", layer=1, head=0)
    cross = walk_head(model, text, TOKENIZER, layer=1, head=0)
    assert_close(encoder.before, captured["encoder.blocks.1.before"][0])
    assert_close(decoder.before, captured["decoder.blocks.1.before"][0])

    # What all heads of cross-attention write leads from the stream before it to the one after it.
    walks = walk_heads(model, text, TOKENIZER, [("cross", 1, head) for head in range(4)])
    block: Any = model.decoder.blocks[1]
    written = total_written(walks, "cross", 1, 4)
    assert cross.before is not None
    total = cross.before + written + block.cross_attention.output.bias
    after = block.cross_attention_residual.norm(total)
    assert_close(after, captured["decoder.blocks.1.between"][0], rtol=0, atol=1e-9)


def test_rotary_vectors_turn_to_those_that_enter_the_equation() -> None:
    model = gpt(position="rotary")
    text, _ = input_of(model)
    equation = walk_head(model, text, TOKENIZER, layer=1, head=2).equation
    rotary = equation.rotary
    assert rotary is not None
    positions = torch.arange(T)
    assert_close(rotary.turned(rotary.key, positions), equation.key, rtol=0, atol=1e-6)

    # The score depends on the distance alone: both ten positions later give the same.
    query = rotary.turned(rotary.query, positions + 10)
    key = rotary.turned(rotary.key, positions + 10)
    assert_close(query @ key.T, equation.raw_scores(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("position", ["alibi", "relative"])
def test_the_bias_is_a_function_of_the_distance(position: str) -> None:
    model = gpt(position=position)
    text, _ = input_of(model)
    equation = walk_head(model, text, TOKENIZER, layer=1, head=2).equation
    steps = torch.arange(T)
    assert equation.bias_of is not None
    assert equation.bias is not None
    with torch.no_grad():
        again = equation.bias_of(steps.unsqueeze(1) - steps)
    assert_close(again.to(equation.bias), equation.bias, rtol=0, atol=1e-6)


def test_the_lens_before_is_the_logit_lens_and_the_lens_after_adds_this_head_alone() -> None:
    model = gpt()
    text, _ = input_of(model)
    walk = walk_head(model, text, TOKENIZER, layer=1, head=3)
    assert walk.lens is not None
    assert walk.before is not None
    assert walk.written is not None
    before = logit_lens(model, TOKENIZER, text)[1]
    assert [[guess.id for guess in row] for row in walk.lens.before] == [
        [guess.id for guess in row] for row in before
    ]
    with torch.no_grad():
        plain = model.logits(model.stack.norm(walk.before)).softmax(-1)
        after = model.logits(model.stack.norm(walk.before + walk.written)).softmax(-1)
    for row, guesses in zip(after, walk.lens.after, strict=True):
        for guess in guesses:
            assert guess.probability == pytest.approx(float(row[guess.id]), abs=1e-6)
    changes = walk.lens.changed[0]
    sizes = [abs(change.after - change.before) for change in changes]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(float((after - plain)[0].abs().max()), abs=1e-6)


def test_a_lens_needs_a_prediction_of_tokens() -> None:
    text, _ = input_of(transformer())
    assert walk_head(transformer(), text, TOKENIZER, kind="encoder", layer=0, head=0).lens is None
    assert walk_head(transformer(), text, TOKENIZER, kind="decoder", layer=0, head=0).lens
    model, tokenizer = small_tuned("classify", "bert")
    walk = walk_head(model, read(model, tokenizer, "a b"), tokenizer, layer=0, head=0)
    assert (walk.lens is not None) == (backbone_of(model).predicts is not None)
    assert walk.written is not None


def test_a_head_that_does_not_exist() -> None:
    model = gpt()
    text, _ = input_of(model)
    with pytest.raises(ValueError, match="layer: expected 0 to 1, not 2"):
        walk_head(model, text, TOKENIZER, layer=2, head=0)
    with pytest.raises(ValueError, match="head: expected 0 to 3, not 4"):
        walk_head(model, text, TOKENIZER, layer=0, head=4)
    with pytest.raises(ValueError, match="kind: this model has self, not cross"):
        walk_head(model, text, TOKENIZER, kind="cross", layer=0, head=0)


class Doubled(MultiHeadAttention):
    """Attention whose scores are not those of its query and key."""

    def attend(self, query: Tensor, *others: Any) -> Any:
        return super().attend(2 * query, *others)


def test_an_attention_that_scores_in_its_own_way_says_so() -> None:
    model = gpt(depth=1)
    model.stack.blocks[0].attention.__class__ = Doubled
    text, _ = input_of(model)
    walk = walk_head(model, text, TOKENIZER, layer=0, head=0)
    assert walk.equation.score == "other"
    assert_close(walk.scores.softmax(-1), walk.weights)
    check_own_rows(model, text, walk)


def check_own_rows(model: Any, text: Any, walk: HeadWalk) -> None:
    """A row set to its own weights changes nothing; the equation is not computed anew."""
    name = (None, 0, 0)
    same = WalkEdits(weights={0: walk.weights[0].tolist()})
    effects = walk_effects(model, text, TOKENIZER, name, same)
    assert_close(effects.walk.weights, walk.weights, rtol=0, atol=1e-7)
    assert_close(effects.walk.scores, walk.scores)
    assert effects.walk.equation.score == "other"
    assert effects.next is not None
    for token in effects.next.tokens:
        assert token.after == pytest.approx(token.before, abs=1e-6)

    row = [0.5, 0.25, 0.25, 0.0, 0.0, 0.0]
    changed = walk_effects(model, text, TOKENIZER, name, WalkEdits(weights={3: row})).walk
    assert changed.equation.score == "other"
    assert changed.weights[3].tolist() == row
    others = [0, 1, 2, 4, 5]
    assert_close(changed.weights[others], walk.weights[others], rtol=0, atol=0)

    refused: list[dict[str, Any]] = [
        {"divisor": 1.0},
        {"lift_mask": True},
        {"swap_keys": [(0, 1)]},
        {"move": {0: 1}},
    ]
    for edits in refused:
        with pytest.raises(ValueError, match=f"{next(iter(edits))}: this module computes its"):
            walk_effects(model, text, TOKENIZER, name, WalkEdits(**edits))


def own_gpt(folder: Path, **changes: str) -> Any:
    file = plugins.allow_file(f"{write_own_gpt(folder, **changes)}:GPT", "model")
    config = OwnGPTConfig(model=file, vocabulary=13, context=16, width=16, depth=2, heads=4)
    return build(config).eval()


def test_a_student_s_own_gpt(tmp_path: Path) -> None:
    model = own_gpt(tmp_path)
    text, arguments = input_of(model)
    walks = walk_heads(model, text, TOKENIZER, every_head(model))
    with capture(model, "*") as captured, torch.no_grad():
        model(*arguments)
    for (_, layer, head), walk in walks.items():
        assert walk.equation.score == "scaled_dot"
        assert_close(walk.weights, weights_by_hand(walk), rtol=0, atol=1e-5)
        heads = captured[f"stack.blocks.{layer}.attention.heads"]
        assert_close(walk.output, heads[0, head])
        assert walk.lens is not None
        assert walk.visible.equal(torch.ones(T, T).tril().bool())
    edits = WalkEdits(divisor=0.5, lift_mask=True)
    changed = walk_effects(model, text, TOKENIZER, (None, 0, 1), edits).walk
    raw = walks["self", 0, 1].equation.raw_scores()
    assert_close(changed.weights, (raw / 0.5).softmax(-1), rtol=0, atol=1e-5)
    row = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    rows = walk_effects(model, text, TOKENIZER, (None, 0, 1), WalkEdits(weights={2: row})).walk
    assert rows.equation.score == "scaled_dot"  # edited weights do not tell against the equation
    assert rows.weights[2].tolist() == row


def test_a_student_s_attention_that_forgets_the_divisor(tmp_path: Path) -> None:
    model = own_gpt(tmp_path, ex04_masks=MASKS.replace(" / query.shape[-1] ** 0.5", ""))
    torch.manual_seed(0)
    for projection in (model.stack.blocks[0].attention.query, model.stack.blocks[0].attention.key):
        torch.nn.init.normal_(projection.weight, std=0.5)

    text, arguments = input_of(model)
    walk = walk_head(model, text, TOKENIZER, layer=0, head=0)
    with capture(model, "*") as captured, torch.no_grad():
        model(*arguments)

    expected = captured["stack.blocks.0.attention.weights"][0, 0]
    assert (weights_by_hand(walk) - expected).abs().max() > 0.01  # the equation would be wrong
    assert walk.equation.score == "other"
    assert_close(walk.weights, expected, rtol=0, atol=0)
    assert_close(walk.scores.softmax(-1), expected)
    assert walk.visible.equal(torch.ones(T, T).tril().bool())
    check_own_rows(model, text, walk)
