"""What every layer of a model says at the places that are asked: kept in memory, kept in files, or
computed again.

A model reads its texts in blocks, always the same ones, so that all three ways give the same
numbers. None of them needs memory for more than a few blocks of one layer (computed again: of all
layers), except the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv import storage
from qkv.data.tokens.prepare import cache_folder
from qkv.generation.generate import without_dropout
from qkv.models import RNN, TaskModel, Transformer
from qkv.models.heads import pooled
from qkv.models.registry import Model, backbone_of
from qkv.nn.hooks import capture

Keep = Literal["disk", "memory", "recompute"]
Store = Literal["float32", "float16"]
BLOCK = 2048
"""Vectors of a block, about: it has whole texts."""
TOKENS = 8192
"""Of one forward pass, padding included."""


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Texts as ids, where each is asked, and the answers: one a place, or one a text whose vector
    is its mean.
    """

    ids: Sequence[Int[np.ndarray, "_"]]
    places: Sequence[Int[np.ndarray, "_"]]
    """In each text; of a mean, one place whichever it is."""
    answers: Int[np.ndarray, "n"] | Float[np.ndarray, "n"]
    """One for each place, text after text: the number of a class, or a number."""
    padding: int = 0
    mean: bool = False

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.places) or int(self.ends[-1] if len(self.ends) else 0) != len(
            self.answers
        ):
            raise ValueError("answers: expected one for each place of each text")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ends(self) -> Int[np.ndarray, "texts"]:
        """Just after each text's last vector, counted through all texts."""
        return np.cumsum([len(each) for each in self.places], dtype=np.int64)

    def begin(self, text: int) -> int:
        return int(self.ends[text - 1]) if text else 0

    def mixed(self, seed: int = 0) -> ProbeData:
        """The same texts in random order, so that a block is a sample of all."""
        order = np.random.default_rng(seed).permutation(len(self)).tolist()
        answers = [self.answers[self.begin(text) : self.ends[text]] for text in order]
        ids, places = [self.ids[text] for text in order], [self.places[text] for text in order]

        return ProbeData(ids, places, np.concatenate(answers), self.padding, self.mean)

    def blocks(self, size: int = BLOCK) -> list[range]:
        """Texts side by side with about `size` vectors together."""
        numbers = np.maximum(self.ends - 1, 0) // size  # of each text's last vector
        borders = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        return [
            range(first, last)
            for first, last in zip(borders, [*borders[1:], len(self)], strict=True)
        ]


# One forward pass


def layers_of(model: Model) -> dict[str, str]:
    """The layers by name, and the point of the model where each is heard: "embedding", then the
    blocks from "0" on, and "norm" what the last norm makes of the last block, where there is one.
    Of a translator, its encoder."""
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        # Its embedding has no point of its own; of its layers only the last one is heard.
        return {"embedding": "", str(backbone.config.depth - 1): "encoder"}

    own = "backbone." if isinstance(model, TaskModel) else ""
    if isinstance(backbone, Transformer):
        stack, place = backbone.encoder, "encoder"
        embedding = "embedding" if backbone.source_embedding is None else "source_embedding"
    else:
        stack, place, embedding = backbone.stack, "stack", "embedding"

    points = {"embedding": f"{own}{embedding}.output"}
    points |= {
        str(number): f"{own}{place}.blocks.{number}.after" for number in range(len(stack.blocks))
    }

    return points if stack.norm is None else points | {"norm": f"{own}{place}.output"}


def check_layers(model: Model, layers: Sequence[str] | None) -> tuple[str, ...]:
    """All, or those that are named."""
    known = layers_of(model)
    for layer in layers or ():
        if layer not in known:
            raise ValueError(f"layers: expected some of {', '.join(known)}, not {layer!r}")

    return tuple(known) if not layers else tuple(dict.fromkeys(layers))


@torch.no_grad()
def capture_layers(
    model: Model,
    ids: Int[Tensor, "B T"],
    padding_mask: Bool[Tensor, "B T"] | None,
    layers: Sequence[str],
) -> list[Float[Tensor, "B T E"]]:
    """What each layer says of every word."""
    points, backbone = layers_of(model), backbone_of(model)
    with capture(model, *{points[layer] for layer in layers if points[layer]}) as seen:
        if isinstance(backbone, RNN):
            backbone.start(ids, padding_mask)
            seen[""] = backbone.source_embedding(ids)
        elif isinstance(backbone, Transformer):
            backbone.encode(ids, padding_mask)
        else:
            backbone.hidden(ids, padding_mask=padding_mask)

    return [seen[points[layer]] for layer in layers]


def vectors(
    model: Model, texts: ProbeData, block: range, layers: Sequence[str]
) -> Float[Tensor, "L n E"]:
    """What each layer says at each place of a block of texts, in their order; those of similar
    length together.
    """
    device = next(model.parameters()).device
    begin = texts.begin(block.start)
    made = torch.empty(
        len(layers),
        int(texts.ends[block.stop - 1]) - begin,
        backbone_of(model).config.width,
        device=device,
    )

    for chosen in passes(texts, block):
        lengths = np.array([len(texts.ids[text]) for text in chosen])
        padding_mask = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
        ids = np.full(padding_mask.shape, texts.padding, dtype=np.int64)
        ids[padding_mask] = np.concatenate([texts.ids[text] for text in chosen])
        kept = torch.from_numpy(padding_mask).to(device)
        heard = capture_layers(
            model, torch.from_numpy(ids).to(device), None if padding_mask.all() else kept, layers
        )
        rows = np.repeat(np.arange(len(chosen)), [len(texts.places[text]) for text in chosen])
        row, place = (
            torch.from_numpy(each.astype(np.int64)).to(device)
            for each in (rows, np.concatenate([texts.places[text] for text in chosen]))
        )
        where = np.concatenate(
            [np.arange(texts.begin(text), texts.ends[text]) - begin for text in chosen]
        )
        to = torch.from_numpy(where).to(device)
        for number, each in enumerate(heard):
            said = pooled(each, "mean", place, kept) if texts.mean else each[row, place]  # (n, E)
            made[number, to] = said.to(made.dtype)

    return made


