"""The simulator's counts in the report: what is stored, read back, drawn and tabled."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tcgemm import gpus
from tcgemm.bench.store import SIMULATED
from tcgemm.cli import app
from tcgemm.errors import OperandError, ResultsError
from tcgemm.report.counts import counts_table, draw_counts, read_counts
from tcgemm.tools.simulate.command import _store
from tcgemm.tools.simulate.measure import measure
from tcgemm.tools.simulate.orders import order_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("counts")
    board = gpus.find("h200")
    rows = [
        measure(
            name, (128, 128, 64), dtype="float16", out_dtype=None, layout="nn", gpu=board,
            order="forward", check=False,
        )
        for name in ("naive", "wmma_double_buffered", "wmma_grouped")
    ]  # fmt: skip
    _store(path, rows, order_rows("order", (2048,) * 3, "float16", board))
    return path


def test_what_is_stored_is_read_back(folder):
    counts = read_counts(folder)
    assert [row["kernel"] for row in counts["ladder"]] == [
        "naive", "wmma_double_buffered", "wmma_grouped",
    ]  # fmt: skip
    assert {row["GROUP_M"] for row in counts["orders"]} >= {None, 1, 8}


def test_table_has_a_line_a_rung_with_its_counts(folder):
    header, rows = counts_table(read_counts(folder))
    assert all(len(row) == len(header) for row in rows)
    lines = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert lines["naive"]["FLOP per byte loaded"] == "0.5"
    assert lines["naive"]["bank conflicts"] == "–"
    assert lines["wmma_grouped"]["FLOP per byte loaded"] == "32"
    percent = {name: int(line["bank conflicts"][:-1]) for name, line in lines.items()
               if line["bank conflicts"] != "–"}  # fmt: skip
    assert percent["wmma_grouped"] < percent["wmma_double_buffered"]


def test_figure_is_drawn_the_same_twice_and_names_every_rung(folder):
    counts = read_counts(folder)
    first, again = draw_counts(counts), draw_counts(counts)
    assert first == again
    for row in counts["ladder"]:
        assert f">{row['kernel']}<" in first.svg
    assert "H200 206" in first.guide


def test_refused_rungs_are_left_out(folder, tmp_path):
    counts = json.loads((folder / SIMULATED).read_text())
    counts["ladder"].append({"kernel": "wmma", "refused": "M=100 is no multiple of 16"})
    (tmp_path / SIMULATED).write_text(json.dumps(counts))
    assert len(read_counts(tmp_path)["ladder"]) == 3


def test_a_folder_without_counts_has_none(tmp_path):
    assert read_counts(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", '{"ladder": []}', '{"ladder": [{}], "orders": []}'])
def test_a_file_that_is_something_else_is_named(tmp_path, text):
    (tmp_path / SIMULATED).write_text(text)
    with pytest.raises(ResultsError, match=r"simulated\.json is not what"):
        read_counts(tmp_path)


def test_out_is_for_the_ladder():
    result = CliRunner().invoke(app, ["simulate", "naive", "--out", "somewhere"])
    assert isinstance(result.exception, OperandError)
