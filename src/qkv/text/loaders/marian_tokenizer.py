"""Marian's tokenizer: source.spm and target.spm are sentencepiece's files, vocab.json has the ids
of both languages.

A source text is cut into the pieces of source.spm alone, while ids of both languages become text
again. So a piece that no source text may become, of the target or special, is spelled with a space
before it: once a text's spaces are written as ▁, as sentencepiece does, there is none left in it.
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

SOURCE, TARGET, VOCABULARY, TARGET_VOCABULARY = (
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
)
SPACE = "▁"
UNIGRAM = 1  # the kind of model
NORMAL, USER_DEFINED = 1, 4  # kinds of pieces
SPECIAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class SentencePieces(NamedTuple):
    """What a .spm file says: each piece's score, and how a text is written before it is cut."""

    scores: dict[str, float]
    characters: bytes
    """The map of characters, in sentencepiece's own compact form."""
    space_before: bool
    single_spaces: bool


def read_marian(
    folder: Path, vocabulary: dict[str, int], config: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer with the ids of vocab.json, and which of its tokens ends, pads and starts:
    padding does both.
    """
    if config.get("separate_vocabs") or (folder / TARGET_VOCABULARY).is_file():
        raise UnknownKind(
            f"{folder / TARGET_VOCABULARY}: one vocabulary for both languages is expected here, not two"
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

    pieces = read_pieces(folder / SOURCE)
    # Sentencepiece never finds these in a text, but takes them at their word: they name the
    # language to translate into.
    named = [token for token in vocabulary if token.startswith(">>") and token.endswith("<<")]
    # A character that source.spm does not know is looked up in vocab.json all the same: the target
    # may have it. (Of several in a row Marian makes one unknown word; here each keeps its own id.)
    least = min(pieces.scores.values())
    scores = (
        {token: least for token in vocabulary if len(token) == 1}
        | dict.fromkeys(named, 0.0)
        | pieces.scores
    )
    scored = [
        (token if token in scores else hidden(token), scores.get(token, 0.0))
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
    inner = tokenizers.Tokenizer(models.Unigram(scored, unk_id=vocabulary[SPECIAL["unk_token"]]))
    inner.normalizer = writer(pieces)
    inner.decoder = decoders.Sequence(
        [decoders.Replace(" ", ""), decoders.Metaspace(replacement=SPACE)]
    )
    inner.add_special_tokens([hidden(token) for token in SPECIAL.values()])
    inner.add_tokens([AddedToken(token, normalized=False) for token in named])
    names = {field: hidden(token) for field, token in SPECIAL.items()}

    return inner, {**names, "bos_token": names["pad_token"]}


def hidden(token: str) -> str:
    return " " + token


def writer(pieces: SentencePieces) -> normalizers.Normalizer:
    """A text as sentencepiece writes it: characters mapped, spaces tidied and then visible."""
    steps: list[normalizers.Normalizer] = []
    if pieces.characters:
        steps.append(normalizers.Precompiled(pieces.characters))

    if pieces.single_spaces:
        steps.append(normalizers.Replace(Regex("^ +| +$"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))

    if pieces.space_before:
        steps.append(normalizers.Prepend(SPACE))

    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


# Sentencepiece's files are protocol buffers: fields with a number, each a whole number, four bytes,
# or a run of bytes.


def read_pieces(file: Path) -> SentencePieces:
    try:
        model = list(fields(storage.read_file(file, LARGEST)))
        kind = dict(fields(dict(model).get(2, b""))).get(3, UNIGRAM)
        rules = dict(fields(dict(model).get(3, b"")))
        scores = {}
        for number, value in model:
            if number != 1:
                continue

            piece = dict(fields(value))
            text, type = piece[1].decode("utf-8"), piece.get(3, NORMAL)
            if type == NORMAL:
                scores[text] = decimal(piece[2]) if 2 in piece else 0.0
            elif type == USER_DEFINED:
                scores[text] = 0.0  # no other way to write it is likelier
    except (
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        UnicodeDecodeError,
        struct.error,
    ) as error:
        raise ValueError(
            f"{file}: not a whole file of sentencepiece ({error}); copy or download it again"
        ) from error

    if not scores:
        raise ValueError(f"{file}: there are no pieces in it; expected a file of sentencepiece")
    if kind != UNIGRAM:
        raise UnknownKind(
            f"{file}: expected a unigram model of sentencepiece, not one of kind {kind}"
        )

    return SentencePieces(
        scores, bytes(rules.get(2, b"")), bool(rules.get(3, 1)), bool(rules.get(4, 1))
    )


def decimal(number: bytes) -> float:
    """A float of four bytes with as many digits as it has, so that tokenizer.json gives the same
    number back.
    """
    (value,) = struct.unpack("<f", number)
    return float(f"{value:.9g}")


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The number and the value of each field."""
    place = 0
    while place < len(message):
        key, place = whole_number(message, place)
        number, form = key >> 3, key & 7
        if form == 0:
            value, place = whole_number(message, place)
            yield number, value
            continue

        if form == 2:
            size, place = whole_number(message, place)
        elif form in (1, 5):
            size = 8 if form == 1 else 4
        else:
            raise IndexError(f"a field of form {form}")

        if place + size > len(message):
            raise IndexError("it is cut off")

        yield number, message[place : place + size]
        place += size


def whole_number(message: bytes, place: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the highest bit says that another byte follows. And the
    place after it.
    """
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
