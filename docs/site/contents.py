"""The order of the pages: what the site's sidebar shows, and what comes before and after a rung."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent

FOUNDATIONS = (
    "memory_hierarchy", "coalescing", "bank_conflicts", "occupancy", "fragments", "swizzles",
    "async_copies", "roofline", "waves", "reading_ncu",
)  # fmt: skip

NOTEBOOKS = (
    "first_product", "roofline_by_hand", "tile_order", "banks_and_swizzle", "your_own_kernel",
    "reading_a_report",
)  # fmt: skip


def _there(*pages: str) -> tuple[str, ...]:
    return tuple(page for page in pages if (DOCS / f"{page}.md").exists())


RUNGS = tuple(dict.fromkeys(re.findall(r"\((rungs/\w+)\.md\)", (DOCS / "README.md").read_text())))
"""The rungs' pages in the order in which README.md names them, without .md."""

LAB = tuple(sorted(f"lab/{path.stem}" for path in (DOCS / "lab").glob("*.md")))

SECTIONS = (
    (
        "Begin",
        _there("documents", "exercises", "notebooks", "explore", "side_by_side", "your_own_kernel",
               "for_teachers", "glossary"),
    ),
    ("Notebooks", tuple(f"notebooks/{name}" for name in NOTEBOOKS)),
    ("Foundations", _there(*(f"foundations/{name}" for name in FOUNDATIONS))),
    ("The ladder in CUDA C++", tuple(page for page in RUNGS if "/cuda_" in page)),
    ("The ladder in Triton", tuple(page for page in RUNGS if "/triton_" in page)),
    (
        "Both",
        _there("triton_and_cuda", "measuring", "contract", "simulator", "hopper_rungs", "tiles",
               "few_rows", "skinny_and_split_k", "gluon", "triton_types", "pytorch",
               "several_gpus"),
    ),
    ("For those who work on it", _there("design", "tests", "mutation", "decisions")),
    ("Lab notes", LAB),
)  # fmt: skip
"""(title, pages) of the sidebar. A test holds that no page is left out."""
