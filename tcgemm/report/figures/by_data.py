"""What the operands hold, and what that does to rate, watts and clock."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ...bench.case import DATA
from ..derive import BASELINE, CASE, DISPLAY, best, pairs_text, shape_text
from ..style import RC, backend_colour
from .picture import WIDTH, Picture, hover, number_text, save

TITLE = "Speed by data: what the operands hold"

MEASURES = {
    "tflops": "TFLOPS, at its own clock",
    "power_w": "board power, W",
    "sm_clock_mhz": "SM clock, MHz",
    "mj_per_tflop": "energy, mJ per TFLOP",
}
"""Column -> the panel's title."""

ROW_INCHES = 2.2


def draw_data(table: pd.DataFrame) -> Picture:
    """Rate, watts, clock and energy by data, a row of panels for each product that has several.

    The rates are those measured: the clock is what the data changes, so it must not be divided
    out.
    """
    import seaborn as sns  # here, since it imports much of SciPy

    leaders = best(table)
    product = [name for name in CASE if name != "data"]
    several = leaders.groupby(product)["data"].transform("nunique").ge(2)
    leaders = leaders[several]
    if leaders.empty:
        return Picture("data", TITLE, "Not drawn: everything was timed on one kind of data.", None)
    products = list(dict.fromkeys(map(tuple, leaders[product].to_numpy().tolist())))
    backends = [str(b) for b in leaders["backend"].cat.categories if b in set(leaders["backend"])]
    colours = {b: backend_colour(b, backends) for b in backends}
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH, ROW_INCHES * len(products) + 0.3), layout="constrained")
        axes = figure.subplots(len(products), len(MEASURES), squeeze=False)
        for i, values in enumerate(products):
            of = leaders
            for name, value in zip(product, values, strict=True):
                of = of[of[name].eq(value)]
            kinds = [data for data in DATA if of["data"].eq(data).any()]
            row = of.iloc[0]
            for ax, (column, title) in zip(axes[i], MEASURES.items(), strict=True):
                shown = of[of[column].notna()].copy()
                shown["backend"] = shown["backend"].astype(str)
                sns.barplot(
                    data=shown, x="data", y=column, hue="backend", order=kinds, ax=ax,
                    hue_order=backends, palette=colours, errorbar=None, saturation=1, legend=False,
                )  # fmt: skip
                for container, backend in zip(ax.containers, backends, strict=False):
                    bars = shown[shown["backend"].eq(backend)].set_index("data")[column]
                    held = [data for data in kinds if data in bars.index]
                    for bar, data in zip(container, held, strict=False):
                        name = DISPLAY.get(backend, backend)
                        hover(bar, [f"{name}, {data}: {number_text(float(bars[data]))} {title}"])
                ax.set_title(title if i == 0 else "")
                ax.set_xlabel("")
                ax.set_ylabel("")
                ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: number_text(v)))
            pair = pairs_text(row["dtype_in"], row["dtype_out"], row["compute"])
            shape = shape_text(row["M"], row["N"], row["K"])
            axes[i][0].set_ylabel(f"{shape}\n{pair}, {row['layout']}", fontweight="bold")
        for place, backend in enumerate(b for b in backends):
            axes[0][0].annotate(
                DISPLAY.get(backend, backend), (0, 1), xycoords="axes fraction",
                xytext=(52 * place, 20), textcoords="offset points", fontweight="bold",
                color=colours[backend], fontsize=9, annotation_clip=False,
            )  # fmt: skip
        svg = save(figure)
    guide = (
        "The fastest kernel of each backend on the same product with other operands: normal "
        "(standard normal), uniform (0 to 1), ints (whole numbers up to 8) and zeros. The fewer "
        "bits flip in the tensor cores, the less power they take, and the higher the clock stays "
        f"below the power limit. Rates are measured ones, not on {BASELINE}'s clock. Energy is the "
        "board's power times the time of a launch; kernel and cuBLAS ran in turns meanwhile."
    )
    return Picture("data", TITLE, guide, svg)
