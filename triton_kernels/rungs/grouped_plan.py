"""grouped: its row and its plans."""

from __future__ import annotations

from ..planning.planner import Planner
from ..planning.rows import row

PLANNER = Planner("grouped", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_WARPS"))

ROW = row(PLANNER, "tiles visited in bands of GROUP_M tile rows, so that L2 serves what is shared")
