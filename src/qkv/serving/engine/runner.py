"""Run: one forward pass over the new tokens of all texts of a step, with their keys and values in
pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from qkv.models import GPT, Transformer
from qkv.nn.cache import PackedBatch, PackedDecoderBatch, PagedCache, SequenceGroup
from qkv.nn.hooks import add_hook
from qkv.nn.linear.onednn import Prepacked, prepacking, small_enough
from qkv.serving.engine.block_allocator import BLOCK
from qkv.serving.engine.runner_cuda_graph import StepGraphs
from qkv.serving.engine.scheduler import ScheduledStep
from qkv.serving.engine.sequence import ServingSequence


class PagedRunner:
    """A Transformer whose texts share one memory of fixed size, where each finds its own."""

    def __init__(self, model: GPT | Transformer, cache: int, rows: int) -> None:
        config, like = (
            model.config,
            next(each for each in model.parameters() if each.is_floating_point()),
        )
        self.model, self.device = model, like.device
        self.depth = config.depth if isinstance(model, GPT) else len(model.decoder.blocks)
        kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        shape: dict[str, Any] = {
            "depth": self.depth,
            "kv_heads": kv_heads,
            "head_width": config.width_of_head,
            "like": like,
        }

        bytes_of_block = BLOCK * PagedCache.bytes_of_place(**shape)
        self.blocks = cache // bytes_of_block
        """Block 0 belongs to nobody: what must be written, but not kept, goes there. So does the
        last slot.
        """
        if self.blocks < 2:
            raise ValueError(
                f"cache: expected at least {2 * bytes_of_block:,} bytes for this model, not {cache:,}"
            )

        self.pages = PagedCache(self.blocks * BLOCK, rows + 1, config.context, **shape)
        self.last = torch.zeros(rows + 1, dtype=torch.int64, device=self.device)
        """The word that each text said last, which the host need not know to go on."""
        self.part = 1  # a prompt may be read in parts of any length
        self.together = config.sparse != "fixed"  # that pattern counts from a row's first place
        self.matrices: Prepacked | None = (
            {} if self.device.type == "cpu" and small_enough(model) else None
        )
        self.replays = StepGraphs.of(self) if self.device.type == "cuda" else None

    @property
    def nbytes(self) -> int:
        return self.pages.nbytes

    def say(self, batch: ScheduledStep) -> Int[Tensor, "M"] | None:
        """The words of a step in which everyone says the likeliest, if a recording has chosen and
        heard them.
        """
        likeliest = all(text.likeliest and text.search is None for text in batch.speaking)
        if self.replays is None or not likeliest or not self.replays.serve(batch):
            return None

        return self.replays.run(batch.speaking)[1]

    def run(self, batch: ScheduledStep) -> Float[Tensor, "M V"]:
        """What each text that has read all could say next, those that speak first; a prompt that is
        not read to its end says nothing yet."""
        if self.replays is not None and self.replays.serve(batch):
            return self.replays.run(batch.speaking)[0]

        return self.model.logits(self.hidden(batch)[ends(batch, self.device)])

    def hidden(self, batch: ScheduledStep) -> Float[Tensor, "N E"]:
        """Of all new tokens, one text after the other."""
        for text, _ in batch.reading:
            if text.read == 0 and text.source is not None:
                self.remember(text)

            self.index(text)

        ids, positions, places, slots = self.row(batch)
        self.pages.at[slots, positions] = places.int()
        ids = torch.cat([self.last[slots[: len(batch.speaking)]], ids[len(batch.speaking) :]])
        groups = self.groups(batch)
        target = PackedBatch(self.pages, groups, places)
        state: Any = (
            target
            if isinstance(self.model, GPT)
            else PackedDecoderBatch(target, PackedBatch(self.pages, self.sources(batch), None))
        )

        with (
            nullcontext() if self.matrices is None else prepacking(self.matrices),
            self.heads_off(batch),
        ):
            return self.model.hidden(
                ids.unsqueeze(0), positions=positions.unsqueeze(0), state=state
            )[0]

    def index(self, text: ServingSequence) -> None:
        """Where all that a text has read lies, be it that another one has read it."""
        if text.read:
            places = self.brought(places_of(text.table, np.arange(text.read)))
            self.pages.at[text.slot, : text.read] = places.int()

    def row(self, batch: ScheduledStep) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every new token its id, its position, the place of its key and value, and its text's
        slot: (N,) each.
        """
        new = [(text, 1) for text in batch.speaking] + batch.reading
        rows = np.empty((4, sum(count for _, count in new)), dtype=np.int64)
        begin = 0

        for text, count in new:
            assert text.slot is not None
            positions, mine = (
                np.arange(text.read, text.read + count),
                rows[:, begin : begin + count],
            )
            mine[0] = (
                0 if text.speaks else text.ids[text.read : text.read + count]
            )  # a word may be on the device alone
            mine[1], mine[2], mine[3] = positions, places_of(text.table, positions), text.slot
            begin += count

        ids, at, places, slots = self.brought(rows)

        return ids, at, places, slots

    def brought(self, numbers: Int64[np.ndarray, "*n"]) -> Int[Tensor, "*n"]:
        """On the device; a GPU's host does not wait until they are there."""
        cuda = self.device.type == "cuda"
        host = torch.from_numpy(numbers)
        return (host.pin_memory() if cuda else host).to(self.device, non_blocking=cuda)

    def groups(self, batch: ScheduledStep) -> list[SequenceGroup]:
        """Those that speak look together, and so do prompts of one length that begin; each other
        part by itself.
        """
        made: list[SequenceGroup] = []
        speaking = [batch.speaking] if self.together else [[text] for text in batch.speaking]

        for texts in speaking:
            if texts:
                made.append(self.group(made, texts, 1, [text.read + 1 for text in texts]))

        for (past, count), some in groupby(batch.reading, lambda both: (both[0].read > 0, both[1])):
            texts = [text for text, _ in some]
            if past:
                for text in texts:
                    made.append(self.group(made, [text], count, [text.read + count]))
            else:
                made.append(SequenceGroup(made[-1].end if made else 0, len(texts), count, None))

        return made

    def sources(self, batch: ScheduledStep) -> list[SequenceGroup]:
        """The same for what a decoder looks at: everyone's own source, of its own length."""
        made: list[SequenceGroup] = []
        if batch.speaking:
            lengths = [len(text.source or ()) for text in batch.speaking]
            made.append(self.group(made, batch.speaking, 1, lengths))

        for text, count in batch.reading:
            made.append(self.group(made, [text], count, [len(text.source or ())]))

        return made

    def group(
        self,
        made: list[SequenceGroup],
        texts: Sequence[ServingSequence],
        words: int,
        lengths: list[int],
    ) -> SequenceGroup:
        begin, longest = made[-1].end if made else 0, max(lengths)
        slots, counts = self.brought(
            np.array([[text.slot for text in texts], lengths], dtype=np.int64)
        )
        return SequenceGroup(
            begin, len(texts), words, slots, counts, longest, min(lengths) == longest
        )

    def remember(self, text: ServingSequence) -> None:
        """Encode its source into the pages."""
        assert isinstance(self.model, Transformer)
        assert text.source is not None
        places = self.brought(places_of(text.source_table, np.arange(len(text.source))))
        self.pages.source_at[text.slot, : len(places)] = places.int()
        self.model.remember(torch.tensor([text.source], device=self.device), self.pages, places)

    def branch(
        self, text: ServingSequence, twin: ServingSequence, copied: Sequence[tuple[int, int]]
    ) -> None:
        """The twin of a text knows what the text knows."""
        if copied:
            old, new = (
                places_of(blocks, np.arange(len(copied) * BLOCK))
                for blocks in zip(*copied, strict=True)
            )
            self.pages.copy(self.brought(old), self.brought(new))

        self.index(twin)
        self.pages.source_at[twin.slot] = self.pages.source_at[text.slot]

    def hear(self, texts: Sequence[ServingSequence], words: Int[Tensor, "M"]) -> None:
        """What each text says, and will read next."""
        self.last[self.brought(np.array([text.slot for text in texts]))] = words.clamp(min=0)

    @contextmanager
    def heads_off(self, batch: ScheduledStep) -> Iterator[None]:
        """Heads that say nothing, each in the words of those texts alone that want it so."""
        spans: dict[int, list[tuple[int, int, int]]] = {}
        begin = 0

        for text, count in [(text, 1) for text in batch.speaking] + batch.reading:
            for layer, head in text.ask.off:
                spans.setdefault(layer, []).append((head, begin, begin + count))

            begin += count

        where = "stack" if isinstance(self.model, GPT) else "decoder"

        def silence(layer: int, value: Float[Tensor, "1 H N D"], name: str) -> Tensor:
            value = value.clone()
            for head, first, last in spans[layer]:
                value[:, head, first:last] = 0

            return value

        with ExitStack() as listening:
            for layer in spans:
                point = f"{where}.blocks.{layer}.attention.heads"
                listening.enter_context(add_hook(self.model, point, partial(silence, layer)))

            yield


def places_of(table: Sequence[int], positions: Int64[np.ndarray, "N"]) -> Int64[np.ndarray, "N"]:
    return np.array(table, dtype=np.int64)[positions // BLOCK] * BLOCK + positions % BLOCK


def ends(batch: ScheduledStep, device: torch.device) -> Int[Tensor, "M"]:
    """Where in the row the last token stands of each text that has read all."""
    found, begin = list(range(len(batch.speaking))), len(batch.speaking)
    for text, count in batch.reading:
        begin += count
        if text.read + count == text.positions:
            found.append(begin - 1)

    return torch.tensor(found, dtype=torch.int64, device=device)
