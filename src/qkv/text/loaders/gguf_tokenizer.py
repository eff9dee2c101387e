"""The tokenizer inside a GGUF file: byte pairs, GPT-2's or sentencepiece's, as the file's metadata
lists them.

Only the metadata is read, never the weights, and of it only what begins with `tokenizer.`.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from qkv import storage
from qkv.text.special_tokens import UnknownKind

MAGIC = b"GGUF"
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = (
    1,
    2,
    3,
    4,
)  # types of tokens; control is what stands for no text
SPACE = "▁"

ONE_DIGIT_EACH = ("smollm", "starcoder", "refact", "codeshell")
AS_GPT2 = ("gpt-2", "gpt2", "olmo")
AS_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3")
LLAMA3_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

FIELDS = {
    "tokenizer.ggml.bos_token_id": "bos_token",
    "tokenizer.ggml.eos_token_id": "eos_token",
    "tokenizer.ggml.padding_token_id": "pad_token",
}


def read_gguf_tokenizer(file: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a GGUF file, and what a tokenizer_config.json would say of it."""
    found = read_metadata(file)
    kind = found.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        what = "there is none" if kind is None else f"{kind!r} is of another"
        raise UnknownKind(
            f"{file}: tokenizer.ggml.model: expected byte pairs, gpt2 or llama in the words of llama.cpp; {what}"
        )

    tokens = strings(found, "tokenizer.ggml.tokens", file)
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"{file}: tokenizer.ggml.tokens: two tokens are the same")

    types = found.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(
            f"{file}: tokenizer.ggml.token_type: expected {len(tokens)}, one of each token"
        )

    inner = (
        byte_level(found, tokens, file)
        if kind == "gpt2"
        else sentence_pieces(found, tokens, types, file)
    )

    for wanted in (CONTROL, UNKNOWN, USER_DEFINED):
        named = [token for token, type in zip(tokens, types, strict=True) if type == wanted]
        inner.add_tokens(
            [AddedToken(token, special=wanted != USER_DEFINED, normalized=False) for token in named]
        )

    return inner, config_of(found, tokens, file)


def byte_level(found: dict[str, Any], tokens: list[str], file: Path) -> tokenizers.Tokenizer:
    """GPT-2's byte pairs: a text's bytes, split into words, merged in the order that the file
    lists.
    """
    vocabulary = {token: id for id, token in enumerate(tokens)}
    split = found.get("tokenizer.ggml.pre")
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=pairs(strings(found, "tokenizer.ggml.merges", file), vocabulary, file),
            ignore_merges=split in AS_LLAMA3,  # a word that is a token is that token
        )
    )

    inner.pre_tokenizer = splitter(split, file)
    inner.decoder = decoders.ByteLevel()

    return inner


def sentence_pieces(
    found: dict[str, Any], tokens: list[str], types: list[int], file: Path
) -> tokenizers.Tokenizer:
    """Sentencepiece's byte pairs, as Llama 1 and 2 have them: of all pairs, the one that makes the
    piece of the highest score is merged first. What is no piece in the end is said byte by byte."""
    scores = found.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(
            f"{file}: tokenizer.ggml.scores: expected {len(tokens)}, one of each token"
        )

    pieces = {
        token for token, type in zip(tokens, types, strict=True) if type in (NORMAL, USER_DEFINED)
    }
    best_first = sorted(range(len(tokens)), key=lambda id: -scores[id])
    merges = [
        (token[:cut], token[cut:])
        for token in (tokens[id] for id in best_first)
        if token in pieces
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]

    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = next(
        (token for token, type in zip(tokens, types, strict=True) if type == UNKNOWN), None
    )
    inner = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = found.get("tokenizer.ggml.add_space_prefix", True)
    visible = normalizers.Replace(" ", SPACE)
    inner.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), visible]) if prefix else visible
    )
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    inner.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )

    return inner


