"""Attention, feed-forward and positions of one's own, named by a config."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv import plugins
from qkv.models import GPT, BERTConfig, GPTConfig, TransformerConfig, build
from qkv.nn import FeedForward, MultiHeadAttention, PositionEncoding, StackConfig
from qkv.nn import own_parts as parts
from qkv.nn.attention import Distance
from qkv.nn.position import alibi_slopes, sinusoidal

SMALL: dict[str, Any] = {"vocabulary": 11, "context": 16, "width": 16, "depth": 2, "heads": 2}


class ByHand(MultiHeadAttention):
    """The equation written out."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        bias: Any,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor]:
        T, S = query.shape[2], key.shape[2]
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.materialise(T, S, query.device), -math.inf)

        weights = scores.softmax(-1)
        return weights @ value, weights


class Unused(FeedForward):
    """A layer that gives zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return 0 * x


class Waves(PositionEncoding):
    """Sinusoidal positions, added in the stack."""

    def add(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoidal(positions, self.config.width).to(x.dtype)


class Slopes(PositionEncoding):
    """ALiBi, written again."""

    def bias(self, device: torch.device) -> Distance:
        return Distance(alibi_slopes(self.config.heads, device))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in parts.PARTS:
        monkeypatch.setitem(parts.PARTS, field, {})

    parts.register_part("attention", "by hand", ByHand)
    parts.register_part("feed_forward", "unused", Unused)
    parts.register_part("position_encoding", "waves", Waves)
    parts.register_part("position_encoding", "slopes", Slopes)


def twin(config: Any, like: Any) -> Any:
    """A model of this config with the weights of another."""
    model = build(config).double()
    model.load_state_dict(like.state_dict())
    return model.eval()


@pytest.mark.parametrize("kind", [GPTConfig, BERTConfig, TransformerConfig])
def test_attention_of_ones_own_gives_the_same_numbers(kind: Any) -> None:
    plain = build(kind(**SMALL)).double().eval()
    own = twin(kind(**SMALL, attention="by hand"), plain)
    ids = torch.randint(11, (2, 7))
    inputs = (ids, ids[:, :5]) if plain.has_source else (ids,)
    torch.testing.assert_close(own(*inputs), plain(*inputs))
    assert any(type(module) is ByHand for module in own.modules())


def test_attention_of_ones_own_decodes_with_a_cache() -> None:
    model = GPT(GPTConfig(**SMALL, attention="by hand")).double().eval()
    ids = torch.randint(11, (2, 7))
    state = model.start()
    steps = [model.decode(piece, state) for piece in ids.split([4, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(ids))


def test_positions_of_ones_own() -> None:
    ids = torch.randint(11, (2, 7))
    for name, same_as in (("waves", "sinusoidal"), ("slopes", "alibi")):
        plain = build(GPTConfig(**SMALL, position=same_as)).double().eval()
        own = twin(GPTConfig(**SMALL, position="none", position_encoding=name), plain)
        torch.testing.assert_close(own(ids), plain(ids))

    with pytest.raises(ValueError, match="position_encoding: expected position = none"):
        StackConfig(position_encoding="waves")


def test_a_feed_forward_layer_of_ones_own() -> None:
    plain = build(GPTConfig(**SMALL)).double().eval()
    own = twin(GPTConfig(**SMALL, feed_forward="unused"), plain)
    for block in plain.stack.blocks:
        torch.nn.init.zeros_(block.feed_forward.down.weight)

    ids = torch.randint(11, (2, 7))
    torch.testing.assert_close(own(ids), plain(ids))


def test_a_file_runs_only_if_the_user_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from qkv.nn import MultiHeadAttention\nclass Mine(MultiHeadAttention): ...\n")
    monkeypatch.setattr(plugins, "allowed", set())
    config = GPTConfig(**SMALL, attention=f"{file}:Mine")
    with pytest.raises(ValueError, match=r"attention: .*QKV_PLUGINS="):
        build(config)

    monkeypatch.setenv("QKV_PLUGINS", str(file))
    assert type(build(config).stack.blocks[0].attention).__name__ == "Mine"

    (tmp_path / "other").mkdir()
    moved = file.rename(tmp_path / "other" / "mine.py")
    monkeypatch.setenv("QKV_PLUGINS", str(moved))
    build(config)
    moved.rename(file)

    monkeypatch.delenv("QKV_PLUGINS")
    assert plugins.allow_file(f"{file}:Mine", "attention") == f"{file.resolve()}:Mine"
    build(config)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nobody", r"attention: expected file.py:Class or a registered name \(by hand\)"),
        ("linear", "attention: expected a subclass of qkv.nn.MultiHeadAttention, not Linear"),
    ],
)
def test_wrong_parts_are_refused(spec: str, message: str) -> None:
    parts.register_part("attention", "linear", torch.nn.Linear)
    if spec == "nobody":
        del parts.PARTS["attention"]["linear"]

    with pytest.raises(ValueError, match=message):
        build(GPTConfig(**SMALL, attention=spec))

    with pytest.raises(ValueError, match="field: expected one of attention"):
        parts.register_part("head", "x", ByHand)


def test_attention_that_returns_one_tensor_is_named() -> None:
    class Careless(MultiHeadAttention):
        def attend(self, query: Tensor, *others: Any) -> Any:
            return query

    with pytest.raises(TypeError, match=r"Careless.attend: expected \(output, weights"):
        Careless(8, 2)(torch.zeros(1, 3, 8))
