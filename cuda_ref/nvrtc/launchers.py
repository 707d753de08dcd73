"""What each rung's ``tcgemm_launch`` does, in Python: the kernel's instance, grid and arguments.

Rungs of EVERYTHING take what follows the product, and batches; those of EVERY_TYPE all their types
as well; the others plain products of 16-bit types. A launcher is given the product as a kernel that
writes rows of C wants it, and the values of the constants that its LAUNCHERS entry names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..planning.pairs import SECTOR_BYTES
from .arguments import (
    CHUNK_ROWS,
    ITEM,
    PANEL,
    Divisor,
    Matrix,
    Operand,
    Output,
    Plain,
    PlainOutput,
    Schedule,
    TensorMap,
    plain_gemm,
    rows_are_vectors,
    tensor_map,
)
from .product import CPP, ITEMS, Product, major_of

EVERYTHING = (
    "naive", "wmma_any", "wmma_types", "wmma_multistage", "mma_multistage", "mma_types",
)  # fmt: skip
"""Rungs whose launchers here take batches, and what follows the product."""

EVERY_TYPE = ("naive", "wmma_types", "mma_types")
"""Rungs whose launchers here take all types that their rows have."""


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
    names: tuple[str, ...] | Callable[[Product], tuple[str, ...]]
    """Constants of the source whose values the launch needs; where a product decides, of it."""
    launch: Callable[[Product, Mapping[str, int], int], Launch]
    """Of (product, constants of the source and, where it has none of a name, of the plan,
    multiprocessors)."""

    def constants(self, product: Product) -> tuple[str, ...]:
        """What to ask the compiler for."""
        return self.names(product) if callable(self.names) else self.names


def _tiles(product: Product, constants: Mapping[str, int]) -> tuple[int, int]:
    return (
        -(-product.c.rows // constants["BLOCK_M"]),
        -(-product.c.cols // constants["BLOCK_N"]),
    )


_I32, _I64 = ctypes.c_int32, ctypes.c_int64


def _naive(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    arguments = (p.a, p.b, p.c, p.epilogue(), _I32(m), _I32(n))
    return Launch(p.batch * m * n, (c["BLOCK_N"], c["BLOCK_M"]), 0, arguments)


def _tiled(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    block = c["THREADS_N"], c["THREADS_M"]
    return Launch(m * n, block, 0, (p.a.transposed(), p.b, p.c, _I32(n)))


def _wmma(p: Product, c: Mapping[str, int], sms: int, both: bool = False) -> Launch:
    m, n = _tiles(p, c)
    gemm = plain_gemm(p.a, p.b, p.c, p.dtype_in, p.dtype_out)
    lds = _I64(p.a.leading_dimension), _I64(p.b.leading_dimension)
    return Launch(m * n, (c["THREADS"], 1), 0, (gemm, *lds, *((_I32(m),) if both else ()), _I32(n)))


def _grouped(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    return _wmma(p, c, sms, both=True)


def _any(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    m, n = _tiles(p, c)
    arguments = (*_operands(p), p.epilogue(), _I64(p.a.cols), _I32(m), _I32(n))
    return Launch(p.batch * m * n, (c["THREADS"], 1), c["SHARED_BYTES"], arguments)


def _operands(p: Product) -> tuple[Any, ...]:
    a, b = (Operand.of(each, p.batch, ITEMS[p.dtype_in]) for each in (p.a, p.b))
    return a, b, p.c, ctypes.c_bool(rows_are_vectors(p.c, p.batch, ITEMS[p.dtype_out]))


def _types(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    shape = _shape(p)
    m, n = -(-p.c.rows // c["BLOCK_M"]), -(-p.c.cols // c[f"{shape}::BLOCK_N"])
    wide = ctypes.c_bool(p.dtype_out == "float32")
    arguments = (*_operands(p), wide, p.epilogue(), _I64(p.a.cols), _I32(m), _I32(n))
    shared = c[f"{shape}::SHARED_BYTES"]
    return Launch(p.batch * m * n, (c["THREADS"], 1), shared, arguments)


def _sum(p: Product) -> str:
    """The type of WMMA's accumulators."""
    return "__half" if p.compute == "f16" else p.accumulator


def _shape(p: Product) -> str:
    return f"Shape<tcgemm::Compute::{p.compute}, {CPP[p.dtype_in]}, {_sum(p)}>"


