"""A kernel that misbehaves becomes a row, and the run goes on: with kernels made for it."""

import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer
import workers
from rich.console import Console
from typer.testing import CliRunner

from tcgemm import dispatch
from tcgemm.bench import ahead, cases, first, run, store, worker
from tcgemm.bench.case import CASE_COLUMNS
from tcgemm.bench.closing import print_table
from tcgemm.bench.command import _Progress, bench
from tcgemm.bench.worker import Unit
from tcgemm.call import forget
from tcgemm.errors import ResultsError, TcgemmError, ToolchainError, UnknownNameError

MISBEHAVING = '''
"""A backend of kernels that go wrong, each in its own way."""
import os, signal, sys, time

PAIRS = (("float16", "float16"), ("bfloat16", "bfloat16"))


def refuse(problem):
    return f"K is {problem.K} and it takes none" if problem.K else None


def row(name, **more):
    return {"name": name, "adds": name, "pairs": PAIRS, "devices": ("cpu",), **more}


KERNELS = (
    row("right", plan=lambda problem: {"BLOCK_M": 32}),
    row("wrong"),
    row("raises"),
    row("refuses", refuse=refuse),
    row("gpu_only", devices=("cuda",)),
    row("hangs"),
    row("after_the_hang"),
    row("spins", refuse=lambda problem: None if problem.M == 8 else "M is not 8"),
    row("dies"),
    row("exits"),
    row("does_not_load"),
    row("right_at_last"),
)


def right(a, b, c, **plan):
    c.copy_(a.float() @ b.float())


def wrong(a, b, c):
    right(a, b, c)
    c[0, 0] += 1


def raises(a, b, c):
    raise RuntimeError("out of\\nregisters")


def hangs(a, b, c):
    time.sleep(1000)


def spins(a, b, c):
    from pathlib import Path
    Path(__file__).with_name("spins.pid").write_text(f"{os.getpid()}\\n")
    while True:
        pass


def dies(a, b, c):
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def exits(a, b, c):
    os._exit(7)


def load(name):
    if name == "does_not_load":
        raise OSError("no compiler")
    return globals().get(name, right)
'''


def measured_by_a_fork(connection, job):
    """As ``run.work``, without the look at who the parent is: that is the server here."""
    worker.die_with = lambda parent: None
    worker.work(connection, job)


def built_by_a_fork(*given):
    """As ``ahead.build``, in the same way."""
    ahead.die_with = lambda parent: None
    ahead.build(*given)


@pytest.fixture
def misbehaving(tmp_path, monkeypatch):
    """A backend whose kernels go wrong. A worker has torch already; ``bench_in_a_process`` begins
    workers as a user's run does."""
    context = workers.forked()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    monkeypatch.setattr(run, "work", measured_by_a_fork)
    monkeypatch.setattr(ahead, "build", built_by_a_fork)
    (tmp_path / "misbehaving_kernels.py").write_text(MISBEHAVING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "misbehaving", "misbehaving_kernels")
    yield
    dispatch.ladder.cache_clear()
    forget()


def measure(tmp_path, names, shapes=("16x8x4",), **options):
    chosen = cases.build(shapes=shapes, device="cpu")
    kernels = run.contenders(["misbehaving"], names, "cpu")
    results = store.Store(tmp_path / "out", "r", {"gpu_slug": "cpu"})
    try:
        rows = run.run(run.units_of(chosen, kernels), results, device="cpu", **options)
    finally:
        results.close()
    return rows, store.read(tmp_path / "out")


