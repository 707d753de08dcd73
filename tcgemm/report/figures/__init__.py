"""The figures: derived rows -> SVG, the same bytes every time. A file for each figure or family.

Each ``draw_*`` returns a ``Picture``: the SVG, or None and the sentence that says why there is
nothing to draw. Small multiples by dtype and layout; one colour a backend (``style``).
"""

from __future__ import annotations

import pandas as pd

from ..derive import Gpu
from .accuracy import draw_accuracy
from .heat_maps import draw_llm, draw_shapes
from .ladder import draw_ladder
from .picture import WIDTH, Picture, inline, save, spread
from .published_times import PUBLISHED_RUNGS, draw_published, published
from .roofline import draw_roofline
from .squares import draw_squares

__all__ = [
    "PUBLISHED_RUNGS", "SLUGS", "WIDTH", "Picture", "draw_all", "draw_ladder", "draw_published",
    "inline", "published", "save", "spread",
]  # fmt: skip


def draw_all(name: str, table: pd.DataFrame, gpu: Gpu | None) -> list[Picture]:
    """Every figure of one folder; of a folder without a GPU, accuracy alone."""
    if gpu is None:
        return [draw_accuracy(table)]
    return [
        draw_ladder([(name, table)]),
        draw_squares(table, gpu),
        draw_llm(table),
        draw_shapes(table),
        draw_roofline(table, gpu),
        draw_accuracy(table),
        draw_published([(name, table)]),
    ]


SLUGS = ("ladder", "squares", "llm", "shapes", "roofline", "accuracy", "published")
"""Every figure of results there can be, by file name."""
