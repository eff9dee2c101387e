"""Tokenizer: text to token ids and back, over the library `tokenizers`."""

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
from qkv.text.special_tokens import (
    FIELDS,
    find_chat_template,
    find_special_tokens,
    special_ids,
)


class Tokenizer:
    """`encode` text into token ids and `decode` them.

    `padding`, `unknown`, `start`, `end` and `mask` are the ids of special tokens, or None.

    Special tokens in a text are not recognised: a text that spells "[end]" gets the ids of these
    characters. There are three exceptions: added tokens that are not special are recognised, as
    their authors intend; and a special token that is a single character, or that a word or unigram
    vocabulary has as a word, may be recognised as such. `encode_as_text` has no exceptions; chats
    use it for messages.

    Args:
        inner: A tokenizer of the library `tokenizers`.
        config: The contents of tokenizer_config.json, which names the special tokens.

    Example:
        >>> from qkv.text import train
        >>> tokenizer = train("characters", ["the cat sat"], 20)
        >>> tokenizer.decode(tokenizer.encode("the cat"))
        'the cat'
        >>> tokenizer.end
        3
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None
    ) -> None:
        config = config or {}
        self.inner = inner
        self.inner.encode_special_tokens = True  # encode those in a text as plain text

        self.special_tokens = find_special_tokens(inner, config)
        self.padding = self.special_tokens["padding"]
        self.unknown = self.special_tokens["unknown"]
        self.start = self.special_tokens["start"]
        self.end = self.special_tokens["end"]
        self.mask = self.special_tokens["mask"]

        self.chat_template = find_chat_template(config)
        """A Jinja template from messages to the text that a chat model was trained on, or None."""
        self.add_bos_token = config.get("add_bos_token")

    # Files

    @classmethod
    @panics_as_errors
    def read(cls, path: Path | str) -> Tokenizer:
        """Read a tokenizer from a file or its folder.

        Args:
            path: tokenizer.json, GPT-2's vocab.json and merges.txt, Marian's with source.spm,
                BERT's vocab.txt, a folder with one of these, or a GGUF file.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If there is no tokenizer, or its files are damaged or not supported.
        """
        return cls(*read_files(Path(path)))

    def write(self, path: Path | str) -> None:
        """Write the tokenizer into a .json file, or a folder with its tokenizer_config.json."""
        path = Path(path)
        if path.is_dir() or path.suffix != ".json":
            config = json.dumps(self.config, indent=2, ensure_ascii=False) + "\n"
            storage.write_text(path / CONFIG, config)
            path = path / WHOLE

        storage.write_text(path, self.inner.to_str(pretty=True))

    @property
    def config(self) -> dict[str, Any]:
        """The contents of tokenizer_config.json: special tokens by field, and the chat template."""
        ids = {}
        for role, fields in FIELDS.items():
            for field in fields:
                ids[field] = self.special_tokens[role]

        ids["unk_token"] = self.unknown
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for field, id in ids.items():
            if id is not None:
                config[field] = self.token(id)

        if self.add_bos_token is not None:
            config["add_bos_token"] = self.add_bos_token
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template

        return config

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the rules, the vocabulary and the special tokens."""
        content = json.dumps([self.inner.to_str(), self.special_tokens])
        return hashlib.sha256(content.encode()).hexdigest()

    # Text to ids

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens.

        Args:
            text: Any text.

        Returns:
            Token ids.

        Raises:
            TypeError: If `text` is not a string.
        """
        return self.encode_batch([text])[0]

    @panics_as_errors
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens, on all CPU cores."""
        if isinstance(texts, str):
            raise TypeError(
                "texts: expected a list of strings, not one string; encode(text) takes one"
            )

        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"text: expected a string, not {text!r:.80}")

        encodings = self.inner.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @panics_as_errors
    def encode_as_text(self, text: str) -> list[int]:
        """Return the token ids of a text without any added token, special or not.

        An added token that the vocabulary also has as a word is split into its characters. A
        single character that is an added token becomes the unknown token, or is left out.
        """
        encoding = self.inner_without_added.encode(text, add_special_tokens=False)
        forbidden = {id for id, _ in self.added_tokens.values()} - {self.unknown}
        if forbidden.isdisjoint(encoding.ids):
            return list(encoding.ids)

        ids: list[int] = []
        for id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id not in forbidden:
                ids.append(id)
            elif end - begin > 1:
                for character in text[begin:end]:
                    ids += self.encode_as_text(character)
            elif self.unknown is not None:
                ids.append(self.unknown)

        return ids

    @panics_as_errors
    def unknown_in(self, text: str) -> list[str]:
        """Return the parts of a text that are not in the vocabulary."""
        if self.unknown is None:
            return []

        encoding = self.inner.encode(text, add_special_tokens=False)
        parts = []
        for id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id == self.unknown:
                parts.append(text[begin:end])

        return parts

    # Ids to text

    @panics_as_errors
    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Return the text of token ids.

        Args:
            ids: Token ids. Special tokens are left out, except the unknown token, which stands for
                text.

        Returns:
            The text.

        Raises:
            TypeError: If the ids are not integers.
            ValueError: If an id is negative.
        """
        try:
            numbers = list(map(index, ids))
        except TypeError:
            raise TypeError(
                f"ids: expected one list of token ids (whole numbers), not {ids!r:.80}"
            ) from None

        if numbers and min(numbers) < 0:
            raise ValueError(f"ids: expected 0 or more, found {min(numbers)}")

        shown = [id for id in numbers if id not in self.without_text]
        return self.inner.decode(shown, skip_special_tokens=False)

    @cached_property
    def decoders(self) -> frozenset[str]:
        """The library's names of the decoders, of which a sequence has several."""
        if self.inner.decoder is None:
            return frozenset()

        state = self.inner.decoder.__getstate__().decode()
        return frozenset(re.findall(r'"type":\s*"(\w+)"', state))

    # Special and added tokens

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(special_ids(self.inner).values())

    @cached_property
    def without_text(self) -> frozenset[int]:
        """The special tokens that a decoded text leaves out: all but the unknown token."""
        return self.special - {self.unknown}

    @cached_property
    @panics_as_errors
    def adds_start_token(self) -> bool:
        """Whether a text starts with the start token, by the config or else by the rules."""
        if self.start is None:
            return False
        if self.add_bos_token is not None:
            return self.add_bos_token is True

        return self.inner.encode("", add_special_tokens=True).ids[:1] == [self.start]

    def with_special_tokens(
        self, names: Sequence[str], *, chat_template: str | None = None
    ) -> Tokenizer:
        """Return a copy with more special tokens, whose ids follow all others.

        Args:
            names: The new special tokens, such as "<|im_start|>".
            chat_template: A new chat template; None keeps the old one.

        Returns:
            The new tokenizer.

        Raises:
            TypeError: If `names` is one string.
        """
        if isinstance(names, str):
            raise TypeError("names: expected a list of names, not one string")

        inner = tokenizers.Tokenizer.from_str(self.inner.to_str())
        tokens = [AddedToken(name, special=True, normalized=False) for name in names]
        inner.add_special_tokens(tokens)

        config = self.config
        if chat_template is not None:
            config["chat_template"] = chat_template

        return Tokenizer(inner, config)

    @cached_property
    def added_tokens(self) -> dict[str, tuple[int, AddedToken]]:
        """Special and other added tokens by spelling; runs of spaces only if they are special."""
        tokens = {}
        for id, token in self.inner.get_added_tokens_decoder().items():
            if token.special or token.content.strip(" \t\n\r▁"):
                tokens[token.content] = (id, token)

        return tokens

    @cached_property
    @panics_as_errors
    def inner_without_added(self) -> tokenizers.Tokenizer:
        """The same rules with every added token special, so that the library never matches one."""
        if all(token.special for _, token in self.added_tokens.values()):
            return self.inner

        values = json.loads(self.inner.to_str())
        for added in values["added_tokens"]:
            added["special"] = added["content"] in self.added_tokens

        inner = tokenizers.Tokenizer.from_str(json.dumps(values))
        inner.encode_special_tokens = True

        return inner

    # The vocabulary

    @cached_property
    def vocabulary(self) -> int:
        """Number of ids (V), with those that a file left unused."""
        return max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def token(self, id: int) -> str:
        """Return an id's token as the vocabulary spells it, such as ##ing or Ġthe."""
        token = None
        if 0 <= id < self.vocabulary:
            token = self.inner.id_to_token(id)

        if token is None:
            raise ValueError(f"id: expected one of the vocabulary's {self.vocabulary}, not {id}")

        return token

    def id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, or None."""
        return self.inner.token_to_id(token)

    @cached_property
    def starts_word(self) -> Bool[np.ndarray, "V"]:
        """Which tokens start a word, for whole-word masking; special tokens count as words.

        The first token of a text always starts one, whatever its entry here.
        """
        starts = np.ones(self.vocabulary, dtype=bool)
        for token, id in self.inner.get_vocab(with_added_tokens=True).items():
            starts[id] = id in self.special or not self.continues_word(token)

        return starts

    @panics_as_errors
    def continues_word(self, token: str) -> bool:
        """Return whether a token continues the word before it, by its prefix or by its text."""
        prefix = getattr(self.inner.model, "continuing_subword_prefix", None)
        if prefix:  # such as ##
            return token.startswith(prefix)
        if self.inner.decoder is None:
            return False

        after_a_letter = self.inner.decoder.decode(["x", token])[1:2]
        return is_word_character(after_a_letter)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner, self.config)

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.inner.model).__name__}, vocabulary={self.vocabulary})"


def is_word_character(character: str) -> bool:
    """Return whether a character is inside words: a letter, digit, accent, or part of a letter.

    The replacement character � stands for a part of a letter.
    """
    if character.isalnum() or character in ("_", "\ufffd"):
        return True

    return unicodedata.category(character or " ")[0] == "M"
