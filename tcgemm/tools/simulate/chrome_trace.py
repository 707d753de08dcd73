"""``tcgemm simulate --trace``: what each warp did when, as Chrome trace JSON.

Perfetto (ui.perfetto.dev) and chrome://tracing open it: a process for each block, a track for each
warp, and one for the tensor cores where they work while the warp goes on (wgmma).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ResultsError

CLOCK = (
    "Ticks of a logical clock, written as microseconds; not a GPU's time. A warp's request to "
    "memory or issue of an instruction takes one tick, a tensor-core product one for each 16 x 8 "
    "results and 32 bytes of K, and data are there latency_ticks after they were asked for. A "
    "warp that waits goes on at the tick of what it waited for. Each block begins at tick 0."
)
ASYNCHRONOUS = 1000
"""Added to a warp's number for the track of its tensor-core work."""


def trace_of(row: dict[str, Any], latency: int, spans: Sequence[Any]) -> dict[str, Any]:
    """The trace of a simulated kernel.

    Args:
        row: what ``measure`` says of it.
        latency: ticks from asking to having, as simulated.
        spans: ``Report.timeline``.
    """
    grid = row["grid"]
    blocks_in_all = grid[0] * grid[1] * grid[2]
    followed = sorted({(span.launch, span.block) for span in spans})
    pids = {which: number for number, which in enumerate(followed, 1)}
    launches = len({launch for launch, _ in followed})
    events: list[dict[str, Any]] = []
    named: set[Any] = set()
    for span in spans:
        pid = pids[span.launch, span.block]
        tid = span.warp + (ASYNCHRONOUS if span.asynchronous else 0)
        if pid not in named:
            named.add(pid)
            x, y = span.block % grid[0], span.block // grid[0]
            launch = f"launch {span.launch + 1}, " if launches > 1 else ""
            events.append(_name("process_name", pid, 0, f"{launch}block {x}, {y}"))
        if (pid, tid) not in named:
            named.add((pid, tid))
            of = ": tensor cores" if span.asynchronous else ""
            events.append(_name("thread_name", pid, tid, f"warp {span.warp}{of}"))
        event = {
            "name": span.phase, "cat": _category(span.phase), "ph": "X", "ts": span.start,
            "dur": span.end - span.start, "pid": pid, "tid": tid,
            "args": {"operations": span.count, **({"line": span.line} if span.line else {})},
        }  # fmt: skip
        events.append(event)
    about = {
        "kernel": row["kernel"],
        "problem": f"{row['M']}x{row['N']}x{row['K']} {row['dtype_in']} {row['layout']}",
        "blocks": f"{len({block for _, block in followed})} of {blocks_in_all}",
        "latency_ticks": latency,
        "clock": CLOCK,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _category(phase: str) -> str:
    return "wait" if phase.startswith("wait") else "work"


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Writes the trace, one event a line. Raises ResultsError where that cannot be."""
    lines = ",\n".join(json.dumps(event) for event in trace["traceEvents"])
    rest = json.dumps({key: value for key, value in trace.items() if key != "traceEvents"})
    try:
        path.write_text(f'{{"traceEvents": [\n{lines}\n],\n{rest[1:]}\n')
    except OSError as error:
        raise ResultsError(
            f"cannot write {path}: {error.strerror}; --trace names another place"
        ) from None
