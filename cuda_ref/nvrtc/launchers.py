"""What each rung's ``tcgemm_launch`` does, in Python: the kernel's instance, grid and arguments.

Plain products of 16-bit types alone. A launcher is given the product as a kernel that writes rows
of C wants it, and the values of the constants that its LAUNCHERS entry names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .arguments import (
    CHUNK_ROWS,
    ITEM,
    PANEL,
    Epilogue,
    Matrix,
    Operand,
    Plain,
    PlainOutput,
    Schedule,
    TensorMap,
    gemm_of,
    rows_aligned,
    tensor_map,
)

CPP = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}
ITEMS = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Product:
    """C = A @ B. C lies by rows, or any other way but by columns."""

    a: Matrix
    b: Matrix
    c: Matrix
    dtype_in: str
    dtype_out: str

    @classmethod
    def of(cls, a: Any, b: Any, c: Any) -> Product:
        """Of 2-D tensors, as with_rows_of_c in csrc/host/select.cuh has it."""
        A, B, C = map(Matrix.of, (a, b, c))
        names = [str(tensor.dtype).removeprefix("torch.") for tensor in (a, c)]
        if C.column_major:
            A, B, C = B.transposed(), A.transposed(), C.transposed()
        return cls(A, B, C, *names)

    @property
    def types(self) -> str:
        return f"{CPP[self.dtype_in]}, {CPP[self.dtype_out]}"

    @property
    def layouts(self) -> str:
        """Whether A and B are stored transposed, as C++ has it."""
        return ", ".join(str(each.column_major).lower() for each in (self.a, self.b))

    @property
    def operand_maps(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        """(the major in which TMA reads it, whether its rows are K), of A and of B."""
        return _major(self.a, False, self.dtype_in), _major(self.b, True, self.dtype_in)


@dataclass(frozen=True)
class Launch:
    """How a kernel is started."""

    grid: int
    block: tuple[int, int]
    shared_bytes: int
    arguments: tuple[Any, ...]
    """ctypes values; a TensorMap is encoded by the driver."""
    cluster: int = 0
    """Blocks; 0: an ordinary launch, without programmatic dependent launch."""


@dataclass(frozen=True)
class Launcher:
    """A rung's: which instance runs a product, and how it is started."""

    expression: Callable[[Product], str]
    constants: tuple[str, ...]
    launch: Callable[[Product, Mapping[str, int], int], Launch]
    """Of (product, constants, multiprocessors)."""