def test_every_way_to_go_wrong_becomes_a_row(tmp_path, misbehaving):
    rows, stored = measure(tmp_path, [], timeout_s=4)
    status = {row["kernel"]: row["status"] for row in stored}
    assert status == {
        "right": "ok",
        "wrong": "wrong",
        "raises": "failed",
        "refuses": "unsupported",
        "gpu_only": "unsupported",
        "hangs": "timeout",
        "after_the_hang": "ok",
        "spins": "unsupported",
        "dies": "failed",
        "exits": "failed",
        "does_not_load": "failed",
        "right_at_last": "ok",
    }
    reason = {row["kernel"]: row["reason"] for row in stored}
    assert "1 of 128 elements" in reason["wrong"]
    assert reason["raises"] == "RuntimeError: out of registers"
    assert reason["refuses"] == "K is 4 and it takes none"
    assert reason["gpu_only"] == "it runs on cuda tensors and these are on cpu"
    assert "4 s" in reason["hangs"]
    assert "SIGSEGV" in reason["dies"]
    assert "the last words" in reason["dies"]
    assert "status 7" in reason["exits"]
    assert "no compiler" in reason["does_not_load"]
    assert reason["right"] == ""
    assert len(rows) == len(stored) == 12


def test_a_row_holds_facts_and_on_a_cpu_no_time(tmp_path, misbehaving):
    seen = []
    _, (row,) = measure(
        tmp_path,
        ["right"],
        seed=5,
        watch=lambda event, unit, row: seen.append((event, unit.full_name)),
    )
    assert row["config"] == "BLOCK_M=32"
    assert (row["M"], row["N"], row["K"], row["layout"]) == ("16", "8", "4", "nn")
    assert (row["seed"], row["data"], row["timer"], row["suite"]) == (
        "5",
        "normal",
        "none",
        "shape",
    )
    assert 0 <= float(row["error_ratio"]) <= 1
    assert row["exact_errors"] == "0"
    assert float(row["compile_s"]) >= 0
    assert not any(row[name] for name in ("ms_p20", "ms_p50", "ratio_p50", "rounds", "power_w"))
    assert seen == [("begin", "misbehaving/right"), ("row", "misbehaving/right")]


def test_a_row_says_what_the_operands_held_and_resume_knows_it(tmp_path, misbehaving):
    zeros = [replace(case, data="zeros") for case in cases.build(None, shapes=("16x8x4",))]
    units = run.units_of(zeros, run.contenders(kernels=["misbehaving/right"], device="cpu"))
    results = store.Store(tmp_path / "made", "r", {"gpu_slug": "cpu"})
    run.run(units, results, device="cpu")
    (row,) = store.read(tmp_path / "made")
    assert (row["data"], row["status"]) == ("zeros", "ok")
    assert run.key(zeros[0], "misbehaving", "right") in run.keys_of_row(row)
    normal = replace(zeros[0], data="normal")
    assert run.key(normal, "misbehaving", "right") not in run.keys_of_row(row)


def test_compilation_is_reported_once_a_configuration(tmp_path, misbehaving):
    _, stored = measure(tmp_path, ["right"], shapes=("16x8x4", "8x8x8"))
    assert [bool(row["compile_s"]) for row in stored] == [True, False]


MEETING = """
import threading, time
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("first", "second", "dies_in_a_load", "third")
KERNELS = tuple(
    {"name": name, "adds": name, "pairs": (("bfloat16", "bfloat16"),), "devices": ("cpu",)}
    for name in NAMES
)


def load(name):
    if name.startswith("dies"):
        raise OSError("no compiler")
    (HERE / f"{name}.began").touch()
    built = HERE / f"{name}.built"
    if built.exists():  # the cache of this backend
        return lambda a, b, c: c.copy_(a.float() @ b.float())
    others = [HERE / f"{other}.began" for other in ("first", "second", "third")]
    deadline = time.monotonic() + 20
    while not all(other.exists() for other in others) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not all(other.exists() for other in others):
        raise RuntimeError("the others are not built at the same time")
    built.touch()
    return load(name)
"""


def test_kernels_are_built_ahead_and_at_the_same_time(tmp_path, monkeypatch):
    (tmp_path / "meeting_kernels.py").write_text(MEETING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "meeting", "meeting_kernels")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    chosen = cases.build(shapes=["16x8x4"], device="cpu")
    units = run.units_of(chosen, run.contenders(["meeting"], [], "cpu"))
    built = ahead.Ahead(units, "cpu")
    try:
        built.wait(100)
        assert 0 < built.seconds("meeting/first", "") < 60
        assert built.seconds("meeting/dies_in_a_load", "") == 0
    finally:
        built.end()
        dispatch.ladder.cache_clear()
    assert {path.stem for path in tmp_path.glob("*.built")} == {"first", "second", "third"}


