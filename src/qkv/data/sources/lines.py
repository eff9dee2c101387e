"""Bytes of a file into characters: whole lines for rows, pieces of about a megabyte for long texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from qkv.data.sources.files import File

PIECE = 1 << 19
"""A text is cut as soon as this many characters are there: with what a block brings, pieces are
near a megabyte.
"""
LONGEST_PIECE = 1 << 22
LONGEST_LINE = 1 << 28

NEAR = 1 << 16
"""How far from the end the best place to cut is looked for."""


class DocumentPart(NamedTuple):
    """A part of a document, or all of it."""

    text: str
    ends: bool
    """It is the document's last piece."""


def chunks(file: File, long_lines: Literal["cut", "refuse"]) -> Iterator[tuple[int, str]]:
    """Whole lines, about a megabyte at a time, with the number of the first one. Their ends are all
    written \\n.
    """
    number, longest = 1, LONGEST_PIECE if long_lines == "cut" else LONGEST_LINE
    begun: list[bytes] = []  # of a line whose end has not come yet
    first = True

    for block in file.blocks():
        if first:
            block, first = without_mark(file, block), False

        end = block.rfind(b"\n") + 1
        if end:
            data = b"".join((*begun, block[:end]))
            begun = [block[end:]]
            yield number, decode(file, number, data)
            number += data.count(b"\n")
            continue

        begun.append(block)
        if sum(map(len, begun)) > longest:
            if long_lines == "refuse":
                raise ValueError(
                    f"{file.at(number)}: a line of more than {longest >> 20} MB; expected one row a line in {file.name}"
                )

            data = b"".join(begun)
            end = last_whole_character(data)
            begun = [data[end:]]
            yield number, decode(file, number, data[:end])

    if data := b"".join(begun):
        yield number, decode(file, number, data)


def without_mark(file: File, block: bytes) -> bytes:
    if block.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(
            f"{file.at(1)}: this is UTF-16; save it as UTF-8, for example with iconv -f utf-16 -t utf-8"
        )

    return block.removeprefix(b"\xef\xbb\xbf")


def last_whole_character(data: bytes) -> int:
    """Where the last character begins; \\r\\n counts as one."""
    end = len(data) - 1
    while end > 0 and data[end] & 0xC0 == 0x80 and end > len(data) - 5:
        end -= 1

    return end


def decode(file: File, number: int, data: bytes) -> str:
    if (zero := data.find(b"\0")) >= 0:
        line = number + data.count(b"\n", 0, zero)
        raise ValueError(f"{file.at(line)}: there is a zero byte; this is not a file of text")

    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")

    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        raise ValueError(
            f"{file.at(line)}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "convert the file, for example with iconv -f latin1 -t utf-8"
        ) from None


def lines(file: File) -> Iterator[tuple[int, str]]:
    """Each line with its number. Only \\n and \\r\\n end a line, so that parallel files stay
    parallel.
    """
    for number, chunk in chunks(file, "refuse"):
        yield from enumerate(chunk.removesuffix("\n").split("\n"), number)


def file_pieces(file: File) -> Iterator[DocumentPart]:
    """A file that is one document."""
    return pieces(chunk for _, chunk in chunks(file, "cut"))


def text_pieces(text: str) -> Iterator[DocumentPart]:
    """A document that is there already."""
    if len(text) <= 2 * PIECE:
        return iter([DocumentPart(text, True)])

    return pieces(text[start : start + PIECE] for start in range(0, len(text), PIECE))


def pieces(parts: Iterable[str]) -> Iterator[DocumentPart]:
    text = ""
    for part in parts:
        text += part
        if len(text) >= PIECE and (cut := place_to_cut(text)):
            yield DocumentPart(text[:cut], False)
            text = text[cut:]

    yield DocumentPart(text, True)


def place_to_cut(text: str) -> int:
    """Near the end, where no tokenizer joins what stands on both sides.

    Best between two lines with just a newline between them, else before any line that begins with a
    word. 0 where there is no such place and the text is not too long yet; at last between two
    words, or anywhere.
    """
    near = max(0, len(text) - NEAR)
    place = after_last("\n", text, near, alone=True) or after_last("\n", text, 0, alone=False)
    if place or len(text) < LONGEST_PIECE:
        return place

    word = after_last(" ", text, near, alone=True)

    return word - 1 if word > 1 else len(text) - 1


def after_last(space: str, text: str, start: int, alone: bool) -> int:
    """Just after the last such space that comes before a word, and, if alone, after one; 0 where
    there is none.
    """
    place = len(text) - 1
    while (place := text.rfind(space, start, place)) >= 0:
        if not text[place + 1].isspace() and not (alone and text[place - 1 : place].isspace()):
            return place + 1

    return 0
