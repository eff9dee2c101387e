"""An edit changes the weights or heads that it names and nothing else, and the output follows."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.inspect.attention_edits import Edit, apply_edits, check_edit
from qkv.insight.inspect.capture import unmasked
from qkv.insight.inspect.model_input import Reading, Side
from qkv.nn.hooks import add_hook, capture
from support.families import KINDS, bert, gpt, rnn, transformer, words


def reading(T: int = 5, S: int | None = None) -> Reading:
    text = Side(tuple(words(T).tolist()), (), ())
    if S is None:
        return Reading(text)
    return Reading(text, Side(tuple(words(S).tolist()), (), ()))


def weights(model: Any, layer: int, *edits: str, ids: Tensor) -> Tensor:
    """The weights of a layer with edits; checks that the heads' output follows from them."""
    point = f"stack.blocks.{layer}.attention"
    with (
        torch.no_grad(),
        apply_edits(model, [Edit.read(edit) for edit in edits]),
        capture(model, f"{point}.*") as captured,
    ):
        model(ids)
    heads = captured[f"{point}.weights"] @ captured[f"{point}.value"]
    assert_close(heads, captured[f"{point}.heads"])
    return captured[f"{point}.weights"][0]  # (H, T, S)


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("3.5=off", Edit(3, 5)),
        ("3.5=0.5", Edit(3, 5, 0.5)),
        ("3.*=off", Edit(3, None)),
        ("3.5:7>2=off", Edit(3, 5, 0.0, (7, 2))),
        ("3.5:7>2=0.8", Edit(3, 5, 0.8, (7, 2))),
        ("3.5=uniform", Edit(3, 5, "uniform")),
        ("cross:1.0=first", Edit(1, 0, "first", None, "cross")),
        ("encoder:1.*:0>2=1", Edit(1, None, 1.0, (0, 2), "encoder")),
    ],
)
def test_edits_are_parsed_and_written(text: str, edit: Edit) -> None:
    assert Edit.read(text) == edit
    assert str(edit) == text


def test_a_cut_edge_leaves_rows_that_sum_to_1() -> None:
    model, ids = gpt(), words(1, 5)
    before = weights(model, 1, ids=ids)
    after = weights(model, 1, "1.2:3>1=off", ids=ids)
    expected = before.clone()
    expected[2, 3, 1] = 0
    expected[2, 3] /= expected[2, 3].sum()
    assert_close(after, expected)
    assert_close(after.sum(-1), torch.ones(4, 5, dtype=torch.float64))


@pytest.mark.parametrize("weight", ["0.8", "1", "0.01"])
def test_a_weight_that_is_set(weight: str) -> None:
    model, ids = bert(), words(1, 5)
    before = weights(model, 0, ids=ids)
    after = weights(model, 0, f"0.1:0>4={weight}", f"0.3:2>2={weight}", ids=ids)
    expected = before.clone()
    value = float(weight)
    for head, query, key in ((1, 0, 4), (3, 2, 2)):
        row = expected[head, query]
        row *= (1 - value) / (1 - row[key])
        row[key] = value
    assert_close(after, expected)


@pytest.mark.parametrize("make", [gpt, bert])
def test_patterns(make: Any) -> None:
    model, ids = make(), words(1, 4)
    before = weights(model, 1, ids=ids)
    causal = make is gpt
    visible = torch.ones(4, 4, dtype=torch.float64)
    if causal:
        visible = visible.tril()
    patterns = {
        "uniform": visible / visible.sum(-1, keepdim=True),
        "first": torch.eye(4, dtype=torch.float64)[[0, 0, 0, 0]],
        "previous": torch.eye(4, dtype=torch.float64)[[0, 0, 1, 2]],
    }
    for name, pattern in patterns.items():
        after = weights(model, 1, f"1.2={name}", ids=ids)
        assert_close(after[2], pattern)
        assert_close(after[[0, 1, 3]], before[[0, 1, 3]])
        assert_close(weights(model, 1, f"1.*={name}", ids=ids), pattern.expand(4, -1, -1))


