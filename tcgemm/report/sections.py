"""Tables beside the ladders: type pairs, WMMA shapes, a transposed B, what an epilogue costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from . import alone
from .compiled import compiled_rows, language_rows
from .derive import (
    AT_ITS_BEST,
    BASELINE,
    CASE,
    DISPLAY,
    best,
    of_normal_data,
    pairs_text,
    plain,
    rate_text,
    shape_text,
)
from .folder import Folder
from .published_rates import GUIDE, HEADER
from .published_rates import rows as published_rows

TYPE = ["dtype_in", "dtype_out", "compute"]
SHAPE = ["M", "N", "K"]


@dataclass(frozen=True)
class Section:
    """A table with a title and how to read it; the first ``words`` columns are no numbers, nor are
    those of a rung's name."""

    slug: str
    title: str
    guide: str
    header: list[str]
    rows: list[list[str]]
    words: int = 1

    @property
    def numbers(self) -> list[int]:
        """The columns of numbers."""
        named = [i for i, name in enumerate(self.header) if name.endswith(("rung", "worst case"))]
        return [i for i in range(self.words, len(self.header)) if i not in named]


def sections(folder: Folder) -> list[Section]:
    """The tables that the folder has rows for."""
    if "sections" not in folder.kept:
        folder.kept["sections"] = _made(folder)
    found: list[Section] = folder.kept["sections"]
    return found


def _made(folder: Folder) -> list[Section]:
    if not folder.on_gpu:
        return []
    timed = of_normal_data(folder.table[folder.table["tflops"].notna()])
    made = [
        make(timed)
        for make in (_suites, _at_its_best, _type_pairs, _transposed_b, _wmma_shapes, _fused)
    ]
    if timed["suites"].str.contains("seeds").any():
        made.append(_published(timed))
    made.append(_steady(folder))
    if folder.compiled is not None:
        special = folder.compiled["kind"].eq("shape")
        made += [_languages(folder.compiled), _compiled(folder.compiled[~special])]
        made.append(_compiled_specialists(folder.compiled[special]))
    return [section for section in made if section is not None and section.rows]


def _steady(folder: Folder) -> Section:
    """What kernels do that run alone for seconds."""
    return Section("steady", alone.TITLE, alone.GUIDE, *alone.alone_rows(folder.path), words=2)


def _named(table: pd.DataFrame) -> list[str]:
    """The backends in ladder order, the baseline apart."""
    return [str(b) for b in table["backend"].cat.categories if b != BASELINE]


def _cubes(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["M"].eq(table["N"]) & table["N"].eq(table["K"])]


def _pair(row: pd.Series) -> str:
    return pairs_text(row["dtype_in"], row["dtype_out"], row["compute"])


