"""``tcgemm explain``: numbers that can be worked out by hand, and names that do not exist."""

from __future__ import annotations

import json
import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tcgemm import dispatch, gpus
from tcgemm.bench import store
from tcgemm.cli import app
from tcgemm.tools.explain.choice import BY_TABLES


@pytest.fixture(autouse=True)
def _rows_are_read_once(monkeypatch):
    """Of a file that stays as it is: most of the time of an answer, and the same rows each time."""
    monkeypatch.setattr(store, "_stored", stored_once)


def stored_once(folder, read=store._stored):
    try:
        file = (folder / store.RESULTS).stat()
    except OSError:
        return read(folder)  # says what is wrong
    key = (folder.absolute(), file.st_size, file.st_mtime_ns)
    if key not in _stored:
        _stored[key] = read(folder)
    return [dict(row) for row in _stored[key]]


_stored = {}


def explain(*arguments):
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments):
    return json.loads(explain(*arguments, "--gpu", "h200", "--json"))


def test_the_bound_by_hand():
    bound = as_json("4096x2048x1024")["bound"]
    M, N, K = 4096, 2048, 1024
    assert bound["flop"] == 2 * M * N * K
    assert bound["eops"] == M * K + (2 * K - 1) * M * N + 2 * M * N
    assert bound["bytes"] == 2 * (M * K + K * N + M * N)
    assert bound["ridge"] == pytest.approx(989.4e12 / 4.8e12)
    assert bound["compute_us"] == pytest.approx(2 * M * N * K / 989.4e6)
    assert bound["memory_us"] == pytest.approx(bound["bytes"] / 4.8e6)
    assert bound["floor_us"] == max(bound["compute_us"], bound["memory_us"])
    assert bound["by"] == "arithmetic"


def test_a_thin_product_is_bound_by_memory():
    bound = as_json("1x4096x4096")["bound"]
    assert bound["by"] == "memory"
    assert bound["intensity"] < 1.01


@pytest.mark.parametrize(
    ("arguments", "peak"),
    [
        (["--dtype", "float32", "--compute", "ieee"], 66.9),
        (["--dtype", "float32", "--compute", "tf32"], 494.7),
        (["--dtype", "float32"], 494.7 / 3),
        (["--dtype", "float64"], 66.9),
        (["--dtype", "uint8"], 1978.9),
        (["--dtype", "float8_e4m3fn"], 1978.9),
    ],
)
def test_the_peak_is_that_of_the_arithmetic(arguments, peak):
    assert as_json("512x512x512", *arguments)["bound"]["peak_tflops"] == pytest.approx(peak)


