"""``tcgemm warm``: what is compiled ahead, in which order, and what it says of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
from typer.testing import CliRunner

from tcgemm import dispatch, gpus
from tcgemm.cli import app
from tcgemm.problem import COMPUTES, OUTPUTS, Problem
from tcgemm.request import planning_for
from tcgemm.tools.warm import building as warm
from tcgemm.tools.warm import covering


def problem(M, dtype="bfloat16"):
    return Problem.stored(M, 64, 64, dtype, dtype, "nn", capability=(9, 0))


class Backend(ModuleType):
    """A backend whose kernel has a build for each power of two that M is below."""

    def __init__(self):
        super().__init__("warmed_backend")
        self.store, self.prepared = set(), []
        self.KERNELS = (
            {
                "name": "only", "adds": "", "pairs": (("bfloat16", "bfloat16"),),
                "refuse": lambda p: "M is 13" if p.M == 13 else None,
                "plan": lambda p: {"TILE": p.M.bit_length()},
            },
        )  # fmt: skip

    def compiles(self, name, plan, problem):
        return [f"{name} {plan['TILE']}"]

    def prepare(self, name, plan, problem):
        self.prepared.append(plan["TILE"])
        if plan["TILE"] == 5:
            raise RuntimeError("\nno compiler is here: install one\nwith more lines")
        new = plan["TILE"] not in self.store
        self.store.add(plan["TILE"])
        return int(new)


@pytest.fixture
def backend(monkeypatch):
    made = Backend()
    monkeypatch.setitem(sys.modules, "warmed_backend", made)
    monkeypatch.setitem(dispatch.BACKENDS, "warmed", "warmed_backend")
    yield made
    dispatch.ladder.cache_clear()


def one_thread(jobs, gpu):
    return ThreadPoolExecutor(1)


def test_each_kernel_is_compiled_once_and_what_fails_says_why(backend, monkeypatch):
    monkeypatch.setattr(warm, "CHUNK", 3)
    seen = []
    given = [problem(M) for M in (3, 2, 13, 9, 16, 17, 12, 2)]
    for built, there in (({"warmed": 2}, {}), ({}, {"warmed": 2})):
        outcome = warm.warm(
            given, ["warmed"], pool=one_thread, watch=lambda *step: seen.append(step)
        )
        assert (outcome.built, outcome.there, outcome.left) == (built, there, {})
        ((where, reason), what) = next(iter(outcome.failed.items()))
        assert (where, reason) == ("warmed", "no compiler is here: install one")
        assert len(what) == 1
        assert "16x64x64" in what[0]
    assert Counter(backend.prepared) == {2: 2, 4: 2, 5: 2}, "each once, M = 13 never"
    done, known, _ = seen[-1]
    assert done == known == 6
    assert [step[0] for step in seen[:6]] == [1, 2, 3, 4, 5, 6]


def test_nothing_is_begun_when_time_is_over(backend, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def prepare(*asked):
        begun.set()
        go.wait(10)
        return 1

    monkeypatch.setattr(backend, "prepare", prepare, raising=False)
    thread = threading.Thread(target=lambda: (begun.wait(10), go.wait(0.8), go.set()))
    thread.start()
    given = [problem(2**n) for n in (1, 2, 3, 6, 7, 8)]
    outcome = warm.warm(given, ["warmed"], within_s=0.3, pool=one_thread)
    thread.join()
    assert outcome.built == {"warmed": 1}, "what had begun is finished"
    assert outcome.left == {"warmed": 5}


def test_the_longest_begins_first_but_where_time_is_short(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(warm.time, "monotonic", lambda: float(next(clock)))
    tasks = [("cuda", name, {}, None, (str(n),)) for n, name in enumerate("abbbcc")]

    def order(waiting, first_takes):
        for task in tasks:
            waiting.add(task)
        begun = []
        while (task := waiting.begin()) is not None:
            for _ in range(first_takes[task[1]]):
                next(clock)
            waiting.done(task)
            begun.append(task[1])
        return "".join(begun)

    takes = {"a": 1, "b": 2, "c": 9}
    assert order(warm.Waiting(longest_first=True), takes) == "abccbb"
    clock = iter(range(100))
    assert order(warm.Waiting(longest_first=False), takes) == "abbbcc"
    waiting = warm.Waiting(longest_first=True)
    waiting.add(tasks[0])
    assert list(waiting.left()) == [tasks[0]]


def test_the_products_cover_types_layouts_and_what_is_fused():
    found = list(covering.problems((), (9, 0)))
    pairs = {(p.dtype_in, p.dtype_out, p.compute) for p in found}
    assert pairs == {(i, o, c) for i in OUTPUTS for o in OUTPUTS[i] for c in COMPUTES[i]}
    first = found[:2000]
    assert {p.dtype_in for p in first} == set(covering.SIXTEEN_BITS), "what is needed most"
    assert all(p.plain for p in first)
    for asked in covering.FUSED:
        of = [p for p in found if all(getattr(p, name) == value for name, value in asked.items())]
        assert {p.dtype_in for p in of} >= {"float16", "bfloat16", "float32", "float8_e4m3fn"}
    only = list(covering.problems(["int8"], (9, 0)))
    assert {p.dtype_in for p in only} == {"int8"}


@pytest.mark.exhaustive  # which those are: the test above
def test_a_shape_that_is_not_among_them_is_mostly_compiled_all_the_same():
    """What the plans of 300 shapes of another seed need, of 16 bits, in CUDA on an H200."""
    from tcgemm.bench.drawn import drawn_cases

    def needs(problems):
        found = warm.find(list(problems), ("cuda",))
        return {line for task in found for line in task[4]}

    sixteen = [p for p in covering.problems(["bfloat16"], (9, 0)) if p.plain]
    with planning_for(gpus.find("h200")):
        built = needs(sixteen)
        others = [c.product(capability=(9, 0)) for c in drawn_cases(77, 300, ["bfloat16"])]
        missing = [problem for problem in others if needs([problem]) - built]
    assert len(missing) <= 0.02 * len(others), missing


MISSING = """
import sys
from tcgemm import gpus
from tcgemm.bench.drawn import drawn_cases
from tcgemm.request import planning_for
from tcgemm.tools.warm import building, covering

