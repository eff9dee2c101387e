"""Special tokens: which of a tokenizer's tokens is padding, start, end, mask or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import tokenizers

Role = Literal["padding", "unknown", "start", "end", "mask"]
ROLES: tuple[Role, ...] = get_args(Role)

OURS: dict[Role, str] = {
    "padding": "[pad]",
    "unknown": "[unknown]",
    "start": "[start]",
    "end": "[end]",
    "mask": "[mask]",
}
"""In the order of their ids, which are 0 to 4 in every tokenizer that is trained here."""

KNOWN: dict[Role, tuple[str, ...]] = {
    "padding": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unknown": ("[UNK]", "<unk>", "<|unk|>"),
    "start": (
        "[CLS]",
        "<s>",
        "<bos>",
        "<|begin_of_text|>",
        "<|startoftext|>",
        "<|endoftext|>",
        "<|im_start|>",
    ),
    "end": (
        "[SEP]",
        "</s>",
        "<eos>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
    ),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
}
"""Names in other vocabularies. If a vocabulary has several, the first is the most specific."""

FIELDS: dict[Role, tuple[str, ...]] = {
    "padding": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}
"""Fields of tokenizer_config.json that name them. Not unk_token: many files name one although the
tokenizer never produces it."""

LARGEST = 512 << 20
"""Largest tokenizer file that is read, in bytes; those of large vocabularies have some 40 MiB."""


class UnknownKind(ValueError):
    """A tokenizer whose kind is not supported; the model beside it can still be used."""


def is_special(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a token stands for no text: by a known name, or by tokenizer_config.json."""
    if name in OURS.values():
        return True
    if any(name in names for names in KNOWN.values()):
        return True

    listed: list[Any] = []
    for fields in FIELDS.values():
        listed += list(map(config.get, fields))

    additional = config.get("additional_special_tokens")
    if isinstance(additional, list):
        listed += additional

    return name in map(token_text, listed)


def special_ids(inner: tokenizers.Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens by name, without the space before Marian's."""
    ids = {}
    for id, added in inner.get_added_tokens_decoder().items():
        if added.special:
            ids[added.content.strip()] = id

    return ids


def find_special_tokens(
    inner: tokenizers.Tokenizer, config: Mapping[str, Any]
) -> dict[Role, int | None]:
    """Return the id of each role, from tokenizer_config.json or else by the known names."""
    ids = special_ids(inner)
    return {role: find_special_token(role, ids, config) for role in ROLES}


def find_special_token(role: Role, ids: Mapping[str, int], config: Mapping[str, Any]) -> int | None:
    names = []
    for field in FIELDS.get(role, ()):
        name = token_text(config.get(field))
        if isinstance(name, str):
            names.append(name.strip())

    for name in (*names, OURS[role], *KNOWN[role]):
        if name in ids:
            return ids[name]

    return None


def token_text(value: Any) -> Any:
    """Return a token of a config: a string, or the content of an object with options."""
    if isinstance(value, dict):
        return value.get("content")

    return value


def find_chat_template(config: Mapping[str, Any]) -> str | None:
    """Return the chat template of tokenizer_config.json, the default one if there are several."""
    template = config.get("chat_template")
    if isinstance(template, list):  # objects with a name and a template
        by_name = {}
        for entry in template:
            if isinstance(entry, dict):
                by_name[entry.get("name")] = entry.get("template")

        template = by_name

    if isinstance(template, dict):
        template = template.get("default")

    if isinstance(template, str):
        return template

    return None
