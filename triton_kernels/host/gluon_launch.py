"""The launch of a Gluon kernel: its constexpr config, and descriptors of its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from triton.experimental.gluon import language as gl

from ..device import matrix_parts
from ..device.blocks import step_of
from ..device.dot import summed_in
from ..device.row_sums import PARTS
from ..device.sums import add
from .descriptors import describe, reachable, storable, stored
from .fused_arguments import batch_size, batch_strides, finishes, operands
from .gluon_checks import check_across, check_buffers, check_parts, check_transposed
from .gluon_descriptors import in_eights, of_float64, rounding, swizzled
from .recording import Step
from .runtime import cdiv, programs
from .tile_blocks import MOST_BLOCKS, blocks_of, subtile_columns


@dataclass(frozen=True)
class Config:
    """The constexpr config of a kernel: what it is compiled for."""

    GROUP_M: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    ACROSS: bool
    """A is float32 as it lies, which the threads read for wgmma (device/across_k.py)."""
    L2_PREFETCH: int
    """Columns of K, of the larger operand, prefetched into L2 before this kernel may read them."""
    STREAM_A: bool
    """The larger one is A."""
    REST: int
    """Columns of the accumulators beside the first, and of as many blocks of B; 0: none."""
    C_TRANSPOSED: bool
    """Rows of C, as it lies in memory, are the accumulators' columns."""
    TERMS: int
    """2: A and B are float32 as hi and lo, each in tf32."""
    FLOAT64: bool
    """What TMA brings and stores is float64, of which it knows pairs of int32."""
    A_TERMS: int
    """Of A in shared memory: 1 where the threads make its terms."""
    BATCHED: bool
    IN_PARTS: bool
    """The matrices of the batch are parts of K of one product, and C is a workspace for them."""
    PROMOTE: bool
    """The sum of each step of K is added outside of the tensor core."""
    FUSED: bool
    SCALED: bool
    """The whole accumulator is multiplied, by alpha and scales of one element."""
    STAGED: bool
    """C_in, or Z that is read, is loaded by TMA."""
    AUX: str
    """Z takes C_in's place: "write" it, or "read" it. "sums": the sums of A's rows."""
    UNALIGNED_C: int
    """Columns of an epilogue subtile where TMA cannot store C and threads do, by vectors of 16
    bytes, which c is a pointer for; 0: TMA stores C."""
    MOVES_REGISTERS: bool
    """From the producer to the consumers, as their accumulators need."""
    ROW_SCALES_A: bool
    ROW_SCALES_B: bool
    BIAS_ROWS: bool
    ACTIVATION: str


MAY_KEEP_REGISTERS = signature(gl.warp_specialize).parameters["worker_num_regs"].default is None
"""Since Triton 3.7 registers need not move."""

FINISHING = ("ROW_SCALES_A", "ROW_SCALES_B", "BIAS_ROWS", "ACTIVATION")
"""The constants of ``Config`` that ``epilogue.operands`` gives."""


