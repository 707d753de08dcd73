"""Findings in words: kernel, block, thread, operand, index and source line."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPERANDS = ("A", "B", "C", "C_in", "bias", "scale_a", "scale_b")

KINDS = (
    "none",
    "out of bounds",
    "misaligned",
    "uninitialised",
    "race",
    "async copy in flight",
    "not written",
    "written twice",
    "writes an input",
    "wild address",
    "out of shared memory",
    "divergent barrier",
    "exited before barrier",
    "divergent warp",
    "deadlock",
    "crash",
    "timeout",
    "not awaited",
    "reads another block's",
    "misuse",
)
"""Names of the kinds, in the order of ``Kind`` in src/internal.hpp."""

MISUSES = (
    "a shuffle takes the value of lane {offset}, which is not in the mask {bytes:#010x}: it is "
    "undefined. Name every lane that takes part",
    "a block has the named barriers 0 to 15, and this is number {offset}",
    "a named barrier is met by whole warps, and {offset} threads are no multiple of 32",
    "{offset} threads are said to meet at this barrier, and another thread said {bytes}",
    "cp.async copies 4, 8 or 16 bytes, not {offset}",
    "nobody has called mbarrier_init for the mbarrier at byte {offset} of shared memory{of_block}",
    "a bulk copy's box begins at byte {offset} of shared memory, which is no multiple of 128",
    "wgmma reads shared memory, byte {offset}, that the thread has written and not made visible to "
    "it: call fence_proxy_async() after the writes and before the barrier",
    "a bulk store reads shared memory, byte {offset}, that the thread has written and not made "
    "visible to it: call fence_proxy_async() after the writes and before the barrier",
    "a warp's first wgmma follows no wgmma_fence(), without which it may begin before the warp's "
    "registers are written",
    "the stack of {offset} KB that the simulator gives a thread is full: an endless recursion, or "
    "arrays of a thread that are too large",
    "cp.async is given an address in global memory that is {offset} bytes past a multiple of "
    "{bytes}: it has to be one where nothing is read, too",
    "block {offset} of a cluster of {bytes} is asked for, or none: count from 0",
    "it uses the mbarrier at byte {offset} of shared memory{of_block} before the blocks of the "
    "cluster have met since its mbarrier_init: call barrier_cluster_arrive() and _wait() after it",
    "it reaches into shared memory{of_block} of its cluster, which has returned "
    "by then or may have: let the cluster meet once more before its blocks return",
    "barrier_cluster_arrive and barrier_cluster_wait take turns, and here one has come twice",
    "cp.async.bulk copies a multiple of 16 bytes from and to multiples of 16: not {bytes} bytes "
    "with byte {offset} of shared memory",
    "a bulk copy reads shared memory, byte {offset}, that the thread has written and not made "
    "visible to it: call fence_proxy_async() after the writes and before the barrier",
    "its warp has synchronised {offset:,} times, more than the checks tell apart: check a smaller "
    "problem",
)
"""What an instruction does not allow, in the order of ``Misuse`` in src/internal.hpp."""
_ENDING = {4, 5, 10, 12, 15, 18}
"""Of these, those after which the kernel cannot go on."""

_MEANS = {
    "SIGFPE": " (an integer divided by zero)",
    "SIGABRT": " (an assertion that failed, or abort)",
    "SIGILL": " (a trap)",
}

_FATAL = {"divergent warp", "deadlock", "crash", "timeout", "wild address"}
# A misplaced barrier brings races with it, and a bad copy uninitialised reads: causes come first.
_FIRST = (
    "misuse", "crash", "timeout", "deadlock", "divergent warp", "wild address",
    "divergent barrier", "exited before barrier", "out of bounds", "out of shared memory",
    "misaligned", "async copy in flight", "not awaited", "writes an input",
    "written twice", "reads another block's", "uninitialised", "race", "not written", "none",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of fault at one place in the source, with the first thread that showed it."""

    kind: str
    message: str
    kernel: str
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None
    operand: str | None
    index: tuple[int, int] | None
    line: str | None
    """``file.cu:43``, where the compiler gives it."""
    times: int
    fatal: bool
    """The kernel could not go on."""

    def __str__(self) -> str:
        return self.message


