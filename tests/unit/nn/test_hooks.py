"""Named points: listed, hit, read without a trace, replaced to the number, and free when nobody
listens.
"""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.nn.attention.kernels import sdpa
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.hooks import add_hook, capture, has_hooks, hook_points
from support.families import E, H, bert, gpt, rnn, transformer, words

B, T, S = 2, 6, 5
ATTENTION = ["query", "key", "value", "scores", "weights", "heads"]


def block(path: str, *, cross: bool = False) -> list[str]:
    """The points of one block, in the order in which a value meets them."""
    inside = ["before", *(f"attention.{name}" for name in ATTENTION)]
    if cross:
        inside += [f"cross_attention.{name}" for name in ATTENTION]
    return [f"{path}.{name}" for name in (*inside, "between", "feed_forward.hidden", "after")]


def blocks(path: str, depth: int, *, cross: bool = False) -> list[str]:
    return [name for layer in range(depth) for name in block(f"{path}.blocks.{layer}", cross=cross)]


STACK = ["embedding.output", *blocks("stack", 2), "stack.output", "logits"]
SOURCE, IDS = torch.arange(B * S).view(B, S) % 13, torch.arange(B * T).view(B, T) % 13
# For each family: a model, what it is given, and its points in the order they are met.
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
    "rnn": (
        lambda: rnn(attention="additive"),
        (SOURCE, IDS),
        ["encoder", *["scores", "weights", "context"] * T, "hidden", "logits"],
    ),
    "rnn without attention": (
        lambda: rnn(attention="none"),
        (SOURCE, IDS),
        ["encoder", "hidden", "logits"],
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_point_is_listed_and_hit_in_order(family: str) -> None:
    make, given, right = FAMILIES[family]
    model, met = make(), []
    assert set(hook_points(model)) == set(right)
    with add_hook(model, "*", lambda value, name: met.append(name)):
        model(*given)
    assert met == right


def test_a_shared_embedding_is_met_twice() -> None:
    model = transformer(tied="three")
    with capture(model, "embedding.output") as seen:
        model(words(B, S), words(B, T))
    assert [value.shape for value in seen.every["embedding.output"]] == [(B, S, E), (B, T, E)]


@pytest.mark.parametrize("family", FAMILIES)
def test_recording_does_not_change_the_output(family: str) -> None:
    make, given, _ = FAMILIES[family]
    model = make()
    right = model(*given)
    with capture(model, "*") as seen:
        assert_close(model(*given), right)
    assert_close(seen["logits"], right)
    assert_close(model(*given), right)


def test_recorded_values_have_their_shapes() -> None:
    model = gpt(kv_heads=2)
    with capture(model, "*") as seen:
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
    assert {name: tuple(seen[name].shape) for name in shapes} == shapes


def test_recorded_values_are_what_the_equations_say() -> None:
    model, ids = gpt(), words(B, T)
    with capture(model, "*") as seen:
        model(ids)
    place = "stack.blocks.0"
    assert_close(seen[f"{place}.before"], seen["embedding.output"])
    assert_close(seen["stack.blocks.1.before"], seen[f"{place}.after"])
    future = torch.ones(T, T).triu(1).bool()
    scores = seen[f"{place}.attention.query"] @ seen[f"{place}.attention.key"].mT / (E // H) ** 0.5
    assert_close(seen[f"{place}.attention.scores"], scores.masked_fill(future, -torch.inf))
    assert_close(seen[f"{place}.attention.weights"], seen[f"{place}.attention.scores"].softmax(-1))
    assert_close(
        seen[f"{place}.attention.heads"],
        seen[f"{place}.attention.weights"] @ seen[f"{place}.attention.value"],
    )
    first = model.stack.blocks[0]
    said = first.attention.output(seen[f"{place}.attention.heads"].transpose(1, 2).flatten(2))
    assert_close(seen[f"{place}.between"], seen[f"{place}.before"] + said)
    added = first.feed_forward.down(seen[f"{place}.feed_forward.hidden"])
    assert_close(seen[f"{place}.after"], seen[f"{place}.between"] + added)
    assert_close(seen["stack.output"], model.stack.norm(seen["stack.blocks.1.after"]))


def test_a_recorded_value_keeps_its_gradient_history() -> None:
    model = gpt()
    with capture(model, "stack.blocks.0.after") as seen:
        model(words(B, T)).sum().backward(inputs=[model.embedding.token.weight])
    assert seen["stack.blocks.0.after"].requires_grad


def test_every_word_an_rnn_decodes_is_recorded() -> None:
    model = rnn()
    with capture(model, "weights") as seen:
        model(words(B, S), words(B, T))
    assert [tuple(weights.shape) for weights in seen.every["weights"]] == [(B, 1, 1, S)] * T
    assert seen["weights"] is seen.every["weights"][-1]
    assert_close(
        torch.stack(seen.every["weights"]).sum(-1), torch.ones(T, B, 1, 1, dtype=torch.float64)
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
        found = model(ids)
    D = E // H
    with torch.no_grad():
        model.stack.blocks[1].attention.output.weight[:, head * D : (head + 1) * D] = 0
    assert_close(found, model(ids))


def test_replaced_weights_are_used() -> None:
    """Every query looks at the first word alone: then its heads are the first word's values."""
    attention = MultiHeadAttention(E, H).double()
    x = torch.randn(B, T, E, dtype=torch.float64)

    def first_word(weights: Tensor, name: str) -> Tensor:
        replaced = torch.zeros_like(weights)
        replaced[..., 0] = 1
        return replaced

    with add_hook(attention, "weights", first_word):
        found, weights = attention(x, need_weights=True)
    value = x[:, :1] @ attention.qkv.weight[2 * E :].T + attention.qkv.bias[2 * E :]
    assert_close(found, attention.output(value).expand(-1, T, -1))
    assert_close(weights, first_word(torch.empty(B, H, T, T, dtype=torch.float64), ""))


def test_replaced_scores_are_used() -> None:
    attention = MultiHeadAttention(E, H).double()
    x = torch.randn(B, T, E, dtype=torch.float64)
    with add_hook(attention, "scores", lambda scores, name: torch.zeros_like(scores)):
        found, _ = attention(x)
    value = x @ attention.qkv.weight[2 * E :].T + attention.qkv.bias[2 * E :]
    assert_close(found, attention.output(value.mean(1, keepdim=True)).expand(-1, T, -1))


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_replaced_projections_are_used(name: str) -> None:
    attention = MultiHeadAttention(E, H).double()
    x, other = torch.randn(2, B, T, E, dtype=torch.float64).unbind(0)
    with capture(attention, "*") as seen:
        attention(other)
    with add_hook(attention, name, lambda value, _: seen[name]), capture(attention, "*") as found:
        attention(x)
    projections = {each: found[each] for each in ("query", "key", "value")}
    assert projections[name] is seen[name]
    scores = projections["query"] @ projections["key"].mT / (E // H) ** 0.5
    assert_close(found["heads"], scores.softmax(-1) @ projections["value"])


def test_the_residual_stream_of_one_run_can_be_put_into_another() -> None:
    """Patched after its last block, a model says what the other run said."""
    model, one, other = gpt(), words(B, T), words(B, T)
    with capture(model, "stack.blocks.1.after") as seen:
        right = model(one)
    with add_hook(model, "stack.blocks.1.after", lambda value, name: seen[name]):
        assert_close(model(other), right)


def test_a_replaced_context_changes_what_an_rnn_says() -> None:
    model, source, target = rnn(), words(B, S), words(B, T)
    with add_hook(model, "context", lambda value, name: value * 0):
        blind = model(source, target)
    assert not torch.allclose(blind, model(source, target))
    with add_hook(model, "weights", lambda weights, name: weights * 0):
        assert_close(model(source, target), blind)


# Listeners come and go


def test_nested_listeners_hear_in_the_order_they_came() -> None:
    model, ids, heard = gpt(), words(B, T), []

    def twice(value: Tensor, name: str) -> Tensor:
        heard.append(("twice", value))
        return value * 2

    def padding_mask(value: Tensor, name: str) -> None:
        heard.append(("padding_mask", value))

    with add_hook(model, "logits", twice):
        with add_hook(model, "log*", padding_mask):
            both = model(ids)
        once = model(ids)
    right = model(ids)
    assert [name for name, _ in heard] == ["twice", "padding_mask", "twice"]
    assert_close(heard[1][1], 2 * right)  # the inner one hears what the outer one made
    assert_close(both, 2 * right)
    assert_close(once, 2 * right)


def test_one_listener_at_many_points_knows_where_it_is() -> None:
    model, heard = gpt(), []
    with add_hook(
        model, "stack.blocks.*.attention.weights", lambda value, name: heard.append(name)
    ):
        model(words(B, T))
    assert heard == ["stack.blocks.0.attention.weights", "stack.blocks.1.attention.weights"]


def test_an_unknown_pattern_is_refused_with_the_points_there_are() -> None:
    model = gpt()
    with (
        pytest.raises(ValueError, match=r"no point of this model matches 'blocks\.0'") as error,
        add_hook(model, "blocks.0", lambda value, name: None),
    ):
        pass
    said = (
        str(error.value).rpartition(": ")[2].split(", ")
    )  # layers as *, so that each is a pattern that works
    assert len(said) == len(set(said))
    assert {
        name for pattern in said for name in hook_points(model) if fnmatchcase(name, pattern)
    } == set(hook_points(model))


def test_a_recording_with_one_unknown_pattern_leaves_no_listener() -> None:
    model = gpt()
    with pytest.raises(ValueError, match="no point"), capture(model, "logits", "nowhere"):
        pass
    assert_nobody_listens(model)


def test_listeners_are_gone_after_the_context() -> None:
    model = gpt()
    with capture(model, "*"), add_hook(model, "logits", lambda value, name: value * 2):
        pass
    assert_nobody_listens(model)


def test_listeners_are_gone_after_an_error() -> None:
    model, ids = gpt(), words(B, T)

    def fail(value: Tensor, name: str) -> None:
        raise RuntimeError("the listener's own")

    with (
        pytest.raises(RuntimeError, match="the listener's own"),
        capture(model, "*"),
        add_hook(model, "logits", fail),
    ):
        model(ids)
    assert_nobody_listens(model)
    model(ids)


def assert_nobody_listens(model: nn.Module) -> None:
    assert not has_hooks(model)


def test_listening_asks_for_weights_and_not_listening_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody listening at scores or weights, the fused kernel runs; else the eager equation, which
    has them.
    """
    calls = []
    real = sdpa.attend
    monkeypatch.setattr(sdpa, "attend", lambda *x, **y: calls.append(1) or real(*x, **y))
    model, ids = gpt(), words(B, T)
    model(ids)
    assert len(calls) == 2
    for name in ("scores", "weights"):
        with capture(model, f"stack.blocks.0.attention.{name}"):
            model(ids)
        assert len(calls) == 3  # the other layer stays fused
        calls.pop()
    with capture(model, "stack.blocks.*.attention.heads"):
        model(ids)
    assert len(calls) == 4


# torch.compile


class Silent:
    """Stands where HookPoints stand, and does nothing."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def heard(self, name: str) -> None:
        return None


class Counting:
    """A backend for torch.compile that keeps the graphs it is given and runs them as they are."""

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
def test_without_listeners_the_compiled_graph_is_that_of_a_model_without_taps(kind: str) -> None:
    """One graph, and not one operation more."""
    from qkv.nn.hooks import HookPoints

    model, compiled, backend = compiled_gpt(CONFIGS[kind])
    bare, without_taps = copy.deepcopy(model), Counting()
    for module in list(bare.modules()):
        if isinstance(getattr(module, "taps", None), HookPoints):
            module.hooks = Silent()
    ids = words(B, T)
    found = compiled(ids)
    right = torch.compile(bare, backend=without_taps, fullgraph=True)(ids)
    assert len(backend.graphs) == len(without_taps.graphs) == 1
    assert backend.operations() == without_taps.operations()
    assert len(backend.operations()[0]) > 10
    assert_close(found, right)
    assert_close(found, model(ids))


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_a_listener_that_comes_after_compilation_is_called_and_then_no_more() -> None:
    from qkv.nn.hooks import add_hook

    model, compiled, backend = compiled_gpt({})
    ids = words(B, T)
    right, heard = compiled(ids), []

    def off(value: Tensor, name: str) -> Tensor:
        heard.append(name)
        return value * 0

    assert len(backend.graphs) == 1
    with add_hook(model, "stack.blocks.*.attention.heads", off):
        silenced = compiled(ids)
        compiled(ids)
        assert heard == [f"stack.blocks.{layer}.attention.heads" for layer in range(2)] * 2
        assert_close(silenced, model(ids))
        assert not torch.allclose(silenced, right)
    heard.clear()
    assert_close(compiled(ids), right)
    assert heard == []


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_weights_can_be_recorded_from_a_compiled_model() -> None:
    from qkv.nn.hooks import capture

    model, compiled, _ = compiled_gpt({})
    ids = words(B, T)
    compiled(ids)
    with capture(model, "stack.blocks.*.attention.weights") as seen:
        found = compiled(ids)
    assert_close(found, model(ids))
    assert len(seen) == 2
    for weights in seen.values():
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
        pytest.raises(
            ValueError, match=r"before: a listener returned \(1, 1, \d+\), expected \(1, 3, \d+\)"
        ),
    ):
        model(words(1, 3))
