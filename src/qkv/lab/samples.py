"""What a model says while it is trained: a few words of its own, a translation, or a guess at a hidden word."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch

from qkv.data.source import open_pairs, open_texts
from qkv.generation import generate, translate
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.models.build import Config, Model
from qkv.models.rnn import RNNConfig
from qkv.models.transformer import TransformerConfig
from qkv.text import Tokenizer
from qkv.training.config import DataConfig
from qkv.training.task import validation_source

EXAMPLES = 2
LENGTH = 48


def maker(config: Config, data: DataConfig, tokenizer: Tokenizer) -> Callable[[Model], list[str]]:
    """A function that shows what a model says by now."""
    named = validation_source(data) or data.data
    if isinstance(config, TransformerConfig | RNNConfig):
        pairs = list(islice(open_pairs(named, columns=data.columns), EXAMPLES))
        return lambda model: translations(model, tokenizer, pairs)
    text = next(iter(open_texts(named, column=data.column))).text[:2000]
    return lambda model: writing(model, tokenizer) if isinstance(model, GPT) else guesses(model, tokenizer, text)


def writing(model: GPT, tokenizer: Tokenizer) -> list[str]:
    """Texts from their first word on: what follows the end of the text before."""
    begin = tokenizer.end if tokenizer.end is not None else 0
    prompt = torch.full((EXAMPLES, 1), begin, device=device_of(model))
    length = min(LENGTH, model.config.context - 1)
    said = generate(model, prompt, length=length, end=tokenizer.end, temperature=0.8, top_k=50, seed=0)
    return [tokenizer.decode(ids) for ids in said]


def translations(model: Model, tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> list[str]:
    assert isinstance(model, Transformer | RNN)
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    lines = []
    for source, target in pairs:
        ids = torch.tensor([[*tokenizer.encode(source), tokenizer.end]], device=device_of(model))
        said = translate(model, ids, start=tokenizer.start, end=tokenizer.end, length=2 * ids.shape[1] + 8)
        lines.append(f"{source} -> {tokenizer.decode(said[0])}   (as it should be: {target})")
    return lines


@torch.no_grad()
def guesses(model: Model, tokenizer: Tokenizer, text: str) -> list[str]:
    """Every seventh word of a text hidden, and what stands there in the model's opinion."""
    assert isinstance(model, BERT)
    assert tokenizer.mask is not None
    words = tokenizer.encode(text)[: min(LENGTH, model.config.context - 2)]
    ids = torch.tensor([words])
    hidden = torch.arange(len(words)) % 7 == 3
    read = ids.masked_fill(hidden, tokenizer.mask)
    edges = [[] if edge is None else [edge] for edge in (tokenizer.start, tokenizer.end)]
    row = torch.tensor([[*edges[0], *read[0].tolist(), *edges[1]]], device=device_of(model))
    training = model.training
    said = model.eval()(row).argmax(-1)[0, len(edges[0]) :].cpu()  # (T,)
    model.train(training)
    truth, guessed = ids[0][hidden].tolist(), said[: len(words)][hidden].tolist()
    right = sum(one == other for one, other in zip(truth, guessed, strict=True))
    told = ", ".join(
        f"{tokenizer.decode([one])!r} as {tokenizer.decode([other])!r}"
        for one, other in zip(truth, guessed, strict=True)
    )
    return [f"{right} of {len(truth)} hidden words guessed: {told}"]


def device_of(model: Model) -> torch.device:
    return next(model.parameters()).device
