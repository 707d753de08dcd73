"""The rules that the foundation pages teach are those of simulator, ncu and sources."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest

from tcgemm.tools.simulate import tile_order

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import numbers_of  # noqa: E402
from pictures import constants, models  # noqa: E402

FOUNDATIONS = sorted((ROOT / "docs" / "foundations").glob("*.md"))


@pytest.mark.parametrize("page", FOUNDATIONS, ids=lambda page: page.stem)
def test_examples_run(page, monkeypatch):
    """As they stand on the page, from the repository's root, where readers are."""
    monkeypatch.chdir(ROOT)
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert examples, "a foundation page has an example that runs"
    for example in examples:
        assert "assert" in example
        exec(compile(example, str(page), "exec"), {})


@pytest.mark.parametrize("page", FOUNDATIONS, ids=lambda page: page.stem)
def test_pages_are_short_and_drawn(page):
    text = page.read_text()
    assert "../pictures/" in text
    assert len(re.sub(r"```.*?```", "", text, flags=re.S).split()) <= 600
    assert "glossary.md#" in text or "Next:" in text


def test_occupancy_is_never_below_what_ncu_measured():
    with (ROOT / "reports/nvidia-h200/ncu.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 40
    for row in rows:
        threads = int(row["block"])
        limits = models.blocks_per_sm(threads, int(row["registers"]), int(row["shared_bytes"]))
        warps = min(limits.values()) * -(-threads // 32)
        assert warps <= 64
        # Sampled over the kernel, so rounding may lift it by a fraction of a percent.
        assert float(row["occupancy_pct"]) <= 100 * warps / 64 + 0.2, row["rung"]


def test_the_newspaper_column_by_the_model_of_the_l2():
    """Four blocks in flight over 4 x 4 tiles with K four tiles deep: 20 loads, or 16."""
    tile = 256
    step = tile_order.STEP_BYTES // (tile * 2)
    for group, loads in ((None, 20), (2, 16)):
        first = list(tile_order.visit(4, 4, group))[:4]
        assert (len({m for m, _ in first}) + len({n for _, n in first})) * 4 == loads
        M, N = (tile, 4 * tile) if group is None else (2 * tile, 2 * tile)
        traffic = tile_order.traffic(
            M, N, 4 * step, block_m=tile, block_n=tile, group_m=group, places=4, l2_bytes=2**30
        )
        assert traffic.dram_bytes == loads * tile * step * 2


SIDE, PITCH = 4096, 4096 * 2
LANES = [(lane // 16, lane % 16) for lane in range(32)]
FRAGMENT = [PITCH * (lane // 4) + 4 * (lane % 4) for lane in range(32)]
LINES = {
    ("naive", "nn"): ([PITCH * y for y, _ in LANES], [2 * x for _, x in LANES]),
    ("naive", "nt"): ([PITCH * y for y, _ in LANES], [PITCH * x for _, x in LANES]),
    ("wmma", "nn"): (FRAGMENT, FRAGMENT),
    ("wmma", "nt"): (FRAGMENT, FRAGMENT),
}
"""Rung and layout -> the addresses of a load of A and of one of B."""


@pytest.mark.parametrize(("rung", "layout"), LINES)
def test_time_by_the_lines_that_the_l1_looks_up(rung, layout):
    """As the table of docs/simulator.md has it, and the rows: from as long to a fifth longer."""
    a, b = LINES[rung, layout]
    steps = SIDE**3 / 32 if rung == "naive" else 4 * SIDE**3 / 4096
    ms = steps * (models.lines(a) + models.lines(b)) / 132 / 1.98e6
    row = numbers_of.result(f"cuda/{rung}", "float16", layout, "4096")
    assert 0.99 <= float(row["ms_p50"]) / ms <= 1.25
    table = (ROOT / "docs/simulator.md").read_text()
    said = re.search(rf"^\| {rung}, {layout} \|.*?\| ([\d.]+) \|", table, re.M)
    assert float(said[1]) == pytest.approx(ms, rel=0.02)


@pytest.mark.parametrize(
    ("stride", "xor", "passes"), [(128, False, 8), (144, False, 1), (128, True, 1)]
)
def test_banks_of_a_64_by_64_half_tile(stride, xor, passes):
    rows = [stride * row + 16 * (row if xor else 0) for row in range(8)]
    assert models.wavefronts(rows) == passes


def test_the_padding_of_the_picture_is_the_kernel_s():
    assert constants.of_source("cuda_ref/rungs/wmma_grouped.cu")["PAD"] == 8
    ring = constants.of_source("cuda_ref/rungs/wgmma_specialized.cu")
    assert (ring["NUM_STAGES"], ring["THREADS"]) == (4, 384)


KERNELS = sorted(path for backend in ("cuda", "triton")
                 for path in (ROOT / "docs/pictures").glob(f"{backend}_*.svg"))  # fmt: skip


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_a_time_line_has_the_roles_of_the_source_and_its_store(path):
    """No producer is drawn where all warps copy, and no store under the next tile where the warps
    that multiply store C themselves."""
    backend, _, name = path.stem.partition("_")
    places = {"cuda": "cuda_ref/*/{}*.cu*", "triton": "triton_kernels/*/{}.py"}
    sources = sorted(ROOT.glob(places[backend].format(name)))
    source = "".join(source.read_text() for source in sources)
    lanes = set(re.findall(r">([a-z ]+?)(?: \d)?</text>", path.read_text()))
    assert "producer" not in lanes or re.search("producer", source, re.I)
    stored_under = re.search(
        r"tma_store|epilogue_(?:tma|fused|subtiles|chunks)|store_chunk", source
    )
    assert "store" not in lanes or stored_under
    assert "producer" not in lanes or {"consumer"} <= lanes


@pytest.mark.parametrize("name", ["cuda_wmma_grouped", "triton_grouped"])
def test_the_picture_of_an_order_counts_the_strips_that_it_saves(name):
    text = (ROOT / f"docs/pictures/{name}.svg").read_text()
    rows, groups = (int(each) for each in re.findall(r"= (\d+) strips", text))
    assert groups < rows
    if name == "triton_grouped":
        assert (rows, groups) == (37, 25)
        page = (ROOT / "docs/rungs/triton_grouped.md").read_text()
        assert "need 37 strips" in page
        assert "need 25" in page


def test_every_element_of_a_fragment_is_in_one_place():
    held = {models.accumulator(lane, r) for lane in range(32) for r in range(4)}
    assert held == {(row, column) for row in range(16) for column in range(8)}
    held = {models.wgmma_accumulator(thread, r) for thread in range(128) for r in range(128)}
    assert held == {(row, column) for row in range(64) for column in range(256)}


def test_the_accumulators_are_where_the_kernels_store_them():
    source = (ROOT / "cuda_ref/csrc/sm90/tile.cuh").read_text()
    assert "m + thread / 32 * 16 + thread % 32 / 4" in source
    assert "n + thread % 4 * 2" in source


def test_the_glossary_is_large_and_linked():
    text = (ROOT / "docs/glossary.md").read_text()
    terms = re.findall(r"^### (.+)$", text, re.M)
    assert len(terms) == len(set(terms)) >= 60
    links = {link for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts
             for link in re.findall(r"glossary\.md#([\w-]+)", page.read_text())}  # fmt: skip
    assert len(links) >= 10
