"""The kernels of tcgemm.dist.overlap in CUDA: each function starts one on the current stream.

On a CPU they run in the simulator, in processes of their own: there all that peers write, and the
words of this rank, have to lie in memory that processes share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from ..build import toolchain
from ..fusion import TILE, Asked, case
from ..handle import bound, gemm_of
from ..rungs.wgmma_persistent import SIMULATED, TILES

NAME = "wgmma_overlap"

STAMPED = "-DTCGEMM_STAMPS=1"
"""The flag of a build that writes clock stamps."""

looks_per_s = 1_000_000
"""How often a kernel looks at a flag, roughly."""

AWAITS = True
"""A product that begins a call waits until the slot is free."""

ENTER, GATHER, SCATTER = range(3)


class Peers(ctypes.Structure):
    """tcgemm::sm90::Peers of csrc/sm90/peers.cuh."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in (
            "step", "rank", "world", "chunk", "part_tiles", "most", "flags_at", "limit", "debug",
            "spare_sms", "turn", "lag", "done_at", "cluster", "begins",
        )),
        *((name, ctypes.c_void_p) for name in (
            "flags", "done", "epoch", "last", "count", "trouble", "slot", "words", "slots",
            "stamps",
        )),
    )  # fmt: skip


def _peers(step: int, call: Any, slot: torch.Tensor | None = None, plan: Any = None) -> Peers:
    return Peers(
        step=step,
        rank=call.rank,
        world=call.world,
        chunk=call.chunk,
        part_tiles=1 if plan is None else plan.part_tiles // plan.tile.CLUSTER,
        most=call.most,
        flags_at=call.flags_at,
        limit=call.limit,
        debug=int(call.debug),
        spare_sms=call.spare,
        turn=0 if plan is None else plan.turn,
        lag=0 if plan is None else plan.lag,
        done_at=call.done_at,
        cluster=1 if plan is None else plan.tile.CLUSTER,
        begins=int(call.begins),
        flags=call.flags.data_ptr(),
        done=call.done.data_ptr(),
        epoch=call.epoch.data_ptr(),
        last=call.last.data_ptr(),
        count=call.count.data_ptr(),
        trouble=call.trouble.data_ptr(),
        slot=None if slot is None else slot.data_ptr(),
        words=call.words.data_ptr(),
        slots=call.data.data_ptr(),
        stamps=None if call.stamps is None else call.stamps.data_ptr(),
    )


def build_plan(tile: Any) -> Mapping[str, int]:
    """What a build is for: the tile. It takes single blocks and pairs."""
    found = next(t for t in TILES if (t.BLOCK_M, t.BLOCK_N) == (tile.BLOCK_M, tile.BLOCK_N))
    return {**found.plan, "SHARES_A": 0, "CLUSTER": 1}


def defines(
    dtype: torch.dtype, fusion: Asked | None, tile: Any, stamps: bool = False
) -> tuple[str, ...]:
    """The flags of the build that takes the case on a GPU; ``stamps``: and writes clock stamps."""
    macros = toolchain.built_by_case(toolchain.source(NAME))
    flags = case(dtype, fusion, dtype, False, macros, build_plan(tile))
    return (*flags, STAMPED) if stamps else flags


def _start(
    peers: Peers, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Asked | None, tile: Any
) -> Callable[..., None] | None:
    """Start a kernel; what starts the same one again, with other operands of the same kind."""
    if not a.is_cuda:
        _simulate(peers, a, b, c, fusion, tile)
        return None
    device = a.get_device()
    biased, epilogue = (False, "") if fusion is None else (fusion.bias is not None, fusion.epilogue)
    capability = torch.cuda.get_device_capability(device)
    library = _library(capability, a.dtype, biased, epilogue, tile, bool(peers.stamps))
    start = bound(NAME, library, device, gemm_of(a, b, c, fusion, None), fusion is None)
    told, tell = ctypes.byref(peers), library.tcgemm_peers

    def again(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None) -> None:
        tell(told)
        start(a, b, c, None, bias, None, None)

    again(a, b, c, None if fusion is None else fusion.bias)
    return again


