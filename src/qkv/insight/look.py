"""One look at one text: attention of every layer and head, what comes next, the lens, the norms.
Shown in many ways.
"""

from __future__ import annotations

import html
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from qkv import artifact, storage
from qkv.insight.inspect.attribution import attribution as attribute
from qkv.insight.inspect.capture import attention_sites, capture_attention
from qkv.insight.inspect.logit_lens import lens, next_tokens, predicts_tokens, stack_of
from qkv.insight.inspect.look_data import (
    ALL_LAYERS_MAX_WEIGHTS as ALL_LAYERS,
)
from qkv.insight.inspect.look_data import ATTRIBUTION_MAX_TOKENS as BRIEF
from qkv.insight.inspect.look_data import LENS_MAX_TOKENS as SHORT
from qkv.insight.inspect.look_data import NORMS_MAX_TOKENS as MIDDLING
from qkv.insight.inspect.look_data import LookData
from qkv.insight.inspect.model_input import Reading, read
from qkv.insight.inspect.residual_norms import norms
from qkv.insight.render.figures.figure_style import ENDINGS
from qkv.models import BERT, TaskModel
from qkv.models.registry import Model, backbone_of
from qkv.text.tokenizer import Tokenizer

FORMATS = (".html", *ENDINGS, ".safetensors")


class Look(LookData):
    """What a model does with a text. A notebook displays it; `save` writes a page or a picture."""

    def save(self, path: Path | str, **how: Any) -> Path:
        """As a page (.html), as numbers (.safetensors), or one view as a picture (.png, .svg,
        .pdf), which view, kind, layer, head and words choose."""
        path = Path(path)
        ending = path.suffix.lower()
        if ending not in FORMATS:
            raise ValueError(f"out: expected the name of a {', '.join(FORMATS)} file, not {path}")
        if ending == ".safetensors":
            return self.write_weights(path)

        if ending == ".html":
            from qkv.insight.render.page import write_page

            return write_page(self, path, **how)

        from qkv.insight.render.figures import look_figure

        return look_figure.save(self, path, **how)

    def write_weights(self, path: Path) -> Path:
        """The weights as numbers: self.3 is (H, T, S) of layer 3; the tokens are in the file's
        metadata.
        """
        tensors = {
            f"{each.kind}.{layer}": w.contiguous()
            for each in self.attention
            for layer, w in each.layers.items()
        }
        sides = {
            "text": self.reading.text,
            "source": self.reading.source,
            "chosen": self.reading.chosen,
        }
        tokens = {name: json.dumps(side.tokens) for name, side in sides.items() if side is not None}

        with storage.staging(
            path.parent, sum(each.nbytes for each in tensors.values()), path.name
        ) as made:
            save_file(tensors, made / path.name, tokens)
            storage.flush(made / path.name)
            storage.move(made / path.name, path)

        return path

    def _repr_html_(self) -> str:
        from qkv.insight.render.page import page

        return (
            f'<iframe srcdoc="{html.escape(page(self))}" title="attention" '
            'style="width: 100%; height: 720px; border: 0"></iframe>'
        )


def look(
    model: Model | artifact.Loaded | str | Path,
    *texts: str,
    tokenizer: Tokenizer | None = None,
    source: str | None = None,
    target: str | None = None,
    reading: Reading | None = None,
    layers: Collection[int] | None = None,
    at_least: Collection[int] = (),
    name: str | None = None,
    attention: bool = True,
    lens_too: bool | None = None,
    norms_too: bool | None = None,
    attribution: bool | None = False,
) -> Look:
    """Let a model read a text and keep what happens inside.

    `model` may be what `qkv.load` returns, its model alone, or a name that it takes; another model
    needs its `tokenizer`. A `reading` may come in place of texts. `layers` keeps the weights of
    these alone; unless given, of all, or, where a long text makes that too many, `at_least` of
    these (the first). `attention=False` captures no weights, for a model whose attention does not
    send them through its hooks. `lens_too` and `norms_too` make these of a long text, too.
    `attribution` adds gradient x input; None does so for a brief text.
    """
    if isinstance(model, str | Path):
        name = name or str(model)
        model = artifact.load(model)

    if isinstance(model, tuple):
        model, found = model
        tokenizer = tokenizer or found

    tokenizer = tokenizer or artifact.tokenizer_with(model)
    if tokenizer is None:
        raise ValueError(
            "tokenizer: expected the one that belongs to the model; qkv.load gives both"
        )

    if reading is None:
        reading = read(model, tokenizer, *texts, source=source, target=target)

    T = len(reading.text.ids)
    words, blocks = predicts_tokens(model), stack_of(model) is not None
    explicable = words or isinstance(model, TaskModel)
    check_room(model, reading)
    by_layer = (
        lens(model, tokenizer, reading)
        if words and (T <= SHORT if lens_too is None else lens_too)
        else None
    )
    attends = attention and (blocks or getattr(model.config, "attention", "none") != "none")

    return Look(
        name or type(model).__name__,
        reading,
        capture_attention(model, reading, layers=kept(model, reading, layers, at_least))
        if attends
        else [],
        by_layer[-1] if by_layer else next_tokens(model, tokenizer, reading) if words else None,
        by_layer,
        norms(model, reading)
        if blocks and (T <= MIDDLING if norms_too is None else norms_too)
        else None,
        attribute(model, reading)
        if (explicable and T <= BRIEF if attribution is None else attribution)
        else None,
        both_ways=isinstance(backbone_of(model), BERT),
    )


def check_room(model: Model, reading: Reading) -> None:
    """Weights exist, one layer at a time, with the scores they are made from; better refused than
    killed.
    """
    if next(model.parameters()).device.type != "cpu":
        return

    heads, longest, free = (
        getattr(backbone_of(model).config, "heads", 1),
        longest_of(reading),
        free_memory(),
    )
    needed = 3 * 4 * heads * longest**2
    if free is not None and needed > free:
        raise ValueError(
            f"text: the attention of {longest:,} tokens needs {needed / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} GiB are free; shorten the text"
        )


def free_memory() -> int | None:
    """In bytes, with what a cache would give back; None where nobody knows."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024

    return None


def longest_of(reading: Reading) -> int:
    return max(len(side.ids) for side in (reading.text, reading.source) if side is not None)


def kept(
    model: Model, reading: Reading, layers: Collection[int] | None, at_least: Collection[int] = ()
) -> Collection[int] | None:
    """The layers whose weights are kept: as asked, else all (None), else, when all would be too
    many, some.
    """
    if layers is not None:
        return layers

    weights = sum(
        place.depth * place.heads * longest_of(reading) ** 2 for place in attention_sites(model)
    )
    return None if weights <= ALL_LAYERS else at_least or [0]
