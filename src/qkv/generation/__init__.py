"""From logits to words: one draw, and the loop that goes on with it. Ids only."""

from qkv.generation.decode import generate, translate
from qkv.generation.sample import row_seeds

__all__ = ["generate", "row_seeds", "translate"]
