"""Everything that follows from a stored row, in one place: ``derive``.

Stored results hold measured facts only. Rates, shares and ratios are computed here, once, so that
every figure, table and page shows the same number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np
import pandas as pd

from ..bench.case import CASE_COLUMNS, NORMAL
from ..problem import COMPUTES, ITEMSIZE
from .models import model_of

BASELINE = "cublas"
"""The backend that every ratio is taken against."""

AT_ITS_BEST = "cublas_best"
"""That backend's other row: the fastest of cuBLASLt's candidates, a contender like any other."""

CASE = list(CASE_COLUMNS)
"""The columns that name a case: what is asked."""

NUMBERS = [
    *(
        "M",
        "N",
        "K",
        "batch",
        "error_ratio",
        "exact_errors",
        "compile_s",
        "ms_p20",
        "ms_p50",
        "ms_p80",
    ),
    *("ratio_p20", "ratio_p50", "ratio_p80", "rounds", "seed", "sm_clock_mhz", "power_w"),
]
"""The stored columns that hold numbers."""

TIMED = [
    *("compile_s", "ms_p20", "ms_p50", "ms_p80", "ratio_p20", "ratio_p50", "ratio_p80"),
    *("rounds", "sm_clock_mhz", "power_w"),
]
"""The stored columns that say how fast: emptied where no GPU ran."""

AMONG_OTHERS = ("graph", "stream")
"""What ``among`` says of a product timed with a foreign kernel behind each launch."""

DERIVED: dict[str, str] = {
    "shape": "M × N × K, or one side cubed; of a batch, how many of them",
    "suites": "every suite that holds the case",
    "model": "the language model and weight whose product it is, of those in the suite llm",
    "kind": "ladder, where each rung adds one idea to the one before, or shape: a specialist",
    "flop": "2 M N K, times the batch",
    "bytes": "least traffic in bytes: A and B (and C, where it is added) read once, C written "
    "once; times the batch",
    "intensity": "arithmetic intensity, FLOP per byte: flop / bytes",
    "tflops": "rate in TFLOPS at the clock of those very rounds: flop / ms_p50",
    "paired_tflops": "rate on one clock in TFLOPS: that of cuBLAS in the rounds beside the fastest "
    "rung of each backend (their median), × ratio_p50; tflops where nothing was paired",
    "eops": "effective operations: M K + (2 K - 1) M N + 2 M N (scale A, multiply, update C), "
    "times the batch",
    "etops": "effective rate in TOPS: eops / ms_p50",
    "pct_of_peak": "% of peak: paired_tflops over the dense peak of that dtype on this GPU",
    "gb_s": "least traffic over time in GB/s: bytes / ms_p50",
    "floor_ms": "shortest possible time in ms: the larger of flop / peak and bytes / bandwidth",
    "floor_by": "which of the two sets the floor: compute or memory",
    "pct_of_floor": "% of floor: floor_ms over ms_p50, on one clock as paired_tflops; 100 is as "
    "fast as the hardware's data sheet",
    "pct_of_cublas": "100 × ratio_p50, the median of paired rounds; above 100 is faster",
    "mj_per_tflop": "energy in mJ per TFLOP of work: power_w × ms_p50 over flop / 10^12; the power "
    "is that of the board while kernel and cuBLAS ran in turns",
    "flop_per_clock_sm": "FLOP per clock and SM: flop / (ms_p50 × sm_clock_mhz × SMs)",
    "ratio_alone": "ratio_p50 of launches of nothing but itself, back to back; where the product "
    "was timed among other kernels too, ms and ratio are the lower ratio of graph and stream",
    "over_plain": "ms_p50 over that of the same rung's plain product in the same run, less 1: what "
    "is fused costs so much",
    "suspect": "why a time cannot be true (above the peak, below the memory floor)",
}
"""The derived columns: name -> meaning, with the formula."""


class Gpu(Protocol):
    """What a data sheet says of a GPU; None where it is unknown. See ``tcgemm.gpus``."""

    @property
    def name(self) -> str: ...
    @property
    def slug(self) -> str: ...
    @property
    def peak_tflops(self) -> Mapping[str, float | None]: ...
    @property
    def bandwidth_gb_s(self) -> float | None: ...
    @property
    def l2_bytes(self) -> int | None: ...
    @property
    def sms(self) -> int | None: ...
    @property
    def source(self) -> str | None: ...
    def peak(self, dtype: str, compute: str = "") -> float | None: ...
    def ceiling_tflops(
        self, dtype: str, sm_clock_mhz: float | None = None, compute: str = ""
    ) -> float | None: ...


def derive(
    rows: pd.DataFrame,
    gpu: Gpu | None,
    ladders: Iterable[tuple[str, str]] = (),
    specialists: Collection[tuple[str, str]] = (),
) -> pd.DataFrame:
    """The latest row of each (backend, kernel, case), with the columns of ``DERIVED``.

    Args:
        rows: the stored rows in file order, with the columns of ``bench.store.COLUMNS``.
        gpu: peaks and bandwidth; None for rows that no GPU made, whose times are dropped.
        ladders: (backend, kernel) of each ladder, from the first rung to the last.
        specialists: (backend, kernel) of those that are for shapes of their own.

    Returns:
        One row a (backend, kernel, case), ordered by case and ladder: ``backend`` and ``kernel``
        are ordered categories: kernels in the order of the ladders, others in that of first
        appearance in the file.
    """
    t = rows.copy()
    for column in t.columns:
        if column in NUMBERS:
            t[column] = pd.to_numeric(t[column], errors="coerce")
        else:
            t[column] = t[column].astype(object).where(t[column].notna(), "").astype(str)
    t["data"] = t["data"].replace("", NORMAL)
    t["batch"] = t["batch"].fillna(1).astype(int)
    if gpu is None:
        t[TIMED] = np.nan
        t[["timer", "cache"]] = "none"

    kernels = _in_order(ladders, t["kernel"])
    backends = ordered_backends(t["backend"])
    suites = t.groupby(CASE, sort=False)["suite"].agg(lambda s: " ".join(dict.fromkeys(s)))
    t["over_plain"] = _over_plain(t)
    t = _chosen_last(_among(t))
    t = t.join(suites.rename("suites"), on=CASE)
    t["backend"] = pd.Categorical(t["backend"], backends, ordered=True)
    t["kernel"] = pd.Categorical(t["kernel"], kernels, ordered=True)
    t = t.sort_values([*CASE, "backend", "kernel"], kind="stable").reset_index(drop=True)

    timed = t["status"].eq("ok") & t["ms_p50"].gt(0)
    t.loc[~timed, ["ms_p20", "ms_p50", "ms_p80", "ratio_p20", "ratio_p50", "ratio_p80"]] = np.nan
    baseline = timed & t["backend"].eq(BASELINE)
    for column in ("ratio_p20", "ratio_p50", "ratio_p80"):
        t.loc[baseline & t[column].isna(), column] = 1.0

    M, N, K, batch, ms = (t[c].astype(float) for c in ("M", "N", "K", "batch", "ms_p50"))
    size_in, size_out = (t[c].map(ITEMSIZE).astype(float) for c in ("dtype_in", "dtype_out"))
    t["shape"] = [shape_text(*s) for s in zip(M, N, K, batch, strict=True)]
    t["model"] = [
        model_of(int(m), int(n), int(k)) if of == 1 else ""
        for m, n, k, of in zip(M, N, K, batch, strict=True)
    ]
    named = zip(t["backend"].astype(str), t["kernel"].astype(str), strict=True)
    t["kind"] = ["shape" if kernel in specialists else "ladder" for kernel in named]
    t["flop"] = 2 * M * N * K * batch
    residual = t["fused"].str.contains("residual").astype(float)
    t["bytes"] = batch * ((M + N) * K * size_in + M * N * size_out * (1 + residual))
    t["intensity"] = t["flop"] / t["bytes"]
    t["tflops"] = t["flop"] / ms / 1e9
    t["paired_tflops"] = _paired_tflops(t)
    t["eops"] = batch * (M * K + (2 * K - 1) * M * N + 2 * M * N)
    t["etops"] = t["eops"] / ms / 1e9
    types = list(zip(t["dtype_in"], t["compute"], strict=True))
    peaks = {pair: gpu.peak(*pair) if gpu else None for pair in set(types)}
    peak = pd.Series([peaks[pair] for pair in types], index=t.index, dtype=float)
    bandwidth = float((gpu.bandwidth_gb_s if gpu else None) or np.nan)
    t["pct_of_peak"] = 100 * t["paired_tflops"] / peak
    t["gb_s"] = t["bytes"] / ms / 1e6
    compute_ms, memory_ms = t["flop"] / peak / 1e9, t["bytes"] / bandwidth / 1e6
    t["floor_ms"] = np.maximum(compute_ms, memory_ms)
    t["floor_by"] = np.where(
        t["floor_ms"].isna(), "", np.where(compute_ms >= memory_ms, "compute", "memory")
    )
    t["pct_of_floor"] = 100 * t["floor_ms"] / ms * t["paired_tflops"] / t["tflops"]
    t["pct_of_cublas"] = 100 * t["ratio_p50"]
    t["mj_per_tflop"] = t["power_w"] * ms * 1e12 / t["flop"]
    sms = float((gpu.sms if gpu else None) or np.nan)
    t["flop_per_clock_sm"] = t["flop"] / (ms * t["sm_clock_mhz"] * 1e3 * sms)
    ceiling = pd.Series(
        [
            gpu.ceiling_tflops(dtype, None if np.isnan(clock) else clock, mode) if gpu else None
            for (dtype, mode), clock in zip(types, t["sm_clock_mhz"], strict=True)
        ],
        index=t.index,
        dtype=float,
    )
    t["suspect"] = np.select(
        [t["tflops"].gt(ceiling), t["cache"].eq("cold") & memory_ms.gt(ms)],
        ["faster than the dense peak at its clock", "cold, yet less time than its bytes need"],
        "",
    )
    return t


def _among(t: pd.DataFrame) -> pd.DataFrame:
    """The latest row of each kernel and case, with the time that counts, and ``ratio_alone``.

    A product that the same run timed among other kernels too, in a graph and in a stream, counts
    with the lower ratio of the two: launches back to back overlap, and no program has only them.
    """
    key = [*CASE, "backend", "kernel"]
    old = t["among"].eq("") & t["timer"].eq("graph")
    t["among"] = t["among"].mask(old, "alone")
    beside = t["among"].isin(AMONG_OTHERS)
    latest = t[~beside].drop_duplicates(key, keep="last")
    others = t[beside & t["status"].eq("ok") & t["ratio_p50"].gt(0)]
    others = others.drop_duplicates([*key, "run", "among"], keep="last")
    lower = others.sort_values("ratio_p50", kind="stable").drop_duplicates([*key, "run"])
    columns = ["ms_p20", "ms_p50", "ms_p80", "ratio_p20", "ratio_p50", "ratio_p80"]
    columns += ["rounds", "timer", "among", "over_plain"]
    new = lower.set_index([*key, "run"])[columns].add_suffix("_new")
    joined = latest.join(new, on=[*key, "run"])
    found = joined["among_new"].notna() & joined["status"].eq("ok")
    joined["ratio_alone"] = joined["ratio_p50"].where(joined["among"].eq("alone"))
    for column in columns:
        joined[column] = joined[column].mask(found, joined[f"{column}_new"])
    return joined.drop(columns=[f"{column}_new" for column in columns])


def _over_plain(t: pd.DataFrame) -> pd.Series:
    """``DERIVED["over_plain"]`` of each row, before any is left out: another run has another clock,
    and may be of another kernel of that name."""
    key = [*(name for name in CASE if name != "fused"), "backend", "kernel", "run", "among"]
    timed = t["status"].eq("ok") & t["ms_p50"].gt(0)
    plain = t[timed & t["fused"].eq("")].drop_duplicates(key, keep="last")
    plain_ms = t.join(plain.set_index(key)["ms_p50"].rename("plain_ms"), on=key)["plain_ms"]
    return (t["ms_p50"] / plain_ms - 1).where(timed & t["fused"].ne(""))


def _chosen_last(t: pd.DataFrame) -> pd.DataFrame:
    """Rows in file order, of which one a case and backend says that it was chosen: the last.

    An older run may have chosen another kernel, whose row is still its latest.
    """
    chosen = t[t["chosen"].eq("yes")]
    before = chosen[chosen.duplicated([*CASE, "backend"], keep="last")]
    t.loc[before.index, "chosen"] = "no"
    return t


def of_normal_data(table: pd.DataFrame) -> pd.DataFrame:
    """The rows whose operands were normal: other data is faster, and shown as such only."""
    return table[table["data"].isin([NORMAL, ""])]


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of one 16-bit product each, of normal data, C in the dtype of A and B: what the
    ladders are for."""
    table = of_normal_data(table)
    keep = table["dtype_in"].isin(["float16", "bfloat16"]) & table["compute"].eq("float32")
    keep &= table["dtype_in"].eq(table["dtype_out"])
    keep &= table["kernel"].ne(AT_ITS_BEST) & table["batch"].eq(1)
    rows = table[keep & table["fused"].eq("") & table["mma_shape"].eq("")].copy()
    for column in ("backend", "kernel"):
        rows[column] = rows[column].cat.remove_unused_categories()
    return rows


