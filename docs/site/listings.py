"""Source beside PTX and SASS on the site: pages made from records of what compilers said.

A record holds the source with its listings, so the site needs no compiler. Where nvcc is,
``scripts/pages --compile`` writes the records; ``scripts/pages --check`` says which are old.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent / "side_by_side"
PAIRS = (
    ("triton/naive", "cuda/wmma"),
    ("triton/grouped", "cuda/wmma_grouped"),
    ("triton/descriptor", "cuda/wgmma_tma"),
    ("triton/warp_specialized", "cuda/wgmma_specialized"),
)
"""What has one idea in both languages."""


def record_of(pair: tuple[str, str]) -> Path:
    return FOLDER / f"{pair[1].partition('/')[2]}.json.gz"


def compiled(pair: tuple[str, str]) -> list[dict[str, object]]:
    """What the compilers say today, as a record: 4096 cubed in bfloat16 on an H200."""
    from tcgemm import dispatch
    from tcgemm.request import board_of, problem_of
    from tcgemm.tools.show_kernel.describe import describe, inspector, made_by
    from tcgemm.tools.show_kernel.lines import as_record, listing

    board = board_of("h200")
    problem = problem_of(
        "4096x4096x4096", "bfloat16", None, "nn", None, 1.0, 0.0, False, "", 1, board
    )
    found = []
    for name in pair:
        row = dispatch.named(name)
        shown = describe(row, problem, inspector(row, problem, None)(True))
        made = made_by(shown, problem)
        found.append(as_record(listing(name, made, Path(shown["source"]), shown["texts"])))
    return found


def write(pair: tuple[str, str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(compiled(pair), separators=(",", ":"))
    record_of(pair).write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> list[dict[str, object]]:
    return json.loads(gzip.decompress(path.read_bytes()))


def out_of_date() -> list[str]:
    """What is wrong with the records, in sentences."""
    said = []
    for pair in PAIRS:
        path = record_of(pair)
        kept = {one["kernel"]: one for one in read(path)} if path.is_file() else {}
        for name in pair:
            source = _source(name).read_text().splitlines()
            if name not in kept or kept[name]["source"] != source:
                where = path.relative_to(ROOT)
                said.append(f"{where} is not of today's {name}: run scripts/pages --compile")
    return said


def _source(name: str) -> Path:
    backend, _, kernel = name.partition("/")
    folder, suffix = ("cuda_ref", "cu") if backend == "cuda" else ("triton_kernels", "py")
    return next((ROOT / folder).glob(f"*/{kernel}.{suffix}"))


def page_of(record: Path) -> str:
    """The page of the site."""
    sys.path.insert(0, str(ROOT))
    from tcgemm.tools.show_kernel.lines import from_record
    from tcgemm.tools.show_kernel.side_by_side import page

    return page([from_record(one) for one in read(record)])