def splitter(kind: Any, file: Path) -> PreTokenizer:
    """How text is split into words before pairs are merged; each library of tokenizers has its own
    way.
    """
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in ONE_DIGIT_EACH:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    if kind in AS_GPT2:
        return as_gpt2

    if kind in AS_LLAMA3:
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3_WORD), behavior="isolated"), bytes_only]
        )

    known = ", ".join((*ONE_DIGIT_EACH, *AS_GPT2, *AS_LLAMA3))
    what = "there is none" if kind is None else f"not {kind!r}"
    raise UnknownKind(
        f"{file}: tokenizer.ggml.pre: expected a way to split text that is known here ({known}); {what}"
    )


def pairs(merges: list[str], vocabulary: dict[str, int], file: Path) -> list[tuple[str, str]]:
    made = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ValueError(
                f"{file}: tokenizer.ggml.merges: expected two tokens to merge, not {merge!r}"
            )

        made.append((left, right))

    return made


def config_of(found: dict[str, Any], tokens: list[str], file: Path) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for field, name in FIELDS.items():
        id = found.get(field)
        if id is None:
            continue
        if not isinstance(id, int) or not 0 <= id < len(tokens):
            raise ValueError(
                f"{file}: {field}: expected an id from 0 to {len(tokens) - 1}, not {id!r}"
            )

        config[name] = tokens[id]

    usual = (
        found["tokenizer.ggml.model"] == "llama" or found.get("tokenizer.ggml.pre") in AS_LLAMA3
    )  # as in llama.cpp
    starts = found.get("tokenizer.ggml.add_bos_token", usual or None)
    if isinstance(starts, bool):
        config["add_bos_token"] = starts

    if isinstance(found.get("tokenizer.chat_template"), str):
        config["chat_template"] = found["tokenizer.chat_template"]

    return config


def strings(found: dict[str, Any], field: str, file: Path) -> list[str]:
    value = found.get(field)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{file}: {field}: expected a list of strings")

    return value


# The format


def read_metadata(file: Path) -> dict[str, Any]:
    """Every field that begins with `tokenizer.`; the others are passed over."""
    storage.check_regular(file)
    with file.open("rb") as opened:
        if opened.read(4) != MAGIC:
            raise ValueError(f"{file}: not a GGUF file; copy or download it again")

        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = GGUFMetadataReader(data)
            try:
                return reader.fields()
            except (
                struct.error,
                UnicodeDecodeError,
                KeyError,
                MemoryError,
                OverflowError,
            ) as error:
                raise ValueError(
                    f"{file}: not a whole GGUF file ({error}); copy or download it again"
                ) from error


class GGUFMetadataReader:
    """Values one after another, from the place where the last one ended."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place = data, len(MAGIC)

    def fields(self) -> dict[str, Any]:
        self.number("I")  # the version
        self.number("Q")  # how many tensors
        found = {}

        for _ in range(self.number("Q")):
            name = self.string()
            value = self.value(self.number("I"), wanted=name.startswith("tokenizer."))
            if name.startswith("tokenizer."):
                found[name] = value

        return found

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.data, self.place)
        self.place += struct.calcsize("<" + form)
        return value

    def string(self) -> str:
        size = self.number("Q")
        if self.place + size > len(self.data):
            raise struct.error("it is cut off")

        self.place += size
        return self.data[self.place - size : self.place].decode("utf-8")

    def value(self, kind: int, wanted: bool) -> Any:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(SCALARS[kind])

        kind, count = self.number("I"), self.number("Q")
        if kind in SCALARS and not wanted:
            self.place += count * struct.calcsize("<" + SCALARS[kind])
            return None

        if kind in SCALARS:
            form = f"<{count}{SCALARS[kind]}"
            values = struct.unpack_from(form, self.data, self.place)
            self.place += struct.calcsize(form)
            return list(values)

        return [self.value(kind, wanted) for _ in range(count)]
