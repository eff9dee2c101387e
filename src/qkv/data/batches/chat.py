"""Chat fine-tuning: conversations with label masking, packed into rows.

Only the answers of the assistant, and the tokens that end them, are targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import document_tensors
from qkv.data.batches.order import check_seed, epoch_and_index, random_generator
from qkv.data.batches.padding import pad_rows, up_to
from qkv.data.sources.examples import first_of
from qkv.data.sources.files import find_files
from qkv.data.sources.formats import as_string, kind
from qkv.data.sources.source import Source, open_parts, tables
from qkv.data.sources.source_parts import Part, RowReader, table_part
from qkv.text.chat_template import Message, encode_chat, end_of_turn_ids
from qkv.text.tokenizer import Tokenizer

COLUMNS = ("messages", "conversations")
ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "human": "user",
    "gpt": "assistant",
}
"""The roles in the data, the last two of ShareGPT, and their names in chat templates."""


class Conversation(NamedTuple):
    """A conversation of the data, with at least one answer."""

    messages: tuple[Message, ...]
    where: str
    """The file and the line, for errors."""


# Reading


def open_conversations(data: Sequence[str | Path]) -> Source[Conversation]:
    """Conversations from .jsonl or .parquet files, or from a Hugging Face dataset.

    Rows are such as {"messages": [{"role": "user", "content": "Hi"}, ...]}, or in the format of
    ShareGPT.
    """
    rows = RowReader(choose_column, read_row, COLUMNS)

    def open_name(name: str) -> Iterator[Part[Conversation]]:
        for file in tables(find_files(name, piped="jsonl")):
            if file.format not in ("jsonl", "parquet"):
                raise ValueError(f"{file.name}: conversations are read from .jsonl or .parquet")

            yield table_part(file, rows)

    return Source(data, open_parts(data, "conversations", rows, open_name))


def choose_column(names: list[str], where: str) -> tuple[str, ...]:
    """The column of the messages."""
    return (first_of(COLUMNS, names),)


def read_row(row: list[Any], where: str) -> Iterator[Conversation]:
    """The conversation of a row, checked: a user's message precedes every answer."""
    values = row[0]
    if not isinstance(values, list | tuple) or not values:
        what = "an empty one" if values == [] else kind(values)
        raise ValueError(f"{where}: the messages: expected a list, not {what}")

    messages: list[Message] = []
    for number, message in enumerate(values, 1):
        messages.append(read_message(message, f"{where}: message {number}"))

    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise ValueError(f"{where}: no message is the assistant's, so there is nothing to learn")
    if "user" not in roles[: roles.index("assistant")]:
        raise ValueError(
            f"{where}: the assistant's first message comes before any user's; leave it out"
        )

    yield Conversation(tuple(messages), where)


def read_message(message: Any, where: str) -> Message:
    """One message, with the role and content of either format."""
    if not isinstance(message, dict):
        raise ValueError(f"{where}: expected an object with role and content, not {kind(message)}")

    names = ("role", "content")
    if "from" in message:
        names = ("from", "value")

    for name in names:
        if name not in message:
            raise ValueError(
                f"{where}: there is no {name}; it has {', '.join(message) or 'nothing'}"
            )

    role = as_string(message[names[0]], names[0], where).strip()
    content = as_string(message[names[1]], names[1], where)  # an answer may start with an indent
    if role not in ROLES:
        raise ValueError(f"{where}: expected a role of {', '.join(ROLES)}, not {role!r}")
    if not content.strip():
        raise ValueError(f"{where}: the {names[1]} is empty")

    return Message(role=ROLES[role], content=content)


# Token ids


class EncodedConversation(NamedTuple):
    """A conversation as ids, with label masking."""

    ids: Int[np.ndarray, "L"]
    is_target: Bool[np.ndarray, "L"]
    """True for the tokens of the answers and for the token that ends each."""


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[list[int], list[bool]]:
    """The ids of a conversation under the chat template, and which of them are targets.

    An answer starts where the conversation before it, with the generation prompt, ends.
    """
    ids = encode_chat(tokenizer, messages, reply=False)
    is_target = [False] * len(ids)
    ends = set(end_of_turn_ids(tokenizer))

    for number, message in enumerate(messages, 1):
        if message["role"] != "assistant":
            continue

        before = encode_chat(tokenizer, messages[: number - 1], reply=True)
        after = ids
        if number < len(messages):
            after = encode_chat(tokenizer, messages[:number], reply=False)

        check_prefixes(before, after, ids, number)

        # Up to the token that ends the turn; without one, to the end of the answer.
        for position in range(len(before), len(after)):
            is_target[position] = True
            if ids[position] in ends:
                break

    return ids, is_target


def check_prefixes(before: list[int], after: list[int], ids: list[int], number: int) -> None:
    """Raise unless the ids before and after an answer are prefixes of the whole conversation."""
    is_prefix = after[: len(before)] == before and ids[: len(after)] == after
    if not is_prefix or len(before) == len(after):
        raise ValueError(
            f"chat_template: message {number} does not simply follow the messages before it, "
            "so the answer cannot be separated from the rest"
        )


