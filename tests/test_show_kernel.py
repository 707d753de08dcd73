"""``tcgemm show-kernel``: the right instance, the right counts, and errors that say what to do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import records
from typer.testing import CliRunner

from tcgemm import dispatch
from tcgemm.choosing import plans
from tcgemm.cli import app
from tcgemm.request import board_of, problem_of

cuda = import_module("tcgemm.cuda_ref")
inspection = import_module("tcgemm.cuda_ref.build.inspection")
toolchain = import_module("tcgemm.cuda_ref.build.toolchain")
triton = import_module("tcgemm.triton_kernels")
compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
source = import_module("tcgemm.triton_kernels.inspection.source")


def run(*arguments):
    return CliRunner().invoke(app, ["show-kernel", *arguments, "--gpu", "h200"])


def problem(shape="4096x4096x4096", dtype="bfloat16", layout="nn", out=None, bias=False):
    board = board_of("h200")
    return problem_of(shape, dtype, out, layout, None, 1.0, 0.0, bias, "", 1, board)


FOUND = {
    "target": "sm_90a",
    "instances": 2,
    "instances built": 16,
    "registers": 168,
    "spilled bytes": 8,
    "static shared bytes": 64,
    "serialized": True,
    "seconds": 1.5,
    "lines": 100,
    "lines with what is shared": 1234,
    "counts": {"HGMMA": 3, "QGMMA": 1, "UTMALDG": 2, "LDL": 4, "STL": 5, "IADD3": 85},
    "texts": {"ptx": "the ptx", "sass": "the sass"},
}


class Asked(list):
    """What was asked for; ``plans``: with which plan."""


@pytest.fixture
def injected(monkeypatch):
    def inspect(name, asked_for, texts=False, plan=None):
        asked.plans.append(plan)
        asked.append((name, asked_for, texts))
        return {**FOUND, "texts": FOUND["texts"] if texts else {}}

    asked = Asked()
    asked.plans = []
    monkeypatch.setattr(cuda, "inspect", inspect)
    monkeypatch.setattr(triton, "inspect", inspect)
    return asked


def test_counts_are_grouped_and_summed(injected):
    (shown,) = json.loads(run("cuda/wgmma_persistent", "--json").stdout)["kernels"]
    counts = {name: count for name, count in shown["counts"].items() if count}
    assert counts == {"wgmma": 4, "TMA loads": 2, "local memory": 9}
    assert shown["instructions"] == 100
    assert shown["facts"]["bytes of stages"] == 4 * (128 + 256) * 64 * 2
    assert shown["facts"]["shared bytes"] is None


def test_two_rungs_stand_side_by_side(injected):
    output = run("cuda/wgmma_persistent", "--compare", "triton/descriptor").stdout
    for text in ("cuda/wgmma_persistent", "triton/descriptor", "1,234", "168", "yes"):
        assert text in output
    assert "the sum of 2 instances of 16" in output
    assert [name for name, *_ in injected] == ["wgmma_persistent", "descriptor"]


def test_the_problem_is_the_one_that_was_asked_for(injected):
    result = run(
        "triton/fused", "--shape", "64x96x32", "--dtype", "float32", "--layout", "tn",
        "--compute", "tf32",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    ((_, asked, texts),) = injected
    assert (asked.M, asked.N, asked.K, asked.layout) == (64, 96, 32, "tn")
    assert (asked.dtype_in, asked.compute, asked.capability) == ("float32", "tf32", (9, 0))
    assert not texts


def test_the_plan_is_the_one_that_runs(injected, monkeypatch):
    """Where no table was tuned for a shape a model takes it (choosing/plans.py)."""
    taken = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64}
    monkeypatch.setattr(
        plans, "of_named", lambda problem, row, *rest: replace(row, plan=lambda problem: taken)
    )
    run("triton/split_k", "--shape", "265x224x2912", "--dtype", "float16")
    assert injected.plans == [taken]


def test_a_stage_is_printed_as_text(injected):
    output = run("cuda/tiled", "--stage", "sass", "--compare", "triton/naive").stdout
    assert output.count("the sass") == 2
    assert "the ptx" not in output
    assert "cuda/tiled: sass" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["descriptor"], "choose from triton/descriptor"),
        (["nothing"], "choose from triton/naive"),
        (["triton/x"], "unknown"),
        (["x/naive"], "unknown backend 'x'"),
        (["cublas/cublas"], "choose a kernel of triton or cuda"),
        (["cuda/tiled", "--stage", "ttgir"], "cuda/tiled has no ttgir: its stages are ptx, sass"),
        (["cuda/tiled", "--stage", "llir"], "choose from ttgir, ptx, sass"),
        (["cuda/wmma", "--shape", "100x100x100"], "M=100 is no multiple of 16"),
        (["triton/naive", "--compare", "cuda/tiled", "--dtype", "int8"], "type pairs"),
    ],
)
def test_errors_say_what_there_is(injected, arguments, words):
    result = run(*arguments)
    assert result.exit_code != 0
    assert words in str(result.exception)
    assert not injected, "nothing is compiled before all is known to be right"


def test_an_older_gpu_refuses_what_it_lacks():
    result = CliRunner().invoke(app, ["show-kernel", "cuda/wgmma_tma", "--gpu", "a100"])
    assert "needs compute capability 9.0" in str(result.exception)


def test_a_missing_compiler_is_named_with_its_cure(monkeypatch):
    monkeypatch.setattr(inspection, "find_nvcc", lambda: None)
    result = run("cuda/tiled")
    assert isinstance(result.exception, RuntimeError)
    assert "pip install 'nvidia-cuda-nvcc==" in str(result.exception)


@pytest.mark.parametrize("backend", [b for b in dispatch.BACKENDS if b != "cublas"])
def test_each_rung_has_lines_and_they_are_fewer_than_its_files(backend):
    lines = inspection.source_lines if backend == "cuda" else source.source_lines
    for row in dispatch.ladder(backend):
        own, whole = lines(row.name)
        assert 10 < own <= whole


def test_what_is_repacked_is_compiled_as_it_is_multiplied():
    """B of float32 stored by rows is copied first: TMA loads the copy, whose K is contiguous."""
    plan = {
        "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "NUM_STAGES": 3, "CONSUMERS": 1,
        "SUBTILES": 1, "BUFFERS": 1, "REPACK": 1,
    }  # fmt: skip
    types = {"dtype_in": "float32", "dtype_out": "float32", "compute": "tf32"}
    request = compile_only.Request(
        "warp_specialized", plan, layout="nn", M=256, N=256, K=250, **types
    )
    (built,) = records.triton([request])
    assert built.counts["HGMMA"] > 0
    assert built.counts["LDG"] == 0


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_the_assembler_is_the_one_that_triton_takes(arch, monkeypatch):
    """Which target takes the newer of its two is another matter in Triton 3.7 than in 3.9."""
    compiler = import_module("triton.backends.nvidia.compiler")
    monkeypatch.setattr(compiler, "get_ptxas", lambda of: f"the assembler of {of}")
    built = SimpleNamespace(metadata=SimpleNamespace(target=SimpleNamespace(arch=arch)))
    assert compile_only._ptxas(built) == f"the assembler of {arch}"


def test_lines_of_python_are_code_alone():
    text = '"""Doc."""\n\n# words\ndef f():\n    """More\n    doc."""\n'
    text += "    return (1,\n            2)  # end\n"
    assert source._lines_of_code(text, source.ast.parse(text)) == 3


def persistent(out: str, a: int, b: int, extra: str) -> str:
    """The mangled name of an instance of wgmma_persistent, as nvcc 13.0 writes it."""
    types = {"bfloat16": "S1_", "float32": "f"}
    return (
        "_ZN52_GLOBAL__N__039f507f_19_wgmma_persistent_cu_2482ff7316wgmma_persistentI"
        f"13__nv_bfloat16{types[out]}LN6tcgemm4sm905MajorE{a}ELS4_{b}E"
        f"NS_{len(extra)}{extra}EEEv14CUtensorMap_st"
    )


needs_names = pytest.mark.skipif(
    inspection.shutil.which("c++filt") is None, reason="needs c++filt to read symbols"
)


def picked(name, symbols, asked):
    kernels = tuple(inspection.KernelReport(symbol, 1, 0, 0, {}) for symbol in symbols)
    plan = dispatch.find("cuda", name).plan(asked)
    return [kernel.symbol for kernel in inspection.instances(name, kernels, asked, plan)]


@needs_names
@pytest.mark.parametrize(
    ("asked", "flags"),  # K_MAJOR, COLUMNS, ODD
    [
        (problem("1x4096x4096", layout="nt"), (1, 1, 0)),
        (problem("4x4096x4096", layout="nt"), (1, 0, 0)),
        (problem("1x256x8192", layout="nt"), (1, 0, 0)),  # clusters divide K
        (problem("1x4096x4096"), (0, 0, 0)),
        (problem("4096x1x4096"), (1, 1, 0)),  # A is the K-major operand
        (problem("4096x4x4096", layout="tn"), (0, 0, 0)),
        (problem("4096x1x4097"), (1, 0, 1)),
        (problem("1x4097x4096"), (0, 0, 1)),
    ],
)
def test_the_instance_of_gemv_is_that_of_the_plan(asked, flags):
    names = {
        given: "_ZN39_GLOBAL__N__4baf1cdf_7_gemv_cu_2482ff734gemvI13__nv_bfloat16S1_"
        + "".join(f"Lb{flag}E" for flag in given)
        + "EEvi"
        for given in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 0, 1))
    }
    assert picked("gemv", list(names.values()), asked) == [names[flags]]


@needs_names
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_the_instance_is_that_of_layout_and_output(layout, out):
    symbols = [
        persistent(to, a, b, "Plain")
        for to in ("bfloat16", "float32")
        for a in (0, 1)
        for b in (0, 1)
    ]
    a, b = int(layout[0] == "t"), int(layout[1] == "n")  # Major::K is 0
    wanted = persistent(out, a, b, "Plain")
    assert picked("wgmma_persistent", symbols, problem(out=out, layout=layout)) == [wanted]


GROUPED = (
    "_ZN48_GLOBAL__N__777a8fc4_15_wmma_grouped_cu_2482ff7319wmma_grouped_kernelI"
    "{}EEEvN6tcgemm4GemmEllii"
)


@needs_names
@pytest.mark.parametrize(
    ("dtype", "out", "layout", "wanted"),
    [
        ("bfloat16", "bfloat16", "nn", "13__nv_bfloat16S1_Lb0ELb0"),
        ("bfloat16", "float32", "nt", "13__nv_bfloat16fLb0ELb1"),
        ("float16", "float16", "tn", "6__halfS1_Lb1ELb0"),
        ("float16", "float32", "tt", "6__halffLb1ELb1"),
    ],
)
def test_the_instance_is_that_of_the_types(dtype, out, layout, wanted):
    symbols = [
        GROUPED.format(f"{types}Lb{a}ELb{b}")
        for types in ("13__nv_bfloat16S1_", "13__nv_bfloat16f", "6__halfS1_", "6__halff")
        for a in (0, 1)
        for b in (0, 1)
    ]
    asked = problem(dtype=dtype, out=out, layout=layout)
    assert picked("wmma_grouped", symbols, asked) == [GROUPED.format(wanted)]


@pytest.mark.parametrize("name", ["wmma_any", "wmma_types", "wgmma_persistent", "wgmma_types"])
def test_a_rung_of_many_types_is_built_by_case_wherever_its_source_says_so(name):
    assert "TCGEMM_IN" in toolchain.built_by_case(toolchain.source(name))


@needs_names
def test_other_kernels_of_the_file_are_left_out():
    helper = "_ZN6tcgemm4packEv"
    own = GROUPED.format("13__nv_bfloat16S1_Lb0ELb0")
    assert picked("wmma_grouped", [helper, own], problem()) == [own]
    assert picked("wmma_grouped", [helper], problem()) == [helper]


def test_without_a_demangler_all_instances_are_summed(monkeypatch):
    monkeypatch.setattr(inspection.shutil, "which", lambda name: None)
    symbols = [persistent("bfloat16", a, 0, "Plain") for a in (0, 1)]
    assert picked("wgmma_persistent", symbols, problem()) == symbols


def test_template_arguments_are_split_at_their_own_commas():
    assert inspection._split("bool, X<int, 3>, (a::B)1>(Y<z>, int)") == [
        "bool", "X<int, 3>", "(a::B)1",
    ]  # fmt: skip


def test_texts_are_cut_by_function():
    sass = "head\n\t\tFunction : one\n\tA ;\n\t\tFunction : two\n\tB ;\n"
    assert inspection._functions(sass) == {"one": "\tA ;\n", "two": "\tB ;\n"}
    ptx = ".version 9.0\n.entry one(\n)\n{\nret;\n}\n\t// end\n.visible .entry two(\n)\n{\n}\n"
    assert inspection._entries(ptx) == {
        "one": ".entry one(\n)\n{\nret;\n}\n",
        "two": ".visible .entry two(\n)\n{\n}\n",
    }


def test_reads_of_nothing_are_no_loads():
    line = "        /*0010*/              @!PT LDS RZ, [RZ] ;          /* 0x00 */"
    assert not compile_only.opcodes(line)
    assert compile_only.opcodes(line.replace("@!PT", "@!P0")) == {"LDS": 1}


@pytest.mark.exhaustive  # test_show_kernel.py shows stages of both compilers besides
@pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
def test_nvcc_shows_one_instance_of_many():
    found = json.loads(run("cuda/wmma_grouped", "--stage", "sass", "--json").stdout)
    (shown,) = found["kernels"]
    assert shown["facts"]["instances"] == 1
    assert shown["instances built"] == 16
    assert shown["counts"]["mma"] == shown["text"].count(" HMMA.") > 0
    assert shown["counts"]["cp.async"] > 0
    assert shown["counts"]["wgmma"] == shown["counts"]["TMA loads"] == 0


def test_triton_shows_its_stages():
    output = run("triton/descriptor", "--stage", "ttgir").stdout
    assert "ttng.warp_group_dot" in output


@pytest.mark.parametrize("columns", [60, 80])
def test_two_names_beside_each_other_stay_whole(injected, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    output = run("triton/warp_specialized", "--compare", "cuda/wmma_double_buffered").output
    assert {"warp_specialized", "wmma_double_buffered"} <= set(re.findall(r"\w+", output))
    assert "…" not in output
