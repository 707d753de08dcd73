"""Requests that tests of Triton's machine code share: one for each row of the shipped tables."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
plans = import_module("tcgemm.triton_kernels.by_name")
tables = import_module("tcgemm.triton_kernels.planning.tables")
Request = compile_only.Request

DEEP = {
    "BLOCK_M": 128,
    "BLOCK_N": 256,
    "BLOCK_K": 64,
    "GROUP_M": 8,
    "NUM_STAGES": 4,
    "NUM_WARPS": 8,
}
LIMITS = {(8, 0): 166_912, (9, 0): 232_448}


def problem_on(capability: tuple[int, int], dtype_out: str = "bfloat16"):
    from tcgemm.problem import Problem

    row_major = (4096, 1)
    return Problem(
        M=4096,
        N=4096,
        K=4096,
        dtype_in="bfloat16",
        dtype_out=dtype_out,
        a_strides=row_major,
        b_strides=row_major,
        c_strides=row_major,
        device="meta",
        capability=capability,
    )


def thin_size(when: dict) -> dict[str, int]:
    """A problem with M <= N that meets the conditions."""
    if not when.get("aligned", True):
        return {"M": 33, "N": 4001, "K": 4104}
    side = math.isqrt(when.get("MN_max", 4096**2)) // 64 * 64
    N = min(when.get("N_max", max(side, 4096 if "M_max" in when else side)), 28672)
    N = max(N // 16 * 16, when.get("N_min", 0) // 16 * 16)
    K = max(when.get("K_min", 0), min(when.get("K_max", 4096), 4096))
    return {"M": min(when.get("M_max", side), N), "N": N, "K": K}


def shipped() -> list:
    """One request a row of every table, with a problem that meets the row: a row for any problem in
    all four layouts, of the others each in nn or nt in turn."""
    requests = []
    for name, table in tables.shipped().items():
        capability = (8, 0) if name == "sm80" else (9, 0)
        for kernel, rows in table["kernels"].items():
            for row in rows:
                when = row.get("when", {})
                size = {} if when.get("aligned", True) else {"M": 4001, "N": 3999, "K": 4104}
                general = not when or when.keys() == {"aligned"}
                wanted = when.get("dtype_out", "bfloat16")
                one = when.get("layout", ("nn", "nt")[len(requests) % 2])
                layouts = ("nn", "nt", "tn", "tt") if general else (one,)
                cases = [(x, wanted) for x in layouts]
                if general or "K_max" in when:
                    cases.append(("nn", "float32"))
                for layout, dtype_out in cases:
                    fitted = plans.fit(kernel, row["config"], dtype_out, LIMITS[capability])
                    if kernel in plans.DIVIDING:
                        size = thin_size(when)
                        problem = replace(problem_on(capability, dtype_out), **size)
                        fitted = plans.divide(kernel, fitted, problem, 132, False)
                    request = Request(
                        kernel,
                        fitted,
                        dtype_out=dtype_out,
                        layout=layout,
                        capability=capability,
                        **size,
                    )
                    if request not in requests:
                        requests.append(request)
    return requests


OF_KIND = {
    "int8": ("int8", "int32", "int32"),
    "uint8": ("uint8", "int32", "int32"),
    "float8": ("float8_e4m3fn", "bfloat16", "fast"),
    "float8_promoted": ("float8_e5m2", "float16", "float32"),
    "float16": ("float16", "float16", "float16"),
    "tf32": ("float32", "float32", "tf32"),
    "tf32x3": ("float32", "float32", "tf32x3"),
    "ieee": ("float32", "float32", "ieee"),
    "float64": ("float64", "float64", "float64"),
}
INSTRUCTION = {
    (9, 0): {
        "int8": "IGMMA",
        "uint8": "IGMMA",
        "float8": "QGMMA",
        "float8_promoted": "QGMMA",
        "float16": "HGMMA",
        "tf32": "HGMMA",
        "tf32x3": "HGMMA",
        "ieee": "FFMA",
        "float64": "DMMA",
    },
    (8, 0): {
        "int8": "IMMA",
        "uint8": "IMMA",
        "float16": "HMMA",
        "tf32": "HMMA",
        "tf32x3": "HMMA",
        "ieee": "FFMA",
        "float64": "DMMA",
    },
}


def shipped_types() -> list:
    """One request a row of the tables by type, B with K contiguous; 8-bit floats need sm_89."""
    requests = []
    for name, table in tables.shipped().items():
        capability = (8, 0) if name == "sm80" else (9, 0)
        for kind, rungs in table["types"].items():
            if kind not in INSTRUCTION[capability]:
                continue
            dtype_in, dtype_out, compute = OF_KIND[kind]
            for kernel, rows in rungs.items():
                for row in rows:
                    when = row.get("when", {})
                    size = {} if when.get("aligned", True) else {"M": 4001, "N": 3999, "K": 4104}
                    few = when.get("M_max") == 64
                    prepare = {"REPACK": 1} if kind == "tf32" and not few else {}
                    fitted = plans.fit(
                        kernel,
                        {**row["config"], **(prepare if capability == (9, 0) else {})},
                        dtype_out,
                        LIMITS[capability],
                        dtype_in,
                        compute,
                    )
                    requests.append(
                        Request(
                            kernel,
                            fitted,
                            dtype_in=dtype_in,
                            dtype_out=dtype_out,
                            compute=compute,
                            scales="row" if kind.startswith("float8") else "",
                            layout="nt",
                            capability=capability,
                            **size,
                        )
                    )
    return requests


SUMMING = [
    {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "GROUP_M": group, "NUM_STAGES": stages,
     "CONSUMERS": consumers, "SUBTILES": subtiles, "BUFFERS": 1, **rest}
    for m, n, group, stages, consumers, subtiles, rest in (
        (192, 96, 1, 5, 3, 3, {"REST": 32}), (128, 128, 4, 6, 2, 2, {}),
        (128, 256, 8, 4, 2, 4, {}), (64, 128, 8, 8, 1, 2, {}), (256, 128, 8, 4, 2, 2, {}),
        (256, 192, 4, 3, 2, 3, {"REST": 64}),
    )
]  # fmt: skip
"""Tiles of warp_specialized for products that give the sums of A's rows."""

