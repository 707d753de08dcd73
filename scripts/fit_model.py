"""Fits the shipped model of tcgemm/choosing/model.py to timed rows: fit_model.py ROWS.csv ...

Rows are those of `scripts/drawn_rows kernels`, or trials/drawn_kernels.csv, of an H200. Of seeds
that FITTED of tcgemm/bench/drawn.py does not name none is taken, so that the others are left to
check by. On another GPU `tcgemm tune --model` times such rows and fits a model of the user's own.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tcgemm import gpus
from tcgemm.bench.drawn import FITTED
from tcgemm.choosing import fitting

ROOT = Path(__file__).parents[1]
GPU = gpus.lookup("NVIDIA H200")

BY_VECTORS = ("one_wave", "wgmma_persistent")
"""CUDA's kernels that stored a C in odd rows by elements in the trees BEFORE."""
BEFORE = ("14106e2", "134f4d9", "16710ec", "7a96c1d", "5cdacab", "c327f65", "ad24ec3")


def timed(path: Path) -> list[fitting.Timed]:
    """The rows of a file that the model can learn from."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not _stored_otherwise(row)]
    return list(fitting.timed(rows, GPU.sms, GPU.capability))


def _stored_otherwise(row: Mapping[str, str]) -> bool:
    """Whether the kernel stores such a C in another way since."""
    of_such = row["kernel"] in BY_VECTORS and row["tree"] in BEFORE
    return of_such and row["backend"] == "cuda" and int(row["N"]) % 8 != 0


def table(paths: Iterable[Path]) -> str:
    """The table of the GPU, as its file holds it."""
    rows = [row for path in paths for row in timed(path) if row.seed in FITTED]
    found = {
        "about": f"{GPU.name}: scripts/fit_model.py",
        "gpu": GPU.slug,
        "sms": GPU.sms,
        "seeds": sorted({row.seed for row in rows}),
        "kernels": fitting.fitted(rows),
    }
    return json.dumps(found, indent=1) + "\n"


def main() -> None:
    paths = [Path(each) for each in sys.argv[1:]]
    if not paths:
        sys.exit("usage: python scripts/fit_model.py ROWS.csv ...")
    to = ROOT / "tcgemm" / "choosing" / f"model-{GPU.slug}.json"
    to.write_text(table(paths))
    print(f"wrote {to.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
