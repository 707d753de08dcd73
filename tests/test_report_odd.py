"""Odd rows, hostile names and a full disk: a sentence with file and line, nothing half written."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree

import pytest
from disks import no_file_may_pass
from synthetic_results import H200, write
from test_report import row

from tcgemm.bench.store import SIMULATED
from tcgemm.errors import ResultsError
from tcgemm.report import counts, figures, markdown, style
from tcgemm.report import write as report_write
from tcgemm.report.compiled import COMPILED
from tcgemm.report.folder import load


@pytest.fixture(autouse=True)
def away_from_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def small(folder):
    shapes = {"quick": [(1024, 1024, 1024), (16, 4096, 4096)]}
    return write(folder, H200, shapes=shapes, dtypes=("bfloat16",), layouts=("nn",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ms_p50": "inf"}, "has ms_p50='inf', which is no number from"),
        ({"ms_p50": "1e-300"}, "has ms_p50='1e-300'"),
        ({"ms_p20": "nan"}, "has ms_p20='nan'"),
        ({"ms_p80": "1_0"}, "has ms_p80='1_0'"),
        ({"ratio_p50": "-1"}, "has ratio_p50='-1'"),
        ({"error_ratio": "small"}, "has error_ratio='small'"),
        ({"power_w": "1e300"}, "has power_w='1e300'"),
        ({"rounds": "2.5"}, "has rounds='2.5', which is no whole number"),
        ({"dtype_in": "float13"}, "has dtype_in 'float13', which is none of float16,"),
        ({"dtype_out": ""}, "has dtype_out ''"),
        ({"layout": "xy"}, "has layout 'xy'"),
        ({"compute": "guess"}, "has compute 'guess'"),
        ({"among": "Graph"}, "has among 'Graph', which is none of alone, graph, stream"),
        ({"chosen": "true"}, "has chosen 'true', which is none of yes, no"),
        ({"data": "zero"}, "has data 'zero'"),
        ({"M": "١٠٢٤"}, "has M='١٠٢٤', which is no positive integer"),
        ({"N": "9" * 5000}, "has N='99999"),
        ({"K": str(2**31)}, "has K='2147483648', which is above 2^31 - 1"),
    ],
)
def test_an_odd_row_is_refused_by_file_and_line(tmp_path, changes, said):
    folder = small(tmp_path / "x")
    lines = (folder / "results.csv").read_text().splitlines()
    run = lines[1].split(",")[0]
    text = "\n".join([*lines, ",".join(row(run=run, **changes).values())]) + "\n"
    (folder / "results.csv").write_text(text)
    with pytest.raises(ResultsError, match=re.escape(said)) as caught:
        load(folder)
    message = str(caught.value)
    assert f"results.csv: line {len(lines) + 1} " in message
    assert message.endswith("remove that line")
    assert len(message) < 500


@pytest.mark.parametrize("depth", [20, 100_000])
def test_deep_facts_are_refused(tmp_path, depth):
    folder = small(tmp_path / "x")
    deep = '{"r": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    (folder / "environment.json").write_text(deep)
    with pytest.raises(ResultsError, match=r"environment\.json.* nested"):
        load(folder)


HOSTILE = f"GPU <img src=x> {markdown.END} $\\frac{{$ | `a` \x00\x1b[31m\nsecond \ud800line & co"


def test_a_hostile_gpu_name_is_text_everywhere(tmp_path, monkeypatch):
    folder = small(tmp_path / "x")
    pictures, draw_all = [], report_write.draw_all

    def drawn_once(*given):  # it is written twice, of the same rows
        if not pictures:
            pictures.extend(draw_all(*given))
        return pictures

    monkeypatch.setattr(report_write, "draw_all", drawn_once)
    runs = json.loads((folder / "environment.json").read_text())
    for facts in runs.values():
        facts |= {"gpu": HOSTILE, "driver": HOSTILE}
    (folder / "environment.json").write_text(json.dumps(runs))
    (tmp_path / "README.md").write_text(f"# x\n{markdown.BEGIN}\n{markdown.END}\nthe rest\n")
    report_write.write([folder])
    once = (tmp_path / "README.md").read_text()
    assert once.count(markdown.END) == 1
    report_write.write([folder])
    assert (tmp_path / "README.md").read_text() == once
    for page in ("README.md", "x/README.md"):
        text = (tmp_path / page).read_text()
        assert "<img" not in text
        assert "&lt;img" in text
        assert "\x1b" not in text
    assert "<img" not in (folder / "index.html").read_text()
    svgs = list((folder / "figures").glob("*.svg"))
    assert svgs
    for svg in svgs:
        xml.etree.ElementTree.parse(svg)


def test_a_full_disk_leaves_nothing_truncated(no_figures, tmp_path):
    folder = small(tmp_path / "x")
    before = {path.name for path in folder.iterdir()}
    with (
        no_file_may_pass(1000),
        pytest.raises(ResultsError, match=r"cannot write .*README\.md: .*room"),
    ):
        report_write.write([folder])
    assert {path.name for path in folder.iterdir()} == before


def test_an_odd_line_of_what_was_compiled_is_named(tmp_path):
    folder = small(tmp_path / "x")
    header = "backend,kernel,status,dtype_in,layout,M,N,K,lines of source,registers"
    for line, said in (
        ("cuda,naive,ok,bfloat16,nn,many,8,8,9,10", "line 2 has M='many'"),
        ("cuda,naive,ok,bfloat16,nn,8,8,8,,10", "line 2 has no lines of source"),
        ("cuda,naive,ok,bfloat16,nn,8,8,8,9,inf", "line 2 has registers='inf'"),
    ):
        (folder / COMPILED).write_text(f"{header}\n{line}\n")
        with pytest.raises(ResultsError, match=said):
            load(folder)


RUNG = {
    "kernel": "naive",
    "refused": None,
    "M": 64,
    "N": 64,
    "K": 64,
    "dtype_in": "float16",
    "layout": "nn",
    "flop_per_byte": 0.5,
    "sectors_per_load_request": 8.5,
    "mma": {},
    "barriers_per_block": 0.0,
    "l2_hit_rate": 0.5,
    "shared_wavefronts": 10,
    "bank_conflicts": 4,
}
ORDER = {
    "gpu": "H200",
    "M": 64,
    "N": 64,
    "K": 64,
    "BLOCK_M": 16,
    "BLOCK_N": 16,
    "GROUP_M": None,
    "l2_hit_rate": 0.5,
}


@pytest.mark.parametrize(
    ("rung", "order"),
    [
        ({"flop_per_byte": "much"}, {}),
        ({"sectors_per_load_request": float("nan")}, {}),
        ({"mma": {"16x16x16": []}}, {}),
        ({"M": -1}, {}),
        ({}, {"l2_hit_rate": None}),
        ({}, {"GROUP_M": "two"}),
    ],
)
def test_an_odd_count_is_refused(tmp_path, rung, order):
    made = {"ladder": [{**RUNG, **rung}], "orders": [{**ORDER, **order}]}
    (tmp_path / SIMULATED).write_text(json.dumps(made))
    with pytest.raises(ResultsError, match=r"simulated\.json is not what"):
        counts.read_counts(tmp_path)


def drawn_counts(monkeypatch, rungs, orders):
    """The axes of the figure of counts."""
    taken = []

    def save(figure):
        taken.append(figure)
        return figures.save(figure)

    monkeypatch.setattr(counts, "save", save)
    assert counts.draw_counts({"ladder": rungs, "orders": orders}).svg
    return taken[0].axes


def test_bars_and_their_numbers_stay_within_their_panels(monkeypatch):
    rungs = [
        {**RUNG, "kernel": "wide", "sectors_per_load_request": 24.0, "bank_conflicts": 10},
        {**RUNG, "kernel": "far", "flop_per_byte": 4000.0, "sectors_per_load_request": 32.0},
        {**RUNG, "kernel": "near", "flop_per_byte": 0.01},
    ]
    bars = drawn_counts(monkeypatch, rungs, [ORDER])[:3]
    for ax in bars:
        low, high = ax.get_xlim()
        assert ax.patches
        for bar in ax.patches:
            assert low <= bar.get_x() + bar.get_width() <= high
        inside = ax.get_window_extent()
        for text in ax.texts:
            if text.get_text()[0].isdigit():
                assert text.get_window_extent().x1 <= inside.x1 + 1


def test_no_two_lines_of_the_figure_of_counts_share_a_colour(monkeypatch):
    orders = [
        {**ORDER, "BLOCK_M": 16 * size, "GROUP_M": group, "l2_hit_rate": 0.1 * size}
        for size in range(1, len(style.LINES) + 1)
        for group in (None, 8)
    ]
    (*_, ax) = drawn_counts(monkeypatch, [RUNG], orders)
    colours = [line.get_color() for line in ax.lines]
    assert len(colours) == len(style.LINES)
    assert len(set(colours)) == len(colours)
    assert set(colours) <= set(style.DARK)
