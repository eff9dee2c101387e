"""Chat templates: messages to token ids by the tokenizer's Jinja template, special tokens included.

The content of a message is only ever text. A message that spells <|im_end|> does not end its turn,
whether the tokenizer calls that token special or not. (A role comes from the program, not from a
person: it may complete a token that the template begins.)

To tell the template's tokens from those in messages, the latter are put between quotes before the
template is rendered: characters that Unicode guarantees never to assign.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from qkv.text.added_tokens import added_tokens_of
from qkv.text.jinja_sandbox import rendered
from qkv.text.tokenizer import Tokenizer

NONCHARACTERS = list(map(chr, range(0xFDD0, 0xFDF0)))
ANSWER = NONCHARACTERS[0] + "answer" + NONCHARACTERS[0]  # no template contains it


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    """system, user or assistant."""
    content: str


def encode_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True
) -> list[int]:
    """Return the token ids of a chat.

    Args:
        tokenizer: A tokenizer with a chat template.
        messages: The turns so far.
        reply: End where the assistant's reply starts; otherwise at the end of the last message.

    Returns:
        Token ids, with the template's special tokens.

    Raises:
        TypeError: If the messages are not a list of objects with role and content.
        ValueError: If there is no template, or it fails on these messages.
    """
    check_messages(messages)
    quotes = free_noncharacters(tokenizer, messages)
    added_tokens = added_tokens_of(tokenizer)

    # Quotes surround an added token in a message and do not split it, so that a template that
    # searches for one, such as the end of a thought, still finds it.
    safe = []
    for message in messages:
        role = added_tokens.quoted(message["role"], quotes)
        content = added_tokens.quoted(message["content"], quotes)
        safe.append(Message(role=role, content=separated(tokenizer, content, quotes[1])))

    text = render(tokenizer, safe, reply=reply)
    boundaries = turn_boundaries(tokenizer, safe, text)

    # The template's own tokens, and the encoded text between them.
    ids: list[int] = []
    position = 0
    for match in added_tokens.find(text, quotes):
        ids += encode_span(tokenizer, text, position, match.begin, boundaries, quotes)
        ids.append(match.id)
        position = match.end

    return ids + encode_span(tokenizer, text, position, len(text), boundaries, quotes)


def check_messages(messages: object) -> None:
    """Raise a clear TypeError for a string, or a list of strings, in place of messages."""
    expected = 'a list of {"role": "user", "content": "..."}'
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence):
        raise TypeError(f"messages: expected {expected}, not {messages!r:.80}")

    for message in messages:
        if not is_message(message):
            raise TypeError(
                f"messages: expected {expected}, with strings in it, not {message!r:.80}"
            )


def is_message(value: object) -> bool:
    if not isinstance(value, dict):
        return False

    return isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def free_noncharacters(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[str, str]:
    """Return two noncharacters that are neither in the messages nor in the template."""
    used = str(tokenizer.chat_template)
    for message in messages:
        used += message["role"] + message["content"]

    free = [character for character in NONCHARACTERS if character not in used]
    if len(free) < 2:
        raise ValueError("messages: they contain all noncharacters of Unicode; remove some")

    return free[0], free[1]


def turn_boundaries(tokenizer: Tokenizer, messages: Sequence[Message], text: str) -> list[int]:
    """Return where replies with spaces around them begin and end in the rendered text.

    Generation starts exactly there, so no token may span a boundary: one that joins the template's
    last newline and the reply's indent could never be generated.
    """
    boundaries = set()
    for number, message in enumerate(messages):
        content = message["content"]
        if number == 0 or message["role"] != "assistant" or content == content.strip():
            continue

        prompt = render(tokenizer, messages[:number], reply=True)
        answered = render(tokenizer, messages[: number + 1], reply=False)
        for beginning in (prompt, answered):
            if text.startswith(beginning):
                boundaries.add(len(beginning))

    return sorted(boundaries)


def separated(tokenizer: Tokenizer, content: str, separator: str) -> str:
    """Return a message that cannot form an added token with the template's text beside it.

    A < before |im_end|> would; then a separator stands between them.
    """
    text = content.strip()  # templates may strip it, too
    if not text:
        return content

    added_tokens = added_tokens_of(tokenizer)
    before = text.startswith(added_tokens.endings)
    after = text.endswith(added_tokens.beginnings)
    if len(text) < added_tokens.longest:  # it may be the middle of an added token
        before = before or any(text in name[1:] for name in added_tokens.known)
        after = after or any(text in name[:-1] for name in added_tokens.known)

    return content.replace(text, separator * before + text + separator * after, 1)


def encode_span(
    tokenizer: Tokenizer,
    text: str,
    begin: int,
    end: int,
    boundaries: list[int],
    quotes: tuple[str, str],
) -> list[int]:
    """Return the ids of text[begin:end] without quotes, encoded separately between boundaries."""
    inside = [position for position in boundaries if begin < position < end]
    ids: list[int] = []
    for start, stop in pairwise([begin, *inside, end]):
        part = text[start:stop].replace(quotes[0], "").replace(quotes[1], "")
        ids += encode_part(tokenizer, part, is_first=start == 0)

    return ids


def encode_part(tokenizer: Tokenizer, text: str, *, is_first: bool) -> list[int]:
    """Return the ids of a text between two special tokens.

    Some tokenizers prepend a space mark to the first text only; a later part must not get it, so
    it is encoded after a newline, whose ids are removed.
    """
    encode = tokenizer.encode_as_text
    prepends = getattr(tokenizer.inner.pre_tokenizer, "prepend_scheme", None) == "first"
    if is_first or not text or not prepends:
        return encode(text)

    newline = encode("\n")
    both = encode("\n" + text)
    if both[: len(newline)] == newline:
        return both[len(newline) :]

    return encode(text)


def end_of_turn_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end a reply.

    These are the first added token that the template writes after a reply, if there is one, and
    the end token.
    """
    messages = [Message(role="user", content="a"), Message(role="assistant", content=ANSWER)]
    _, answer, rest = render(tokenizer, messages, reply=False).rpartition(ANSWER)

    ids = []
    if answer:
        ids += [match.id for match in added_tokens_of(tokenizer).find(rest)[:1]]
    if tokenizer.end is not None and tokenizer.end not in ids:
        ids.append(tokenizer.end)

    return ids


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True) -> str:
    """Return the chat as text, as the tokenizer's template writes it."""
    if tokenizer.chat_template is None:
        raise ValueError(
            "chat_template: this tokenizer has none, so its model was not trained to chat; "
            "use qkv generate"
        )

    names = {field: token for field, token in tokenizer.config.items() if field.endswith("_token")}
    return rendered(
        tokenizer.chat_template, messages=messages, add_generation_prompt=reply, **names
    )
