"""Activations of every layer at chosen positions: on disk, in memory, or recomputed.

The model reads its texts in the same blocks each time, so that all three give the same numbers.
Except for those in memory, activations need memory for a few blocks of one layer only (recomputed:
of all layers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv import storage
from qkv.data.batches.padding import pad_rows
from qkv.data.tokens.prepare import cache_folder
from qkv.generation.generate import without_dropout
from qkv.models.heads import pooled
from qkv.models.model import Model, backbone_of
from qkv.models.sites import input_stack
from qkv.nn.hooks import capture, hook_points_of

ActivationStorage = Literal["disk", "memory", "recompute"]
ActivationDtype = Literal["float32", "float16"]
BLOCK = 2048
"""Approximate number of vectors in a block, which consists of whole texts."""
TOKENS = 8192
"""Tokens of one forward pass, with padding."""


def ignore(*_: object) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Texts as ids, the positions that are probed, and the target of each vector.

    A text has one vector for each of its positions, or with `mean` a single one.
    """

    ids: Sequence[Int[np.ndarray, "_"]]
    positions: Sequence[Int[np.ndarray, "_"]]
    """The probed positions of each text; with `mean` one position, which is ignored."""
    targets: Int[np.ndarray, "n"] | Float[np.ndarray, "n"]
    """A class number or a number for each vector, text after text."""
    padding: int = 0
    mean: bool = False
    """The vector of a text is the mean over its tokens."""

    def __post_init__(self) -> None:
        vectors = sum(map(len, self.positions))
        if len(self.ids) != len(self.positions) or vectors != len(self.targets):
            raise ValueError("targets: expected one for each position of each text")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ends(self) -> Int[np.ndarray, "texts"]:
        """The end of each text's vectors among those of all texts."""
        return np.cumsum(list(map(len, self.positions)), dtype=np.int64)

    def span(self, texts: range) -> range:
        """The vectors of consecutive texts among those of all texts."""
        begin = int(self.ends[texts.start - 1]) if texts.start else 0
        return range(begin, int(self.ends[texts.stop - 1]))

    def shuffled(self, seed: int = 0) -> ProbeData:
        """The same texts in random order, so that each block is a sample of all texts."""
        order = np.random.default_rng(seed).permutation(len(self)).tolist()
        targets = np.split(self.targets, self.ends[:-1])
        return replace(
            self,
            ids=[self.ids[text] for text in order],
            positions=[self.positions[text] for text in order],
            targets=np.concatenate([targets[text] for text in order]),
        )

    def blocks(self, size: int = BLOCK) -> list[range]:
        """Ranges of consecutive texts with about `size` vectors each."""
        block_of_text = np.maximum(self.ends - 1, 0) // size  # by its last vector
        begins = np.flatnonzero(np.diff(block_of_text, prepend=-1)).tolist()
        return list(map(range, begins, [*begins[1:], len(self)]))


# One forward pass


def layers_of(model: Model) -> dict[str, str]:
    """The layers of a model, each with its hook point.

    The names are "embedding", then "0", "1" ... for the blocks, and "norm" for the output of the
    final norm, if there is one. A translator has the layers of its encoder.
    """
    named_stack = input_stack(model)
    if named_stack is None:
        # The embedding has no hook point, and of the layers only the last one has.
        return {"embedding": "", str(model.config.depth - 1): "encoder"}

    name, stack = named_stack
    own_embedding = getattr(backbone_of(model), "source_embedding", None)
    embedding = "embedding" if own_embedding is None else "source_embedding"
    *prefix, _ = name.split(".")  # of a task model's backbone
    points = {"embedding": ".".join([*prefix, embedding, "output"])}
    if hook_points_of(getattr(backbone_of(model), embedding)) is None:  # a user's own
        points["embedding"] = f"{name}.blocks.0.before"

    for number in range(len(stack.blocks)):
        points[str(number)] = f"{name}.blocks.{number}.after"

    if stack.norm is not None:
        points["norm"] = f"{name}.output"

    return points


def check_layers(model: Model, layers: Sequence[str] | None) -> tuple[str, ...]:
    """The named layers, or all; raises if the model has no such layer."""
    known = layers_of(model)
    for layer in layers or ():
        if layer not in known:
            raise ValueError(f"layers: expected some of {', '.join(known)}, not {layer!r}")

    return tuple(dict.fromkeys(layers or known))


