"""Plausible made-up results for tests of the report. Never a measurement, never committed."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path

from tcgemm.bench.cases import build
from tcgemm.bench.store import COLUMNS
from tcgemm.gpus import Gpu, lookup

H200 = lookup("NVIDIA H200")
A100 = lookup("NVIDIA A100-SXM4-80GB")

TRITON = {
    "naive": 0.45,
    "grouped": 0.58,
    "pipelined": 0.80,
    "persistent": 0.86,
    "descriptor": 0.92,
}
CUDA = {
    "naive": 0.0065,
    "tiled": 0.013,
    "wmma": 0.04,
    "wmma_double_buffered": 0.13,
    "wmma_grouped": 0.29,
    "wmma_any": 0.31,
    "wgmma_tma": 0.55,
    "wgmma_specialized": 0.83,
    "wgmma_persistent": 0.97,
    "wgmma_cluster": 1.02,
}
"""Kernel -> its rate over that of cuBLAS at large sizes."""

SQUARES = [(s, s, s) for s in (512, 1024, 2048, 4096, 8192, 16384)]
SEEDS = [(1024, 2048, 512), (128, 320, 64), (100, 100, 100), (4096, 128, 4096), (127, 129, 65)]
LLM = [
    (m, n, k)
    for n, k in (
        *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)),
        *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (2112, 7168), (7168, 2048)),
    )
    for m in (1, 16, 64, 128, 4096)
]


def write(
    folder: Path,
    gpu: Gpu | None = H200,
    *,
    dtypes: tuple[str, ...] = ("float16", "bfloat16"),
    layouts: tuple[str, ...] = ("nn", "nt"),
    shapes: dict[str, list[tuple[int, int, int]]] | None = None,
    seed: int = 0,
    others: tuple[str, ...] = (),
    data: tuple[str, ...] = (),
    run: str = "20260301T120000-made-up",
) -> Path:
    """Write ``results.csv`` and ``environment.json`` below ``folder``; without a GPU, a CPU run.

    ``others`` are suites of more than plain 16-bit products: types, fused, wmma; ``data`` what the
    operands of a product of 4096 cubed hold besides.
    """
    rng = random.Random(seed)
    if shapes is None:
        cpu_shapes = {"quick": [(64, 64, 64), (100, 100, 100), (128, 320, 64)]}
        shapes = {"squares": SQUARES, "seeds": SEEDS, "llm": LLM} if gpu else cpu_shapes
    rows = []
    for suite, cases in shapes.items():
        for shape in cases:
            for dtype in dtypes:
                for layout in layouts:
                    rows += _case(rng, run, suite, gpu, shape, dtype, layout)
    for case in (case for suite in others for case in build(suite)):
        shape = (case.M, case.N, case.K)
        more = {"dtype_out": case.dtype_out, "compute": case.compute, "fused": case.fused}
        more["mma_shape"] = case.mma_shape
        made = _case(rng, run, case.suite, gpu, shape, "float16", case.layout)
        keep = {"pipelined", "descriptor", "wmma_any", "cublas", "cublas_best"}
        rows += [
            {**row, "dtype_in": case.dtype_in, **more} for row in made if row["kernel"] in keep
        ]
    for kind in data:
        made = _case(rng, run, "shape", gpu, (4096, 4096, 4096), dtypes[0], layouts[0])
        rows += [{**row, "data": kind} for row in made]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    environment = {
        "gpu_slug": gpu.slug if gpu else "cpu",
        "gpu": gpu.name if gpu else None,
        "driver": "580.159" if gpu else None,
        "cuda": "13.0",
        "torch": "2.13.0",
        "triton": "3.7.1",
        "date": "2026-03-01T12:00:00Z",
        "commit": "0123abc",
        "command": ["tcgemm", "bench", "--suite", "full"],
        "power_limit_w": 700 if gpu else None,
        "specialists": ["cuda/wgmma_cluster"],
        "precision": {"allow_tf32": False, "reduced_precision_reduction": False},
    }
    (folder / "environment.json").write_text(json.dumps({run: environment}, indent=2))
    return folder


def _case(rng, run, suite, gpu, shape, dtype, layout):
    M, N, K = shape
    flop, traffic = 2 * M * N * K, 2 * (M * K + K * N + M * N)
    cublas_ms = None
    if gpu:
        peak, bandwidth = gpu.peak_tflops[dtype] * 1e9, gpu.bandwidth_gb_s * 1e6
        waves = min(1.0, M / 64) * 0.72 * flop / (flop + 2e9)
        cublas_ms = 0.003 + max(flop / peak / max(waves, 0.01), 1.3 * traffic / bandwidth)
        cublas_ms *= rng.uniform(0.98, 1.02)
    rows = []
    ladders = {
        "triton": TRITON,
        "cuda": CUDA,
        "cublas": {"cublas": 1.0, "cublas_best": 1.04} if gpu else {"torch_cpu": 1.0},
    }
    for backend, ladder in ladders.items():
        for kernel, share in ladder.items():
            row = dict.fromkeys(COLUMNS, "")
            row |= {
                "run": run,
                "suite": suite,
                "backend": backend,
                "kernel": kernel,
                "chosen": "yes" if kernel == list(ladder)[-2:][0] else "no",
                "config": "" if backend == "cublas" else "BLOCK_M=128 BLOCK_N=256 BLOCK_K=64",
                "dtype_in": dtype,
                "dtype_out": dtype,
                "compute": "float32",
                "layout": layout,
                "M": M,
                "N": N,
                "K": K,
                "status": "ok",
                "error_ratio": f"{10 ** rng.gauss(-0.9, 0.12):.4g}",
                "exact_errors": 0,
                "timer": "none",
                "cache": "none",
                "data": "normal",
                "seed": rng.randrange(2**31),
            }
            aligned = K % 8 == 0 and N % 8 == 0
            if (kernel.startswith("wgmma") or kernel == "descriptor") and not aligned:
                row |= {
                    "status": "unsupported",
                    "reason": f"rows of {K * 2} bytes are no multiple of 16: TMA needs K and N "
                    f"to be multiples of 8, these are {K} and {N}",
                }
            elif kernel == "wgmma_tma" and M == 1:
                row |= {"status": "failed", "reason": "CUDA error: misaligned address"}
            elif kernel == "wgmma_cluster" and shape == (4096, 128, 4096):
                row |= {"status": "wrong", "reason": "error 12.3 times its bound at [17, 64]"}
                row |= {"error_ratio": 12.3, "exact_errors": 4096}
            elif not gpu and backend == "cuda":
                row |= {"status": "unsupported", "reason": "needs sm 9.0, and there is no GPU"}
            if row["status"] in ("unsupported", "failed"):
                row |= {"error_ratio": "", "exact_errors": ""}
            if row["status"] == "ok":
                row |= _timing(rng, cublas_ms or 5.0, share, shape, layout, backend, bool(gpu))
            rows.append(row)
    return rows


def _timing(rng, cublas_ms, share, shape, layout, backend, paired):
    M, N, K = shape
    if backend != "cublas":
        small = 1 - 0.35 * math.exp(-(M * N * K) / 2e10)
        share = share * small * rng.uniform(0.95, 1.05) * (0.93 if layout == "nn" else 1.0)
        if M < 128:
            share = min(1.2, share ** (0.3 + 0.7 * M / 128)) * rng.uniform(0.9, 1.1)
    ms = cublas_ms / share
    return {
        "compile_s": f"{rng.uniform(0.5, 9):.3g}",
        "ms_p20": f"{ms * 0.985:.6g}",
        "ms_p50": f"{ms:.6g}",
        "ms_p80": f"{ms * 1.02:.6g}",
        "ratio_p20": f"{share * 0.985:.5g}" if paired else "",
        "ratio_p50": f"{share:.5g}" if paired else "",
        "ratio_p80": f"{share * 1.015:.5g}" if paired else "",
        "rounds": 60,
        "timer": "graph" if ms < 0.1 else "events",
        "cache": "cold",
        "sm_clock_mhz": rng.randrange(1400, 1900),
        "power_w": f"{rng.uniform(350, 700):.0f}",
    }
