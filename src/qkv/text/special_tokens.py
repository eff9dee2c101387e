"""Tokens that stand for no text: which of a tokenizer's tokens pads, which ends, and so on."""

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
"""What others call them, the most telling name first."""

FIELDS: dict[Role, tuple[str, ...]] = {
    "padding": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "end": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}
"""Where tokenizer_config.json names them. It is not asked for unknown: it names one even where
every text is known.
"""


LARGEST = 512 << 20
"""Bytes of a tokenizer's file; those of the largest vocabularies have some 40 MiB."""


class UnknownKind(ValueError):
    """A tokenizer that is there, but of a kind that is not read here. The model beside it can be
    used all the same.
    """


def is_special(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a token of this name stands for no text: a known name, or one that
    tokenizer_config.json lists.
    """
    listed = config.get("additional_special_tokens")
    named = [config.get(field) for fields in FIELDS.values() for field in fields]
    named += listed if isinstance(listed, list) else []
    known = (name for names in KNOWN.values() for name in names)

    return name in (*OURS.values(), *known, *map(token_text, named))


def special_ids(inner: tokenizers.Tokenizer) -> dict[str, int]:
    """The special tokens by name; Marian's are spelled with a space before it."""
    return {
        added.content.strip(): id
        for id, added in inner.get_added_tokens_decoder().items()
        if added.special
    }


def find_roles(inner: tokenizers.Tokenizer, config: Mapping[str, Any]) -> dict[Role, int | None]:
    """The id of each role: as tokenizer_config.json says, else by the names that are known."""
    special = special_ids(inner)
    return {role: find_role(role, special, config) for role in ROLES}


def find_role(role: Role, special: Mapping[str, int], config: Mapping[str, Any]) -> int | None:
    named = [token_text(config.get(field)) for field in FIELDS.get(role, ())]
    names = [name.strip() for name in named if isinstance(name, str)]
    return next(
        (special[name] for name in (*names, OURS[role], *KNOWN[role]) if name in special), None
    )


def token_text(value: Any) -> Any:
    """Their configs write a token as a string, or as fields of which one is its content."""
    return value.get("content") if isinstance(value, dict) else value


def find_chat_template(config: Mapping[str, Any]) -> str | None:
    """The template of chats in tokenizer_config.json; of several, the one that is called default."""
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}

    found = found.get("default") if isinstance(found, dict) else found

    return found if isinstance(found, str) else None