@torch.no_grad()
def capture_layers(
    model: Model,
    ids: Int[Tensor, "B T"],
    padding_mask: Bool[Tensor, "B T"] | None,
    layers: Sequence[str],
) -> list[Float[Tensor, "B T E"]]:
    """Run one batch, and return the activations of the layers."""
    points = layers_of(model)
    hooked = {points[layer] for layer in layers if points[layer]}
    with capture(model, *hooked) as captured:
        if model.has_source:
            model.start(ids, padding_mask)
        else:
            backbone_of(model).hidden(ids, padding_mask=padding_mask)

    if "" in points.values():  # the embedding of an RNN
        captured[""] = model.get_submodule("source_embedding")(ids)

    return [captured[points[layer]] for layer in layers]


def block_vectors(
    model: Model, texts: ProbeData, block: range, layers: Sequence[str]
) -> Float[Tensor, "L n E"]:
    """The vectors of a block of texts in their order; texts of similar length run together."""
    span = texts.span(block)
    width = backbone_of(model).config.width
    vectors = torch.empty(len(layers), len(span), width, device=next(model.parameters()).device)

    for batch in batches_of_block(texts, block):
        rows = [np.array(texts.span(range(text, text + 1))) for text in batch]
        into = torch.from_numpy(np.concatenate(rows) - span.start).to(vectors.device)
        for number, values in enumerate(batch_vectors(model, texts, batch, layers)):
            vectors[number, into] = values.to(vectors.dtype)

    return vectors


def batch_vectors(
    model: Model, texts: ProbeData, batch: Sequence[int], layers: Sequence[str]
) -> Iterator[Float[Tensor, "n E"]]:
    """The vectors of some texts that run as one batch, layer by layer."""
    device = next(model.parameters()).device

    # Pad the texts to one matrix
    rows = [texts.ids[text] for text in batch]
    ids, padding_mask = pad_rows(rows, texts.padding, device=device)

    # Row and position of each vector
    positions = [texts.positions[text].astype(np.int64) for text in batch]
    position = torch.from_numpy(np.concatenate(positions)).to(device)
    row = torch.from_numpy(np.repeat(np.arange(len(batch)), list(map(len, positions)))).to(device)

    for values in capture_layers(model, ids, padding_mask, layers):
        if texts.mean:
            yield pooled(values, "mean", position, padding_mask)
        else:
            yield values[row, position]


def batches_of_block(texts: ProbeData, block: range) -> Iterator[list[int]]:
    """The texts of a block in batches of at most TOKENS tokens, the shortest first."""
    batch: list[int] = []
    for text in sorted(block, key=lambda number: len(texts.ids[number])):
        if batch and (len(batch) + 1) * len(texts.ids[text]) > TOKENS:
            yield batch
            batch = []

        batch.append(text)

    if batch:
        yield batch


# Three ways to provide them


class Activations:
    """Vectors of texts by layer, block by block; the model runs whenever a block is read."""

    together = True
    """True if all layers cost as much as one."""

    def __init__(
        self, model: Model, texts: ProbeData, layers: Sequence[str], block: int = BLOCK
    ) -> None:
        self.model = model
        self.texts = texts
        self.layers = tuple(layers)
        self.block = block
        self.blocks = texts.blocks(block)

    def span(self, block: int) -> range:
        """The vectors of a block among those of all texts."""
        return self.texts.span(self.blocks[block])

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]:
        """The vectors of one block."""
        with without_dropout(self.model):
            return block_vectors(self.model, self.texts, self.blocks[block], layers)


class ActivationsInMemory(Activations):
    """Computes all blocks once, and keeps them in memory."""

    together = False

    def __init__(self, source: Activations, advance: Callable[[int], object] = ignore) -> None:
        super().__init__(source.model, source.texts, source.layers, source.block)
        self.vectors: list[Tensor] = []  # (L, n, E) each
        for number, block in enumerate(self.blocks):
            self.vectors.append(source.read(number, self.layers))
            advance(len(block))

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]:
        return self.vectors[block][list(map(self.layers.index, layers))]


