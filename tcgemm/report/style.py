"""Colours and the plotting style: one colour a backend, distinct for the colour-blind, on paper
and on a dark screen.

Figures are drawn once, with the light colours. In the page each of them becomes a CSS variable,
so that the same SVG follows the reader's light or dark setting.
"""

from __future__ import annotations

from typing import Any

INK, MUTED, GRID, PAPER = "#1c2024", "#5b636b", "#d9dee3", "#fefefe"
ALARM = "#b0243a"

_BACKENDS = {"triton": "#d55e00", "cuda": "#0072b2", "cublas": "#767c82"}
_OTHERS = ("#009e73", "#cc79a7", "#b58900", "#56b4e9")

DARK = {
    INK: "#e8eaed",
    MUTED: "#a3abb3",
    GRID: "#363c43",
    PAPER: "#15181c",
    ALARM: "#ff7b8a",
    "#d55e00": "#ff9350",
    "#0072b2": "#5ab4f0",
    "#767c82": "#a6acb2",
    "#009e73": "#35c99d",
    "#cc79a7": "#e5a1c6",
    "#b58900": "#dcb33a",
    "#56b4e9": "#8fcdf2",
}
"""Light colour -> its counterpart on a dark screen."""


def backend_colour(backend: str, backends: list[str]) -> str:
    """The backend's colour: fixed for the three of ours, by position for any other."""
    if backend in _BACKENDS:
        return _BACKENDS[backend]
    others = [b for b in backends if b not in _BACKENDS]
    return _OTHERS[others.index(backend) % len(_OTHERS)]


LINES = (*_OTHERS, *_BACKENDS.values())
"""Colours of lines that are no backends, the first first."""


def line_colour(number: int) -> str:
    """The colour of the line of that number; no two of ``len(LINES)`` lines share one."""
    return LINES[number % len(LINES)]


def variable(colour: str) -> str:
    """The CSS variable that stands for a light colour."""
    return f"--c{list(DARK).index(colour)}"


RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tcgemm",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "figure.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "path.simplify": False,
}