def _resolve(library: Path, addresses: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """Address in the library -> (function, "file:line" in the kernel's own source)."""
    wanted = sorted({a for a in addresses if a})
    if not wanted:
        return {}
    try:
        listing = subprocess.run(
            ["addr2line", "-a", "-i", "-f", "-C", "-e", str(library), *map(hex, wanted)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[int, tuple[str, str | None]] = {}
    address, frames, chain = 0, [], {}
    lines = iter(listing)
    for text in lines:
        if text.startswith("0x"):
            address = int(text, 16)
            frames = chain.setdefault(address, [])
        else:
            frames.append((text, next(lines, "??:0").split(" (")[0]))
    for address, frames in chain.items():
        own = [
            (function, place)
            for function, place in frames
            if re.search(r":[1-9]\d*$", place) and not re.search(r"/simulator/|/c\+\+/", place)
        ]
        if not own:
            found[address] = (frames[0][0] if frames else "", None)
            continue
        # A helper in a header: name the line of the .cu file that called it as well.
        place = _short(own[0][1])
        caller = next((p for _, p in own if p.split(":")[0].endswith(".cu")), None)
        if caller is not None and _short(caller) != place:
            place = f"{_short(caller)}, in {place}"
        found[address] = (own[-1][0], place)
    return found


def _short(place: str) -> str:
    path, _, line = place.rpartition(":")
    return f"{Path(path).name}:{line}"


def _bare(function: str) -> str:
    """``void (anonymous namespace)::naive_kernel<__half, float>(...)`` -> naive_kernel."""
    match = re.search(r"(\w+)(?:<.*)?\(", function.replace("(anonymous namespace)::", ""))
    return match.group(1) if match else function


def _place(position: Any) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return tuple(position.block), tuple(position.thread)


def describe(
    source: Path,
    library: Path,
    raw: Sequence[Any],
    kernel_pc: int,
    shapes: tuple[tuple[int, int], ...],
    timeout_s: float,
) -> tuple[str, tuple[Finding, ...]]:
    """The kernel's name, and the findings in words; ``timeout_s`` is what the run was allowed."""
    if not raw:
        return source.stem, ()
    # A return address may belong to the next line: one byte before it is in the call.
    addresses = [kernel_pc + 1]
    for f in raw:
        addresses += [f.pc, f.other_pc, *f.frames]
    resolved = _resolve(library, [a - 1 for a in addresses if a])
    kernel = _bare(resolved.get(kernel_pc, (source.stem, None))[0]) or source.stem

    def line(pc: int, site: Any) -> str | None:
        place = resolved.get(pc - 1, ("", None))[1] if pc else None
        if place is None and site is not None and site.file:
            place = f"{Path(site.file.decode()).name}:{site.line}"
        return place

    found = []
    for f in raw:
        where = line(f.pc, None)
        for pc in f.frames:
            where = where or line(pc, None)
        where = where or line(0, f.site)
        found.append(_finding(f, kernel, where, line(f.other_pc, f.other_site), shapes, timeout_s))
    found.sort(key=lambda finding: _FIRST.index(finding.kind))
    return kernel, tuple(found)


def _finding(
    f: Any,
    kernel: str,
    where: str | None,
    other_where: str | None,
    shapes: tuple[tuple[int, int], ...],
    timeout_s: float,
) -> Finding:
    kind = KINDS[f.kind]
    block, thread = _place(f.at)
    operand = OPERANDS[f.operand] if f.operand >= 0 else None
    index = (f.row, f.col) if operand is not None and kind != "crash" else None
    verb = "writes" if f.write else "reads"
    threadless = kind in ("not written",) or f.has_other < 0
    who = f"block {block}" + ("" if f.has_other < 0 else f", thread {thread}")
    at = f" at {where}" if where else ""
    element = f"{operand}[{f.row}, {f.col}]" if operand else ""
    shape = "[{}, {}]".format(*shapes[f.operand]) if operand else ""
    other_block, other_thread = _place(f.other)
    other = f"thread {other_thread}" + (f" at {other_where}" if other_where else "")
    other_in_full = f"block {other_block}, {other}"
    nearby = other if other_block == block else other_in_full
    of_block = f" of block {tuple(f.owner)}" if f.has_owner else ""  # of shared memory
    shared = f"shared memory{of_block}, byte {f.offset}"
    match kind:
        case "out of bounds":
            text = f"{who} {verb} {f.bytes} bytes at {element}{at}; {operand} is {shape}"
        case "misaligned":
            what = f"{element}" if operand else shared
            text = (
                f"{who} {verb} {f.bytes} bytes at {what}{at}: the address is {f.signal} bytes past "
                f"a multiple of {f.bytes}"
            )
        case "uninitialised":
            text = f"{who} reads {f.bytes} bytes of {shared}{at}, which nobody in the block wrote"
        case "race":
            earlier = "wrote" if f.other_write else "read"
            text = f"{who} {verb} {f.bytes} bytes of {shared}{at}, " + (
                f"which a copy issued by {other_in_full} reads until somebody has waited for it"
                if f.other_sends
                else f"and {other_in_full} {earlier} there with no barrier in between"
            )
        case "async copy in flight":
            text = (
                f"{who} {verb} {f.bytes} bytes of {shared}{at} while a cp.async of {nearby} is "
                "in flight: wait for it, then meet at a barrier"
            )
        case "not written":
            M, N = shapes[2]
            text = (
                f"{f.times} of {M * N} elements of C are never written, the first {element}; "
                f"C is {shape}"
            )
        case "written twice":
            text = f"{who} writes {element}{at}, which block {other_block} wrote too"
        case "reads another block's":
            text = (
                f"{who} reads {element}{at}, which block {other_block} wrote in the same launch: "
                "blocks run in any order"
            )
        case "misuse":
            what = MISUSES[f.signal].format(offset=f.offset, bytes=f.bytes, of_block=of_block)
            text = f"{who}{at}: {what}"
        case "writes an input":
            text = f"{who} writes {element}{at}, an input"
        case "wild address":
            if operand:
                text = (
                    f"{who} {verb} {f.bytes} bytes far outside {operand} {shape}, where "
                    f"{element} would be{at}"
                )
            else:
                text = f"{who} {verb} {f.bytes} bytes at address {f.offset:#x}{at}, in no operand"
        case "out of shared memory":
            text = (
                f"{who} {verb} {f.bytes} bytes at byte {f.offset} of dynamic shared memory{at}, "
                "beyond what the launch asked for"
            )
        case "divergent barrier":
            text = f"{who} waits at the barrier{at}, {other} at another one"
        case "exited before barrier":
            text = f"{who} has returned, and {other} waits for it at a barrier"
        case "divergent warp":
            if f.signal:
                text = f"{who} waits for its warp{at}, and thread {other_thread} has returned"
            elif (block, thread) == (other_block, other_thread):
                text = f"{who} is not in the mask of its own warp-wide operation{at}"
            else:
                text = f"{who} waits for its warp{at}, and {other} is elsewhere"
        case "deadlock":
            text = f"{who} waits{at} for ever" + (f"; {nearby} waits too" if f.has_other else "")
        case "crash":
            try:
                name = signal.Signals(f.signal).name
            except ValueError:
                name = "no signal"
            at_address = f" at address {f.offset:#x}" if name in ("SIGSEGV", "SIGBUS") else ""
            name += _MEANS.get(name, "")
            text = f"the kernel crashed with {name}{at_address}{at}, {who}"
        case "not awaited":
            text = f"{who} returns, and nobody has waited for its warp's wgmma{at}"
        case "timeout":
            text = f"the kernel did not end within {timeout_s:g} s and was stopped{at}, {who}"
        case _:
            text = who
    more = f" ({f.times} times)" if f.times > 1 and kind != "not written" else ""
    return Finding(
        kind=kind,
        message=f"{kernel}: {kind}: {text}{more}",
        kernel=kernel,
        block=None if kind == "not written" else block,
        thread=None if threadless else thread,
        operand=operand,
        index=index,
        line=where,
        times=f.times,
        fatal=kind in _FATAL or (kind == "misuse" and f.signal in _ENDING),
    )
