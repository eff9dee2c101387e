"""Errors of attention, configs and models name the field and what is wrong with it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from qkv.models import (
    BERTConfig,
    GPTConfig,
    RNNConfig,
    TransformerConfig,
    build,
    group_key_value_heads,
    preset,
)
from qkv.models.registry import from_json, to_json, with_weights
from qkv.nn.attention import (
    Additive,
    Blockwise,
    Causal,
    Distance,
    Document,
    Explicit,
    Fixed,
    Padding,
    Prefix,
    Strided,
    Window,
    attend,
)
from qkv.nn.attention.lookup import mean_of_top
from qkv.nn.attention.multi_head import MultiHeadAttention, group_heads
from qkv.nn.cache import KeyValueCache, SegmentMemory
from qkv.nn.position import RotaryScaling
from qkv.nn.recurrent import Recurrent

pytestmark = pytest.mark.usefixtures("without_shape_checks")

SMALL: dict[str, Any] = {"vocabulary": 13, "context": 8, "width": 8, "depth": 1, "heads": 2}


def refused(pattern: str, kind: type[Exception] = ValueError):
    """Expect an error whose message matches: the field, and a keyword of what is wrong."""
    return pytest.raises(kind, match=pattern)


def yes(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bool)


# attend

QUERY, KEY = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)


def test_keys_of_another_width() -> None:
    with refused("key width: .*as in query.*not 7"):
        attend(QUERY, torch.randn(2, 2, 6, 7), KEY)


def test_another_number_of_rows() -> None:
    with refused("batch: .*expected the same"):
        attend(QUERY, torch.randn(3, 2, 6, 8), KEY)
    with refused("batch: .*expected the same"):
        attend(QUERY, KEY, KEY[:1])


def test_values_that_do_not_belong_to_the_keys() -> None:
    with refused(r"value: .*as in key.*not \(2, 5\)"):
        attend(QUERY, KEY, KEY[:, :, :5])
    with refused(r"value: .*as in key.*not \(1, 6\)"):
        attend(QUERY, KEY, KEY[:, :1])


def test_key_heads_that_do_not_divide_query_heads() -> None:
    with refused("kv_heads: .*do not divide"):
        attend(QUERY, torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8))


def test_too_few_or_too_many_dimensions() -> None:
    for shape in ((8,), (1, 2, 4, 5, 8)):
        with refused(rf"expected \(length, width\), .*, not {re.escape(str(shape))}"):
            attend(torch.randn(shape), KEY, KEY)


WRONG_KERNELS: list[tuple[dict[str, Any], str]] = [
    ({"need_weights": True, "kernel": "sdpa"}, "kernel sdpa .*use eager"),
    (
        {"mask": Window(2), "score": Additive(8), "kernel": "block_sparse"},
        "kernel block_sparse .*use eager",
    ),
    ({"mask": Strided(2), "kernel": "block_sparse"}, "kernel block_sparse: .*sparse mask"),
    ({"mask": Window(2), "dropout": 0.1, "kernel": "flex"}, "kernel flex: .*no dropout"),
    ({"kernel": "quick"}, "kernel: .*one of eager, decode, flex, .*block_sparse, sdpa, .*'quick'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_KERNELS)
def test_a_kernel_that_cannot_compute_the_call(arguments: dict[str, Any], message: str) -> None:
    with refused(message):
        attend(QUERY, KEY, KEY, **arguments)


# Masks

WRONG_MASKS = {
    "padding of another length": (
        lambda: Padding(yes(2, 5)),
        r"Padding: .*must have shape.*not \(2, 5\)",
    ),
    "padding of other rows": (
        lambda: Padding(yes(3, 6)),
        r"Padding: .*must have shape.*not \(3, 6\)",
    ),
    "documents of another length": (
        lambda: Document(torch.zeros(2, 7, dtype=torch.long)),
        r"Document: .*must have shape.*not \(2, 7\)",
    ),
    "prefixes of other rows": (
        lambda: Prefix(torch.tensor([1, 2, 3])),
        r"Prefix: .*must have shape.*not \(3,\)",
    ),
    "a matrix of other queries": (
        lambda: Explicit(yes(4, 6)),
        r"mask of shape \(1, 1, 4, 6\) does not fit scores .*: T is 4, expected 5",
    ),
    "a matrix of other keys": (lambda: Explicit(yes(5, 5)), "S is 5, expected 6"),
    "a matrix of other rows": (lambda: Explicit(yes(3, 5, 6)), "B is 3, expected 2 or 1"),
    "a matrix of other heads": (lambda: Explicit(yes(2, 3, 5, 6)), "H is 3, expected 4 or 1"),
    "a matrix of one query": (lambda: Explicit(yes(1, 6)), "T is 1, expected 5"),
}


@pytest.mark.parametrize("case", WRONG_MASKS)
@pytest.mark.parametrize("kernel", [None, "eager", "sdpa", "block_sparse"])
def test_a_mask_that_does_not_fit_the_scores(case: str, kernel: str | None) -> None:
    """With every kernel, and inside a combination of masks."""
    make, message = WRONG_MASKS[case]
    for mask in (make(), Causal() & make(), make() & Window(2)):
        with refused(message):
            attend(QUERY, KEY, KEY, mask=mask, kernel=kernel)


IMPOSSIBLE_MASKS = {
    "window of none": (
        lambda: Window(0),
        ValueError,
        "Window: .*1 or more.*not 0",
    ),
    "block of none": (
        lambda: Blockwise(0),
        ValueError,
        "Block: .*1 or more.*not 0",
    ),
    "stride of none": (
        lambda: Strided(-1),
        ValueError,
        r"Strided: .*1 or more.*not \-1",
    ),
    "fixed stride of none": (
        lambda: Fixed(0),
        ValueError,
        "Fixed: .*1 or more.*not 0",
    ),
    "more summaries than a block": (
        lambda: Fixed(3, 4),
        ValueError,
        "Fixed: .*between 1 and.*not 4",
    ),
    "padding in numbers": (
        lambda: Padding(torch.ones(2, 6)),
        TypeError,
        r"Padding: .*must be bool.*not torch\.float32",
    ),
    "padding in ones and zeros": (
        lambda: Padding(torch.ones(2, 6, dtype=torch.long)),
        TypeError,
        "Padding: .*must be bool",
    ),
    "padding of one row": (
        lambda: Padding(yes(6)),
        ValueError,
        r"Padding: .*must have shape.*not \(6,\)",
    ),
    "documents in fractions": (
        lambda: Document(torch.zeros(2, 6)),
        TypeError,
        r"Document: .*whole number.*not torch\.float32",
    ),
    "documents in yes and no": (
        lambda: Document(yes(2, 6)),
        TypeError,
        "Document: .*whole number",
    ),
    "documents of one row": (
        lambda: Document(torch.zeros(6, dtype=torch.long)),
        ValueError,
        r"Document: .*must have shape.*not \(6,\)",
    ),
    "a window of a fraction": (
        lambda: Window(2.5),
        ValueError,
        "Window: .*1 or more",
    ),
    "masks joined with and": (lambda: Causal() and Window(2), TypeError, r"masks combine with \&"),
    "a matrix of numbers": (
        lambda: Explicit(torch.zeros(5, 6)),
        TypeError,
        "must be bool",
    ),
    "a matrix of one dimension": (
        lambda: Explicit(yes(6)),
        ValueError,
        "2, 3 or 4 dimensions",
    ),
    "a prefix in fractions": (
        lambda: Prefix(torch.tensor([1.0, 2.0])),
        TypeError,
        r"Prefix: .*whole number.*not torch\.float32",
    ),
    "a prefix of two dimensions": (
        lambda: Prefix(torch.ones(2, 1, dtype=torch.long)),
        ValueError,
        r"Prefix: .*must have shape.*not \(2, 1\)",
    ),
    "a string": (
        lambda: Causal() & "causal",
        TypeError,
        "Mask or a bool tensor",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE_MASKS)
def test_a_mask_that_cannot_exist(case: str) -> None:
    make, kind, message = IMPOSSIBLE_MASKS[case]
    with refused(message, kind):
        make()


def test_a_tensor_mask_is_checked_as_a_mask() -> None:
    with refused("must be bool", TypeError):
        attend(QUERY, KEY, KEY, mask=torch.zeros(5, 6))
    with refused("Mask or a bool tensor", TypeError):
        attend(QUERY, KEY, KEY, mask="causal")


# Biases


def test_a_bias_that_does_not_fit_the_scores() -> None:
    for bias, message in (
        (torch.zeros(5, 5), "bias .*does not fit scores .*S is 5, expected 6"),
        (torch.zeros(5, 1), "S is 1, expected 6"),
        (torch.zeros(4, 6), "T is 4, expected 5"),
        (torch.zeros(3, 5, 6), "B is 3, expected 2"),
        (torch.zeros(2, 2, 5, 6), "H is 2, expected 4"),
        (torch.zeros(6), "bias must have 2, 3 or 4 dimensions"),
        (Distance(torch.ones(2)), "bias: expected 4 slopes"),
        (Distance(torch.ones(4, 1)), "bias: expected 4 slopes"),
    ):
        with refused(message):
            attend(QUERY, KEY, KEY, bias=bias)


def test_a_bias_that_is_a_mask() -> None:
    with refused(
        r"floating\-point",
        TypeError,
    ):
        attend(QUERY, KEY, KEY, bias=yes(5, 6))


def test_a_bias_that_is_no_tensor() -> None:
    with refused("Bias or a tensor", TypeError):
        attend(QUERY, KEY, KEY, bias=Causal())


# Modules


def test_inputs_of_another_width() -> None:
    attention = MultiHeadAttention(8, 2)
    with refused("width: .*x of width.*not 6"):
        attention(torch.randn(1, 3, 6))
    with refused("width: .*a source of width.*not 6"):
        attention(torch.randn(1, 3, 8), torch.randn(1, 3, 6))


def test_heads_that_do_not_divide() -> None:
    with refused("heads: .*do not divide"):
        MultiHeadAttention(8, 3)
    with refused("heads: .*1 or more.*not 0"):
        MultiHeadAttention(8, 0)
    for kv_heads in (3, 0, 8):
        with refused(f"kv_heads: expected a divisor of heads = 4, not {kv_heads}"):
            MultiHeadAttention(8, 4, kv_heads=kv_heads)
    for kv_heads in (0, 3):
        with refused(f"kv_heads: expected a divisor of the present 4, not {kv_heads}"):
            group_heads(MultiHeadAttention(8, 4), kv_heads)


def test_two_directions_of_an_odd_width() -> None:
    with refused("width: .*even number.*not 5"):
        Recurrent("gru", 4, 5, 1, bidirectional=True)


def test_a_segment_memory_of_size_zero() -> None:
    with refused("memory: .*1 or more.*not 0"):
        SegmentMemory(0)


@pytest.mark.parametrize("l", [0, 7])
def test_more_neighbours_than_keys(l: int) -> None:  # noqa: E741
    with refused(f"l must be between 1 and .*6, not {l}"):
        mean_of_top(torch.randn(2, 3), torch.randn(6, 3), torch.randn(6, 1), l)


# Configs

WRONG_FIELDS: list[tuple[type, dict[str, Any], str]] = [
    (GPTConfig, {"width": "wide"}, "width: .*whole number.*not 'wide'"),
    (GPTConfig, {"width": 8.0}, "width: .*whole number"),
    (GPTConfig, {"depth": True}, "depth: .*whole number"),
    (GPTConfig, {"depth": -1}, r"depth: .*whole number.*not \-1"),
    (GPTConfig, {"depth": 0}, "depth: .*1 or more.*not 0"),
    (GPTConfig, {"width": 0}, "width: .*1 or more.*not 0"),
    (GPTConfig, {"heads": 0}, "heads: .*1 or more.*not 0"),
    (GPTConfig, {"hidden": 0}, "hidden: .*1 or more.*not 0"),
    (GPTConfig, {"window": 0}, "window: .*1 or more.*not 0"),
    (GPTConfig, {"head_width": 0}, "head_width: .*1 or more.*not 0"),
    (GPTConfig, {"kv_heads": 0}, "kv_heads: .*1 or more.*not 0"),
    (
        GPTConfig,
        {"kv_heads": "two"},
        "kv_heads: .*whole number.*not 'two'",
    ),
    (GPTConfig, {"kv_heads": 5}, "kv_heads: .*divisor.*not 5"),
    (GPTConfig, {"heads": 7}, "heads: .*do not divide"),
    (GPTConfig, {"vocabulary": 0}, "vocabulary: .*1 or more.*not 0"),
    (GPTConfig, {"context": 0}, "context: .*1 or more.*not 0"),
    (GPTConfig, {"position_width": 0}, "position_width: .*1 or more.*not 0"),
    (GPTConfig, {"tied": "yes"}, "tied: .*true or false.*not 'yes'"),
    (GPTConfig, {"tied": 1}, "tied: .*true or false.*not 1"),
    (GPTConfig, {"dropout": 1.0}, "dropout: .*probability"),
    (GPTConfig, {"dropout": -0.1}, "dropout: .*probability"),
    (
        GPTConfig,
        {"dropout": float("nan")},
        "dropout: .*probability.*not nan",
    ),
    (
        GPTConfig,
        {"attention_dropout": 2},
        "attention_dropout: .*probability.*not 2",
    ),
    (GPTConfig, {"dropout": "much"}, "dropout: .*expected a number.*not 'much'"),
    (GPTConfig, {"norm_epsilon": None}, "norm_epsilon: .*expected a number"),
    (
        GPTConfig,
        {"activation": "gleu"},
        "activation: .*expected one of",
    ),
    (GPTConfig, {"norm": "batch"}, "norm: .*expected one of.*not 'batch'"),
    (
        GPTConfig,
        {"norm_placement": "between"},
        "norm_placement: .*expected one of.*not 'between'",
    ),
    (
        GPTConfig,
        {"position": "absolute"},
        "position: .*expected one of.*not 'absolute'",
    ),
    (GPTConfig, {"join": "add"}, "join: .*expected one of.*not 'add'"),
    (GPTConfig, {"sparse": "local"}, "sparse: .*expected one of.*not 'local'"),
    (GPTConfig, {"sparse": "strided"}, "stride: .*expects a stride"),
    (GPTConfig, {"stride": 3}, "stride: .*expects none"),
    (GPTConfig, {"sparse": "fixed", "stride": 0}, "stride: .*1 or more.*not 0"),
    (GPTConfig, {"final_norm": "yes"}, "final_norm: .*true or false.*not 'yes'"),
    (
        GPTConfig,
        {"rotary_scaling": {"factor": 8.0}},
        "rotary_scaling: .*fields of",
    ),
    (
        GPTConfig,
        {"position": "rotary", "head_width": 3},
        "head_width: .*even number.*not 3",
    ),
    (
        GPTConfig,
        {"memory": 5},
        "memory: .*only relative",
    ),
    (
        GPTConfig,
        {"memory": 5, "position": "relative", "sparse": "fixed", "stride": 3},
        "sparse: .*fixed pattern",
    ),
    (
        GPTConfig,
        {"join": "concatenate"},
        "tied: .*narrower",
    ),
    (
        BERTConfig,
        {"position": "relative"},
        "position: .*causal models",
    ),
    (
        BERTConfig,
        {"pooler": False},
        "next_sentence: .*pooler",
    ),
    (
        BERTConfig,
        {"join": "concatenate"},
        "join: .*sum or pro",
    ),
    (BERTConfig, {"segments": -1}, r"segments: .*whole number.*not \-1"),
    (
        TransformerConfig,
        {"position": "relative"},
        "position: .*causal models",
    ),
    (
        TransformerConfig,
        {"source_vocabulary": 7},
        "tied: .*one vocabulary",
    ),
    (TransformerConfig, {"tied": True}, "tied: .*expected one of"),
    (
        TransformerConfig,
        {"tied": "two", "join": "concatenate"},
        "tied: .*embedding is narrower",
    ),
    (TransformerConfig, {"decoder_depth": 0}, "decoder_depth: .*1 or more.*not 0"),
    (
        TransformerConfig,
        {"sinusoid": "mixed"},
        "sinusoid: .*expected one of.*not 'mixed'",
    ),
    (RNNConfig, {"cell": "mlp"}, "cell: .*expected one of.*not 'mlp'"),
    (
        RNNConfig,
        {"attention": "soft"},
        "attention: .*expected one of",
    ),
    (RNNConfig, {"width": 7}, "width: .*even number.*not 7"),
    (RNNConfig, {"depth": 0}, "depth: .*1 or more.*not 0"),
    (RNNConfig, {"dropout": 1}, "dropout: .*probability.*not 1"),
]


@pytest.mark.parametrize(
    ("config", "values", "message"),
    WRONG_FIELDS,
    ids=[f"{config.__name__} {values}" for config, values, _ in WRONG_FIELDS],
)
def test_a_config_with_a_wrong_value(config: type, values: dict[str, Any], message: str) -> None:
    with refused(message):
        config(**values)


def test_a_position_wider_than_the_model() -> None:
    config = GPTConfig(**SMALL, join="concatenate", position_width=8, tied=False)
    with refused("position_width: .*less than width.*not 8"):
        build(config)


@pytest.mark.parametrize("config", [GPTConfig(), BERTConfig(), TransformerConfig(), RNNConfig()])
def test_a_config_with_an_unknown_key_suggests_the_right_one(config) -> None:
    values = to_json(config)
    with refused(f"widht: .*{values['family']}.* no such key; did you mean width"):
        from_json(values | {"widht": 3})
    with refused(f"zzz: .*{values['family']}.* no such key"):
        from_json({"family": values["family"], "zzz": 3})


def test_a_config_of_an_unknown_family() -> None:
    with refused("family: .*expected one of.*not 'gtp'"):
        from_json({"family": "gtp"})
    with refused("family: .*expected one of"):
        from_json({"width": 8})


def test_rotary_scaling_with_an_unknown_key_suggests_the_right_one() -> None:
    with refused("factr: .*did you mean factor"):
        from_json({"family": "gpt", "position": "rotary", "rotary_scaling": {"factr": 8.0}})


def test_rotary_scaling_with_a_wrong_value() -> None:
    with refused("factor: .*expected a number.*not 'eight'"):
        from_json({"family": "gpt", "position": "rotary", "rotary_scaling": {"factor": "eight"}})


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with refused("preset: .*did you mean gpt2"):
        preset("gpt-2")
    with refused(r"preset: .*did you mean llama3\-8b"):
        preset("llama3-8B")
    with refused(r"preset: .*expected one of gpt\-tiny"):
        preset("qqqqqq")


# Ids

MODELS = {
    "gpt": (GPTConfig(**SMALL), lambda model, ids: model(ids)),
    "bert": (BERTConfig(**SMALL), lambda model, ids: model(ids)),
    "transformer source": (
        TransformerConfig(**SMALL, position="learned"),
        lambda model, ids: model(ids, torch.zeros(ids.shape[0], 2, dtype=torch.long)),
    ),
    "transformer target": (
        TransformerConfig(**SMALL, position="learned"),
        lambda model, ids: model(torch.zeros(ids.shape[0], 2, dtype=torch.long), ids),
    ),
    "rnn source": (
        RNNConfig(vocabulary=13, width=8),
        lambda model, ids: model(ids, torch.zeros(ids.shape[0], 2, dtype=torch.long)),
    ),
    "rnn target": (
        RNNConfig(vocabulary=13, width=8),
        lambda model, ids: model(torch.zeros(ids.shape[0], 2, dtype=torch.long), ids),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_ids_outside_the_vocabulary(name: str) -> None:
    config, run = MODELS[name]
    model = build(config)
    with refused("ids: .*expected 0 to.*found 13"):
        run(model, torch.tensor([[1, 13]]))
    with refused(r"ids: .*expected 0 to.*found \-1"):
        run(model, torch.tensor([[-1, 99]]))
    for wrong in (13, -1):
        many = torch.zeros(40, 2, dtype=torch.long)
        many[39, 1] = wrong
        with refused(f"ids: .*expected 0 to.*found {wrong}"):
            run(model, many)
    with refused(r"ids: .*whole number.*not torch\.float32", TypeError):
        run(model, torch.zeros(1, 3))
    with refused(r"ids: .*whole number.*not torch\.bool", TypeError):
        run(model, yes(1, 3))
    with refused(r"ids: .*expected shape.*not \(1, 2, 3\)"):
        run(model, torch.zeros(1, 2, 3, dtype=torch.long))


def test_a_source_id_outside_its_own_vocabulary() -> None:
    for config in (
        TransformerConfig(**SMALL, source_vocabulary=5, tied="two"),
        RNNConfig(vocabulary=13, source_vocabulary=5, width=8),
    ):
        with refused("ids: .*expected 0 to.*found 7"):
            build(config)(torch.tensor([[7]]), torch.tensor([[7]]))


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("rnn")])
def test_sequences_longer_than_the_context(name: str) -> None:
    config, run = MODELS[name]
    with refused("context: .*more than the model"):
        run(build(config), torch.zeros(1, 9, dtype=torch.long))


def test_positions_and_segments_out_of_range() -> None:
    ids = torch.zeros(1, 3, dtype=torch.long)
    with refused("positions: .*expected 0 to.*found 8"):
        build(GPTConfig(**SMALL))(ids, positions=torch.tensor([[6, 7, 8]]))
    with refused("segments: .*expected 0 to.*found 2"):
        build(BERTConfig(**SMALL))(ids, segments=torch.tensor([[0, 1, 2]]))


def test_decoding_past_the_context() -> None:
    model = build(GPTConfig(**SMALL))
    state = model.start()
    model.decode(torch.zeros(1, 8, dtype=torch.long), state)
    with refused("context: .*more than the model"):
        model.decode(torch.zeros(1, 1, dtype=torch.long), state)


def test_only_learned_positions_end() -> None:
    for position in ("sinusoidal", "rotary", "alibi", "relative", "none"):
        model = build(GPTConfig(**SMALL, position=position))
        assert model(torch.zeros(1, 20, dtype=torch.long)).shape == (1, 20, 13)


def test_padding_that_is_not_of_the_ids() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    gpt, transformer = build(GPTConfig(**SMALL)), build(TransformerConfig(**SMALL))
    message = r"padding_mask: .*expected shape.*not \(2, 4\)"
    with refused(message):
        gpt(ids, padding_mask=yes(2, 4))
    with refused(message):
        build(BERTConfig(**SMALL))(ids, padding_mask=yes(2, 4))
    with refused(message):
        transformer(ids, ids, source_padding_mask=yes(2, 4))
    with refused(message):
        transformer(ids, ids, target_padding_mask=yes(2, 4))
    with refused(message):
        build(RNNConfig(vocabulary=13, width=8))(ids, ids, source_padding_mask=yes(2, 4))


def test_padding_mask_without_the_cached_positions() -> None:
    gpt = build(GPTConfig(**SMALL))
    state = gpt.start()
    gpt.decode(torch.zeros(2, 3, dtype=torch.long), state)
    with refused(r"padding_mask: .*expected shape.*not \(2, 1\)"):
        gpt.decode(torch.zeros(2, 1, dtype=torch.long), state, yes(2, 1))


def test_padding_in_numbers() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    for model in (build(GPTConfig(**SMALL)), build(BERTConfig(**SMALL))):
        with refused(
            r"padding_mask: .*bool.*not torch\.int64",
            TypeError,
        ):
            model(ids, padding_mask=torch.ones(2, 3, dtype=torch.long))


def test_an_rnns_padding_comes_after_the_tokens() -> None:
    model, ids = build(RNNConfig(vocabulary=13, width=8)), torch.zeros(2, 3, dtype=torch.long)
    with refused("padding_mask: .*must come after"):
        model(ids, ids, source_padding_mask=torch.tensor([[True] * 3, [False, True, True]]))
    with refused("padding_mask: .*at least one"):
        model(ids, ids, source_padding_mask=torch.tensor([[True] * 3, [False] * 3]))


def test_an_empty_source() -> None:
    for config in (TransformerConfig(**SMALL), RNNConfig(vocabulary=13, width=8)):
        model, nothing = build(config), torch.zeros(2, 0, dtype=torch.long)
        if isinstance(config, RNNConfig):
            with refused("source: .*at least one"):
                model(nothing, torch.zeros(2, 3, dtype=torch.long))
        else:
            assert model(nothing, torch.zeros(2, 3, dtype=torch.long)).isfinite().all()


def test_a_state_of_other_rows() -> None:
    model = build(GPTConfig(**SMALL))
    state = KeyValueCache()
    model(torch.zeros(2, 3, dtype=torch.long), state=state)
    with refused("state: .*rows"):
        model(torch.zeros(1, 1, dtype=torch.long), state=state)


# Weights


def test_weights_that_are_not_the_models() -> None:
    config = GPTConfig(**SMALL)
    weights = build(config).state_dict()
    first = "embedding.position.weight"
    missing = {name: tensor for name, tensor in weights.items() if name != first}
    with refused(f"the weights: 1 .*missing, .*{first}"):
        with_weights(config, missing)
    with refused(r"a\.safetensors: .*no place"):
        with_weights(
            config, weights | {"spare.b": torch.ones(1), "spare.a": torch.ones(1)}, "a.safetensors"
        )
    with refused(rf"the weights: {first} .*\(9, 8\), expected \(8, 8\)"):
        with_weights(config, weights | {first: torch.ones(9, 8)})
    model = with_weights(config, weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_groups_that_do_not_divide() -> None:
    model = build(GPTConfig(**SMALL))
    with refused("kv_heads: .*divisor.*not 3"):
        group_key_value_heads(model, 3)


def test_positions_of_another_shape() -> None:
    ids = torch.zeros(2, 4, dtype=torch.long)
    for model in (build(GPTConfig(**SMALL, position="rotary")), build(BERTConfig(**SMALL))):
        with refused(r"positions: .*expected shape.*not \(4,\)"):
            model(ids, positions=torch.arange(4))
        with refused(
            r"positions: .*whole number.*not torch\.float32",
            TypeError,
        ):
            model(ids, positions=torch.zeros(2, 4))


def test_a_state_of_another_model() -> None:
    ids = torch.zeros(2, 4, dtype=torch.long)
    gpt, transformer = build(GPTConfig(**SMALL)), build(TransformerConfig(**SMALL))
    with refused(r"state: .*start\(\) gives", TypeError):
        gpt(ids, state=SegmentMemory(4))
    with refused(r"state: .*start\(\) gives", TypeError):
        transformer.decode(ids, KeyValueCache())
    with refused("state: .*source"):
        transformer.decoder(torch.zeros(2, 4, 8), ids[:1])


def test_padding_where_it_would_change_the_output() -> None:
    ids, padding_mask = (
        torch.zeros(1, 4, dtype=torch.long),
        torch.tensor([[False, True, True, True]]),
    )
    with refused("padding_mask: .*must come after"):
        build(GPTConfig(**SMALL, sparse="fixed", stride=2))(ids, padding_mask=padding_mask)
    rnn = build(RNNConfig(vocabulary=13, width=8))
    for side in ("source_padding_mask", "target_padding_mask"):
        with refused("padding_mask: .*must come after"):
            rnn(ids, ids, **{side: padding_mask})


@pytest.mark.parametrize("field", ["norm_epsilon", "rotary_base"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_epsilon_and_base_must_be_above_zero(field: str, value: float) -> None:
    with refused(f"{field}: expected a number above 0, not {value}"):
        GPTConfig(**{field: value})


def test_rotary_scaling_out_of_range() -> None:
    with refused("factor: .*above 0"):
        RotaryScaling(factor=0.0)
    with refused("low: .*less than high"):
        RotaryScaling(low=4.0, high=1.0)


def test_a_config_that_is_a_string() -> None:
    with refused("config: expected one of GPTConfig, .*TaskModelConfig, not 'gpt2'", TypeError):
        build("gpt2")


def test_attention_over_several_dtypes() -> None:
    x = torch.zeros(3, 4)
    with refused("query, key and value must have one dtype", TypeError):
        attend(x, x.double(), x)
    with refused(r"query, key and value must be floating\-point", TypeError):
        attend(x.long(), x.long(), x.long())
    with refused("Document: .*are more than"):
        attend(x, x[:2], x[:2], mask=Document(torch.zeros(1, 2, dtype=torch.long)))


def test_a_target_of_other_rows_than_its_source() -> None:
    source, target = torch.zeros(2, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    for config in (TransformerConfig(**SMALL), RNNConfig(vocabulary=13, width=8)):
        with refused("target: .*2 rows as the source.*not 1"):
            build(config)(source, target)


def test_a_score_by_its_name() -> None:
    x = torch.zeros(3, 4)
    with refused(
        "score: .*or a function.*not 'dot'",
        TypeError,
    ):
        attend(x, x, x, score="dot")
