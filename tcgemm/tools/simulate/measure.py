"""One CUDA kernel in the simulator, on one problem: its counts, findings and error as a row."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import gpus
from ...errors import OperandError, ToolchainError, UnknownNameError
from ...request import DEFAULT_GPU
from ...vocabulary import check_stored

if TYPE_CHECKING:
    import torch

    from ...gpus import Gpu

LARGEST = 2**30
"""M N K that the simulator is asked for at most: half a minute or so."""
_CUDA = "tcgemm.cuda_ref"
_SIMULATOR = f"{_CUDA}.simulator"


def machine(gpu: Gpu) -> Any:
    """The simulator's view of that GPU."""
    shared_kib, threads = gpus.sm_limits(gpu)
    return import_module(_SIMULATOR).Machine(
        gpu.name,
        sms=gpu.sms or 1,
        l2_bytes=gpu.l2_bytes or 0,
        shared_per_sm=shared_kib * 1024,
        threads_per_sm=threads,
    )


def measure(
    kernel: str,
    shape: tuple[int, int, int],
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    layout: str = "nn",
    gpu: Gpu | None = None,
    order: str = "forward",
    check: bool = False,
    timeout_s: float = 600.0,
    latency: int | None = None,
) -> dict[str, Any]:
    """One kernel simulated on normal random operands, as a flat row of plain values.

    Args:
        kernel: a CUDA rung by name, or the path of a .cu file.
        shape: M, N, K.
        timeout_s: seconds after which the kernel is stopped, with a finding that says so.
        latency: ticks from asking global memory to having the data, where a timeline is wanted.

    Returns:
        The counts of ``cuda_ref.simulator.Counts`` and ``L2`` and what follows from them; where the
        rung refuses the problem, ``refused`` says why and there are no counts. ``wrong`` says in
        words how wrong C is, and is empty where it is right or the kernel was stopped;
        ``error_ratio`` is the worst error over its bound, None where that is no number.
        ``timeline``, where a latency is given, is ``cuda_ref.simulator.Report.timeline``.

    Raises:
        UnknownNameError: no such rung or file.
        ToolchainError: the file does not compile, or the kernel does not run to its end.
    """
    from ... import accuracy, dispatch
    from ...problem import COMPUTES, Fusion

    simulator = import_module(_SIMULATOR)
    board = gpu or gpus.find(DEFAULT_GPU)
    M, N, K = shape
    out_dtype = check_stored(dtype, out_dtype, layout)
    if M * N * K > LARGEST:
        raise OperandError(
            f"{M}x{N}x{K} is {M * N * K / LARGEST:.3g} times what the simulator is asked for at "
            "most (1024x1024x1024): counts per byte and per request hardly change beyond the tile, "
            "and 'tcgemm simulate order' models the L2 at any size"
        )
    check_order(order)
    a, b = map(_aligned, accuracy.operands(M, N, K, accuracy.as_dtype(dtype), layout, "cpu", 0))
    c = _aligned(accuracy.poisoned((M, N), accuracy.as_dtype(out_dtype), "cpu"))
    fusion = Fusion(compute=COMPUTES[dtype][0])
    problem = dispatch.problem_of(a, b, c, fusion)
    row: dict[str, Any] = {
        "kernel": kernel, "M": M, "N": N, "K": K, "dtype_in": dtype,
        "dtype_out": out_dtype, "layout": layout, "gpu": board.name, "order": order,
        "checked": check, "refused": None, "findings": [],
        "ridge": board.ridge(dtype, fusion.compute),
    }  # fmt: skip
    if kernel.endswith(".cu"):
        source = Path(kernel)
        if not source.is_file():
            raise UnknownNameError(f"no file {kernel!r}")
    else:
        rung = dispatch.find("cuda", kernel)
        source = simulator.source_of(kernel)
        row["refused"] = rung.why_not(problem)
        if row["refused"]:
            return row
        row["plan"] = dict(rung.plan(problem))
    try:
        report = simulator.simulate(
            source, a, b, c, fusion=None if problem.plain else fusion, order=order, check=check,
            count=True, machine=machine(board), timeout_s=timeout_s,
            timeline=None if latency is None else simulator.Timeline(latency),
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise ToolchainError(str(error)) from error
    row["findings"] = [finding.message for finding in report.findings]
    stopped = any(finding.fatal for finding in report.findings)
    row["wrong"] = "" if stopped else accuracy.what_is_wrong(a, b, c, fusion)
    ratio = accuracy.error_ratio(a, b, c, fusion)
    row["error_ratio"] = ratio if math.isfinite(ratio) else None
    counts, l2 = report.counts, report.l2
    if latency is not None:
        row["timeline"] = report.timeline
    row |= {
        "function": report.kernel,
        "grid": list(report.grid),
        **({"cluster": report.cluster} if report.cluster > 1 else {}),
        "block": list(report.block),
        "shared_bytes": report.shared_bytes,
        "flop": counts.flop,
        "load_bytes": counts.load_bytes,
        "store_bytes": counts.store_bytes,
        "flop_per_byte": counts.flop_per_byte,
        "load_sectors": counts.load_sectors,
        "load_requests": counts.load_requests,
        "sectors_per_load_request": counts.sectors_per_load_request,
        "load_efficiency": counts.load_efficiency,
        "flop_per_sector_byte": counts.flop_per_sector_byte,
        "store_sectors": counts.store_sectors,
        "store_requests": counts.store_requests,
        "shared_requests": counts.shared_requests,
        "shared_wavefronts": counts.shared_wavefronts,
        "bank_conflicts": counts.bank_conflicts,
        "barriers_per_block": counts.barriers / max(1, counts.blocks),
        "async_copies": counts.async_copies,
        "mma": dict(counts.mma),
        "mma_flop": counts.mma_flop,
    }
    if l2 is not None:
        dram = l2.dram_read + l2.dram_written
        row |= {
            "l2_hit_rate": l2.hit_rate,
            "dram_read_bytes": l2.dram_read,
            "dram_written_bytes": l2.dram_written,
            "flop_per_dram_byte": counts.flop / dram if dram else None,
            "blocks_per_sm": l2.blocks_per_sm,
            "waves": l2.waves,
        }
    return row


def check_order(order: str) -> None:
    try:
        import_module(_SIMULATOR).parse_order(order)
    except ValueError as error:
        raise OperandError(str(error)) from None


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides at a multiple of 256 bytes, as a GPU's allocator returns it.

    On the CPU memory begins at multiples of 64: rows would lie across the lines of a cache
    otherwise than on a GPU, and the counts with them.
    """
    import torch

    size = tensor.numel() * tensor.element_size()
    memory = torch.empty(size + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 256
    copy = memory[start : start + size].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return copy.copy_(tensor)


def ladder_names() -> list[str]:
    """The CUDA rungs that the simulator runs, from the first to the last."""
    rows = import_module(_CUDA).KERNELS
    return [row["name"] for row in rows if "cpu" in row.get("devices", ())]
