"""From logits to tokens: sampling, the decoding loop, beam search. Token ids in, token ids out."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.generation.generate import generate, stream, translate
    from qkv.generation.generation_batch import GeneratedToken
    from qkv.generation.sampling import row_seeds
    from qkv.generation.sampling_params import SamplingParams
    from qkv.generation.search.beam_search import Hypothesis, beam_search
    from qkv.generation.search.stochastic_beam_search import stochastic_beam_search
else:
    from qkv.lazy_imports import attach

    attach(
        __name__,
        {
            "qkv.generation.generate": ("generate", "stream", "translate"),
            "qkv.generation.generation_batch": ("GeneratedToken",),
            "qkv.generation.sampling": ("row_seeds",),
            "qkv.generation.sampling_params": ("SamplingParams",),
            "qkv.generation.search.beam_search": ("Hypothesis", "beam_search"),
            "qkv.generation.search.stochastic_beam_search": ("stochastic_beam_search",),
        },
    )

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