class ActivationsOnDisk(Activations):
    """Computes all blocks once, and keeps them in one file a layer.

    The files are read with plain reads, not mapped, so that memory holds the requested block only.
    """

    together = False

    def __init__(
        self,
        source: Activations,
        folder: Path,
        store: ActivationDtype,
        advance: Callable[[int], object] = ignore,
    ) -> None:
        super().__init__(source.model, source.texts, source.layers, source.block)
        self.width = backbone_of(source.model).config.width
        self.device = next(source.model.parameters()).device
        self.dtype = np.dtype(store)
        self.paths = [folder / f"{layer}.bin" for layer in self.layers]
        self.write(source, advance)

    def write(self, source: Activations, advance: Callable[[int], object]) -> None:
        """Write all blocks; raise if a value is too large for the dtype."""
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in self.paths]
            for number, block in enumerate(self.blocks):
                vectors = source.read(number, self.layers).cpu().numpy()  # (L, n, E)
                largest = float(np.abs(vectors).max())
                if not largest <= float(np.finfo(self.dtype).max):
                    raise ValueError(
                        f"store: an activation is {largest:.3g}, which {self.dtype} cannot hold; "
                        "use float32"
                    )

                for file, values in zip(files, vectors, strict=True):
                    file.write(values.astype(self.dtype, copy=False).tobytes())

                advance(len(block))

    def read(self, block: int, layers: Sequence[str]) -> Float[Tensor, "L n E"]:
        span = self.span(block)
        size = self.dtype.itemsize * self.width
        vectors = np.empty((len(layers), len(span), self.width), dtype=np.float32)

        for number, layer in enumerate(layers):
            with self.paths[self.layers.index(layer)].open("rb") as file:
                file.seek(span.start * size)
                values = np.frombuffer(file.read(len(span) * size), dtype=self.dtype)

            vectors[number] = values.reshape(-1, self.width)

        return torch.from_numpy(vectors).to(self.device)


@contextmanager
def activations(
    model: Model,
    parts: Sequence[ProbeData],
    *,
    layers: Sequence[str] | None = None,
    keep: ActivationStorage = "disk",
    store: ActivationDtype = "float32",
    folder: Path | None = None,
    block: int = BLOCK,
    advance: Callable[[int], object] = ignore,
) -> Iterator[Sequence[Activations]]:
    """Provide the activations of several parts of the data while the context is open.

    Args:
        model: The model.
        parts: The data, such as training, validation and test part.
        layers: Names of layers ("embedding", "0", ..., "norm"); default all.
        keep: Keep activations on "disk", in "memory", or "recompute" them at each use.
        store: The dtype of the files.
        folder: The folder of the files (default the cache), which are deleted in the end.
        block: The approximate number of vectors that are read at a time.
        advance: Called with the number of texts after each block that the model has read.

    Yields:
        The activations of each part.

    Raises:
        ValueError: If there is no such layer, or float16 cannot hold an activation.
        DiskFull: If the files do not fit on the disk.

    Example:
        >>> import numpy as np
        >>> from qkv import insight, models
        >>> from qkv.insight.probing.activations import ProbeData
        >>> model = models.GPT(models.GPTConfig(vocabulary=9, width=8, heads=2, depth=1))
        >>> data = ProbeData([np.array([1, 2, 3])], [np.array([0, 2])], np.array([0, 1]))
        >>> with insight.activations(model, [data], keep="memory") as (part,):
        ...     part.layers, part.read(0, ["0"]).shape
        (('embedding', '0', 'norm'), torch.Size([1, 2, 8]))
    """
    chosen = check_layers(model, layers)
    sources = [Activations(model, texts, chosen, block) for texts in parts]
    if keep == "recompute":
        yield sources
        return
    if keep == "memory":
        yield [ActivationsInMemory(source, advance) for source in sources]
        return

    parent = folder or cache_folder() / "activations"
    check_room(parent, sources, np.dtype(store).itemsize)
    with storage.staging(parent, 0, "activations") as staged:
        stored = []
        for number, source in enumerate(sources):
            (staged / str(number)).mkdir()
            stored.append(ActivationsOnDisk(source, staged / str(number), store, advance))

        yield stored


def check_room(parent: Path, sources: Sequence[Activations], itemsize: int) -> None:
    """Raise if the disk has no room for the activations."""
    parent.mkdir(parents=True, exist_ok=True)
    needed = 0
    for source in sources:
        width = backbone_of(source.model).config.width
        needed += itemsize * len(source.texts.targets) * len(source.layers) * width

    free = storage.free(parent)
    if needed > free:
        raise storage.DiskFull(
            f"{parent}: no room on the disk for the activations: {math.ceil(needed / 1e6):,} MB, "
            f"and {free // 10**6:,} are free; make room, set QKV_CACHE to a folder elsewhere, or "
            "--recompute"
        )
