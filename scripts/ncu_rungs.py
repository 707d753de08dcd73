#!/usr/bin/env python3
"""Hardware counters of every rung, by Nsight Compute, as a table.

  scripts/ncu_rungs.py [--out reports/GPU/ncu.csv] [BACKEND/KERNEL ...]

Each rung that runs here multiplies bfloat16 matrices of 4096 cubed, B transposed; those for few
rows, and for a long K, take shapes of their own, as cuBLAS does beside them; the rungs of many
types have a line for each dtype and way of summing. The caches are flushed before each of ncu's
passes and the clock is left as it is found: times are of single launches on a cool GPU, so take
the counters from here and the times from the report. Needs ncu, which comes with the CUDA toolkit,
and the right to read counters (https://developer.nvidia.com/ERR_NVGPUCTRPERM).
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SQUARE = (4096, 4096, 4096)
SHAPES = {
    "gemv": (1, 8192, 8192),
    "skinny": (16, 4096, 4096),
    "stream_k": (64, 28672, 4096),
    "split_k": (256, 256, 16384),
    "small": (100, 100, 100),
    "one_wave": (1024, 1024, 1024),
}
"""(M, N, K) by the rung's name, where it is not SQUARE."""

MARKER = "spin_kernel"
"""What torch.cuda._sleep launches: it stands between two cases in ncu's table."""

