"""qkv chat: a talk with a model that was taught to, by the template that came with its tokenizer."""

from __future__ import annotations

import sys
from typing import Any

import tyro

from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    check_length,
    forgiving,
    note,
    open_model,
    printable,
    typed_lines,
)
from qkv.generation.generate import limit_of
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.text import stream_text
from qkv.models import GPT
from qkv.text import Tokenizer
from qkv.text.chat_template import Message, encode_chat, ends_of_turn


def run(
    model: ModelName,
    system: str | None = None,
    length: int = 500,
    temperature: float = 0.7,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    min_p: float | None = None,
    repetition: float = 1.0,
    seed: int | None = None,
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008 - tyro reads the defaults
) -> None:
    """Talk with a model. A line is what you say; /again begins anew, /quit or the end of the input
    ends it, and Ctrl-C interrupts the model.

    Args: model: A folder of transformers, a GGUF file, a run's folder, or smollm2; its tokenizer
        has a chat template. system: What the model is told about itself before the talk. length: At
        most so many tokens in an answer. temperature: Above 1 bolder, below 1 more careful; 0 is
        always the likeliest word. top_k: Draw from so many of the likeliest words. top_p: Draw from
        the fewest, likeliest first, whose probabilities sum to this; 1 for all. min_p: Leave out
        words less likely than this times the likeliest. repetition: Above 1, words that stand there
        already get less likely. seed: The same seed gives the same answers again. machine: Where
        and how it computes.
    """
    choice = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition=repetition
    )
    check_length(length)
    opened = open_model(model, machine, GPT)
    assert isinstance(opened.model, GPT)
    ends = ends_of_turn(
        opened.tokenizer
    )  # which needs a template: its lack is said before anyone types
    told = [] if system is None else [Message(role="system", content=system)]
    messages: list[Message] = list(told)
    said = False

    for line in typed_lines():
        if line == "/quit":
            break

        if line == "/again":
            messages = list(told)
            note("a new talk begins")
            continue

        said = True
        with forgiving():
            asked = [*messages, Message(role="user", content=line)]
            asked = remembered(opened.model, opened.tokenizer, asked, told, length)
            ids = encode_chat(opened.tokenizer, asked)
            limit = limit_of(opened.model, "refuse")
            if limit is not None and len(ids) > limit:
                raise ValueError(
                    f"text: {len(ids):,} tokens are more than the model's context of {limit:,}; say less"
                )

            answer = speak(
                opened.model,
                opened.tokenizer,
                ids,
                length=length,
                choice=choice,
                end=ends,
                seed=seed,
            )

            messages = [*asked, Message(role="assistant", content=answer)]

    if not said and not sys.stdin.isatty():
        raise ValueError("standard input: it is empty; say something, a line at a time")


def remembered(
    model: GPT, tokenizer: Tokenizer, messages: list[Message], told: list[Message], length: int
) -> list[Message]:
    """The talk so far; what was said first is forgotten, aloud, when there would be no room for an
    answer.
    """
    context = model.config.context
    kept = messages

    while (
        len(encode_chat(tokenizer, kept)) > max(context - length, context // 2)
        and len(kept) > len(told) + 1
    ):
        kept = [*told, *kept[len(told) + 2 :]]  # without a question and its answer

    if forgotten := len(messages) - len(kept):
        note(
            f"the talk is longer than the context of {context:,} tokens: its first {forgotten} messages are forgotten"
        )

    return kept


def speak(model: GPT, tokenizer: Tokenizer, ids: list[int], **how: Any) -> str:
    """An answer, shown as it comes; what was said until someone interrupted it counts."""
    answer, reason = "", None
    try:
        for piece in stream_text(model, tokenizer, [ids], **how):
            answer, reason = answer + piece.text, piece.reason
            sys.stdout.write(printable(piece.text) if sys.stdout.isatty() else piece.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise

    print(flush=True)
    if reason in ("length", "context"):
        note(
            f"the answer was cut off: {'--length is reached' if reason == 'length' else 'the context is full'}"
        )

    return answer
