"""Block allocator of the paged KV cache, with prefix caching.

The cache is divided into blocks of BLOCK_SIZE positions. Sequences with a common prefix share its
full blocks, which are looked up by their tokens and the block before them. An unused block keeps
its content until it is allocated again, least recently used first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

BLOCK_SIZE = 16
"""Positions per block."""
BLOCK_BYTES = BLOCK_SIZE * array("i").itemsize


CachedBlock: TypeAlias = tuple[int | str, bytes]
"""Content of a full block: the version of its parent (of the first, the prefix key), its tokens.

The tokens are bytes, which Python hashes once, and which garbage collections skip.
"""


class KnownPrefix(NamedTuple):
    """The first blocks of a sequence that are registered themselves, and the last one's version."""

    parent: int | str
    """The prefix key, if there is none."""
    blocks: int = 0
    complete: bool = True
    """No content was cached in another block, so that going on costs little.

    Another block may be evicted: behind it, all blocks are looked up again.
    """


class OutOfBlocks(Exception):
    """Every block is in use."""


class BlockAllocator:
    """Allocates slots and blocks, counts the users of blocks and finds cached prefixes."""

    def __init__(self, blocks: Iterable[int], slots: Iterable[int] = ()) -> None:
        self.slots = list(slots)
        """Free slots, one for each sequence that runs."""
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(blocks)
        """Unused blocks, the least recently used first."""
        self.contents: dict[int, tuple[CachedBlock, int]] = {}
        """Content and version of each cached block; a refilled block gets a new version."""
        self.cached: dict[CachedBlock, int] = {}
        self.ref_counts = dict.fromkeys(self.free, 0)
        self.version = 0

    @property
    def total(self) -> int:
        return len(self.ref_counts)

    @property
    def used(self) -> int:
        return self.total - len(self.free)

    def allocate(self) -> int:
        """An unused block; its cached content is forgotten. Raises OutOfBlocks."""
        blocks = self.allocate_up_to(1)
        if not blocks:
            raise OutOfBlocks

        return blocks[0]

    def allocate_up_to(self, count: int) -> list[int]:
        """Up to `count` unused blocks; their cached content is forgotten."""
        free = self.free
        contents = self.contents
        blocks = [free.popitem(last=False)[0] for _ in range(min(count, len(free)))]
        for block in blocks:
            self.ref_counts[block] = 1
            known = contents.pop(block, None)
            if known is not None:
                del self.cached[known[0]]

        return blocks

    def reserve(self, blocks: int, slots: int) -> BlockAllocator:
        """Move this many free blocks and slots to an allocator of their own."""
        return BlockAllocator(
            [self.allocate() for _ in range(blocks)], [self.slots.pop() for _ in range(slots)]
        )

    def take_back(self, reserved: BlockAllocator) -> None:
        """Free all that was reserved."""
        self.release(list(reserved.ref_counts))
        self.slots += reserved.slots

    def share(self, block: int) -> int:
        """Add a user to a block."""
        self.free.pop(block, None)
        self.ref_counts[block] += 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a user from each block; the end of a sequence is evicted before its beginning."""
        ref_counts = self.ref_counts
        for block in reversed(blocks):
            users = ref_counts[block] - 1
            ref_counts[block] = users
            if not users:
                self.free[block] = None

    def share_prefix(self, prefix_key: str, token_ids: Sequence[int], limit: int) -> list[int]:
        """Cached blocks of the longest known prefix of at most `limit` tokens, with a user more."""
        blocks: list[int] = []
        parent: int | str = prefix_key

        for start in range(0, limit - BLOCK_SIZE + 1, BLOCK_SIZE):
            tokens = as_bytes(token_ids[start : start + BLOCK_SIZE])
            block = self.cached.get((parent, tokens))
            if block is None:
                break

            blocks.append(self.share(block))
            _, parent = self.contents[block]

        return blocks

    def cache_prefix(
        self, token_ids: Sequence[int], limit: int, blocks: Sequence[int], known: KnownPrefix
    ) -> KnownPrefix:
        """Register the full blocks of the first `limit` tokens; content that is cached stays there.

        `known` is what an earlier call returned for the sequence, which holds the blocks since.
        """
        parent = known.parent
        registered = known.blocks
        last_version = known.parent
        end = min(len(blocks), limit // BLOCK_SIZE)
        tokens = as_bytes(token_ids[known.blocks * BLOCK_SIZE : end * BLOCK_SIZE])
        for number in range(known.blocks, end):
            block = blocks[number]
            start = (number - known.blocks) * BLOCK_BYTES
            content = (parent, tokens[start : start + BLOCK_BYTES])
            cached = self.cached.get(content)
            if cached is None:
                cached = block
                self.register(block, content)

            _, parent = self.contents[cached]
            if cached == block and registered == number:
                registered = number + 1
                last_version = parent

        return KnownPrefix(last_version, registered, complete=registered >= end)

    def register(self, block: int, content: CachedBlock) -> None:
        """Make a block known by its content.

        An entry of the block has a parent that is not cached any more, and is never found.
        """
        stale = self.contents.get(block)
        if stale is not None:
            del self.cached[stale[0]]

        self.version += 1
        self.cached[content] = block
        self.contents[block] = (content, self.version)


def as_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as bytes, BLOCK_BYTES for a full block."""
    return array("i", token_ids).tobytes()


def blocks_for(positions: int) -> int:
    """Number of blocks that hold `positions` positions."""
    return -(-positions // BLOCK_SIZE)