def _in_order(ladders: Iterable[tuple[str, str]], seen: Iterable[str]) -> list[str]:
    """The names of all kernels: each rung behind the one before it on its ladder.

    Names that two ladders share stand where the first has them.
    """
    names: list[str] = []
    at: dict[str, int] = {}  # backend -> where its next rung goes
    for backend, kernel in ladders:
        if kernel not in names:
            names.insert(at.get(backend, 0), kernel)
        at[backend] = max(at.get(backend, 0), names.index(kernel) + 1)
    return list(dict.fromkeys([*names, *seen]))


def _paired_tflops(t: pd.DataFrame) -> pd.Series:
    """``DERIVED["paired_tflops"]``: what makes the kernels of a case comparable.

    Clocks drift while a case is measured, by 5 to 20 % under a power cap, so that two rates of one
    case are not comparable, but each ratio is: cuBLAS ran beside that very kernel.
    """
    leaders = best(t[t["backend"].ne(BASELINE)])
    beside = (leaders["tflops"] / leaders["ratio_p50"]).groupby([leaders[c] for c in CASE]).median()
    best_of_cublas = t["kernel"].eq(AT_ITS_BEST)
    baseline = t[CASE].join(beside.rename("beside"), on=CASE)["beside"]
    return (
        (baseline * t["ratio_p50"].where(t["backend"].ne(BASELINE) | best_of_cublas, 1.0))
        .where(t["tflops"].notna(), np.nan)
        .fillna(t["tflops"])
    )


