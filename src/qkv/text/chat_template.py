"""A chat as ids: the template that came with the tokenizer writes the messages down, special tokens
included.

What a person says is only ever text. A message that spells <|im_end|> does not end its turn,
whether the tokenizer calls that token special or not. (A role is the program's word: it may
complete a token that the template begins.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from qkv.text.added_tokens import added_tokens_of
from qkv.text.jinja_sandbox import rendered
from qkv.text.tokenizer import Tokenizer

MARKS = [
    chr(number) for number in range(0xFDD0, 0xFDF0)
]  # Unicode promises that these are no characters
ANSWER = MARKS[0] + "answer" + MARKS[0]  # what no template says by itself


class Message(TypedDict):
    role: str
    """system, user or assistant."""
    content: str


def encode_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True
) -> list[int]:
    """The ids of a chat, up to where the assistant begins to speak; without `reply`, up to the last
    message's end.
    """
    check_messages(messages)
    said = "".join(f"{message['role']}{message['content']}" for message in messages) + str(
        tokenizer.chat_template
    )
    free = [mark for mark in MARKS if mark not in said]
    if len(free) < 2:
        raise ValueError("messages: they have every sign in them that Unicode says is none")

    quotes = before, after = free[0], free[1]
    markers = added_tokens_of(tokenizer)

    # Quotes stand around a marker that is spelled in a message, not inside it, so that a template
    # that looks for one, such as the end of a thought, finds it.
    safe = [
        Message(
            role=markers.quoted(message["role"], quotes),
            content=apart(tokenizer, markers.quoted(message["content"], quotes), after),
        )
        for message in messages
    ]

    whole = render(tokenizer, safe, reply=reply)
    borders = borders_of(tokenizer, safe, whole)

    def text(begin: int, end: int) -> list[int]:
        cuts = [begin, *(place for place in borders if begin < place < end), end]
        parts = [
            (one, whole[one:other].replace(before, "").replace(after, ""))
            for one, other in pairwise(cuts)
        ]
        return [id for place, part in parts for id in encode_part(tokenizer, part, place == 0)]

    ids: list[int] = []
    place = 0

    for found in markers.find(whole, quotes):  # the template's own
        ids += [*text(place, found.begin), found.id]
        place = found.end

    return ids + text(place, len(whole))


def check_messages(messages: object) -> None:
    """A clear sentence for a string, or a list of strings, in place of messages."""
    wanted = 'a list of {"role": "user", "content": "..."}'
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence):
        raise TypeError(f"messages: expected {wanted}, not {messages!r:.80}")

    for message in messages:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise TypeError(f"messages: expected {wanted}, with strings in it, not {message!r:.80}")


def borders_of(tokenizer: Tokenizer, messages: Sequence[Message], whole: str) -> list[int]:
    """Where an answer with spaces around it begins and ends. The model was asked up to there, and
    goes on from there: a token that has the template's last newline and the answer's indent in one
    would be none that it could say."""
    found = set()
    for number, (role, content) in enumerate((each["role"], each["content"]) for each in messages):
        if number and role == "assistant" and content != content.strip():
            asked = render(tokenizer, messages[:number], reply=True)
            said = render(tokenizer, messages[: number + 1], reply=False)
            found |= {len(part) for part in (asked, said) if whole.startswith(part)}

    return sorted(found)


def apart(tokenizer: Tokenizer, content: str, mark: str) -> str:
    """With a mark where the template's text beside it could make a marker of it, as < before
    |im_end|> would.
    """
    said = content.strip()  # templates may strip it, too
    markers = added_tokens_of(tokenizer)
    short = len(said) < markers.longest  # it may itself be the middle of a marker
    known = markers.known if short else ()
    begin = (
        mark if said.startswith(markers.endings) or any(said in each[1:] for each in known) else ""
    )
    end = (
        mark
        if said.endswith(markers.beginnings) or any(said in each[:-1] for each in known)
        else ""
    )

    return content.replace(said, begin + said + end, 1) if said else content


def encode_part(tokenizer: Tokenizer, text: str, first: bool) -> list[int]:
    """A text between two special tokens. Where a mark stands before a whole text alone, this one
    must do without.
    """
    encode = tokenizer.encode_as_text
    if (
        first
        or not text
        or getattr(tokenizer.inner.pre_tokenizer, "prepend_scheme", None) != "first"
    ):
        return encode(text)

    line, both = encode("\n"), encode("\n" + text)

    return both[len(line) :] if both[: len(line)] == line else encode(text)


def ends_of_turn(tokenizer: Tokenizer) -> list[int]:
    """The ids that end what the assistant says: the first marker that the template writes after an
    answer, if there is one, and the end of texts."""
    turn = [Message(role="user", content="a"), Message(role="assistant", content=ANSWER)]
    _, answer, rest = render(tokenizer, turn, reply=False).rpartition(ANSWER)
    after = [found.id for found in added_tokens_of(tokenizer).find(rest)[:1]] if answer else []

    return list(dict.fromkeys([*after, *([] if tokenizer.end is None else [tokenizer.end])]))


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True) -> str:
    """The chat as its template writes it."""
    if tokenizer.chat_template is None:
        raise ValueError(
            "chat_template: this tokenizer has none, so its model was not taught to chat; use qkv generate"
        )

    names = {field: token for field, token in tokenizer.config.items() if field.endswith("_token")}
    return rendered(
        tokenizer.chat_template, messages=messages, add_generation_prompt=reply, **names
    )
