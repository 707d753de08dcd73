"""A measured figure on a page is a query into rows, stands in a table written from rows, or says
what else it is: docs/site/plain_figures.py finds those that do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import numbers_of  # noqa: E402
import plain_figures  # noqa: E402


@pytest.mark.parametrize(
    "page", plain_figures.pages(), ids=lambda page: page.relative_to(ROOT / "docs").as_posix()
)
def test_a_page_has_no_figure_that_nothing_holds(page):
    text = page.read_text()
    found = [
        f"line {text.count(chr(10), 0, place) + 1}: {figure}"
        for place, figure in plain_figures.plain(text)
    ]
    assert not found, (
        f"{page.name} has figures that no row holds: make each a query, or say what it is "
        f"(about, predicted, by arithmetic, published): {', '.join(found)}"
    )


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("It took 5.3 us, cuBLAS 7.", ["5.3"]),
        ("25 to 20 us, and 1,096 instructions", ["25", "20", "1,096"]),
        ("0.91 of cuBLAS at 90 %", ["0.91", "90"]),
        ("| a | b |\n|---|---|\n| 4096 cubed | 1.02 |", ["1.02"]),
        ("**What limits it.** Power, at 700 W.", ["700"]),
        ("- **Measured.** It should take 3 us. It took 4 us.", ["3", "4"]),
    ],
)
def test_what_is_a_plain_figure(text, figures):
    assert [figure for _, figure in plain_figures.plain(text)] == figures
    assert all(text[place:].startswith(figure) for place, figure in plain_figures.plain(text))


@pytest.mark.parametrize(
    "text",
    [
        "5.3<!-- = results cuda/naive float16 nn 4096 us --> us, 9 %<!-- = ncu cuda/wmma us -->",
        "about 5 us; some 10 to 20 %; at most 3 registers",
        "**Predicted.** 0.5 us until the kernel before is over. Then 3 us.",
        "At 4.8<!-- specification --> TB/s, 4 %<!-- threshold -->",
        "Predicted, us:\n\n| a | b |\n|---|---|\n| 4096 cubed | 1.02 |",
        "| a | predicted |\n|---|---|\n| 4096 cubed | 1.02 |",
        "Of a run whose rows were not kept:\n\n| a | b |\n|---|---|\n| 4096 cubed | 1.02 |",
        "| level | tile |\n|---|---|\n| warp | 128 registers of each thread |",
        "`0.5 us`, Triton 3.6, [two](page.md#0.5-us), 4096 x 14336, clusters of 2, under 100 us",
    ],
)
def test_what_is_none(text):
    assert not plain_figures.plain(text)


def test_a_list_of_them_can_be_had_while_writing(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\nIt took 5.3 us.\n")
    command = [sys.executable, "docs/site/plain_figures.py", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "page.md:3: 5.3 in" in done.stdout


def test_a_query_counts_takes_a_mean_and_a_difference():
    few = "suite~drawn-s401-a2,tree=0602b8a,backend=cuda"
    count = numbers_of.value(f"count drawn {few}")
    assert numbers_of.value(f"count drawn {few},ratio_p50<0.9") < count == 20
    lowest, highest = (numbers_of.value(f"{of} drawn {few} ratio_p50") for of in ("min", "max"))
    assert lowest < numbers_of.value(f"geomean drawn {few} ratio_p50") < highest
    naive, tiled = "ncu cuda/naive us", "ncu cuda/tiled us"
    faster = numbers_of.value(f"{naive} / {tiled} - 1 / 0.01")
    assert faster == pytest.approx((numbers_of.value(naive) / numbers_of.value(tiled) - 1) * 100)


@pytest.mark.parametrize(
    "query", ["geomean drawn tree=none ratio_p50", "min drawn", "max nothing.csv a=b c"]
)
def test_a_query_of_several_rows_that_leads_nowhere_is_an_error(query):
    with pytest.raises(numbers_of.QueryError):
        numbers_of.value(query)
