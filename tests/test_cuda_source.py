"""The rungs' sources: torch-free, readable, and in the shape that every rung shares."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from tcgemm.cuda_ref.build import toolchain

from tcgemm import cuda_ref
from tcgemm.problem import Problem

NAMES = [row["name"] for row in cuda_ref.KERNELS]
SOURCES = sorted(toolchain.ROOT.rglob("*.cu"))


def text(name: str) -> str:
    return toolchain.source(name).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_its_source(name):
    assert toolchain.source(name).is_file()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_sources_reach_torch_and_the_hardware_by_name_only(path):
    source = path.read_text()
    assert not re.search(r"#\s*include\s*<(torch|ATen|c10|pybind11)", source)
    assert not re.search(r"\basm\b", source), "inline assembly belongs in a .cuh wrapper"
    assert "<<<" not in source, "kernels start through tcgemm::launch"


@pytest.mark.parametrize("name", NAMES)
def test_a_rung_is_short_enough_to_be_one_idea(name):
    """Of two rungs that have a loop in common, it is in a header."""
    least = 50 if '#include "mma_types/product.cuh"' in text(name) else 60
    assert least <= len(text(name).splitlines()) <= 250


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_what_the_rung_adds_and_misses(name):
    header = text(name).split("#include")[0]
    assert header.startswith("// C[M, N] = A[M, K] B[K, N]")
    for word in ("ADDS", "STILL MISSING", "grid ", "block "):
        assert f"// {word}" in header


@pytest.mark.parametrize(("name", "after"), list(pairwise(NAMES[:6])))
def test_the_header_names_the_next_rung(name, after):
    assert f"{after}.cu" in text(name).split("#include")[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_rung_ends_in_its_launcher(name):
    assert re.search(
        r"^int tcgemm_launch\(const tcgemm::Gemm& \w+, cudaStream_t stream\)", text(name), re.M
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_longer_than_100(name):
    assert max(map(len, text(name).splitlines())) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_the_constants_of_the_source(name):
    row = next(row for row in cuda_ref.KERNELS if row["name"] == name)
    dtype = "int8" if name == "wgmma_types" else "float16"
    plan = row["plan"](Problem(8192, 8192, 8192, dtype, dtype, (8192, 1), (8192, 1), (8192, 1)))
    assert plan
    written = re.findall(r"^constexpr int (\w+) = (\d+);", text(name), re.M)
    # Whose tile depends on the type or is chosen (test_tiles, test_wgmma_types, test_cuda_plans),
    # or whose plan has more (test_small, test_thin, test_gemv_types).
    chosen = (
        "wgmma_types",
        "mma_types",
        "wgmma_persistent",
        "small",
        "thin",
        "gemv_types",
        "mma_odd",
    )
    chosen += (*cuda_ref.tunings(),)
    if name not in chosen:
        shared = {"BLOCK_M", "GROUP_M"} & {*plan}
        assert {(key, str(plan[key])) for key in shared} <= {*written}
    if name not in ("wmma_types", *chosen):
        assert {(key, str(value)) for key, value in plan.items()} <= {*written}


def test_source_files_follow_includes_once():
    files = [path.name for path in toolchain.source_files(toolchain.source("wmma_any"))]
    assert files[0] == "wmma_any.cu"
    assert {"gemm.cuh", "cp_async.cuh", "order.cuh", "fragment.cuh"} <= set(files)
    assert len(files) == len(set(files))
    assert all(isinstance(path, Path) for path in toolchain.source_files(toolchain.source("naive")))


def test_a_header_that_is_saved_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    csrc = tmp_path / "csrc"
    csrc.mkdir()
    rung, header, late = tmp_path / "rung.cu", csrc / "header.cuh", csrc / "late.cuh"
    rung.write_text('#include "header.cuh"\n')
    header.write_text("int before;\n")
    late.write_text("int after;\n")
    read = toolchain.text_of

    def saved_behind(path):
        text = read(path)
        if path == header and "before" in text:
            header.write_text('#include "late.cuh"\n')
        return text

    monkeypatch.setattr(toolchain, "text_of", saved_behind)
    assert toolchain.source_files(rung, tmp_path) == [rung, header]
    assert toolchain.source_files(rung, tmp_path) == [rung, header, late]
