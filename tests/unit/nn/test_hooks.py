"""Hook points: listed, called in order, captured without a trace, replaced, free without hooks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.nn.attention.kernels.table import KERNELS
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.hooks import add_hook, capture, has_hooks, hook_points, matching_points
from support.families import E, H, bert, gpt, rnn, rnn_lm, transformer, words

B, T, S = 2, 6, 5
ATTENTION = ["query", "key", "value", "scores", "weights", "heads"]


def block(path: str, *, cross: bool = False) -> list[str]:
    """The hook points of one block, in the order of the forward pass."""
    inside = ["before", *(f"attention.{name}" for name in ATTENTION)]
    if cross:
        inside += [f"cross_attention.{name}" for name in ATTENTION]
    return [f"{path}.{name}" for name in (*inside, "between", "feed_forward.hidden", "after")]


def blocks(path: str, depth: int, *, cross: bool = False) -> list[str]:
    return [name for layer in range(depth) for name in block(f"{path}.blocks.{layer}", cross=cross)]


STACK = ["embedding.output", *blocks("stack", 2), "stack.output", "logits"]
SOURCE, IDS = torch.arange(B * S).view(B, S) % 13, torch.arange(B * T).view(B, T) % 13
# For each family: a model, its arguments, and its points in the order of the forward pass.
FAMILIES = {
    "gpt": (gpt, (IDS,), STACK),
    "transformer-xl": (lambda: gpt(position="relative", memory=4), (IDS,), STACK),
    "bert": (bert, (IDS,), STACK),
    "transformer": (
        lambda: transformer(tied="two"),
        (SOURCE, IDS),
        [
            "source_embedding.output",
            *blocks("encoder", 2),
            "encoder.output",
            "embedding.output",
            *blocks("decoder", 2, cross=True),
            "decoder.output",
            "logits",
        ],
    ),
    "rnn-lm": (rnn_lm, (IDS,), ["hidden", "logits"]),
    "rnn": (
        lambda: rnn(attention="additive"),
        (SOURCE, IDS),
        ["encoder", *[*ATTENTION[:-1], "context"] * T, "hidden", "logits"],
    ),
    "rnn without attention": (
        lambda: rnn(attention="none"),
        (SOURCE, IDS),
        ["encoder", "hidden", "logits"],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_point_is_listed_and_called_in_order(family: str) -> None:
    make, args, right = FAMILIES[family]
    model, called = make(), []
    assert set(hook_points(model)) == set(right)
    with add_hook(model, "*", lambda value, name: called.append(name)):
        model(*args)
    assert called == right


def test_a_shared_embedding_is_called_twice() -> None:
    model = transformer(tied="three")
    with capture(model, "embedding.output") as captured:
        model(words(B, S), words(B, T))
    assert [value.shape for value in captured.every["embedding.output"]] == [(B, S, E), (B, T, E)]


@pytest.mark.parametrize("family", FAMILIES)
def test_capturing_does_not_change_the_output(family: str) -> None:
    make, args, _ = FAMILIES[family]
    model = make()
    right = model(*args)
    with capture(model, "*") as captured:
        assert_close(model(*args), right)
    assert_close(captured["logits"], right)
    assert_close(model(*args), right)


def test_captured_values_have_their_shapes() -> None:
    model = gpt(kv_heads=2)
    with capture(model, "*") as captured:
        model(words(B, T))
    D = E // H
    shapes = {
        "embedding.output": (B, T, E),
        "stack.blocks.1.before": (B, T, E),
        "stack.blocks.1.attention.query": (B, H, T, D),
        "stack.blocks.1.attention.key": (B, 2, T, D),
        "stack.blocks.1.attention.value": (B, 2, T, D),
        "stack.blocks.1.attention.scores": (B, H, T, T),
        "stack.blocks.1.attention.weights": (B, H, T, T),
        "stack.blocks.1.attention.heads": (B, H, T, D),
        "stack.blocks.1.between": (B, T, E),
        "stack.blocks.1.feed_forward.hidden": (B, T, 24),
        "stack.blocks.1.after": (B, T, E),
        "stack.output": (B, T, E),
        "logits": (B, T, 13),
    }
    assert {name: tuple(captured[name].shape) for name in shapes} == shapes


def test_captured_values_satisfy_the_equations() -> None:
    model, ids = gpt(), words(B, T)
    with capture(model, "*") as captured:
        model(ids)
    path = "stack.blocks.0"
    assert_close(captured[f"{path}.before"], captured["embedding.output"])
    assert_close(captured["stack.blocks.1.before"], captured[f"{path}.after"])
    future = torch.ones(T, T).triu(1).bool()
    scores = (
        captured[f"{path}.attention.query"] @ captured[f"{path}.attention.key"].mT / (E // H) ** 0.5
    )
    assert_close(captured[f"{path}.attention.scores"], scores.masked_fill(future, -torch.inf))
    assert_close(
        captured[f"{path}.attention.weights"], captured[f"{path}.attention.scores"].softmax(-1)
    )
    assert_close(
        captured[f"{path}.attention.heads"],
        captured[f"{path}.attention.weights"] @ captured[f"{path}.attention.value"],
    )
    first = model.stack.blocks[0]
    attended = first.attention.output(
        captured[f"{path}.attention.heads"].transpose(1, 2).flatten(2)
    )
    assert_close(captured[f"{path}.between"], captured[f"{path}.before"] + attended)
    added = first.feed_forward.down(captured[f"{path}.feed_forward.hidden"])
    assert_close(captured[f"{path}.after"], captured[f"{path}.between"] + added)
    assert_close(captured["stack.output"], model.stack.norm(captured["stack.blocks.1.after"]))


def test_a_captured_value_has_its_gradient_history() -> None:
    model = gpt()
    with capture(model, "stack.blocks.0.after") as captured:
        model(words(B, T)).sum().backward(inputs=[model.embedding.token.weight])
    assert captured["stack.blocks.0.after"].requires_grad


def test_every_token_that_an_rnn_decodes_is_captured() -> None:
    model = rnn()
    with capture(model, "weights") as captured:
        model(words(B, S), words(B, T))
    assert [tuple(weights.shape) for weights in captured.every["weights"]] == [(B, 1, 1, S)] * T
    assert captured["weights"] is captured.every["weights"][-1]
    assert_close(
        torch.stack(captured.every["weights"]).sum(-1), torch.ones(T, B, 1, 1, dtype=torch.float64)
    )


# Replacing


@pytest.mark.parametrize("head", range(H))
def test_a_head_set_to_zero_equals_its_columns_of_the_output_layer_set_to_zero(head: int) -> None:
    model, ids = gpt(), words(B, T)

    def without(value: Tensor, name: str) -> Tensor:
        replaced = value.clone()
        replaced[:, head] = 0
        return replaced

    with add_hook(model, "stack.blocks.1.attention.heads", without):
        actual = model(ids)
    D = E // H
    with torch.no_grad():
        model.stack.blocks[1].attention.output.weight[:, head * D : (head + 1) * D] = 0
    assert_close(actual, model(ids))


def test_replaced_weights_are_used() -> None:
    """If every query attends to the first token alone, its heads are the first token's values."""
    attention = MultiHeadAttention(E, H).double()
    x = torch.randn(B, T, E, dtype=torch.float64)

    def first_token(weights: Tensor, name: str) -> Tensor:
        replaced = torch.zeros_like(weights)
        replaced[..., 0] = 1
        return replaced

    with add_hook(attention, "weights", first_token):
        actual, weights = attention(x, need_weights=True)
    value = x[:, :1] @ attention.qkv.weight[2 * E :].T + attention.qkv.bias[2 * E :]
    assert_close(actual, attention.output(value).expand(-1, T, -1))
    assert_close(weights, first_token(torch.empty(B, H, T, T, dtype=torch.float64), ""))


