"""Custom attention that bypasses its hooks is reported by name, never shown as zeros."""

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
from qkv.insight.heads.head_syntax import head_syntax
from qkv.insight.inspect.activation_patching import patch
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.attention_edits import Edit
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import read
from qkv.insight.intervene.edit_effects import edit_effects
from qkv.insight.render.page_text import missing_views
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.hooks import HookPoints
from qkv.text import train
from support.families import gpt, rnn, transformer, words
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
TEXT = "the cat sat on the mat"
WIDTH = gpt().config.width


class Mean(nn.Module):
    """Attention without hook points."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(WIDTH, WIDTH).double()

    def forward(
        self, x: Tensor, source: Tensor | None = None, **others: Any
    ) -> tuple[Tensor, None]:
        read = x if source is None else source.mean(1, keepdim=True).expand_as(x)
        return self.output(read.cumsum(1)), None


class Linear(MultiHeadAttention):
    """A subclass with all hook points that never forms weights."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *others: Any
    ) -> tuple[Tensor, None]:
        return query + value[:, :, -1:], None


class OneHead(Mean):
    """Attention that sends weights of fewer heads than the config has."""

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


def readers(model: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Every function that reads weights or heads, as one call each."""
    reading, other = (read(model, TOKENIZER, text) for text in (TEXT, "the dog sat on the mat"))
    batch = [Batch(ids=words(1, 5), targets=words(1, 5))]

    def effects_of(edit: str) -> Callable[[], Any]:
        return lambda: edit_effects(model, TOKENIZER, reading, [Edit.read(edit)], length=0)

    return {
        "look": lambda: qkv.look(model, TEXT, tokenizer=TOKENIZER),
        "capture of the layer": lambda: capture_attention(
            model, reading, layers=[1], overview=False
        ),
        "head patterns": lambda: head_patterns(model, TOKENIZER, [TEXT]),
        "syntax": lambda: head_syntax(model, TOKENIZER, sentences(folder)),
        "set a weight": effects_of("1.0:3>1=0.5"),
        "ablation": lambda: ablate(model, batch),
        "mean ablation": lambda: ablate(model, batch, "mean"),
        "switch off a head": effects_of("1.0=off"),
        "patching": lambda: patch(model, reading, other, at="heads"),
    }


WEIGHTS = ("look", "capture of the layer", "head patterns", "syntax", "set a weight")
HEADS = ("ablation", "mean ablation", "switch off a head", "patching")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", [*WEIGHTS, *HEADS])
def test_a_module_without_hook_points_is_named(name: str, tmp_path: Path) -> None:
    value = "weights" if name in WEIGHTS else "heads"
    module = r"^(stack\.)?blocks\.1\.attention \(Mean\)"
    remedy = rf'self\.hooks\("{value}", {value}'
    with pytest.raises(ValueError, match=rf'{module} .*"{value}", .*{remedy}'):
        readers(replaced(Mean), tmp_path)[name]()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_never_sent_are_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^stack\.blocks\.1\.attention \(Linear\) never sent its weights"
    ):
        readers(replaced(linear), tmp_path)[name]()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", HEADS)
def test_functions_that_need_no_weights_work_without_them(name: str, tmp_path: Path) -> None:
    assert readers(replaced(linear), tmp_path)[name]() is not None


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["look", "head patterns", "syntax"])
def test_weights_of_another_number_of_heads_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^stack\.blocks\.1\.attention \(OneHead\): expected weights of 4 heads"
    ):
        readers(replaced(OneHead), tmp_path)[name]()


def test_a_look_without_attention_has_the_rest() -> None:
    result = qkv.look(replaced(Mean), TEXT, tokenizer=TOKENIZER, attention=False)
    assert result.attention == []
    assert result.lens is not None
    assert result.next == result.lens[-1]
    assert result.norms is not None
    with pytest.raises(ValueError, match=r"attention: .*attention=False"):
        result.of()
    assert "attention=False" in missing_views(result)["heads"]


@pytest.mark.usefixtures("without_shape_checks")
def test_an_alignment_needs_weights() -> None:
    model = transformer()
    model.decoder.blocks[0].cross_attention = Mean()  # type: ignore[assignment]
    with pytest.raises(
        ValueError,
        match=r'^decoder\.blocks\.0\.cross_attention \(Mean\) has no hook point "weights"',
    ):
        alignment(model, words(1, 4), words(1, 3), start=0)


def test_an_error_inside_the_context_is_kept_and_the_hook_removed() -> None:
    model = rnn()
    with (
        pytest.raises(KeyError, match="inside"),
        require_hook(model, "weights", lambda value, name: None),
    ):
        raise KeyError("inside")
    with (
        pytest.raises(ValueError, match=r"^RNN never sent its weights"),
        require_hook(model, "weights", lambda value, name: None),
    ):
        pass
    assert model.hooks.callbacks == {}
