"""The report: derived numbers, purity, markers, several GPUs, CPU folders, bad input."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from synthetic_results import A100, H200, write
from typer.testing import CliRunner

from tcgemm import gpus
from tcgemm.bench.store import COLUMNS
from tcgemm.errors import ResultsError
from tcgemm.report import figures, markdown, style
from tcgemm.report import write as report_write
from tcgemm.report.answer import answer
from tcgemm.report.derive import CASE, DERIVED, best, derive, plain, why_empty
from tcgemm.report.figures.published_times import _same_gpu
from tcgemm.report.folder import facts, load
from tcgemm.report.headline import headline, sentence
from tcgemm.report.sections import sections
from tcgemm.report.shapes import key_shapes, ladder_shape

FEW = {
    "squares": [(512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096)],
    "llm": [(16, 4096, 4096), (4096, 4096, 14336), (100, 100, 100)],
}


def row(**changes):
    values = dict.fromkeys(COLUMNS, "") | {
        "run": "r",
        "suite": "shape",
        "backend": "triton",
        "kernel": "naive",
        "dtype_in": "bfloat16",
        "dtype_out": "bfloat16",
        "layout": "nn",
        "M": "1000",
        "N": "2000",
        "K": "500",
        "status": "ok",
        "error_ratio": "0.25",
        "ms_p20": "0.9",
        "ms_p50": "1.0",
        "ms_p80": "1.1",
        "ratio_p20": "0.4",
        "ratio_p50": "0.5",
        "ratio_p80": "0.6",
        "cache": "cold",
        "timer": "events",
        "sm_clock_mhz": "1500",
    }
    return values | {name: str(value) for name, value in changes.items()}


def table(*rows, gpu=H200):
    return derive(pd.DataFrame(rows, columns=list(COLUMNS), dtype=str), gpu)


@pytest.fixture(scope="module")
def made(tmp_path_factory, thorough):
    """A reports folder with an H200, an A100 and a CPU run, reported once. The A100's own figures,
    and of the H200's most that the committed reports have as well, are drawn with ``--all``: they
    take seconds."""
    root = tmp_path_factory.mktemp("made")
    reports = root / "reports"
    write(reports / "nvidia-h200", H200, shapes=FEW, layouts=("nn",), data=("zeros",))
    write(reports / "nvidia-a100", A100, shapes=FEW, dtypes=("bfloat16",), layouts=("nn",), seed=1)
    write(reports / "cpu", None)
    readme = root / "README.md"
    readme.write_text(f"# x\n\n{markdown.BEGIN}\nold\n{markdown.END}\n\nafter\n")
    names = ("nvidia-h200", "nvidia-a100", "cpu")
    drawn = report_write.draw_all

    def draw(name, table, gpu):
        if thorough or "A100" not in name:
            return drawn(name, table, gpu)
        # The project's README shows the first.
        first = figures.draw_answer([answer(name, plain(table))])
        left = [slug for slug in figures.SLUGS if slug != first.slug]
        return [first, *(figures.Picture(slug, slug, "It is left out.", None) for slug in left)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_write, "draw_all", draw)
        if not thorough:
            leave_out(patch, set(figures.SLUGS) - {"answer", "ladder", "data", "accuracy"})
        done = report_write.write([reports / n for n in names], readme=readme)
    return root, done


COMMITTED = Path(__file__).parent.parent / "reports/nvidia-h200"
"""``test_the_committed_reports_are_what_their_results_make`` draws its figures."""


def leave_out(patch, slugs):
    """These figures are not drawn, as where there is nothing to draw."""
    for slug in slugs:
        picture = figures.Picture(slug, slug, "It is left out.", None)
        patch.setattr(figures, f"draw_{slug}", lambda *of, picture=picture: picture)


def small(folder, gpu=H200):
    """One shape, one dtype, one layout: enough where the content does not matter."""
    shapes = {"quick": [(64, 64, 64)]}
    return write(folder, gpu, shapes=shapes, dtypes=("bfloat16",), layouts=("nn",))


@pytest.fixture(autouse=True)
def away_from_the_project(tmp_path, monkeypatch):
    """The default README is that of the current folder: never the project's own."""
    monkeypatch.chdir(tmp_path)


