"""Generation: sampling, beam search and the decode loop, from token ids to token ids."""

from qkv.generation.generate import generate, stream
from qkv.generation.generation_batch import GeneratedToken
from qkv.generation.sampling import row_seeds
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.beams import Hypothesis
from qkv.generation.search.stochastic_beam_search import stochastic_beam_search
from qkv.generation.translate import translate

__all__ = [
    "GeneratedToken",
    "Hypothesis",
    "SamplingParams",
    "beam_search",
    "generate",
    "row_seeds",
    "stochastic_beam_search",
    "stream",
    "translate",
]
