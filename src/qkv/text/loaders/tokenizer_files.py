"""Read tokenizers from files: tokenizer.json, GPT-2's vocab.json and merges.txt, BERT's vocab.txt.

GGUF files and Marian's tokenizers have modules of their own beside this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from qkv import storage
from qkv.text.loaders.gguf_tokenizer import merge_pair, read_gguf_tokenizer
from qkv.text.loaders.marian_tokenizer import SOURCE as MARIAN_SOURCE
from qkv.text.loaders.marian_tokenizer import read_marian
from qkv.text.rust_panics import panics_as_errors
from qkv.text.special_tokens import LARGEST, is_special, token_text

WHOLE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
CHAT = "chat_template.jinja"
GPT2_VOCABULARY = "vocab.json"
GPT2_MERGES = "merges.txt"
BERT_VOCABULARY = "vocab.txt"
ADDED = "added_tokens.json"
GPT2_SPECIAL = "<|endoftext|>"
BERT_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def read_files(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the tokenizer of a file or folder, and the contents of its tokenizer_config.json."""
    file = find_file(path)
    try:
        if file.suffix.lower() == ".gguf":
            return read_gguf_tokenizer(file)

        config = read_config(file.parent)
        if file.name == GPT2_VOCABULARY and (file.parent / MARIAN_SOURCE).is_file():
            return read_marian(file.parent, read_ids(file), config)
        if file.name == GPT2_VOCABULARY:
            return read_gpt2(file, config), config
        if file.suffix == ".txt":
            return read_bert(file, config), config

        return read_whole(file), config
    except OSError as error:
        raise ValueError(f"{error.filename or file}: cannot be read ({error.strerror})") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with the chat template of a separate file if there is one."""
    config: dict[str, Any] = {}
    if (folder / CONFIG).exists():
        config = read_json(folder / CONFIG)
    if (folder / CHAT).exists():
        config["chat_template"] = read_text(folder / CHAT)

    return config


def find_file(path: Path) -> Path:
    """Return the main file of a tokenizer, given by itself, a file beside it or its folder."""
    if path.is_dir():
        for name in (WHOLE, GPT2_VOCABULARY, BERT_VOCABULARY):
            if (path / name).exists():
                return path / name

        raise ValueError(
            f"{path}: no tokenizer in this folder; looked for {WHOLE}, {GPT2_VOCABULARY} "
            f"with {GPT2_MERGES} or {MARIAN_SOURCE}, and {BERT_VOCABULARY}"
        )

    if not path.exists():
        raise ValueError(
            f"{path}: there is no such file or folder; expected {WHOLE}, or a folder with it, "
            f"with {GPT2_VOCABULARY} and {GPT2_MERGES} or {MARIAN_SOURCE}, "
            f"or with {BERT_VOCABULARY} (nothing is downloaded)"
        )

    if path.name in (GPT2_MERGES, MARIAN_SOURCE):
        return path.parent / GPT2_VOCABULARY

    return path


def read_whole(file: Path) -> tokenizers.Tokenizer:
    text = read_text(file)
    try:
        inner = panics_as_errors(tokenizers.Tokenizer.from_str)(text)
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{file}: not a {WHOLE} of the library `tokenizers` ({error})") from error

    inner.no_truncation()  # the data code limits lengths and pads, not the tokenizer
    inner.no_padding()

    return inner


def read_gpt2(file: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    vocabulary = read_ids(file)
    merges = read_merges(file.parent / GPT2_MERGES, vocabulary)
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    prefix = flag(config, "add_prefix_space", False, file)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(prefix))
    inner.decoder = decoders.ByteLevel()
    if GPT2_SPECIAL in vocabulary:
        inner.add_special_tokens([GPT2_SPECIAL])

    add_tokens(inner, file.parent / ADDED, config)

    return inner


def read_merges(file: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return the pairs of merges.txt, one a line, of tokens in the vocabulary."""
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file; {GPT2_VOCABULARY} needs it beside it")

    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue

        expected = f"{file}:{number}: expected two tokens of {GPT2_VOCABULARY}"
        merges.append(merge_pair(line, vocabulary, expected))

    return merges


def read_bert(file: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    lines = read_text(file).removesuffix("\n").split("\n")
    vocabulary = {line.removesuffix("\r"): id for id, line in enumerate(lines)}
    names = {field: token_of(config, field, usual) for field, usual in BERT_SPECIAL.items()}
    unknown = names["unk_token"]
    if unknown not in vocabulary:
        raise ValueError(
            f"{file}: {unknown} is not in it; expected BERT's vocabulary, one token a line"
        )

    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    inner.normalizer = normalizers.BertNormalizer(
        lowercase=bool(flag(config, "do_lower_case", True, file)),
        handle_chinese_chars=bool(flag(config, "tokenize_chinese_chars", True, file)),
        strip_accents=flag(config, "strip_accents", None, file),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens([name for name in names.values() if name in vocabulary])
    add_tokens(inner, file.parent / ADDED, config)

    return inner


def add_tokens(inner: tokenizers.Tokenizer, file: Path, config: dict[str, Any]) -> None:
    """Add the tokens of added_tokens.json, which must have the next free ids."""
    if not file.is_file():
        return

    for token, id in sorted(read_ids(file).items(), key=lambda item: item[1]):
        inner.add_tokens([AddedToken(token, special=is_special(token, config), normalized=False)])
        if inner.token_to_id(token) != id:
            raise ValueError(
                f"{file}: {token!r} has id {id}; "
                f"expected {inner.token_to_id(token)}, the next free one"
            )


def read_ids(file: Path) -> dict[str, int]:
    """Read a JSON object from tokens to ids."""
    values = read_json(file)
    for token, id in values.items():
        if not isinstance(id, int) or isinstance(id, bool) or id < 0:
            raise ValueError(f"{file}: {token!r}: expected an id of 0 or more, not {id!r}")

    if len(set(values.values())) < len(values):
        raise ValueError(f"{file}: two tokens have the same id")

    return values


def read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(file))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: not valid JSON ({error}); the file may be cut off") from error

    if not isinstance(values, dict):
        raise ValueError(f"{file}: expected fields in braces, not a {type(values).__name__}")

    return values


def read_text(file: Path) -> str:
    try:
        return storage.read_file(file, LARGEST).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}: not UTF-8 text ({error}); it is not the file of a tokenizer"
        ) from error


def token_of(config: dict[str, Any], field: str, usual: str) -> str:
    value = token_text(config.get(field))
    if isinstance(value, str):
        return value

    return usual


def flag(config: dict[str, Any], field: str, usual: bool | None, file: Path) -> bool | None:
    value = config.get(field)
    if value is None:
        value = usual

    if not isinstance(value, bool | None):
        raise ValueError(f"{file.parent / CONFIG}: {field}: expected true or false, not {value!r}")

    return value
