"""GGUF, the one-file format of llama.cpp: fields and tensors, read by the package gguf."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qkv import storage
from qkv.imports import require


class GGUFFile:
    """The contents of a GGUF file; a damaged one raises a ValueError that names it."""

    def __init__(self, path: Path) -> None:
        storage.check_regular(path)
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file; expected a GGUF file")

        reader_class = checked_reader(require("gguf", str(path)))
        try:
            self.reader = reader_class(path)
        except Exception as error:  # a damaged file raises many kinds of error in the library
            raise damaged(path, error) from error

        if self.reader.byte_order != "I":
            raise ValueError(
                f"{path}: written for machines of the other byte order; convert it with llama.cpp"
            )

        self.path = path
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.check_offsets()

    def check_offsets(self) -> None:
        """Raise if tensors do not follow each other: a wrong offset points into another tensor."""
        alignment = int(self.reader.alignment)
        expected = int(self.reader.data_offset)
        for name, tensor in self.tensors.items():
            if tensor.data_offset != expected:
                raise ValueError(
                    f"{self.path}: {name} lies at byte {tensor.data_offset}, expected {expected}"
                )

            expected += -(-tensor.n_bytes // alignment) * alignment

    def fields(self, prefix: str) -> dict[str, Any]:
        """Return the fields whose names start with a prefix: numbers, strings and lists of them."""
        values = {}
        for name, field in self.reader.fields.items():
            if name.startswith(prefix):
                values[name] = self.value_of(field)

        return values

    def value_of(self, field: Any) -> Any:
        part = field.parts[field.data[0]]
        kind = field.types[-1].name
        try:
            if kind != "STRING":
                return part.tolist() if len(field.types) > 1 else part.tolist()[0]
            if len(field.types) > 1:
                return [text.decode() for text in part]

            return bytes(part).decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, error) from error


def damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: not a whole GGUF file ({error}); copy or download it again")


@cache
def checked_reader(gguf: Any) -> Any:
    """Return a subclass of GGUFReader that checks sizes and reads a list at once.

    GGUFReader silently cuts data past the end of the file short, and makes an array of every member
    of a list, which takes seconds for the lists of a tokenizer.
    """
    ARRAY = gguf.GGUFValueType.ARRAY
    STRING = gguf.GGUFValueType.STRING

    class Reader(gguf.GGUFReader):
        def _get(self, offset: Any, dtype: Any, count: Any = 1, *rest: Any, **named: Any) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise EOFError("the file is cut off")

            return super()._get(offset, dtype, count, *rest, **named)

        def _get_field_parts(self, offset: Any, kind: Any) -> Any:
            if kind != ARRAY:
                return super()._get_field_parts(offset, kind)

            member = gguf.GGUFValueType(self._get(offset, np.uint32)[0])
            count = int(self._get(offset + 4, np.uint64)[0])
            first = int(offset) + 12
            if member == STRING:
                end, values = self._get_strings(first, count)
            else:
                values = self._get(first, self.gguf_scalar_to_np[member], count)
                end = first + values.nbytes

            return end - int(offset), [values], [0], [ARRAY, member]

        def _get_strings(self, offset: int, count: int) -> tuple[int, list[bytes]]:
            data = memoryview(self.data)
            length = struct.Struct("<Q" if self.byte_order == "I" else ">Q")
            strings = []
            for _ in range(count):
                begin = offset + length.size
                offset = begin + length.unpack_from(data, offset)[0]
                strings.append(bytes(data[begin:offset]))

            if offset > len(data):
                raise EOFError("the file is cut off")

            return offset, strings

    return Reader
