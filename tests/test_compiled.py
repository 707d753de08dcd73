"""``tcgemm show-kernel --all``, its file, and what the report makes of it."""

from __future__ import annotations

import csv
import json
from importlib import import_module

import pytest
from synthetic_results import write
from test_show_kernel import FOUND, problem
from typer.testing import CliRunner

from tcgemm import dispatch
from tcgemm.bench import store
from tcgemm.cli import app
from tcgemm.errors import OperandError, ResultsError, ToolchainError
from tcgemm.report.compiled import COUNTED, SHARES, language_rows, read_compiled, shared
from tcgemm.report.figures import draw_ladder
from tcgemm.report.folder import load
from tcgemm.report.sections import sections
from tcgemm.tools.show_kernel.compiled import COLUMNS, compile_all, fitting, write_csv

cuda = import_module("tcgemm.cuda_ref")
triton = import_module("tcgemm.triton_kernels")
SOURCES = {"triton": triton, "cuda": cuda}


@pytest.fixture
def injected(monkeypatch):
    """Compilers that answer at once; lines of code as many as the rung's place."""

    def inspect_of(backend):
        names = [row.name for row in dispatch.ladder(backend)]

        def inspect(name, asked_for, texts=False, plan=None):
            return {**FOUND, "compiler": f"{backend} 1.0", "lines": 10 * (1 + names.index(name))}

        return inspect

    for backend, module in SOURCES.items():
        monkeypatch.setattr(module, "inspect", inspect_of(backend))


def run(*arguments):
    return CliRunner().invoke(app, ["show-kernel", *arguments])


def test_every_rung_with_source_has_its_row(injected, tmp_path):
    path = tmp_path / "deep" / "compiled.csv"
    result = run("--all", "--gpu", "h200", "--csv", str(path))
    assert result.exit_code == 0, result.output
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["backend"], r["kernel"]) for r in rows] == [
        (backend, row.name) for backend in SOURCES for row in dispatch.ladder(backend)
    ]
    assert tuple(rows[0]) == COLUMNS
    by_name = {f"{r['backend']}/{r['kernel']}": r for r in rows}
    first = by_name["triton/naive"]
    assert (first["status"], first["registers"], first["wgmma"]) == ("ok", "168", "4")
    assert (first["gpu"], first["compiler"]) == ("NVIDIA H200", "triton 1.0")
    assert first["plan"].startswith("BLOCK_M=")


def test_a_refusal_is_a_row_with_its_sentence(injected):
    rows = {row["kernel"]: row for row in compile_all(problem(), "NVIDIA H200")}
    assert rows["skinny"]["status"] == "refused"  # of CUDA, which comes last
    assert "4096" in rows["skinny"]["reason"]


def test_a_compiler_that_fails_ends_its_own_row_only(injected, monkeypatch):
    def broken(name, asked_for, texts=False, plan=None):
        raise RuntimeError("nvcc was\nnot found")

    monkeypatch.setattr(cuda, "inspect", broken)
    rows = list(compile_all(problem(), "NVIDIA H200"))
    failed = [row for row in rows if row["status"] == "failed"]
    assert failed
    assert {row["backend"] for row in failed} == {"cuda"}
    assert failed[0]["reason"].endswith("nvcc was not found")
    of_triton = {row["kernel"]: row["status"] for row in rows if row["backend"] == "triton"}
    assert of_triton.pop("short_k") == "refused"  # K is longer
    assert set(of_triton.values()) == {"ok"}


def test_a_rung_of_other_types_is_compiled_for_its_own():
    row = next(r for r in dispatch.ladder("cuda") if ("bfloat16", "bfloat16") not in r.pairs
               and "int8" in str(r.pairs))  # fmt: skip
    fitted = fitting(row, problem())
    assert (fitted.dtype_in, fitted.dtype_out) == row.pairs[0][:2]
    assert fitted.layout == "nt"
    assert row.takes_types(fitted.dtype_in, fitted.dtype_out, fitted.compute)
    assert fitting(dispatch.find("triton", "naive"), problem()) == problem()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--all", "triton/naive"),
        ("--all", "--stage", "ptx"),
        ("--all", "--compare", "cuda/wmma"),
        ("triton/naive", "--csv", "x.csv"),
    ],
)
def test_one_rung_or_all_of_them(arguments):
    assert isinstance(run(*arguments).exception, OperandError)


def test_json_of_all(injected):
    result = run("--all", "--gpu", "a100", "--json", "--dtype", "float16", "--layout", "nt")
    rows = json.loads(result.stdout)
    assert rows[0]["layout"] == "nt"
    assert rows[0]["dtype_in"] == "float16"
    assert any("9.0" in row["reason"] for row in rows if row["status"] == "refused")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="--csv names another place"):
        write_csv(tmp_path / "file" / "compiled.csv", [])


@pytest.fixture
def folder(injected, tmp_path):
    path = write(tmp_path / "nvidia-h200", shapes={"squares": [(4096, 4096, 4096)]})
    write_csv(path / "compiled.csv", list(compile_all(problem(), "NVIDIA H200")))
    return path


def section(path, slug):
    return next(each for each in sections(load(path)) if each.slug == slug)