def encode_conversations(
    tokenizer: Tokenizer, conversations: Iterable[Conversation]
) -> list[EncodedConversation]:
    """All conversations as ids; an error names the file and the line."""
    encoded: list[EncodedConversation] = []
    for conversation in conversations:
        try:
            ids, is_target = encode_conversation(tokenizer, conversation.messages)
        except ValueError as error:
            raise ValueError(f"{conversation.where}: {error}") from None

        encoded.append(EncodedConversation(np.array(ids, dtype=np.int32), np.array(is_target)))

    return encoded


# Batches


@dataclass(eq=False, repr=False)
class ConversationData:
    """Batches of conversations: `batch(step)` for training, `ordered()` for validation.

    An epoch has every conversation once, `size` per step; its last batch may be smaller. The
    conversations of a batch are packed into rows, where each attends only to itself and has its own
    positions. Tokens after the last target are not read. Rows are padded to a `multiple`, so that
    batches have few shapes.
    """

    conversations: Sequence[EncodedConversation]
    context: int
    size: int
    padding: int
    seed: int = 0
    multiple: int = field(default=1, kw_only=True)
    cut: int = field(default=0, init=False)
    """Number of conversations that are longer than the context and lose their end."""
    left_out: int = field(init=False)
    """Number of conversations without an answer within the context, which are never used."""
    order_version: int = field(default=2, init=False)
    """Version 1 took `size` rows of packed conversations per step."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, value in (("context", self.context), ("size", self.size)):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, not {value}")

        self.lengths = input_lengths(self.conversations, self.context)
        self.chosen = np.flatnonzero(self.lengths)
        self.left_out = len(self.conversations) - len(self.chosen)
        for number in self.chosen.tolist():
            self.cut += bool(self.conversations[number].is_target[self.context + 1 :].any())

        if not len(self.chosen):
            raise ValueError(
                f"conversations: none of {len(self.conversations)} has an answer within "
                f"{self.context} tokens"
            )

        self.steps_per_epoch = -(-len(self.chosen) // self.size)
        self.tokens_per_step = int(self.lengths.sum()) // self.steps_per_epoch
        self.length = min(self.context, self.tokens_per_step)
        """The typical number of tokens in a row."""
        self.epoch = lru_cache(maxsize=1)(self.shuffle_epoch)

    def shuffle_epoch(self, epoch: int) -> Int[np.ndarray, "chosen"]:
        """The conversations in the order of an epoch."""
        return random_generator("conversations", self.seed, epoch).permutation(self.chosen)

    def batch(self, step: int) -> Batch:
        """The batch of a training step."""
        epoch, index = epoch_and_index(step, self.steps_per_epoch)
        first = index * self.size
        return self.build(self.epoch(epoch)[first : first + self.size])

    def ordered(self) -> Iterator[Batch]:
        """Every conversation once; the last batch may have fewer."""
        for first in range(0, len(self.chosen), self.size):
            yield self.build(self.chosen[first : first + self.size])

    def build(self, numbers: Int[np.ndarray, "size"]) -> Batch:
        """A batch of the conversations with these numbers, packed into rows."""
        packed = pack(self.lengths, numbers, self.context)
        longest = max(int(self.lengths[row].sum()) for row in packed)
        width = min(up_to(longest, self.multiple), self.context)  # T
        ids: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        documents: list[np.ndarray] = []

        for members in packed:
            inputs = list(map(self.inputs_and_targets, members.tolist()))
            row_ids, row_targets = zip(*inputs, strict=True)
            ids.append(np.concatenate(row_ids))
            targets.append(np.concatenate(row_targets))
            lengths = [*self.lengths[members], width - len(ids[-1])]
            documents.append(np.repeat(np.arange(len(lengths)), lengths))  # padding is the last one

        padded_ids, padding_mask = pad_rows(
            ids, self.padding, width=width, keep_mask=self.multiple > 1
        )

        return Batch(
            ids=padded_ids,
            targets=pad_rows(targets, IGNORE, width=width)[0],
            padding_mask=padding_mask,
            **document_tensors(documents),
        )

    def inputs_and_targets(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a conversation that are read, and the target of each."""
        ids, is_target = self.conversations[number]
        length = int(self.lengths[number])
        shifted = slice(1, length + 1)  # the token at t predicts the one at t + 1
        return ids[:length], np.where(is_target[shifted], ids[shifted], IGNORE)


def input_lengths(
    conversations: Sequence[EncodedConversation], context: int
) -> Int[np.ndarray, "n"]:
    """The number of input tokens of each conversation: those before its last target.

    It is 0 for a conversation without a target within the context.
    """
    lengths = np.zeros(len(conversations), dtype=np.int64)
    for number, conversation in enumerate(conversations):
        target_positions = np.flatnonzero(conversation.is_target[: context + 1])
        if len(target_positions):
            lengths[number] = target_positions[-1]

    return lengths


def pack(
    lengths: Int[np.ndarray, "n"], order: Int[np.ndarray, "m"], size: int
) -> list[Int[np.ndarray, "_"]]:
    """First-fit packing: each item goes into the first row with room for it, or into a new row."""
    room = np.zeros(len(order), dtype=np.int64)  # of each row; most rows are never used
    rows: list[list[int]] = []

    for number in order.tolist():
        length = int(lengths[number])
        fits = room[: len(rows)] >= length
        first = int(fits.argmax()) if fits.any() else len(rows)
        if first == len(rows):
            rows.append([])
            room[first] = size

        rows[first].append(number)
        room[first] -= length

    return [np.array(row, dtype=np.int64) for row in rows]
