"""Decoding files: lines for rows, and parts of about a megabyte for long documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from qkv.data.sources.files import File

PIECE = 1 << 19
"""Documents of more characters are cut into parts."""
LONGEST_PIECE = 1 << 22
LONGEST_LINE = 1 << 28
NEAR = 1 << 16
"""Characters from the end within which the best position to cut is searched."""


class DocumentPart(NamedTuple):
    """A part of a document, or all of it."""

    text: str
    ends: bool
    """True for the last part of the document."""


def chunks(file: File, long_lines: Literal["cut", "refuse"]) -> Iterator[tuple[int, str]]:
    """Whole lines, about a megabyte at a time, with the number of the first line.

    All line ends become \\n. A line that is too long is cut or refused.
    """
    longest = LONGEST_PIECE if long_lines == "cut" else LONGEST_LINE
    number = 1
    pending: list[bytes] = []  # the start of a line whose end has not been read yet

    for block in without_mark(file):
        # Whole lines, up to the last newline of the block
        end = block.rfind(b"\n") + 1
        if end:
            data = b"".join((*pending, block[:end]))
            pending = [block[end:]]
            yield number, decode(file, number, data)
            number += data.count(b"\n")
            continue

        # A line longer than the block
        pending.append(block)
        if sum(map(len, pending)) > longest:
            if long_lines == "refuse":
                raise ValueError(
                    f"{file.at(number)}: a line of more than {longest >> 20} MB; "
                    f"expected one row per line in {file.name}"
                )

            data = b"".join(pending)
            end = last_whole_character(data)
            pending = [data[end:]]
            yield number, decode(file, number, data[:end])

    if data := b"".join(pending):
        yield number, decode(file, number, data)


def without_mark(file: File) -> Iterator[bytes]:
    """The blocks of a file without its byte order mark; raises for UTF-16."""
    blocks = file.blocks()
    first = next(blocks, b"")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(
            f"{file.at(1)}: this is UTF-16; save it as UTF-8, "
            "for example with iconv -f utf-16 -t utf-8"
        )

    yield first.removeprefix(b"\xef\xbb\xbf")
    yield from blocks


def last_whole_character(data: bytes) -> int:
    """The position of the last character, which may be incomplete; \\r\\n counts as one."""
    end = len(data) - 1
    while end > 0 and data[end] & 0xC0 == 0x80 and end > len(data) - 5:
        end -= 1

    return end


def decode(file: File, number: int, data: bytes) -> str:
    """The text of UTF-8 bytes that start at line `number`, with \\n at the end of every line."""
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


def read_lines(file: File) -> Iterator[tuple[int, str]]:
    """Each line with its number; only \\n and \\r\\n end lines, so parallel files stay parallel."""
    for number, chunk in chunks(file, "refuse"):
        yield from enumerate(chunk.removesuffix("\n").split("\n"), number)


def file_pieces(file: File) -> Iterator[DocumentPart]:
    """A file as one document, in parts."""
    return pieces(chunk for _, chunk in chunks(file, "cut"))


def text_pieces(text: str) -> Iterator[DocumentPart]:
    """A text as one document, in parts."""
    if len(text) <= 2 * PIECE:
        return iter([DocumentPart(text, True)])

    return pieces(text[start : start + PIECE] for start in range(0, len(text), PIECE))


def pieces(texts: Iterable[str]) -> Iterator[DocumentPart]:
    """Parts of a document, cut where no tokenizer joins the two sides."""
    pending = ""
    for text in texts:
        pending += text
        if len(pending) >= PIECE and (cut := cut_position(pending)):
            yield DocumentPart(pending[:cut], False)
            pending = pending[cut:]

    yield DocumentPart(pending, True)


def cut_position(text: str) -> int:
    """The position near the end where no tokenizer joins the two sides; 0 if there is none.

    Best is between two lines with a single newline, else before any line that starts with a word.
    A text that is too long is cut between two words, or anywhere.
    """
    near = max(0, len(text) - NEAR)
    line = after_last("\n", text, near, alone=True) or after_last("\n", text, 0, alone=False)
    if line or len(text) < LONGEST_PIECE:
        return line

    word = after_last(" ", text, near, alone=True)

    return word - 1 if word > 1 else len(text) - 1


def after_last(space: str, text: str, start: int, alone: bool) -> int:
    """The position just after the last `space` before a word; 0 if there is none.

    With `alone`, no other space may precede it.
    """
    position = len(text) - 1
    while (position := text.rfind(space, start, position)) >= 0:
        before = text[position - 1 : position]
        after = text[position + 1]
        if not after.isspace() and not (alone and before.isspace()):
            return position + 1

    return 0