def test_the_report_puts_the_rate_beside_what_was_compiled(folder):
    made = section(folder, "compiled")
    assert "triton 1.0 and cuda 1.0" in made.guide
    rows = {(row[0], row[1]): dict(zip(made.header, row, strict=True)) for row in made.rows}
    assert ("CUDA", "skinny") not in rows, "it was refused"
    row = rows["Triton", "descriptor"]
    table = load(folder).table
    of = table[table["kernel"].eq("descriptor") & table["dtype_in"].eq("bfloat16")]
    ratio = float(of[of["layout"].eq("nn")]["ratio_p50"].iloc[0])
    assert row["of cuBLAS"] == f"{ratio:.2f}"
    assert (row["wgmma"], row["TMA"], row["registers"]) == ("4", "2", "168")
    assert row["product"] == "bfloat16 nn 4096³"
    special = {(row[0], row[1]): row for row in section(folder, "specialists").rows}
    of_cublas = special["CUDA", "wgmma_types"][made.header.index("of cuBLAS")]
    assert of_cublas == "–", "no int8 was timed"


def test_the_ladder_and_the_specialists_are_two_lists(folder):
    of_ladder, special = (
        {(row[0], row[1]) for row in section(folder, slug).rows}
        for slug in ("compiled", "specialists")
    )
    assert {("Triton", "naive"), ("CUDA", "wgmma_epilogue")} <= of_ladder
    assert {("Triton", "split_k"), ("CUDA", "wgmma_types")} <= special
    assert not of_ladder & special
    table = load(folder).plain
    assert "cuda, specialists" in draw_ladder([("", table)]).svg
    table["kind"] = "ladder"
    assert "cuda, specialists" not in draw_ladder([("", table)]).svg


def test_a_file_without_kinds_is_all_ladder(folder):
    lines = (folder / "compiled.csv").read_text().splitlines()
    assert lines[0].endswith(",kind")
    text = "\n".join(line.rpartition(",")[0] for line in lines)
    (folder / "compiled.csv").write_text(text + "\n")
    assert ("CUDA", "wgmma_types") in {(row[0], row[1]) for row in section(folder, "compiled").rows}
    assert "specialists" not in {each.slug for each in sections(load(folder))}


def test_the_first_result_is_the_longest_first_call_of_any_run(folder):
    rows = store.read(folder)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, store.COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            longer = row["kernel"] == "descriptor"
            writer.writerow({**row, "compile_s": 7.25 if longer else 0.0001})
            writer.writerow({**row, "compile_s": 0.0001})
    made = section(folder, "compiled")
    first = {(row[0], row[1]): row[-1] for row in made.rows}
    assert first["Triton", "descriptor"] == "7.2"
    assert first["Triton", "naive"] == "built before"
    of_shapes = {(row[0], row[1]): row[-1] for row in section(folder, "specialists").rows}
    assert of_shapes["Triton", "skinny"] == "–", "it was not timed"


@pytest.mark.parametrize(("first", "said"), [(0.7, "built before"), (0.8, "0.8")])
def test_a_first_call_that_took_half_of_compiling_compiled_nothing(folder, first, said):
    """The compiler took 1.5 s for compiled.csv."""
    text = (folder / "results.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, store.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "compile_s": first} for row in rows)
    made = section(folder, "compiled")
    assert {row[-1] for row in made.rows if row[1] == "descriptor"} == {said}


def test_each_share_of_cublas_has_the_shortest_rung_that_reaches_it(folder):
    header, rows = language_rows(load(folder).compiled)
    assert [row[0] for row in rows] == [f"{share:.2f}" for share in SHARES]
    half = dict(zip(header[:4], rows[1][:4], strict=True))
    assert half["Triton: rung"] == "grouped", "naive reaches 0.45, and grouped has the fewest lines"
    assert rows[-1][1:] == [*("none", "–", "–", "–", "–"), *rows[-1][6:]]
    assert "tcgemm show-kernel" not in section(folder, "languages").guide


def test_a_folder_without_the_file_has_no_such_tables(tmp_path):
    path = write(tmp_path / "nvidia-h200", shapes={"squares": [(512, 512, 512)]})
    assert {each.slug for each in sections(load(path))} & {"compiled", "languages"} == set()


@pytest.mark.parametrize("text", ["backend,kernel\n", "", "\0"])
def test_a_file_that_is_something_else_is_refused(tmp_path, text):
    (tmp_path / "compiled.csv").write_text(text)
    with pytest.raises(ResultsError, match="tcgemm show-kernel --all --csv"):
        read_compiled(tmp_path)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"shared bytes": "229408"}, "224.0"),
        ({"shared bytes": "", "static shared bytes": "16384"}, "16.0"),
        ({"static shared bytes": "64", "bytes of stages": "196608"}, "192.1"),
        ({"static shared bytes": "64"}, "–"),
    ],
)
def test_shared_memory_is_all_that_is_known_of_it(known, text):
    assert shared(known) == text


def test_what_is_added_up_stands_in_the_file():
    assert {name for names in COUNTED.values() for name in names} <= set(COLUMNS)


def test_a_missing_toolchain_is_the_rungs_own_error(injected, monkeypatch):
    monkeypatch.setattr(
        cuda, "inspect", lambda *_, **of: (_ for _ in ()).throw(RuntimeError("no nvcc"))
    )
    with pytest.raises(ToolchainError, match="no nvcc"):
        import_module("tcgemm.tools.show_kernel.describe").inspector(
            dispatch.find("cuda", "wmma"), problem(), None
        )(False)