def needs(problems):
    return {line for task in building.find(list(problems), ("triton",)) for line in task[4]}

dtype, compute = sys.argv[1:]
with planning_for(gpus.find("h200")):
    built = needs(p for p in covering.problems([dtype], (9, 0)) if p.compute == compute)
    drawn = drawn_cases(77, 100, [dtype], computes=[compute])
    print(sum(bool(needs([case.product(capability=(9, 0))]) - built) for case in drawn))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [("float32", "tf32x3"), ("float64", "float64")], ids=str)
def test_of_other_types_most_shapes_are_compiled_too(kind):
    """What the plans of 100 shapes of another seed need in Triton on an H200, in a process whose
    Triton compiles."""
    done = subprocess.run(
        [sys.executable, "-c", MISSING, *kind], check=True, capture_output=True, text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert int(done.stdout.split()[-1]) <= 15


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--dtype", "float99"), "unknown dtype 'float99'"),
        (("--gpu", "abacus"), "abacus"),
        (("--gpu", "h200", "--backend", "cublas"), "compiles nothing ahead"),
    ],
)
def test_a_mistake_is_named(arguments, says):
    result = CliRunner().invoke(app, ["warm", *arguments])
    assert result.exit_code != 0
    assert says in str(result.exception)


def test_the_command_says_what_was_built_was_there_and_failed(monkeypatch):
    outcome = warm.Outcome({"triton": 7}, {"cuda": 2}, {"cuda": 3}, seconds=12.3)
    outcome.failed["cuda", "nvcc was not found"] = ["small: 1x2x3", "skinny: 4x5x6"]
    asked = []

    def run(problems, names, **how):
        asked.append((next(iter(problems)).dtype_in, names, how["within_s"], how["gpu"]))
        how["watch"](1, 2, "small")
        return outcome

    monkeypatch.setattr(warm, "warm", run)
    result = CliRunner().invoke(
        app, ["warm", "--gpu", "h200", "--dtype", "int8", "--within", "90"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 1
    for line in (
        "triton: 7 compiled, 0 were there\n",
        "cuda: 0 compiled, 2 were there, 3 not begun in the time given",
        "cuda: 2 failed, small: 1x2x3 the first: nvcc was not found",
        "for NVIDIA H200, in 12 s",
    ):
        assert line in result.output
    assert asked == [("int8", ["triton", "cuda"], 90.0, ((9, 0), "nvidia-h200", 132))]
    outcome.failed.clear()
    assert CliRunner().invoke(app, ["warm", "--gpu", "h200"]).exit_code == 0


@pytest.mark.exhaustive
def test_triton_s_kernels_are_compiled_for_a_gpu_that_is_not_here(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    given = [Problem.stored(64, 64, 64, "float16", "float16", "nn", capability=(8, 0))]
    gpu = ((8, 0), "nvidia-a100", 108)
    outcome = warm.warm(given, ["triton"], jobs=1, gpu=gpu)
    assert (outcome.built, outcome.failed) == ({"triton": 1}, {})
    assert list(tmp_path.rglob("*.cubin"))
    assert warm.warm(given, ["triton"], jobs=1, gpu=gpu).there == {"triton": 1}


def test_control_c_of_a_terminal_ends_it_and_its_processes(tmp_path):
    """A terminal sends the signal to all of them, in the middle of whatever they do."""
    stores = {"TCGEMM_CACHE_DIR": str(tmp_path / "own"), "TRITON_CACHE_DIR": str(tmp_path / "its")}
    command = [sys.executable, "-m", "tcgemm", "warm", "--gpu", "h200", "--backend", "triton"]
    with subprocess.Popen(
        command, env={**os.environ, **stores}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        start_new_session=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # "&" has it ignored
    ) as run:  # fmt: skip
        try:
            assert run.stderr is not None
            assert run.stderr.readline(), "it says where it is"
            for _ in range(20):  # an import of torch swallows one now and then
                os.killpg(run.pid, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(3)
                    break
            assert run.returncode == 130
            assert "Stopped. What was compiled is kept" in run.stderr.read()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
