"""Products over several GPUs in the report: what ``tcgemm bench --several`` has stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from ..bench import store
from ..bench.several.cases import COLUMNS, SEVERAL, read, read_stamps
from ..dist.options import OPS
from ..errors import ResultsError
from .figures.picture import Picture, number_text
from .figures.several import SLUGS as SLUGS
from .figures.several import draw_ratios, draw_time_line
from .markdown import plain, table
from .rows import check_depth, printable, printable_facts
from .sections import Section

NUMBERS = (
    *("ms_p50", "gemm_ms", "nccl_ms", "torch_fused_ms", "ratio_nccl", "ratio_torch", "of_limit"),
    *("world", "M", "N", "K"),
)
CASE = ("op", "M", "N", "K", "dtype", "contender")
NOT_OK = "Over several GPUs: results that are not ok"


@dataclass(frozen=True)
class Several:
    """Results of one number of GPUs."""

    path: Path
    name: str
    slug: str
    rows: list[dict[str, Any]]
    """The last one of each case and contender; numbers as floats, None where they are empty."""
    stamps: list[dict[str, str]]
    runs: dict[str, dict[str, Any]]

    @property
    def timed(self) -> list[dict[str, Any]]:
        """The rows with a time."""
        return [row for row in self.rows if row["status"] == "ok" and row["ms_p50"]]


def holds(path: Path) -> bool:
    """Whether a folder has results over several GPUs."""
    return (path / SEVERAL).is_file()


def load(path: Path) -> Several:
    """Read one folder. Raises ResultsError where a row cannot be what was measured."""
    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    for number, row in enumerate(read(path), start=2):
        row = {name: printable(cell) for name, cell in row.items()}
        latest[tuple(row[name] for name in CASE)] = _numbers(path / SEVERAL, number, row)
    runs = store.read_environment(path)
    check_depth(path / store.ENVIRONMENT, runs)
    runs = printable_facts(runs)
    rows = list(latest.values())
    last = runs.get(rows[-1]["run"], {}) if rows else next(reversed(runs.values()), {})
    gpus = {str(runs[run].get("gpu") or "no GPU") for run in {r["run"] for r in rows} & set(runs)}
    if len(gpus) > 1:
        raise ResultsError(
            f"{path} mixes runs of {' and '.join(sorted(gpus))}: keep one folder for each GPU, and "
            "measure the other again with 'tcgemm bench --several --out DIR'"
        )
    worlds = {int(row["world"]) for row in rows}
    if len(worlds) > 1:
        raise ResultsError(
            f"{path / SEVERAL} mixes {' and '.join(map(str, sorted(worlds)))} ranks: keep a folder "
            "for each number"
        )
    count = worlds.pop() if worlds else last.get("world", 0)
    name = f"{count} × {last.get('gpu') or 'CPU'}"
    return Several(path, name, f"several-{path.resolve().name}", rows, read_stamps(path), runs)


def _numbers(path: Path, line: int, row: dict[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = dict(row)
    for name in NUMBERS:
        try:
            made[name] = float(row[name]) if row[name] else None
        except ValueError:
            made[name] = math.nan
        value = made[name]
        if (value is None and name in "MNK") or (value is not None and not 0 < value < 1e12):
            raise ResultsError(
                f"{path}: line {line} has {name}={row[name][:80]!r}, which is no positive number: "
                "remove that line"
            )
    return made


def hidden(row: Mapping[str, Any]) -> float | None:
    """The share of the communication that a call hides, 0 to 1.

    NCCL's time beside the product is what nccl_ms has more than gemm_ms; a call shows of it what it
    takes longer than the product alone. None where there is nothing to hide.
    """
    if not (row["nccl_ms"] and row["gemm_ms"] and row["nccl_ms"] > row["gemm_ms"]):
        return None
    shown = (row["ms_p50"] - row["gemm_ms"]) / (row["nccl_ms"] - row["gemm_ms"])
    return min(max(1 - shown, 0.0), 1.0)


def sentence(folder: Several) -> str:
    """What the folder says, in one sentence."""
    planned = [r for r in folder.timed if r["contender"] == "planned" and r["ratio_nccl"]]
    if not folder.rows:
        return f"{folder.name}: the results file holds no row yet."
    if not planned:
        right = sum(row["status"] == "ok" for row in folder.rows)
        return f"{folder.name}: {right} of {len(folder.rows)} results are right; nothing was timed."
    mean = geometric_mean(row["ratio_nccl"] for row in planned)
    worst = min(row["ratio_nccl"] for row in planned)
    bad = sum(r["contender"] == "planned" and r["status"] != "ok" for r in folder.rows)
    more = f" {bad} more {'is' if bad == 1 else 'are'} not ok, and not counted." if bad else ""
    return (
        f"Over {folder.name}, tensor-parallel layers as tcgemm plans them run {mean:.2f} times as "
        f"fast as NCCL and cuBLAS one after the other ({len(planned)} cases, geometric mean), and "
        f"{worst:.2f} times in the worst case.{more}"
    )


def pictures(folder: Several) -> list[Picture]:
    """The ratios by M, and the time line of a call of each operation that has clock stamps."""
    stamped = {row["op"] for row in folder.stamps}
    lines = [draw_time_line(op, folder.stamps) for op in OPS if op in stamped]
    return [draw_ratios(folder.timed), *lines]


def sections(folder: Several) -> list[Section]:
    """The tables that the folder has rows for."""
    made = [_summary(folder), _cases(folder), _not_ok(folder)]
    return [section for section in made if section.rows]


def _summary(folder: Several) -> Section:
    rows = []
    timed = folder.timed
    for contender in dict.fromkeys(row["contender"] for row in timed):
        of = [row for row in timed if row["contender"] == contender]
        for M in sorted({row["M"] for row in of}):
            for op in dict.fromkeys(row["op"] for row in of):
                at = [row for row in of if (row["M"], row["op"]) == (M, op)]
                if at:
                    rows.append([contender, f"{M:.0f}", op, str(len(at)), *_means(at)])
        if of:
            rows.append([contender, "all", "both", str(len(of)), *_means(of)])
    return Section(
        "by-m-and-op",
        "Over several GPUs: by M and operation",
        "Geometric means over the layers. Times are those of the slowest rank; contenders ran in "
        "turns, and a ratio is the median of rounds. The limit is the longer of the product alone "
        "(cuBLAS) and the bare transfer over the links. “Hidden” is the share of the time that "
        "NCCL adds to the product and that the call does not take, and 0 % where the call takes "
        "even longer; the mean of the cases is shown. “(of 3)” behind a mean: only so many cases "
        "have that time.",
        ["contender", "M", "operation", "cases", "over NCCL + cuBLAS", "its worst case's ratio",
         "over torch's fused", "of the limit", "hidden"],
        rows,
        words=3,
    )  # fmt: skip


def _means(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def mean(name: str, percent: bool = False) -> str:
        known = [row[name] for row in rows if row[name]]
        if not known:
            return "–"
        of = geometric_mean(known)
        fewer = f" (of {len(known)})" if len(known) < len(rows) else ""
        return (f"{100 * of:.0f} %" if percent else f"{of:.2f}") + fewer

    worst = min((row["ratio_nccl"] for row in rows if row["ratio_nccl"]), default=None)
    shares = [share for share in map(hidden, rows) if share is not None]
    return [
        mean("ratio_nccl"), "–" if worst is None else f"{worst:.2f}", mean("ratio_torch"),
        mean("of_limit", True),
        f"{100 * sum(shares) / len(shares):.0f} %" if shares else "–",
    ]  # fmt: skip


def _cases(folder: Several) -> Section:
    def ms(value: float | None) -> str:
        return "–" if value is None else number_text(value)

    text: Callable[[float | None], str] = lambda v: "–" if v is None else f"{v:.2f}"  # noqa: E731
    rows = [
        [
            f"{row['model']} {row['layer']}".strip(), row["op"], row["dtype"],
            f"{row['M']:.0f}×{row['N']:.0f}×{row['K']:.0f}", row["contender"], row["way"],
            *(ms(row[name]) for name in ("ms_p50", "gemm_ms", "nccl_ms", "torch_fused_ms")),
            text(row["ratio_nccl"]), text(row["ratio_torch"]), text(row["of_limit"]),
            text(hidden(row)),
        ]
        for row in folder.timed
    ]  # fmt: skip
    return Section(
        "layers",
        "Over several GPUs: every layer",
        "M, N and K are the whole layer's. Milliseconds of the call, of cuBLAS alone, of NCCL and "
        "cuBLAS, and of torch's fused operator, which is a dash where it failed or was wrong. "
        "“Hidden” is the share of NCCL's time beside the product that the call does not take.",
        ["layer", "operation", "dtype", "M×N×K", "contender", "way", "ms", "product", "NCCL",
         "torch", "over NCCL", "over torch", "of limit", "hidden"],
        rows,
        words=6,
    )  # fmt: skip


def _not_ok(folder: Several) -> Section:
    reasons: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in folder.rows:
        if row["status"] != "ok":
            key = row["contender"], row["status"], row["reason"]
            reasons.setdefault(key, []).append(row)
        if row["torch_status"] not in ("", "ok") and row["contender"] == "planned":
            status, _, reason = row["torch_status"].partition(": ")
            reasons.setdefault(("torch", status, reason), []).append(row)
    rows = [
        [*key, str(len(of)), f"{of[0]['op']} {of[0]['M']:.0f}×{of[0]['N']:.0f}×{of[0]['K']:.0f}"]
        for key, of in reasons.items()
    ]
    return Section(
        "several-not-ok", NOT_OK, "By contender, status and reason: how many cases, and one.",
        ["contender", "status", "reason", "cases", "for example"], rows, words=3,
    )  # fmt: skip


def facts(folder: Several) -> list[tuple[str, str]]:
    """The environment of the last run."""
    last = folder.runs.get(folder.rows[-1]["run"], {}) if folder.rows else {}
    return [(name, str(value)) for name, value in last.items() if value not in (None, "", [])]


def folder_readme(folder: Several, drawn: Sequence[Picture]) -> str:
    """The README.md of the folder."""
    parts = [
        f"# {plain(folder.name)}",
        "Generated by `tcgemm report` from `several.csv` and `environment.json`; edit neither this "
        "file nor the figures. `index.html` is the same and opens offline.",
        plain(sentence(folder)),
    ]
    for picture in drawn:
        parts.append(f"## {picture.title}")
        if picture.svg is not None:
            parts.append(f"![{picture.title}](figures/{picture.slug}.svg)")
        parts.append(plain(picture.guide))
    for section in sections(folder):
        parts += [f"## {plain(section.title)}", plain(section.guide)]
        parts.append(table(section.header, section.rows, section.numbers))
    parts += ["## Environment", table(["fact", "value"], [list(fact) for fact in facts(folder)])]
    return "\n\n".join(parts) + "\n"


DEFINITIONS = [(name, meaning, "several GPUs") for name, meaning in COLUMNS.items()]
"""(column, meaning, kind), for the page's list of columns."""
