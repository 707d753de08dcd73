"""Figures on pages: each is a query into a committed CSV, written behind the figure.

    4.7<!-- = results cuda/naive float16 nn 4096 tflops -->
    90 %<!-- = ncu cuda/wgmma_persistent tensor_active_pct -->
    63<!-- = trials/mma.csv run=2,case=x ratio -->
    63<!-- = trials/mma.csv run!=1,case=x ratio -->
    1.02<!-- = ncu triton/naive us / ncu triton/grouped us -->
    1.61<!-- = ncu triton/grouped l2_bytes / 1e9 -->
    11 %<!-- = ncu triton/naive us / ncu triton/grouped us - 1 / 0.01 -->
    0.91<!-- = geomean drawn suite~drawn-s40*,backend=cuda ratio_p50 -->
    79<!-- = count drawn suite~drawn-s40*,backend=cuda,ratio_p50<0.9 -->

A Git host hides the comment, Sphinx too. ``renewed`` writes what the query gives today with as many
decimals as the figure shows, so a figure that anybody changed is changed back, and --check fails.
scripts/pages does so for docs/; for a page elsewhere:

    python docs/site/numbers_of.py README.md
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
REPORT = ROOT / "reports" / "nvidia-h200"
FIGURE = re.compile(r"(?P<figure>-?[\d,]*\.?\d+)(?P<unit> ?%?)<!-- = (?P<query>.*?) -->")
QUERY = re.compile(r"<!-- = ")
SPACES = re.compile("[ ,]+")


class QueryError(Exception):
    """A query that leads nowhere, with the query."""


Row = dict[str, str]


@cache
def drawn(path: str) -> tuple[Row, ...]:
    """What was chosen for each drawn product: one row, the one with the lower ratio of those behind
    a foreign kernel in a graph and in a stream. ``trees`` has all trees that timed the product."""
    keys = ("suite", "M", "N", "K", "dtype_in", "layout", "backend")
    found: dict[tuple[str, ...], Row] = {}
    trees: dict[tuple[str, ...], list[str]] = {}
    for row in rows(path):
        if row["chosen"] != "yes" or row["among"] == "alone" or not row["ratio_p50"]:
            continue
        product = tuple(row[key] for key in keys)
        known = found.setdefault((*product, row["tree"]), row)
        if float(row["ratio_p50"]) < float(known["ratio_p50"]):
            found[(*product, row["tree"])] = row
        trees.setdefault(product, []).append(row["tree"])
    return tuple({**row, "trees": " ".join(trees[key[:-1]])} for key, row in found.items())


@cache
def rows(name: str) -> tuple[Row, ...]:
    """The rows of a file of the report, or of one of docs/, tcgemm/ or reports/; of ``drawn``, and
    of ``drawn@GPU`` for another GPU's."""
    if name == "drawn":
        return drawn("trials/drawn.csv")
    if name.startswith("drawn@"):
        return drawn(f"reports/{name.removeprefix('drawn@')}/trials/drawn.csv")
    path = (ROOT if name.startswith(("tcgemm/", "docs/", "reports/")) else REPORT) / name
    if not path.is_file():
        raise QueryError(f"no file {path.relative_to(ROOT)}")
    with path.open(newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def _results() -> dict[tuple[str, ...], Row]:
    """The newest row of each plain case that was timed, alone: pages compare with older rows, which
    were not timed among other kernels, and with what a launch by itself should take."""
    keys = ("backend", "kernel", "dtype_in", "dtype_out", "compute", "layout", "M", "N", "K",
            "fused", "mma_shape")  # fmt: skip
    sys.path.insert(0, str(ROOT))
    from tcgemm.bench.renamed import kernel_now

    found: dict[tuple[str, ...], Row] = {}
    for stored in rows("results.csv"):
        row = {**stored, "kernel": kernel_now(stored)}
        key = tuple(row[name] for name in keys)
        known = found.get(key)
        if row["status"] != "ok" or not row["ms_p50"] or row["among"] in ("graph", "stream"):
            continue
        if not known or known["run"] <= row["run"]:
            found[key] = row
    return found


DEFAULTS = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float64": ("float64", "float64"),
    "int8": ("int32", "int32"),
    "float32": ("float32", "tf32x3"),
    "float8_e4m3fn": ("bfloat16", "float32"),
}
"""dtype of A and B -> (dtype of C, how it is summed), unless the query tells."""


def size_of(text: str) -> tuple[str, str, str]:
    sizes = text.split("x")
    if len(sizes) not in (1, 3) or not all(size.isdigit() for size in sizes):
        raise QueryError(f"{text} is no size: 4096 or 4096x4096x14336")
    return tuple(sizes * 3 if len(sizes) == 1 else sizes)  # type: ignore[return-value]


def result(
    kernel: str, dtype: str, layout: str, size: str, compute: str = "", mma_shape: str = ""
) -> Row | None:
    """The newest timed row of a plain product, None where there is none."""
    backend, _, name = kernel.partition("/")
    out, default = DEFAULTS[dtype]
    return _results().get(
        (backend, name, dtype, out, compute or default, layout, *size_of(size), "", mma_shape)
    )


