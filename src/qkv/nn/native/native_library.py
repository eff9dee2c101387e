"""The compiled kernels of decode_kernels.c: the library, its structures, and who may use it.

Installing the package compiles them where there is a C compiler. Without one, on other processors
than x86-64, or with QKV_NATIVE=0 in the environment, `library()` is None and PyTorch computes.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
from ctypes import POINTER, Array, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.machine import INTEL, cpu_vendor
from qkv.nn.transforms import in_a_transform

# The values of the enums of decode_kernels.c; activations have those of qkv.nn.linear.gemv.
FLOAT32 = 0
INT8 = 1
INT4 = 2
LAYER_NORM = 1
RMS_NORM = 2
PANEL = 32  # rows of a matrix that are multiplied together
AVX512 = 2  # of instruction_set()
VERSION = 5  # of decode_kernels.c: the meaning of its functions, and the memory orders


class Product(Structure):
    """residual + activation(norm(x) W^T + bias): the weights, as addresses."""

    _fields_ = (
        ("N", c_int64),
        ("E", c_int64),
        ("format", c_int32),
        ("norm", c_int32),
        ("activation", c_int32),
        ("epsilon", c_float),
        ("gain", c_void_p),
        ("shift", c_void_p),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("groups", c_void_p),
        ("bias", c_void_p),
    )


class BlockArguments(Structure):
    """A decoder block: its four products and the sizes of its heads."""

    _fields_ = (
        ("qkv", Product),
        ("output", Product),
        ("up", Product),
        ("down", Product),
        ("H", c_int64),
        ("K", c_int64),
        ("D", c_int64),
    )


class LayerArguments(Structure):
    """The keys and values of a layer, in rows or by a table, the new angles, and the mask."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("capacity", c_int64),
        ("longest", c_int64),
        ("table", c_void_p),
        ("table_rows", c_void_p),
        ("table_stride", c_int64),
        ("lengths", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("angle_stride", c_int64),
        ("allowed", c_void_p),
    )


class Processor(Structure):
    """The threads, the instruction set and the vendor of a call's processor."""

    _fields_ = (
        ("parallel", c_void_p),
        ("threads", c_int32),
        ("wide", c_int32),
        ("intel", c_int32),
    )


STRUCTURES = {
    "Product": Product,
    "Block": BlockArguments,
    "Layer": LayerArguments,
    "Processor": Processor,
}
"""The structures by their names in decode_kernels.c."""
Layout = dict[str, tuple[int, int]]
"""The offset and the size of every field, by the names of its structure and its own."""


class Field(Structure):
    """An entry of `structure_fields` in decode_kernels.c; the last one has no name."""

    _fields_ = (("name", c_char_p), ("offset", c_int64), ("size", c_int64))


class NativeLibrary:
    """The functions of the compiled file.

    Args:
        path: The compiled file.
        parallel: Address of GOMP_parallel in the OpenMP library that PyTorch uses, whose threads
            would compete with those of another one.

    Raises:
        OSError: If the file cannot be loaded, or was compiled from another version of its source.
    """

    def __init__(self, path: Path, parallel: int) -> None:
        functions: Any = ctypes.CDLL(str(path))
        self.parallel = parallel
        if compiled_version(functions) != VERSION or compiled_layout(functions) != own_layout():
            raise OSError(f"{path.name} was compiled from another version of its source")

        self.instruction_set: int = functions.instruction_set()
        self.intel = cpu_vendor() == INTEL
        self.processors: dict[tuple[int, bool, bool], Processor] = {}
        if self.instruction_set == 0:
            return

        self.run_multiply = functions.multiply
        self.run_multiply.argtypes = (
            POINTER(Processor), POINTER(Product), c_int64, c_void_p, c_void_p, c_void_p,
        )  # fmt: skip
        self.run_attend = functions.attend
        self.run_attend.argtypes = (
            POINTER(Processor), POINTER(BlockArguments), POINTER(LayerArguments),
            c_int64, c_void_p, c_void_p,
        )  # fmt: skip
        self.run_blocks = functions.decode_blocks
        self.run_blocks.argtypes = (
            POINTER(Processor), POINTER(BlockArguments), POINTER(LayerArguments),
            c_int64, c_int64, c_void_p,
        )  # fmt: skip
        self.run_activate = functions.activate
        self.run_activate.argtypes = (POINTER(Processor), c_int32, c_int64, c_void_p, c_void_p)
        self.run_activate.restype = None
        self.run_softmax_loss = functions.softmax_loss
        self.run_softmax_loss.argtypes = (
            POINTER(Processor), c_int64, c_int64, c_void_p,
            c_void_p, c_int64, c_void_p, c_float, c_void_p,
        )  # fmt: skip
        self.run_softmax_loss.restype = None

    def processor(self) -> Processor:
        """As many threads and as wide vectors as PyTorch would use now."""
        wide = (
            self.instruction_set == AVX512 and "AVX512" in torch.backends.cpu.get_cpu_capability()
        )
        key = (torch.get_num_threads(), wide, self.intel)
        if key not in self.processors:
            self.processors[key] = Processor(self.parallel, *key)

        return self.processors[key]

    def most_float_rows(self) -> int:
        """Rows of float32 up to which `multiply` is faster than oneDNN."""
        if not self.intel:
            return 2

        return 16 if self.processor().wide else 8

    def multiply(self, product: Product, x: Tensor, outputs: int) -> Tensor:
        """The product with contiguous float32 rows (M, E)."""
        y = x.new_empty(len(x), outputs)
        failed = self.run_multiply(
            byref(self.processor()), byref(product), len(x), x.data_ptr(), None, y.data_ptr()
        )
        if failed:
            raise MemoryError(f"no memory for the product of {len(x)} rows")

        return y

    def attend(self, block: BlockArguments, layer: LayerArguments, qkv: Tensor) -> Tensor:
        """The heads (B, H D) of contiguous float32 projections (B, (H + 2K) D)."""
        B = len(qkv)
        heads = qkv.new_empty(B, block.H * block.D)
        failed = self.run_attend(
            byref(self.processor()), byref(block), byref(layer), B, qkv.data_ptr(), heads.data_ptr()
        )
        if failed:
            raise MemoryError(f"no memory for the attention of {B} sequences")

        return heads

    def decode_blocks(
        self, blocks: Array[BlockArguments], layers: Array[LayerArguments], x: Tensor
    ) -> Tensor:
        """The output of blocks on top of each other for contiguous float32 rows (B, E).

        Each row is one token of a sequence; the layers are those of the blocks.
        """
        y = x.clone()
        failed = self.run_blocks(
            byref(self.processor()), blocks, layers, len(blocks), len(x), y.data_ptr()
        )
        if failed:
            raise MemoryError(f"no memory for a decode step of {len(x)} sequences")

        return y

    def activate(self, x: Tensor, kind: int) -> Tensor:
        """An activation (a value of `gemv.ACTIVATIONS`) of contiguous float32 numbers."""
        y = torch.empty_like(x)
        self.run_activate(byref(self.processor()), kind, x.numel(), x.data_ptr(), y.data_ptr())
        return y

    def softmax_loss_(
        self, logits: Tensor, targets: Tensor, ignore: int, shares: Tensor | None, smoothing: float
    ) -> Tensor:
        """The losses (M,) of contiguous float32 logits (M, V), which become their derivative.

        The caller has checked the targets (M,): int64, each a column or `ignore`.
        """
        M, V = logits.shape
        losses = logits.new_empty(M)
        self.run_softmax_loss(
            byref(self.processor()), M, V, logits.data_ptr(),
            targets.data_ptr(), ignore, address(shares), smoothing, losses.data_ptr(),
        )  # fmt: skip

        return losses


