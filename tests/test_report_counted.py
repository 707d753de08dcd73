"""What a figure counts: the cases that it names, of normal data, nothing left out in silence."""

from __future__ import annotations

import csv

import pytest
from synthetic_results import LLM, SEEDS, SQUARES, write
from test_report import row
from test_report_answer import rows, said

from tcgemm.bench import store
from tcgemm.report.compiled import COMPILED
from tcgemm.report.folder import load
from tcgemm.report.headline import method
from tcgemm.report.sections import sections
from tcgemm.report.summary import lists


def chosen(kernel, run, ratio, **more):
    return row(backend="cuda", kernel=kernel, chosen="yes", ratio_p50=ratio, run=run,
               compute="float32", **more)  # fmt: skip


def test_a_choice_of_before_counts_no_more():
    """Another version of the same backend chooses another kernel for the same case."""
    found = said([chosen("new", "1", 1.5), chosen("old", "2", 1.0)])
    ((share,),) = found.shares.values()
    assert list(share.rows["kernel"]) == ["old"], "the later run says what is chosen now"
    assert share.mean == 1.0


@pytest.mark.parametrize("status", ["wrong", "failed", "timeout"])
def test_a_mean_does_not_rise_in_silence_when_a_chosen_kernel_fails(status):
    bad = chosen("rung", "1", "", K=64) | {"status": status, "ratio_p50": "", "ms_p50": ""}
    found = said(rows(1.0, 1.2), [bad])
    assert found.sentence.endswith(
        " Not counted are products that were wrong, failed or never ended: 1 of CUDA."
    )
    refused = bad | {"status": "unsupported"}
    assert "Not counted" not in said(rows(1.0, 1.2), [refused]).sentence


def test_backends_that_were_timed_on_different_cases_say_on_how_many():
    alone = rows(1.0, 3.0, K=64)[1:]
    words = "(CUDA 1.90× over 2 cases, Triton 1.00× over 1 case"
    assert words in said(rows(1.0, 1.2), alone).sentence
    assert "over" not in said(rows(1.0, 1.2), rows(1.0, 3.0, K=64)).sentence


def test_no_table_shows_a_rate_of_zeros_as_if_it_were_of_normal_data(tmp_path):
    """Zeros run 13 to 15 % faster: such rows have a figure of their own and count nowhere else."""
    suites = ("types", "fused", "wmma")
    shapes = {"squares": SQUARES[2:5], "seeds": SEEDS[:2], "llm": LLM[::9]}
    folder = write(
        tmp_path / "made", others=suites, shapes=shapes, dtypes=("float16",), layouts=("nn",)
    )
    compiled = write_compiled(folder)
    before = shown(folder)
    stored = store.read(folder)
    fast = dict.fromkeys(("ratio_p20", "ratio_p50", "ratio_p80"), "90") | {"ms_p50": "1e-5"}
    stored += [{**each, **fast, "data": "zeros"} for each in stored if each["ms_p50"]]
    with (folder / store.RESULTS).open("w", newline="") as file:
        writer = csv.DictWriter(file, store.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(stored)
    assert {each["kernel"] for each in stored} >= compiled
    assert shown(folder) == before


def write_compiled(folder):
    """What compilers made of two kernels for a product that the folder has times of."""
    names = {"descriptor": "triton", "wmma_any": "cuda"}
    header = ["backend", "kernel", "status", "dtype_in", "dtype_out", "compute", "layout"]
    lines = [
        [backend, kernel, "ok", "float16", "float16", "float32", "nn", "4096", "4096", "4096", "9"]
        for kernel, backend in names.items()
    ]
    with (folder / COMPILED).open("w", newline="") as file:
        csv.writer(file).writerows([[*header, "M", "N", "K", "lines of source"], *lines])
    return set(names)


def shown(folder):
    """Title and rows of every table; of the lists of kernels the rates alone, not how many."""
    found = load(folder)
    tables = [(s.title, s.rows) for s in sections(found)]
    return tables + [(s.title, [r[-2:] for r in s.rows]) for s in lists(found)]


def test_rows_of_a_run_that_nobody_described_are_said_to_be_so(tmp_path):
    """As where rows of another machine were pasted into the file."""
    folder = write(tmp_path / "made", dtypes=("float16",), layouts=("nn",))
    assert not any("environment.json" in sentence for sentence in method(load(folder)))
    results = folder / store.RESULTS
    *lines, last = results.read_text().splitlines()
    results.write_text("\n".join([*lines, "elsewhere," + last.split(",", 1)[1]]) + "\n")
    (found,) = [sentence for sentence in method(load(folder)) if "environment.json" in sentence]
    assert found.startswith("1 of them are of runs that environment.json says nothing about")