def _tiles(product: Product, constants: Mapping[str, int]) -> tuple[int, int]:
    return (
        -(-product.c.rows // constants["BLOCK_M"]),
        -(-product.c.cols // constants["BLOCK_N"]),
    )


_I32, _I64 = ctypes.c_int32, ctypes.c_int64


def _naive(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    arguments = (p.a, p.b, p.c, Epilogue(alpha=1.0), _I32(m), _I32(n))
    return Launch(m * n, (c["BLOCK_N"], c["BLOCK_M"]), 0, arguments)


def _tiled(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    block = c["THREADS_N"], c["THREADS_M"]
    return Launch(m * n, block, 0, (p.a.transposed(), p.b, p.c, _I32(n)))


def _wmma(p: Product, c: Mapping[str, int], sms: int, both: bool = False) -> Launch:
    m, n = _tiles(p, c)
    gemm = gemm_of(p.a, p.b, p.c, p.dtype_in, p.dtype_out)
    lds = _I64(p.a.leading_dimension), _I64(p.b.leading_dimension)
    return Launch(m * n, (c["THREADS"], 1), 0, (gemm, *lds, *((_I32(m),) if both else ()), _I32(n)))


def _grouped(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    return _wmma(p, c, sms, both=True)


def _any(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    arguments = (
        Operand.of(p.a), Operand.of(p.b), p.c,
        ctypes.c_bool(rows_aligned(p.c, ITEMS[p.dtype_out])), Epilogue(alpha=1.0),
        _I64(p.a.cols), _I32(m), _I32(n),
    )  # fmt: skip
    return Launch(m * n, (c["THREADS"], 1), c["SHARED_BYTES"], arguments)


def _major(matrix: Matrix, rows_are_k: bool, dtype: str) -> tuple[str, bool]:
    """As operand_map in csrc/sm90/tensor_map.cuh: K where TMA can read it so, else MN."""
    k_major = tensor_map(matrix, rows_are_k, dtype, ITEM, (PANEL, PANEL)) is not None
    return ("K" if k_major else "MN"), rows_are_k


def _operand_map(matrix: Matrix, rows_are_k: bool, dtype: str, rows: int) -> TensorMap:
    major, _ = _major(matrix, rows_are_k, dtype)
    k_major = major == "K"
    found = tensor_map(
        matrix, rows_are_k == k_major, dtype, ITEM, (PANEL, rows if k_major else PANEL)
    )
    if found is None:
        raise RuntimeError("TMA cannot read this operand: its rows are no multiples of 16 bytes")
    return found


def _wgmma(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    maps = (
        _operand_map(p.a, False, p.dtype_in, c["BLOCK_M"]),
        _operand_map(p.b, True, p.dtype_in, c["BLOCK_N"]),
    )
    arguments = (*maps, PlainOutput.of(p.c, ITEMS[p.dtype_out]), *_sizes(p))
    return Launch(m * n, (c["THREADS"], 1), c["SHARED_BYTES"], arguments)


def _tile_loop(p: Product, c: Mapping[str, int], sms: int, cluster: int = 1) -> Launch:
    """A block or a cluster of them an SM or a pair of SMs, or fewer where there are fewer tiles."""
    m, n = -(-p.c.rows // (cluster * c["BLOCK_M"])), -(-p.c.cols // c["BLOCK_N"])
    grid = cluster * min(m * n, sms // cluster)
    maps = (
        _operand_map(p.a, False, p.dtype_in, c["BLOCK_M"]),
        _operand_map(p.b, True, p.dtype_in, c["BLOCK_N"] // cluster),
    )
    arguments = (*maps, PlainOutput.of(p.c, ITEMS[p.dtype_out]), *_sizes(p))
    return Launch(grid, (c["THREADS"], 1), c["SHARED_BYTES"], arguments)


def _cluster(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    return _tile_loop(p, c, sms, c["CLUSTER"])


def _epilogue(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    found = _tile_loop(p, c, sms, c["CLUSTER"])
    a_map, b_map, _, *sizes = found.arguments
    return replace(found, arguments=(a_map, b_map, *_output_map(p), *sizes))


def _sizes(p: Product) -> tuple[Any, ...]:
    return _I32(p.c.rows), _I32(p.c.cols), _I32(p.a.cols)


def _output_map(p: Product) -> tuple[Any, PlainOutput]:
    """As output_map in csrc/sm90/tensor_map.cuh: TMA stores C, or the plain output has its data."""
    item, plain, c_map = ITEMS[p.dtype_out], PlainOutput.of(p.c, ITEMS[p.dtype_out]), None
    if p.c.cols * item % 16 == 0:
        c_map = tensor_map(p.c, False, p.dtype_out, item, (128 // item, CHUNK_ROWS))
    if c_map is None:
        return (ctypes.c_uint64 * 16)(), plain
    plain.data = None
    return c_map, plain


def _persistent(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    """As launch_extra in wgmma_persistent.cu and schedule_of in csrc/sm90/scheduler.cuh."""
    a_map = _operand_map(p.a, False, p.dtype_in, c["A_BOX"])
    b_map = _operand_map(p.b, True, p.dtype_in, c["B_BOX"])
    schedule, clusters = schedule_of(p, c, sms)
    steps = -(-p.a.cols // c["BLOCK_K"])
    arguments = (
        a_map, b_map, *_output_map(p), schedule, _I32(steps),
        _I32(min(steps, c["L2_PREFETCH"])), Plain(),
    )  # fmt: skip
    cluster = schedule.cluster
    return Launch(clusters * cluster, (c["THREADS"], 1), c["SHARED_BYTES"], arguments, cluster)


def schedule_of(p: Product, c: Mapping[str, int], sms: int) -> tuple[Schedule, int]:
    """The schedule of wgmma_persistent, and how many clusters to start."""
    M, N, K = int(p.c.rows), int(p.c.cols), int(p.a.cols)
    rows, cols = _tiles(p, c)
    shares_a = bool(c["SHARES_A"])
    along = cols if shares_a else rows
    if any(_splits_sectors(each) for each in (p.a, p.b)):
        least = 1
    elif c["BLOCK_M"] * c["BLOCK_N"] != 64 * 128:
        least = 4 * sms
    else:
        least = sms if K < 768 else 1
    cluster = 2 if rows * cols > least and (along % 2 == 0 or along > 16) else 1
    rows, cols = (rows, -(-cols // cluster)) if shares_a else (-(-rows // cluster), cols)
    tiles = rows * cols
    waves = -(-tiles // (sms // cluster))
    return Schedule(M, N, cluster, 1, 0, 0, rows, cols), -(-tiles // waves)


def _splits_sectors(matrix: Matrix) -> bool:
    down = matrix.row_stride if matrix.rows > 1 else 0
    across = matrix.col_stride if matrix.cols > 1 else 0
    return bool(max(down, across) % 16)


def _majors(p: Product) -> str:
    (a, _), (b, _) = p.operand_maps
    return f"tcgemm::sm90::Major::{a}, tcgemm::sm90::Major::{b}"


_TILE = ("BLOCK_M", "BLOCK_N")

LAUNCHERS: dict[str, Launcher] = {
    "naive": Launcher(
        lambda p: f"naive_kernel<false, tcgemm::Compute::f32, float, {p.types}>", _TILE, _naive
    ),
    "tiled": Launcher(
        lambda p: f"tiled_kernel<{p.types}>", (*_TILE, "THREADS_M", "THREADS_N"), _tiled
    ),
    **{
        name: Launcher(
            lambda p, name=name: f"{name}_kernel<{p.types}, {p.layouts}>",  # type: ignore[misc]
            (*_TILE, "THREADS"),
            launch,
        )
        for name, launch in (
            ("wmma", _wmma), ("wmma_double_buffered", _wmma), ("wmma_grouped", _grouped),
        )
    },
    **{
        name: Launcher(
            lambda p, name=name: f"{name}_kernel<false, {p.types}, {p.layouts}>",  # type: ignore[misc]
            (*_TILE, "THREADS", "SHARED_BYTES"),
            _any,
        )
        for name in ("wmma_any", "wmma_multistage", "mma_multistage")
    },
    **{
        name: Launcher(
            lambda p, name=name: f"{name}<{p.types}, {_majors(p)}>",  # type: ignore[misc]
            (*_TILE, "THREADS", "SHARED_BYTES", *more),
            launch,
        )
        for name, launch, *more in (
            ("wgmma_tma", _wgmma), ("wgmma_specialized", _wgmma), ("wgmma_tile_loop", _tile_loop),
            ("wgmma_cluster", _cluster, "CLUSTER"), ("wgmma_epilogue", _epilogue, "CLUSTER"),
        )
    },
    "wgmma_persistent": Launcher(
        lambda p: f"wgmma_persistent<{p.types}, {_majors(p)}, tcgemm::sm90::Plain>",
        (*_TILE, "BLOCK_K", "THREADS", "SHARED_BYTES", "A_BOX", "B_BOX", "SHARES_A", "L2_PREFETCH"),
        _persistent,
    ),
}  # fmt: skip
"""Rung -> its launcher: those that NVRTC's way covers."""
