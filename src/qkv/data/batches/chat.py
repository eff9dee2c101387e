"""The chat objective: of a conversation only what the assistant says is learned, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import positions_within
from qkv.data.batches.labelled import up_to
from qkv.data.batches.order import check_seed, draws
from qkv.data.sources.files import find_files
from qkv.data.sources.formats import as_string, kind
from qkv.data.sources.parts import Part, hub_part, table_part
from qkv.data.sources.source import Source, named, once, split_of, tables, title
from qkv.text.chat_template import Message, encode_chat, ends_of_turn
from qkv.text.tokenizer import Tokenizer

COLUMNS = ("messages", "conversations")
ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "human": "user",
    "gpt": "assistant",
}
"""The last two are what ShareGPT calls them."""


class Conversation(NamedTuple):
    messages: tuple[Message, ...]
    where: str
    """The file and the line, for errors."""


def open_conversations(data: Sequence[str | Path]) -> Source[Conversation]:
    """Rows such as {"messages": [{"role": "user", "content": "Hi"}, ...]}, or as ShareGPT writes
    them.
    """

    def choose(names: list[str], where: str) -> tuple[str, ...]:
        return (next((name for name in COLUMNS if name in names), COLUMNS[0]),)

    parts: list[Part[Conversation]] = []

    for item in named(data):
        split_of(item, "", "conversations")
        if item.startswith("hf:"):
            parts.append(hub_part(item, choose, read_row, COLUMNS))
            continue

        for file in tables(find_files(item, piped="jsonl")):
            if file.format not in ("jsonl", "parquet"):
                raise ValueError(f"{file.name}: conversations are read from .jsonl or .parquet")

            parts.append(table_part(file, choose, read_row, COLUMNS))

    return Source(title(data, parts), once(parts))


def read_row(row: list[Any], where: str) -> Iterator[Conversation]:
    said = row[0]
    if not isinstance(said, list | tuple) or not said:
        raise ValueError(
            f"{where}: the messages: expected a list, not {'an empty one' if said == [] else kind(said)}"
        )

    messages = [
        read_message(message, f"{where}: message {number}")
        for number, message in enumerate(said, 1)
    ]
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise ValueError(f"{where}: no message is the assistant's, so there is nothing to learn")
    if "user" not in roles[: roles.index("assistant")]:
        raise ValueError(
            f"{where}: the assistant speaks before anyone asked; leave its first message out"
        )

    return iter([Conversation(tuple(messages), where)])


def read_message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"{where}: expected an object with role and content, not {kind(message)}")

    names = ("from", "value") if "from" in message else ("role", "content")
    for name in names:
        if name not in message:
            raise ValueError(
                f"{where}: there is no {name}; it has {', '.join(message) or 'nothing'}"
            )

    role, content = (
        as_string(message[name], name, where) for name in names
    )  # an answer may begin with an indent
    role = role.strip()
    if role not in ROLES:
        raise ValueError(f"{where}: expected a role of {', '.join(ROLES)}, not {role!r}")
    if not content.strip():
        raise ValueError(f"{where}: the {names[1]} is empty")

    return Message(role=ROLES[role], content=content)


# Ids


class Encoded(NamedTuple):
    """A conversation as ids, and which of them are asked: those of the answers, and the marker that
    ends each.
    """

    ids: Int[np.ndarray, "L"]
    asked: Bool[np.ndarray, "L"]


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[list[int], list[bool]]:
    """As the template writes it. An answer begins where the chat before it, up to the reply, ends."""
    ids = encode_chat(tokenizer, messages, reply=False)
    asked = [False] * len(ids)
    ends = set(ends_of_turn(tokenizer))

    for number, message in enumerate(messages, 1):
        if message["role"] != "assistant":
            continue

        before = encode_chat(tokenizer, messages[: number - 1], reply=True)
        said = (
            ids
            if number == len(messages)
            else encode_chat(tokenizer, messages[:number], reply=False)
        )
        if said[: len(before)] != before or ids[: len(said)] != said or len(before) == len(said):
            raise ValueError(
                f"chat_template: it does not write message {number} after what comes before it, and what follows after "
                "that, so this answer cannot be told from the rest"
            )

        # To the marker that ends the turn; where a template has none, to the end of what it writes.
        stop = next(
            (place + 1 for place in range(len(before), len(said)) if said[place] in ends), len(said)
        )
        asked[len(before) : stop] = [True] * (stop - len(before))

    return ids, asked


def encode_conversations(
    tokenizer: Tokenizer, conversations: Iterable[Conversation]
) -> list[Encoded]:
    found = []
    for conversation in conversations:
        try:
            ids, asked = encode_conversation(tokenizer, conversation.messages)
        except ValueError as error:
            raise ValueError(f"{conversation.where}: {error}") from None

        found.append(Encoded(np.array(ids, dtype=np.int32), np.array(asked)))

    return found


# Batches


class ConversationData:
    """`batch(step)` to train on, `ordered()` to validate on.

    An epoch has every conversation once, `size` a step; its last batch may be smaller. The
    conversations of a batch are packed into rows, each alone there: the batch numbers them, and
    positions begin again. What comes after the last word that is asked is not read. Rows are padded
    to a `multiple`, so that batches have few shapes.
    """

    order_version = 2
    """1 took `size` rows of packed conversations a step."""
    cut: int
    """How many are longer than the context, and lose their end."""
    left_out: int
    """How many have no answer within the context, and are never seen."""

    def __init__(
        self,
        conversations: Sequence[Encoded],
        context: int,
        size: int,
        padding: int,
        seed: int = 0,
        *,
        multiple: int = 1,
    ) -> None:
        check_seed(seed)
        for name, value in (("context", context), ("size", size)):
            if value < 1:
                raise ValueError(f"{name}: expected 1 or more, not {value}")

        # The word at t is read to say the one at t + 1: as many words are read as come before the
        # last one asked.
        last = [np.flatnonzero(each.asked[: context + 1]) for each in conversations]
        lengths = np.array(
            [target_positions[-1] if len(target_positions) else 0 for target_positions in last],
            dtype=np.int64,
        )
        self.chosen = np.flatnonzero(lengths)
        self.left_out = len(conversations) - len(self.chosen)
        self.cut = sum(
            bool(conversations[number].asked[context + 1 :].any())
            for number in self.chosen.tolist()
        )
        if not len(self.chosen):
            raise ValueError(
                f"conversations: none of {len(conversations)} has an answer within {context} tokens"
            )

        self.conversations, self.lengths, self.context = conversations, lengths, context
        self.size, self.padding, self.seed, self.multiple = size, padding, seed, multiple
        self.steps_per_epoch = -(-len(self.chosen) // size)
        self.tokens_per_step = int(lengths.sum()) // self.steps_per_epoch
        self.length = min(context, self.tokens_per_step)
        """Tokens of a row, about."""
        self.epoch = lru_cache(maxsize=1)(self.draw_epoch)

    def draw_epoch(self, epoch: int) -> Int[np.ndarray, "chosen"]:
        """The order of the conversations."""
        return draws("conversations", self.seed, epoch).permutation(self.chosen)

    def batch(self, step: int) -> Batch:
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        first = step % self.steps_per_epoch * self.size
        return self.join(self.epoch(step // self.steps_per_epoch)[first : first + self.size])

    def ordered(self) -> Iterator[Batch]:
        """Every conversation once; the last batch may have fewer."""
        for first in range(0, len(self.chosen), self.size):
            yield self.join(self.chosen[first : first + self.size])

    def join(self, numbers: Int[np.ndarray, "size"]) -> Batch:
        packed = pack(self.lengths, numbers, self.context)
        longest = max(int(self.lengths[row].sum()) for row in packed)
        shape = (len(packed), min(up_to(longest, self.multiple), self.context))  # (B, T)
        ids = np.full(shape, self.padding, dtype=np.int64)
        targets = np.full(shape, IGNORE, dtype=np.int64)
        documents = np.zeros(shape, dtype=np.int64)
        padding_mask = np.zeros(shape, dtype=bool)

        for row, members in enumerate(packed):
            place = 0
            for document, number in enumerate(members.tolist()):
                (words, asked), length = self.conversations[number], int(self.lengths[number])
                part = slice(place, place + length)
                ids[row, part], documents[row, part], padding_mask[row, part] = (
                    words[:length],
                    document,
                    True,
                )
                targets[row, part] = np.where(asked[1 : length + 1], words[1 : length + 1], IGNORE)
                place += length

            documents[row, place:] = len(members)  # padding is alone, too

        return Batch(
            ids=torch.from_numpy(ids),
            targets=torch.from_numpy(targets),
            padding_mask=None
            if padding_mask.all() and self.multiple == 1
            else torch.from_numpy(padding_mask),
            documents=torch.from_numpy(documents),
            positions=torch.from_numpy(positions_within(documents)),
        )


def pack(
    lengths: Int[np.ndarray, "n"], order: Int[np.ndarray, "m"], size: int
) -> list[Int[np.ndarray, "_"]]:
    """First fit: each goes into the first row that has room for it, or begins a new one."""
    room = np.zeros(len(order), dtype=np.int64)  # of each row; most are never begun
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
