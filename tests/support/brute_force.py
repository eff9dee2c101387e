"""Masks defined once more in plain Python: may query position q attend to key position k?"""

from __future__ import annotations

from qkv.nn.attention import (
    All,
    Blockwise,
    Causal,
    Document,
    Explicit,
    Fixed,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
)


def may_look(mask: Mask | None, b: int, h: int, q: int, k: int, T: int, S: int) -> bool:
    if mask is None:
        return True
    if isinstance(mask, All):
        return all(may_look(part, b, h, q, k, T, S) for part in mask.parts)
    if isinstance(mask, Padding | Document | Prefix | Explicit):
        return may_look_in_row(mask, b, h, q, k, T, S)

    return may_look_anywhere(mask, q, k, S)


def may_look_anywhere(mask: Mask, q: int, k: int, S: int) -> bool:
    """Masks that are the same for all rows and heads."""
    if isinstance(mask, Causal):
        return k <= q
    if isinstance(mask, Window):
        return k in range(q - mask.width + 1, q + mask.width)
    if isinstance(mask, Blockwise):
        return any(q in block and k in block for block in cut(S, mask.size))
    if isinstance(mask, Strided):
        steps = {q + sign * n * mask.stride for n in range(S + 1) for sign in (-1, 1)}
        return k in range(q - mask.stride + 1, q + mask.stride) or k in steps
    if isinstance(mask, Fixed):
        same_block = any(q in block and k in block for block in cut(S, mask.stride))
        summaries = {block[-1 - n] for block in cut(S, mask.stride) for n in range(mask.summary)}
        return same_block or k in summaries

    raise TypeError(f"unknown mask: {mask}")


def may_look_in_row(mask: Mask, b: int, h: int, q: int, k: int, T: int, S: int) -> bool:
    """Masks with a tensor, which may differ from row to row and from head to head."""
    if isinstance(mask, Padding):
        return bool(mask.padding_mask[b, k])
    if isinstance(mask, Document):
        return mask.ids[b].tolist()[q] == mask.ids[b].tolist()[k]
    if isinstance(mask, Prefix):
        length = mask.length if isinstance(mask.length, int) else int(mask.length[b])
        return k < length or k <= q
    assert isinstance(mask, Explicit)
    rows, heads = mask.allowed.shape[:2]
    return bool(mask.allowed[b if rows > 1 else 0, h if heads > 1 else 0, q - (S - T), k])


def cut(S: int, size: int) -> list[range]:
    """The positions 0, 1, 2, ... in blocks; the last block may end past S."""
    return [range(start, start + size) for start in range(0, S, size)]
