"""The figures: derived rows -> SVG, the same bytes every time. A file for each figure or family.

Each ``draw_*`` returns a ``Picture``: the SVG, or None and the sentence that says why there is
nothing to draw. Small multiples by dtype and layout; one colour a backend (``style``).
"""

from __future__ import annotations

import pandas as pd

from ..answer import answer
from ..derive import Gpu, plain
from .accuracy import draw_accuracy
from .by_data import draw_data
from .by_kind import draw_answer
from .heat_maps import draw_llm, draw_shapes
from .ladder import draw_ladder
from .picture import WIDTH, Picture, inline, save, spread
from .published_times import PUBLISHED_RUNGS, draw_published, published
from .roofline import draw_roofline
from .squares import draw_rungs, draw_squares

__all__ = [
    "PUBLISHED_RUNGS", "SLUGS", "WIDTH", "Picture", "draw_all", "draw_answer", "draw_ladder",
    "draw_published", "inline", "published", "save", "spread",
]  # fmt: skip


def draw_all(name: str, every: pd.DataFrame, gpu: Gpu | None) -> list[Picture]:
    """Every figure of one folder; of a folder without a GPU, accuracy alone.

    Args:
        name: of the GPU, or of the run.
        every: ``derive`` of all rows of the folder.
        gpu: None for a folder without one.
    """
    table = plain(every)
    if gpu is None:
        return [draw_accuracy(table)]
    by_data = draw_data(every)
    return [
        draw_answer([answer(name, table)]),
        draw_ladder([(name, table)]),
        draw_squares(table, gpu),
        draw_rungs(table, gpu),
        draw_llm(table),
        draw_shapes(table),
        draw_roofline(table, gpu),
        *([by_data] if by_data.svg else []),
        draw_accuracy(table),
        draw_published([(name, table)]),
    ]


SLUGS = (
    *("answer", "ladder", "squares", "rungs", "llm", "shapes", "roofline", "data", "accuracy"),
    "published",
)
"""Every figure of results there can be, by file name."""
