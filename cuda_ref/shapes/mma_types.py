"""mma_types: float32 by tf32, and float64, of operands as they lie, in small tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ..planning.gpu import of as gpu_of
from ..planning.mma_types_model import STEPS, Tile, us
from ..planning.parts import STEP_BYTES, Sizes, divisions, fits, room
from ..planning.refusals import column_major, operands, sides, storage
from ..planning.rows import FUSES, row, source_constants

ORDER = 205

MOST_K = 8 * (2**31 - 17)
"""Elements along K, by steps of 8 that its launcher counts in 32 bits."""

DEFAULT = (64, 64)
"""The tile of a build that names none, which is that of the simulator."""


def _itemsize(problem: Any) -> int:
    return 8 if problem.dtype_in == "float64" else 4


def sizes(problem: Any) -> Sizes:
    """The product that is computed: of a column-major C the transposed one."""
    (M, N), itemsize = sides(problem), _itemsize(problem)
    return Sizes(M, N, -(-problem.K * itemsize // STEP_BYTES), itemsize, problem.batch)


def by_elements(problem: Any) -> tuple[bool, bool, bool]:
    """Whether what the kernel calls A, and B, are copied element by element, and C is stored so:
    rows that do not all begin at multiples of 16 bytes."""
    itemsize = _itemsize(problem)
    c = ("C", (problem.M, problem.N), problem.c_strides, problem.c_alignment)
    apart = problem.batch_strides if problem.batch > 1 else (0, 0, 0)
    found = []
    for (_, shape, strides, alignment), matrices in zip(
        (*operands(problem), c), apart, strict=True
    ):
        rows = shape[1] if column_major(shape, strides) else shape[0]
        ld, inner = storage(shape, strides)
        whole = alignment >= 16 and matrices * itemsize % 16 == 0
        found.append(inner != 1 or not whole or (rows > 1 and ld * itemsize % 16 != 0))
    a, b, of_c = found
    return (b, a, of_c) if column_major(c[1], c[2]) else (a, b, of_c)


def refuse_long_k(problem: Any, name: str = "mma_types") -> str | None:
    """Why K has more steps than are counted; None when it has fewer."""
    if problem.K <= MOST_K:
        return None
    return f"K={problem.K} and {name} counts to {MOST_K}: split K and add the products"


def room_for_parts(problem: Any) -> int:
    """Bytes for the sums of parts of K: none where NVRTC compiles, whose launcher in Python starts
    one kernel and no second one that would add them."""
    from ..nvrtc import compiles

    return 0 if compiles(problem) else room()


def ways(problem: Any, sms: int, room_bytes: int) -> Iterator[tuple[Tile, int]]:
    """The tiles, each with K whole and in the parts for whose sums there is room."""
    of, odd = sizes(problem), by_elements(problem)
    for block_m, block_n in STEPS[problem.compute]:
        tile = Tile(block_m, block_n, *odd)
        yield tile, 1
        if problem.batch == 1:
            for parts in divisions(of, block_m, block_n, sms):
                if fits(of, parts, STEP_BYTES // of.sum_bytes, room_bytes):
                    yield tile, parts


def fastest(problem: Any, sms: int) -> tuple[float, Tile, int]:
    """Microseconds, the tile and the parts of K of the product that ends first by the model. A
    choice asks for its time and then for its plan."""
    return _fastest(problem, sms, room_for_parts(problem))


@lru_cache(maxsize=1024)
def _fastest(problem: Any, sms: int, room_bytes: int) -> tuple[float, Tile, int]:
    of, capability = sizes(problem), problem.capability or (9, 0)
    return min(
        (us(problem.compute, of, tile, parts, sms, capability), tile, parts)
        for tile, parts in ways(problem, sms, room_bytes)
    )


def plan(problem: Any) -> Mapping[str, int]:
    """The tile, and the parts of K where there are several."""
    tile, parts = Tile(*DEFAULT, *by_elements(problem)), 1
    if problem.device != "cpu" and problem.compute in STEPS:
        _, tile, parts = fastest(problem, gpu_of(problem).sms)
    found = {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": STEP_BYTES // _itemsize(problem),
        "GROUP_M": source_constants("mma_types")["GROUP_M"],
        "NUM_STAGES": tile.stages,
    }
    return {**found, "SPLITS": parts} if parts > 1 else found


def cost(problem: Any, sms: int) -> float | None:
    """Microseconds by the model; None of types that it does not take."""
    return fastest(problem, sms)[0] if problem.compute in STEPS else None


def instance(problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What the template's parameters are: see inspection.py."""
    extra = "Part" if plan.get("SPLITS", 1) > 1 else "Epilogue<" if problem.fused else "Plain"
    return {"Extra": lambda value: extra in value}


ROW = row(
    "mma_types",
    "float32 by tf32, and float64, of rows that lie anywhere: by mma.sync, without a copy",
    (8, 0),
    pairs=(
        ("float32", "float32", "tf32"),
        ("float32", "float32", "tf32x3"),
        ("float64", "float64"),
    ),
    refuse=refuse_long_k,
    fuses=FUSES,
    plan=plan,
)
