"""Our encoder and decoder stacks with torch.nn.Transformer's weights give its numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.models import Transformer, TransformerConfig
from qkv.nn.attention import Causal, Padding
from qkv.nn.cache import NO_STATE, DecoderState, EncodedSource

pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor"
)  # torch.nn.Transformer's own, of its fast path

B, S, T, E = 3, 6, 5, 16

NAMES = {
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj.": "attention.output.",
    "multihead_attn.in_proj_": "cross_attention.qkv.",
    "multihead_attn.out_proj.": "cross_attention.output.",
    "linear1.": "feed_forward.up.",
    "linear2.": "feed_forward.down.",
}
NORMS = {
    "encoder": {"norm1.": "attention_residual.norm.", "norm2.": "feed_forward_residual.norm."},
    "decoder": {
        "norm1.": "attention_residual.norm.",
        "norm2.": "cross_attention_residual.norm.",
        "norm3.": "feed_forward_residual.norm.",
    },
}


def our_name(name: str) -> str:
    side = name.split(".")[0]
    name = name.replace(".layers.", ".blocks.")
    for their, our in (NAMES | NORMS[side]).items():
        name = name.replace(their, our)

    return name.replace("norm.weight", "norm.gain")


def twins(norm_first: bool, activation: str) -> tuple[Transformer, nn.Transformer]:
    theirs = nn.Transformer(
        E,
        nhead=4,
        num_encoder_layers=2,
        num_decoder_layers=3,
        dim_feedforward=24,
        dropout=0.0,
        activation=activation,
        norm_first=norm_first,
        batch_first=True,
        dtype=torch.float64,
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)

    ours = Transformer(
        TransformerConfig(
            vocabulary=11,
            width=E,
            heads=4,
            depth=2,
            decoder_depth=3,
            hidden=24,
            activation=activation,
            norm_placement="before" if norm_first else "after",
            final_norm=True,
            dropout=0.0,
        )
    ).double()
    state = {our_name(name): tensor for name, tensor in theirs.state_dict().items()}
    missing, surplus = ours.load_state_dict(state, strict=False)
    assert missing == ["embedding.token.weight"]
    assert not surplus
    return ours, theirs


SOURCE_PADDING_MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] + [False] * 5])
TARGET_PADDING_MASK = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_stacks_equal_torch_transformer(norm_first: bool, activation: str, padded: bool) -> None:
    ours, theirs = twins(norm_first, activation)
    source = torch.randn(B, S, E, dtype=torch.float64, requires_grad=True)
    target = torch.randn(B, T, E, dtype=torch.float64, requires_grad=True)

    right = theirs(
        source,
        target,
        tgt_mask=torch.ones(T, T).triu(1).bool(),
        src_key_padding_mask=~SOURCE_PADDING_MASK if padded else None,
        memory_key_padding_mask=~SOURCE_PADDING_MASK if padded else None,
        tgt_key_padding_mask=~TARGET_PADDING_MASK if padded else None,
    )
    captured = Padding(SOURCE_PADDING_MASK) if padded else None
    encoded = ours.encoder(source, torch.arange(S).unsqueeze(0), mask=captured)
    actual = ours.decoder(
        target,
        torch.arange(T).unsqueeze(0),
        mask=Causal() & Padding(TARGET_PADDING_MASK) if padded else Causal(),
        state=DecoderState(
            EncodedSource(encoded, SOURCE_PADDING_MASK if padded else None), NO_STATE
        ),
    )
    assert_close(actual, right)

    ask = torch.randn_like(right)
    pairs = {our_name(name): parameter for name, parameter in theirs.named_parameters()}
    our_parameters = dict(ours.named_parameters())
    expected = torch.autograd.grad(right, [source, target, *pairs.values()], ask)
    computed = torch.autograd.grad(
        actual, [source, target, *(our_parameters[name] for name in pairs)], ask
    )
    for name, one, other in zip(["source", "target", *pairs], computed, expected, strict=True):
        assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


def test_whole_model_is_embedding_stacks_and_output_layer() -> None:
    """Logits are sqrt(E) times embedding plus sinusoid, through the stacks and the embedding."""
    ours, theirs = twins(False, "relu")
    source = torch.randint(11, (B, S))
    target = torch.randint(11, (B, T))

    def embed(ids: Tensor) -> Tensor:
        position = torch.arange(ids.shape[1]).unsqueeze(1)
        angle = position / 10000 ** (torch.arange(0, E, 2) / E)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()
        return ours.embedding.token(ids) * E**0.5 + table

    right = theirs(embed(source), embed(target), tgt_mask=torch.ones(T, T).triu(1).bool())
    assert_close(ours(source, target), right @ ours.embedding.token.weight.T, rtol=0, atol=1e-5)
