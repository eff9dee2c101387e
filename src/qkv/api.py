"""`qkv.generate`: text in, text out, with the sampling parameters spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from qkv.generation.generation_batch import Beyond
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.text import complete
from qkv.models import GPT
from qkv.text import Tokenizer


@overload
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    length: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    min_p: float | None = None,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    samples: None = None,
    beyond: Beyond = "refuse",
) -> str: ...
@overload
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str],
    *,
    length: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    min_p: float | None = None,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    samples: int | None = None,
    beyond: Beyond = "refuse",
) -> str | list[str]: ...
def generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str | Sequence[str],
    *,
    length: int = 100,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    min_p: float | None = None,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    samples: int | None = None,
    beyond: Beyond = "refuse",
) -> str | list[str]:
    """Continue a text with a GPT, as `qkv generate` does, with the same defaults.

    Args:
        model: The GPT, from `qkv.load` or trained.
        tokenizer: Its tokenizer.
        prompt: The text to continue, or several; an empty one begins a new text.
        length: Maximum number of new tokens.
        temperature: Above 1 more random, below 1 less; 0 always takes the most probable token.
        top_k: Sample from the k most probable tokens.
        top_p: Sample from the fewest tokens whose probabilities sum to this; None for all.
        min_p: Leave out tokens less probable than this times the most probable one.
        repetition: Above 1, tokens already in the text become less probable.
        presence: Subtracted from the logit of each token that was generated before.
        frequency: Subtracted from the logit of a token for each time it was generated before.
        stop: One or several strings; the text ends before the first of them.
        seed: The same seed gives the same text again.
        samples: Number of continuations of each prompt.
        beyond: When the context is full: "refuse", "slide" drops the beginning, "extend" reads on.

    Returns:
        The continuation without the prompt: a string for one prompt, a list for several. With
        `samples` it is always a list, with the samples of each prompt next to each other.

    Raises:
        ValueError: A parameter is out of range, or the prompt does not fit into the context.

    Example:
        >>> import qkv
        >>> from qkv.models import GPT, GPTConfig
        >>> tokenizer = qkv.text.train("characters", ["the cat sat on the mat"], 40)
        >>> model = GPT(GPTConfig(vocabulary=40, context=32, width=16, depth=1, heads=2))
        >>> len(qkv.generate(model, tokenizer, "the cat", length=5, samples=3, seed=0))
        3
    """
    sampling: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling |= {"repetition": repetition, "presence": presence, "frequency": frequency}
    params = SamplingParams(temperature=temperature, **sampling)
    limits: dict[str, Any] = {"length": length, "stop": stop, "samples": samples, "beyond": beyond}

    return complete(model, tokenizer, prompt, sampling_params=params, seed=seed, **limits)
