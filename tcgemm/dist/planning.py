"""Which way a product over several GPUs takes: overlapped, by one-shot collectives, or by NCCL's.

The answer is the same on every rank, as it rests on sizes that all know. Imports no torch.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from ..problem import COMPUTES, ITEMSIZE, OUTPUTS
from ..vocabulary import AUTO, BACKEND_VARIABLE
from . import model
from .fitted import LANGUAGES
from .model import Host, Times
from .options import ALL_GATHER
from .rows import chunk_of

OVERLAPPED = "overlapped"
ONE_SHOT = "one_shot"
SEQUENCE = "sequence"
WAYS = (OVERLAPPED, ONE_SHOT, SEQUENCE)

WORTH = 1.02
"""Another way than the sequence has to be this much faster: a model that errs must not cost time.
"""


OVERLAPS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""dtypes of operands that the overlapped engine takes; its result has the first of OUTPUTS."""

LANGUAGE_OF_8_BITS = "triton"
"""The one whose kernels take 8-bit floats."""

LANGUAGE_OF_TILES = "cuda"
"""The one whose partial sums lie in whole tiles."""

UNIT_BYTES = 16
"""Rows of A and of the result are multiples of it, as TMA needs them."""

MOST_WORLD = 8
"""Ranks of one host."""

ADDS = ("float16", "bfloat16", "float32")
"""dtypes of results whose sums over ranks the one-shot way makes, in float32."""

MOST_BYTES = 4 << 30
"""That a rank shares with the others in one call."""

MOST_TILES = 1 << 16
"""Of which a rank has flags: 4,096 x 4,096 x 128 x 256 elements of C."""

FLAGS_OF_A_TILE = 2
"""At most: one for each warpgroup of wgmma_overlap, which stores its own rows."""

LARGEST_TILE = {2: (128, 256), 1: (128, 128)}
"""Bytes of an element -> rows and columns of the engine's largest tile of C."""


Bounds = tuple[tuple[str, tuple[float, float]], ...]
"""Languages, and between what microseconds an overlapped product of theirs takes."""


class WayPlan(NamedTuple):
    """The way that a call takes, a sentence that says why, and the times where they are known."""

    way: str
    why: str
    times: Times | None = None
    refused: bool = False
    """Whether the overlapped way does not take the call, whatever its time."""
    refused_one_shot: bool = False
    """Whether the one-shot way does not."""


@lru_cache(maxsize=4096)
def plan_of(
    op: str, M: int, N: int, K: int, dtype: str, world: int, host: Host, why_not: str | None,
    language: str = "", why_not_one_shot: str | None = None,
    bounds: Bounds = (),
) -> WayPlan:  # fmt: skip
    """The plan of a product.

    Args:
        op: options.ALL_GATHER or options.REDUCE_SCATTER.
        M: rows of A, of all ranks.
        N, K: of this rank's product.
        dtype: of A and B, by name.
        host: the GPUs; of a CPU its slug is "".
        why_not: why the overlapped way does not take it, or None.
        language: of the overlapped way; "" for the faster.
        why_not_one_shot: why the one-shot way does not take it, or None.
        bounds: of the overlapped way, by engine.bounds_us.
    """
    times = model.times(op, M, N, K, dtype, world, host, language, dict(bounds))
    refused = why_not is not None, why_not_one_shot is not None
    if all(refused):
        said = dict.fromkeys((why_not, why_not_one_shot))
        return WayPlan(SEQUENCE, "; nor in one shot: ".join(map(str, said)), times, *refused)
    if times is None:
        unknown = model.why_unknown(dtype, host.slug)
        said_so = f"no time is known but of the sequence: {unknown}"
        return WayPlan(SEQUENCE, said_so, times, *refused)
    takes, told, not_told = {}, [], ""
    if why_not is None:
        takes[OVERLAPPED] = times.overlapped_us
        told.append(f"{times.overlapped_us:.0f} us overlapped in {times.language}")
    else:
        not_told = f"; not overlapped: {why_not}"
    if why_not_one_shot is None:
        takes[ONE_SHOT] = times.one_shot_us
        told.append(f"{times.one_shot_us:.0f} us in one shot")
    else:
        not_told = f"; not in one shot: {why_not_one_shot}"
    why = (
        f"about {', '.join(told)}, {times.sequence_us:.0f} us one after the other "
        f"({times.collective_us:.0f} us of NCCL, {times.gemm_us:.0f} us of product){not_told}"
    )
    best = min(takes, key=takes.__getitem__)
    if times.sequence_us >= WORTH * takes[best]:
        return WayPlan(best, why, times, *refused)
    return WayPlan(SEQUENCE, f"nothing else would pay: {why}", times, *refused)


def backend_of(named: str | None) -> str:
    """What the caller names, else the environment, else the faster of the two languages.

    Raises UnknownNameError where it rests on the environment, which names none.
    """
    if named or not os.environ.get(BACKEND_VARIABLE):
        return named or AUTO
    from ..dispatch import default_backend

    return default_backend()