def test_the_grid_by_hand():
    (choice,) = as_json("1000x1000x64", "--backend", "cuda", "--kernel", "wmma_any")["choices"]
    assert choice["kernel"] == "wmma_any"
    block_m, block_n = choice["tile"]
    assert choice["tiles"] == [-(-1000 // block_m), -(-1000 // block_n)]
    assert choice["blocks"] == choice["tiles"][0] * choice["tiles"][1]
    assert choice["waves"] == pytest.approx(choice["blocks"] / 132)
    covered = choice["blocks"] * block_m * block_n
    assert choice["padding_waste"] == pytest.approx(1 - 10**6 / covered)


def test_every_kernel_has_its_line_and_its_reason():
    found = as_json("100x100x100")
    assert [c["backend"] for c in found["choices"]] == list(dispatch.BACKENDS)
    for choice in found["choices"]:
        names = {row.name for row in dispatch.ladder(choice["backend"])}
        assert {choice["kernel"], *choice["others"]} == names
        assert all(choice["others"].values())
    cuda = found["choices"][1]
    assert "M=100 is no multiple of 16" in cuda["others"]["wmma"]


RESULTS = Path(__file__).parents[1] / "reports" / "nvidia-h200"


@pytest.mark.parametrize("shape", ["4096x4096x4096", "1000x1000x1000", "1x4096x4096"])
def test_reasons_agree_with_the_ranking_and_say_measured_only_of_what_was(shape):
    found = as_json(shape, "--results", str(RESULTS))
    ranking = {each["kernel"]: each for each in found["ranking"]}
    rows = [row for row in store.read(RESULTS) if row["status"] == "ok" and row["ms_p50"]]
    sizes = {
        f"{row['backend']}/{row['kernel']}"
        for row in rows
        if f"{row['M']}x{row['N']}x{row['K']}" == shape
        and (row["dtype_in"], row["layout"]) == ("float16", "nn")
    }
    compared = 0
    for choice in found["choices"]:
        mine = ranking[f"{choice['backend']}/{choice['kernel']}"]
        for name, reason in choice["others"].items():
            full_name = f"{choice['backend']}/{name}"
            if "measured" in reason:
                assert {full_name, mine["kernel"]} <= sizes, reason
            if times := re.search(r"(measured|estimated) (slower|faster), ([\d.]+) us", reason):
                other = ranking[full_name]
                assert float(times[3]) == pytest.approx(other["us"], abs=0.06)
                assert (times[2] == "slower") == (other["us"] > mine["us"])
                compared += 1
            elif "takes it too" in reason:
                assert "no time of" in reason
    assert compared


def test_nothing_is_called_measured_where_nothing_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = explain("4096x4096x4096", "--gpu", "a100")
    assert "ranking: nothing was measured on this GPU" in output
    assert not re.search(r"(was )?measured (slower|faster)", output)
    assert "estimated" not in output


def test_the_projects_own_rows_are_found_outside_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert any(each["exact"] for each in as_json("4096x4096x4096")["ranking"])


def test_the_answer_comes_first():
    lines = explain("4096x4096x4096", "--gpu", "h200").splitlines()
    assert lines[0].startswith("4096x4096x4096 float16 nn on NVIDIA H200, 132 SMs")
    (choice,) = as_json("4096x4096x4096", "--backend", "triton")["choices"]
    assert re.fullmatch(
        rf"matmul\(a, b\) runs triton/{choice['kernel']}: [\d.]+ us, measured", lines[2]
    )
    assert lines[5] == "no kernel takes less than 139 us: bound by arithmetic"


def test_a_kernel_that_the_model_takes_says_so_and_from_whom():
    found = explain("128x128x128", "--backend", "cuda", "--gpu", "h200")
    told = re.search(
        r"small is chosen as among other kernels the shipped model of drawn shapes has it at "
        r"(\d\.\d) us, and one_wave, which tables and costs choose, at (\d\.\d);",
        found,
    )
    assert told is not None, found
    assert float(told[1]) < float(told[2])
    assert "model of drawn shapes" not in explain(
        "4096x4096x4096", "--backend", "cuda", "--gpu", "h200"
    )


def test_where_another_kernel_is_ahead_alone_the_answer_says_so():
    """64 cubed is small's by its own rule, and one_wave has the shorter time in the ranking."""
    found = explain("64x64x64", "--backend", "cuda", "--gpu", "h200")
    assert "cuda/one_wave is ahead in the ranking, which is of launches alone" in found
    assert "which is of launches alone" not in explain("4096x4096x4096", "--gpu", "h200")


def test_where_not_all_is_built_the_reason_is_of_what_is(monkeypatch):
    built = import_module(dispatch.BACKENDS["cuda"])
    monkeypatch.setattr(built, "buildable", lambda problem, able: ["tiled", "wmma_any"])
    (choice,) = as_json("4096x4096x4096", "--backend", "cuda")["choices"]
    assert (choice["kernel"], choice["why"]) == ("wmma_any", BY_TABLES)


def test_a_reason_of_many_kernels_is_told_once():
    output = re.sub(r"\s+", " ", explain("256x256x256", "--gpu", "a100"))
    assert output.count("needs compute capability 9.0 and this GPU has 8.0") == 1
    told = output.partition("not taken by")[2]
    for row in dispatch.select():
        if row.capability >= (9, 0):
            assert row.full_name in told


def test_an_older_gpu_refuses_what_it_lacks():
    output = re.sub(r"\s+", " ", explain("256x256x256", "--gpu", "a100", "--backend", "cuda"))
    assert "needs compute capability 9.0 and this GPU has 8.0" in output
    assert "NVIDIA A100" in output


def test_the_page_reads_for_everything_at_once():
    output = explain(
        "64x96x32", "--layout", "tn", "--alpha", "0.5", "--beta", "1", "--bias", "--epilogue",
        "gelu", "--batch", "3", "--gpu", "h200",
    )  # fmt: skip
    for word in ("grid:", "waves:", "floor:", "bytes:", "operations:", "alpha=0.5"):
        assert word in output


@pytest.mark.exhaustive  # the next test, with nvcc; test_show_kernel.py has Triton's compiler asked
def test_the_compiler_is_asked_on_demand():
    (choice,) = as_json(
        "512x512x512", "--bias", "--backend", "triton", "--kernel", "fused", "--compile"
    )["choices"]
    assert 32 <= choice["compiled"]["registers"] <= 255
    assert choice["compiled"]["spilled bytes"] == 0
    assert choice["compiled"]["shared bytes"] >= choice["stage_bytes"]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_is_asked_on_demand():
    (choice,) = as_json("64x64x64", "--backend", "cuda", "--kernel", "tiled", "--compile")[
        "choices"
    ]
    assert choice["compiled"]["target"] == "sm_90a"
    assert 16 <= choice["compiled"]["registers"] <= 255


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["12x13"], "give M, N and K as MxNxK"),
        (["0x1x1"], "each from 1"),
        (["8x8x8", "--dtype", "float17"], "unknown dtype 'float17'"),
        (["8x8x8", "--out-dtype", "int8"], "C of float16 operands is float16 or float32"),
        (["8x8x8", "--layout", "nx"], "choose nn, nt, tn or tt"),
        (["8x8x8", "--compute", "tf32"], "compute is 'tf32'"),
        (["8x8x8", "--epilogue", "swish"], "unknown epilogue"),
        (["8x8x8", "--gpu", "voodoo"], "unknown GPU 'voodoo'"),
        (["8x8x8", "--kernel", "x"], "unknown kernel 'x'"),
        (["8x8x8", "--backend", "x"], "unknown backend 'x'"),
        (["8x8x8", "--world", "4"], "--world: only --op takes it"),
        (["8x8x8", "--op", "all_gather", "--batch", "4"], "--batch: a call over GPUs has no batch"),
        (["8x8x8", "--op", "all_gather", "--beta", "1"], "--beta: a call over GPUs has no batch"),
    ],
)
def test_bad_arguments_name_the_choices(arguments, words):
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_auto_is_explained_as_what_it_takes(monkeypatch):
    (choice,) = as_json("64x64x64", "--backend", "auto")["choices"]
    assert choice["backend"] == as_json("64x64x64")["auto"].partition(",")[0]
    monkeypatch.setenv("TCGEMM_BACKEND", "auto")
    lines = explain("64x64x64", "--gpu", "h200").splitlines()
    assert lines[2].startswith("matmul(a, b) runs what backend='auto' takes: ")
    monkeypatch.setenv("TCGEMM_BACKEND", "tritn")
    result = CliRunner().invoke(app, ["explain", "64x64x64", "--gpu", "h200"])
    assert "TCGEMM_BACKEND is 'tritn', no backend: set it to triton" in str(result.exception)