TENSOR = "sm__inst_executed_pipe_tensor_op"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
COLUMNS = {
    "grid": ("launch__grid_size", 1),
    "block": ("launch__block_size", 1),
    "registers": ("launch__registers_per_thread", 1),
    "shared_bytes": ("launch__shared_mem_per_block", 1),
    "us": ("gpu__time_duration.sum", 1e-3),
    "sm_mhz": ("sm__cycles_elapsed.avg.per_second", 1e-6),
    "tensor_active_pct": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    "hmma": (f"{TENSOR}_hmma.sum", 1),
    "gmma": (f"{TENSOR}_gmma.sum", 1),
    "issue_active_pct": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "shared_bank_conflicts": (CONFLICTS, 1),
    "l1_pct": ("l1tex__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "l2_bytes": ("lts__t_bytes.sum", 1),
    "l2_pct": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", 1),
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_written_bytes": ("dram__bytes_write.sum", 1),
    "dram_pct": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
}
"""Column: ncu's metric, in its base unit, and the factor to the column's."""

STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
"""Warps that wait for that reason, on average, for each instruction issued."""


def cases(names: list[str]) -> list[dict[str, object]]:
    """What is launched, in order: rung, M, N, K, dtype_in, dtype_out, compute."""
    from tcgemm import dispatch
    from tcgemm.verify.calls import pairs_of

    rows = [row for backend in ("cuda", "triton") for row in dispatch.ladder(backend)]
    rows.append(dispatch.find("cublas", "cublas"))
    rows = [dispatch.find(*name.split("/")) for name in names] or rows
    made: list[dict[str, object]] = []
    for row in rows:
        if dispatch.why_not_here(row) is not None or "cuda" not in row.devices:
            continue
        pairs = {(pair[0], pair[2]): pair for pair in reversed(pairs_of(row))}
        plain = next((p for key, p in pairs.items() if key == ("bfloat16", "float32")), None)
        shapes = [SHAPES.get(row.name, SQUARE)]
        if row.backend == "cublas":
            shapes += SHAPES.values()
        of_many_types = plain is None or row.name.endswith("_types")
        for pair in sorted(pairs.values()) if of_many_types else [plain]:
            for shape in shapes:
                of_pair = zip(("dtype_in", "dtype_out", "compute"), pair, strict=True)
                of_shape = zip("MNK", shape, strict=True)
                made.append({"rung": row.full_name, **dict(of_shape), **dict(of_pair)})
    return made


def launch(names: list[str], record: Path | None) -> None:
    """Each case once between two markers, where a profiler sees it, after two calls unseen."""
    import torch

    import tcgemm
    from tcgemm import accuracy

    launched = []
    for case in cases(names):
        M, N, K = (int(str(case[letter])) for letter in "MNK")
        backend, kernel = str(case["rung"]).split("/")
        named = {"backend": backend, "kernel": kernel, "compute": case["compute"]}
        dtype = accuracy.as_dtype(str(case["dtype_in"]))
        a, b = accuracy.operands(M, N, K, dtype, "nt", "cuda", 0)
        out = torch.empty(M, N, device="cuda", dtype=accuracy.as_dtype(str(case["dtype_out"])))
        try:
            for _ in range(2):
                tcgemm.gemm(a, b, out=out, **named)
        except tcgemm.TcgemmError as error:
            print(f"{case}: {error}".splitlines()[0], file=sys.stderr)
            continue
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        tcgemm.gemm(a, b, out=out, **named)
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        launched.append(case)
    if record is not None:
        record.write_text(json.dumps(launched))


def table(text: str, launched: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of the result, from ncu's raw page as CSV; a case has one for each kernel it launched.

    Raises ValueError where the page does not hold as many cases as were launched.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    units, *kernels = list(csv.DictReader(lines))
    del units
    rows: list[dict[str, object]] = []
    done = 0
    for kernel in kernels:
        name = kernel["Kernel Name"]
        if MARKER in name:
            done += 1
            continue
        if done == len(launched):
            raise ValueError(f"ncu saw more than the {done} cases that were launched")
        stalls = {
            match[1]: _number(value)
            for column, value in kernel.items()
            if (match := STALL.match(column)) and match[1] != "selected"
        }
        worst = sorted(stalls, key=stalls.__getitem__, reverse=True)[:3]
        counters = {
            column: "" if not kernel.get(metric) else f"{_number(kernel[metric]) * factor:.6g}"
            for column, (metric, factor) in COLUMNS.items()
        }
        bare = re.sub(r"\(anonymous namespace\)::|<unnamed>::|^void ", "", name)
        rows.append(
            {
                **launched[done],
                "kernel": re.sub(r"[(<].*", "", bare).strip(),
                **counters,
                "stalls": " ".join(f"{reason}:{stalls[reason]:.2f}" for reason in worst),
            }
        )
    if done != len(launched):
        raise ValueError(f"ncu saw {done} cases and {len(launched)} were launched")
    return rows


def _number(text: str) -> float:
    return float(text.replace(",", "") or 0)


def profile(names: list[str]) -> list[dict[str, object]]:
    """Run this script's launches under ncu and read its table."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("scripts/ncu_rungs.py: no ncu on PATH: add the CUDA toolkit's bin folder")
    metrics = ",".join(metric for metric, _ in COLUMNS.values())
    with tempfile.TemporaryDirectory() as folder:
        log, record = Path(folder) / "log", Path(folder) / "cases.json"
        command = [
            *(ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv"),
            *("--page", "raw", "--print-units", "base", "--log-file", str(log)),
            *("--section", "WarpStateStats", "--metrics", metrics),
            *(sys.executable, __file__, "--launch", str(record), *names),
        ]
        done = subprocess.run(command)
        text = log.read_text() if log.exists() else ""
        if done.returncode or not record.exists():
            sys.exit(f"scripts/ncu_rungs.py: ncu failed\n{text[-2000:]}")
        return table(text, json.loads(record.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="BACKEND/KERNEL")
    parser.add_argument("--out", type=Path, default=Path("ncu.csv"))
    parser.add_argument("--launch", metavar="FILE", help="launch only, without ncu; cases to FILE")
    asked = parser.parse_args()
    if asked.launch is not None:
        launch(asked.names, Path(asked.launch) if asked.launch else None)
        return
    rows = profile(asked.names)
    if not rows:
        sys.exit("scripts/ncu_rungs.py: no rung runs here")
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} launches in {asked.out}")


if __name__ == "__main__":
    main()
