"""`qkv.generate`: text in, text out, with the defaults of `qkv generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from qkv.generation.text import TextOptions, complete
from qkv.models import GPT
from qkv.text import Tokenizer


def generate(
    model: GPT, tokenizer: Tokenizer, prompt: str | Sequence[str], **options: Unpack[TextOptions]
) -> Any:
    """Continue a text with a GPT, as `qkv generate` does, with the same defaults.

    Args:
        model: The GPT, from `qkv.load` or trained.
        tokenizer: Its tokenizer.
        prompt: The text to continue, or several; an empty one begins a new text.
        **options: Any of these by name:
            length: Maximum number of new tokens, by default 100.
            temperature: Above 1 more random, below 1 less, 0 greedy; by default 0.8.
            top_k: Sample from the k most probable tokens.
            top_p: Sample from the fewest tokens whose probabilities sum to this, by default
                0.95; None for all.
            min_p: Leave out tokens less probable than this times the most probable one.
            repetition: Above 1, tokens already in the text become less probable.
            presence: Subtracted from the logit of each token that was generated before.
            frequency: Subtracted from a token's logit for each time it was generated before.
            stop: One or several strings; the text ends before the first of them.
            seed: The same seed gives the same text again.
            samples: Number of continuations of each prompt.
            beyond: When the context is full: "refuse", "slide" drops the beginning, "extend"
                reads on.

    Returns:
        The continuation without the prompt: a string for one prompt, a list for several. With
        `samples` it is always a list, with the samples of each prompt next to each other.

    Raises:
        TypeError: The model is not a GPT, such as a path, which `qkv.load` opens.
        ValueError: A parameter is out of range, or the prompt does not fit into the context.

    Example:
        >>> import qkv
        >>> from qkv.models import GPT, GPTConfig
        >>> tokenizer = qkv.text.train("characters", ["the cat sat on the mat"], 40)
        >>> model = GPT(GPTConfig(vocabulary=40, context=32, width=16, depth=1, heads=2))
        >>> len(qkv.generate(model, tokenizer, "the cat", length=5, samples=3, seed=0))
        3
    """
    defaults: TextOptions = {"length": 100}
    if options.get("sampling_params") is None:
        defaults |= {"temperature": 0.8, "top_p": 0.95}

    return complete(model, tokenizer, prompt, **(defaults | options))