def language_of(backend: str | None, dtype: str) -> str:
    """The language that a call overlaps in; "" for the faster, where it may be either."""
    if backend in LANGUAGES:
        return backend
    return LANGUAGE_OF_8_BITS if ITEMSIZE[dtype] == 1 else ""


def why_not_result(
    world: int, dtype: str, out_dtype: str | None = None, compute: str | None = None
) -> str | None:
    """Why no overlapped product gives the result that is asked for, before any engine is asked."""
    if world == 1:
        return "one rank has nothing to wait for"
    result, usual = OUTPUTS[dtype][0], COMPUTES[dtype][0]
    if compute and compute != usual:
        return f"it sums {dtype} as {usual} only, not {compute}"
    if out_dtype and out_dtype != result:
        return f"its result of {dtype} is {result}, not {out_dtype}"
    return None


def why_not(
    op: str, M: int, N: int, K: int, dtype: str, world: int, backend: str | None = None,
    kernel: str | None = None,
) -> str | None:  # fmt: skip
    """What the overlapped engine refuses by sizes and names alone, in a sentence with the numbers.

    None where they speak against nothing; the engine itself has more to say, of the GPUs and of
    the tile that it takes. Arguments as for ``plan_of``, and the names as the call has them.
    """
    backend = backend or AUTO
    if backend not in (*LANGUAGES, AUTO):
        return f"no product of backend {backend!r} overlaps: {', '.join(LANGUAGES)} do"
    if kernel:
        return f"an overlapped product has kernels of its own, and {kernel!r} is named"
    if dtype not in OVERLAPS:
        return f"operands are {dtype}: it takes two of float16, of bfloat16 or of one 8-bit float"
    item, result = ITEMSIZE[dtype], OUTPUTS[dtype][0]
    if item == 1 and backend not in (LANGUAGE_OF_8_BITS, AUTO):
        return (
            f"8-bit floats overlap in {LANGUAGE_OF_8_BITS} and {backend!r} is named: leave "
            "backend= away"
        )
    if world == 1:
        return "one rank has nothing to communicate"
    if world > MOST_WORLD:
        return f"{world} ranks: it takes up to {MOST_WORLD}, of one host"
    if not (M and N and K):
        return f"M={M} N={N} K={K}: an empty product needs no overlap"
    of_K, of_N = UNIT_BYTES // item, UNIT_BYTES // ITEMSIZE[result]
    if K % of_K or N % of_N:
        return (
            f"K={K} and N={N} of {dtype}: it takes multiples of {of_K} and of {of_N}, rows of "
            f"whole {UNIT_BYTES} bytes"
        )
    rows, columns = LARGEST_TILE[item]
    tiles = -(-chunk_of(M, world) // rows) * -(-N // columns)
    row = K * item + 4 if op == ALL_GATHER else N * ITEMSIZE[result]  # and a scale for each row
    data = world * chunk_of(M, world) * row
    if op != ALL_GATHER and backend in (LANGUAGE_OF_TILES, AUTO):  # which may take that language
        data = world * tiles * rows * columns * ITEMSIZE[result]
    if data > MOST_BYTES:
        return f"its ranks would share {data} bytes each, and it keeps to {MOST_BYTES}"
    return why_not_tiles(tiles)


def why_not_one_shot(
    op: str, M: int, N: int, K: int, dtype: str, world: int, out_dtype: str | None = None
) -> str | None:
    """What the one-shot way refuses by sizes and dtypes alone; None where they speak against
    nothing. Arguments as for ``plan_of``. Nothing rests on N of a gather or K of a scatter, which
    ranks need not share."""
    result = out_dtype or OUTPUTS[dtype][0]
    if world == 1:
        return "one rank has nothing to wait for"
    if world > MOST_WORLD:
        return f"{world} ranks: it takes up to {MOST_WORLD}, of one host"
    name, size, of = ("K", K, dtype) if op == ALL_GATHER else ("N", N, result)
    if not (M and size):
        return f"M={M} {name}={size}: there is nothing to store at peers"
    if op != ALL_GATHER and result not in ADDS:
        return f"partial sums are {result}: it adds {', '.join(ADDS)}"
    row = size * ITEMSIZE[of]
    if row % UNIT_BYTES:
        return f"{name}={size} of {of}: it stores rows of whole {UNIT_BYTES} bytes, not of {row}"
    data = world * chunk_of(M, world) * (row + 4 if op == ALL_GATHER else row)
    if data > MOST_BYTES:
        return f"its ranks would share {data} bytes each, and it keeps to {MOST_BYTES}"
    return None


def why_not_tiles(tiles: int) -> str | None:
    """Why a rank cannot have so many tiles; None where it can."""
    most = MOST_TILES // FLAGS_OF_A_TILE
    return f"a rank would have {tiles} tiles, and it has flags for {most}" if tiles > most else None
