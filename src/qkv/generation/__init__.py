"""From logits to words: one draw, and the loop that goes on with it. Ids only."""

from qkv.generation.beam import Hypothesis, beam_search
from qkv.generation.choice import Choice
from qkv.generation.decode import Word, generate, stream, translate
from qkv.generation.sample import row_seeds
from qkv.generation.stochastic import stochastic_beam_search

__all__ = [
    "Choice",
    "Hypothesis",
    "Word",
    "beam_search",
    "generate",
    "row_seeds",
    "stochastic_beam_search",
    "stream",
    "translate",
]
