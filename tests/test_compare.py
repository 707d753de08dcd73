"""Two runs beside each other: verdicts on made-up pairs with the spread of real rows, on committed
rows, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import random
import statistics
import subprocess
from pathlib import Path

import pytest
from synthetic_results import A100, write
from typer.testing import CliRunner

from tcgemm.bench import store, timing
from tcgemm.cli import app
from tcgemm.errors import ResultsError
from tcgemm.report.compare import sides, verdicts
from tcgemm.report.compare.verdicts import AMBG, FAST, SAME, SLOW

ROOT = Path(__file__).parent.parent
H200_ROWS = ROOT / "reports" / "nvidia-h200"

TWICE = (
    ("20261121T215736Z-0997", "20261121T215931Z-9736"),
    ("20261121T220025Z-06c1", "20261121T220129Z-57aa"),
    ("20261122T005132Z-b0ca", "20261122T005328Z-f277"),
    ("20261122T005427Z-0f07", "20261122T005530Z-f28e"),
    ("20261122T035935Z-f6fe", "20261122T040129Z-20d5"),
    ("20261122T040224Z-f502", "20261122T040414Z-35d3"),
    ("20261123T120654Z-7508", "20261123T120903Z-2fa4"),
)
"""Pairs of runs of one commit and one budget that share kernels and cases."""


@pytest.fixture(scope="module")
def committed():
    """The last row of each kernel and case of the committed results, the baseline's left out."""
    rows = {}
    for row in store.read(H200_ROWS):
        if row["status"] == "ok" and row["ratio_p50"] and row["kernel"] != "cublas":
            rows[tuple(row[name] for name in verdicts.KEY[:-1])] = row
    return list(rows.values())


def is_short(ratio, milliseconds):
    return float(ratio) * float(milliseconds) < verdicts.SHORT


@pytest.fixture(scope="module")
def between_runs():
    """How far a run lies from what is true, drawn from what the committed rows hold twice: the
    logarithms of ratio over ratio and of time over time, over the root of two. By whether cuBLAS's
    product is short."""
    rows = store.read(H200_ROWS)
    found = {True: [], False: []}
    for a, b in TWICE:
        of = ([row for row in rows if row["run"] == run] for run in (a, b))
        for row in verdicts.cases(*of).to_dict("records"):
            far = (math.log(row[f"{of}_b"] / row[f"{of}_a"]) for of in ("ratio", "ms_p50"))
            short = is_short(row["ratio_a"], row["ms_p50_a"])
            found[short].append([log / math.sqrt(2) for log in far])
    assert min(map(len, found.values())) > 100
    return found


def drawn(row, run, draw, between, slower=1.0):
    """The row of another run of the same kernel: pairs drawn anew with the spread of this one's."""
    p20, p50, p80 = (float(row[name]) for name in verdicts.RATIOS)
    deviation = math.log(p80 / p20) / verdicts.SPREAD_OF_NORMAL
    of_ratio, of_time = draw.choice(between[is_short(p50, row["ms_p50"])])
    true = p50 * math.exp(of_ratio) / slower
    pairs = [(1.0, true * math.exp(draw.gauss(0, deviation))) for _ in range(int(row["rounds"]))]
    of = timing.summarise(pairs, row["timer"])
    ratios = {name: f"{getattr(of, name):.6g}" for name in verdicts.RATIOS}
    time = float(row["ms_p50"]) * math.exp(of_time) * slower
    return {**row, **ratios, "ms_p50": f"{time:.6g}", "run": run}


@pytest.fixture(scope="module")
def two_runs(committed, between_runs):
    """Two runs drawn from the committed rows, and the second with one rung 5 % slower."""
    draw = random.Random(11)
    a = [drawn(row, "a", draw, between_runs) for row in committed]
    b = [drawn(row, "b", draw, between_runs) for row in committed]
    slower = [
        drawn(row, "b", draw, between_runs, 1.05) if row["kernel"] == "descriptor" else row_b
        for row, row_b in zip(committed, b, strict=True)
    ]
    return a, b, slower


