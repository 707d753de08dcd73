"""docs/documents.md names every claim of the three documents once, and what it says holds."""

from __future__ import annotations

import csv
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tcgemm import dispatch, gpus
from tcgemm.bench import cases
from tcgemm.tools.simulate.measure import measure

simulator = import_module("tcgemm.cuda_ref.simulator")
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "documents.md"
KERNELS = Path(__file__).parent / "documents"
IDS = {f"{letter}{n}" for letter, count in (("G", 29), ("R", 28), ("E", 20))
       for n in range(1, count + 1)}  # fmt: skip


def test_every_id_is_there_once():
    text = PAGE.read_text()
    counts = Counter(re.findall(r"^(?:\| |### )([GRE]\d+)(?: \||$)", text, re.M))
    assert set(counts) == IDS
    assert {name for name, count in counts.items() if count != 1} == set()


def test_every_test_that_is_named_exists():
    named = re.findall(r"\[`([\w.]+)(?:::(\w+))?`\]\(\.\./tests/([\w.]+)\)", PAGE.read_text())
    assert len(named) > 15
    for file, function, link in named:
        assert file == link
        text = (ROOT / "tests" / file).read_text()
        assert not function or f"def {function}(" in text, f"{file} has no {function}"


@pytest.mark.parametrize("name", ["G16", "E10"])
def test_open_questions_have_an_anchor_of_their_own(name):
    assert f"\n### {name}\n" in PAGE.read_text()


def test_every_id_shows_what_it_says():
    """By a link to a test, a row, a page or a source: a claim alone is not enough."""
    text = PAGE.read_text().partition("## Resources")[0]
    rows = re.findall(r"^\| ([GRE]\d+) \|(.*)$", text, re.M)
    parts = re.findall(r"^### ([GRE]\d+)$(.*?)(?=^##|\Z)", text, re.M | re.S)
    assert {name for name, _ in rows + parts} == IDS
    assert [name for name, said in rows + parts if "](" not in said] == []


def run(name, out=torch.float16, **options):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(16, 16, generator=generator).half()
    b = torch.randn(16, 16, generator=generator).half()
    c = torch.full((16, 16), float("nan"), dtype=out)
    return simulator.simulate(KERNELS / f"{name}.cu", a, b, c, **options), a, b, c


def test_g16_a_loop_of_every_lane_scales_each_element_once():
    report, a, b, c = run("per_lane_loop", torch.float32, check=True)
    assert report.findings == ()
    torch.testing.assert_close(c, 3 * (a.float() @ b.float()), rtol=1e-6, atol=1e-5)


def test_g23_a_suite_has_the_first_document_s_own_case():
    pairs = {
        (c.dtype_in, c.layout) for c in cases.build("jetson") if (c.M, c.N, c.K) == (10000,) * 3
    }
    assert {("int8", "nn"), ("int8", "nt")} <= pairs
    assert len({c.dtype_in + c.dtype_out + c.compute for c in cases.build("jetson")}) == 7


@pytest.mark.parametrize(("rung", "intensity"), [("naive", 0.5), ("tiled", 16), ("wmma", 8),
                                                 ("wmma_double_buffered", 32)])  # fmt: skip
def test_r7_flop_per_byte_of_the_first_rungs(rung, intensity):
    assert measure(rung, (64, 64, 64))["flop_per_byte"] == pytest.approx(intensity)


def test_r8_ridge_points_are_those_of_our_table():
    slugs = {"NVIDIA T4": "t4", "NVIDIA A100 80GB": "a100-80gb-sxm", "NVIDIA H100 SXM": "h100-sxm",
             "NVIDIA H200 SXM": "h200", "NVIDIA B200": "b200"}  # fmt: skip
    with (ROOT / "tcgemm/report/published_runtimes.csv").open(newline="") as file:
        published = {row["gpu"]: float(row["ridge_flop_per_byte"]) for row in csv.DictReader(file)}
    assert set(published) == set(slugs)
    assert published["NVIDIA B200"] == 312
    assert round(gpus.find("b200").ridge("float16")) == 292
    for name in set(slugs) - {"NVIDIA B200"}:
        assert gpus.find(slugs[name]).ridge("float16") == pytest.approx(published[name], rel=0.01)


def test_r16_load_matrix_sync_makes_four_loads_of_8_sectors():
    row = measure("wmma", (64, 64, 64))
    fragments = 2 * row["mma"]["wmma"] if "wmma" in row["mma"] else 2 * sum(row["mma"].values())
    assert row["load_requests"] == 4 * fragments
    assert row["sectors_per_load_request"] == 8


def test_r17_tensor_cores_do_not_spare_bank_conflicts():
    row = measure("wmma_double_buffered", (64, 64, 64))
    assert row["bank_conflicts"] > 0.6 * row["shared_wavefronts"]


def test_r18_wmma_has_five_shapes():
    shapes = set(dispatch.find("cuda", "wmma_types").mma_shapes)
    assert shapes == {"16x16x16", "32x8x16", "8x32x16", "16x16x8", "8x8x4"}


def test_r23_a_float16_sum_stops_at_2048():
    half, single = torch.zeros((), dtype=torch.float16), torch.zeros(())
    for _ in range(4096):
        half, single = half + 1, single + 1
    assert (half.item(), single.item()) == (2048, 4096)


def test_e8_wmma_wants_32_bytes():
    report, *_ = run("aligned_to_16", torch.float32, check=True)
    assert [finding.kind for finding in report.findings] == ["misaligned"]
    assert "16 bytes past a multiple of 32" in report.findings[0].message


def test_e10_64_warps_cannot_launch():
    with pytest.raises(simulator.SimulationError, match="CUDA error 9"):
        run("sixty_four_warps")
