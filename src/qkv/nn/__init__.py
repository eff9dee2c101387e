"""The parts: tensors in, tensors out.

The shapes, the same letters in every file:

    B batch    T query length    S key length    H heads    K kv_heads
    D head width    E model width    F feed-forward width    V vocabulary
"""
