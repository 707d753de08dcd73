"""The first screen: whom to take for which product; figures that say what is behind a mark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from synthetic_results import H200, write
from test_report import leave_out, row, table

from tcgemm.report import figures
from tcgemm.report import write as report_write
from tcgemm.report.answer import KINDS, answer
from tcgemm.report.derive import plain, rate_text
from tcgemm.report.figures.picture import hover, save
from tcgemm.report.folder import load
from tcgemm.report.headline import headline, method
from tcgemm.report.models import model_of
from tcgemm.report.summary import lists


def rows(*ratios, M=4096, N=4096, K=4096, chosen="yes", **more):
    """A case with a kernel of each backend, of those ratios to cuBLAS."""
    size = {"M": M, "N": N, "K": K, "compute": "float32", **more}
    return [
        row(backend=backend, kernel="rung", chosen=chosen, ratio_p50=ratio, **size)
        for backend, ratio in zip(("triton", "cuda"), ratios, strict=True)
    ]


def said(*cases):
    return answer("NVIDIA H200", plain(table(*(each for case in cases for each in case))))


@pytest.mark.parametrize(
    ("shape", "layout", "kind"),
    [
        ((4096, 4096, 4096), "nn", "aligned rows"),
        ((129, 8, 8), "nn", "aligned rows"),
        ((128, 4096, 4096), "nt", "few rows"),
        ((4096, 4096, 4095), "nn", "misaligned rows"),
        ((4096, 4095, 4096), "nn", "misaligned rows"),
        ((4095, 4096, 4096), "nn", "aligned rows"),
        ((4095, 4096, 4096), "tn", "misaligned rows"),
        ((1, 4096, 4095), "nt", "misaligned rows"),
    ],
)
def test_every_product_is_of_one_kind_by_its_rows(shape, layout, kind):
    found = said(rows(1.0, 1.0, M=shape[0], N=shape[1], K=shape[2], layout=layout))
    assert list(found.shares) == [kind]


def test_a_product_timed_among_others_is_of_that_kind_too():
    short = rows(1.2, 1.3, ms_p50=0.01, timer="graph", among="alone")
    beside = rows(1.1, 0.9, ms_p50=0.01, timer="graph", among="graph")
    found = said(short, beside)
    assert list(found.shares) == ["aligned rows", "among other kernels"]
    assert [share.mean for share in found.shares["among other kernels"]] == [1.1, 0.9]
    assert found.alone == 0, "what counts was timed among others"
    assert said(short).alone == 2


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.0, 1.2), "take CUDA for aligned rows (CUDA 1.20×, Triton 1.00×; of 4096³ alone)"),
        ((1.5, 1.2), "take Triton for aligned rows (Triton 1.50×, CUDA 1.20×; of 4096³ alone)"),
        ((1.2, 1.19), "take Triton or CUDA for aligned rows"),
        ((0.9, 0.8), "take cuBLAS for aligned rows (Triton 0.90×, CUDA 0.80×; of 4096³ alone)"),
        ((1.01, 0.8), "take Triton or cuBLAS for aligned rows"),
    ],
)
def test_the_sentence_names_whom_to_take_and_by_how_much(ratios, words):
    assert words in said(rows(*ratios)).sentence


def test_one_or_two_shapes_are_named_since_they_may_not_speak_for_all():
    two = [rows(1.0, 1.2, dtype_in=dtype, dtype_out=dtype, M=M)
           for dtype in ("float16", "bfloat16") for M in (256, 512)]  # fmt: skip
    named = "; of 256 × 4096 × 4096 and 512 × 4096 × 4096 alone)"
    assert named in said(*two).sentence
    assert "alone" not in said(*two, rows(1.0, 1.2, M=1024)).sentence


def test_a_kind_without_rows_is_named_in_a_word_and_left_out_of_the_picture():
    found = said(rows(1.0, 1.2))
    assert found.missing == [kind for kind in KINDS if kind != "aligned rows"]
    assert found.sentence.endswith(
        "; misaligned rows and few rows and among other kernels: not measured yet."
    )
    svg = figures.draw_answer([found]).svg
    assert "aligned rows, 1 case<" in svg
    assert "few rows" not in svg


def test_the_mean_is_geometric_over_what_a_call_gets_unasked():
    taken = [rows(0.5, 1.0, K=64), rows(2.0, 1.0, K=128)]
    others = [[{**r, "kernel": "other", "chosen": "no", "ratio_p50": "9"} for r in taken[0]]]
    triton, _ = said(*taken, *others).shares["aligned rows"]
    assert triton.mean == pytest.approx(1.0)
    assert len(triton.rows) == 2


def test_where_nobody_says_what_is_chosen_the_fastest_counts():
    slow = [{**r, "kernel": "slow", "ratio_p50": "0.5"} for r in rows(1, 1, chosen="")]
    found = said(rows(1.5, 1.1, chosen=""), slow)
    assert [share.mean for share in found.shares["aligned rows"]] == [1.5, 1.1]
    assert "fastest" in found.counted


def test_rows_of_other_data_are_no_part_of_the_answer():
    assert said(rows(1.0, 1.0), rows(3.0, 3.0, data="zeros")).shares["aligned rows"][0].mean == 1


def test_a_mark_leads_to_its_row():
    of = plain(table(*rows(1.0, 1.2), *rows(0.9, 1.1, K=64)))
    svg = figures.draw_answer([answer("x", of)]).svg
    numbers = [int(n) for n in re.findall(r'<use [^>]*data-row="(\d+)"', svg)]
    assert sorted(numbers) == sorted(of.index)
    titles = [unescape(t) for t in re.findall(r"<title>([^<]*)</title>", svg)]
    assert titles == [
        "Triton 0.95×: geometric mean of 2 cases",
        "CUDA 1.15×: geometric mean of 2 cases",
    ]


def test_marks_that_are_not_drawn_are_no_silent_shift():
    figure = Figure()
    dots = figure.subplots().scatter([1, 2], [1, 2])
    hover(dots, [7])
    with pytest.raises(ValueError, match="2 marks are drawn and 1 are explained"):
        save(figure)


def test_what_is_behind_a_mark_cannot_end_its_text():
    figure = Figure()
    with mpl.rc_context({"svg.fonttype": "none"}):
        hover(figure.subplots().scatter([1], [1]), ["</title><script>"])
        assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in save(figure)


def test_shapes_of_models_have_the_models_name():
    assert model_of(16, 4096, 14336) == "Llama 3 8B: down, decode, batch 16"
    assert model_of(17, 4096, 14336) == ""
    assert table(row(M=16, N=4096, K=14336))["model"][0].startswith("Llama 3 8B")


def test_rates_are_written_as_people_write_them():
    assert [rate_text(v) for v in (1520.4, 999.6, 99.96, 61.84, 62, 0.1234)] == [
        *("1,520", "1,000", "100", "61.8", "62.0", "0.123"),
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory, thorough):
    shapes = {"squares": [(1024,) * 3, (4096,) * 3], "llm": [(16, 4096, 14336)]}
    folder = tmp_path_factory.mktemp("answer") / "nvidia-h200"
    write(folder, H200, shapes=shapes, dtypes=("bfloat16",), layouts=("nn",), data=("zeros",))
    with pytest.MonkeyPatch.context() as patch:
        if not thorough:
            leave_out(patch, set(figures.SLUGS) - {"answer", "ladder", "data"})
        report_write.write([folder], readme=None)
    return folder


def test_a_kernel_has_one_rate_for_a_shape_wherever_it_is_shown(made):
    folder = load(made)
    line = next(line for line in headline([folder]).lines if line.shape == "4096³")
    cell = line.cells[folder.slug, "cuda"]
    of = folder.plain
    bar = of[of["kernel"].eq(cell.kernel) & of["backend"].eq("cuda") & of["M"].eq(4096)].iloc[0]
    assert cell.tflops == bar["paired_tflops"] != bar["tflops"]
    svg = (made / "figures/ladder.svg").read_text()
    assert f"{cell.kernel}: {bar['pct_of_cublas']:.1f} % of cuBLAS" in svg
    assert f", {rate_text(cell.tflops)} TFLOPS" in svg
    assert rate_text(cell.tflops) in (made / "README.md").read_text()


def test_the_ladder_and_the_specialists_are_two_lists(made):
    ladder, specialists = lists(load(made))
    assert [each[1] for each in specialists.rows] == ["wgmma_cluster"]
    assert "wgmma_persistent" in [each[1] for each in ladder.rows]
    svg = (made / "figures/ladder.svg").read_text()
    assert "cuda, the ladder" in svg
    assert "cuda, specialists" in svg


def test_watts_above_the_limit_are_explained(made):
    folder = load(made)
    assert not [line for line in method(folder) if "more watts" in line]
    folder.table.loc[folder.table["tflops"].notna(), "power_w"] = 994.0
    (line,) = [line for line in method(folder) if "more watts" in line]
    assert "limit of 700 W" in line
    assert "average" in line


def test_the_page_opens_with_the_answer_and_its_contents_lead_everywhere(made):
    page = (made / "index.html").read_text()
    first = page[: page.index('<nav class="contents"')]
    assert answer("NVIDIA H200", load(made).plain).sentence in unescape(first)
    assert "<svg" in first
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    contents = re.search(r'<nav class="contents".*?</nav>', page, re.S)[0]
    linked = re.findall(r'href="#([^"]+)"', contents)
    assert set(linked) <= ids
    assert len(linked) == len(set(linked)) > 10
    titled = re.findall(r'<figure id="(nvidia[^"]+)"', page)
    assert set(titled) <= set(linked)


def test_zeros_have_their_figure_and_do_not_replace_normal_rows(made):
    folder = load(made)
    square = folder.table[folder.table["M"].eq(4096) & folder.table["kernel"].eq("descriptor")]
    assert sorted(square["data"]) == ["normal", "zeros"]
    assert set(folder.plain["data"]) == {"normal"}
    svg = (made / "figures/data.svg").read_text()
    for words in ("board power, W", "SM clock, MHz", "energy, mJ per TFLOP", "zeros"):
        assert words in svg


def test_energy_is_power_times_time():
    of = table(row(M=1000, N=1000, K=500, power_w=500, ms_p50=2.0))
    assert of["mj_per_tflop"][0] == pytest.approx(500 * 2e-3 / 1e-3 * 1e3)


SCRIPT = """
const heads = [...document.querySelectorAll("#headline thead button")];
heads.at(-1).click();
const last = (r) => Number(r.cells[r.cells.length - 1].textContent.split(" ")[0]);
const sorted = [...document.querySelector("#headline tbody").rows].map(last);
const box = document.querySelector("#nvidia-h200-all ~ .data input[type=search]");
box.value = "wgmma_cluster zeros";
box.dispatchEvent(new Event("input"));
const kept = document.querySelectorAll("#nvidia-h200-all ~ .data tbody tr").length;
const over = new Event("pointerover", { bubbles: true });
document.querySelector("#answer [data-row]").dispatchEvent(over);
const tip = document.getElementById("tip").textContent;
const wide = document.documentElement.scrollWidth - innerWidth;
document.title = JSON.stringify([sorted, kept, tip, wide]);
"""


@pytest.mark.parametrize("width", [1400, 500])  # Chromium's window is no narrower
def test_tables_sort_and_filter_and_marks_explain_themselves(made, tmp_path, width):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    page = tmp_path / "page.html"
    page.write_text((made / "index.html").read_text() + f"<script>{{{SCRIPT}}}</script>")
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},900",
    ]
    command += ["--disable-background-networking", f"--user-data-dir={tmp_path}/profile"]
    dom = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=60
    ).stdout
    title = re.search(r"<title>(\[.*?\])</title>", dom)
    assert title, dom[-300:]
    sorted_, kept, tip, wide = json.loads(unescape(title[1]))
    assert sorted_ == sorted(sorted_, reverse=True)
    assert len(sorted_) > 1
    assert kept == 1
    assert tip.startswith(("triton/", "cuda/"))
    assert "× cuBLAS" in tip
    assert wide <= 0, "the page itself scrolls sideways"
