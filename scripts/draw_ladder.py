#!/usr/bin/env python
"""The picture of README.md: each rung of both ladders as a share of cuBLAS, from committed rows.

    python scripts/draw_ladder.py [reports/nvidia-h200 [docs]]

writes ladder-light.svg and ladder-dark.svg. Running it twice changes no file.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

from tcgemm import dispatch
from tcgemm.files import write_whole
from tcgemm.report.folder import Folder, load
from tcgemm.report.style import DARK, GRID, INK, MUTED, PAPER, backend_colour

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "reports/nvidia-h200"
SHAPE, DTYPE, LAYOUT = (4096, 4096, 4096), "bfloat16", "nn"
TITLES = {"triton": "Triton", "cuda": "CUDA C++"}

WIDTH, TOP, ROW, BAR = 920, 74, 23, 15
"""Pixels: the picture, above the bars, from bar to bar, a bar."""
NAMES, SCALE, GAP = 164, 190, 20
"""Pixels: for names, from 0 to 100 %, between the two panels."""


class Rung(NamedTuple):
    """A kernel of the ladder on the picture's problem."""

    name: str
    percent: float
    tflops: float


def rungs(folder: Folder, backend: str) -> list[Rung]:
    """The rungs of a backend that were timed there, in the ladder's order."""
    table = folder.plain
    M, N, K = SHAPE
    here = table[(table["M"] == M) & (table["N"] == N) & (table["K"] == K)]
    here = here[(here["dtype_in"] == DTYPE) & (here["dtype_out"] == DTYPE)]
    here = here[(here["layout"] == LAYOUT) & here["pct_of_cublas"].notna()]
    timed = {(str(row.backend), str(row.kernel)): row for row in here.itertuples()}
    return [
        Rung(
            row.name, timed[backend, row.name].pct_of_cublas, timed[backend, row.name].paired_tflops
        )
        for row in dispatch.ladder(backend)
        if row.kind == "ladder" and (backend, row.name) in timed
    ]


def cublas_tflops(folder: Folder) -> float:
    """cuBLAS's rate on the problem, on the scale of the rungs'."""
    return next(rung.tflops for rung in rungs(folder, "cublas") if rung.name == "cublas")


def draw(folder: Folder, dark: bool) -> str:
    """The picture as an SVG document, in the light colours or their counterparts."""
    panels = {backend: rungs(folder, backend) for backend in TITLES}
    height = TOP + ROW * max(map(len, panels.values())) + 16
    M, N, K = SHAPE
    title = f"{M} x {N} x {K} in {DTYPE} on an {folder.name}: rate as % of cuBLAS, TFLOPS beside it"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
        _text(20, 28, title, INK, weight="600", size=15),
    ]
    for number, (backend, found) in enumerate(panels.items()):
        left = 20 + number * (NAMES + SCALE + GAP + 80)
        parts += _panel(left, backend, found, cublas_tflops(folder) if number == 0 else None)
    svg = "\n".join([*parts, "</svg>"]) + "\n"
    if dark:
        for light, other in DARK.items():
            svg = svg.replace(light, other)
    return svg


def _panel(left: int, backend: str, found: list[Rung], cublas: float | None) -> list[str]:
    colour = backend_colour(backend, list(TITLES))
    zero, full = left + NAMES, left + NAMES + SCALE
    bottom = TOP + ROW * len(found) - 2
    parts = [_text(left, TOP - 12, TITLES[backend], colour, weight="600")]
    parts += [_line(zero + SCALE * part // 4, TOP - 4, bottom, GRID) for part in range(4)]
    for place, rung in enumerate(found):
        y = TOP + ROW * place
        wide = max(1.0, SCALE * rung.percent / 100)
        value = f"{rung.percent:.0f} %" if rung.percent >= 10 else f"{rung.percent:.1f} %"
        rate = f"{rung.tflops:.0f}" if rung.tflops >= 10 else f"{rung.tflops:.1f}"
        parts += [
            _text(left, y + 12, rung.name, INK),
            f'<rect x="{zero}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
            _text(max(full, zero + wide) + 8, y + 12, value, INK),
            _text(full + 84, y + 12, rate, MUTED, anchor="end"),
        ]
    parts.append(_line(full, TOP - 4, bottom, INK))
    label = "cuBLAS" if cublas is None else f"cuBLAS, {cublas:.0f} TFLOPS"
    return [*parts, _text(full, TOP - 12, label, MUTED, anchor="middle", size=12)]


def _line(x: float, top: int, bottom: int, colour: str) -> str:
    return f'<path d="M{x} {top}V{bottom}" stroke="{colour}"/>'


def _text(
    x: float, y: int, text: str, colour: str, *, anchor: str = "start", weight: str = "400",
    size: int = 13,
) -> str:  # fmt: skip
    return (
        f'<text x="{x:g}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}">{escape(text)}</text>'
    )


def main(folder: Path = FOLDER, out: Path = ROOT / "docs") -> None:
    """Write both pictures."""
    results = load(folder)
    for name, dark in (("light", False), ("dark", True)):
        write_whole(out / f"ladder-{name}.svg", draw(results, dark))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
