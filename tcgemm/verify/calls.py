"""Calls as plain data, from which the same operands can be made anywhere.

``draw`` takes its chances from a function that picks one of several options, so that a seeded
generator and a test framework that shrinks its examples can both drive it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..dispatch import Kernel
from ..problem import COMPUTES, EPILOGUES, LAYOUTS, OUTPUTS, Problem, type_pair

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
"""Picks one of the options; the first is the simplest."""

VIEWS = (
    "row",
    "column",
    "padded row",
    "padded column",
    "sliced",
    "stepped",
    "expanded",
    "overlapping",
)
"""How a matrix lies in its buffer: contiguous by rows or columns; with a pitch that is a multiple
of 16 elements, or an odd number above the row; every second row and third column; one row for all;
rows three elements apart."""

OF_OUTPUTS = VIEWS[:6]
"""Those in which no two elements share an address."""

ALIGNED = VIEWS[:4]
"""Those that keep rows apart by what vector copies and TMA ask."""

BATCHES = ("full", "shared", "first", "turned")
"""An operand's leading dimensions: all; none; the first alone; all, stored in reverse order."""

OFFSETS = (0, 1, 2, 3, 8)
"""Elements between the buffer's aligned start and the first element."""

EDGES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65)

SPECIALS = ("", "nan in A", "inf in A", "-inf in A", "nan in B", "inf in B", "nan in C")
"""What is planted, once in each matrix; C's reaches the result only where beta is not 0."""