def test_of_two_drawn_runs_of_one_commit_few_cases_are_not_same(two_runs):
    """A tail of each of the two runs: more than in one pair of runs, see below."""
    a, b, _ = two_runs
    table = verdicts.cases(a, b)
    assert len(table) > 5000
    assert table["verdict"].ne(SAME).mean() <= 0.03
    assert table["verdict"].isin([FAST, SLOW]).mean() <= 0.015
    of_kernels = verdicts.kernels(table)
    assert len(of_kernels) > 25
    assert set(of_kernels["verdict"]) == {SAME}


def test_a_rung_that_became_5_percent_slower_is_found(two_runs):
    a, _, slower = two_runs
    table = verdicts.cases(a, slower)
    of_kernels = verdicts.kernels(table).set_index(["backend", "kernel"])
    assert of_kernels.loc[("triton", "descriptor"), "verdict"] == SLOW
    assert of_kernels.loc[("triton", "descriptor"), "change"] == pytest.approx(
        1 / 1.05 - 1, abs=0.01
    )
    assert list(of_kernels["verdict"]).count(SAME) == len(of_kernels) - 1
    of = table[table["kernel"].eq("descriptor")]
    assert of["verdict"].eq(SLOW).mean() > 0.8
    assert not of["verdict"].eq(FAST).any()


def test_a_short_ratio_that_cublas_alone_changed_is_same(committed):
    """As in two runs of one commit on an H200, where cuBLAS took 8 % less beside another kernel."""
    row = next(r for r in committed if float(r["ms_p50"]) * float(r["ratio_p50"]) < verdicts.SHORT)
    lower = {name: f"{float(row[name]) / 1.08:.6g}" for name in verdicts.RATIOS}
    longer = {"ms_p50": f"{float(row['ms_p50']) * 1.08:.6g}"}

    def verdict_of(**change):
        table = verdicts.cases([row | {"run": "a"}], [row | change | {"run": "b"}])
        return table["verdict"].item()

    assert verdict_of(**lower) == SAME
    assert verdict_of(**lower, **longer) == SLOW
    slower_clock = {"sm_clock_mhz": f"{float(row['sm_clock_mhz']) / 1.08:.6g}"}
    assert verdict_of(**lower, **longer, **slower_clock) == SAME


def test_committed_rows_of_one_commit_are_same():
    rows = store.read(H200_ROWS)
    every = []
    for a, b in TWICE:
        of = ([row for row in rows if row["run"] == run] for run in (a, b))
        table = verdicts.cases(*of)
        assert len(table) >= 40
        assert table["verdict"].ne(SAME).mean() <= 0.02
        every += list(table["verdict"])
        assert set(verdicts.kernels(table)["verdict"]) == {SAME}
    assert len(every) > 600
    assert statistics.mean(verdict != SAME for verdict in every) <= 0.01


@pytest.fixture
def folders(tmp_path):
    """Two folders of one GPU with the same cases, and the rows of the second to change."""
    shapes = {"quick": [(1024, 1024, 1024), (4096, 4096, 4096)]}
    few = {"dtypes": ("bfloat16",), "layouts": ("nn",), "shapes": shapes}
    return [write(tmp_path / name, run=f"2026030{i}T120000Z-0000", **few)
            for i, name in enumerate(("a", "b"), start=1)]  # fmt: skip


def changed(folder, change):
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(change(dict(row)) for row in rows)


def slowed(row):
    if row["kernel"] == "descriptor" and row["status"] == "ok":
        row |= {name: f"{float(row[name]) / 1.05:.6g}" for name in verdicts.RATIOS}
        row["ms_p50"] = f"{float(row['ms_p50']) * 1.05:.6g}"
    return row


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_fail_ends_with_1_where_something_is_slow_and_0_where_nothing_is(folders):
    a, b = folders
    assert run(a, b, "--fail").exit_code == 0
    changed(b, slowed)
    done = run(a, b)
    assert done.exit_code == 0
    assert "2 SLOW" in done.output
    assert run(a, b, "--fail").exit_code == 1
    assert run(b, a, "--fail").exit_code == 0, "FAST is no failure"
    assert run(a, b, "--fail", "--tolerance", "20").exit_code == 0


