"""The report's section on several GPUs: figures by hand, tables, pictures, one page or many."""

from __future__ import annotations

import json
import re

import pytest

from tcgemm.bench.several import cases
from tcgemm.errors import ResultsError
from tcgemm.report import several
from tcgemm.report.figures.several import draw_time_line
from tcgemm.report.write import write

ROW = {
    "run": "r1", "model": "Llama 8B", "layer": "up", "world": 2, "op": "all_gather", "M": 2048,
    "N": 28672, "K": 4096, "dtype": "bfloat16", "contender": "planned", "way": "overlapped",
    "why": "about 1 us", "status": "ok", "error_ratio": 0.5, "exact_errors": 0, "ms_p20": 1.0,
    "ms_p50": 1.25, "ms_p80": 1.5, "gemm_ms": 1.0, "nccl_ms": 2.0, "torch_fused_ms": 2.5,
    "torch_status": "ok", "ratio_nccl": 1.6, "ratio_torch": 2.0, "of_limit": 0.8, "rounds": 9,
    "seed": 0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "nvidia-h200-x2"
    other = {**ROW, "op": "reduce_scatter", "layer": "down", "ratio_nccl": 0.9, "M": 512}
    refused = {**ROW, "contender": "overlapped/cuda", "status": "unsupported",
               "reason": "no <b>engine</b>", "ms_p50": None}  # fmt: skip
    cases.append(path, [{**ROW, "ratio_nccl": 0.1}, ROW, other, refused])
    facts = {"gpu": "NVIDIA H200", "gpu_slug": "nvidia-h200", "world": 2, "nccl": "2.28.9"}
    (path / "environment.json").write_text(json.dumps({"r1": facts}))
    return path


def test_what_is_hidden_by_hand():
    assert several.hidden(ROW) == 0.75  # of one millisecond that NCCL adds, a quarter is left
    assert several.hidden({**ROW, "ms_p50": 2.0}) == 0
    assert several.hidden({**ROW, "ms_p50": 3.0}) == 0
    assert several.hidden({**ROW, "ms_p50": 0.5}) == 1
    assert several.hidden({**ROW, "nccl_ms": 1.0}) is None


def test_only_the_last_row_of_a_case_counts_and_means_are_geometric(folder):
    found = several.load(folder)
    assert found.name == "2 × NVIDIA H200"
    assert len(found.timed) == 2
    assert "run 1.20 times as fast as NCCL" in several.sentence(found)  # of 1.6 and 0.9
    assert "and 0.90 times in the worst case" in several.sentence(found)
    summary, layers, not_ok = several.sections(found)
    assert summary.rows[0] == [
        "planned", "512", "reduce_scatter", "1", "0.90", "0.90", "2.00", "80 %", "75 %",
    ]  # fmt: skip
    assert summary.rows[-1][:5] == ["planned", "all", "both", "2", "1.20"]
    assert layers.rows[0][:4] == ["Llama 8B up", "all_gather", "bfloat16", "2048×28672×4096"]
    assert not_ok.rows[0][:4] == ["overlapped/cuda", "unsupported", "no <b>engine</b>", "1"]


def test_what_a_mean_does_not_count_is_said(folder):
    bad = {**ROW, "M": 4096, "status": "wrong", "reason": "off", "ms_p50": None}
    no_torch = {**ROW, "K": 8192, "ratio_torch": None, "torch_fused_ms": None}
    cases.append(folder, [bad, no_torch])
    found = several.load(folder)
    assert several.sentence(found).endswith("worst case. 1 more is not ok, and not counted.")
    summary, *_ = several.sections(found)
    assert ["planned", "2048", "all_gather", "2", "1.60", "1.60", "2.00 (of 1)"] in [
        row[:7] for row in summary.rows
    ]


def test_rows_of_two_gpus_are_refused(folder):
    path = folder / "environment.json"
    facts = json.loads(path.read_text()) | {"r2": {"gpu": "NVIDIA B200", "world": 2}}
    path.write_text(json.dumps(facts))
    several.load(folder)  # a run without rows
    cases.append(folder, [{**ROW, "run": "r2"}])
    with pytest.raises(ResultsError, match="mixes runs of NVIDIA B200 and NVIDIA H200"):
        several.load(folder)


def test_a_run_that_ended_before_its_first_row_has_none(folder):
    (folder / cases.SEVERAL).write_bytes(b"")
    found = several.load(folder)
    assert several.sentence(found) == "2 × NVIDIA H200: the results file holds no row yet."
    write([folder])


def test_the_folder_has_a_page_a_readme_and_a_picture_and_twice_changes_nothing(folder):
    made = write([folder])
    assert [p.name for p in made["pages"]] == ["index.html"]
    page = (folder / "index.html").read_text()
    assert "<h2>Over 2 × NVIDIA H200</h2>" in page
    assert "no &lt;b&gt;engine" in page
    assert "Over several GPUs: every layer" in (folder / "README.md").read_text()
    svg = (folder / "figures/several_ratios.svg").read_text()
    assert "Llama 8B up 2048x28672x4096, planned: 1.60" in svg
    assert not list((folder / "figures").glob("several_time_line*"))
    assert "time line" not in page, "nothing was stamped, so there is none"
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= set(re.findall(r'\bid="([^"]+)"', page))
    assert write([folder])["changed"] == []


def test_lines_are_named_at_their_ends_and_no_two_share_a_colour(folder):
    cases.append(folder, [
        {**ROW, "M": M, "contender": contender, "ratio_nccl": ratio}
        for M, ratio in ((512, 0.9), (2048, 1.2))
        for contender in ("planned", "overlapped/triton", "overlapped/cuda")
    ])  # fmt: skip
    write([folder])
    svg = (folder / "figures/several_ratios.svg").read_text()
    assert 'id="legend' not in svg
    names = ("planned", "overlapped/triton", "overlapped/cuda", "torch's fused", "limit")
    colours = {
        re.search(rf'style="[^"]*fill: (#\w+)[^"]*"[^>]*>{re.escape(name)}</text>', svg)[1]
        for name in names
    }
    assert len(colours) == len(names)


def test_a_page_of_several_gpus_alone_opens_with_its_sentence(folder):
    write([folder])
    page = (folder / "index.html").read_text()
    said = several.sentence(several.load(folder))
    assert page.count(said) == 1
    assert f'<p class="lead">{said}</p>' in page.partition("</header>")[0]


def test_stamps_are_drawn_as_a_time_line_of_each_operation(folder):
    asked = {"run": "r1", "N": 8, "K": 8, "dtype": "bfloat16"}
    cases.append_stamps(folder, [
        {**asked, "op": op, "M": M, "contender": contender, "rank": rank, "what": what,
         "piece": piece, "begin_us": M * piece, "end_us": M * piece + (5 if M < 32 else 500)}
        for op, kinds in (("all_gather", ("copy", "tiles")), ("reduce_scatter", ("wait", "flags")))
        for M in (8, 24, 16, 32)
        for contender in ("overlapped/triton", "overlapped/cuda")
        for rank in (0, 1) for what in kinds for piece in (0, 1)
    ])  # fmt: skip
    write([folder])
    for op, texts in (
        ("all_gather", ("rank 0: copy", "rank 1: tiles")),
        ("reduce_scatter", ("rank 0: wait", "rank 1: flags")),
    ):
        svg = (folder / f"figures/several_time_line_{op}.svg").read_text()
        for text in (*texts, "overlapped/triton", "overlapped/cuda"):
            assert text in svg
    page = (folder / "index.html").read_text()
    assert page.count("24×8×8 bfloat16: what each rank did") == 2  # the longest that is seen
    assert page.count("bfloat16: what each rank did") == 2


def test_where_all_calls_are_long_the_shortest_is_drawn():
    case = {"run": "r1", "op": "all_gather", "N": "8", "K": "8", "dtype": "bfloat16"}
    stamps = [
        {**case, "M": M, "contender": "overlapped/cuda", "rank": "0", "what": "tiles",
         "piece": "0", "begin_us": "0", "end_us": end}
        for M, end in (("8", "900"), ("16", "700"), ("24", "800"))
    ]  # fmt: skip
    guide = draw_time_line("all_gather", stamps).guide
    assert guide.startswith("16×8×8 bfloat16: what each rank did")
    assert "tiles: from the first block" in guide
    assert "copy:" not in guide  # there is none


@pytest.mark.exhaustive
def test_beside_a_gpu_s_own_results_it_is_a_section_of_the_page_of_all(folder, tmp_path):
    from synthetic_results import H200
    from synthetic_results import write as made_up

    made_up(tmp_path / "nvidia-h200", H200)
    made = write([tmp_path / "nvidia-h200", folder])
    assert made["pages"][-1] == tmp_path / "index.html"
    page = made["pages"][-1].read_text()
    assert "<h2>NVIDIA H200</h2>" in page
    assert "<h2>Over 2 × NVIDIA H200</h2>" in page


@pytest.mark.parametrize("wrong", [{"M": ""}, {"M": 0}, {"ms_p50": "fast"}, {"ratio_nccl": -1}])
def test_odd_cells_are_refused_by_line(tmp_path, wrong):
    cases.append(tmp_path, [ROW, {**ROW, **wrong}])
    (name,) = wrong
    with pytest.raises(ResultsError, match=f"line 3 has {name}="):
        several.load(tmp_path)


def test_two_numbers_of_ranks_are_refused(tmp_path):
    cases.append(tmp_path, [ROW, {**ROW, "world": 4, "M": 4}])
    with pytest.raises(ResultsError, match="mixes 2 and 4 ranks"):
        several.load(tmp_path)


def test_a_checked_run_without_a_gpu_says_that_nothing_was_timed(tmp_path):
    row = {name: value for name, value in ROW.items() if not name.startswith(("ms", "ratio"))}
    cases.append(tmp_path, [row])
    write([tmp_path])
    assert "1 of 1 results are right; nothing was timed" in (tmp_path / "README.md").read_text()
