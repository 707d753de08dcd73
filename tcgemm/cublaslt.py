"""cuBLAS at its best: cuBLASLt's own candidate algorithms, verified, timed, the fastest kept.

torch.mm takes the first algorithm of cuBLASLt's heuristic. Users get that, so it is the baseline of
every ratio; this is the other question, how fast cuBLAS can be. The library is the one that torch
has loaded; its functions and constants are those of cublasLt.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import torch

from .operands import alignment

WORKSPACE_BYTES = 64 * 2**20
CANDIDATES = 16
"""How many algorithms the heuristic is asked for."""

ROUNDS = 9
"""Timed rounds; in each, every candidate runs once for LAUNCHES launches."""

LAUNCHES = 8

MOST_KEPT = 4096
"""Products whose fastest algorithm is remembered."""

_TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_*
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_TF32 = 68, 70, 77
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
_MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
_REDUCTIONS = 3  # CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
_IN_COMPUTE_TYPE = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: parts of K are not rounded to C's
_MIN_ALIGNMENTS = 5, 6, 7, 8  # CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, _B, _C, _D


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Candidate(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def _library() -> ctypes.CDLL:
    torch.cuda.current_blas_handle()  # torch loads cuBLAS on first use
    tried = []
    for major in dict.fromkeys([(torch.version.cuda or "").split(".")[0], "13", "12"]):
        try:
            return ctypes.CDLL(f"libcublasLt.so.{major}")
        except OSError as error:
            tried.append(str(error))
    raise RuntimeError(f"cuBLASLt is not where torch has it: {'; '.join(tried)}")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} returned status {status} (cublasStatus_t)")


def _made(name: str, *arguments: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call(name, ctypes.byref(handle), *arguments)
    return handle


class _Product:
    """One product's descriptors: C' = B' A' in cuBLAS's column-major terms."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, compute: str) -> None:
        types = {"tf32": _COMPUTE_32F_TF32, "float64": _COMPUTE_64F}
        double = c.dtype == torch.float64
        scale = ctypes.c_double if double else ctypes.c_float
        self.one, self.zero = scale(1), scale(0)
        self.descriptor = _made(
            "cublasLtMatmulDescCreate", types.get(compute, _COMPUTE_32F), 1 if double else 0
        )
        self.alignments = [alignment(matrix) for matrix in (b, a, c, c)]
        self.layouts = []
        for attribute, matrix in ((_TRANSPOSE_A, b), (_TRANSPOSE_B, a), (None, c)):
            rows, columns = matrix.shape
            transposed = not (matrix.stride(1) == 1 or columns == 1)
            if transposed:
                rows, columns = columns, rows
            pitch = matrix.stride(1 if transposed else 0)
            if attribute is not None:
                flag = ctypes.c_int32(int(transposed))
                _call(
                    "cublasLtMatmulDescSetAttribute",
                    self.descriptor, attribute, ctypes.byref(flag), ctypes.c_size_t(4),
                )  # fmt: skip
            self.layouts.append(
                _made(
                    "cublasLtMatrixLayoutCreate",
                    _TYPES[matrix.dtype],
                    ctypes.c_uint64(columns),
                    ctypes.c_uint64(rows),
                    ctypes.c_int64(max(pitch, columns)),
                )
            )

    def candidates(self) -> list[_Candidate]:
        """What the heuristic offers, its first choice first."""
        preference = _made("cublasLtMatmulPreferenceCreate")
        limit = ctypes.c_uint64(WORKSPACE_BYTES)
        _call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference, _MAX_WORKSPACE, ctypes.byref(limit), ctypes.c_size_t(8),
        )  # fmt: skip
        schemes = ctypes.c_uint32(_IN_COMPUTE_TYPE)
        _call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference, _REDUCTIONS, ctypes.byref(schemes), ctypes.c_size_t(4),
        )  # fmt: skip
        # Unsaid, the heuristic takes every address for a multiple of 256 bytes.
        for attribute, bytes_ in zip(_MIN_ALIGNMENTS, self.alignments, strict=True):
            least = ctypes.c_uint32(bytes_)
            _call(
                "cublasLtMatmulPreferenceSetAttribute",
                preference, attribute, ctypes.byref(least), ctypes.c_size_t(4),
            )  # fmt: skip
        found, count = (_Candidate * CANDIDATES)(), ctypes.c_int()
        a, b, c = self.layouts
        _call(
            "cublasLtMatmulAlgoGetHeuristic",
            ctypes.c_void_p(torch.cuda.current_blas_handle()), self.descriptor, a, b, c, c,
            preference, CANDIDATES, found, ctypes.byref(count),
        )  # fmt: skip
        _call("cublasLtMatmulPreferenceDestroy", preference)
        return [each for each in found[: count.value] if each.state == 0]

    def run(self, candidate: _Candidate, a: Any, b: Any, c: Any) -> None:
        """One launch on the current stream."""
        layout_a, layout_b, layout_c = self.layouts
        workspace = c.new_empty(candidate.workspace_bytes, dtype=torch.uint8)
        _call(
            "cublasLtMatmul",
            ctypes.c_void_p(torch.cuda.current_blas_handle()), self.descriptor,
            ctypes.byref(self.one), ctypes.c_void_p(b.data_ptr()), layout_a,
            ctypes.c_void_p(a.data_ptr()), layout_b, ctypes.byref(self.zero),
            ctypes.c_void_p(c.data_ptr()), layout_c, ctypes.c_void_p(c.data_ptr()), layout_c,
            ctypes.byref(candidate.algorithm), ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_size_t(candidate.workspace_bytes),
            ctypes.c_void_p(torch.cuda.current_stream(c.device).cuda_stream),
        )  # fmt: skip


