"""What each warp of a simulated kernel did when, by the clock of src/timeline.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PHASES = (
    "load", "wait for loads", "copy", "wait for copies", "TMA load", "wait at mbarrier",
    "wait at barrier", "shared load", "shared store", "mma", "wgmma", "wait for wgmma",
    "tensor cores", "store", "TMA store",
)  # fmt: skip
"""In the order of ``Phase`` in src/internal.hpp."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is asked of a run.

    Args:
        latency: ticks from asking global memory for data to having them, at least 0.
        blocks: how many blocks of each launch are followed, in the order in which they run.
    """

    latency: int = 128
    blocks: int = 16

    def __post_init__(self) -> None:
        if self.latency < 0 or self.blocks < 1:
            raise ValueError(
                f"a timeline of {self.blocks} blocks and a latency of {self.latency} ticks: "
                "at least 1 block and 0 ticks"
            )


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one track in which a warp did one thing. Ticks from the start of the run."""

    launch: int
    block: int
    warp: int
    asynchronous: bool
    """Whether it is the tensor cores' work for the warp, while the warp goes on."""
    phase: str
    start: int
    end: int
    count: int
    """Operations, or waits, that it holds."""
    line: int
    """Of the source or its headers, where one instruction stands for it; else 0."""


def read(path: Path) -> tuple[Span, ...]:
    """The spans of a run, block after block, each track's in order."""
    spans = []
    for line in path.read_text().splitlines():
        launch, block, warp, track, phase, start, end, count, at = map(int, line.split())
        spans.append(Span(launch, block, warp, track == 1, PHASES[phase], start, end, count, at))
    return tuple(sorted(spans, key=lambda s: (s.launch, s.block, s.warp, s.asynchronous, s.start)))
