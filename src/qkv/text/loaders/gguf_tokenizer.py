"""The tokenizer inside a GGUF file: byte-pair encoding of GPT-2's or SentencePiece's kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from qkv.text.loaders.gguf_file import GGUFFile
from qkv.text.special_tokens import UnknownKind

# Types of tokens; a control token stands for no text.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4

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
    """Return the tokenizer of a GGUF file, and the contents of a tokenizer_config.json for it."""
    metadata = GGUFFile(file).fields("tokenizer.")
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        what = f"{kind!r} is of another"
        if kind is None:
            what = "there is none"

        raise UnknownKind(
            f"{file}: tokenizer.ggml.model: expected byte pairs, which llama.cpp calls "
            f"gpt2 or llama; {what}"
        )

    tokens = string_list(metadata, "tokenizer.ggml.tokens", file)
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"{file}: tokenizer.ggml.tokens: two tokens are the same")

    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ValueError(
            f"{file}: tokenizer.ggml.token_type: expected {len(tokens)}, one of each token"
        )

    if kind == "gpt2":
        inner = byte_level(metadata, tokens, file)
    else:
        inner = sentence_pieces(metadata, tokens, types, file)

    for added_type in (CONTROL, UNKNOWN, USER_DEFINED):
        special = added_type != USER_DEFINED
        inner.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token in tokens_of_type(added_type, tokens, types)
            ]
        )

    return inner, config_of(metadata, tokens, file)


def tokens_of_type(wanted: int, tokens: list[str], types: list[int]) -> list[str]:
    return [token for token, type in zip(tokens, types, strict=True) if type == wanted]


def byte_level(metadata: dict[str, Any], tokens: list[str], file: Path) -> tokenizers.Tokenizer:
    """Return GPT-2's byte-pair encoding: bytes of words, merged in the order that the file has."""
    vocabulary = {token: id for id, token in enumerate(tokens)}
    splitting = metadata.get("tokenizer.ggml.pre")
    expected = f"{file}: tokenizer.ggml.merges: expected two tokens"
    lines = string_list(metadata, "tokenizer.ggml.merges", file)
    merges = [merge_pair(line, vocabulary, expected) for line in lines]
    ignore_merges = splitting in AS_LLAMA3  # a word that is a token becomes that token at once

    inner = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)
    )
    inner.pre_tokenizer = splitter(splitting, file)
    inner.decoder = decoders.ByteLevel()

    return inner


def sentence_pieces(
    metadata: dict[str, Any], tokens: list[str], types: list[int], file: Path
) -> tokenizers.Tokenizer:
    """Return SentencePiece's byte-pair encoding, as in Llama 1 and 2.

    Of all pairs, the one whose piece has the highest score is merged first. What is not
    a piece after all merges is encoded byte by byte (byte fallback).
    """
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(
            f"{file}: tokenizer.ggml.scores: expected {len(tokens)}, one of each token"
        )

    unknown = None
    if unknown_tokens := tokens_of_type(UNKNOWN, tokens, types):
        unknown = unknown_tokens[0]

    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = merges_by_score(tokens, types, scores)
    inner = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )

    # Spaces are visible marks inside, and most files prepend one to a text.
    inner.normalizer = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        inner.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), inner.normalizer])
        steps.append(decoders.Strip(" ", 1, 0))

    inner.decoder = decoders.Sequence(steps)

    return inner


def merges_by_score(
    tokens: list[str], types: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, those of the highest score first."""
    pieces = {
        *tokens_of_type(NORMAL, tokens, types),
        *tokens_of_type(USER_DEFINED, tokens, types),
    }
    merges = []
    for id in sorted(range(len(tokens)), key=lambda id: -scores[id]):
        token = tokens[id]
        if token not in pieces:
            continue

        for cut in range(1, len(token)):
            if token[:cut] in pieces and token[cut:] in pieces:
                merges.append((token[:cut], token[cut:]))

    return merges


def splitter(kind: Any, file: Path) -> PreTokenizer:
    """Return the pre-tokenizer, which splits text into words before pairs are merged."""
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in ONE_DIGIT_EACH:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    if kind in AS_GPT2:
        return as_gpt2

    if kind in AS_LLAMA3:
        split_words = pre_tokenizers.Split(Regex(LLAMA3_WORD), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split_words, bytes_only])

    what = f"not {kind!r}"
    if kind is None:
        what = "there is none"

    known = ", ".join((*ONE_DIGIT_EACH, *AS_GPT2, *AS_LLAMA3))
    raise UnknownKind(
        f"{file}: tokenizer.ggml.pre: expected a way to split text that is known here "
        f"({known}); {what}"
    )


def merge_pair(line: str, vocabulary: dict[str, int], expected: str) -> tuple[str, str]:
    """Return the two tokens of a line that are merged into a third."""
    left, _, right = line.partition(" ")
    if right and {left, right, left + right} <= vocabulary.keys():
        return left, right

    raise ValueError(f"{expected} to merge, not {line!r}")


def config_of(metadata: dict[str, Any], tokens: list[str], file: Path) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json: special tokens and the chat template."""
    config: dict[str, Any] = {}
    for field, name in FIELDS.items():
        id = metadata.get(field)
        if id is None:
            continue
        if not isinstance(id, int) or not 0 <= id < len(tokens):
            raise ValueError(
                f"{file}: {field}: expected an id from 0 to {len(tokens) - 1}, not {id!r}"
            )

        config[name] = tokens[id]

    # llama.cpp's default for SentencePiece and Llama 3; otherwise the rules decide.
    adds_start = metadata.get("tokenizer.ggml.add_bos_token")
    is_llama = metadata["tokenizer.ggml.model"] == "llama"
    if "tokenizer.ggml.add_bos_token" not in metadata:
        adds_start = is_llama or metadata.get("tokenizer.ggml.pre") in AS_LLAMA3 or None
    if isinstance(adds_start, bool):
        config["add_bos_token"] = adds_start

    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template

    return config


def string_list(metadata: dict[str, Any], field: str, file: Path) -> list[str]:
    value = metadata.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError(f"{file}: {field}: expected a list of strings")

    return value
