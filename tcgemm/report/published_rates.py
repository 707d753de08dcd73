"""The rates and targets that the documents of the project's beginning name, as a table of the
report: marked as published, with what was measured here beside them where the case is the same."""

from __future__ import annotations

from importlib.resources import files

import pandas as pd

from .derive import BASELINE, shape_text

HEADER = [
    "source",
    "GPU",
    "what",
    "case",
    "as published",
    "best here, float16 nn",
    "best WMMA here",
]
GUIDE = (
    "Copied from the documents, on other GPUs than this one; none of the left figures was measured "
    "here. A target is what the exercise asks for, not what it reached. On the right is this "
    "report's GPU on the same case: the fastest of our kernels, and the fastest of those that use "
    "WMMA. What holds and what does not: docs/documents.md."
)


def published_rates() -> pd.DataFrame:
    """The figures, with ``kind`` (published or target), ``source`` and ``unit``."""
    with files(__package__).joinpath("published_rates.csv").open() as file:
        return pd.read_csv(file)


def rows(timed: pd.DataFrame) -> list[list[str]]:
    """A row for each figure, beside the fastest of ``timed`` on the same case."""
    table = []
    ours = timed[
        timed["backend"].ne(BASELINE) & timed["dtype_in"].eq("float16")
        & timed["dtype_out"].eq("float16") & timed["layout"].eq("nn") & timed["fused"].eq("")
        & timed["compute"].eq("float32") & timed["batch"].eq(1)
    ]  # fmt: skip
    for figure in published_rates().to_dict("records"):
        case, here, wmma = "not stated", "not compared", "not compared"
        if not pd.isna(figure["M"]):
            size = [int(figure[side]) for side in ("M", "N", "K")]
            case = shape_text(*size)
            same = ours[(ours[["M", "N", "K"]] == size).all(axis=1)]
            if figure["unit"] == "TFLOPS":
                here = _fastest(same)
                wmma = _fastest(same[same["kernel"].str.startswith("wmma")])
        value = f"{figure['value']:g} {figure['unit']} ({figure['kind']})"
        who = [str(figure[name]) for name in ("source", "gpu", "what")]
        table.append([*who, case, value, here, wmma])
    return table


def _fastest(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "no row"
    row = rows.sort_values("tflops").iloc[-1]
    return f"{row['tflops']:.0f} ({row['kernel']})"