UNALIGNED = [
    {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "GROUP_M": group, "NUM_STAGES": stages,
     "CONSUMERS": consumers, "SUBTILES": subtiles, "BUFFERS": buffers, **rest}
    for m, n, group, stages, consumers, subtiles, buffers, rest in (
        (128, 256, 8, 4, 2, 4, 2, {}), (128, 256, 8, 4, 2, 2, 1, {}), (128, 128, 8, 6, 2, 2, 2, {}),
        (192, 128, 8, 5, 3, 2, 1, {}), (256, 192, 4, 3, 2, 3, 1, {"REST": 64}),
        (192, 192, 4, 4, 3, 3, 1, {"REST": 64}), (192, 96, 8, 5, 3, 3, 1, {"REST": 32}),
        (128, 48, 8, 9, 2, 3, 1, {"REST": 16, "L2_PREFETCH": 4}), (128, 64, 8, 8, 2, 1, 1, {}),
        (64, 32, 8, 10, 1, 1, 1, {}),
    )
]  # fmt: skip
"""Tiles of warp_specialized for a C whose rows TMA cannot store."""

FITTED = [
    plans.fit("warp_specialized", {"NUM_STAGES": 10, **tile}, "bfloat16", LIMITS[9, 0])
    for tile in import_module("tcgemm.triton_kernels.rungs.fitted_tiles").TILES
]
"""Tiles of warp_specialized that fit a short side of C."""

DIVIDED = [
    plans.fit(
        "warp_specialized", {"NUM_STAGES": 10, **tile, "SWAP": number % 2, "SPLITS": 3},
        "bfloat16", LIMITS[9, 0],
    )
    for number, tile in enumerate(
        import_module("tcgemm.triton_kernels.rungs.divided_tiles").TILES
    )
]  # fmt: skip
"""Tiles of warp_specialized whose K is divided."""