def compiled_version(functions: Any) -> int | None:
    """The version that a compiled file says it has."""
    try:
        return c_int32.in_dll(functions, "version").value
    except ValueError:  # it has no such name
        return None


def compiled_layout(functions: Any) -> Layout:
    """Where the fields of a compiled file's structures are."""
    layout: Layout = {}
    try:
        fields = ctypes.pointer(Field.in_dll(functions, "structure_fields"))
    except ValueError:  # it has no such name
        return layout

    number = 0
    while fields[number].name is not None:
        field = fields[number]
        layout[field.name.decode()] = (field.offset, field.size)
        number += 1

    return layout


def own_layout() -> Layout:
    """Where the fields of the structures above are."""
    layout: Layout = {}
    for name, structure in STRUCTURES.items():
        layout[name] = (0, ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            descriptor = getattr(structure, field)
            layout[f"{name}.{field}"] = (descriptor.offset, descriptor.size)

    return layout


@lru_cache(maxsize=1)
def library() -> NativeLibrary | None:
    """The compiled kernels, or None where they cannot be used."""
    path = compiled_file()
    if not path.exists() or os.environ.get("QKV_NATIVE") == "0":
        return None
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return None

    try:
        loaded = NativeLibrary(path, openmp_parallel())
    except (OSError, AttributeError):  # of another system or version, or another OpenMP
        return None

    return loaded if loaded.instruction_set else None


def most_float_rows() -> int:
    """Rows of float32 that the compiled kernels multiply faster than oneDNN; 0 without them."""
    kernels = library()
    return 0 if kernels is None else kernels.most_float_rows()


def compiled_file() -> Path:
    """Where installing the package puts the compiled kernels."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return Path(__file__).with_name(f"decode_kernels{suffix}")


def openmp_parallel() -> int:
    """The address of GOMP_parallel, found through the library of PyTorch that is linked to it."""
    torch_library: Any = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    address = ctypes.cast(torch_library.GOMP_parallel, c_void_p).value
    assert address is not None

    return address


def in_memory(x: Tensor) -> bool:
    """True for contiguous float32 numbers in a CPU's memory that no transform sees."""
    if not x.is_cpu or x.dtype != torch.float32 or type(x) is not Tensor:
        return False  # a subclass may have no memory

    return x.is_contiguous() and not in_a_transform()


def plain_vector(vector: Tensor | None, size: int) -> bool:
    """True for as many float32 numbers side by side in a CPU's memory, or for none at all."""
    if vector is None:
        return True
    if not vector.is_cpu or vector.dtype != torch.float32:
        return False

    return vector.shape == (size,) and vector.is_contiguous()


def float_product(weight: Tensor, bias: Tensor | None) -> Product:
    """The arguments of a product with a contiguous float32 matrix (N, E)."""
    N, E = weight.shape
    return Product(N, E, FLOAT32, weight=weight.data_ptr(), bias=address(bias))


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin; None without a tensor."""
    return None if tensor is None else tensor.data_ptr()