def ordered_backends(names: Iterable[str]) -> list[str]:
    """Backends in the order they are shown: triton, cuda, others as they appear, cublas."""
    rank = {"triton": 0, "cuda": 1, BASELINE: 3}
    return sorted(dict.fromkeys(names), key=lambda b: rank.get(b, 2))


def shape_text(M: float, N: float, K: float, batch: float = 1) -> str:
    """``4096³`` for a cube, ``16 × 4096 × 14336`` otherwise; ``8 of 64³`` for a batch."""
    if batch > 1:
        return f"{int(batch)} of {shape_text(M, N, K)}"
    if M == N == K:
        return f"{int(M)}³"
    return " × ".join(str(int(side)) for side in (M, N, K))


def rate_text(tflops: float) -> str:
    """TFLOPS to three digits, zeros too, without decimals from 100 up, thousands set apart."""
    return f"{tflops:,.0f}" if tflops >= 99.95 else f"{tflops:#.3g}"


def best(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest timed rung of each backend on each case: by paired ratio, else by time.

    Of the baseline, the row that ratios are taken against. Where a backend has rungs that were
    timed among other kernels on a case, those that were not are no match for them.
    """
    timed = table[table["tflops"].notna() & table["kernel"].ne(AT_ITS_BEST)]
    beside = timed["among"].isin(AMONG_OTHERS)
    of_case = [timed[name] for name in (*CASE, "backend")]
    timed = timed[beside | ~beside.groupby(of_case, observed=True).transform("any")]
    order = timed.sort_values(["ratio_p50", "tflops"], ascending=False, kind="stable")
    return order.drop_duplicates([*CASE, "backend"]).sort_index()


DISPLAY = {"triton": "Triton", "cuda": "CUDA", "cublas": "cuBLAS", "own": "own"}
"""Backend name -> as it is written in a sentence; any other is written as it is."""


def pairs_text(dtype_in: str, dtype_out: str, compute: str = "") -> str:
    """``bfloat16``; ``bfloat16 → float32`` where C differs; ``float32 by tf32`` where sums do."""
    pair = dtype_in if dtype_in == dtype_out else f"{dtype_in} → {dtype_out}"
    usual = compute in ("", COMPUTES[dtype_in][0]) and dtype_in != "float32"
    return pair if usual or not compute else f"{pair} by {compute}"


def why_empty(row: pd.Series, column: str, gpu: Gpu | None) -> str:
    """Why a cell holds no value: what the tables show in its place."""
    timing = {
        *TIMED,
        "tflops",
        "paired_tflops",
        "etops",
        "gb_s",
        "pct_of_peak",
        "pct_of_floor",
        "pct_of_cublas",
    }
    if column == "ratio_alone":
        return "not timed alone"
    if column == "over_plain":
        return "no plain product beside it" if row["fused"] else "nothing is fused"
    if column in ("error_ratio", "exact_errors"):
        return "not checked" if row["status"] == "ok" else str(row["status"])
    if column in timing | {"flop_per_clock_sm", "mj_per_tflop"}:
        if gpu is None:
            return "never timed on the CPU"
        if row["status"] != "ok":
            return str(row["status"])
        if pd.isna(row["ms_p50"]):
            return "not timed"
        if column.startswith("ratio") or column == "pct_of_cublas":
            return "not paired"
    if column in ("pct_of_peak", "floor_ms", "floor_by", "pct_of_floor"):
        return "no GPU" if gpu is None else "data sheet unknown"
    if column in ("sm_clock_mhz", "power_w", "compile_s", "flop_per_clock_sm", "mj_per_tflop"):
        return "not recorded"
    named = {"config": "no settings", "reason": "ok", "fused": "nothing", "mma_shape": "not named"}
    named["model"] = "no model's"
    return named.get(column, "none")
