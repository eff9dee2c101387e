"""An attention module that somebody wrote: what it does not send through its hooks is named, never
shown as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.data.batches.batch import Batch
from qkv.data.sources.conllu import read_sentences
from qkv.data.sources.files import find_files
from qkv.insight.heads.head_ablation import ablate
from qkv.insight.heads.head_patterns import head_patterns
from qkv.insight.heads.head_syntax import syntax
from qkv.insight.inspect.activation_patching import patch
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.attention_edits import Edit
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.edit_effects import edit_effects
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import read
from qkv.insight.render.page_text import lacking
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.hooks import HookPoints
from qkv.text import train
from support.families import gpt, rnn, transformer, words
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
TEXT = "the cat sat on the mat"
WIDTH = gpt().config.width


class Mean(nn.Module):
    """Somebody's attention, which knows nothing of hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(WIDTH, WIDTH).double()

    def forward(
        self, x: Tensor, source: Tensor | None = None, **others: Any
    ) -> tuple[Tensor, None]:
        read = x if source is None else source.mean(1, keepdim=True).expand_as(x)
        return self.output(read.cumsum(1)), None


class Linear(MultiHeadAttention):
    """A subclass that has all hook points and never makes weights."""

    def look(self, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, None]:
        return query + value[:, :, -1:], None


class OneHead(Mean):
    """It sends weights, of fewer heads than the config says."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks = HookPoints("weights")

    def forward(
        self, x: Tensor, source: Tensor | None = None, **others: Any
    ) -> tuple[Tensor, None]:
        self.hooks("weights", torch.eye(x.shape[1]).expand(len(x), 1, -1, -1))
        return super().forward(x)


def linear() -> Linear:
    return Linear(WIDTH, gpt().config.heads, layer=1).double()


def replaced(module: Callable[[], nn.Module]) -> Any:
    model = gpt(vocabulary=TOKENIZER.vocabulary, context=40)
    model.stack.blocks[1].attention = module()  # type: ignore[assignment]
    return model


def sentences(folder: Path) -> list[Any]:
    (folder / "a.conllu").write_text(
        "1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n\n" * 4
    )
    (file,) = find_files(str(folder / "a.conllu"), piped="conllu")
    return list(read_sentences(file))


def ways(model: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """All that reads weights or heads, each as one call."""
    reading, other = (read(model, TOKENIZER, text) for text in (TEXT, "the dog sat on the mat"))
    batch = [Batch(ids=words(1, 5), targets=words(1, 5))]

    def changed(edit: str) -> Callable[[], Any]:
        return lambda: edit_effects(model, TOKENIZER, reading, [Edit.read(edit)], length=0)

    return {
        "look": lambda: qkv.look(model, TEXT, tokenizer=TOKENIZER),
        "capture of the layer": lambda: capture_attention(
            model, reading, layers=[1], overview=False
        ),
        "roles": lambda: head_patterns(model, TOKENIZER, [TEXT]),
        "syntax": lambda: syntax(model, TOKENIZER, sentences(folder)),
        "a weight set": changed("1.0:3>1=0.5"),
        "ablation": lambda: ablate(model, batch),
        "ablation by the mean": lambda: ablate(model, batch, "mean"),
        "a head off": changed("1.0=off"),
        "patching": lambda: patch(model, reading, other, at="heads"),
    }


WEIGHTS = ("look", "capture of the layer", "roles", "syntax", "a weight set")
HEADS = ("ablation", "ablation by the mean", "a head off", "patching")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("way", [*WEIGHTS, *HEADS])
def test_a_module_without_hooks_is_named_with_what_to_do(way: str, tmp_path: Path) -> None:
    value = "weights" if way in WEIGHTS else "heads"
    sentence = rf'^(stack\.)?blocks\.1\.attention \(Mean\) has no hook point "{value}", .* self\.hooks\("{value}", {value}'
    with pytest.raises(ValueError, match=sentence):
        ways(replaced(Mean), tmp_path)[way]()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("way", WEIGHTS)
def test_weights_that_never_come_are_not_shown_as_zeros(way: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^stack\.blocks\.1\.attention \(Linear\) never sent its weights through"
    ):
        ways(replaced(linear), tmp_path)[way]()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("way", HEADS)
def test_heads_that_come_are_enough_for_what_needs_no_weights(way: str, tmp_path: Path) -> None:
    assert ways(replaced(linear), tmp_path)[way]() is not None


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("way", ["look", "roles", "syntax"])
def test_weights_of_another_number_of_heads_are_refused(way: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^stack\.blocks\.1\.attention \(OneHead\): expected weights of 4 heads"
    ):
        ways(replaced(OneHead), tmp_path)[way]()


def test_a_look_without_attention_has_the_rest() -> None:
    found = qkv.look(replaced(Mean), TEXT, tokenizer=TOKENIZER, attention=False)
    assert found.attention == []
    assert found.lens is not None
    assert found.next == found.lens[-1]
    assert found.norms is not None
    with pytest.raises(ValueError, match="attention=False captures none"):
        found.of()
    assert lacking(found)["heads"] == "Attention was not captured (attention=False)"


@pytest.mark.usefixtures("without_shape_checks")
def test_a_translator_is_aligned_by_weights_or_not_at_all() -> None:
    model = transformer()
    model.decoder.blocks[0].cross_attention = Mean()  # type: ignore[assignment]
    with pytest.raises(
        ValueError,
        match=r'^decoder\.blocks\.0\.cross_attention \(Mean\) has no hook point "weights"',
    ):
        alignment(model, words(1, 4), words(1, 3), start=0)


def test_a_context_that_fails_says_why_and_nobody_listens_on() -> None:
    model = rnn()
    with (
        pytest.raises(KeyError, match="mine"),
        require_hook(model, "weights", lambda value, name: None),
    ):
        raise KeyError("mine")
    with (
        pytest.raises(ValueError, match=r"^RNN never sent its weights"),
        require_hook(model, "weights", lambda value, name: None),
    ):
        pass
    assert model.hooks.listeners == {}