def passes(texts: ProbeData, block: range) -> Iterator[list[int]]:
    """The texts of a block that are read together."""
    chosen: list[int] = []
    for text in sorted(block, key=lambda each: len(texts.ids[each])):
        if chosen and (len(chosen) + 1) * len(texts.ids[text]) > TOKENS:
            yield chosen
            chosen = []

        chosen.append(text)

    if chosen:
        yield chosen


# The three ways to have them


@runtime_checkable  # the tests check every argument
class Activations(Protocol):
    """Vectors of texts by layer, block by block."""

    texts: ProbeData
    blocks: list[range]
    layers: tuple[str, ...]
    together: bool
    """Whether all layers come at the price of one."""

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]: ...


class RecomputedActivations:
    """Every block is read by the model again."""

    together = True

    def __init__(
        self, model: Model, texts: ProbeData, layers: Sequence[str], block: int = BLOCK
    ) -> None:
        self.model, self.texts, self.layers = model, texts, tuple(layers)
        self.blocks = texts.blocks(block)

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]:
        with without_dropout(self.model):
            return vectors(self.model, self.texts, self.blocks[block], layers)


class ActivationsInMemory:
    """In memory, once the model has read each block."""

    together = False

    def __init__(
        self, source: RecomputedActivations, advance: Callable[[int], object] | None = None
    ) -> None:
        self.texts, self.layers, self.blocks = source.texts, source.layers, source.blocks
        self.vectors: list[Tensor] = []  # (L, n, E) each
        for number, block in enumerate(self.blocks):
            self.vectors.append(source.read(number, self.layers))
            if advance is not None:
                advance(len(block))

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]:
        return self.vectors[block][[self.layers.index(layer) for layer in layers]]


class ActivationsOnDisk:
    """In files, one a layer, that are read with plain reads: memory holds what was asked for, and
    nothing else.
    """

    together = False

    def __init__(
        self,
        source: RecomputedActivations,
        folder: Path,
        store: Store,
        advance: Callable[[int], object] | None = None,
    ) -> None:
        self.texts, self.layers, self.blocks = source.texts, source.layers, source.blocks
        self.width, self.device = (
            backbone_of(source.model).config.width,
            next(source.model.parameters()).device,
        )
        self.store, self.files = np.dtype(store), [folder / f"{layer}.bin" for layer in self.layers]
        opened = [file.open("wb") for file in self.files]

        try:
            for number, block in enumerate(self.blocks):
                said = source.read(number, self.layers).cpu().numpy()  # (L, n, E)
                largest = float(np.abs(said).max())
                if not largest <= float(np.finfo(self.store).max):
                    raise ValueError(
                        f"store: a layer says {largest:.3g}, which {store} cannot hold; use float32"
                    )

                for file, each in zip(opened, said.astype(self.store, copy=False), strict=True):
                    file.write(each.tobytes())

                if advance is not None:
                    advance(len(block))
        finally:
            for file in opened:
                file.close()

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]:
        texts = self.blocks[block]
        first, last = self.texts.begin(texts.start), int(self.texts.ends[texts.stop - 1])
        size = self.store.itemsize * self.width
        made = np.empty((len(layers), last - first, self.width), dtype=np.float32)

        for number, layer in enumerate(layers):
            with self.files[self.layers.index(layer)].open("rb") as file:
                file.seek(first * size)
                read = np.frombuffer(file.read((last - first) * size), dtype=self.store)

            made[number] = read.reshape(-1, self.width)

        return torch.from_numpy(made).to(self.device)


@contextmanager
def activations(
    model: Model,
    parts: Sequence[ProbeData],
    *,
    layers: Sequence[str] | None = None,
    keep: Keep = "disk",
    store: Store = "float32",
    folder: Path | None = None,
    block: int = BLOCK,
    advance: Callable[[int], object] | None = None,
) -> Iterator[list[Activations]]:
    """Those of several parts (to train, validate and test on). Files lie in a folder of their own
    inside `folder`, the cache unless given, and are gone when the context is. `advance` hears of
    each text that the model has read."""
    chosen = check_layers(model, layers)
    sources = [RecomputedActivations(model, texts, chosen, block) for texts in parts]
    if keep == "recompute":
        yield list(sources)
    elif keep == "memory":
        yield [ActivationsInMemory(source, advance) for source in sources]
    else:
        numbers = (
            sum(len(texts.answers) for texts in parts)
            * len(chosen)
            * backbone_of(model).config.width
        )
        parent = folder or cache_folder() / "activations"
        check_room(parent, numbers * np.dtype(store).itemsize)
        with storage.staging(parent, 0, "what the layers say") as made:
            stored: list[Activations] = []
            for number, source in enumerate(sources):
                (made / str(number)).mkdir()
                stored.append(ActivationsOnDisk(source, made / str(number), store, advance))

            yield stored


def check_room(parent: Path, needed: int) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    if needed > storage.free(parent):
        raise storage.DiskFull(
            f"{parent}: no room on the disk for what the layers say: {math.ceil(needed / 1e6):,} MB, and "
            f"{storage.free(parent) // 10**6:,} are free; make room, set QKV_CACHE to a folder elsewhere, or --recompute"
        )
