"""The results store: ``results.csv`` (one row a kernel and case) and ``environment.json`` (one
entry a run). Measured facts only; everything derived is the report's. Imports no torch.
"""

from __future__ import annotations

COLUMNS: dict[str, str] = {
    "run": "id of the run in environment.json",
    "suite": "the suite that named the case, or 'shape' for one given by hand",
    "backend": "triton, cuda, cublas, ...",
    "kernel": "the rung",
    "config": "how it ran: the plan's settings, e.g. BLOCK_M=128 BLOCK_N=256",
    "dtype_in": "dtype of A and B",
    "dtype_out": "dtype of C",
    "layout": "nn nt tn tt: A then B, t is stored transposed",
    "M": "rows of C",
    "N": "columns of C",
    "K": "inner dimension",
    "status": "ok, wrong, failed, timeout or unsupported",
    "reason": "a sentence where status is not ok",
    "error_ratio": "worst error over its bound, against float64; above 1 is wrong",
    "exact_errors": "elements that differ in the exact-integer check; above 0 is wrong",
    "compile_s": "seconds of the kernel's first call in the run: compilation, loading, tuning",
    "ms_p20": "milliseconds a launch, 20th percentile; empty where nothing was timed",
    "ms_p50": "the median",
    "ms_p80": "80th percentile",
    "ratio_p20": "cuBLAS time over this time, pair by pair; above 1 is faster than cuBLAS",
    "ratio_p50": "the median of pairs",
    "ratio_p80": "80th percentile",
    "rounds": "pairs measured",
    "timer": "graph (CUDA-graph replays), events (CUDA events around launches) or none",
    "cache": "cold (buffers rotate over at least twice the L2) or warm",
    "data": "distribution of the operands, e.g. normal",
    "seed": "seed of the operands",
    "sm_clock_mhz": "SM clock while it ran, median",
    "power_w": "board power while it ran, median",
}
"""The schema of results.csv: column -> meaning, in file order."""