FACTORS = (1.0, 0.0, -1.0, 0.5, 2.0**-20)
WHOLE_FACTORS = (1.0, 0.0, -1.0, 3.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Stored:
    """How an operand lies in memory."""

    view: str = "row"
    offset: int = 0
    batch: str = "full"

    def __str__(self) -> str:
        offset = f"+{self.offset}" if self.offset else ""
        batch = f" {self.batch}" if self.batch != "full" else ""
        return f"{self.view}{offset}{batch}"


@dataclass(frozen=True, slots=True)
class DrawnCall:
    """One call of ``gemm`` but for its numbers, which ``seed`` gives."""

    M: int
    N: int
    K: int
    dtype_in: str = "float16"
    dtype_out: str = "float16"
    compute: str = "float32"
    a: Stored = Stored()
    b: Stored = Stored()
    out: Stored = Stored()
    batch: tuple[int, ...] = ()
    alpha: float = 1.0
    beta: float = 0.0
    c: str = ""
    """Where C comes from: nowhere, "own" memory, one "row" for all, or "out" itself."""
    bias: bool = False
    epilogue: str = ""
    scales: str = ""
    mma_shape: str = ""
    special: str = ""
    exact: bool = False
    """Operands are small integers, whose sums are exact, instead of normal ones."""
    seed: int = 0

    def __str__(self) -> str:
        pair = type_pair(self.dtype_in, self.dtype_out, self.compute)
        batch = f"{'x'.join(map(str, self.batch))} x " if self.batch else ""
        parts = [f"{batch}{self.M}x{self.N}x{self.K} {pair}"]
        parts.append(f"A {self.a}, B {self.b}, out {self.out}")
        asked = {
            f"alpha={self.alpha:g}": self.alpha != 1,
            f"beta={self.beta:g}": self.beta != 0,
            f"C {self.c}": self.c,
            "bias": self.bias,
            self.epilogue: self.epilogue,
            f"scales by {self.scales}": self.scales,
            f"mma_shape={self.mma_shape}": self.mma_shape,
            self.special: self.special,
            "integers": self.exact,
        }
        parts += [name for name, is_asked in asked.items() if is_asked]
        return ", ".join(parts)

    @property
    def work(self) -> int:
        """Multiply-adds of the call."""
        return self.M * self.N * self.K * math.prod(self.batch)


def from_dict(data: dict[str, Any]) -> DrawnCall:
    """The call that ``dataclasses.asdict`` turned into plain data."""
    stored = {name: Stored(**data[name]) for name in ("a", "b", "out")}
    return DrawnCall(**{**data, **stored, "batch": tuple(data["batch"])})


def pairs_of(row: Kernel) -> tuple[tuple[str, str, str], ...]:
    """The row's type pairs with the way of summing spelled out."""
    return tuple(
        (pair[0], pair[1], pair[2] if len(pair) > 2 else COMPUTES[pair[0]][0])
        for pair in row.pairs
        if pair[0] in OUTPUTS
    )


def epilogues_of(row: Kernel, dtype_in: str) -> tuple[str, ...]:
    """Epilogues by name that the row fuses and the dtype has; "" first."""
    fused = [name for name in EPILOGUES if name in row.fuses]
    return ("", *(name for name in fused if COMPUTES[dtype_in] != ("int32",) or name == "relu"))


def limited(row: Kernel) -> bool:
    """Whether the row takes not every shape, stride and alignment."""
    return row.shapes != Kernel.__dataclass_fields__["shapes"].default


def tile_of(row: Kernel, pair: tuple[str, str, str], device: str) -> dict[str, int]:
    """The row's plan for a small product of the pair: BLOCK_M, BLOCK_N, ... where it has them."""
    problem = _of_pair(pair, device)
    if row.why_not(problem) is not None:
        return {}
    return {name: value for name, value in row.plan(problem).items() if isinstance(value, int)}


def mma_shapes_of(row: Kernel, pair: tuple[str, str, str], device: str) -> list[str]:
    """The row's WMMA shapes that the pair has: a call that names another is refused."""
    every = row.mma_shapes
    return [s for s in every if row.why_not(_of_pair(pair, device, mma_shape=s)) is None]


def _of_pair(pair: tuple[str, str, str], device: str, **asked: Any) -> Problem:
    """A small product of a pair."""
    return Problem.stored(
        128, 128, 128, pair[0], pair[1],
        device=device, capability=(9, 0) if device == "cuda" else None, compute=pair[2], **asked,
    )  # fmt: skip


def draw(row: Kernel, choose: Choose, device: str, most: int) -> DrawnCall:
    """A call that the row is likely to take, with all it fuses.

    Args:
        row: the kernel.
        choose: picks one of several options.
        device: "cpu" or "cuda".
        most: multiply-adds that it may have.
    """
    pair = choose(pairs_of(row))
    dtype_in, dtype_out, compute = pair
    whole = compute == "int32"
    tile = tile_of(row, pair, device)

    def edges(*names: str) -> list[int]:
        around = {tile[n] + d for n in names if n in tile for d in (-1, 0, 1)}
        if "BLOCK_K" in names and {"BLOCK_K", "NUM_STAGES"} <= tile.keys():
            around |= {tile["BLOCK_K"] * tile["NUM_STAGES"] + d for d in (-1, 0, 1)}
        return sorted({*EDGES, *around})

    M, N = choose(edges("BLOCK_M")), choose(edges("BLOCK_N"))
    K = choose(edges("BLOCK_K"))
    views: tuple[str, ...] = VIEWS
    offsets: tuple[int, ...] = OFFSETS
    if limited(row):
        tidy = choose(("multiples", "padded", "any"))
        if tidy == "multiples":
            M, N, K = (choose((64, 128, 192)) for _ in range(3))
        if tidy != "any":
            views, offsets = ALIGNED[:2] if tidy == "multiples" else ALIGNED[2:], OFFSETS[:1]
    fuses = set(row.fuses)
    batch = choose(((), (), (2,), (3,), (2, 2))) if "batch" in fuses else ()
    batched = BATCHES if len(batch) > 1 else BATCHES[:2] if batch else BATCHES[:1]
    of_a = choose(batched)
    of_b = choose(batched if of_a in ("full", "turned") else BATCHES[:1])
    smallest = 64 if limited(row) else 1
    while M * N * K * math.prod(batch) > most and max(M, N, K) > smallest:
        M, N, K = (max(smallest, n // 2) if n == max(M, N, K) else n for n in (M, N, K))
    outputs = tuple(view for view in views if view in OF_OUTPUTS)
    exact = bool(choose((False, True)))
    factors = WHOLE_FACTORS if whole else FACTORS[:4] if exact else FACTORS
    alpha = choose(factors) if "alpha" in fuses else choose((1.0, 1.0, 1.0, 1.0, 0.0))
    beta = choose((0.0, *(f for f in factors if f))) if "beta" in fuses else 0.0
    epilogues = epilogues_of(row, dtype_in)
    epilogue = choose(tuple(e for e in epilogues if e in ("", "relu")) if exact else epilogues)
    special = "" if exact or whole else choose(("", *SPECIALS))
    if "inf" in special and dtype_in == "float8_e4m3fn":  # which has none
        special = ""
    return DrawnCall(
        M=M,
        N=N,
        K=K,
        dtype_in=dtype_in,
        dtype_out=dtype_out,
        compute=compute,
        a=Stored(choose(views), choose(offsets), of_a),
        b=Stored(choose(views), choose(offsets), of_b),
        out=Stored(choose(outputs), choose(offsets), choose(("full", "turned")[: len(batch) or 1])),
        batch=batch,
        alpha=alpha,
        beta=beta,
        c=choose(("own", "out", "row")) if beta else "own" if special == "nan in C" else "",
        bias=bool(choose((False, True))) if "bias" in fuses else False,
        epilogue=epilogue,
        scales=choose(("", "tensor", "row"))
        if "scales" in fuses and dtype_in.startswith("float8")
        else "",
        mma_shape=choose(("", *mma_shapes_of(row, pair, device))),
        special=special,
        exact=exact,
        seed=choose(range(1000)),
    )


SHAPES = {
    "cpu": ((1, 1, 1), (17, 33, 31), (2, 65, 8)),
    "cuda": (
        *((1, 1, 1), (2, 65, 8), (17, 33, 31), (63, 15, 65), (128, 320, 64), (100, 100, 100)),
        *((127, 129, 65), (256, 257, 129), (1, 517, 70), (4099, 1, 70), (64, 64, 2**13)),
    ),
}
"""Sizes around edges, and those that break published kernels, by device."""

TIDY_SHAPES = {
    "cpu": ((64, 64, 64),),
    "cuda": ((64, 64, 64), (128, 320, 64), (192, 128, 256), (640, 576, 96)),
}
"""For rows that take not every shape."""


def edge_calls(row: Kernel, device: str) -> Iterator[DrawnCall]:
    """Every pair of the row: sizes around edges, all layouts, normal and integer operands; each
    thing that it fuses, alone and all at once (on the CPU, alone for one pair of each dtype)."""
    letters = {"n": "row", "t": "column"}
    for index, pair in enumerate(pairs_of(row)):
        of_pair: dict[str, Any] = {"dtype_in": pair[0], "dtype_out": pair[1], "compute": pair[2]}
        shapes = TIDY_SHAPES[device] if limited(row) else SHAPES[device]
        for number, (M, N, K) in enumerate(shapes):
            some = LAYOUTS if limited(row) and not number else (LAYOUTS[(number + index) % 4],)
            for layout in some:
                base = DrawnCall(
                    M, N, K, a=Stored(letters[layout[0]]), b=Stored(letters[layout[1]]),
                    out=Stored(("row", "column")[number % 2]), seed=number, **of_pair,
                )  # fmt: skip
                yield base
                yield replace(base, exact=True)
        first = pair[0] not in {before[0] for before in pairs_of(row)[:index]}
        yield from fused_calls(row, pair, alone=first or device == "cuda")
        for shape in mma_shapes_of(row, pair, device):
            yield DrawnCall(64, 64, 64, mma_shape=shape, **of_pair)


def fused_calls(
    row: Kernel, pair: tuple[str, str, str], *, alone: bool = True
) -> Iterator[DrawnCall]:
    """What the row fuses for one type pair: all at once and, if asked, each thing alone."""
    base = DrawnCall(64, 64, 64, *pair, a=Stored("padded row"), b=Stored("padded column"), seed=11)
    whole = pair[2] == "int32"
    fuses = set(row.fuses)
    each: list[dict[str, Any]] = []
    if "alpha" in fuses:
        each.append({"alpha": 3.0 if whole else 0.3})
    if "beta" in fuses:
        each += [{"beta": -2.0, "c": "own"}, {"beta": 1.0, "c": "out"}]
    if "bias" in fuses:
        each.append({"bias": True})
    each += [{"epilogue": name} for name in epilogues_of(row, pair[0])[1:]]
    if "scales" in fuses and pair[0].startswith("float8"):
        each += [{"scales": "tensor"}, {"scales": "row"}]
    if "batch" in fuses:
        each.append({"batch": (3,)})
    if alone:
        for asked in each:
            yield replace(base, **asked)
    if len(each) > 1:
        together: dict[str, Any] = {}
        for asked in each:
            together.update(asked)
        yield replace(base, **together)
