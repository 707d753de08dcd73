"""``tcgemm simulate`` of one's own kernel: what is wrong is said, in words, with the cure."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tcgemm import accuracy, waiting
from tcgemm.cli import app
from tcgemm.errors import ToolchainError, UnknownNameError

ROOT = Path(__file__).parent.parent
FAULTS = ROOT / "tests/faults"


def simulate(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def example():
    """The kernel of docs/simulator.md."""
    page = (ROOT / "docs/simulator.md").read_text()
    (code,) = re.findall(r"```cpp\n(// C\[M, N\] = .*?)```", page, re.DOTALL)
    return code


def test_the_example_of_the_docs_runs_and_is_right(example, tmp_path):
    source = tmp_path / "my_gemm.cu"
    source.write_text(example)
    result = simulate(source, "--shape", "100x70x50", "--check")
    assert result.exit_code == 0, result.output
    assert "Checked: nothing found." in result.stdout
    assert "runs here as a program with your rights" in result.stderr


def test_the_example_without_its_second_barrier_is_a_race(example, tmp_path):
    source = tmp_path / "my_gemm.cu"
    before, barrier, after = example.rpartition("    __syncthreads();")
    source.write_text(before + "//" + barrier + after)
    result = simulate(source, "--shape", "32x32x64", "--check")
    assert result.exit_code == 1
    assert "my_gemm: race: " in result.stdout
    assert len(set(re.findall(r"my_gemm\.cu:\d+", result.stdout))) >= 2


def test_a_wrong_kernel_is_an_exit_code_and_a_sentence(example, tmp_path):
    """Without --check too."""
    source = tmp_path / "transposed.cu"
    assert "__float2half(sum)" in example
    source.write_text(example.replace("__float2half(sum)", "__float2half(sum + (row == 3) * 2.0f)"))
    result = simulate(source, "--shape", "16x16x16")
    assert result.exit_code == 1
    found = re.search(
        r"transposed\.cu is wrong: 16 of 256 elements of C are wrong; the worst is "
        r"C\[3, \d+\] = (\S+) where (\S+) is right, ([\d.e+]+) times its bound away",
        result.stdout,
    )
    assert found, result.stdout
    assert float(found[1]) - float(found[2]) == pytest.approx(2, abs=0.01)
    assert float(found[3]) > 1
    rows = json.loads(simulate(source, "--shape", "16x16x16", "--json").stdout)
    assert rows[0]["error_ratio"] == pytest.approx(float(found[3]), rel=0.01)
    assert rows[0]["wrong"] == found[0].partition("is wrong: ")[2]


def test_a_file_that_is_not_there_is_not_said_to_run(tmp_path):
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "none.cu")])
    assert isinstance(result.exception, UnknownNameError)
    assert "no file" in str(result.exception)
    assert "is compiled and runs here" not in result.output


def test_elements_that_nobody_wrote_are_no_inf_without_words():
    arguments = (FAULTS / "uncomputed_tiles.cu", "--shape", "128x320x64")
    result = simulate(*arguments)
    assert result.exit_code == 1
    assert "4096 of 40960 elements of C are wrong; the worst is C[64, 256] = nan" in result.stdout
    assert "never written" in result.stdout
    assert not re.search(r"\binf\b", result.stdout)
    rows = json.loads(simulate(*arguments, "--json").stdout)  # Infinity is no JSON
    assert rows[0]["error_ratio"] is None


def test_a_hang_ends_with_a_sentence_after_the_time_allowed():
    began = time.monotonic()
    result = simulate(FAULTS / "hangs.cu", "--shape", "32x32x32", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "did not end within 0.5 s and was stopped at hangs.cu:" in result.stdout
    assert time.monotonic() - began < 60


LAUNCHER = """
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(one, dim3(1), dim3(32), 0, stream, gemm);
}
"""
KERNEL = '#include "host/gemm.cuh"\n__global__ void one(tcgemm::Gemm gemm) {}\n'


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            KERNEL + "// one<<<1, 32>>>(gemm);\n"
            "int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {\n"
            "  one<<<1, 32, 0, stream>>>(gemm);\n  return 0;\n}\n",
            ["own.cu:5 launches with <<<...>>>", "write tcgemm::launch(kernel, grid, block"],
        ),
        (
            "#include <cuda/barrier>\n" + KERNEL + LAUNCHER,
            ["own.cu includes CUDA's cuda/barrier", "leave the include out", "cuda_fp16.h"],
        ),
        (
            "#include <cublas_v2.h>\n" + KERNEL + LAUNCHER,
            ["own.cu includes CUDA's cublas_v2.h", "#ifndef TCGEMM_SIMULATOR"],
        ),
        (KERNEL, ["own.cu has no launcher", "int tcgemm_launch(const tcgemm::Gemm& gemm"]),
        (
            KERNEL + "int tcgemm_launch(tcgemm::Gemm* gemm) { return 0; }\n",
            ["own.cu defines a tcgemm_launch of other parameters"],
        ),
        (
            "#include <cuda_runtime.h>\n" + KERNEL.partition("\n")[2] + LAUNCHER,
            ['own.cu uses tcgemm:: and lacks the line #include "host/gemm.cuh"'],
        ),
        (
            KERNEL.replace("{}", '{ asm volatile("mov.u32 %0, %%laneid;" : "=r"(gemm.mma_m)); }')
            + LAUNCHER,
            ["own.cu:2 has inline PTX", "under #ifndef TCGEMM_SIMULATOR"],
        ),
        (
            KERNEL.replace("{}", "{ __nanosleep(20); }") + LAUNCHER,
            ["own.cu uses CUDA's __nanosleep", "under #ifndef TCGEMM_SIMULATOR"],
        ),
        (KERNEL.replace("{}", "{ throw 1; }") + LAUNCHER, ["own.cu throws or catches"]),
    ],
    ids=[
        "chevrons",
        "cuda header",
        "cublas",
        "no launcher",
        "other launcher",
        "no gemm.cuh",
        "ptx",
        "no such name",
        "exceptions",
    ],
)
def test_what_the_compiler_refuses_comes_with_its_cure(tmp_path, code, words):
    source = tmp_path / "own.cu"
    source.write_text(code)
    result = simulate(source, "--shape", "8x8x8")
    assert isinstance(result.exception, ToolchainError)
    for word in words:
        assert word in str(result.exception)


def test_another_mistake_keeps_the_compilers_words(tmp_path):
    source = tmp_path / "own.cu"
    source.write_text(KERNEL.replace("{}", "{ nonsense; }") + LAUNCHER)
    result = simulate(source, "--shape", "8x8x8")
    assert str(result.exception).startswith("g++ cannot compile own.cu")
    assert "nonsense" in str(result.exception)


def test_the_worst_of_integers_is_told_as_it_wraps():
    a = torch.full((1, 2), 127, dtype=torch.int8)
    b = torch.full((2, 1), 127, dtype=torch.int8)
    c = torch.tensor([[-1]], dtype=torch.int32)
    words = "1 of 1 elements of C are wrong; the worst is C[0, 0] = -1 where 32258 is right"
    assert accuracy.what_is_wrong(a, b, c).startswith(words)
    assert accuracy.what_is_wrong(a, b, c.fill_(32258)) == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_what_takes_long_shows_that_it_goes_on(monkeypatch, terminal):
    monkeypatch.setattr(waiting, "FIRST_S", 0.05)
    monkeypatch.setattr(waiting, "EVERY_S", 0.1)
    file = io.StringIO()
    file.isatty = lambda: terminal
    with waiting.Waiting("counting", file=file) as wait:
        time.sleep(0.4)
        wait.update("adding")
        time.sleep(0.6)
    text = file.getvalue()
    assert "counting, 0 s" in text
    assert terminal or "adding, " in text


def test_what_is_quick_shows_nothing():
    file = io.StringIO()
    with waiting.Waiting("counting", file=file):
        pass
    assert file.getvalue() == ""


def test_the_table_says_how_many_blocks_a_cluster_has():
    alone, cluster = (simulate(name, "--shape", "64x64x64") for name in ("naive", "wgmma_cluster"))
    assert re.search(r"blocks of a cluster\s+│\s+2 │", cluster.stdout)
    assert "cluster" not in alone.stdout
