"""What ``tcgemm explain`` prints: its answer first, then what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...vocabulary import AUTO
from .ranking import spread

if TYPE_CHECKING:
    from ...gpus import Gpu
    from ...problem import Problem
    from .bound import Bound
    from .choice import Choice
    from .ranking import Estimate

MARGIN = 0.9
"""Of the time of the kernel that is chosen: one that takes less in the ranking is named."""


def print_all(
    problem: Problem,
    board: Gpu,
    choices: Sequence[Choice],
    against: Bound,
    ranking: Sequence[Estimate],
    auto: str,
    folder: Path | None,
    default: str,
) -> None:
    """Print the answer, each kernel's grid, the bound, the ranking and who refuses, in this order.

    Args:
        auto: what backend="auto" takes, and why.
        folder: the results that the ranking rests on; None where there are none.
        default: the backend of a call that names none.
    """
    console = Console()
    lines = _answer(problem, board, choices, against, ranking, default)
    if default == AUTO:
        lines.insert(2, f"matmul(a, b) runs what backend='auto' takes: {auto}")
    else:
        lines.append(f"backend='auto': {auto}")
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)
    for each in choices:
        if lines := _lines(each, board):
            console.print(f"\n[bold]{each.backend}/{each.kernel}[/]")
            for line in lines:
                console.print("  " + escape(line), soft_wrap=True)
    console.print("\n[bold]bound[/]")
    for line in _bound_lines(against, board, problem):
        console.print("  " + escape(line), soft_wrap=True)
    console.print()
    _print_ranking(console, ranking, choices, folder)
    _print_refusals(console, choices, ranking)


def _answer(
    problem: Problem,
    board: Gpu,
    choices: Sequence[Choice],
    against: Bound,
    ranking: Sequence[Estimate],
    default: str,
) -> list[str]:
    """Which kernel each backend runs and how long it takes, and what no kernel can beat."""
    times = {each.kernel: each for each in ranking if each.us is not None}
    timed: list[str] = []
    untimed: list[str] = []
    lines = [f"{problem} on {_sms(board)}".replace(f" on {problem.device} on ", " on ", 1), ""]
    for each in sorted(choices, key=lambda choice: choice.backend != default):
        call = "matmul(a, b)" if each.backend == default else f"backend={each.backend!r}"
        if each.kernel is None:
            lines.append(f"{call}: {each.why}")
            continue
        name = f"{each.backend}/{each.kernel}"
        why = f", {each.why}" if each.by_name else ""
        if each.copied:
            lines.append(
                f"{call} runs {name} on copies of {each.copied} in aligned rows: these take about "
                f"{each.copying_us:.1f} us, and no time is known of the product"
            )
            continue
        lines.append(f"{call} runs {name}{why}")
        if name in times:
            lines[-1] += f": {_time(times[name])}"
        if not (each.by_name or each.by_tables):
            lines.append(f"  {each.kernel} is chosen {each.why}; the ranking is of launches alone")
        elif ahead := _ahead(each, times):
            lines.append(
                f"  {ahead} is ahead in the ranking, which is of launches alone; "
                "the choice goes by products among other kernels"
            )
        (timed if name in times else untimed).append(name)
    if untimed:
        whose = f" of {', '.join(untimed)}" if timed else ""
        lines.append(f"no time{whose} is known, as nothing near it was measured")
    if against.floor_us is not None:
        lines.append(f"no kernel takes less than {_us(against.floor_us)}: bound by {against.by}")
    return lines


def _ahead(each: Choice, times: Mapping[str, Estimate]) -> str | None:
    """A kernel of the backend that was measured to be faster than what tables and rules choose."""
    measured = {
        name: found.us
        for name, found in times.items()
        if found.exact and found.us and name.startswith(f"{each.backend}/")
    }
    mine = measured.get(f"{each.backend}/{each.kernel}")
    if mine is None or not each.by_tables:
        return None
    fastest = min(measured, key=lambda name: measured[name])
    return fastest if measured[fastest] < MARGIN * mine else None


def _us(us: float) -> str:
    """Microseconds to three digits, all of them where there are more."""
    return f"{us:,.0f} us" if us >= 99.95 else f"{us:#.3g} us"


def _time(found: Estimate) -> str:
    if found.exact:
        return f"{found.us:.1f} us, measured"
    return f"about {found.us:.1f} us, estimated from {found.measured}"


def _sms(board: Gpu) -> str:
    parts = [board.name]
    if board.sms:
        parts.append(f"{board.sms} SMs")
    if board.bandwidth_gb_s:
        parts.append(f"{board.bandwidth_gb_s:g} GB/s")
    if board.l2_bytes:
        parts.append(f"{board.l2_bytes / 2**20:g} MiB of L2")
    if board.source is None:
        parts.append("not in the table of GPUs, so neither waves nor bounds are known")
    return ", ".join(parts)


def _lines(each: Choice, board: Gpu) -> list[str]:
    from ...problem import settings

    lines = []
    if each.plan:
        lines.append("plan: " + settings(each.plan))
    if each.tile and each.tiles and each.padding_waste is not None:
        outside = f"; {each.padding_waste:.1%} of their elements lie outside C"
        lines.append(
            f"grid: {each.tiles[0]} x {each.tiles[1]} tiles of {each.tile[0]} x {each.tile[1]}, "
            f"{each.blocks:,} in all{outside if each.padding_waste >= 0.0005 else ''}"
        )
    if each.waves is not None and each.last_wave_fill is not None:
        lines.append(
            f"waves: {each.waves:.2f} over {board.sms} SMs, counting one tile to an SM at a time, "
            f"though small ones may share it; the last fills {each.last_wave_fill:.0%} of them"
        )
    if each.stage_bytes:
        stages = each.plan.get("NUM_STAGES", 1)
        lines.append(
            f"shared memory: {each.stage_bytes / 1024:.1f} KiB for "
            f"{stages} {'stages' if stages != 1 else 'stage'} of A and B, without padding"
        )
    if "unknown" in each.compiled:
        lines.append(f"compiled: {each.compiled['unknown']}")
    elif each.compiled:
        lines.append(
            "compiled: "
            + ", ".join(
                f"{name} {value}"
                for name, value in each.compiled.items()
                if not isinstance(value, dict)
            )
        )
    return lines


def _bound_lines(against: Bound, board: Gpu, problem: Problem) -> list[str]:
    lines = [
        f"operations: {against.flop:,} as 2 M N K; {against.eops:,} effective, as "
        "M K + (2 K - 1) M N + 2 M N",
        f"bytes: {against.bytes:,} at least (each operand once); "
        f"{against.intensity:.1f} operations per byte",
    ]
    if against.ridge is None or against.compute_us is None or against.memory_us is None:
        kind = f"{problem.dtype_in} by {problem.compute}"
        return [*lines, f"bound: unknown, {board.name} has no known peak for {kind}"]
    times = f"{_us(against.compute_us)} of arithmetic, {_us(against.memory_us)} of memory"
    side = "above" if against.by == "arithmetic" else "below"
    lines.append(
        f"bound: {against.by}; {side} the ridge of {against.ridge:.0f} operations per byte "
        f"({against.peak_tflops:g} TOPS over {against.bandwidth_gb_s:g} GB/s)"
    )
    lines.append(
        f"floor: {_us(max(against.compute_us, against.memory_us))} on {board.name} ({times})"
    )
    return lines


def _print_ranking(
    console: Console,
    ranking: Sequence[Estimate],
    choices: Sequence[Choice],
    folder: Path | None,
) -> None:
    if folder is None:
        console.print(
            "ranking: nothing was measured on this GPU; 'tcgemm bench' does, and --results DIR "
            "names another folder",
            soft_wrap=True,
        )
        names = ", ".join(each.kernel for each in ranking)
        if names:
            console.print(f"These take it: {names}.")
        return
    chosen = {f"{each.backend}/{each.kernel}" for each in choices}
    known = [each for each in ranking if each.us is not None]
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("kernel", "us", "measured, or scaled from"):
        table.add_column(name, no_wrap=name in ("kernel", "us"))
    for each in known:
        name = f"{each.kernel} (chosen)" if each.kernel in chosen else each.kernel
        clock = f" at {each.sm_clock_mhz:.0f} MHz" if each.sm_clock_mhz else ""
        scaled = f"{each.measured_us:.1f} at {each.measured}"
        table.add_row(name, f"{each.us:.1f}", f"measured{clock}" if each.exact else scaled)
    console.print(
        f"ranking: estimates from the nearest shapes of {folder}, measured where this one was",
        soft_wrap=True,
    )
    console.print(table)
    unknown = ", ".join(each.kernel for each in ranking if each.us is None)
    if unknown:
        console.print(f"Nothing near it was measured of {unknown}, which take it too.")
    if about_runs := spread(ranking):
        console.print(about_runs)


def _print_refusals(
    console: Console, choices: Sequence[Choice], ranking: Sequence[Estimate]
) -> None:
    """Each reason once, under the kernels that give it."""
    taking = {each.kernel for each in ranking}
    kernels: dict[str, list[str]] = {}
    for each in choices:
        for name, reason in each.others.items():
            if f"{each.backend}/{name}" not in taking:
                kernels.setdefault(reason, []).append(f"{each.backend}/{name}")
    if not kernels:
        return
    console.print("\n[bold]not taken by[/]")
    for reason, names in kernels.items():
        console.print(escape(f"  {', '.join(names)}: {reason}"), highlight=False)