def test_a_kernel_of_its_own_is_no_overlapped_one():
    arguments = ("4096x4096x4096", "--op", "all_gather", "--kernel", "triton/descriptor")
    assert as_json(*arguments)["several"]["way"] != "overlapped"


def test_what_a_call_copies_first_is_said():
    """As calls do with odd rows (test_repacking.py): the kernel and its plan are of the copies."""
    choices = {each["backend"]: each for each in as_json("4097x4097x4097")["choices"]}
    for backend, by_tma in {"triton": "descriptor warp_specialized", "cuda": "wgmma"}.items():
        chosen = choices[backend]
        assert chosen["kernel"].partition("_")[0] in by_tma
        assert chosen["copied"] in ("A and B", "A and B and C")
        assert chosen["copying_us"] > 40
        assert chosen["tiles"][0] == -(-4097 // chosen["tile"][0])
    assert choices["cublas"]["copied"] == ""
    output = re.sub(r"\s+", " ", explain("4097x4097x4097", "--gpu", "h200"))
    assert (
        "backend='cuda' runs cuda/wgmma_persistent on copies of A and B in aligned rows" in output
    )
    small = {each["backend"]: each for each in as_json("33x33x33")["choices"]}
    assert small["cuda"]["kernel"] == "small"
    assert small["cuda"]["copied"] == ""


@pytest.mark.parametrize("gpu", gpus.GPUS, ids=lambda gpu: gpu.slug)
def test_every_gpu_of_the_table_has_its_capability(gpu):
    assert gpus.capability(gpu) is not None


def test_the_capability_of_a_stranger_is_unknown():
    assert gpus.capability(gpus.lookup("Voodoo 3")) is None


def test_that_no_time_is_known_is_told_once():
    output = explain("4096x4096x4096", "--gpu", "a100")
    assert output.count("no time is known, as nothing near it was measured") == 1


@pytest.mark.parametrize("kernel", ["cuda/skinny", "cuda/stream_k", "cuda/small"])
def test_stages_are_counted_where_the_plan_says_how_many(kernel):
    """These fill their shared memory by a rule of their own: a ring of a stage would be false."""
    arguments = ("16x4096x4096", "--gpu", "h200", "--dtype", "bfloat16", "--kernel")
    assert "for 1 stage" not in explain(*arguments, kernel)
    assert re.search(r"KiB for \d+ stages", explain(*arguments, "triton/descriptor"))


def test_what_nothing_wastes_is_not_said():
    assert "outside C" not in explain("4096x4096x4096", "--gpu", "h200", "--kernel", "wmma")
    assert "outside C" in explain("16x4096x4096", "--gpu", "h200", "--kernel", "wmma_any")


def test_of_auto_a_kernel_is_looked_for_in_both_languages():
    arguments = ("64x64x64", "--backend", "auto", "--kernel", "one_wave", "--gpu", "a100")
    output = re.sub(r"\s+", " ", explain(*arguments))
    assert "unknown kernel" not in output
    assert "backend='auto': none: cuda/one_wave refuses 64x64x64" in output


@pytest.mark.parametrize("first", ["auto", "triton"])
def test_a_backend_that_is_named_twice_is_explained_once(first):
    found = as_json("4096x4096x4096", "--backend", first, "--backend", "triton")
    names = [each["backend"] for each in found["choices"]]
    assert sorted({*names}) == sorted(names)
    kernels = [each["kernel"] for each in found["ranking"]]
    assert len({*kernels}) == len(kernels)