def test_who_waits_for_what_is_built_ahead_takes_what_it_says(tmp_path, monkeypatch):
    """Builds of a long list of products say more than a pipe holds."""
    (tmp_path / "talking.py").write_text(
        "def build(connection, *_):\n"
        "    for number in range(200):\n"
        '        connection.send((f"{number}", "x" * 1000, 1.0))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ahead, "build", import_module("talking").build)
    built = ahead.Ahead([], "cpu")
    try:
        built.wait(100)
        assert not built._process.is_alive()
        assert built.seconds("199", "x" * 1000) == 1.0
    finally:
        built.end()


def test_each_case_of_a_kernel_is_built_ahead_once_and_before_its_turn(monkeypatch):
    """A rung that is compiled case by case compiles nothing when it is loaded: the GPU waited."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
    shapes = ["16x4096x4096", "512x512x512", "1024x1024x1024", "4096x4096x4096"]
    chosen = cases.build(shapes=shapes, device="cuda")
    kernels = run.contenders(kernels=["cuda/one_wave", "cuda/naive", "cuda/split_k"])
    module = import_module(dispatch.BACKENDS["cuda"])
    built = []
    monkeypatch.setattr(module, "prepare", lambda *asked: built.append(*module.compiles(*asked)))
    made = ahead.tasks(run.units_of(chosen, kernels), "cuda")
    named = [task for task in made if isinstance(task, partial)]
    assert [task.args[1].full_name for task in named] == ["cuda/one_wave"] * len(named)
    assert len(made) - len(named) == 3, "each kernel is loaded once"
    done = [task()[0] for task in named]
    assert len(set(built)) == len(built) == len(named) > 1
    assert all(settings and seconds >= 0 for _, settings, seconds in done)


def test_what_a_call_gets_unasked_is_measured_first(misbehaving):
    chosen = cases.build(shapes=["16x8x4", "8x8x8"], device="cpu")
    kernels = run.contenders(kernels=["cublas/torch_cpu", "triton/naive", "triton/pipelined",
                                      "cuda/naive", "cuda/wmma_any", "misbehaving/right",
                                      "misbehaving/right_at_last"], device="cpu")  # fmt: skip
    units = run.units_of(chosen, kernels)
    ordered, needed = first.unasked_first(units, "cpu")
    assert [unit.index for unit in ordered] == list(range(len(units)))
    assert {(u.case, u.full_name) for u in ordered} == {(u.case, u.full_name) for u in units}
    before = [(unit.case.shape, unit.full_name) for unit in ordered[:needed]]
    assert ("16x8x4", "misbehaving/right_at_last") in before
    assert ("16x8x4", "misbehaving/right") not in before
    rest = ordered[needed:]
    assert [unit.case for unit in rest] == sorted(
        (unit.case for unit in rest), key=[unit.case for unit in units].index
    )
    languages = [name.split("/")[0] for _, name in before]
    assert languages == sorted(languages, key=lambda name: name == "cuda"), "CUDA builds meanwhile"


def test_a_first_report_stands_before_the_rest_is_measured(tmp_path, misbehaving, monkeypatch, app):
    monkeypatch.chdir(tmp_path)
    started, really = [], first.start_report

    def start(folder):
        started.append(len(store.read(folder)))
        return really(folder)

    monkeypatch.setattr(first, "start_report", start)
    kernels = [f"--kernel=misbehaving/{name}" for name in ("right", "right_at_last")]
    done = CliRunner().invoke(app, ["--report", "--shape=16x8x4", "--out=made", *kernels])
    assert done.exit_code == 0, done.output
    assert started == [1]
    assert "a first report: " in done.output
    page = tmp_path / "made" / "index.html"
    assert f"report: {page}" in done.output.splitlines()
    assert page.read_text().count("right_at_last") > 0, "the page at the end has all results"


def test_in_a_pipe_a_line_says_every_few_seconds_where_the_run_is():
    said = io.StringIO()
    (case,) = cases.build(shapes=["16x8x4"], device="cpu")
    unit = Unit(0, case, "triton", "naive")
    with _Progress(Console(file=said), 7, every_s=0.02) as progress:
        progress("begin", unit, None)
        progress("row", unit, {"status": "ok", "reason": ""})
        deadline = time.monotonic() + 20
        while said.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = said.getvalue().splitlines()
    assert len(lines) >= 2
    assert re.fullmatch(r"\d+ s: 1 of 7 results; 16x8x4 bfloat16 nn  triton/naive", lines[-1])


def test_an_interrupt_keeps_what_was_measured(tmp_path, misbehaving):
    def stop(event, unit, row):
        if row is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, ["right", "wrong", "after_the_hang"], watch=stop)
    assert [row["kernel"] for row in store.read(tmp_path / "out")] == ["right"]


def test_a_worker_that_does_not_start_ends_the_run(tmp_path, misbehaving, monkeypatch):
    monkeypatch.setattr(run, "work", os._exit)  # called with arguments it does not take
    with pytest.raises(ToolchainError, match="does not start"):
        measure(tmp_path, ["right"])


def test_the_baseline_comes_first_and_kernels_are_chosen_by_name(misbehaving):
    names = [row.full_name for row in run.contenders(["misbehaving", "cublas"], [], "cpu")]
    assert names[0].startswith("cublas/")
    assert [r.full_name for r in run.contenders([], ["misbehaving/right"], "cpu")] == [
        "misbehaving/right"
    ]
    assert "cublas/torch_cpu" not in {r.full_name for r in run.contenders([], [], "cuda")}


def test_unknown_backends_and_kernels_list_what_exists(misbehaving):
    with pytest.raises(UnknownNameError, match="misbehaving"):
        run.contenders(["opencl"])
    with pytest.raises(UnknownNameError, match="misbehaving/right"):
        run.contenders(["misbehaving"], ["left"], "cpu")


def test_done_keys_are_skipped(misbehaving):
    chosen = cases.build(shapes=["16x8x4"], device="cpu")
    kernels = run.contenders(["misbehaving"], [], "cpu")
    every = run.units_of(chosen, kernels)
    done = {run.key(every[0].case, "misbehaving", "right")}
    assert {u.kernel for u in every} - {u.kernel for u in run.units_of(chosen, kernels, done)} == {
        "right"
    }


def test_a_backends_own_choice_is_measured_as_matmul_takes_it(tmp_path, misbehaving, monkeypatch):
    chosen = cases.build(shapes=["16x8x4"], device="cpu")
    monkeypatch.setattr(
        dispatch, "choose", lambda problem, backend: dispatch.find(backend, "right")
    )
    every = run.units_of(chosen, run.unasked(["misbehaving"]))
    assert [u.full_name for u in every] == [
        "cublas/cublas", "cublas/cublas_best", "misbehaving/unasked"
    ]  # fmt: skip
    results = store.Store(tmp_path / "results", "r", {"gpu_slug": "cpu"})
    run.run(every[-1:], results, device="cpu")
    results.close()
    (row,) = store.read(tmp_path / "results")
    what = (row["backend"], row["kernel"], row["chosen"], row["status"])
    assert what == ("misbehaving", dispatch.ladder("misbehaving")[-1].name, "yes", "ok")
    done = set(run.keys_of_row(row))
    assert "misbehaving" not in {
        u.backend for u in run.units_of(chosen, run.unasked(["misbehaving"]), done)
    }


@pytest.fixture
def app():
    typer_app = typer.Typer(pretty_exceptions_enable=False)
    typer_app.command("bench")(bench)
    return typer_app


def invoke(app, *arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


CHEAP = ("--shape", "8x8x8", "--backend", "misbehaving", "--kernel", "right", "--kernel", "wrong")


def test_the_command_measures_and_says_where(app, tmp_path, misbehaving):
    result = invoke(app, *CHEAP, "--out", tmp_path / "o")
    assert result.exit_code == 1, "a wrong kernel is no success"
    assert "1 result is wrong: the worst error is" in result.output
    assert "misbehaving/wrong at 8x8x8 bfloat16 nn" in result.output
    assert "8x8x8 bfloat16 nn" in result.output
    assert "results.csv" in result.output
    assert "1 of 2" in result.output
    assert [row["status"] for row in store.read(tmp_path / "o")] == ["ok", "wrong"]
    (facts,) = store.read_environment(tmp_path / "o").values()
    assert facts["gpu_slug"] == "cpu"
    again = invoke(app, *CHEAP, "--out", tmp_path / "o", "--resume")
    assert again.exit_code == 0
    assert "Nothing is left" in again.output
    assert len(store.read(tmp_path / "o")) == 2


def test_resume_measures_anew_what_other_options_would_change(app, tmp_path, misbehaving):
    out = ("--out", tmp_path / "o")
    hanging = (*CHEAP[:2], "--backend", "misbehaving", "--kernel", "right", "--kernel", "hangs")

    def resumed(*options):
        before = len(store.read(tmp_path / "o"))
        output = invoke(app, *hanging, *out, "--resume", *options).output
        added = store.read(tmp_path / "o")[before:]
        return [(row["kernel"], row["seed"], row["status"]) for row in added], output

    assert invoke(app, *hanging, *out, "--timeout", 0.5).exit_code == 1
    assert resumed("--timeout", 0.5)[0] == []
    anew, output = resumed("--timeout", 1)
    assert anew == [("hangs", "0", "timeout")], "its message says: --timeout allows more"
    assert "1 of 2 results are there already" in output
    anew, _ = resumed("--seed", 1, "--timeout", 0.5)
    assert [key[:2] for key in anew] == [("right", "1"), ("hangs", "1")]


def test_what_is_there_already_is_counted_among_what_would_be_measured(app, tmp_path, misbehaving):
    """Kernels that do not speak of a case at all have no results, neither there nor to come."""
    cheap = (*CHEAP[:4], "--out", tmp_path / "o", "--kernel", "right")
    assert invoke(app, *cheap).exit_code == 0
    output = invoke(app, *cheap, "--dtype", "bfloat16", "--dtype", "float64", "--resume").output
    assert "1 of 1 results are there already" in output


def test_a_run_without_trouble_ends_well(app, tmp_path, misbehaving):
    assert invoke(app, *CHEAP[:-2], "--out", tmp_path / "o").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--suite", "slow"), "choose from quick"),
        (("--suite", "slow", "--shape", "8x8x8"), "choose from quick"),
        (("--shape", "8x8x99999999999"), "2^31 - 1"),
        (("--shape", "8x8"), "MxNxK"),
        (("--backend", "opencl"), "choose from"),
        (("--kernel", "left"), "choose from"),
        (("--dtype", "float8"), "choose from"),
        (("--layout", "xy"), "choose from"),
    ],
)
def test_a_mistake_is_an_error_of_the_family_and_writes_nothing(
    app, tmp_path, misbehaving, arguments, says
):
    result = invoke(app, *arguments, "--out", tmp_path / "o")
    assert isinstance(result.exception, TcgemmError)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not (tmp_path / "o").exists()


def test_a_seed_that_something_was_fitted_to_is_no_silent_judge(app):
    for seed, said in ((201, True), (200, False)):
        output = invoke(app, "--suite", "drawn", "--seed", seed).output
        assert ("fitted to the shapes of seed 201" in output) == said


def test_a_foreign_folder_is_refused_by_the_command(app, tmp_path, misbehaving):
    (tmp_path / "file").write_text("")
    result = invoke(app, *CHEAP, "--out", tmp_path)
    assert isinstance(result.exception, ResultsError)


def bench_in_a_process(tmp_path, *kernels):
    """A bench of misbehaving kernels in a process group of its own."""
    script = f"""
    import signal, sys, typer
    sys.path.insert(0, {str(tmp_path)!r})
    from tcgemm import dispatch
    from tcgemm.bench.command import bench
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored
    dispatch.BACKENDS["misbehaving"] = "misbehaving_kernels"
    if __name__ == "__main__":
        typer.run(bench)
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(script))
    arguments = ["--shape", "8x8x8", "--backend", "misbehaving", "--out", str(tmp_path / "o")]
    for kernel in kernels:
        arguments += ["--kernel", kernel]
    (tmp_path / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(tmp_path / "main.py"), *arguments],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def test_control_c_keeps_rows_and_says_how_to_go_on(tmp_path, misbehaving):
    process = bench_in_a_process(tmp_path, "right", "hangs")
    results = tmp_path / "o" / store.RESULTS
    wait_for(lambda: results.exists() and results.read_text().count("\n") > 1, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and worker both get it
    try:
        _, errors = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # each thread says where it waits
        pytest.fail(f"still running after Ctrl-C: {process.communicate(timeout=30)}")
    assert process.returncode == 130
    assert "1 of 2 results are kept" in " ".join(errors.split())
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert [row["kernel"] for row in store.read(tmp_path / "o")] == ["right"]


@pytest.mark.parametrize(
    "end", [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGKILL]
)
def test_a_worker_ends_with_its_parent_and_leaves_no_log(tmp_path, misbehaving, end):
    process = bench_in_a_process(tmp_path, "spins")
    running = tmp_path / "spins.pid"
    wait_for(lambda: running.exists() and running.read_text().endswith("\n"), process)
    worker = int(running.read_text())
    try:
        process.send_signal(end)  # to the parent alone
        process.communicate(timeout=30)  # ends once the worker has let go of the pipes too
        deadline = time.monotonic() + 10
        while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{worker}").exists()
    finally:
        if Path(f"/proc/{worker}").exists():
            os.kill(worker, signal.SIGKILL)
    assert not list((tmp_path / "tmp").glob("tcgemm*"))


@pytest.mark.gpu
def test_the_baseline_is_measured_against_itself_on_a_gpu(tmp_path):
    chosen = cases.build(shapes=["512x512x512", "4096x4096x4096"], layouts=["nn", "nt"])
    results = store.Store(tmp_path, "r", {"gpu_slug": "gpu"})
    run.run(run.units_of(chosen, run.contenders([], ["cublas/cublas"])), results)
    results.close()
    stored = store.read(tmp_path)
    assert [row["status"] for row in stored] == ["ok"] * 8
    short = [row["among"] for row in stored if row["M"] == "512"]
    assert short == ["alone", "graph", "stream"] * 2  # a short product is timed among others too
    for row in stored:
        assert float(row["ratio_p50"]) == pytest.approx(1, abs=0.1)
        assert float(row["ms_p20"]) <= float(row["ms_p50"]) <= float(row["ms_p80"])
        assert int(row["rounds"]) >= 5
        assert row["cache"] == "cold"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_closing_table_keeps_names_whole(columns):
    names = {"triton": "warp_specialized", "cuda": "wmma_double_buffered", "cublas": "cublas_best"}
    (case,) = cases.build(shapes=["4096x4096x14336"], dtypes=["bfloat16"], layouts=["nt"])
    asked = {name: getattr(case, name) for name in CASE_COLUMNS}
    timed = {"status": "ok", "ms_p50": 1.2345, "ratio_p50": 1.01}
    rows = [
        {**asked, "backend": backend, "kernel": name, **timed} for backend, name in names.items()
    ]
    console = Console(file=io.StringIO(), width=columns)
    print_table(console, rows, "cuda")
    output = console.file.getvalue()
    assert all(f"{name} " in output for name in names.values())
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= columns
