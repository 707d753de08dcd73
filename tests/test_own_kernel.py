"""A user's own file is a kernel like any rung: written, simulated, verified, benched, reported."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tcgemm import dispatch
from tcgemm.cli import app
from tcgemm.errors import OperandError, TcgemmError, UnknownNameError
from tcgemm.own import VARIABLE, register
from tcgemm.own.facts import facts_of
from tcgemm.problem import Problem
from tcgemm.tools.show_kernel import command as show_kernel

runner = CliRunner()
COMMAND = "import sys; from tcgemm.cli import main; sys.argv[0] = 'tcgemm'; main()"


@pytest.fixture(autouse=True)
def unregistered(monkeypatch, tmp_path):
    """What a test registers is gone after it."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    yield
    dispatch.BACKENDS.pop("own", None)
    dispatch.ladder.cache_clear()
    dispatch.load.cache_clear()


def tcgemm(*arguments):
    """In a process of its own, as a user runs it."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, env=environment
    )


def here(*arguments):
    """In this process, which has imported torch."""
    return runner.invoke(app, list(arguments))


def written(name, language):
    done = runner.invoke(app, ["new-kernel", name, "--language", language])
    assert done.exit_code == 0, done.output
    return Path(f"{name}{'.cu' if language == 'cuda' else '.py'}")


def stored(folder):
    with (Path(folder) / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.spread(2, "language")
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_a_template_runs_at_once_and_is_benched_and_reported_as_a_rung(language, tmp_path):
    path = written("brand_new", language)
    done = tcgemm("bench", "--kernel", str(path), "--shape", "33x40x17", "--dtype", "float16",
                  "--out", "results")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = stored("results")
    assert (row["backend"], row["kernel"], row["status"]) == ("own", "brand_new", "ok")
    assert float(row["error_ratio"]) <= 1
    done = here("report", "results")
    assert done.exit_code == 0, done.output
    assert "brand_new" in (tmp_path / "results" / "index.html").read_text()


@pytest.mark.spread(2, "language", at=1)
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_verify_takes_a_template(language):
    path = written("checked", language)
    done = here("verify", "--kernel", str(path), "--fuzz", "4", "--no-edges")
    assert done.exit_code == 0, done.output
    assert "own/checked" in done.stdout


def test_the_simulator_finds_nothing_in_the_cuda_template():
    path = written("simulated", "cuda")
    done = here("simulate", str(path), "--shape", "50x35x20", "--check")
    assert done.exit_code == 0, done.output
    assert "nothing found" in done.stdout


@pytest.mark.spread(2, "language", at=1)
@pytest.mark.parametrize(
    ("language", "right", "wrong"),
    [("cuda", "for (int i = 0; i < BLOCK; ++i) sum", "for (int i = 1; i < BLOCK; ++i) sum"),
     ("triton", "range(0, K, BLOCK_K)", "range(BLOCK_K, K, BLOCK_K)")],
)  # fmt: skip
def test_a_wrong_kernel_gets_wrong_and_no_time(language, right, wrong):
    path = written("off", language)
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    done = here("bench", "--kernel", str(path), "--shape", "32x32x64", "--dtype", "float16",
                "--out", "results")  # fmt: skip
    assert done.exit_code == 1
    (row,) = stored("results")
    assert row["status"] == "wrong"
    assert not row["ms_p50"]


def test_show_kernel_shows_what_nvcc_makes_of_a_file():
    path = written("shown", "cuda")
    done = here("show-kernel", str(path), "--dtype", "float16", "--json")
    if "nvcc" in str(done.exception):
        pytest.skip("needs nvcc")
    assert done.exit_code == 0, done.output
    assert '"own/shown"' in done.stdout
    assert '"spilled bytes": 0' in done.stdout


def test_a_kernel_is_shown_with_a_dtype_that_it_takes():
    cuda, triton = written("shown", "cuda"), written("other", "triton")
    for names, dtype in (
        ([str(cuda)], "bfloat16"),
        ([str(triton)], "float16"),  # its template takes no other
        (["cuda/wmma", str(triton)], "float16"),
        (["cuda/mma_float64"], "float64"),
        (["cuda/wmma", "triton/naive"], "bfloat16"),
        ([], "bfloat16"),
    ):
        rows = [dispatch.named(name) for name in register.names(names)]
        assert show_kernel.dtype_of(rows) == dtype


@pytest.mark.exhaustive  # Triton's compiler; tests/test_side_by_side.py has what is made of it
def test_show_kernel_shows_what_triton_makes_of_a_file(tmp_path):
    path = written("shown", "triton")
    done = tcgemm("show-kernel", str(path), "--dtype", "float16", "--json")
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)["kernels"]
    assert shown["counts"]["wgmma"] > 0
    assert shown["facts"]["registers"] > 30
    page = tmp_path / "page.html"
    done = tcgemm("show-kernel", str(path), "--dtype", "float16", "--side-by-side", str(page))
    assert done.returncode == 0, done.stderr
    assert "HGMMA" in page.read_text()


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [("    kernel[grid](", "    if a.sum() > 0:\n      kernel[grid](", "without memory"),
     ("    kernel[grid](", "    return\n    kernel[grid](", "launches no Triton kernel")],
)  # fmt: skip
@pytest.mark.exhaustive
def test_show_kernel_says_why_a_triton_file_is_not_shown(right, wrong, said):
    path = written("shown", "triton")
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    done = tcgemm("show-kernel", str(path), "--dtype", "float16")
    assert done.returncode != 0
    assert said in done.stderr.replace("\n", " ")


def problem(M, N, K, dtype="float16", **more):
    return Problem(M, N, K, dtype, dtype, (K, 1), (N, 1), (N, 1), device="cpu", **more)


def test_a_file_says_what_it_takes():
    Path("wide.cu").write_text(
        "// tcgemm: float16 -> float16, int8 -> int32\n// tcgemm: multiples of 16\n"
    )
    assert register.names(["wide.cu", "naive"]) == ["own/wide", "naive"]
    row = dispatch.named("own/wide")
    assert row.pairs == (("float16", "float16"), ("int8", "int32"))
    assert row.why_not(problem(32, 32, 32)) is None
    assert "N=33" in row.why_not(problem(32, 33, 32))
    assert "type pairs" in row.why_not(problem(32, 32, 32, "bfloat16"))
    assert row.why_not(problem(32, 32, 32, batch=2, batch_strides=(1, 1, 1)))
    Path("t.py").write_text("PAIRS = [('float64', 'float64')]\nMULTIPLE = 8\n")
    facts = facts_of(Path("t.py"))
    assert (facts.language, facts.pairs, facts.multiple) == ("Triton", (("float64", "float64"),), 8)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("a.cu", "// tcgemm: anything\n", "neither"),
     ("a.cu", "// tcgemm: float16 -> int32\n", "no type pair"),
     ("a.cu", "// tcgemm: multiples of 0\n", "1 or more"),
     ("a-b.cu", "", "name the file after the kernel"),
     ("a.py", "PAIRS = f()\n", "constant"),
     ("a.py", "def f(:\n", "line 1"),
     ("a.txt", "", "no .cu or .py file")],
)  # fmt: skip
def test_what_a_file_says_wrongly_is_named(name, text, said):
    Path(name).write_text(text)
    with pytest.raises(OperandError, match=said):
        facts_of(Path(name))


def test_two_files_of_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    for path in ("same.cu", "other/same.cu"):
        Path(path).write_text("")
    register.names(["same.cu"])
    assert register.names(["same.cu"]) == ["own/same"]
    with pytest.raises(OperandError, match="one name"):
        register.names(["other/same.cu"])


def test_new_kernel_refuses_what_it_cannot_write():
    written("mine", "cuda")
    for arguments, kind in ((["mine"], TcgemmError), (["no name"], OperandError),
                            (["x", "--language", "rust"], UnknownNameError)):  # fmt: skip
        assert isinstance(runner.invoke(app, ["new-kernel", *arguments]).exception, kind)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", b"PAIRS = 3", "PAIRS is a list of pairs"),
        ("a.py", b'PAIRS = [("float16",)]', "PAIRS is a list of pairs"),
        ("a.py", b'MULTIPLE = "x"', "name a number of 1 or more"),
        ("a.py", b"MULTIPLE = 1.5", "name a number of 1 or more"),
        ("a.py", b"x = 1\0", "null bytes"),
        ("a:b/a.cu", b"", "must not hold ':'"),
    ],
)  # fmt: skip
def test_a_file_that_says_nonsense_is_refused_in_a_sentence(name, text, said):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(text)
    with pytest.raises(OperandError, match=said):
        register.names([name])


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_byte_order_mark_line_ends_and_other_encodings_are_read(before, end):
    for name, lines in {
        "a.cu": [b"// tcgemm: int8 -> int32", b"// gr\xf6\xdfer", b"// tcgemm: multiples of 8"],
        "a.py": [b'PAIRS = [("int8", "int32")]', b"MULTIPLE = 8"],
    }.items():
        Path(name).write_bytes(before + end.join(lines) + end)
        found = facts_of(Path(name))
        assert (found.pairs, found.multiple) == ((("int8", "int32"),), 8)


def test_a_kernel_may_be_named_by_a_word_of_cpp():
    """A source in another encoding is compiled too."""
    path = written("template", "cuda")
    path.write_bytes(b"// gr\xf6\xdfer\r\n" + path.read_bytes().replace(b"\n", b"\r\n"))
    done = runner.invoke(app, ["simulate", str(path), "--shape", "5x6x7"])
    assert done.exit_code == 0, done.output


def test_what_a_compiler_says_in_other_encodings_is_shown():
    path = written("k" * 200, "cuda")  # a name that leaves the store's entry no room
    path.write_bytes(path.read_bytes() + b"int \xf6\xdf;\n")
    done = runner.invoke(app, ["simulate", str(path), "--shape", "5x6x7"])
    said = str(done.exception)
    assert "g++ cannot compile" in said
    assert "lacks the line" not in said  # it has its include


def test_a_python_file_without_run_says_so():
    Path("empty.py").write_text("")
    (name,) = register.names(["empty.py"])
    with pytest.raises(TcgemmError, match="defines no run"):
        dispatch.load(*name.split("/"))
