"""``tcgemm simulate``: what a kernel does, counted on a CPU, and what is wrong with it.

CUDA rungs, and a user's own .cu file, run in the simulator of tcgemm.cuda_ref; the order of tiles
of either language goes through the model of ``tile_order``. Imports no torch until it runs.
"""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import gpus, options
from ...errors import OperandError, ResultsError, UnknownNameError
from ...request import DEFAULT_GPU
from ...vocabulary import check_stored, sizes_of
from ...waiting import Waiting
from .measure import check_order, ladder_names, measure
from .orders import ORDER, order_rows
from .tables import print_orders, print_table

LADDER = "ladder"
LATENCY = 128
"""Ticks: at 4 clocks for a product of 16 x 8 x 16, some 500 clocks of an H200."""


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
            help="In which legal order threads run; late: a warp of each block, or of each cluster "
            "one, as late as it may.",
            metavar="forward|reverse|random:SEED|late:WARP",
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
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write what each warp does when, as Chrome trace JSON, which Perfetto opens: of "
            "one kernel, the first 16 blocks. Ticks of a logical clock, no GPU's time.",
            metavar="FILE",
        ),
    ] = None,
    trace_latency: Annotated[
        int,
        typer.Option(
            help="Of --trace: ticks from asking global memory to having the data.",
            min=0,
            max=10**6,
            metavar="TICKS",
        ),
    ] = LATENCY,
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
    if trace is not None and kernel in (LADDER, ORDER, "triton/naive", "triton/grouped"):
        raise OperandError(f"--trace follows the warps of one CUDA kernel, and {kernel!r} is none")
    if kernel in (ORDER, "triton/naive", "triton/grouped"):
        size = sizes_of(shape or "8192x8192x8192")
        with Waiting(f"following the tiles of {shape or '8192x8192x8192'} through the L2"):
            orders = order_rows(kernel, size, dtype, board)
        if json:
            _print_json(orders)
        else:
            print_orders(orders, size, board)
        return
    size = sizes_of(shape or "256x256x256")
    check_stored(dtype, out_dtype, layout)
    names = _kernels(kernel)
    check_order(order)
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
                latency=None if trace is None else trace_latency,
            )  # fmt: skip
            rows.append(row)
    if trace is not None and not rows[0]["refused"]:
        from .chrome_trace import trace_of, write_trace

        write_trace(trace, trace_of(rows[0], trace_latency, rows[0].pop("timeline")))
        typer.echo(f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)
    if json:
        _print_json(rows)
    else:
        print_table(rows, size, layout, board, check)
    if out is not None:
        _store(out, rows, order_rows(ORDER, (8192, 8192, 8192), dtype, board))
    if any(row["findings"] or row.get("wrong") for row in rows):
        raise typer.Exit(1)
    if kernel != LADDER and any(row["refused"] for row in rows):
        raise typer.Exit(2)


def _store(folder: Path, ladder: list[dict[str, Any]], orders: list[dict[str, Any]]) -> None:
    from ...bench.store import SIMULATED

    text = dumps({"ladder": ladder, "orders": orders}, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SIMULATED).write_text(text)
    except OSError as error:
        raise ResultsError(f"cannot write {folder / SIMULATED}: {error.strerror}") from None


def _kernels(kernel: str) -> list[str]:
    if kernel == LADDER:
        return ladder_names()
    if kernel.endswith(".cu"):
        if not Path(kernel).is_file():
            raise UnknownNameError(f"no file {kernel!r}")
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


def _print_json(rows: list[dict[str, Any]]) -> None:
    import json

    typer.echo(json.dumps(rows, indent=2))
