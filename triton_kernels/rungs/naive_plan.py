"""naive: its row and its plans."""

from __future__ import annotations

from ..planning.planner import Planner
from ..planning.rows import row

PLANNER = Planner("naive", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "NUM_WARPS"))

ROW = row(PLANNER, "one program a tile, tiles in row-major order, tl.dot on tensor cores")
