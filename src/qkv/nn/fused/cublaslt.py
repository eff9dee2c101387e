"""Matrix products of NVIDIA's cuBLASLt with GELU in their epilogue, which PyTorch does not offer.

The library is the one that PyTorch has loaded, called through ctypes. Its GELU is GPT-2's
approximation by tanh. cuBLASLt stores matrices by columns, so that it sees every matrix transposed:
x Wᵀ is computed as (W xᵀ)ᵀ.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

WORKSPACE = 32 * 2**20
"""Bytes that an algorithm may use for itself."""
ALIGNED = 256
"""Stands for an address when an algorithm is chosen, which depends on its alignment."""
MAX_PLANS = 256
"""Plans that are kept: two for each shape of a batch."""

# Numbers of cublasLt.h and library_types.h
COMPUTE_FLOAT32 = 68
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
TRANSPOSE_A = 3
EPILOGUE = 7
BIAS_POINTER = 8
AUX_POINTER = 11
AUX_STRIDE = 12
BIAS_TYPE = 26
PREFERENCE_WORKSPACE = 1
GELU_AND_INPUT = 32 | 128
BIAS_GELU_AND_INPUT = GELU_AND_INPUT | 4
GELU_DERIVATIVE = 64 | 128


class Algorithm(ctypes.Structure):
    """What cuBLASLt's heuristic returns: cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(eq=False)
class Plan:
    """A product of given sizes: its description, layouts of the matrices, and the algorithm.

    The library's objects are destroyed with the plan: not while a thread still uses it.
    """

    description: ctypes.c_void_p
    A: ctypes.c_void_p
    B: ctypes.c_void_p
    D: ctypes.c_void_p
    algorithm: Algorithm = field(default_factory=Algorithm)

    def __post_init__(self) -> None:
        objects = (self.description, self.A, self.B, self.D)
        finalizer = weakref.finalize(self, destroy, *objects)
        finalizer.atexit = False  # CUDA may have ended before


@cache
def library() -> Any:
    """cuBLASLt as PyTorch has loaded it; None without CUDA."""
    if torch.version.cuda is None:
        return None

    try:
        return ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
    except OSError:
        return None


@cache
def available(device: torch.device) -> bool:
    """Whether the products were measured to be faster on this device: a Hopper GPU."""
    if device.type != "cuda" or library() is None:
        return False

    return torch.cuda.get_device_capability(device)[0] == 9


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """x Wᵀ + b of (M, K) and (N, K), and its GELU: (M, N) each."""
    M, K = x.shape
    N = weight.shape[0]
    hidden = x.new_empty(M, N)
    activated = x.new_empty(M, N)
    epilogue = GELU_AND_INPUT if bias is None else BIAS_GELU_AND_INPUT
    plan = plan_for(N, M, K, True, epilogue, x.dtype, x.device)
    multiply(plan, weight, x, activated, hidden, bias)

    return hidden, activated


def gelu_gradient(gradient: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    """(gradient W) * GELU'(hidden) of (M, K) and (K, N): (M, N)."""
    M, K = gradient.shape
    N = weight.shape[1]
    slope = torch.empty_like(hidden)
    plan = plan_for(N, M, K, False, GELU_DERIVATIVE, gradient.dtype, gradient.device)
    multiply(plan, weight, gradient, slope, hidden)

    return slope


def multiply(
    plan: Plan, A: Tensor, B: Tensor, D: Tensor, aux: Tensor, bias: Tensor | None = None
) -> None:
    """Compute D on the current stream; `aux` is the input of GELU, written or read."""
    set_attribute(plan.description, AUX_POINTER, ctypes.c_uint64(aux.data_ptr()))
    if bias is not None:
        set_attribute(plan.description, BIAS_POINTER, ctypes.c_uint64(bias.data_ptr()))

    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=D.device)
    one = ctypes.c_float(1.0)
    zero = ctypes.c_float(0.0)
    stream = torch.cuda.current_stream(D.device).cuda_stream
    check(
        library().cublasLtMatmul(
            handle(D.device), plan.description, ctypes.byref(one), pointer(A), plan.A,
            pointer(B), plan.B, ctypes.byref(zero), pointer(D), plan.D, pointer(D), plan.D,
            ctypes.byref(plan.algorithm.algorithm), pointer(workspace),
            ctypes.c_size_t(WORKSPACE), ctypes.c_void_p(stream),
        )
    )  # fmt: skip


