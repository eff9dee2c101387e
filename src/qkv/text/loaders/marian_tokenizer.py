"""Marian's tokenizer: SentencePiece files source.spm and target.spm, and vocab.json with all ids.

A source text is split into pieces of source.spm only, while ids of both languages are decoded. So
tokens that no source text may become (those of the target, and special ones) are spelled with a
space before them: after SentencePiece has replaced spaces by ▁, a text contains none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from qkv import storage
from qkv.text.special_tokens import LARGEST, UnknownKind

SOURCE = "source.spm"
TARGET = "target.spm"
VOCABULARY = "vocab.json"
TARGET_VOCABULARY = "target_vocab.json"
SPACE = "▁"
UNIGRAM = 1
"""The kind of SentencePiece model that Marian has."""
NORMAL = 1
"""The type of a piece that is learned."""
USER_DEFINED = 4
"""The type of a piece that is given; it is always preferred."""
SPECIAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class SentencePieces(NamedTuple):
    """The contents of a .spm file: the score of each piece, and how text is normalised."""

    scores: dict[str, float]
    characters: bytes
    """The character map, in SentencePiece's compact form."""
    space_before: bool
    """Whether a space is prepended to a text."""
    single_spaces: bool
    """Whether runs of spaces become one."""


def read_marian(
    folder: Path, vocabulary: dict[str, int], config: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the tokenizer with the ids of vocab.json, and its special tokens by config field.

    The padding token also starts a target text.
    """
    check_vocabulary(folder, vocabulary, config)
    pieces = read_pieces(folder / SOURCE)

    # Tokens such as >>deu<< name the target language; SentencePiece keeps them whole.
    languages = [token for token in vocabulary if token.startswith(">>") and token.endswith("<<")]
    scores = piece_scores(pieces, vocabulary, languages)
    entries = []
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        if token in scores:
            entries.append((token, scores[token]))
        else:
            entries.append((hidden(token), 0.0))

    inner = tokenizers.Tokenizer(models.Unigram(entries, unk_id=vocabulary[SPECIAL["unk_token"]]))
    inner.normalizer = normalizer_of(pieces)
    inner.decoder = decoders.Sequence(
        [decoders.Replace(" ", ""), decoders.Metaspace(replacement=SPACE)]
    )
    inner.add_special_tokens(list(map(hidden, SPECIAL.values())))
    inner.add_tokens([AddedToken(token, normalized=False) for token in languages])

    names = {field: hidden(token) for field, token in SPECIAL.items()}
    return inner, {**names, "bos_token": names["pad_token"]}


def check_vocabulary(folder: Path, vocabulary: dict[str, int], config: dict[str, Any]) -> None:
    if config.get("separate_vocabs") or (folder / TARGET_VOCABULARY).is_file():
        raise UnknownKind(
            f"{folder / TARGET_VOCABULARY}: one vocabulary for both languages is expected here, "
            "not two"
        )
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError(
            f"{folder / VOCABULARY}: expected the ids 0 to {len(vocabulary) - 1}, each once"
        )

    for token in SPECIAL.values():
        if token not in vocabulary:
            raise ValueError(
                f"{folder / VOCABULARY}: {token} is not in it; expected Marian's vocabulary"
            )


def piece_scores(
    pieces: SentencePieces, vocabulary: dict[str, int], languages: list[str]
) -> dict[str, float]:
    """Return the scores of all tokens that a source text may become.

    A character that source.spm does not know is still looked up in vocab.json, since the target may
    have it. (Marian makes one unknown token of several in a row; here each keeps its id.)
    """
    least = min(pieces.scores.values())
    scores = {token: least for token in vocabulary if len(token) == 1}
    return scores | dict.fromkeys(languages, 0.0) | pieces.scores


def hidden(token: str) -> str:
    """Return a spelling that no source text can contain."""
    return " " + token


def normalizer_of(pieces: SentencePieces) -> normalizers.Normalizer:
    """Return SentencePiece's normalizer: characters mapped, spaces reduced and made visible."""
    steps: list[normalizers.Normalizer] = []
    if pieces.characters:
        steps.append(normalizers.Precompiled(pieces.characters))

    if pieces.single_spaces:
        steps.append(normalizers.Replace(Regex("^ +| +$"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))

    if pieces.space_before:
        steps.append(normalizers.Prepend(SPACE))

    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


# SentencePiece files are protocol buffers: each field has a number, and a value that is a varint,
# four or eight bytes, or a byte string.

DAMAGED = (AttributeError, IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error)
"""What reading a damaged file raises."""


def read_pieces(file: Path) -> SentencePieces:
    try:
        model = list(fields(storage.read_file(file, LARGEST)))
        trainer = dict(fields(dict(model).get(2, b"")))
        rules = dict(fields(dict(model).get(3, b"")))
        scores = scores_in(model)
    except DAMAGED as error:
        raise ValueError(
            f"{file}: not a whole file of sentencepiece ({error}); copy or download it again"
        ) from error

    kind = trainer.get(3, UNIGRAM)
    if not scores:
        raise ValueError(f"{file}: there are no pieces in it; expected a file of sentencepiece")
    if kind != UNIGRAM:
        raise UnknownKind(
            f"{file}: expected a unigram model of sentencepiece, not one of kind {kind}"
        )

    return SentencePieces(
        scores=scores,
        characters=bytes(rules.get(2, b"")),
        space_before=bool(rules.get(3, 1)),
        single_spaces=bool(rules.get(4, 1)),
    )


def scores_in(model: list[tuple[int, Any]]) -> dict[str, float]:
    """Return the score of every piece, field 1 of the model; other kinds of pieces have none."""
    scores = {}
    for number, value in model:
        if number != 1:
            continue

        piece = dict(fields(value))
        text = piece[1].decode("utf-8")
        type = piece.get(3, NORMAL)
        if type == USER_DEFINED or (type == NORMAL and 2 not in piece):
            scores[text] = 0.0  # the highest score
        elif type == NORMAL:
            scores[text] = decimal(piece[2])

    return scores


def decimal(number: bytes) -> float:
    """Return a 4-byte float rounded to its digits, so that tokenizer.json keeps it exactly."""
    (value,) = struct.unpack("<f", number)
    return float(f"{value:.9g}")


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a protocol buffer."""
    offset = 0
    while offset < len(message):
        key, offset = varint(message, offset)
        number = key >> 3
        wire_type = key & 7
        if wire_type == 0:
            value, offset = varint(message, offset)
            yield number, value
            continue

        if wire_type == 2:
            size, offset = varint(message, offset)
        elif wire_type == 1:
            size = 8
        elif wire_type == 5:
            size = 4
        else:
            raise IndexError(f"a field of form {wire_type}")

        if offset + size > len(message):
            raise IndexError("it is cut off")

        yield number, message[offset : offset + size]
        offset += size


def varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return a varint and the offset after it: seven bits a byte, the lowest first."""
    value = 0
    shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        shift += 7
        if byte < 0x80:  # the highest bit is set while more bytes follow
            return value, offset