def snapshot(root):
    """Digests of all files: what differs in megabytes takes pytest ten minutes to explain."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("flop", 2e9),
        ("bytes", 2 * (1000 * 500 + 500 * 2000 + 1000 * 2000)),
        ("intensity", 2e9 / 7e6),
        ("tflops", 2.0),
        ("eops", 1000 * 500 + 999 * 1000 * 2000 + 2 * 1000 * 2000),
        ("etops", 2.0025),
        ("gb_s", 7.0),
        ("pct_of_peak", 100 * 2 / 989.4),
        ("floor_ms", 2e9 / 989.4e9),
        ("pct_of_floor", 100 * 2e9 / 989.4e9),
        ("pct_of_cublas", 50.0),
        ("flop_per_clock_sm", 2e9 / (1e-3 * 1500e6 * 132)),
    ],
)
def test_derived_by_hand(column, value):
    assert table(row())[column].item() == pytest.approx(value, rel=1e-9)


def short(among, ratio, run="r", kernel="naive", **more):
    timer = "events" if among == "stream" else "graph"
    changes = {"ratio_p50": ratio, "ms_p50": 0.01 / ratio, "among": among, "timer": timer}
    return row(run=run, kernel=kernel, **changes, **more)


def test_a_short_product_counts_with_the_lower_of_graph_and_stream():
    derived = table(short("alone", 1.5), short("graph", 0.9), short("stream", 1.1)).iloc[0]
    assert (derived["among"], derived["ratio_p50"], derived["timer"]) == ("graph", 0.9, "graph")
    assert derived["ratio_alone"] == 1.5
    assert derived["ms_p50"] == pytest.approx(0.01 / 0.9)
    derived = table(short("alone", 1.5), short("graph", 1.2), short("stream", 1.1)).iloc[0]
    assert (derived["among"], derived["timer"]) == ("stream", "events")


def test_what_a_fusion_costs_is_over_the_plain_product_of_its_own_run():
    rows = [
        short("alone", 1.0), short("alone", 0.8, fused="bias"), short("graph", 0.5, fused="bias"),
        short("graph", 0.6), short("alone", 2.0, run="later"), short("graph", 2.0, run="later"),
    ]  # fmt: skip
    derived = table(*rows).set_index("fused")
    assert derived.loc["bias", "over_plain"] == pytest.approx(0.6 / 0.5 - 1)  # both in a graph
    assert math.isnan(derived.loc["", "over_plain"])
    beside = [short("alone", 0.8, fused="bias"), short("alone", 1.0, run="later")]
    assert table(*beside)["over_plain"].isna().all()


def test_a_later_run_alone_does_not_keep_what_an_older_one_timed_among_others():
    rows = [short("alone", 1.5), short("graph", 0.9), short("alone", 1.4, run="later")]
    derived = table(*rows).iloc[0]
    assert (derived["among"], derived["ratio_p50"]) == ("alone", 1.4)


def test_a_row_of_before_the_column_is_alone_where_a_graph_timed_it():
    rows = [short("", 1.5), row(kernel="long", timer="events")]
    assert list(table(*rows).set_index("kernel")["among"]) == ["alone", ""]


def test_the_best_rung_is_one_timed_among_others_where_there_is_one():
    rows = [short("alone", 1.5), short("graph", 0.9), short("alone", 1.3, kernel="grouped")]
    assert list(best(table(*rows))["kernel"]) == ["naive"]


def test_floor_of_a_memory_bound_case_is_bytes_over_bandwidth():
    derived = table(row(M=1, N=8192, K=8192, ms_p50="0.05")).iloc[0]
    assert derived["floor_by"] == "memory"
    assert derived["floor_ms"] == pytest.approx(2 * (8192 + 8192**2 + 8192) / 4800e9 * 1e3)


def test_output_in_float32_moves_more_bytes():
    derived = table(row(dtype_out="float32"))
    assert derived["bytes"].item() == 2 * (500_000 + 1_000_000) + 4 * 2_000_000


def test_a_c_that_is_read_moves_bytes_too():
    derived = table(row(fused="residual"))
    assert derived["bytes"].item() == 2 * (500_000 + 1_000_000) + 2 * 2 * 2_000_000


def test_every_derived_column_is_there_and_no_other():
    assert set(table(row()).columns) == {*COLUMNS, *DERIVED}


def test_only_the_latest_row_of_a_kernel_and_case_counts():
    derived = table(row(ms_p50=1), row(kernel="grouped"), row(ms_p50=2), row(layout="nt"))
    mine = derived[derived["kernel"].eq("naive") & derived["layout"].eq("nn")]
    assert mine["ms_p50"].tolist() == [2.0]
    assert len(derived) == 3


def test_a_later_failure_replaces_an_earlier_time():
    derived = table(row(), row(status="wrong", error_ratio=7))
    assert derived["status"].tolist() == ["wrong"]
    assert derived["tflops"].isna().all()
    assert best(derived).empty


def test_suites_of_a_case_are_all_kept():
    derived = table(row(suite="squares"), row(suite="llm"))
    assert derived["suites"].tolist() == ["squares llm"]


def test_ladder_order_is_that_of_the_file():
    names = ["naive", "wmma", "a_later_rung"]
    derived = table(*(row(backend="cuda", kernel=n) for n in names), row(backend="triton"))
    assert derived["kernel"].astype(str).tolist() == ["naive", *names]
    assert derived["backend"].astype(str).tolist() == ["triton", "cuda", "cuda", "cuda"]


def test_cublas_is_its_own_baseline():
    derived = table(
        row(backend="cublas", kernel="cublas", ratio_p20="", ratio_p50="", ratio_p80="")
    )
    assert derived["pct_of_cublas"].item() == 100


def test_a_wrong_kernel_has_no_rate_even_when_it_was_timed():
    derived = table(row(status="wrong"))
    assert derived[["tflops", "pct_of_cublas", "etops"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("ms", "shape", "said"),
    [
        (0.001, (1000, 2000, 500), "peak"),
        (0.02, (1, 8192, 8192), "bytes"),
        (1.0, (1000, 2000, 500), ""),
    ],
)
def test_impossible_times_are_named(ms, shape, said):
    suspect = table(row(ms_p50=ms, **dict(zip("MNK", shape, strict=True))))["suspect"].item()
    assert said in suspect
    assert bool(suspect) == bool(said)


def test_unknown_gpu_has_rates_and_no_shares():
    derived = table(row(), gpu=gpus.lookup("NVIDIA Imaginary 1"))
    assert derived["tflops"].item() == pytest.approx(2)
    assert derived[["pct_of_peak", "floor_ms", "pct_of_floor"]].isna().all(axis=None)
    assert why_empty(derived.iloc[0], "pct_of_peak", gpus.lookup("NVIDIA Imaginary 1"))


def test_without_a_gpu_no_time_survives():
    derived = table(row(), gpu=None)
    assert (
        derived.filter(regex="^(ms|ratio)_|tflops|etops|gb_s|pct_|compile_s").isna().all(axis=None)
    )


@pytest.mark.parametrize("status", ["unsupported", "failed", "timeout", "wrong"])
def test_an_empty_cell_names_the_status(status):
    derived = table(row(status=status, error_ratio=""))
    assert why_empty(derived.iloc[0], "tflops", H200) == status


def test_ladder_shape_prefers_4096_then_the_largest_common_square():
    small, mid, large = ({"M": s, "N": s, "K": s} for s in (512, 1024, 4096))
    assert ladder_shape([table(row(**large), row(**mid))]) == (4096, 4096, 4096)
    both = [table(row(**large), row(**mid)), table(row(**mid), row(**small))]
    assert ladder_shape(both) == (1024, 1024, 1024)
    assert ladder_shape([table(row(status="failed"))]) is None


def test_key_shapes_hold_a_decode_and_a_prefill_shape():
    shapes = [(4096,) * 3, (1, 4096, 4096), (16, 4096, 4096), (4096, 4096, 14336)]
    derived = table(*(row(M=m, N=n, K=k) for m, n, k in shapes))
    assert key_shapes([derived]) == [shapes[0], shapes[2], shapes[3]]


def test_best_is_by_paired_ratio():
    derived = table(
        row(kernel="fast_clock", ms_p50=1.0, ratio_p50=0.8),
        row(kernel="better_pair", ms_p50=1.1, ratio_p50=0.9),
    )
    assert best(derived)["kernel"].tolist() == ["better_pair"]


@pytest.mark.parametrize("seed", range(5))
def test_spread_keeps_the_gap_and_the_order(seed):
    rng = np.random.default_rng(seed)
    values = rng.uniform(0, 10, 9).tolist()
    placed = figures.spread(values, 1.0, 0.0, 10.0)
    ordered = [placed[i] for i in np.argsort(values)]
    assert min(np.diff(ordered)) >= 1 - 1e-9
    assert min(placed) >= 0
    assert max(placed) <= 10


def test_spread_leaves_free_labels_alone():
    assert figures.spread([1.0, 5.0, 9.0], 1.0, 0.0, 10.0) == pytest.approx([1.0, 5.0, 9.0])


@pytest.mark.exhaustive  # the committed reports draw nearly all of them
def test_every_figure_is_drawn_for_a_full_folder(made):
    root, _ = made
    found = {p.stem for p in (root / "reports/nvidia-h200/figures").glob("*.svg")}
    assert found == set(figures.SLUGS)


@pytest.mark.parametrize("slug", figures.SLUGS)
def test_a_figure_carries_no_date_and_no_random_id(made, slug):
    drawn = made[0] / f"reports/nvidia-h200/figures/{slug}.svg"
    text = (drawn if drawn.exists() else COMMITTED / "figures" / drawn.name).read_text()
    assert "<dc:date>" not in text
    assert text.startswith("<?xml")


@pytest.mark.exhaustive
def test_running_twice_changes_no_file(made):
    root, _ = made
    before = snapshot(root)
    paths = [root / "reports" / n for n in ("nvidia-h200", "nvidia-a100", "cpu")]
    again = report_write.write(paths, readme=root / "README.md")
    assert again["changed"] == []
    assert snapshot(root) == before


@pytest.mark.exhaustive
def test_another_process_writes_the_same_bytes(made, tmp_path):
    """Hash seeds, set order and element ids must not show."""
    copy = tmp_path / "nvidia-a100"
    copy.mkdir()
    original = made[0] / "reports/nvidia-a100"
    for name in ("results.csv", "environment.json"):
        (copy / name).write_bytes((original / name).read_bytes())
    code = (
        "import sys; from pathlib import Path; from tcgemm.report.write import write; "
        "write([Path(sys.argv[1])])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run(
        [sys.executable, "-c", code, str(copy)], cwd=tmp_path, env=environment, check=True
    )
    assert snapshot_names(copy) == snapshot_names(original)


def snapshot_names(folder):
    return {p.relative_to(folder): digest for p, digest in snapshot(folder).items()}


def test_pages_ask_for_nothing_from_outside(made):
    for path in (*made[0].rglob("index.html"), COMMITTED / "index.html"):
        page = path.read_text()
        outside = re.findall(r"(?:src|href|action|data)\s*=\s*[\"'](?!#)[^\"']*", page)
        assert outside == []
        assert not re.search(r"url\((?!#)|@import|<link|<iframe|fetch\(|https?://", page)


@pytest.mark.parametrize("of", ["several folders", "the committed rows"])
def test_page_ids_are_unique_and_links_inside_it_lead_somewhere(made, of):
    folder = made[0] / "reports" if of == "several folders" else COMMITTED
    page = (folder / "index.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:xlink:)?href="#([^"]+)"|url\(#([^)]+)\)', page):
        assert (target[0] or target[1]) in ids


def test_inline_figures_follow_the_theme(made):
    shown = set()
    for folder in (made[0] / "reports/nvidia-h200", COMMITTED):
        page = (folder / "index.html").read_text()
        drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.S))
        slugs = {path.stem for path in (folder / "figures").glob("*.svg")}
        assert drawn.count("<svg") == len(slugs)
        assert not [colour for colour in style.DARK if colour in drawn]
        shown |= slugs
    assert shown == set(figures.SLUGS)


ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["nvidia-h200", "nvidia-h200-x2"])
def test_what_a_page_says_is_no_markup_of_another_language(folder):
    page = (ROOT / "reports" / folder / "index.html").read_text()
    said = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", "", page, flags=re.S)
    assert not re.findall(r".{0,40}(?:`|\*\*|<!--|&amp;\w+;).{0,40}", said)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, to run table.js.j2")
@pytest.mark.parametrize(
    ("count", "width", "said"),
    [("", 400, "more columns"), ("3 of 9 rows", 400, "3 of 9 rows · more columns"),
     ("3 of 9 rows", 90, "3 of 9 rows"), ("", 90, "")],
)  # fmt: skip
def test_a_hint_without_a_count_begins_with_its_words(count, width, said):
    script = (ROOT / "tcgemm/report/table.js.j2").read_text()
    hint = re.search(r"^const hint = .*?^};$", script, re.M | re.S)[0]
    code = f"{hint} const line = {{dataset: {{text: {json.dumps(count)}}}}};"
    code += f"hint({{scrollWidth: {width}, clientWidth: 100}}, line); console.log(line.textContent)"
    shown = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip().partition(" to the right")[0] == said


def packed(page, name):
    text = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page)[1]
    return json.loads(text)


def test_results_table_has_every_row_and_no_empty_cell(made):
    page = (made[0] / "reports/nvidia-h200/index.html").read_text()
    data = packed(page, "nvidia-h200-results")
    assert data["rows"] == len(load(made[0] / "reports/nvidia-h200").table)
    assert {c["name"] for c in data["columns"]} == {*COLUMNS, *DERIVED}
    for column in data["columns"]:
        assert "" not in column.get("texts", []), column["name"]
        assert not [v for v in column["values"] if v is None or v in ("", "nan")], column["name"]


def test_a_cpu_folder_shows_status_and_accuracy_and_no_speed(made):
    root, _ = made
    folder = root / "reports/cpu"
    page, readme = (folder / "index.html").read_text(), (folder / "README.md").read_text()
    for text in (page.split('id="columns"')[0], readme):
        assert not re.search(r"TFLOPS|TOPS|GB/s|\d ms\b|ratio_p50|ms_p50", text)
    assert "Checked on the CPU" in page
    assert {p.stem for p in (folder / "figures").glob("*.svg")} == {"accuracy"}
    assert {c["name"] for c in packed(page, "cpu-results")["columns"]} >= {"status", "error_ratio"}


def test_statuses_and_reasons_are_listed(made):
    page = (made[0] / "reports/nvidia-h200/index.html").read_text()
    reasons = next(
        c for c in packed(page, "nvidia-h200-problems")["columns"] if c["name"] == "reason"
    )
    assert any("multiples of 8" in text for text in reasons["texts"])


def test_several_gpus_stand_side_by_side(made):
    root, done = made
    assert done["pages"][-1] == (root / "reports/index.html").resolve()
    page = (root / "reports/index.html").read_text()
    key_shapes = re.search(r'<section id="headline">.*?</section>', page, re.S)[0]
    assert "<td>NVIDIA H200</td>" in key_shapes
    assert "<td>NVIDIA A100 80GB SXM</td>" in key_shapes
    ladder = re.search(r'id="all-ladder">.*?</figure>', page, re.S)[0]
    assert "NVIDIA H200: bfloat16" in ladder
    assert "NVIDIA A100 80GB SXM: bfloat16" in ladder
    assert 'id="cpu"' in page


def test_one_folder_writes_no_page_above_it(no_figures, tmp_path):
    folder = small(tmp_path / "reports/nvidia-h200")
    done = report_write.write([folder])
    assert done["pages"] == [folder / "index.html"]
    assert not (tmp_path / "reports/index.html").exists()


@pytest.mark.parametrize("out", ["elsewhere", "elsewhere/page.html"])
def test_out_names_a_folder_or_a_page(no_figures, tmp_path, out):
    folder = small(tmp_path / "one")
    done = report_write.write([folder], out=tmp_path / out)
    page = tmp_path / out if out.endswith(".html") else tmp_path / out / "index.html"
    assert done["pages"][-1] == page
    assert page.is_file()


def test_project_readme_is_rewritten_between_its_markers(made):
    text = (made[0] / "README.md").read_text()
    assert text.startswith(f"# x\n\n{markdown.BEGIN}\n### NVIDIA H200\n")
    assert text.endswith(f"\n{markdown.END}\n\nafter\n")
    assert "old" not in text
    assert "CPU" not in text
    assert "(reports/nvidia-h200/README.md)" in text
    assert "| 4096³ | bfloat16 | nn |" in text


def test_readme_links_and_images_exist(made):
    for readme in made[0].rglob("README.md"):
        for target in re.findall(r"\]\(([^)]+)\)", readme.read_text()):
            assert (readme.parent / target).is_file()


@pytest.mark.parametrize(
    "text", ["# no markers\n", f"{markdown.END} before {markdown.BEGIN}", markdown.BEGIN]
)
def test_a_readme_without_a_pair_of_markers_stays(no_figures, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text(text)
    report_write.write([small(tmp_path / "one")])
    assert Path("README.md").read_text() == text


def test_results_from_elsewhere_stay_out_of_the_readme_here(no_figures, tmp_path, monkeypatch):
    project = tmp_path / "project"
    inside, outside = small(project / "reports/nvidia-h200"), small(tmp_path / "outside")
    text = f"{markdown.BEGIN}\ntable\n{markdown.END}\n"
    (project / "README.md").write_text(text)
    monkeypatch.chdir(project)
    report_write.write([outside])
    assert Path("README.md").read_text() == text
    report_write.write([inside])
    assert "### NVIDIA H200" in Path("README.md").read_text()


def test_a_cpu_folder_leaves_the_project_readme_alone(no_figures, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{markdown.BEGIN}\ntable\n{markdown.END}\n")
    report_write.write([small(tmp_path / "cpu", None)], readme=readme)
    assert "table" in readme.read_text()


def test_stale_figures_go(tmp_path):
    folder = small(tmp_path / "one")
    stale = folder / "figures" / "squares.svg"  # of more shapes than one
    stale.parent.mkdir()
    stale.write_text("of an earlier report")
    report_write.write([folder])
    assert not stale.exists()
    assert list(stale.parent.glob("*.svg"))


@pytest.mark.parametrize("gpu", [H200, None], ids=["H200", "CPU"])
def test_a_folder_without_rows_says_so(tmp_path, gpu):
    folder = write(tmp_path / "empty", gpu, shapes={})
    report_write.write([folder])
    assert "no row yet" in (folder / "README.md").read_text()
    assert {p.stem for p in folder.rglob("*.svg")} <= {"published"}


def test_only_failures_make_a_page_without_figures_of_speed(tmp_path):
    folder = small(tmp_path / "bad")
    lines = (folder / "results.csv").read_text().replace(",ok,", ",failed,")
    (folder / "results.csv").write_text(lines)
    report_write.write([folder])
    assert "no kernel was timed beside cuBLAS" in (folder / "README.md").read_text()
    assert not (folder / "figures/ladder.svg").exists()


def test_reasons_cannot_break_out_of_the_page(no_figures, tmp_path):
    folder = small(tmp_path / "x")
    text = (folder / "results.csv").read_text().splitlines()
    bad = row(run=text[1].split(",")[0], status="failed", reason="</script><b>| x |")
    (folder / "results.csv").write_text("\n".join([*text, ",".join(bad.values())]) + "\n")
    report_write.write([folder])
    assert "</script><b>" not in (folder / "index.html").read_text()
    assert "\\| x \\|" in (folder / "README.md").read_text()


def test_headline_says_why_a_cell_is_empty(tmp_path):
    shapes = {"quick": [(100, 100, 100)]}
    folder = load(write(tmp_path / "x", shapes=shapes, dtypes=("bfloat16",), layouts=("nn",)))
    folder.table.loc[folder.table["backend"].eq("triton"), ["tflops", "status"]] = [
        np.nan,
        "failed",
    ]
    (line,) = headline([folder]).lines
    assert line.cells["nvidia-h200", "triton"].why == "failed"
    assert line.cells["nvidia-h200", "cuda"].kernel


def test_sentence_names_the_best_rungs(made):
    said = sentence(load(made[0] / "reports/nvidia-h200"))
    assert re.search(r"bfloat16 at 4096³.*Triton \d+ % \(descriptor\).*CUDA \d+ %", said)


def test_published_times_are_marked_and_sourced():
    theirs = figures.published()
    assert len(theirs) == 25
    assert set(theirs["kernel"]) == set(figures.PUBLISHED_RUNGS)
    picture = figures.draw_published([])
    assert "published" in picture.svg
    assert theirs["source"].iloc[0] in picture.guide
    assert "none was measured" in picture.guide


@pytest.mark.parametrize(
    ("published", "ours", "same"),
    [
        ("NVIDIA H200 SXM", "NVIDIA H200", True),
        ("NVIDIA A100 80GB", "NVIDIA A100 80GB SXM", True),
        ("NVIDIA H100 SXM", "NVIDIA H100 NVL", False),
        ("NVIDIA T4", "NVIDIA L4", False),
    ],
)
def test_published_gpus_are_matched_by_model(published, ours, same):
    assert _same_gpu(published, ours) is same


def test_a_fact_of_many_values_names_the_first_and_the_last(tmp_path):
    small(tmp_path / "h200")
    runs = json.loads((tmp_path / "h200" / "environment.json").read_text())
    (one,) = runs.values()
    for number in range(6):
        runs[f"run{number}"] = {
            **one, "commit": f"c{number}", "driver": f"d{number % 2}",
            "command": ["tcgemm", "bench", "--out", f"my folder {number}"],
        }  # fmt: skip
    runs = {name: run for name, run in runs.items() if name.startswith("run")}
    (tmp_path / "h200" / "environment.json").write_text(json.dumps(runs))
    results = (tmp_path / "h200" / "results.csv").read_text().splitlines()
    rows = [row(run=f"run{number}", kernel=f"k{number}") for number in range(6)]
    lines = [results[0], *(",".join(each.values()) for each in rows)]
    (tmp_path / "h200" / "results.csv").write_text("\n".join(lines) + "\n")
    shown = dict(facts(load(tmp_path / "h200")))
    assert shown["commit"] == "c0; ... (4 others, in environment.json); c5"
    assert shown["driver"] == "d0; d1"
    assert shown["command"].startswith("tcgemm bench --out 'my folder 0'; ...")


def _foreign(folder):
    folder.mkdir()
    (folder / "results.csv").write_text("a,b\n1,2\n")
    (folder / "environment.json").write_text('{"r": {"gpu": "NVIDIA H200"}}')


def _no_results(folder):
    folder.mkdir()


def _no_environment(folder):
    small(folder)
    (folder / "environment.json").unlink()


def _two_gpus(folder):
    small(folder)
    runs = json.loads((folder / "environment.json").read_text())
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text + ",".join(row(run="other").values()) + "\n")
    runs["other"] = {"gpu": "NVIDIA A100-SXM4-80GB"}
    (folder / "environment.json").write_text(json.dumps(runs))


def _with_row(**changes):
    def make(folder):
        small(folder)
        with (folder / "results.csv").open("a") as file:
            file.write(",".join(row(run="made", **changes).values()) + "\n")

    return make


def _broken_environment(folder):
    small(folder)
    (folder / "environment.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "results.csv"),
        (_no_results, "tcgemm bench"),
        (_foreign, "schema"),
        (_no_environment, "environment.json"),
        (_broken_environment, "environment.json"),
        (_two_gpus, "one folder a GPU"),
        (_with_row(M="many"), "has M='many', which is no positive integer: remove that line"),
        (_with_row(K=0), "has K='0'"),
        (_with_row(status="fine"), "has status 'fine', which is none of ok, wrong"),
    ],
    ids=[
        *("missing", "no results", "foreign", "no environment", "broken environment", "two GPUs"),
        *("no number", "zero", "no status"),
    ],
)
def test_unusable_folders_are_refused_in_one_line(tmp_path, make, said):
    folder = tmp_path / "bad"
    make(folder)
    with pytest.raises(ResultsError, match=re.escape(said)) as caught:
        report_write.write([folder])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("index.html"))


def test_a_truncated_last_line_is_left_out(tmp_path):
    folder = small(tmp_path / "x")
    whole = len(load(folder).table)
    with (folder / "results.csv").open("a") as file:
        file.write("20260301T1200,quick,tri")
    assert len(load(folder).table) == whole


def test_two_runs_of_one_gpu_stand_side_by_side_by_their_folders_names(no_figures, tmp_path):
    folders = [small(tmp_path / n) for n in ("before", "after")]
    page = report_write.write(folders)["pages"][-1].read_text()
    assert page.count("<h2>NVIDIA H200, before</h2>") == 1
    assert page.count("<h2>NVIDIA H200, after</h2>") == 1
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_no_folder_and_nothing_below_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultsError, match="tcgemm bench"):
        report_write.write([])


def test_missing_readme_is_named(no_figures, tmp_path):
    folder = small(tmp_path / "x")
    with pytest.raises(ResultsError, match=r"NOPE\.md"):
        report_write.write([folder], readme=tmp_path / "NOPE.md")


def test_a_readme_asked_for_by_name_needs_the_markers(no_figures, tmp_path):
    folder = small(tmp_path / "x")
    (tmp_path / "OTHER.md").write_text(f"# x\n{markdown.BEGIN}\n")
    with pytest.raises(ResultsError, match=r"lacks the lines .*begin.* and .*end"):
        report_write.write([folder], readme=tmp_path / "OTHER.md")


REPORTS = Path(__file__).parent.parent / "reports"
OF_ONE = sorted(path.parent for path in REPORTS.glob("nvidia-*/results.csv"))
OF_SEVERAL = sorted(path.parent for path in REPORTS.glob("nvidia-*/several.csv"))


@pytest.mark.parametrize(
    "folder",
    [*(pytest.param(each, marks=pytest.mark.exhaustive) for each in OF_ONE), *OF_SEVERAL],
    ids=lambda folder: folder.name,
)
def test_the_committed_reports_are_what_their_results_make(folder, tmp_path):
    """Reports are regenerated, never edited. Drawn text is matplotlib's: only its pinned version
    gives the same bytes."""
    text = (REPORTS.parent / "constraints.txt").read_text()
    pinned = re.search(r"^matplotlib==(\S+)", text, re.M)
    if matplotlib.__version__ != pinned[1]:
        pytest.skip(f"matplotlib {matplotlib.__version__} draws otherwise than {pinned[1]}")
    copy = tmp_path / "reports" / folder.name
    shutil.copytree(folder, copy)
    before = snapshot(copy)
    report_write.write([copy])
    assert snapshot(copy) == before, f"run 'tcgemm report' and commit {folder}"


@pytest.mark.parametrize("folder", OF_ONE, ids=lambda folder: folder.name)
def test_the_tables_of_a_committed_report_are_what_its_results_make(folder, no_figures, tmp_path):
    """Without its figures, whose drawing takes most of the time."""
    copy = tmp_path / "reports" / folder.name
    shutil.copytree(folder, copy)
    committed = (copy / "README.md").read_text().split("\n\n")
    report_write.write([copy])
    made = (copy / "README.md").read_text().split("\n\n")
    changed = [block for block in made if block not in committed]
    assert not changed, f"run 'tcgemm report' and commit {folder}"
    assert len(made) > 10


def test_unwritable_out_is_named(no_figures, tmp_path):
    folder = small(tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="--out"):
        report_write.write([folder], out=tmp_path / "file" / "deeper")


def _app():
    import typer

    from tcgemm.report.command import report

    app = typer.Typer()
    app.command()(report)
    return app


@pytest.mark.exhaustive
def test_command_takes_every_folder_below_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small(Path("reports/nvidia-h200"))
    small(Path("reports/cpu"), None)
    result = CliRunner().invoke(_app(), [])
    assert result.exit_code == 0, result.output
    assert str((tmp_path / "reports/index.html").resolve()) in result.output.replace("\n", "")
    assert Path("reports/cpu/index.html").is_file()
    assert "0 files changed" in CliRunner().invoke(_app(), []).output


def test_command_module_stays_light():
    code = (
        "import sys, tcgemm.report.command; "
        "print([m for m in ('torch', 'pandas', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_report_imports_no_torch_and_no_kernel():
    code = (
        "import sys, tcgemm.report.write; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'triton') "
        "or m.startswith(('tcgemm.triton_kernels', 'tcgemm.cuda_ref', 'tcgemm.dispatch'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_users_mistake_ends_with_status_2_and_one_line(tmp_path):
    pytest.importorskip("tcgemm.bench.command", reason="the benchmark's command is not here")
    code = (
        "import sys; from tcgemm.cli import main; "
        "sys.argv = ['tcgemm', 'report', 'nowhere']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    lines = done.stderr.strip().splitlines()  # a slow machine says besides what takes its time
    assert (
        len([line for line in lines if not re.fullmatch(r"drawing the report, \d+ s", line)]) == 1
    )


@pytest.fixture(scope="module")
def with_types(tmp_path_factory):
    path = tmp_path_factory.mktemp("types") / "nvidia-h200"
    write(path, shapes={"squares": [(4096, 4096, 4096)]}, others=("types", "fused", "wmma"))
    return load(path)


def test_types_shapes_and_epilogues_have_their_tables(with_types):
    made = {section.slug: section for section in sections(with_types)}
    assert list(made) == ["suites", "best", "types", "transposed", "wmma-shapes", "fused"]
    for section in made.values():
        assert {len(row) for row in section.rows} == {len(section.header)}
        assert all(cell for row in section.rows for cell in row)
    transposed = made["transposed"]
    assert transposed.numbers == [3], "a number a row, by which it sorts"
    assert all(float(row[3]) > 0 for row in transposed.rows)
    assert ("int8 → int32", "CUDA") in {tuple(row[:2]) for row in transposed.rows}
    pairs = {row[0] for row in made["types"].rows}
    assert {"int8 → int32", "float32 by tf32x3", "float8_e4m3fn → bfloat16 by fast"} <= pairs
    assert {row[0] for row in made["fused"].rows} >= {"residual", "bias gelu"}
    assert made["wmma-shapes"].header[3:] == ["16x16x16", "32x8x16", "8x32x16", "16x16x8", "8x8x4"]


def test_the_ladders_stay_with_plain_products(with_types):
    plain = with_types.plain
    assert set(plain["dtype_in"]) == set(plain["dtype_out"]) == {"float16", "bfloat16"}
    assert set(plain["fused"]) == set(plain["mma_shape"]) == {""}
    assert len(with_types.table) > len(plain) > 0


def test_the_peak_is_that_of_the_type_and_the_way_to_sum(with_types):
    table = with_types.table
    peaks = {
        (r.dtype_in, r.compute): 100 * r.paired_tflops / r.pct_of_peak
        for r in table[table["tflops"].notna()].itertuples()
    }
    assert peaks["int8", "int32"] == pytest.approx(1978.9)
    assert peaks["float32", "tf32x3"] == pytest.approx(494.7 / 3)
    assert peaks["float32", "ieee"] == pytest.approx(66.9)
    assert peaks["float8_e5m2", "fast"] == pytest.approx(1978.9)


def test_a_folder_of_plain_products_has_only_the_tables_that_it_has_rows_for(made):
    made_of = sections(load(made[0] / "reports" / "nvidia-h200"))
    assert [section.slug for section in made_of] == ["suites", "best"]
    assert sections(load(made[0] / "reports" / "cpu")) == []


def test_cublas_at_its_best_is_a_contender_and_not_the_baseline(made):
    table = load(made[0] / "reports" / "nvidia-h200").table
    rival = table[table["kernel"].eq("cublas_best")]
    assert (rival["ratio_p50"] > 1).all()
    assert not best(table)["kernel"].eq("cublas_best").any()
    _, section = sections(load(made[0] / "reports" / "nvidia-h200"))
    of_mm, of_best = (float(section.rows[-1][i]) for i in (4, 5))
    assert of_best == pytest.approx(of_mm / float(section.rows[-1][3]), abs=0.01)


def test_a_suite_is_a_geometric_mean_and_a_worst_case(made):
    folder = load(made[0] / "reports" / "nvidia-h200")
    section, _ = sections(folder)
    (row,) = [row for row in section.rows if row[:3] == ["bfloat16", "Triton", "squares"]]
    of = folder.plain[
        folder.plain["dtype_in"].eq("bfloat16")
        & folder.plain["backend"].eq("triton")
        & folder.plain["suites"].str.contains("squares")
    ]
    fastest = of.groupby(CASE)["ratio_p50"].max()
    chosen = of[of["chosen"].eq("yes")]["ratio_p50"]
    assert row[3] == row[7] == str(len(fastest))
    for first, ratios in ((4, fastest), (8, chosen)):
        assert float(row[first]) == pytest.approx(ratios.prod() ** (1 / len(ratios)), abs=0.006)
        assert float(row[first + 1]) == pytest.approx(ratios.min(), abs=0.006)
    assert float(row[8]) < float(row[4])


def test_every_case_counts_once_in_all_suites_together(made):
    section, _ = sections(load(made[0] / "reports" / "nvidia-h200"))
    counts = {row[2]: int(row[3]) for row in section.rows if row[:2] == ["float16", "Triton"]}
    assert max(counts.values()) == counts["all"] <= sum(counts.values()) - counts["all"]


def test_rungs_stand_in_the_order_of_their_ladders():
    """Each behind the one before it; names that both have stand where the first ladder has them."""
    from tcgemm.report.derive import _in_order

    ladders = [("triton", "naive"), ("triton", "skinny"), ("triton", "late")]
    ladders += [("cuda", "naive"), ("cuda", "tiled"), ("cuda", "skinny"), ("cuda", "small")]
    names = _in_order(ladders, ["cublas", "small", "naive", "tried once"])
    assert names == ["naive", "tiled", "skinny", "small", "late", "cublas", "tried once"]
    assert _in_order([], ["b", "a", "b"]) == ["b", "a"]