def _types_kernel(p: Product) -> str:
    """As start_shape and tcgemm_launch in wmma_types.cu."""
    element, mma = CPP[p.dtype_in], (16, 16, 16)
    if p.dtype_in == "float64":
        mma = (8, 8, 4)
    elif p.dtype_in == "float32":
        element, mma = "Tf32", (16, 16, 8)
    elif p.asked is not None and p.asked.mma_m in (8, 32):
        mma = (p.asked.mma_m, 256 // p.asked.mma_m, 16)
    types = f"{CPP[p.dtype_in]}, {element}, {_sum(p)}"
    sizes = ", ".join(map(str, mma))
    return f"wmma_types_kernel<tcgemm::Compute::{p.compute}, {types}, {sizes}, {p.layouts}>"


OF_A_RING = ("BLOCK_M", "BLOCK_N", "THREADS", "SHARED_BYTES")


def _ring(p: Product) -> str:
    """What mma_types.cu tells its loop."""
    return f"TypesRing<{p.accumulator}, {p.layouts}>"


def _mma_types_kernel(p: Product) -> str:
    """As launch_tiles_of in mma_types/product.cuh, with K whole: parts take a second kernel."""
    epilogue = f"tcgemm::Epilogue<{p.accumulator}>"
    return f"mma_product<{_ring(p)}, tcgemm::Compute::{p.compute}, {epilogue}>"


def _mma_types(p: Product, c: Mapping[str, int], sms: int) -> Launch:
    return _any(p, {name: c[f"{_ring(p)}::{name}"] for name in OF_A_RING}, sms)


def _naive_kernel(p: Product) -> str:
    """As tcgemm_launch in naive.cu."""
    compute = "ieee" if p.dtype_in == "float32" and p.compute != "tf32" else p.compute
    compute = "f32" if compute == "fast" else compute
    types = f"{p.accumulator}, {p.types}"
    return f"naive_kernel<{_flag(p.fused)}, tcgemm::Compute::{compute}, {types}>"


def _flag(value: bool) -> str:
    return str(value).lower()


def _operand_map(matrix: Matrix, rows_are_k: bool, dtype: str, rows: int) -> TensorMap:
    major, _ = major_of(matrix, rows_are_k, dtype)
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
    steps = -(-p.a.cols // c["BLOCK_K"])
    c_map, output = _output(p, c, steps)
    schedule, clusters = schedule_of(p, c, sms, c["UNIT_OVERLAP"] if output.overlap else 0)
    arguments = (
        a_map, b_map, c_map, output, schedule, _I32(steps),
        _I32(min(steps, c["L2_PREFETCH"])), Plain(),
    )  # fmt: skip
    cluster = schedule.cluster
    return Launch(clusters * cluster, (c["THREADS"], 1), c["SHARED_BYTES"], arguments, cluster)


def _output(p: Product, c: Mapping[str, int], steps: int) -> tuple[Any, Output]:
    """As output_of in csrc/sm90/epilogue_tma.cuh, and which tiles overlap."""
    c_map, plain = _output_map(p)
    item, by_tma = ITEMS[p.dtype_out], plain.data is None
    in_rows = by_tma and steps <= c["IN_ROWS_STEPS"]
    in_rows = in_rows and ((p.c.data or 0) | int(p.c.row_stride) * item) % SECTOR_BYTES != 0
    if in_rows:
        plain = PlainOutput.of(p.c, item)
    odd = not by_tma and p.c.col_stride == 1 and item == 2
    of_plain = (getattr(plain, name) for name, _ in PlainOutput._fields_)
    return c_map, Output(*of_plain, in_rows, odd, odd and steps <= c["OVERLAP_STEPS"])


def schedule_of(
    p: Product, c: Mapping[str, int], sms: int, overlap: int = 0
) -> tuple[Schedule, int]:
    """The schedule of wgmma_persistent, in clusters as its plan says, and how many to start."""
    M, N, apart = int(p.c.rows), int(p.c.cols), c["BLOCK_N"] - overlap
    rows, cols = -(-M // c["BLOCK_M"]), max(1, -(-(N - overlap) // apart))
    cluster = max(1, c.get("CLUSTER", 0))
    rows, cols = (rows, -(-cols // cluster)) if c["SHARES_A"] else (-(-rows // cluster), cols)
    tiles = rows * cols
    waves = -(-tiles // (sms // cluster))
    together = c["GROUP_M"] if c["SHARES_A"] or cluster == 1 else c["GROUP_M"] // 2
    of = tiles, min(together * cols, 2**31), together, (rows - 1) % together + 1
    schedule = Schedule(
        M, N, cluster, 1, 0, 0, rows, cols, apart, together, *map(Divisor.of, of)
    )  # fmt: skip
    return schedule, -(-tiles // waves)


def _majors(p: Product) -> str:
    (a, _), (b, _) = p.operand_maps
    return f"tcgemm::sm90::Major::{a}, tcgemm::sm90::Major::{b}"


_TILE = ("BLOCK_M", "BLOCK_N")

LAUNCHERS: dict[str, Launcher] = {
    "naive": Launcher(_naive_kernel, _TILE, _naive),
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
            lambda p, name=name: f"{name}_kernel<{_flag(p.fused)}, {p.types}, {p.layouts}>",  # type: ignore[misc]
            (*_TILE, "THREADS", "SHARED_BYTES"),
            _any,
        )
        for name in ("wmma_any", "wmma_multistage", "mma_multistage")
    },
    "wmma_types": Launcher(
        _types_kernel,
        lambda p: ("BLOCK_M", "THREADS", f"{_shape(p)}::BLOCK_N", f"{_shape(p)}::SHARED_BYTES"),
        _types,
    ),
    "mma_types": Launcher(
        _mma_types_kernel, lambda p: tuple(f"{_ring(p)}::{name}" for name in OF_A_RING), _mma_types
    ),
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
        (
            *(*_TILE, "BLOCK_K", "THREADS", "SHARED_BYTES", "A_BOX", "B_BOX", "SHARES_A"),
            *("GROUP_M", "L2_PREFETCH", "IN_ROWS_STEPS", "OVERLAP_STEPS", "UNIT_OVERLAP"),
        ),
        _persistent,
    ),
}  # fmt: skip
"""Rung -> its launcher: those that NVRTC's way covers."""
