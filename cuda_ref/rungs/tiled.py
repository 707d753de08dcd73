"""tiled: tiles in shared memory."""

from __future__ import annotations

from ..planning.rows import row

ORDER = 20

ROW = row("tiled", "tiles in shared memory, 2 x 2 elements of C per thread", (7, 0))