def _in_order(table: pd.DataFrame, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted({tuple(row) for row in table[columns].to_numpy().tolist()})


def _where(table: pd.DataFrame, columns: list[str], values: tuple[Any, ...]) -> pd.DataFrame:
    keep = pd.Series(True, index=table.index)
    for column, value in zip(columns, values, strict=True):
        keep &= table[column].eq(value)
    return table[keep]


def _suites(timed: pd.DataFrame) -> Section | None:
    """The ratios of each suite of plain products in one number, and its worst case."""
    of = plain(timed)
    of = of[of["backend"].ne(BASELINE) & of["ratio_p50"].notna()]
    names = [name for name in SUITES if of["suites"].str.contains(name).any()]
    if not names:
        return None
    picks = {"fastest rung": best(of), "chosen unasked": of[of["chosen"].eq("yes")]}
    rows = []
    for dtype in sorted(set(of["dtype_in"])):
        for backend in _named(of):
            for name in [*names, "all"]:
                row = [dtype, DISPLAY.get(backend, backend), name]
                for pick in picks.values():
                    at = pick[pick["dtype_in"].eq(dtype) & pick["backend"].eq(backend)]
                    at = at[at["suites"].str.contains("|".join(names) if name == "all" else name)]
                    row += _mean_and_worst(at)
                rows.append(row)
    header = ["dtype", "backend", "suite"]
    for name in picks:
        header += [f"{name}: cases", "geometric mean", "worst", "worst case"]
    return Section(
        "suites",
        "Suite by suite",
        "The ratio to cuBLAS over all cases of a suite, as a geometric mean, and the worst of "
        "them. The fastest rung is found afterwards, case by case; what matmul chose unasked is "
        "what a caller gets who names no kernel. All: each case once.",
        header,
        rows,
        words=3,
    )


SUITES = ("squares", "seeds", "llm")


def _mean_and_worst(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["–", "–", "–", "–"]
    ratio = rows["ratio_p50"].astype(float)
    worst = rows.iloc[int(ratio.argmin())]
    where = f"{worst['shape']} {worst['layout']}, {worst['kernel']}"
    return [str(len(rows)), f"{np.exp(np.log(ratio).mean()):.2f}", f"{ratio.min():.2f}", where]


def _at_its_best(timed: pd.DataFrame) -> Section | None:
    """Each backend beside cuBLAS as users get it, and beside the best that cuBLASLt offers."""
    rival = timed[timed["kernel"].eq(AT_ITS_BEST) & timed["ratio_p50"].notna()]
    if rival.empty:
        return None
    ours = best(timed[timed["backend"].ne(BASELINE)])
    both = ours.merge(rival[[*CASE, "ratio_p50"]], on=CASE, suffixes=("", "_best"))
    both["of_best"] = both["ratio_p50"] / both["ratio_p50_best"]
    others = [b for b in _named(timed) if both["backend"].eq(b).any()]
    said = []
    for backend in others:
        of = both[both["backend"].eq(backend)]
        said.append(
            f"{DISPLAY.get(backend, backend)} is at or above torch.mm on "
            f"{int(of['ratio_p50'].ge(1).sum())} of {len(of)} cases, and at or above cuBLAS at its "
            f"best on {int(of['of_best'].ge(1).sum())}"
        )
    shown = both[both["suites"].str.contains("squares")]
    shown = both if shown.empty else shown
    header = ["size", "type pair", "layout", "cuBLAS at its best"]
    for backend in others:
        name = DISPLAY.get(backend, backend)
        header += [f"{name}: of torch.mm", "of the best"]
    rows = []
    for case in _in_order(shown, [*TYPE, *SHAPE, "layout"]):
        at = _where(shown, [*TYPE, *SHAPE, "layout"], case)
        row = [shape_text(*case[3:6]), _pair(at.iloc[0]), str(case[6])]
        row.append(f"{at['ratio_p50_best'].iloc[0]:.2f}")
        for backend in others:
            of = at[at["backend"].eq(backend)]
            row += ["–", "–"] if of.empty else [f"{of[c].iloc[0]:.2f}" for c in RATIOS]
        rows.append(row)
    return Section(
        "best",
        "torch.mm, and cuBLAS at its best",
        "torch.mm takes the first algorithm that cuBLASLt's heuristic names; its best is the "
        "fastest of all that the heuristic offers with a workspace of 64 MiB, each verified and "
        f"timed for that very case. Both are shown, each by its name. {'; '.join(said)}.",
        header,
        rows,
        words=3,
    )


RATIOS = ("ratio_p50", "of_best")


def _type_pairs(timed: pd.DataFrame) -> Section | None:
    """Every type pair at the sizes of the suite ``types``: the best rung of each backend."""
    of = _cubes(timed[timed["fused"].eq("") & timed["mma_shape"].eq("")])
    of = of[of["suites"].str.contains("types")]
    if of.empty:
        return None
    leaders = best(of)
    others = _named(of)
    header = ["type pair", "size", "layout", "cuBLAS TFLOPS"]
    for backend in others:
        name = DISPLAY.get(backend, backend)
        header += [f"{name}: best rung", "TFLOPS", "of cuBLAS", "error"]
    rows = []
    for case in _in_order(of, [*TYPE, "M", "layout"]):
        at = _where(leaders, [*TYPE, "M", "layout"], case)
        row = [_pair(at.iloc[0]), shape_text(case[3], case[3], case[3]), str(case[4])]
        base = at[at["backend"].eq(BASELINE)]
        row.append("refused" if base.empty else rate_text(float(base["paired_tflops"].iloc[0])))
        for backend in others:
            row += _rung(at[at["backend"].eq(backend)])
        rows.append(row)
    return Section(
        "types",
        "Type pairs",
        "Rates in 10¹² operations a second, 2 M N K each, on one clock as in the headline. “By” "
        "says how products are summed where a dtype has more than one way: tf32x3 makes three "
        "products of one and keeps float32's accuracy, fast leaves sums of 8-bit floats in the "
        "tensor core. cuBLAS is its fastest call for the pair; where there is none, "
        "nothing is paired. The error is the largest of the case against float64, over its bound; "
        "integers are exact or wrong.",
        header,
        rows,
        words=3,
    )


def _rung(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["none", "–", "–", "–"]
    row = rows.iloc[0]
    ratio = float(row["ratio_p50"])
    share = "not paired" if np.isnan(ratio) else f"{100 * ratio:,.0f} %"
    rate = rate_text(float(row["paired_tflops"]))
    error = float(row["error_ratio"])
    return [str(row["kernel"]), rate, share, f"{error:#.2g}" if error else "0"]


def _transposed_b(timed: pd.DataFrame) -> Section | None:
    """nt over nn by type, for each kernel that took both in one run: another has another clock."""
    of = _cubes(timed[timed["fused"].eq("") & timed["mma_shape"].eq("")])
    of = of[of["suites"].str.contains("types") & of["layout"].isin(["nn", "nt"])]
    if of.empty:
        return None
    size = 4096 if of["M"].eq(4096).any() else int(of["M"].max())
    of = of[of["M"].eq(size)]
    wide = of.pivot_table(
        index=[*TYPE, "run"], columns=["backend", "kernel", "layout"],
        values="paired_tflops", observed=True,
    )  # fmt: skip
    columns = wide.columns.to_frame().to_numpy().tolist()
    kernels = list(dict.fromkeys((backend, kernel) for backend, kernel, _ in columns))
    rows = []
    for number, (*types, _) in enumerate(wide.index.to_frame().to_numpy().tolist()):
        values = wide.iloc[number]
        for backend, kernel in kernels:
            nn, nt = (values.get((backend, kernel, layout), np.nan) for layout in ("nn", "nt"))
            if not (np.isnan(nn) or np.isnan(nt)):
                name = DISPLAY.get(backend, backend)
                rows.append([pairs_text(*types), name, kernel, f"{nt / nn:.2f}"])
    return Section(
        "transposed",
        f"What a transposed B gives at {shape_text(size, size, size)}",
        "The rate with B stored [N, K] (nt) over the rate with B stored [K, N] (nn), kernel by "
        "kernel: above 1 the transposed B is faster. A WMMA or mma instruction wants each column "
        "of B contiguous; for 16 bits the hardware transposes on the way from shared memory "
        "(ldmatrix, wgmma's transpose bit), for 8-bit and 32-bit types nothing does, so that the "
        "kernel has to, by bytes or through a packed copy.",
        ["type pair", "backend", "kernel", "nt over nn"],
        rows,
        words=3,
    )


def _wmma_shapes(timed: pd.DataFrame) -> Section | None:
    """The WMMA shapes of each type beside each other."""
    of = timed[timed["mma_shape"].ne("") & timed["backend"].ne(BASELINE)]
    if of.empty:
        return None
    shapes = list(dict.fromkeys(of["mma_shape"]))
    rows = []
    for case in _in_order(of, [*TYPE, *SHAPE, "layout"]):
        at = _where(of, [*TYPE, *SHAPE, "layout"], case)
        row = [_pair(at.iloc[0]), shape_text(*case[3:6]), str(case[6])]
        for shape in shapes:
            rates = at[at["mma_shape"].eq(shape)]["paired_tflops"]
            row.append("–" if rates.empty else rate_text(float(rates.max())))
        rows.append(row)
    return Section(
        "wmma-shapes",
        "WMMA shapes",
        "TFLOPS of the same kernel with the instruction shape (M × N × K) named; a dash where the "
        "type has no such shape. All of them become the same mma instructions in the end: what "
        "differs is how many fragments of A and of B a warp holds, and so the reads from shared "
        "memory for each multiply.",
        ["type pair", "size", "layout", *shapes],
        rows,
        words=3,
    )


def _published(timed: pd.DataFrame) -> Section:
    title = "What the documents published"
    return Section(
        "published-rates", title, GUIDE, HEADER, published_rows(timed), words=len(HEADER)
    )


def _fused(timed: pd.DataFrame) -> Section | None:
    """What each epilogue costs over the plain product, and beside torch's sequence of calls."""
    of = timed[timed["suites"].str.contains("fused")]
    if of.empty or of["fused"].eq("").all():
        return None
    key = [name for name in CASE if name not in ("fused", "mma_shape")]
    leaders = best(of[of["backend"].ne(BASELINE)])
    others = _named(of)
    header = ["fused", "type pair", "size", "layout"]
    for backend in others:
        header += [f"{DISPLAY.get(backend, backend)}: rung", "over plain", "of torch's calls"]
    rows = []
    for case in _in_order(of[of["fused"].ne("")], [*key, "fused"]):
        at = _where(leaders, [*key, "fused"], case)
        first = _where(of, [*key, "fused"], case).iloc[0]
        row = [str(first["fused"]), _pair(first), str(first["shape"]), str(first["layout"])]
        for backend in others:
            row += _cost(at[at["backend"].eq(backend)])
        rows.append(row)
    return Section(
        "fused",
        "What an epilogue costs",
        "Residual adds C, bias a row vector; the rest is applied last, all in the product's own "
        "launch. “Over plain” is the time above that of the same rung's plain product, measured "
        "minutes apart in one run, while clocks drift by some percent; “of torch's calls” is the "
        "ratio to torch doing the same in its own calls, the product by cuBLAS. For gelu and silu "
        "these keep float32 until the end, so that both round once.",
        header,
        rows,
        words=4,
    )


def _cost(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return ["none", "–", "–"]
    row = rows.iloc[0]
    over, ratio = float(row["over_plain"]), float(row["ratio_p50"])
    return [
        str(row["kernel"]),
        "–" if np.isnan(over) else f"{100 * over:+.1f} %",
        "–" if np.isnan(ratio) else f"{ratio:.2f}",
    ]


def _languages(rated: pd.DataFrame) -> Section:
    """How much code each language takes to get how far."""
    return Section(
        "languages",
        "Triton and CUDA: what it takes to get how far",
        "For each share of cuBLAS the rung with the fewest lines of its own that reaches it at the "
        "product that the next table names. Lines are code without blanks and comments: of the "
        "rung's own file, and with all that it shares with other rungs. The first result is the "
        "longest first call that any run has stored: compiling, loading and running. "
        "docs/triton_and_cuda.md says what is behind it.",
        *language_rows(rated),
    )


def _compiled(rated: pd.DataFrame) -> Section:
    """What the compilers made of every rung."""
    compilers = " and ".join(dict.fromkeys(filter(None, rated.get("compiler", []))))
    return Section(
        "compiled",
        "What the compilers made of each rung",
        f"By {compilers or 'the compilers'}, without a GPU (`tcgemm show-kernel --all --csv`), for "
        "the product named; the rate is that product's here. Counts are places in the machine "
        "code, not how often they run: TMA loads and stores; barriers of a block, of a cluster and "
        "operations on mbarriers. Shared memory of a CUDA rung is what is static and what its "
        "stages take; a dash: what it asks for at the launch is not seen here.",
        *compiled_rows(rated),
        words=3,
    )


def _compiled_specialists(rated: pd.DataFrame) -> Section:
    """The same of the kernels that are no step of the ladder."""
    guide = "Read as the table above. These are for shapes and types that the ladder serves badly."
    title = "What the compilers made of each specialist"
    return Section("specialists", title, guide, *compiled_rows(rated), words=3)