def test_replaced_scores_are_used() -> None:
    attention = MultiHeadAttention(E, H).double()
    x = torch.randn(B, T, E, dtype=torch.float64)
    with add_hook(attention, "scores", lambda scores, name: torch.zeros_like(scores)):
        actual, _ = attention(x)
    value = x @ attention.qkv.weight[2 * E :].T + attention.qkv.bias[2 * E :]
    assert_close(actual, attention.output(value.mean(1, keepdim=True)).expand(-1, T, -1))


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_replaced_projections_are_used(name: str) -> None:
    attention = MultiHeadAttention(E, H).double()
    x, other = torch.randn(2, B, T, E, dtype=torch.float64).unbind(0)
    with capture(attention, "*") as captured:
        attention(other)
    with (
        add_hook(attention, name, lambda value, _: captured[name]),
        capture(attention, "*") as actual,
    ):
        attention(x)
    projections = {item: actual[item] for item in ("query", "key", "value")}
    assert projections[name] is captured[name]
    scores = projections["query"] @ projections["key"].mT / (E // H) ** 0.5
    assert_close(actual["heads"], scores.softmax(-1) @ projections["value"])


def test_the_residual_stream_of_one_run_can_be_put_into_another() -> None:
    """Patched after its last block, a model gives the output of the other run."""
    model, one, other = gpt(), words(B, T), words(B, T)
    with capture(model, "stack.blocks.1.after") as captured:
        right = model(one)
    with add_hook(model, "stack.blocks.1.after", lambda value, name: captured[name]):
        assert_close(model(other), right)


def test_a_replaced_context_changes_the_output_of_an_rnn() -> None:
    model, source, target = rnn(), words(B, S), words(B, T)
    with add_hook(model, "context", lambda value, name: value * 0):
        blind = model(source, target)
    assert not torch.allclose(blind, model(source, target))
    with add_hook(model, "weights", lambda weights, name: weights * 0):
        assert_close(model(source, target), blind)


# Adding and removing hooks


def test_nested_hooks_are_called_in_the_order_in_which_they_were_added() -> None:
    model, ids, calls = gpt(), words(B, T), []

    def twice(value: Tensor, name: str) -> Tensor:
        calls.append(("twice", value))
        return value * 2

    def read(value: Tensor, name: str) -> None:
        calls.append(("read", value))

    with add_hook(model, "logits", twice):
        with add_hook(model, "log*", read):
            both = model(ids)
        once = model(ids)
    right = model(ids)
    assert [name for name, _ in calls] == ["twice", "read", "twice"]
    assert_close(calls[1][1], 2 * right)  # the inner hook gets the outer one's replacement
    assert_close(both, 2 * right)
    assert_close(once, 2 * right)


def test_one_hook_at_many_points_gets_their_names() -> None:
    model, calls = gpt(), []
    with add_hook(
        model, "stack.blocks.*.attention.weights", lambda value, name: calls.append(name)
    ):
        model(words(B, T))
    assert calls == ["stack.blocks.0.attention.weights", "stack.blocks.1.attention.weights"]


def test_the_error_for_an_unknown_pattern_lists_all_points_and_their_aliases() -> None:
    """Layers are listed as *, so that every listed name and alias is a pattern that matches."""
    model = gpt()
    with (
        pytest.raises(ValueError, match=r"hook point .* matches 'blocks\.0'") as error,
        add_hook(model, "blocks.0", lambda value, name: None),
    ):
        pass
    listed = str(error.value).rpartition(": ")[2].split(", ")
    assert len(listed) == len(set(listed))
    assert "stack.blocks.*.attention.weights (pattern)" in listed
    assert "stack.blocks.*.before (resid_pre)" in listed

    matched = set()
    for entry in listed:
        pattern, _, alias = entry.removesuffix(")").partition(" (")
        matches = set(matching_points(model, pattern))
        matched |= matches
        if alias:
            path = pattern.rpartition(".")[0]
            assert set(matching_points(model, f"{path}.{alias}")) == matches
    assert matched == set(hook_points(model))


# Aliases

ALIASES = {
    "resid_pre": "before",
    "resid_mid": "between",
    "resid_post": "after",
    "attention.q": "attention.query",
    "attention.k": "attention.key",
    "attention.v": "attention.value",
    "attention.attn_scores": "attention.scores",
    "attention.pattern": "attention.weights",
    "attention.z": "attention.heads",
    "feed_forward.mlp_post": "feed_forward.hidden",
}


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_gives_the_same_tensor_as_the_name(alias: str) -> None:
    model = gpt()
    name = f"stack.blocks.1.{ALIASES[alias]}"
    with capture(model, name) as by_name, capture(model, f"stack.blocks.1.{alias}") as by_alias:
        model(words(B, T))
    assert list(by_alias) == [name]
    assert by_alias[name] is by_name[name]
    assert by_alias[f"stack.blocks.1.{alias}"] is by_name[name]


def test_an_alias_as_a_pattern_matches_every_layer() -> None:
    model, calls = gpt(), []
    with add_hook(model, "*.pattern", lambda value, name: calls.append(name)):
        model(words(B, T))
    assert calls == ["stack.blocks.0.attention.weights", "stack.blocks.1.attention.weights"]


def test_a_value_can_be_replaced_by_its_alias() -> None:
    model, ids = gpt(), words(B, T)
    with add_hook(model, "stack.blocks.0.attention.z", lambda value, name: value * 0):
        by_alias = model(ids)
    with add_hook(model, "stack.blocks.0.attention.heads", lambda value, name: value * 0):
        assert torch.equal(model(ids), by_alias)
    assert not torch.equal(model(ids), by_alias)


def test_points_outside_a_transformer_block_have_no_aliases() -> None:
    with pytest.raises(ValueError, match="mlp_post"), capture(rnn(), "mlp_post"):
        pass
    with capture(rnn(), "weights") as captured, pytest.raises(KeyError):
        captured["pattern"]


def test_one_unknown_pattern_leaves_no_hook() -> None:
    model = gpt()
    with pytest.raises(ValueError, match="no hook point"), capture(model, "logits", "nowhere"):
        pass
    assert_no_hooks(model)


def test_hooks_are_gone_after_the_context() -> None:
    model = gpt()
    with capture(model, "*"), add_hook(model, "logits", lambda value, name: value * 2):
        pass
    assert_no_hooks(model)


def test_hooks_are_gone_after_an_error() -> None:
    model, ids = gpt(), words(B, T)

    def fail(value: Tensor, name: str) -> None:
        raise RuntimeError("the hook's own")

    with (
        pytest.raises(RuntimeError, match="the hook's own"),
        capture(model, "*"),
        add_hook(model, "logits", fail),
    ):
        model(ids)
    assert_no_hooks(model)
    model(ids)


def assert_no_hooks(model: nn.Module) -> None:
    assert not has_hooks(model)


def test_only_hooks_at_scores_or_weights_need_the_eager_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without hooks there SDPA computes attention; with one, eager, which has the weights."""
    calls = []
    real = KERNELS["sdpa"]
    counted = real._replace(run=lambda call: calls.append(1) or real.run(call))
    monkeypatch.setitem(KERNELS, "sdpa", counted)
    model, ids = gpt(), words(B, T)
    model(ids)
    assert len(calls) == 2
    for name in ("scores", "weights"):
        with capture(model, f"stack.blocks.0.attention.{name}"):
            model(ids)
        assert len(calls) == 3  # the other layer still uses SDPA
        calls.pop()
    with capture(model, "stack.blocks.*.attention.heads"):
        model(ids)
    assert len(calls) == 4


# torch.compile


class Silent:
    """Replaces HookPoints and does nothing."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def callback(self, name: str) -> None:
        return None


class Counting:
    """A backend of torch.compile that stores its graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]):
        self.graphs.append(graph)
        return graph.forward

    def operations(self) -> list[list[str]]:
        return [
            [str(node.target) for node in graph.graph.nodes if node.op != "placeholder"]
            for graph in self.graphs
        ]


def compiled_gpt(config: dict) -> tuple[nn.Module, nn.Module, Counting]:
    from qkv.models import GPT, GPTConfig

    model = GPT(GPTConfig(vocabulary=13, context=16, width=16, depth=2, heads=4, **config)).eval()
    backend = Counting()
    return model, torch.compile(model, backend=backend, fullgraph=True), backend


CONFIGS = {
    "gpt": {},
    "llama": {"position": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 2},
    "window": {"window": 3},
    "alibi": {"position": "alibi"},
    "relative": {"position": "relative"},
}


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
@pytest.mark.parametrize("kind", CONFIGS)
def test_without_hooks_the_compiled_graph_is_that_of_a_model_without_hook_points(kind: str) -> None:
    """There is one graph, without one operation more."""
    from qkv.nn.hooks import HookPoints

    model, compiled, backend = compiled_gpt(CONFIGS[kind])
    bare, without_points = copy.deepcopy(model), Counting()
    for module in list(bare.modules()):
        if isinstance(getattr(module, "hooks", None), HookPoints):
            module.hooks = Silent()
    ids = words(B, T)
    actual = compiled(ids)
    right = torch.compile(bare, backend=without_points, fullgraph=True)(ids)
    assert len(backend.graphs) == len(without_points.graphs) == 1
    assert backend.operations() == without_points.operations()
    assert len(backend.operations()[0]) > 10
    assert_close(actual, right)
    assert_close(actual, model(ids))


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_a_hook_that_is_added_after_compilation_is_called_until_it_is_removed() -> None:
    from qkv.nn.hooks import add_hook

    model, compiled, backend = compiled_gpt({})
    ids = words(B, T)
    right, calls = compiled(ids), []

    def off(value: Tensor, name: str) -> Tensor:
        calls.append(name)
        return value * 0

    assert len(backend.graphs) == 1
    with add_hook(model, "stack.blocks.*.attention.heads", off):
        silenced = compiled(ids)
        compiled(ids)
        assert calls == [f"stack.blocks.{layer}.attention.heads" for layer in range(2)] * 2
        assert_close(silenced, model(ids))
        assert not torch.allclose(silenced, right)
    calls.clear()
    assert_close(compiled(ids), right)
    assert calls == []


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_weights_can_be_captured_from_a_compiled_model() -> None:
    from qkv.nn.hooks import capture

    model, compiled, _ = compiled_gpt({})
    ids = words(B, T)
    compiled(ids)
    with capture(model, "stack.blocks.*.attention.weights") as captured:
        actual = compiled(ids)
    assert_close(actual, model(ids))
    assert len(captured) == 2
    for weights in captured.values():
        assert weights.shape == (B, 4, T, T)
        assert_close(weights.sum(-1), torch.ones(B, 4, T))


def test_contexts_may_close_in_any_order() -> None:
    model, ids = gpt(), words(1, 3)
    untouched = model(ids)
    first, second = (
        add_hook(model, "logits", lambda value, name: value * 0),
        add_hook(model, "logits", lambda value, name: None),
    )
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.equal(model(ids), untouched)
    second.__exit__(None, None, None)
    assert torch.equal(model(ids), untouched)


def test_a_replacement_has_the_shape_of_what_it_replaces() -> None:
    model = gpt()
    with (
        add_hook(model, "stack.blocks.0.before", lambda value, name: value[:, :1]),
        pytest.raises(ValueError, match=r"before: .*\(1, 1, \d+\), expected \(1, 3, \d+\)"),
    ):
        model(words(1, 3))
