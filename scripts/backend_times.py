"""Makes tcgemm/choosing/measured-<gpu>.csv: Triton's time over CUDA's, of a report's results.

    python scripts/backend_times.py nvidia-h200

Of each plain or fused case, in 16 bits and others, that both backends were timed on beside cuBLAS:
the kernel that each backend chooses for it today, by the ratio of the last run that has it. Times
of two rows are compared through cuBLAS's beside each. Only suites whose shapes are given.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from tcgemm import dispatch, gpus
from tcgemm.bench import store
from tcgemm.bench.case import case_of_row
from tcgemm.problem import EPILOGUES
from tcgemm.request import plan_for

ROOT = Path(__file__).parent.parent
COLUMNS = ("dtype_in", "dtype_out", "compute", "fused", "layout", "M", "N", "K", "speedup")


def main() -> None:
    (slug,) = sys.argv[1:]
    capability = gpus.capability(gpus.find(slug.removeprefix("nvidia-")))
    board = gpus.find(slug.removeprefix("nvidia-"))
    plan_for(capability, slug, board.sms or 0)
    ratios: dict[tuple[str, str], dict[object, float]] = {}
    for row in store.read(ROOT / "reports" / slug):
        if row["status"] == "ok" and row["ratio_p50"] and not row["suite"].startswith("drawn"):
            case = case_of_row(row)
            if not case.mma_shape and case.batch == 1:
                by_case = ratios.setdefault((row["backend"], row["kernel"]), {})
                by_case[case] = float(row["ratio_p50"])
    cases = {case for by_case in ratios.values() for case in by_case}
    lines = []
    for case in cases:
        words = case.fused.split()
        problem = case.product(
            capability=capability,
            beta=float("residual" in words),
            bias="bias" in words,
            epilogue=next((word for word in words if word in EPILOGUES), ""),
        )
        found = []
        for backend in ("triton", "cuda"):
            try:
                name = dispatch.choose(problem, backend).name
            except dispatch.UnsupportedError:
                break
            found.append(ratios.get((backend, name), {}).get(case))
        if len(found) == 2 and all(found):
            triton, cuda = found
            speedup = cuda / triton  # type: ignore[operator]
            lines.append((
                case.dtype_in, case.dtype_out, case.compute, " ".join(problem.fused), case.layout,
                case.M, case.N, case.K, f"{speedup:.3f}",
            ))  # fmt: skip
    target = ROOT / "tcgemm" / "choosing" / f"measured-{slug}.csv"
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(lines))
    print(f"{len(lines)} cases in {target}")


if __name__ == "__main__":
    main()
