"""A chat as ids: the template that came with the tokenizer writes the messages down, special tokens included.

What a person says is only ever text. A message that spells <|im_end|> does not end its turn, whether the tokenizer
calls that token special or not. (A role is the program's word: it may complete a token that the template begins.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, NoReturn, TypedDict

from qkv.text.tokenizer import Tokenizer

MARKS = [chr(number) for number in range(0xFDD0, 0xFDF0)]  # Unicode promises that these are no characters
ANSWER = MARKS[0] + "answer" + MARKS[0]  # what no template says by itself


class Message(TypedDict):
    role: str
    """system, user or assistant."""
    content: str


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True) -> list[int]:
    """The ids of a chat, up to where the assistant begins to speak; without `reply`, up to the last message's end."""
    check_messages(messages)
    said = "".join(f"{message['role']}{message['content']}" for message in messages) + str(tokenizer.chat_template)
    free = [mark for mark in MARKS if mark not in said]
    if len(free) < 2:
        raise ValueError("messages: they have every sign in them that Unicode says is none")
    before, after = free[:2]
    pattern = pattern_of(tokenizer)

    def marked(text: str) -> str:
        """With marks around each marker that is spelled in a message. They stand around it, not inside, so that a
        template that looks for one, such as the end of a thought, finds it."""
        return pattern.sub(lambda found: before + found[0] + after, text)

    safe = [
        Message(role=marked(message["role"]), content=apart(tokenizer, marked(message["content"]), after))
        for message in messages
    ]
    rendered = render(tokenizer, safe, reply=reply)
    borders = borders_of(tokenizer, safe, rendered)

    def text(begin: int, end: int) -> list[int]:
        cuts = [begin, *(place for place in borders if begin < place < end), end]
        parts = [(one, rendered[one:other].replace(before, "").replace(after, "")) for one, other in pairwise(cuts)]
        return [id for place, part in parts for id in encode_part(tokenizer, part, place == 0)]

    ids: list[int] = []
    place = 0
    for found in re.finditer(f"{before}(?:{pattern.pattern}){after}|({pattern.pattern})", rendered):
        if found[1]:  # the template's own
            ids += [*text(place, found.start()), marker_id(tokenizer, found[1])]
            place = found.end()
    return ids + text(place, len(rendered))


def check_messages(messages: object) -> None:
    """A clear sentence for a string, or a list of strings, in place of messages."""
    wanted = 'a list of {"role": "user", "content": "..."}'
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence):
        raise TypeError(f"messages: expected {wanted}, not {messages!r:.80}")
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise TypeError(f"messages: expected {wanted}, with strings in it, not {message!r:.80}")


def borders_of(tokenizer: Tokenizer, messages: Sequence[Message], rendered: str) -> list[int]:
    """Where an answer with spaces around it begins and ends. The model was asked up to there, and goes on from there: a
    token that has the template's last newline and the answer's indent in one would be none that it could say."""
    found = set()
    for number, (role, content) in enumerate((each["role"], each["content"]) for each in messages):
        if number and role == "assistant" and content != content.strip():
            asked = render(tokenizer, messages[:number], reply=True)
            said = render(tokenizer, messages[: number + 1], reply=False)
            found |= {len(part) for part in (asked, said) if rendered.startswith(part)}
    return sorted(found)


def apart(tokenizer: Tokenizer, content: str, mark: str) -> str:
    """With a mark where the template's text beside it could make a marker of it, as < before |im_end|> would."""
    said = content.strip()  # templates may strip it, too
    lefts = tuple(each[:cut] for each in tokenizer.markers for cut in range(1, len(each)))
    rights = tuple(each[cut:] for each in tokenizer.markers for cut in range(1, len(each)))
    short = len(said) < max(map(len, tokenizer.markers), default=0)  # it may itself be the middle of a marker
    begin = mark if said.startswith(rights) or (short and any(each.startswith(said) for each in rights)) else ""
    end = mark if said.endswith(lefts) or (short and any(each.endswith(said) for each in lefts)) else ""
    return content.replace(said, begin + said + end, 1) if said else content


def pattern_of(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Finds markers, the longest where several begin; some take the spaces beside them along."""
    spelled = sorted(tokenizer.markers.items(), key=lambda item: -len(item[0]))
    space = r"\s*"
    each = [space * token.lstrip + re.escape(text) + space * token.rstrip for text, (_, token) in spelled]
    return re.compile("|".join(each) or "(?!)")


def marker_id(tokenizer: Tokenizer, found: str) -> int:
    """Of what the pattern found, which may have spaces beside it."""
    stripped = {text.strip(): id for text, (id, _) in tokenizer.markers.items()}
    return tokenizer.markers[found][0] if found in tokenizer.markers else stripped[found.strip()]


def encode_part(tokenizer: Tokenizer, text: str, first: bool) -> list[int]:
    """A text between two special tokens. Where a mark stands before a whole text alone, this one must do without."""
    encode = tokenizer.encode_as_text
    if first or not text or getattr(tokenizer.inner.pre_tokenizer, "prepend_scheme", None) != "first":
        return encode(text)
    line, both = encode("\n"), encode("\n" + text)
    return both[len(line) :] if both[: len(line)] == line else encode(text)


def ends_of_turn(tokenizer: Tokenizer) -> list[int]:
    """The ids that end what the assistant says: the first marker that the template writes after an answer, if there is
    one, and the end of texts."""
    turn = [Message(role="user", content="a"), Message(role="assistant", content=ANSWER)]
    _, answer, rest = render(tokenizer, turn, reply=False).rpartition(ANSWER)
    found = pattern_of(tokenizer).search(rest) if answer else None
    after = [] if found is None else [marker_id(tokenizer, found[0])]
    return list(dict.fromkeys([*after, *([] if tokenizer.end is None else [tokenizer.end])]))


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, reply: bool = True) -> str:
    """The chat as its template writes it."""
    if tokenizer.chat_template is None:
        raise ValueError(
            "chat_template: this tokenizer has none, so its model was not taught to chat; use qkv generate"
        )
    template = compiled(tokenizer.chat_template)
    names = {field: token for field, token in tokenizer.config.items() if field.endswith("_token")}
    try:
        return template.render(messages=messages, add_generation_prompt=reply, **names)
    except Exception as error:  # a template is a program of someone else's, and may raise anything
        raise ValueError(f"chat_template: it does not take these messages ({in_a_line(error)})") from error


def in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """With the names that `transformers` gives templates, in a sandbox: a template comes from someone else's file."""
    from jinja2.exceptions import TemplateError
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
    except Exception as error:  # also one that is nested too deeply
        raise ValueError(f"chat_template: not a template of jinja ({in_a_line(error)})") from error