def arguments(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, *, BLOCK_M: int,
    BLOCK_N: int, BLOCK_K: int, GROUP_M: int, NUM_STAGES: int, CONSUMERS: int, SUBTILES: int,
    BUFFERS: int, REPACK: int = 0, REST: int = 0, SWAP: int | None = None,
    L2_PREFETCH: int = 0, SPLITS: int = 1, ACROSS: int = 0,
) -> tuple[tuple[int], tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The launch as (grid, positional arguments, constants and options) of ``kernel``."""
    in_parts = SPLITS > 1
    compute = "float32" if fusion is None else fusion.compute
    if in_parts:
        check_parts(c, fusion, SPLITS, cdiv(a.shape[-1], BLOCK_K))
    transposed = computes_transposed(c, SWAP)
    # The second launch stores C, and parts of it lie as they are computed.
    c_transposed = transposed != (stored(c) == "t") and not in_parts
    if transposed:
        a, b, c = b.mT, a.mT, c.mT
    if ACROSS:
        check_across(a, b, c, compute, fusion, SWAP, BLOCK_M // CONSUMERS)
    if c_transposed:
        check_transposed(c.mT, fusion)
    (M, K), N = a.shape[-2:], b.shape[-1]
    terms = 2 if compute == "tf32x3" else 1
    part, widths = BLOCK_M // CONSUMERS, blocks_of(BLOCK_N, REST)
    a_transposed, b_transposed = stored(a) == "t", stored(b) == "t"
    if a.itemsize in (1, 4):
        # wgmma reads these along K alone; a single row or column lies either way.
        a_transposed, b_transposed = a_transposed and bool(ACROSS), True
    make = rounding if compute == "tf32" else swizzled
    of_a, of_b, of_c = make, make, swizzled
    if a.dtype == torch.float64:
        of_a = of_float64 if a_transposed else in_eights
        of_b, of_c = (in_eights if b_transposed else of_float64), of_float64
    described_a = describe(a, (part, BLOCK_K), a_transposed, of_a)
    described_b = [describe(b, (BLOCK_K, width), b_transposed, of_b) for width in widths]
    by_tma = in_parts or c_transposed or storable(c)
    subtile = subtile_columns(BLOCK_N, REST, SUBTILES)
    types = a.dtype, c.dtype
    check_buffers(BUFFERS, BLOCK_K, subtile, types, fusion, by_tma)
    described_c = [c]
    if in_parts:
        described_c = [None]
    elif by_tma:
        described_c = [
            None if before and width >= subtile
            else describe(c, (part, min(width, subtile)), c_transposed, of_c)
            for before, width in enumerate(widths)
        ]  # fmt: skip
    else:
        subtile = min(subtile, *widths)
    batches = SPLITS if in_parts else batch_size(c)
    aux = "" if fusion is None else fusion.aux
    finished = None if aux == "sums" else fusion
    (c_in, *others), constants = operands(finished, transposed)
    bias, scale_a, scale_b, alpha, beta, *strides = others
    batch_in = batch_strides(a, b, c, finished)[3]
    scaled = alpha != 1 or any(s is not None and s.numel() == 1 for s in (scale_a, scale_b))
    staged = None
    c_in_rows = c_in.mT if c_in is not None and transposed else c_in
    has_room = aux == "write" or (BUFFERS == SUBTILES and not REST)
    if c_in_rows is not None and has_room and reachable(c_in_rows):
        staged = describe(c_in_rows, (part, subtile), False, of_c)
        # The strides, and the step from one C_in of a batch to the next, stand in the descriptor.
        c_in, strides[:2], batch_in = None, (None, None), None
        if aux == "write":
            c_in, staged = staged, None
    parts, total = (row_sums_of(a), fusion.c) if aux == "sums" else (None, None)
    if in_parts:
        rows, columns = cdiv(M, BLOCK_M) * BLOCK_M, cdiv(N, BLOCK_N) * BLOCK_N
        parts = matrix_parts.workspace(SPLITS, rows, columns, a, summed_in(compute))
    larger = a if M > N else b
    streamed = (larger, max(larger.stride())) if L2_PREFETCH and batches == 1 else (None, None)
    promote = compute == "tf32x3"
    promote |= fusion is not None and a.itemsize == 1 and compute == "float32"
    config = Config(
        GROUP_M=GROUP_M,
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        ACROSS=bool(ACROSS),
        L2_PREFETCH=L2_PREFETCH * BLOCK_K if batches == 1 else 0,
        STREAM_A=streamed[0] is not None and M > N,
        REST=REST,
        C_TRANSPOSED=c_transposed,
        TERMS=terms,
        FLOAT64=a.dtype == torch.float64,
        A_TERMS=1 if ACROSS else terms,
        BATCHED=batches > 1,
        IN_PARTS=in_parts,
        PROMOTE=promote,
        FUSED=finishes(finished),
        SCALED=scaled,
        STAGED=staged is not None,
        AUX=aux,
        UNALIGNED_C=0 if by_tma else subtile,
        MOVES_REGISTERS=moves_registers(
            CONSUMERS, part * BLOCK_N // 128 * (1 + promote), finishes(finished)
        )
        or bool(ACROSS or aux)
        or a.dtype == torch.float64,
        **{name: constants[name] for name in FINISHING},
    )
    tiles = batches * cdiv(M, BLOCK_M) * cdiv(N, step_of(BLOCK_N, config))
    # Through its stages a program can store one tile: it has no other, on however few SMs.
    grid = (min(programs(a), tiles) if BUFFERS else tiles,)
    options = {"NUM_STAGES": NUM_STAGES, "CONSUMERS": CONSUMERS, "BUFFERS": BUFFERS}
    described = (described_a, *three(described_b), *three(described_c), staged, *streamed)
    last = {"CONFIG": config, **options, "num_warps": 4, "launch_pdl": True}
    finishing = (c_in, bias, scale_a, scale_b, alpha, beta, *strides, batch_in)
    stride_cm = None if by_tma else c.stride(0)
    return grid, (*described, M, N, K, batches, *finishing, stride_cm, parts, total), last


OF_A_THREAD = {1: 255, 2: 168, 3: 128}
"""Warpgroups that multiply -> registers of each thread of a program, as it starts: the producer's
warp brings three others with it."""

ACCUMULATORS, BESIDE_AN_EPILOGUE = 2 / 3, 1 / 2
"""Share of a thread's registers that accumulators may have where nothing follows the product, and
what they have less than where something does: then nothing spills."""


def moves_registers(CONSUMERS: int, accumulators: int, fused: bool) -> bool:
    """Whether registers have to move from the producer's threads to the consumers'.

    Before they do all warps wait for each other, three times before the first load: at 512 cubed
    that is 0.1 us (docs/lab/triton_warp_specialized.md). Before Triton 3.7 they always move.
    """
    of_a_thread = OF_A_THREAD[CONSUMERS]
    many = accumulators > ACCUMULATORS * of_a_thread
    if fused:
        many = accumulators >= BESIDE_AN_EPILOGUE * of_a_thread
    return not MAY_KEEP_REGISTERS or many


def three(some: list[Any]) -> list[Any]:
    """With None for those that are missing of three."""
    return [*some, None, None][:MOST_BLOCKS]


def computes_transposed(c: torch.Tensor, SWAP: int | None) -> bool:
    """Whether C' = B' A' is computed."""
    return stored(c) == "t" if SWAP is None else bool(SWAP)


def row_sums_of(a: torch.Tensor) -> torch.Tensor:
    """Memory for the parts of the sums of A's rows, [PARTS, M]."""
    return torch.empty(PARTS.value, a.shape[0], dtype=torch.float32, device=a.device)


def second(a: Any, b: Any, c: Any, args: tuple[Any, ...], plan: Mapping[str, int]) -> Step | None:
    """The launch that adds the parts of C, or of the sums of A's rows, where there are some.

    The total of the latter, which the first launch does not read, is an argument of it for this
    one.
    """
    *_, parts, total = args
    if parts is None:
        return None
    if plan.get("SPLITS", 1) > 1:
        return matrix_parts.add(parts, c.mT if computes_transposed(c, plan.get("SWAP")) else c)
    return add(parts, total, min(PARTS.value, cdiv(c.shape[1], plan["BLOCK_N"])))