def test_the_first_token_is_the_first_visible_one() -> None:
    model, ids = gpt(window=2), words(1, 4)
    assert_close(
        weights(model, 0, "0.0=first", ids=ids)[0], torch.eye(4, dtype=torch.float64)[[0, 0, 1, 2]]
    )
    assert_close(
        weights(model, 0, "0.0=uniform", ids=ids)[0, 3], torch.tensor([0, 0, 0.5, 0.5]).double()
    )


@pytest.mark.parametrize(
    "kind", [name for name in KINDS if "window" in name or name in ("strided", "fixed")]
)
@pytest.mark.parametrize("make", [gpt, bert])
def test_only_a_visible_edge_can_be_changed(make: Any, kind: str) -> None:
    """An edge that the mask hides can neither be set nor cut."""
    model, ids = make(**KINDS[kind]), words(1, 8)
    with torch.no_grad(), capture(model, "stack.blocks.0.attention.scores") as captured:
        model(ids)
    visible = ~captured["stack.blocks.0.attention.scores"][0, 1].isneginf()  # (T, S)
    for query, key in product(range(8), repeat=2):
        for value, text in product((0.0, 0.4), (reading(8), None)):
            edit = Edit(0, 1, value, (query, key))
            if visible[query, key] and visible[query].sum() > 1:
                check_edit(model, edit, text)
            else:
                with pytest.raises(
                    ValueError, match=f"^change: 0.1:{query}>{key}=.*: token {query} .*see"
                ):
                    check_edit(model, edit, text)
    edit = Edit.read("0.1:7>0=0.4")
    with pytest.raises(ValueError, match=r"change: .*mask"), apply_edits(gpt(window=3), [edit]):
        pass


def test_a_model_without_its_mask_sees_later_tokens() -> None:
    model = gpt()
    with unmasked(model):
        check_edit(model, Edit.read("1.0:0>0=0.4"), reading())
        check_edit(model, Edit.read("1.0:2>3=off"))


def test_heads_off_and_scaled() -> None:
    model, ids = gpt(depth=2), words(1, 5)
    for text, heads, by in (
        ("0.1=off", [1], 0),
        ("1.2=0.5", [2], 0.5),
        ("1.*=off", [0, 1, 2, 3], 0),
        ("0.3=-2", [3], -2),
    ):
        edit = Edit.read(text)

        def change(value: Tensor, name: str, heads: list[int] = heads, by: float = by) -> Tensor:
            value = value.clone()
            value[:, heads] *= by
            return value

        with add_hook(model, f"stack.blocks.{edit.layer}.attention.heads", change):
            expected = model(ids)
        with apply_edits(model, [edit]):
            assert_close(model(ids), expected)
        assert not torch.allclose(model(ids), expected)


def test_decoding_with_a_kv_cache_is_edited_alike() -> None:
    model, ids = gpt(), words(1, 6)
    for text in (
        "1.2:4>1=off",
        "0.2:4>1=0.7",
        "0.1=previous",
        "0.1=first",
        "1.*=uniform",
        "1.3=off",
    ):
        with torch.no_grad(), apply_edits(model, [Edit.read(text)]):
            state = model.start()
            parts = [model.decode(ids[:, :3], state)]
            for position in (3, 4, 5):
                parts.append(model.decode(ids[:, position : position + 1], state))
            assert_close(torch.cat(parts, 1), model(ids))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_translator(kind: str) -> None:
    model, source, target = transformer(), words(1, 5), words(1, 4)
    points = {
        "encoder": "encoder.blocks.1.attention",
        "decoder": "decoder.blocks.1.attention",
        "cross": "decoder.blocks.1.cross_attention",
    }
    point = points[kind]

    def captured_weights(*edits: str) -> Tensor:
        with (
            torch.no_grad(),
            apply_edits(model, [Edit.read(edit) for edit in edits]),
            capture(model, f"{point}.weights") as captured,
        ):
            model(source, target)
        return captured[f"{point}.weights"][0]

    before = captured_weights()
    after = captured_weights(f"{kind}:1.3:2>1=off")
    before[3, 2, 1] = 0
    before[3, 2] /= before[3, 2].sum()
    assert_close(after, before)


