"""A tokenizer: text to ids and ids to text, over the library `tokenizers`, which holds its
vocabulary and its rules.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import tokenizers
from jaxtyping import Bool
from tokenizers import AddedToken

from qkv import storage
from qkv.text.loaders.tokenizer_files import CONFIG, WHOLE, read_files
from qkv.text.rust_panics import panics_as_errors
from qkv.text.special_tokens import FIELDS, OURS, ROLES, find_chat_template, find_roles, special_ids


class Tokenizer:
    """`encode` and `decode` between text and ids; `padding`, `start`, `end` ... are the ids of
    special tokens, if any.

    No special token is looked for in a text: one that spells "[end]" gets the ids of those signs.
    Three things are not promised. Tokens that were added without being special are found, as their
    makers want it; and a special token that is a single sign, or that a vocabulary of words or
    unigrams has as a word, may be found as such. `encode_as_text` promises more, for what a person
    says to a model of chats.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None
    ) -> None:
        """`config` is what a tokenizer_config.json says of the special tokens."""
        self.inner = inner
        self.inner.encode_special_tokens = (
            True  # in the library's words: spelled out, as any other text
        )
        self.roles = find_roles(inner, config or {})
        self.padding, self.unknown, self.start, self.end, self.mask = (
            self.roles[role] for role in ROLES
        )
        self.chat_template = find_chat_template(config or {})
        """Jinja's, from messages to the text that a model of chats was trained on; see chat.py."""
        self.told_to_start = (config or {}).get("add_bos_token")

    @classmethod
    @panics_as_errors
    def read(cls, path: Path | str) -> Tokenizer:
        """From tokenizer.json, GPT-2's vocab.json and merges.txt, Marian's with source.spm, or
        BERT's vocab.txt: the file, or its folder. Or from inside a GGUF file."""
        return cls(*read_files(Path(path)))

    def write(self, path: Path | str) -> None:
        """Into a .json file; into a folder, as tokenizer.json with the tokenizer_config.json of
        `transformers`.
        """
        path = Path(path)
        if path.is_dir() or path.suffix != ".json":
            storage.write_text(
                path / CONFIG, json.dumps(self.config, indent=2, ensure_ascii=False) + "\n"
            )
            path = path / WHOLE

        storage.write_text(path, self.inner.to_str(pretty=True))

    def with_special(self, names: Sequence[str], *, chat_template: str | None = None) -> Tokenizer:
        """A copy that also has these special tokens, with new ids after all others, and another
        template of chats.
        """
        if isinstance(names, str):
            raise TypeError("names: expected a list of names, not one string")

        inner = tokenizers.Tokenizer.from_str(self.inner.to_str())
        inner.add_special_tokens(
            [AddedToken(name, special=True, normalized=False) for name in names]
        )
        config = (
            self.config
            if chat_template is None
            else {**self.config, "chat_template": chat_template}
        )

        return Tokenizer(inner, config)

    @property
    def config(self) -> dict[str, Any]:
        """What tokenizer_config.json says: the special tokens by role, and the template of chats."""
        ids = {field: self.roles[role] for role, fields in FIELDS.items() for field in fields}
        ids["unk_token"] = self.unknown
        names = {field: self.token(id) for field, id in ids.items() if id is not None}
        told = {"add_bos_token": self.told_to_start, "chat_template": self.chat_template}
        said = {field: value for field, value in told.items() if value is not None}

        return {"tokenizer_class": "PreTrainedTokenizerFast", **names, **said}

    @cached_property
    @panics_as_errors
    def starts_texts(self) -> bool:
        """Whether a text that is read begins with the start id: as the config says, else as the
        rules do it.
        """
        if self.start is None or self.told_to_start is not None:
            return self.start is not None and self.told_to_start is True

        return self.inner.encode("", add_special_tokens=True).ids[:1] == [self.start]

    @cached_property
    def vocabulary(self) -> int:
        """Number of ids (V); ids that stand for nothing are counted, if a file left any out."""
        return max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    @panics_as_errors
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, all cores at work; no special tokens are added."""
        if isinstance(texts, str):
            raise TypeError(
                "texts: expected a list of strings, not one string; encode(text) takes one"
            )

        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"text: expected a string, not {text!r:.80}")

        return [
            found.ids for found in self.inner.encode_batch_fast(texts, add_special_tokens=False)
        ]

    @panics_as_errors
    def encode_as_text(self, text: str) -> list[int]:
        """The ids of a text without any marker, special or not. A marker that the vocabulary has as
        a word is cut into its signs; a single sign that is a marker becomes the unknown token, or
        is left out where there is none."""
        found = self.without_markers.encode(text, add_special_tokens=False)
        never = {id for id, _ in self.markers.values()} - {self.unknown}
        if never.isdisjoint(found.ids):
            return list(found.ids)

        ids: list[int] = []

        for id, (begin, end) in zip(found.ids, found.offsets, strict=True):
            if id not in never:
                ids.append(id)
            elif end - begin > 1:
                ids += [each for sign in text[begin:end] for each in self.encode_as_text(sign)]
            elif self.unknown is not None:
                ids.append(self.unknown)

        return ids

    @cached_property
    def markers(self) -> dict[str, tuple[int, AddedToken]]:
        """Added tokens that may mark something, by their spelling: all but runs of spaces that are
        not special.
        """
        added = self.inner.get_added_tokens_decoder().items()
        return {
            each.content: (id, each)
            for id, each in added
            if each.special or each.content.strip(" \t\n\r▁")
        }

    @cached_property
    @panics_as_errors
    def without_markers(self) -> tokenizers.Tokenizer:
        """The same rules, but for the library every marker is special, which it then does not look
        for.
        """
        if all(token.special for _, token in self.markers.values()):
            return self.inner

        values = json.loads(self.inner.to_str())

        for added in values["added_tokens"]:
            added["special"] = added["content"] in self.markers

        inner = tokenizers.Tokenizer.from_str(json.dumps(values))
        inner.encode_special_tokens = True

        return inner

    @cached_property
    def decoders(self) -> frozenset[str]:
        """The kinds of the decoder, by the library's names; in a sequence there are several."""
        state = b"" if self.inner.decoder is None else self.inner.decoder.__getstate__()
        return frozenset(re.findall(r'"type":\s*"(\w+)"', state.decode()))

    @panics_as_errors
    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of ids. Special tokens are left out, but not the one of unknown words: something
        was said there.
        """
        try:
            numbers = [index(id) for id in ids]
        except TypeError:
            raise TypeError(
                f"ids: expected one list of token ids (whole numbers), not {ids!r:.80}"
            ) from None

        if numbers and min(numbers) < 0:
            raise ValueError(f"ids: expected 0 or more, found {min(numbers)}")

        silent = self.special - {self.unknown}

        return self.inner.decode(
            [id for id in numbers if id not in silent], skip_special_tokens=False
        )

    @panics_as_errors
    def unknown_in(self, text: str) -> list[str]:
        """The parts of a text that the vocabulary does not have."""
        if self.unknown is None:
            return []

        found = self.inner.encode(text, add_special_tokens=False)
        places = zip(found.ids, found.offsets, strict=True)

        return [text[begin:stop] for id, (begin, stop) in places if id == self.unknown]

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids that are no words."""
        return frozenset(special_ids(self.inner).values())

    def token(self, id: int) -> str:
        """An id's token as the vocabulary writes it, such as ##ing or Ġthe."""
        token = self.inner.id_to_token(id) if 0 <= id < self.vocabulary else None
        if token is None:
            raise ValueError(f"id: expected one of the vocabulary's {self.vocabulary}, not {id}")

        return token

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it, if it is there."""
        return self.inner.token_to_id(token)

    @cached_property
    def starts_word(self) -> Bool[np.ndarray, "V"]:
        """Which tokens begin a word, for masking whole words. A special token stands alone, so it
        begins one too; and the first token of a text always does, whatever is said here."""
        begins = np.ones(self.vocabulary, dtype=bool)
        for token, id in self.inner.get_vocab(with_added_tokens=True).items():
            begins[id] = id in self.special or not self.continues(token)

        return begins

    @panics_as_errors
    def continues(self, token: str) -> bool:
        """Whether a token goes on the word before it: marked so, as ##ing, or when its text after a
        letter does.
        """
        mark = getattr(self.inner.model, "continuing_subword_prefix", None)
        if mark:
            return token.startswith(mark)

        decoder = self.inner.decoder

        return decoder is not None and goes_on_a_word(decoder.decode(["x", token])[1:2])

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers that do the same: a hash of the rules, the vocabulary and the
        special tokens.
        """
        return hashlib.sha256(json.dumps([self.inner.to_str(), self.roles]).encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self.config)

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.inner.model).__name__}, vocabulary={self.vocabulary})"


def beginning(tokenizer: Tokenizer) -> int | None:
    """The id that a text begins after. In what is trained here that is the end of the text before."""
    ours = tokenizer.start is not None and tokenizer.token(tokenizer.start) == OURS["start"]
    first, second = (tokenizer.end, tokenizer.start) if ours else (tokenizer.start, tokenizer.end)
    return second if first is None else first


def goes_on_a_word(character: str) -> bool:
    """A letter, digit or accent does; so does a part of a letter, which is what � stands for."""
    return (
        character.isalnum()
        or character in ("_", "\ufffd")
        or unicodedata.category(character or " ")[0] == "M"
    )
