"""FAST, SLOW, SAME or AMBG: what two runs say of a case, and of a kernel over all its cases.

Compared are the ratios to cuBLAS, each the median of pairs: the clock that drifts by 5 to 20 %
between two runs is the same within a pair. The change of a case is the ratio in B over that in A.

But a ratio also changes where cuBLAS does: its short products take up to 9 % more or less from run
to run, with what lies in the L2 beside them. So where cuBLAS takes less than ``SHORT``, the cycles
of the kernel itself have to say the same: a change is the smaller of the two, and none where they
disagree.

Its noise has two parts. Within a run the spread of the pairs says how well their median is known:
p80 - p20 is 1.683 standard deviations of normal pairs, and the median of n of them has 1.253 /
sqrt(n) of one. Between runs of one commit ratios differ by more than that; ``BETWEEN_RUNS`` is what
the committed H200 rows show of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...bench.case import CASE_COLUMNS, NORMAL, case_of_row
from ..derive import AMONG_OTHERS, BASELINE

FAST, SLOW, SAME, AMBG = "FAST", "SLOW", "SAME", "AMBG"

VERDICTS = {
    FAST: "faster by more than the noise and the tolerance",
    SLOW: "slower by more than the noise and the tolerance",
    SAME: "within the tolerance, or within the noise, and a change of 10 % is out of the question",
    AMBG: "the spread of the pairs is so wide that it may have changed by more than 10 %",
}
"""What each verdict says."""

BETWEEN_RUNS = 0.005
"""Standard deviation of the logarithm of a ratio from run to run of one commit, beyond the spread
of its pairs: of 288 cases that the committed H200 rows hold twice half differ by under 0.4 %, nine
in ten by under 1.2 %."""

BETWEEN_SHORT = 0.008
"""The same where cuBLAS is ``SHORT``, of the change that the kernel's cycles confirm."""

SIGMAS = 3.0
"""A change beyond so many standard deviations is one."""

TOLERANCE = 0.03
"""A change of a case of at most this is SAME, however well it is known: one in a hundred cases of
two runs of one commit differs by more."""

SHORT = 0.1
"""Milliseconds of cuBLAS below which a kernel's own cycles have to confirm a change. Above, power
moves the clock within a run, and pairs tell more than cycles."""

EXCLUDED = 0.10
"""A case is SAME where its change, give or take the noise, is within this; of a kernel's mean, half
of that."""

NAMED = 4
"""Kernels that are named of those with cases of one side alone."""

SPREAD_OF_NORMAL = 1.683
MEDIAN_OVER_MEAN = 1.253

KEY = ["backend", "kernel", *CASE_COLUMNS, "beside"]
"""What names a row of both sides; ``beside`` is what it was timed among."""


def latest(rows: Iterable[Mapping[str, str]]) -> pd.DataFrame:
    """The last row of each kernel and case, but the baseline's, with numbers for ratios.

    What it was timed among counts where the same run gave it: a later run may have found the kernel
    wrong, or may not have timed it among others.
    """
    frame = pd.DataFrame(list(rows), dtype=str)
    if frame.empty:
        return pd.DataFrame(columns=[*KEY, "run", "status", "reason", *MEASURED])
    frame["beside"] = frame["among"].where(frame["among"].isin(AMONG_OTHERS), "")
    frame["data"] = frame["data"].replace("", NORMAL)
    frame["batch"] = frame["batch"].replace("", "1")
    is_baseline = frame["backend"].eq(BASELINE) & frame["kernel"].eq(BASELINE)
    frame = frame[~is_baseline].drop_duplicates(KEY, keep="last")
    by_itself = frame["run"].where(frame["beside"].eq(""))
    last_run = by_itself.groupby([frame[name] for name in KEY[:-1]]).transform("last")
    frame = frame[frame["run"].eq(last_run) | last_run.isna()].copy()
    for name in MEASURED:
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame


RATIOS = ("ratio_p20", "ratio_p50", "ratio_p80")
MEASURED = (*RATIOS, "rounds", "ms_p50", "sm_clock_mhz")


def cases(
    a: Iterable[Mapping[str, str]],
    b: Iterable[Mapping[str, str]],
    tolerance: float = TOLERANCE,
) -> pd.DataFrame:
    """A row for each kernel and case that both sides timed beside cuBLAS, in runs of their own: a
    row that both hold, of one and the same run, says nothing.

    Args:
        a, b: stored rows, in file order.
        tolerance: see TOLERANCE.

    Returns:
        KEY, ``case`` in words, ``ratio_a``, ``ratio_b``, ``change`` (B over A, less 1; above 0 is
        faster; see SHORT), ``noise`` (SIGMAS standard deviations of it) and ``verdict``, in the
        order of B.
    """
    timed = [of[of["status"].eq("ok") & of["ratio_p50"].gt(0)] for of in map(latest, (a, b))]
    columns = [*KEY, "run", *MEASURED]
    both = timed[1][columns].merge(timed[0][columns], on=KEY, suffixes=("_b", "_a"))
    both = both[both["run_a"].ne(both["run_b"])].reset_index(drop=True)
    both["log"] = _confirmed(both)
    deviation = np.sqrt(_variance(both, "a") + _variance(both, "b"))
    both["change"], both["noise"] = np.expm1(both["log"]), np.expm1(SIGMAS * deviation)
    changed = both["log"].abs().gt(np.log1p(both["noise"])) & both["change"].abs().gt(tolerance)
    reach = np.expm1(both["log"].abs() + np.log1p(both["noise"]))
    verdict = pd.Series(AMBG, index=both.index).mask(reach.le(EXCLUDED), SAME)
    both["verdict"] = verdict.mask(changed, SLOW).mask(changed & both["log"].gt(0), FAST)
    both["case"] = [_case(row) for row in both[KEY].to_dict("records")]
    return both.rename(columns={"ratio_p50_a": "ratio_a", "ratio_p50_b": "ratio_b"})


