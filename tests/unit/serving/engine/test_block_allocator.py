"""Block allocator: cached prefixes are found by their tokens, also after evictions."""

from __future__ import annotations

import random

from qkv.serving.engine.block_allocator import BLOCK_SIZE, BlockAllocator, KnownPrefix

KEY = "[]"


def tokens_of(*blocks: int) -> list[int]:
    """Blocks of one repeated token each."""
    return [token for token in blocks for _ in range(BLOCK_SIZE)]


def cache(
    allocator: BlockAllocator, tokens: list[int], blocks: list[int], known: KnownPrefix
) -> KnownPrefix:
    return allocator.cache_prefix(tokens, len(tokens), blocks, known)


def shared(allocator: BlockAllocator, tokens: list[int]) -> list[int]:
    """The cached blocks of a prefix, which are not kept."""
    blocks = allocator.share_prefix(KEY, tokens, len(tokens))
    allocator.release(blocks)
    return blocks


def test_equal_content_is_cached_once() -> None:
    """The second sequence goes on behind the blocks of the first one."""
    allocator = BlockAllocator(range(8))
    first = allocator.allocate_up_to(2)
    second = allocator.allocate_up_to(3)
    known = cache(allocator, tokens_of(1, 2), first, KnownPrefix(KEY))
    assert (known.blocks, known.complete) == (2, True)

    known = cache(allocator, tokens_of(1, 2), second, KnownPrefix(KEY))
    assert (known.blocks, known.complete) == (0, False)

    cache(allocator, tokens_of(1, 2, 3), second, known)
    assert shared(allocator, tokens_of(1, 2, 3)) == [*first, second[2]]


def test_a_sequence_replaces_evicted_blocks_of_another() -> None:
    """Its later blocks were registered behind these, and are found again."""
    allocator = BlockAllocator(range(4))
    first = allocator.allocate_up_to(1)
    second = allocator.allocate_up_to(3)
    cache(allocator, tokens_of(1), first, KnownPrefix(KEY))
    known = cache(allocator, tokens_of(1, 2), second, KnownPrefix(KEY))
    assert shared(allocator, tokens_of(1, 2)) == [first[0], second[1]]

    allocator.release(first)
    assert allocator.allocate_up_to(1) == first  # forgets its content
    assert shared(allocator, tokens_of(1, 2)) == []

    known = cache(allocator, tokens_of(1, 2, 3), second, known)
    assert (known.blocks, known.complete) == (3, True)
    assert shared(allocator, tokens_of(1, 2, 3)) == second


def test_random_sequences() -> None:
    """Found blocks always hold the tokens that were looked for."""
    rng = random.Random(0)
    allocator = BlockAllocator(range(12))
    written: dict[int, list[int]] = {}
    running: list[tuple[list[int], list[int], KnownPrefix]] = []
    found = 0
    for _ in range(5000):
        act = rng.random()
        if act < 0.4:
            tokens = tokens_of(*(rng.randrange(2) for _ in range(rng.randrange(1, 5))))
            blocks = allocator.share_prefix(KEY, tokens, len(tokens) - 1)
            found += len(blocks)
            for number, block in enumerate(blocks):
                assert written[block] == tokens[: (number + 1) * BLOCK_SIZE]

            running.append((tokens, blocks, KnownPrefix(KEY)))
        elif running:
            number = rng.randrange(len(running))
            tokens, blocks, known = running.pop(number)
            missing = len(tokens) // BLOCK_SIZE - len(blocks)
            if act < 0.6 and missing:
                new = allocator.allocate_up_to(1)
                blocks = blocks + new
                for block in new:
                    written[block] = tokens[: len(blocks) * BLOCK_SIZE]

            limit = len(blocks) * BLOCK_SIZE
            known = allocator.cache_prefix(tokens, limit, blocks, known)
            assert known.complete == (known.blocks == len(blocks))
            if act < 0.8:
                running.append((tokens, blocks, known))
            else:
                allocator.release(blocks)

        assert {content: block for block, (content, _) in allocator.contents.items()} == (
            allocator.cached
        )

    assert found > 500