def test_what_is_no_longer_ok_is_a_failure(folders):
    a, b = folders
    changed(b, lambda row: row | {"status": "wrong", "reason": "off by one"}
            if row["kernel"] == "tiled" else row)  # fmt: skip
    done = run(a, b, "--fail")
    assert done.exit_code == 1
    assert (
        "No longer ok: cuda/tiled at 4096x4096x4096 bfloat16 nn: wrong (off by one)" in done.output
    )


def test_where_nothing_is_ok_any_more_that_is_the_failure(folders):
    a, b = folders
    changed(b, lambda row: row | ({} if row["kernel"] == "cublas" else
                                  {"status": "failed", "reason": "no device"}))  # fmt: skip
    done = run(a, b, "--fail")
    assert done.exit_code == 1
    assert "No longer ok: triton/naive at" in done.output


def test_a_run_that_finds_a_kernel_wrong_ends_what_an_older_one_timed_among_others(folders):
    """Rows of the older run, among others, stay in the file behind the row that says wrong."""
    a, b = folders
    for folder in folders:
        rows = store.read(folder)
        beside = [row | {"among": "graph"} for row in rows if row["ratio_p50"]]
        wrong = [row | {"run": "later", "status": "wrong", "reason": "off"} for row in rows]
        held = [*rows, *beside, *(wrong if folder == b else [])]
        with (folder / store.RESULTS).open("w", newline="") as file:
            writer = csv.DictWriter(file, store.COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(held)
    held_a, held_b = store.read(a), store.read(b)
    assert verdicts.cases(held_a, held_b).empty
    before = verdicts.latest(held_a)
    right = before["status"].eq("ok") & before["beside"].eq("")
    assert len(verdicts.lost(held_a, held_b)) == right.sum() > 20


def test_the_page_has_the_figure_and_every_case(folders, tmp_path):
    a, b = folders
    changed(b, slowed)
    page = tmp_path / "deep" / "page.html"
    assert run(a, b, "--out", page).exit_code == 0
    text = page.read_text()
    table = verdicts.cases(store.read(a), store.read(b))
    assert text.count("<title>triton/descriptor, ") == 2
    assert text.count("<title>") == 1 + len(table)
    assert text.count('class="verdict-SLOW"') == 3, "two cases and their kernel"
    assert "http" not in text.replace("http://www.w3.org", "")


def test_a_wide_spread_is_ambiguous_unless_the_change_is_wider(folders):
    def wide(factor):
        def change(row):
            ratio = float(row["ratio_p50"] or 0) * factor
            spread = {"ratio_p20": 0.8 * ratio, "ratio_p50": ratio, "ratio_p80": 1.25 * ratio}
            spread["ms_p50"] = float(row["ms_p50"] or 0) / factor
            return row | ({k: f"{v:.6g}" for k, v in spread.items()} | {"rounds": "5"}
                          if row["kernel"] == "tiled" and ratio else {})  # fmt: skip

        return change

    a, b = folders
    for factor, verdict in ((1.0, AMBG), (4.0, FAST)):
        changed(b, wide(factor))
        table = verdicts.cases(store.read(a), store.read(b))
        assert set(table[table["kernel"].eq("tiled")]["verdict"]) == {verdict}


def test_a_change_that_may_be_more_than_10_percent_is_not_same(folders):
    """8 % slower with a noise of 9 %: the change may be none, and may be 16 %."""

    def noisy(factor):
        def change(row):
            if row["kernel"] != "tiled" or not row["ratio_p50"]:
                return row
            names = dict(zip(verdicts.RATIOS, (0.929, 1.0, 1.076), strict=True))
            spread = {name: f"{factor * each:.6g}" for name, each in names.items()}
            return row | spread | {"rounds": "30"}

        return change

    a, b = folders
    for factor, verdict in ((1.0, SAME), (0.92, AMBG)):
        changed(a, noisy(1.0))
        changed(b, noisy(factor))
        table = verdicts.cases(store.read(a), store.read(b))
        of_tiled = table[table["kernel"].eq("tiled")]
        assert of_tiled["noise"].between(0.08, 0.1).all()
        assert set(of_tiled["verdict"]) == {verdict}


def without(folder, kernel):
    with (folder / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"] != kernel]
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_cases_of_one_side_alone_are_told(folders):
    a, b = folders
    assert "Only" not in run(a, b).output
    without(b, "descriptor")
    assert "Only A has 2 cases, not compared: triton/descriptor 2" in run(a, b).output
    assert "Only B has 2 cases, not compared: triton/descriptor 2" in run(b, a).output


@pytest.mark.parametrize("columns", [60, 80])
def test_names_stay_whole_in_narrow_terminals(folders, columns, monkeypatch):
    a, b = folders
    changed(b, slowed)
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = run(a, b).output
    words = printed.split()
    for row in store.read(b):
        if row["ratio_p50"] and row["kernel"] != "cublas":
            assert f"{row['backend']}/{row['kernel']}" in words
    assert "4096x4096x4096" in words
    assert max(map(len, printed.splitlines()[:-1])) <= columns


def test_rows_that_both_sides_hold_are_no_evidence(folders):
    a, _ = folders
    done = run(a, a)
    assert isinstance(done.exception, ResultsError)
    assert "in a run of its own" in str(done.exception)


def test_rows_of_other_data_or_timed_among_others_are_other_cases(folders):
    a, b = folders
    changed(b, lambda row: row | {"data": "zeros"})
    assert verdicts.cases(store.read(a), store.read(b)).empty
    changed(b, lambda row: row | {"data": "normal", "among": "stream"})
    assert verdicts.cases(store.read(a), store.read(b)).empty
    changed(b, lambda row: row | {"among": "alone"})
    assert len(verdicts.cases(store.read(a), store.read(b))) > 10


def test_two_gpus_are_refused_and_the_way_is_named(folders, tmp_path):
    other = write(tmp_path / "other", A100, shapes={"quick": [(1024,) * 3]})
    done = run(folders[0], other)
    assert isinstance(done.exception, ResultsError)
    assert "NVIDIA H200 and" in str(done.exception)
    assert "tcgemm report A B" in str(done.exception)


def test_a_cpu_run_is_refused(folders, tmp_path):
    done = run(folders[0], write(tmp_path / "cpu", None))
    assert "not timed on a GPU" in str(done.exception)


def test_another_cublas_is_said(folders):
    a, b = folders
    for folder, version in ((a, "13.0"), (b, "13.1")):
        path = folder / "environment.json"
        runs = json.loads(path.read_text())
        path.write_text(json.dumps({k: v | {"cublas": version} for k, v in runs.items()}))
    assert "cublas differs: 13.0 and 13.1: every change is relative" in run(a, b).output


def test_a_run_is_named_by_how_its_id_begins(folders, tmp_path):
    a, b = folders
    text = (b / "results.csv").read_text().split("\n", 1)[1]
    with (a / "results.csv").open("a") as file:
        file.write(text)
    runs = [json.loads((f / "environment.json").read_text()) for f in folders]
    (a / "environment.json").write_text(json.dumps(runs[0] | runs[1]))
    done = run("20260301T12", "20260302T12", "--in", a)
    assert done.exit_code == 0, done.exception
    assert "From 20260301T120000Z-0000 to 20260302T120000Z-0000" in done.output
    missing = run("20270101T12", "20260302T12", "--in", a)
    assert "no run 20270101T12" in str(missing.exception)


def git(folder, *arguments):
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_a_commit_is_read_from_git(folders, tmp_path, monkeypatch):
    project = tmp_path / "project"
    held = project / "reports" / "nvidia-h200"
    held.mkdir(parents=True)
    git(project, "init", "-q")
    for folder, tag in zip(folders, ("before", "after"), strict=True):
        for name in (store.RESULTS, store.ENVIRONMENT):
            (held / name).write_bytes((folder / name).read_bytes())
        git(project, "add", ".")
        git(project, "commit", "-qm", tag)
        git(project, "tag", tag)
    monkeypatch.chdir(project)
    done = run("before", "after")
    assert done.exit_code == 0, done.exception
    assert "From before (" in done.output
    assert len(sides.side("before").rows) == len(store.read(folders[0]))
    assert run("before", "reports/nvidia-h200").exit_code == 0
    assert "no folder with" in str(run("before", "never").exception)
    assert "no folder with" in str(run("before", "--", "-after").exception)
    git(project, "rm", "-rq", "reports")
    git(project, "commit", "-qm", "none")
    assert "HEAD holds no results.csv" in str(run("before", "HEAD").exception)