def test_an_rnn_has_one_head() -> None:
    model, source, target = rnn(), words(1, 5), words(1, 4)

    def captured_weights(*edits: str) -> Tensor:
        with (
            torch.no_grad(),
            apply_edits(model, [Edit.read(edit) for edit in edits]),
            capture(model, "weights") as captured,
        ):
            model(source, target)
            captured.every.clear()  # a second forward pass starts at the first token again
            model(source, target)
        return torch.cat(captured.every["weights"], dim=-2).reshape(4, 5)

    # An edit at token 3 leaves the earlier rows unchanged.
    assert_close(captured_weights("0.0:3>1=off")[:3], captured_weights()[:3])
    expected = captured_weights()[3]
    expected[1] = 0
    assert_close(captured_weights("0.0:3>1=off")[3], expected / expected.sum())
    assert captured_weights("0.0:0>1=0.8")[0, 1] == pytest.approx(0.8)
    assert_close(
        captured_weights("cross:0.0=uniform"), torch.full((4, 5), 0.2, dtype=torch.float64)
    )
    with torch.no_grad(), add_hook(model, "context", lambda value, name: value * 0):
        expected = model(source, target)
    with torch.no_grad(), apply_edits(model, [Edit(0, 0)]):
        assert_close(model(source, target), expected)


def test_the_model_is_unchanged_afterwards() -> None:
    model, ids = gpt(), words(1, 5)
    plain = model(ids)
    with apply_edits(
        model, [Edit.read("0.0=off"), Edit.read("1.1:3>0=off"), Edit.read("1.2=first")]
    ):
        assert not torch.allclose(model(ids), plain)
    assert torch.equal(model(ids), plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "'hello'; .*3.5=off"),
        ("3.5", "'3.5'"),
        ("3.5:4", "'3.5:4'; .*'3.5:7>2=off'.*shell"),
        ("0.5=loud", "uniform, first, previous .*'loud'"),
        ("0.5:2>1=first", "off or a number .*'first'"),
        ("0.5:2>1=1.5", "0 to 1, not 1.5"),
        ("0.5=nan", "finite"),
    ],
)
def test_malformed_edits_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"change: .*{message}"):
        Edit.read(text)


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (gpt, "2.0=off", "layer of 0 to 1, not 2"),
        (gpt, "1.4=off", "head of 0 to 3, not 4"),
        (gpt, "1.0:5>1=off", "no token 5, .*text has only 5 tokens, 0 to 4"),
        (bert, "1.0:1>9=off", "no token 9, .*text has only 5 tokens, 0 to 4"),
        (gpt, "1.1:4>99=off", "no token 99, .*text has only 5 tokens, 0 to 4"),
        (gpt, "1.0:2>3=off", "token 2 of a causal model cannot see token 3"),
        (gpt, "1.0:0>0=off", "token 0 sees only itself"),
        (gpt, "cross:1.0=off", "self attention, not cross"),
        (transformer, "1.0=off", "as in cross:1.0=off; one of encoder, decoder, cross"),
        (transformer, "cross:1.0=previous", "cross-attention"),
        (transformer, "cross:0.0:4>6=off", "no token 6, .*source has only 6 tokens, 0 to 5"),
    ],
)
def test_an_edit_must_fit_the_model_and_the_text(make: Any, text: str, message: str) -> None:
    tokens = reading(5, 6 if make is transformer else None)
    with pytest.raises(ValueError, match=rf"^change: .*{message}"):
        check_edit(make(), Edit.read(text), tokens)
