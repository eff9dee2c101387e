"""Parameters: tied embeddings, the papers' initialisation, and grouped heads."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.models import (
    BERTConfig,
    GPTConfig,
    RNNConfig,
    TransformerConfig,
    build,
    count_parameters,
    group_key_value_heads,
)
from qkv.nn.attention.multi_head import MultiHeadAttention, group_heads
from support.families import SMALL, E, H, V, bert, gpt, rnn, transformer, words

# Tied


def test_a_tied_gpt_has_one_table_less() -> None:
    tied, untied = (count_parameters(GPTConfig(**SMALL, tied=tied)) for tied in (True, False))
    assert untied - tied == V * E


def test_transformers_tie_two_or_three_tables() -> None:
    three, two, none = (
        count_parameters(TransformerConfig(**SMALL, tied=tied)) for tied in ("three", "two", "none")
    )
    assert two - three == V * E
    assert none - two == V * E
    assert sum(p.numel() for p in transformer(tied="three").parameters()) == three


def test_an_rnn_ties_its_output_layer_to_its_target_table() -> None:
    sizes = [
        count_parameters(RNNConfig(vocabulary=V, width=E, tied=tied)) for tied in (True, False)
    ]
    assert sizes[1] - sizes[0] == V * E + V


def test_a_tied_table_gets_the_gradient_of_both_its_uses() -> None:
    """Reading touches only the rows of the ids; the output layer touches every row."""
    ids = torch.tensor([[1, 2, 1]])
    tied = gpt()
    untied = gpt(tied=False)
    weights = tied.state_dict()
    untied.load_state_dict(weights | {"head.weight": weights["embedding.token.weight"]})
    for model in (tied, untied):
        model(ids).square().sum().backward()

    assert not untied.embedding.token.weight.grad[[0, 3, 4]].any()
    assert untied.embedding.token.weight.grad[[1, 2]].any()
    both = untied.embedding.token.weight.grad + untied.head.weight.grad
    assert_close(tied.embedding.token.weight.grad, both)


def test_three_tied_tables_get_the_gradient_of_all_three_uses() -> None:
    source = torch.tensor([[1, 2]])
    target = torch.tensor([[3, 4]])
    three = transformer(tied="three")
    none = transformer(tied="none")
    weights = three.state_dict()
    table = weights["embedding.token.weight"]
    none.load_state_dict(weights | {"head.weight": table, "source_embedding.token.weight": table})
    assert_close(three(source, target), none(source, target))
    for model in (three, none):
        model(source, target).square().sum().backward()

    parts = [
        none.source_embedding.token.weight.grad,
        none.embedding.token.weight.grad,
        none.head.weight.grad,
    ]
    assert [part.any(1).nonzero().flatten().tolist() for part in parts] == [
        [1, 2],
        [3, 4],
        list(range(V)),
    ]
    assert_close(three.embedding.token.weight.grad, sum(parts))


def test_berts_output_layer_is_its_embedding() -> None:
    model = bert()
    hidden = model.hidden(words(2, 5))
    head = model.head
    right = (
        head.norm(nn.functional.gelu(head.dense(hidden))) @ model.embedding.token.weight.T
        + head.bias
    )
    assert_close(model.logits(hidden), right)


# Fresh weights


def deviation(x: Tensor) -> float:
    return float(x.detach().std())


def test_gpt_begins_normal_and_smaller_in_residual_projections() -> None:
    model = build(GPTConfig(vocabulary=500, context=200, width=128, depth=8, heads=4, tied=False))
    assert deviation(model.embedding.token.weight) == pytest.approx(0.02, rel=0.05)
    assert deviation(model.embedding.position.weight) == pytest.approx(0.02, rel=0.05)
    assert deviation(model.head.weight) == pytest.approx(0.02, rel=0.05)
    for block in model.stack.blocks:
        assert deviation(block.attention.qkv.weight) == pytest.approx(0.02, rel=0.05)
        assert deviation(block.feed_forward.up.weight) == pytest.approx(0.02, rel=0.05)
        assert deviation(block.attention.output.weight) == pytest.approx(
            0.02 / math.sqrt(16), rel=0.05
        )
        assert deviation(block.feed_forward.down.weight) == pytest.approx(
            0.02 / math.sqrt(16), rel=0.05
        )

    assert_norms_and_biases_begin_as_1_and_0(model)


def test_a_fresh_gpt_predicts_all_tokens_about_equally() -> None:
    model = build(GPTConfig(vocabulary=100, width=64, depth=4, heads=4))
    loss = nn.functional.cross_entropy(model(words(4, 32)).flatten(0, 1), words(4, 32).flatten())
    assert loss.item() == pytest.approx(math.log(100), rel=0.02)


def test_relative_attention_begins_without_preferences() -> None:
    relative = build(GPTConfig(**SMALL, position="relative")).stack.blocks[0].attention.relative
    assert not relative.u.any()
    assert not relative.v.any()
    assert deviation(relative.r.weight) == pytest.approx(0.02, rel=0.2)


def test_bert_begins_with_a_truncated_normal() -> None:
    model = build(BERTConfig(vocabulary=500, context=200, width=128, depth=2, heads=4))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module.weight.numel() > 4000:
            assert module.weight.abs().max().item() <= 0.04
            # Cut off at two deviations, a normal's deviation is 0.88 of what it was.
            assert deviation(module.weight) == pytest.approx(0.02 * 0.8796, rel=0.05)

    assert_norms_and_biases_begin_as_1_and_0(model)


def test_a_transformer_begins_with_glorots_uniform_and_embeddings_of_variance_1() -> None:
    model = build(TransformerConfig(vocabulary=500, width=128, depth=2, heads=4, hidden=256))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert bound * 0.99 < module.weight.abs().max().item() <= bound
            assert deviation(module.weight) == pytest.approx(bound / math.sqrt(3), rel=0.05)

    words_as_read = model.embedding.token.weight * math.sqrt(128)
    assert deviation(words_as_read) == pytest.approx(1, rel=0.05)
    assert_norms_and_biases_begin_as_1_and_0(model)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_an_rnns_recurrent_matrices_are_orthogonal(cell: str) -> None:
    model = build(RNNConfig(vocabulary=V, width=E, depth=2, cell=cell))
    carried = {name: weight for name, weight in model.named_parameters() if "weight_hh" in name}
    assert len(carried) == 2 * 2 + 2
    for weight in carried.values():
        n = weight.shape[1]
        for gate in weight.split(n):
            assert_close(gate @ gate.T, torch.eye(n), rtol=0, atol=1e-5)

    assert all(
        not parameter.any() for name, parameter in model.named_parameters() if "bias" in name
    )


def assert_norms_and_biases_begin_as_1_and_0(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert not parameter.any(), name


# Grouped heads


def with_equal_heads(attention: MultiHeadAttention, kv_heads: int) -> None:
    """Make the key and value heads of each group equal."""
    group = attention.kv_heads // kv_heads
    for parameter in (attention.qkv.weight, attention.qkv.bias):
        by_head = parameter.data.view(-1, attention.head_width, *parameter.shape[1:])
        for h in range(attention.heads, by_head.shape[0]):
            by_head[h] = by_head[attention.heads + (h - attention.heads) // group * group]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("family", ["gpt", "relative", "bert", "transformer"])
def test_grouping_equal_heads_changes_nothing(family: str, kv_heads: int) -> None:
    model = {
        "gpt": lambda: gpt(),
        "relative": lambda: gpt(position="relative"),
        "bert": lambda: bert(),
        "transformer": lambda: transformer(),
    }[family]()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            with_equal_heads(module, kv_heads)

    grouped = group_key_value_heads(model, kv_heads)
    inputs = (words(2, 5), words(2, 6)) if family == "transformer" else (words(2, 6),)
    assert_close(grouped(*inputs), model(*inputs))
    assert grouped.config == replace(model.config, kv_heads=kv_heads)
    assert not grouped.training


def test_a_grouped_head_is_the_mean_of_its_group() -> None:
    old = MultiHeadAttention(E, H).double()
    new = group_heads(old, 2)
    D = E // H
    for name in ("weight", "bias"):
        was = getattr(old.qkv, name).unflatten(0, (-1, D))
        now = getattr(new.qkv, name).unflatten(0, (-1, D))
        assert_close(now[:H], was[:H])
        assert_close(now[H], (was[H] + was[H + 1]) / 2)
        assert_close(now[H + 1], (was[H + 2] + was[H + 3]) / 2)
        assert_close(now[H + 2], (was[2 * H] + was[2 * H + 1]) / 2)
        assert_close(now[H + 3], (was[2 * H + 2] + was[2 * H + 3]) / 2)
        assert_close(getattr(new.output, name), getattr(old.output, name))


def test_a_grouped_model_can_be_grouped_again_and_decodes_with_a_smaller_cache() -> None:
    model = gpt()
    ids = words(2, 6)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grouped = group_key_value_heads(group_key_value_heads(model, 2), 1)
    state = grouped.start()
    steps = torch.cat(
        [grouped.decode(piece, state) for piece in ids.split([3, 1, 2], dim=1)], dim=1
    )
    assert_close(steps, grouped(ids))
    assert state.read(0)[0].shape == (2, 1, 6, E // H)
    assert_close(dict(model.state_dict()), before)  # the old model is not changed


def test_a_grouped_model_shares_nothing_with_the_old_one_and_learns() -> None:
    model = gpt()
    grouped = group_key_value_heads(model, 2)
    assert all(parameter.requires_grad for parameter in grouped.parameters())
    with torch.no_grad():
        for parameter in grouped.parameters():
            parameter.zero_()

    assert all(parameter.any() for parameter in model.parameters() if parameter.dim() > 1)


def test_a_grouped_model_keeps_its_mode_and_type() -> None:
    for model in (gpt().train(), gpt().float()):
        grouped = group_key_value_heads(model, 2)
        assert grouped.training == model.training
        assert grouped.head is None
        assert next(grouped.parameters()).dtype == next(model.parameters()).dtype


def test_an_rnn_has_no_heads_to_group() -> None:
    with pytest.raises(ValueError, match="kv_heads: an RNN has no heads"):
        group_key_value_heads(rnn(), 1)
