"""A simulated kernel's time line, from the trace that `tcgemm simulate --trace` wrote."""

from __future__ import annotations

import json

from . import constants
from .svg import A_LIGHT, B_LIGHT, C_LIGHT, GREY, LIGHT, A, B, C, Svg

TRACE = constants.ROOT / "docs" / "_static" / "wgmma_specialized.trace.json"
TRACKS = (
    (0, "warp 0", "producer"),
    (4, "warp 4", "consumer"),
    (1004, "warp 4's", "tensor cores"),
)
FILLS = {
    "TMA load": (A, A), "wait at mbarrier": (LIGHT, GREY), "wgmma": (B, B),
    "wait for wgmma": (B_LIGHT, GREY), "tensor cores": (C_LIGHT, C), "store": (A_LIGHT, A),
}  # fmt: skip


def timeline() -> str:
    events = [e for e in json.loads(TRACE.read_text())["traceEvents"] if e["ph"] == "X"]
    end = max(e["ts"] + e["dur"] for e in events)
    scale = 590 / end
    image = Svg(760, 246, "who waits for whom in a block of wgmma_specialized, in ticks")
    for row, (tid, name, role) in enumerate(TRACKS):
        y = 20 + 50 * row
        image.text(14, y + 13, name, 13, bold=True)
        image.text(14, y + 29, role, 12)
        for e in events:
            if e["pid"] == 1 and e["tid"] == tid:
                fill, stroke = FILLS[e["name"]]
                x, w = 140 + e["ts"] * scale, max(1.5, e["dur"] * scale)
                image.rect(x, y, w, 34, fill, stroke, 0.7)
    step = 250
    for tick in range(0, end + 1, step):
        x = 140 + tick * scale
        image.line(x, 172, x, 177, GREY)
        image.text(x, 190, f"{tick:,}", 11, "middle", GREY)
    image.text(740, 190, "ticks", 11, "end", GREY)
    for i, (name, (fill, stroke)) in enumerate(FILLS.items()):
        x, y = 140 + 205 * (i % 3), 202 + 20 * (i // 3)
        image.rect(x, y, 16, 12, fill, stroke)
        image.text(x + 22, y + 11, name, 12)
    return str(image)
