"""``tcgemm simulate``: what a kernel does, counted on a CPU, and what is wrong with it.

CUDA rungs, and a user's own .cu file, run in the simulator of tcgemm.cuda_ref; the order of tiles
of either language goes through the model of ``tile_order``. Imports no torch until it runs.
"""

from __future__ import annotations

import math
from importlib import import_module
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import gpus, options, tile_order
from .errors import (
    OperandError,
    OperandTypeError,
    ResultsError,
    ToolchainError,
    UnknownNameError,
)
from .problem import ITEMSIZE
from .request import DEFAULT_GPU
from .vocabulary import check_stored
from .waiting import Waiting

if TYPE_CHECKING:
    import torch

    from .gpus import Gpu

LADDER = "ladder"
ORDER = "order"
GROUPS = (None, 1, 2, 4, 8, 16, 32, 64)
"""Orders that are compared: row after row, then GROUP_M."""
LARGEST = 2**30
"""M N K that the simulator is asked for at most: half a minute or so."""
_CUDA = "tcgemm.cuda_ref"
_SIMULATOR = f"{_CUDA}.simulator"

# Shared memory of an SM in KiB and its threads, by compute capability: CUDA C++ programming guide,
# technical specifications per compute capability.
_SM_LIMITS = {
    "t4": (64, 1024),
    "v100": (96, 2048),
    "a100": (164, 2048),
    "a10": (100, 1536),
    "rtx-3090": (100, 1536),
    "l4": (100, 1536),
    "l40s": (100, 1536),
    "rtx-4090": (100, 1536),
    "orin": (164, 1536),
    "rtx-5090": (100, 1536),
}
_SM_LIMITS_HOPPER = (228, 2048)