def column(row: Row, name: str) -> float:
    """A column of a row of results.csv, or what is derived from it."""
    ms = float(row["ms_p50"])
    if name == "tflops":
        return 2 * int(row["M"]) * int(row["N"]) * int(row["K"]) / ms / 1e9
    if name == "us":
        return ms * 1e3
    if name == "ms":
        return ms
    if name == "ratio":
        return float(row["ratio_p50"])
    raise QueryError(f"no column {name}: tflops, us, ms, ratio")


@cache
def value(query: str) -> float:
    """What a query gives; `` / `` divides it by a number or another query, `` - `` takes that from
    it, from left to right.

    Raises QueryError where it names no file, no row or several rows, or no column.
    """
    first, *others = [
        one(part) if " " in part else part if part in "/-" else float(part)
        for part in re.split(r" ([/-]) ", query)
    ]
    for sign, number in zip(others[::2], others[1::2], strict=True):
        first = first / number if sign == "/" else first - number
    return first


OF_SEVERAL = {
    "geomean": statistics.geometric_mean, "mean": statistics.mean, "median": statistics.median,
    "min": min, "max": max, "sum": sum,
}  # fmt: skip
"""What a query can ask of all rows that meet its conditions; ``count`` is how many there are."""
SIGN = re.compile("(!=|!~|=|~|<|>)")


@cache
def written(text: str) -> str:
    """A value as queries write it."""
    return SPACES.sub("_", text)


@cache
def asked(condition: str) -> list[str]:
    """Name, sign and value of a condition, and more where the value has signs in it."""
    return SIGN.split(condition)


def holds(row: Row, condition: str) -> bool:
    """Whether a row has what a condition asks: =, !=, ~ and !~ (a pattern of a shell), < or >."""
    name, sign, *rest = asked(condition)
    wanted = "".join(rest)
    if name not in row:  # a column's name may have a sign in it: M=N=K
        *parts, sign, wanted = asked(condition)
        name = "".join(parts)
    there = written(row.get(name, ""))
    if sign in "<>":
        return bool(there) and (float(there) < float(wanted)) is (sign == "<")
    if sign.endswith("~"):
        return fnmatchcase(there, wanted) is (sign == "~")
    return (there == wanted) is (sign == "=")


@cache
def by_value(name: str, column: str) -> dict[str, tuple[Row, ...]]:
    """The rows of a file by what they have in a column; empty where some have no such column."""
    found: dict[str, list[Row]] = {}
    for row in rows(name):
        if column not in row:
            return {}
        found.setdefault(written(row[column]), []).append(row)
    return {there: tuple(of) for there, of in found.items()}


def meeting(name: str, conditions: list[str]) -> list[Row]:
    """The rows of a file that meet all conditions. Those that ask for one value are looked up, and
    the others are asked of what is left."""
    few = rows(name)
    for condition in conditions:
        column, sign, *wanted = asked(condition)
        of = by_value(name, column) if sign == "=" else {}
        if of:
            few = min(few, of.get("".join(wanted), ()), key=len)
    return [row for row in few if all(holds(row, each) for each in conditions)]


def one(query: str) -> float:
    """A column of one row, or of several what ``OF_SEVERAL`` makes of them. Spaces and commas of
    values are underscores in a query, as are the spaces of a column's name."""
    kind, *words = query.split()
    if kind == "results":
        options = dict(word.split("=", 1) for word in words if "=" in word)
        kernel, dtype, layout, size, name = (word for word in words if "=" not in word)
        row = result(kernel, dtype, layout, size, **options)
        if row is None:
            raise QueryError(f"results.csv has no timed row for: {query}")
        return column(row, name)
    if kind == "ncu":
        rung, *conditions, name = words
        kind, words = "ncu.csv", [",".join([f"rung={rung}", *conditions]), name]
    together = kind if kind == "count" or kind in OF_SEVERAL else ""
    if together:
        kind, *words = words
    try:
        conditions, name = words if together != "count" else (*words, "")
        found = meeting(kind, conditions.split(","))
    except ValueError:
        raise QueryError(f"not FILE CONDITIONS COLUMN: {query}") from None
    if together == "count":
        return len(found)
    name = name if not found or name in found[0] else name.replace("_", " ")
    if (len(found) != 1 and not together) or not found or name not in found[0]:
        raise QueryError(f"{len(found)} rows, or no column {name}, for: {query}")
    numbers = [float(row[name]) for row in found if row[name]]
    if not numbers:
        raise QueryError(f"an empty column {name}, for: {query}")
    return float(OF_SEVERAL[together](numbers)) if together else numbers[0]


def shown(number: float, like: str) -> str:
    """The number with as many decimals as ``like``, and its thousands parted where its are."""
    decimals = len(like.partition(".")[2])
    return f"{number:{',' if ',' in like else ''}.{decimals}f}"


def renewed(text: str) -> str:
    """The page with every figure as its query gives it today."""

    def replace(found: re.Match[str]) -> str:
        number = shown(value(found["query"]), found["figure"])
        return f"{number}{found['unit']}<!-- = {found['query']} -->"

    if len(QUERY.findall(text)) != len(FIGURE.findall(text)):
        raise QueryError("a query without a figure right before it")
    return FIGURE.sub(replace, text)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(renewed(page.read_text()))