def _confirmed(both: pd.DataFrame) -> pd.Series:
    """The logarithm of each case's change: of the ratio, and where cuBLAS is SHORT no more than the
    kernel's cycles say."""

    def log(name: str) -> pd.Series:
        quotient = both[f"{name}_b"].astype(float) / both[f"{name}_a"].astype(float)
        return quotient.map(math.log)

    ratio, time, clock = (log(name) for name in ("ratio_p50", "ms_p50", "sm_clock_mhz"))
    cycles = -(time + clock.fillna(0.0))
    smaller = ratio.where(ratio.abs().le(cycles.abs()), cycles)
    agreed = smaller.where((ratio * cycles).gt(0), 0.0)
    return ratio.mask(_is_short(both) & time.notna(), agreed)


def _is_short(both: pd.DataFrame) -> pd.Series:
    a, b = (both[f"ratio_p50_{side}"] * both[f"ms_p50_{side}"] for side in "ab")
    return a.lt(SHORT) | b.lt(SHORT)


def _variance(both: pd.DataFrame, side: str) -> pd.Series:
    """Of the logarithm of a side's ratio; where no spread is stored, that between runs alone."""
    width = np.log(
        both[f"ratio_p80_{side}"].astype(float) / both[f"ratio_p20_{side}"].astype(float)
    )
    error = MEDIAN_OVER_MEAN * width / SPREAD_OF_NORMAL / np.sqrt(both[f"rounds_{side}"].clip(1))
    between = np.where(_is_short(both), BETWEEN_SHORT, BETWEEN_RUNS)
    return error.fillna(0.0) ** 2 + between**2


def _case(row: Mapping[Any, Any]) -> str:
    beside = f", among others in a {row['beside']}" if row["beside"] else ""
    return f"{case_of_row(row)}{beside}"


def kernels(table: pd.DataFrame, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Each kernel over its cases: counts by verdict, the geometric mean of the changes, a verdict.

    A kernel's mean is known better than any of its cases, so that half the tolerance is enough,
    and its noise is that of the cases' changes over the root of their number.
    """
    rows = []
    for (backend, kernel), of in table.groupby(["backend", "kernel"], sort=False):
        n, mean = len(of), float(of["log"].mean())
        spread = float(of["log"].std()) if n > 1 else 0.0
        each = float(np.log1p(of["noise"]).mean())
        noise = max(SIGMAS * spread, each) / np.sqrt(n)
        change = float(np.expm1(mean))
        changed = abs(mean) > noise and abs(change) > tolerance / 2
        same = np.expm1(abs(mean) + noise) <= EXCLUDED / 2
        verdict = (FAST if mean > 0 else SLOW) if changed else SAME if same else AMBG
        counts = {name: int(of["verdict"].eq(name).sum()) for name in VERDICTS}
        worst = of.iloc[int(of["change"].argmin())]
        rows.append(
            {
                "backend": backend, "kernel": kernel, "cases": n, "change": change,
                "noise": float(np.expm1(noise)), "verdict": verdict, **counts,
                "worst": float(worst["change"]), "worst case": worst["case"],
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def lost(a: Iterable[Mapping[str, str]], b: Iterable[Mapping[str, str]]) -> list[str]:
    """What was ok in A and is not in B, a sentence each."""
    key = KEY[:-1]
    before, after = (latest(of).drop_duplicates(key, keep="first") for of in (a, b))
    columns = [*key, "status", "reason"]
    both = after[columns].merge(before[columns], on=key, suffixes=("", "_a"))
    broken = both[both["status_a"].eq("ok") & both["status"].ne("ok")]
    return [
        f"{row['backend']}/{row['kernel']} at {_case({**row, 'beside': ''})}: {row['status']}"
        + (f" ({row['reason']})" if row["reason"] else "")
        for row in broken.to_dict("records")
    ]


def unmatched(a: Iterable[Mapping[str, str]], b: Iterable[Mapping[str, str]]) -> list[str]:
    """What one side timed and the other has no row of, a sentence for each side with such cases."""
    key = KEY[:-1]
    sides = [latest(of).drop_duplicates(key, keep="first") for of in (a, b)]
    timed = [of[of["status"].eq("ok") & of["ratio_p50"].gt(0)] for of in sides]
    said = []
    for name, mine, other in (("A", timed[0], sides[1]), ("B", timed[1], sides[0])):
        both = mine[key].merge(other[key], on=key, how="left", indicator=True)
        only = both[both["_merge"].eq("left_only")]
        counts = (only["backend"] + "/" + only["kernel"]).value_counts()
        if counts.empty:
            continue
        named = [f"{kernel} {n:,}" for kernel, n in counts.head(NAMED).items()]
        more = [f"{len(counts) - NAMED} more kernels"] * (len(counts) > NAMED)
        said.append(f"Only {name} has {len(only):,} cases, not compared: {', '.join(named + more)}")
    return said


def counted(verdicts: Sequence[str]) -> str:
    """``3 FAST, 1 SLOW, 250 SAME, 4 AMBG``."""
    return ", ".join(f"{list(verdicts).count(name):,} {name}" for name in VERDICTS)
