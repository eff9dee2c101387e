"""A chat as ids: the template that came with the tokenizer writes the messages down, special tokens included.

What a person says is only ever text. A message that spells <|im_end|> does not end its turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, TypedDict

from qkv.text.tokenizer import Tokenizer

MARKS = [chr(number) for number in range(0xFDD0, 0xFDF0)]  # Unicode promises that these are no characters


class Message(TypedDict):
    role: str
    """system, user or assistant."""
    content: str


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True) -> list[int]:
    """The ids of a chat, up to where the assistant begins to speak; without `reply`, up to the last message's end."""
    spelled = spellings(tokenizer)
    said = "".join(f"{message['role']}{message['content']}" for message in messages)
    mark = next((mark for mark in MARKS if mark not in said), None)
    if mark is None:
        raise ValueError("messages: they have every sign in them that Unicode says is none")

    def broken(text: str) -> str:
        """Special tokens that a person spelled, with a mark inside, which the text loses again when it is encoded."""
        return pattern.sub(lambda found: found[0][:1] + mark + found[0][1:], text)

    pattern = re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))) or "(?!)")
    safe = [Message(role=broken(message["role"]), content=broken(message["content"])) for message in messages]
    ids: list[int] = []
    rendered = render(tokenizer, safe, reply=reply)
    place = 0
    for found in pattern.finditer(rendered):
        ids += encode_part(tokenizer, rendered[place : found.start()].replace(mark, ""), first=place == 0)
        ids.append(spelled[found[0]])
        place = found.end()
    return ids + encode_part(tokenizer, rendered[place:].replace(mark, ""), first=place == 0)


def encode_part(tokenizer: Tokenizer, text: str, first: bool) -> list[int]:
    """A text between two special tokens. Where a mark stands before a whole text alone, this one must do without."""
    if first or not text or getattr(tokenizer.inner.pre_tokenizer, "prepend_scheme", None) != "first":
        return tokenizer.encode(text)
    line, both = tokenizer.encode("\n"), tokenizer.encode("\n" + text)
    return both[len(line) :] if both[: len(line)] == line else tokenizer.encode(text)


def ends_of_turn(tokenizer: Tokenizer) -> list[int]:
    """The ids that end what the assistant says: the one that the template writes there, and the end of texts."""
    turn = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    written = encode_chat(tokenizer, turn, reply=False)
    spoken = encode_chat(tokenizer, turn[:1], reply=True)
    after = [id for id in written[len(spoken) :] if id in tokenizer.special][:1]
    return list(dict.fromkeys([*after, *([] if tokenizer.end is None else [tokenizer.end])]))


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True) -> str:
    """The chat as its template writes it."""
    if tokenizer.chat_template is None:
        raise ValueError(
            "chat_template: this tokenizer has none, so its model was not taught to chat; use qkv generate"
        )
    from jinja2.exceptions import TemplateError

    names = {field: token for field, token in tokenizer.config.items() if field.endswith("_token")}
    try:
        return compiled(tokenizer.chat_template).render(messages=messages, add_generation_prompt=reply, **names)
    except (TemplateError, TypeError, AttributeError) as error:
        raise ValueError(f"chat_template: it does not take these messages ({error})") from error


def spellings(tokenizer: Tokenizer) -> dict[str, int]:
    return {tokenizer.token(id): id for id in tokenizer.special}


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """With the names that `transformers` gives templates, in a sandbox: a template comes from someone else's file."""
    from jinja2.exceptions import TemplateError, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **rest: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **rest)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateSyntaxError as error:
        raise ValueError(f"chat_template: not a template of jinja ({error})") from error
