"""Who has which part of the cache. It is cut into blocks of a few places; a text takes one when it
needs one.

Texts that begin alike share the blocks of their beginning: a block that is full is known by all
that stands in it and before it. One that nobody uses any more stays known until it is taken for
something else, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

BLOCK = 16
"""Places of a block."""


class CachedBlock(NamedTuple):
    """What stands in a full block: its tokens, after those of another one; or, first, of a kind of
    text.
    """

    before: int | str
    ids: tuple[int, ...]


class OutOfBlocks(Exception):
    """Every block is in use."""


class BlockAllocator:
    def __init__(self, blocks: Iterable[int]) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(blocks)
        """The longest unused first."""
        self.holds: dict[int, tuple[CachedBlock, int]] = {}
        """Of known blocks, what stands there, and its number: a block that is filled anew gets
        another.
        """
        self.where: dict[CachedBlock, int] = {}
        self.users = dict.fromkeys(self.free, 0)
        self.number = 0

    @property
    def total(self) -> int:
        return len(self.users)

    @property
    def used(self) -> int:
        return self.total - len(self.free)

    def take(self) -> int:
        if not self.free:
            raise OutOfBlocks

        block, _ = self.free.popitem(last=False)
        if block in self.holds:
            known, _ = self.holds.pop(block)
            del self.where[known]

        self.users[block] = 1

        return block

    def share(self, block: int) -> int:
        self.free.pop(block, None)
        self.users[block] += 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # a text's end is forgotten before its beginning
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None

    def shared(self, kind: str, ids: Sequence[int], most: int) -> list[int]:
        """The blocks that hold the beginning of a text, at most so many of its tokens, now used by
        one more.
        """
        found: list[int] = []
        before: int | str = kind

        for first in range(0, most - BLOCK + 1, BLOCK):
            block = self.where.get(CachedBlock(before, tuple(ids[first : first + BLOCK])))
            if block is None:
                break

            found.append(self.share(block))
            before = self.holds[block][1]

        return found

    def know(self, kind: str, ids: Sequence[int], blocks: Sequence[int]) -> None:
        """These tokens stand in these blocks; what is known already stays where it is."""
        before: int | str = kind
        for block, first in zip(blocks, range(0, len(ids) - BLOCK + 1, BLOCK), strict=False):
            known = CachedBlock(before, tuple(ids[first : first + BLOCK]))
            if known not in self.where and block not in self.holds:
                self.number += 1
                self.where[known], self.holds[block] = block, (known, self.number)

            if known not in self.where:
                return  # the block holds something that is known otherwise

            before = self.holds[self.where[known]][1]
