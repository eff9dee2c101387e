"""qkv chat: a conversation with a model that has a chat template."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from qkv.command_line.model_opening import DEFAULT_MACHINE, Machine, ModelName, open_model
from qkv.command_line.user_input import (
    check_length,
    errors_as_notes,
    note,
    typed_lines,
)
from qkv.generation.generate import context_limit
from qkv.generation.sampling_params import SamplingFilters, sampling_params_of
from qkv.generation.text import stream_text
from qkv.models import GPT
from qkv.text import Tokenizer
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from qkv.text.printable import printable

CUT_OFF = {"length": "--length is reached", "context": "the context is full"}


@dataclass(frozen=True, kw_only=True)
class Chat(SamplingFilters):
    """Chat with a model, line by line.

    /again starts a new conversation, /quit or the end of the input ends it, and Ctrl-C interrupts
    the model.
    """

    model: ModelName
    """A folder of transformers, a GGUF file, a run's folder, or smollm2; its tokenizer has a chat
    template."""
    system: str | None = None
    """The system prompt."""
    length: int = 500
    """Maximum number of tokens in an answer."""
    temperature: float = 0.7
    top_p: float | None = 0.95
    seed: int | None = None
    """The same seed gives the same answers again."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        check_length(self.length)
        model, tokenizer = open_model(self.model, self.machine, GPT)

        # A missing chat template is reported before the first line is read.
        ends = end_of_turn_ids(tokenizer)
        session = ChatSession(self, model, tokenizer, ends)
        empty = True

        for line in typed_lines():
            if line == "/quit":
                break

            if line == "/again":
                session.restart()
                note("a new conversation begins")
                continue

            empty = False
            with errors_as_notes():
                session.answer(line)

        if empty and not sys.stdin.isatty():
            raise ValueError("standard input: it is empty; expected messages, one a line")


@dataclass
class ChatSession:
    """The messages of a chat, and how the model continues them."""

    flags: Chat
    model: GPT
    tokenizer: Tokenizer
    ends: list[int]
    system: list[Message] = field(default_factory=list)
    """The system message, if there is one; it is never dropped."""
    messages: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        if self.flags.system is not None:
            self.system.append(Message(role="system", content=self.flags.system))

        self.restart()

    def restart(self) -> None:
        self.messages = list(self.system)

    def answer(self, line: str) -> None:
        """Print the model's answer to a message and add both to the conversation."""
        messages = [*self.messages, Message(role="user", content=line)]
        messages = self.without_oldest(messages)
        ids = encode_chat(self.tokenizer, messages)
        limit = context_limit(self.model, "refuse")
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"text: {len(ids):,} tokens are more than the model's context of {limit:,}; "
                "shorten it"
            )

        answer = self.print_answer(ids)
        self.messages = [*messages, Message(role="assistant", content=answer)]

    def without_oldest(self, messages: list[Message]) -> list[Message]:
        """Drop the oldest messages, with a note, until there is room for an answer."""
        context = self.model.config.context
        most = max(context - self.flags.length, context // 2)
        fixed = len(self.system)
        recent = messages

        while len(encode_chat(self.tokenizer, recent)) > most and len(recent) > fixed + 1:
            recent = [*self.system, *recent[fixed + 2 :]]  # without a question and its answer

        if dropped := len(messages) - len(recent):
            note(
                f"the conversation is longer than the context of {context:,} tokens: its first "
                f"{dropped} messages are dropped"
            )

        return recent

    def print_answer(self, ids: list[int]) -> str:
        """Stream an answer to standard output and return it; Ctrl-C ends it early."""
        answer = ""
        reason = None
        chunks = stream_text(
            self.model,
            self.tokenizer,
            [ids],
            length=self.flags.length,
            sampling_params=sampling_params_of(self.flags),
            end=self.ends,
            seed=self.flags.seed,
        )

        try:
            for chunk in chunks:
                answer += chunk.text
                reason = chunk.reason
                sys.stdout.write(printable(chunk.text) if sys.stdout.isatty() else chunk.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise

        print(flush=True)
        if reason in CUT_OFF:
            note(f"the answer was cut off: {CUT_OFF[reason]}")

        return answer