def simulate(
    kernel: Annotated[
        str,
        typer.Argument(
            help="A CUDA rung; 'ladder' for all of them; the path of your own .cu file, which runs "
            "as a program with your rights; 'order', triton/naive or triton/grouped for the order "
            "of tiles against the L2.",
            metavar="KERNEL",
        ),
    ],
    shape: Annotated[
        str | None,
        typer.Option(help="256x256x256 unless told; 8192x8192x8192 for orders.", metavar="MxNxK"),
    ] = None,
    dtype: options.Dtype = "float16",
    out_dtype: options.OutDtype = None,
    layout: options.Layout = "nn",
    gpu: Annotated[
        str, typer.Option(help="Whose L2 is modelled: h200, a100, t4, ...")
    ] = DEFAULT_GPU,
    order: Annotated[
        str,
        typer.Option(
            help="In which legal order threads run.", metavar="forward|reverse|random:SEED"
        ),
    ] = "forward",
    check: Annotated[
        bool,
        typer.Option("--check", help="Look for bad accesses, races, divergence; exit 1 on any."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds after which a kernel is stopped.", min=0.1, max=86400),
    ] = 120.0,
    json: options.Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Results folder for the report: the counts of the ladder, and of the orders of "
            "tiles, go to simulated.json there. With 'ladder' only.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Run CUDA kernels on this CPU: count what explains their speed, and check them.

    Nothing here is timed: counts are the kernel's, times would be the simulator's. Exits with 1
    where a kernel is wrong, where --check finds something, and where a kernel does not end.
    """
    board = gpus.find(gpu)
    if out is not None and kernel != LADDER:
        raise OperandError(f"--out keeps the counts of the whole ladder: simulate {LADDER!r}")
    if kernel in (ORDER, "triton/naive", "triton/grouped"):
        size = _shape(shape or "8192x8192x8192")
        orders = order_rows(kernel, size, dtype, board)
        if json:
            _print_json(orders)
        else:
            _print_orders(orders, size, board)
        return
    size = _shape(shape or "256x256x256")
    check_stored(dtype, out_dtype, layout)
    _check_order(order)
    names = _kernels(kernel)
    if kernel.endswith(".cu"):
        typer.echo(f"{kernel} is compiled and runs here as a program with your rights.", err=True)
    rows = []
    with Waiting(f"simulating {names[0]}") as waiting:
        for number, name in enumerate(names, 1):
            of = f" ({number} of {len(names)})" if len(names) > 1 else ""
            waiting.update(f"simulating {name}{of}")
            row = measure(
                name, size, dtype=dtype, out_dtype=out_dtype, layout=layout, gpu=board,
                order=order, check=check, timeout_s=timeout,
            )  # fmt: skip
            rows.append(row)
    if json:
        _print_json(rows)
    else:
        _print_table(rows, size, layout, board, check)
    if out is not None:
        _store(out, rows, order_rows(ORDER, (8192, 8192, 8192), dtype, board))
    if any(row["findings"] or row.get("wrong") for row in rows):
        raise typer.Exit(1)
    if kernel != LADDER and any(row["refused"] for row in rows):
        raise typer.Exit(2)


def _store(folder: Path, ladder: list[dict[str, Any]], orders: list[dict[str, Any]]) -> None:
    from .bench.store import SIMULATED

    text = dumps({"ladder": ladder, "orders": orders}, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SIMULATED).write_text(text)
    except OSError as error:
        raise ResultsError(f"cannot write {folder / SIMULATED}: {error.strerror}") from None


def machine(gpu: Gpu) -> Any:
    """The simulator's view of that GPU."""
    limits = next(
        (value for key, value in _SM_LIMITS.items() if f"-{key}-" in f"-{gpu.slug}-"),
        _SM_LIMITS_HOPPER,
    )
    return import_module(_SIMULATOR).Machine(
        gpu.name,
        sms=gpu.sms or 1,
        l2_bytes=gpu.l2_bytes or 0,
        shared_per_sm=limits[0] * 1024,
        threads_per_sm=limits[1],
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
) -> dict[str, Any]:
    """One kernel simulated on normal random operands, as a flat row of plain values.

    Args:
        kernel: a CUDA rung by name, or the path of a .cu file.
        shape: M, N, K.
        timeout_s: seconds after which the kernel is stopped, with a finding that says so.

    Returns:
        The counts of ``cuda_ref.simulator.Counts`` and ``L2`` and what follows from them; where the
        rung refuses the problem, ``refused`` says why and there are no counts. ``wrong`` says in
        words how wrong C is, and is empty where it is right or the kernel was stopped;
        ``error_ratio`` is the worst error over its bound, None where that is no number.

    Raises:
        UnknownNameError: no such rung or file.
        ToolchainError: the file does not compile, or the kernel does not run to its end.
    """
    from . import accuracy, dispatch
    from .problem import COMPUTES, Fusion

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
    _check_order(order)
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
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise ToolchainError(str(error)) from error
    row["findings"] = [finding.message for finding in report.findings]
    stopped = any(finding.fatal for finding in report.findings)
    row["wrong"] = "" if stopped else accuracy.what_is_wrong(a, b, c, fusion)
    ratio = accuracy.error_ratio(a, b, c, fusion)
    row["error_ratio"] = ratio if math.isfinite(ratio) else None
    counts, l2 = report.counts, report.l2
    row |= {
        "function": report.kernel,
        "grid": list(report.grid),
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


def _check_order(order: str) -> None:
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


def order_rows(
    kernel: str, shape: tuple[int, int, int], dtype: str, gpu: Gpu
) -> list[dict[str, Any]]:
    """The L2 model over orders of tiles, one row per tile size and order.

    ``order`` takes the tiles of the CUDA rungs that have a GROUP_M and of Triton's grouped rung;
    a Triton rung its own.
    """
    if dtype not in ("float16", "bfloat16"):
        raise OperandTypeError(f"orders are of float16 or bfloat16 operands, not {dtype!r}")
    M, N, K = shape
    itemsize = ITEMSIZE[dtype]
    rows = []
    for name, block_m, block_n in _tiles(kernel, shape, dtype):
        for group in (None,) if kernel == "triton/naive" else GROUPS:
            model = tile_order.traffic(
                M, N, K, block_m=block_m, block_n=block_n, group_m=group, places=gpu.sms or 1,
                l2_bytes=gpu.l2_bytes or 0, itemsize=itemsize,
            )  # fmt: skip
            least = (M * K + K * N) * itemsize
            rows.append(
                {
                    "kernel": name, "M": M, "N": N, "K": K, "dtype_in": dtype, "gpu": gpu.name,
                    "BLOCK_M": block_m, "BLOCK_N": block_n,
                    "GROUP_M": group, "order": "row-major" if group is None else "grouped",
                    "l2_hit_rate": model.hit_rate, "read_bytes": model.read_bytes,
                    "dram_bytes": model.dram_bytes, "dram_over_least": model.dram_bytes / least,
                    "flop_per_dram_byte": 2 * M * N * K / model.dram_bytes,
                    "waves": model.waves, "ridge": gpu.ridge(dtype),
                }
            )  # fmt: skip
    return rows


def _tiles(kernel: str, shape: tuple[int, int, int], dtype: str) -> list[tuple[str, int, int]]:
    from . import dispatch
    from .problem import Problem

    problem = Problem.stored(*shape, dtype, dtype, capability=(9, 0))
    if kernel == ORDER:
        names = [row for row in dispatch.ladder("cuda") if "GROUP_M" in row.plan(problem)]
        names.append(dispatch.find("triton", "grouped"))
    else:
        names = [dispatch.find("triton", kernel.removeprefix("triton/"))]
    tiles = []
    for row in names:
        plan = row.plan(problem)
        tiles.append((row.full_name, int(plan["BLOCK_M"]), int(plan["BLOCK_N"])))
    return tiles


def _kernels(kernel: str) -> list[str]:
    if kernel == LADDER:
        return ladder_names()
    if kernel.endswith(".cu"):
        return [kernel]
    if kernel.startswith("triton/"):
        raise UnknownNameError(
            f"{kernel} is no CUDA kernel: of Triton the order of tiles is modelled, for "
            "triton/naive and triton/grouped"
        )
    name = kernel.removeprefix("cuda/")
    names = ladder_names()
    if name not in names:
        raise UnknownNameError(
            f"unknown kernel {kernel!r}: choose from {', '.join(names)}, {LADDER}, {ORDER}, "
            "triton/naive, triton/grouped, or give the path of a .cu file"
        )
    return [name]


def _shape(text: str) -> tuple[int, int, int]:
    from .bench.cases import parse_shape

    shape = parse_shape(text)
    return shape.M, shape.N, shape.K


def _print_json(rows: list[dict[str, Any]]) -> None:
    import json

    typer.echo(json.dumps(rows, indent=2))


def _number(value: float | int | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The cells of one kernel, each under its name."""
    plan = row.get("plan", {})
    tile = [str(plan[key]) for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if key in plan]
    kinds = ", ".join(" ".join(kind.split()[:2]) for kind in row["mma"]) or "-"
    conflicts = row["bank_conflicts"]
    wavefronts = row["shared_wavefronts"]
    return [
        ("block tile", " x ".join(tile) or "-"),
        ("grid, block", f"{_dims(row['grid'])}, {_dims(row['block'])}"),
        ("shared memory, bytes", _number(row["shared_bytes"])),
        ("bytes loaded by threads", _number(row["load_bytes"])),
        ("FLOP per byte loaded", _number(row["flop_per_byte"])),
        ("sectors per load request", _number(row["sectors_per_load_request"] or None)),
        ("FLOP per byte of sectors", _number(row["flop_per_sector_byte"])),
        ("L2 hit rate (model)", _percent(row.get("l2_hit_rate"))),
        ("FLOP per byte of memory (model)", _number(row.get("flop_per_dram_byte"))),
        ("waves of blocks", _number(row.get("waves"))),
        ("shared wavefronts", _number(wavefronts)),
        ("of them bank conflicts", _percent(conflicts / wavefronts if wavefronts else None)),
        ("barriers per block", _number(row["barriers_per_block"])),
        ("tensor-core instructions", _number(sum(row["mma"].values()))),
        ("of kind", kinds),
        ("error / bound", _error(row)),
    ]


def _error(row: dict[str, Any]) -> str:
    if row["error_ratio"] is not None:
        return _number(row["error_ratio"], 2)
    return "see below" if row["wrong"] or row["findings"] else "-"


def _dims(extents: list[int]) -> str:
    kept = extents[: max((i + 1 for i, e in enumerate(extents) if e > 1), default=1)]
    return "x".join(map(str, kept))


def _print_table(
    rows: list[dict[str, Any]],
    shape: tuple[int, int, int],
    layout: str,
    gpu: Gpu,
    check: bool,
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    ran = [row for row in rows if not row["refused"]]
    # A rung's column and the titles take some 22 and 30 characters: a table for as many as fit.
    at_once = max(1, (console.width - 30) // 22)
    for start in range(0, len(ran), at_once):
        part = ran[start : start + at_once]
        types = f"{part[0]['dtype_in']} -> {part[0]['dtype_out']}"
        table = Table(
            title=f"{'x'.join(map(str, shape))} {types} {layout}, counted on a CPU; "
            f"L2 of the {gpu.name}",
            title_justify="left",
        )
        table.add_column("", no_wrap=True)
        for row in part:
            name = Path(row["kernel"]).name if row["kernel"].endswith(".cu") else row["kernel"]
            table.add_column(name, justify="right", overflow="fold")
        columns = [_lines(row) for row in part]
        for i, (title, _) in enumerate(columns[0]):
            table.add_row(title, *(escape(column[i][1]) for column in columns))
        console.print(table)
    if ran:
        first = ran[0]
        if first["ridge"]:
            console.print(
                f"The {gpu.name} needs {first['ridge']:.0f} FLOP per byte of memory to be bound by "
                f"its {first['dtype_in']} tensor cores and not by its memory."
            )
    for row in rows:
        if row["refused"]:
            console.print(escape(f"{row['kernel']} does not take this: {row['refused']}"))
        for message in row["findings"]:
            console.print(f"[red]{escape(message)}[/]", soft_wrap=True)
        if row.get("wrong"):
            name = Path(row["kernel"]).name
            console.print(
                f"[red]{escape(name)} is wrong: {escape(row['wrong'])}[/]", soft_wrap=True
            )
    if check and not any(row["findings"] or row.get("wrong") for row in rows):
        console.print("[green]Checked: nothing found.[/]")


def _print_orders(rows: list[dict[str, Any]], shape: tuple[int, int, int], gpu: Gpu) -> None:
    """A table a kernel, so that a narrow terminal has room for every name and number."""
    from itertools import groupby

    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"Order of tiles at {'x'.join(map(str, shape))} against the L2 of the {gpu.name} "
        f"({(gpu.l2_bytes or 0) / gpus.MIB:.0f} MiB, {gpu.sms} SMs, one block each)"
    )
    for (kernel, *tile), of_kernel in groupby(
        rows, key=lambda row: (row["kernel"], row["BLOCK_M"], row["BLOCK_N"])
    ):
        console.print(f"\n{kernel}, tiles of {tile[0]} x {tile[1]}")
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("order", no_wrap=True)
        for title in ("L2 hit rate", "from memory, GB", "times A and B", "FLOP per byte of memory"):
            table.add_column(title, justify="right")
        for row in of_kernel:
            table.add_row(
                "row after row" if row["GROUP_M"] is None else f"GROUP_M {row['GROUP_M']}",
                _percent(row["l2_hit_rate"]), f"{row['dram_bytes'] / 1e9:.2f}",
                f"{row['dram_over_least']:.1f}", _number(row["flop_per_dram_byte"]),
            )  # fmt: skip
        console.print(table)
    if rows and rows[0]["ridge"]:
        console.print(f"Ridge point of the {gpu.name}: {rows[0]['ridge']:.0f} FLOP per byte.")