_best: dict[tuple[Any, ...], tuple[_Product, _Candidate]] = {}
_timing = Lock()


def _free_in_child() -> None:
    global _timing
    _timing = Lock()


os.register_at_fork(after_in_child=_free_in_child)


def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None) -> None:
    """C[M, N] = A[M, K] @ B[K, N] by the fastest of cuBLASLt's candidates for these shapes.

    The first call of a shape, dtype, layout and alignment verifies and times the candidates on the
    operands given, which takes milliseconds and cannot be done while a graph is captured.

    Raises:
        RuntimeError: no candidate, or the first call is inside a capture.
    """
    compute = fusion.compute if fusion is not None else "float32"
    key = (
        a.shape, b.shape, a.stride(), b.stride(), c.stride(), a.dtype, c.dtype, c.device, compute,
        *(t.data_ptr() & 255 for t in (a, b, c)),
    )  # fmt: skip
    product, candidate = _best.get(key) or _chosen(key, a, b, c, compute)
    product.run(candidate, a, b, c)


def _chosen(
    key: tuple[Any, ...], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, compute: str
) -> tuple[_Product, _Candidate]:
    """The product and its fastest algorithm, timed by one thread at a time and kept."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "cublas_best times its candidates on first use, which a graph capture forbids: "
            "call it once with these shapes before the capture"
        )
    with _timing:
        if key not in _best:
            product = _Product(a, b, c, compute)
            if len(_best) >= MOST_KEPT:
                _best.pop(next(iter(_best)))
            _best[key] = product, _fastest(product, a, b, c)
        return _best[key]


def refuse(problem: Any) -> str | None:
    """Why the rung cannot take a problem: it hands operands over as they lie."""
    if "s" in problem.layout:
        return f"layout {problem.layout}: rows or columns of A and of B have to be contiguous"
    for name, strides, (rows, columns) in (
        ("A", problem.a_strides, (problem.M, problem.K)),
        ("B", problem.b_strides, (problem.K, problem.N)),
    ):
        if strides[1] != 1 and columns > 1:
            strides, rows, columns = strides[::-1], columns, rows
        if rows > 1 and strides[0] < columns:
            return (
                f"{name} lies in lines of {columns} elements that start {strides[0]} apart, and "
                f"cuBLASLt takes none that overlap: pass {name}.contiguous()"
            )
    if problem.N > 1 and problem.c_strides[1] != 1:
        return f"C has strides {problem.c_strides} and its rows have to be contiguous"
    return None


def _fastest(product: _Product, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> _Candidate:
    candidates = product.candidates()
    if not candidates:
        raise RuntimeError("cuBLASLt's heuristic offers no algorithm for these operands")
    right = []
    product.run(candidates[0], a, b, c)
    first = c.double()
    tolerance = 2.0**-6 * float(first.abs().max())
    for candidate in candidates:
        c.zero_()
        product.run(candidate, a, b, c)
        if float((c.double() - first).abs().max()) <= tolerance:
            right.append(candidate)
    if len(right) <= 1:
        return candidates[0]
    launches = [_repeated(product, candidate, a, b, c) for candidate in right]
    times: list[list[float]] = [[] for _ in right]
    for turn in range(ROUNDS):
        order = range(len(right)) if turn % 2 else reversed(range(len(right)))
        for index in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launches[index]()
            end.record()
            end.synchronize()
            times[index].append(start.elapsed_time(end))
    medians = [statistics.median(each) for each in times]
    quickest = medians.index(min(medians))
    # Within the noise, the heuristic's own order counts.
    return right[quickest if medians[quickest] < 0.99 * medians[0] else 0]


def _repeated(
    product: _Product, candidate: _Candidate, a: Any, b: Any, c: Any
) -> Callable[[], None]:
    """LAUNCHES launches as one graph, so that small products are timed without launch gaps."""
    graph = torch.cuda.CUDAGraph()
    # By itself torch captures on a stream of the first GPU that captured, and forbids every thread
    # of the process to synchronize meanwhile.
    stream = torch.cuda.Stream(c.device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(LAUNCHES):
            product.run(candidate, a, b, c)
    return graph.replay