@lru_cache(MAX_PLANS)
def plan_for(
    rows: int,
    columns: int,
    inner: int,
    transposed: bool,
    epilogue: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """The plan of D (rows, columns) = A B, with matrices by columns.

    With `transposed`, A is stored as (inner, rows).
    """
    kind = TYPES[dtype]
    plan = Plan(
        description_of(rows, transposed, epilogue, kind),
        A=layout(inner, rows, kind) if transposed else layout(rows, inner, kind),
        B=layout(inner, columns, kind),
        D=layout(rows, columns, kind),
    )
    choose_algorithm(plan, device)

    return plan


def description_of(rows: int, transposed: bool, epilogue: int, kind: int) -> ctypes.c_void_p:
    """A product and its epilogue; its pointers are set at every call."""
    description = ctypes.c_void_p()
    check(
        library().cublasLtMatmulDescCreate(
            ctypes.byref(description), COMPUTE_FLOAT32, TYPES[torch.float32]
        )
    )
    set_attribute(description, TRANSPOSE_A, ctypes.c_int32(transposed))
    set_attribute(description, EPILOGUE, ctypes.c_uint32(epilogue))
    set_attribute(description, AUX_STRIDE, ctypes.c_int64(rows))
    set_attribute(description, AUX_POINTER, ctypes.c_uint64(ALIGNED))
    if epilogue == BIAS_GELU_AND_INPUT:
        set_attribute(description, BIAS_TYPE, ctypes.c_int32(kind))
        set_attribute(description, BIAS_POINTER, ctypes.c_uint64(ALIGNED))

    return description


def choose_algorithm(plan: Plan, device: torch.device) -> None:
    """Write the algorithm that the library's heuristic prefers into a plan."""
    preference = ctypes.c_void_p()
    check(library().cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    found = ctypes.c_int()
    most = ctypes.c_uint64(WORKSPACE)
    try:
        check(
            library().cublasLtMatmulPreferenceSetAttribute(
                preference, PREFERENCE_WORKSPACE, ctypes.byref(most), ctypes.c_size_t(8)
            )
        )
        check(
            library().cublasLtMatmulAlgoGetHeuristic(
                handle(device), plan.description, plan.A, plan.B, plan.D, plan.D, preference, 1,
                ctypes.byref(plan.algorithm), ctypes.byref(found),
            )
        )  # fmt: skip
    finally:
        check(library().cublasLtMatmulPreferenceDestroy(preference))

    if not found.value:
        raise RuntimeError("cuBLASLt has no algorithm for this product")


def destroy(description: ctypes.c_void_p, *layouts: ctypes.c_void_p) -> None:
    """Free the library's objects of a plan; products that were started do not need them."""
    library().cublasLtMatmulDescDestroy(description)
    for created in layouts:
        library().cublasLtMatrixLayoutDestroy(created)


@cache
def handle(device: torch.device) -> ctypes.c_void_p:
    """The library's context on a device."""
    context = ctypes.c_void_p()
    with torch.cuda.device(device):
        check(library().cublasLtCreate(ctypes.byref(context)))

    return context


def layout(rows: int, columns: int, kind: int) -> ctypes.c_void_p:
    """A matrix without gaps, by columns."""
    created = ctypes.c_void_p()
    size = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
    check(library().cublasLtMatrixLayoutCreate(ctypes.byref(created), kind, *size))
    return created


def set_attribute(description: ctypes.c_void_p, name: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    check(library().cublasLtMatmulDescSetAttribute(description, name, ctypes.byref(value), size))


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt failed with status {status}")
