"""Counts over the rows: kernels by status, and what did not end well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .derive import BASELINE, of_normal_data, pairs_text, rate_text
from .folder import Folder
from .sections import Section


@dataclass(frozen=True)
class Problem:
    """Results of one kernel that ended in the same status for the same reason."""

    kernel: str
    status: str
    cases: int
    reason: str
    example: str


def problems(folder: Folder) -> list[Problem]:
    """Everything that is not ok, wrong results first, unsupported cases last."""
    bad = folder.table[folder.table["status"].ne("ok")]
    found = []
    for (backend, kernel, status, reason), rows in bad.groupby(
        ["backend", "kernel", "status", "reason"], observed=True, sort=True
    ):
        row = rows.iloc[0]
        pair = pairs_text(row["dtype_in"], row["dtype_out"], row["compute"])
        words = [row["shape"], pair, row["layout"], row["fused"], row["mma_shape"]]
        example = " ".join(word for word in words if word)
        why = str(reason) or "no reason was recorded"
        found.append(Problem(f"{backend}/{kernel}", str(status), len(rows), why, example))
    rank = {"wrong": 0, "failed": 1, "timeout": 2, "unsupported": 4}
    return sorted(found, key=lambda p: rank.get(p.status, 3))


LISTS = {
    "ladder": ("The ladder", "Each rung adds one idea to the one before it. "),
    "shape": ("The specialists", "Kernels for shapes or types of their own. "),
}
"""Kind of kernel -> the title of its list, and what it is."""


def lists(folder: Folder) -> list[Section]:
    """The ladder and the specialists: how many cases of each kernel ended how, the worst error, the
    best rate."""
    table = folder.table
    said = "Of each kernel: how many cases ended how, and the worst error over its bound"
    said += "; the highest rate and the median ratio of any type." if folder.on_gpu else "."
    return [
        Section(f"kernels-{kind}", title, about + said, *_summary(rows, folder.on_gpu), words=2)
        for kind, (title, about) in LISTS.items()
        if len(rows := table[table["kind"].eq(kind)])
    ]


def _summary(table: pd.DataFrame, on_gpu: bool) -> tuple[list[str], list[list[str]]]:
    statuses = [s for s in ("ok", "wrong", "failed", "timeout") if s in set(table["status"])]
    statuses += sorted(set(table["status"]) - set(statuses))
    header = ["backend", "kernel", *statuses, "worst error / bound"]
    if on_gpu:
        header += ["highest TFLOPS", "median ratio to cuBLAS"]
    rows = []
    for (backend, kernel), of in table.groupby(["backend", "kernel"], observed=True, sort=True):
        counts = of["status"].value_counts()
        worst = of["error_ratio"].max()
        row = [str(backend), str(kernel), *(str(int(counts.get(s, 0))) for s in statuses)]
        row.append("not checked" if np.isnan(worst) else f"{worst:.3g}")
        if on_gpu:
            timed = of_normal_data(of)
            rate, ratio = timed["paired_tflops"].max(), timed["ratio_p50"].median()
            row.append("not timed" if np.isnan(rate) else rate_text(rate))
            if backend == BASELINE:
                row.append("is cuBLAS")
            else:
                row.append("not paired" if np.isnan(ratio) else f"{ratio:.2f}")
        rows.append(row)
    return header, rows


def suspects(folder: Folder) -> list[str]:
    """Times that cannot be true, as sentences."""
    bad = folder.table[folder.table["suspect"].ne("") & folder.table["tflops"].notna()]
    return [
        f"{r['backend']}/{r['kernel']} at {r['shape']} {r['dtype_in']} {r['layout']}: "
        f"{r['tflops']:.4g} TFLOPS, {r['gb_s']:.4g} GB/s; {r['suspect']}"
        for _, r in bad.iterrows()
    ]
