"""What failed is said with its reason, once for all results that share it."""

from __future__ import annotations

import io

from rich.console import Console

from tcgemm.bench import closing, command, trouble
from tcgemm.bench.case import CASE_COLUMNS


def row(kernel, status, reason, M="64"):
    backend, _, name = kernel.partition("/")
    cells = dict.fromkeys(CASE_COLUMNS, "") | {"M": M, "N": "64", "K": "64"}
    cells |= {"dtype_in": "bfloat16", "dtype_out": "bfloat16", "compute": "float32", "layout": "nn"}
    return {"backend": backend, "kernel": name, "status": status, "reason": reason, **cells}


def test_a_reason_that_many_share_is_told_once_with_all_their_names():
    memory = "RuntimeError: cannot make operands: no memory"
    rows = [
        row("triton/naive", "failed", memory),
        row("cuda/naive", "failed", memory),
        row("cuda/naive", "failed", memory, M="128"),
        row("cuda/tiled", "failed", "cuda/tiled cannot be loaded: there is no g++"),
        row("cuda/wmma", "failed", "cuda/wmma cannot be loaded: there is no g++"),
        row("cuda/wmma_any", "wrong", "the worst error is 3 times its bound"),
        row("cublas/cublas", "ok", ""),
    ]
    first, second, third = trouble.reasons(rows)
    assert first == (
        f"3 results are failed: {memory}\n"
        "  triton/naive, cuda/naive at 64x64x64 bfloat16 nn and 1 more"
    )
    assert second.startswith("2 results are failed: cannot be loaded: there is no g++\n")
    assert "cuda/tiled, cuda/wmma at 64x64x64" in second
    assert third.startswith("1 result is wrong: the worst error is 3 times its bound")


def test_nothing_is_told_where_nothing_failed():
    assert (
        trouble.reasons([row("cublas/cublas", "ok", ""), row("cuda/skinny", "unsupported", "M")])
        == []
    )


def test_progress_tells_each_reason_when_it_is_met_and_once():
    file = io.StringIO()
    unit = type("Unit", (), {"case": "64x64x64", "full_name": "cuda/naive"})()
    with command._Progress(Console(file=file, width=100), 3) as progress:
        for status, reason in (("failed", "no g++"), ("failed", "no g++"), ("ok", "")):
            progress("done", unit, row("cuda/naive", status, reason))
    assert file.getvalue().count("no g++") == 1


def test_a_cell_of_kernels_that_all_failed_is_short():
    rows = [row(f"cuda/{name}", "failed", "no g++") for name in ("naive", "tiled", "wmma")]
    assert closing._checked(rows) == "all 3: failed"
    rows[0]["status"] = "ok"
    assert closing._checked(rows) == "1 of 3: tiled failed, wmma failed"