def _again(
    step: int, call: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> bool:  # fmt: skip
    """Whether such a kernel was started of such a call before, and so has been again."""
    kept = None if call.kept is None else call.kept.get(step)
    if kept is None:
        return False
    kept(a, b, c, bias)
    return True


def _first(step: int, call: Any, peers: Peers, *operands: Any) -> None:
    started = _start(peers, *operands)
    if call.kept is not None:
        call.kept[step] = started


def prepare(
    dtypes: Iterable[torch.dtype], epilogues: Iterable[str], tiles: Any, stamps: bool = False
) -> int:
    """Have the store hold builds for compute capability 9.0, with a bias where there is an
    epilogue, made side by side; how many were built. About half a minute each. ``stamps``: and
    those that write clock stamps."""
    from ..build.extensions import build_ahead

    cases = {
        _flags(dtype, bool(epilogue), epilogue, tile, stamped)
        for dtype in dtypes
        for epilogue in epilogues
        for tile in tiles
        if tile.fuses or not epilogue
        for stamped in {False, stamps}
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        return sum(pool.map(lambda each: build_ahead(NAME, (9, 0), each), cases))


def _flags(
    dtype: torch.dtype, biased: bool, epilogue: str, tile: Any, stamps: bool
) -> tuple[str, ...]:
    bias = torch.empty(8) if biased else None
    return defines(dtype, _fusion(bias, epilogue), tile, stamps)


@cache
def _library(
    capability: tuple[int, int], dtype: torch.dtype, biased: bool, epilogue: str, tile: Any,
    stamps: bool,
) -> ctypes.CDLL:  # fmt: skip
    """Found once a kind of call: which build it is takes a dozen looks at files."""
    from ..build.extensions import library

    opened = library(NAME, capability, _flags(dtype, biased, epilogue, tile, stamps))
    opened.tcgemm_peers.argtypes, opened.tcgemm_peers.restype = [ctypes.c_void_p], None
    return opened


def _simulate(
    peers: Peers, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Asked | None, tile: Any
) -> None:
    """The simulator's operands have at least a row: of a rank without rows, none is looked at."""
    from ..simulator import simulate
    from ..simulator.build import library

    macros = toolchain.built_by_case(toolchain.source(NAME))
    source = toolchain.source(NAME)
    further = (STAMPED,) * bool(peers.stamps)
    if peers.step in (GATHER, SCATTER):
        further += _simulated_tile(tile)
    path = library(source, False, case(a.dtype, fusion, c.dtype, False, macros) + further)
    setter = ctypes.CDLL(str(path)).tcgemm_peers
    setter.argtypes, setter.restype = [ctypes.c_void_p], None
    setter(ctypes.byref(peers))
    a, c = (x if x.shape[0] else x.new_zeros(1, x.shape[1]) for x in (a, c))
    simulate(source, a, b, c, fusion=fusion, defines=further, told=True).raise_if_stopped()


def _simulated_tile(tile: Any) -> tuple[str, ...]:
    """Flags of a build for the tile; none where it is that of a build that names none."""
    if (tile.BLOCK_M, tile.BLOCK_N) == (SIMULATED.BLOCK_M, SIMULATED.BLOCK_N):
        return ()
    plan = build_plan(tile)
    return tuple(f"-DTCGEMM_{name}={plan[name]}" for name in TILE if name in plan)


def _fusion(bias: torch.Tensor | None, epilogue: str) -> Asked | None:
    if bias is None and not epilogue:
        return None
    return Asked(1.0, 0.0, epilogue, "float32", "", bias=bias)


@cache
def _any_operands(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    like = torch.empty(1, 8, dtype=torch.bfloat16, device=device)
    return like, like.mT, like[:, :1]


def enter(call: Any) -> None:
    """Tell the peers of the calls that have ended here, wait until they are done with the slot, and
    count this call. Every build has this kernel; any operands will do."""
    operands = _any_operands(call.epoch.device)
    if not _again(ENTER, call, *operands):
        _first(ENTER, call, _peers(ENTER, call), *operands, None, TILES[0])


def gather(
    own: torch.Tensor, gathered: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any,
) -> None:  # fmt: skip
    """out[M, N] = f(A @ b + bias), A's rows being ``own`` here and ``gathered`` of the peers."""
    if not _again(GATHER, call, own, b, out, bias):
        peers = _peers(GATHER, call, gathered, plan)
        _first(GATHER, call, peers, own, b, out, _fusion(bias, epilogue), plan.tile)


def sent_shape(plan: Any, N: int) -> tuple[int, ...]:
    """Of what a peer sends to a slot: whole tiles, in the order of csrc/sm90/owners.cuh."""
    return plan.tiles(N), plan.tile.BLOCK_M, plan.tile.BLOCK_N


def scatter(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, slots: torch.Tensor,
    bias: torch.Tensor | None, epilogue: str, call: Any, plan: Any,
) -> None:  # fmt: skip
    """out[rows here, N] = f(sum over ranks of a @ b + bias); peers' sums come to ``slots``."""
    if not _again(SCATTER, call, a, b, out, bias):
        peers = _peers(SCATTER, call, slots, plan)
        _first(SCATTER, call, peers, a, b, out, _fusion(bias, epilogue), plan.tile)
