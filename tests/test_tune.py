"""tcgemm tune: what is tried, dropped, ranked and kept; by a fake GPU and timer on a CPU."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tcgemm import dispatch, hooks, launch, vocabulary, waiting
from tcgemm.bench.cases import NAMES, build
from tcgemm.cli import app
from tcgemm.errors import (
    OperandError,
    ResultsError,
    UnknownNameError,
    UnsupportedError,
)
from tcgemm.problem import Problem
from tcgemm.tools.tune import command, first_call, search, this_gpu, user_table
from tcgemm.vocabulary import either

plans = import_module("tcgemm.triton_kernels.by_name")
tables = import_module("tcgemm.triton_kernels.planning.tables")
gpus = import_module("tcgemm.triton_kernels.planning.gpus")
planner = import_module("tcgemm.triton_kernels.planning.planner")

SKINNY = {
    "BLOCK_M": 32,
    "BLOCK_N": 16,
    "BLOCK_K": 512,
    "SPLITS": 3,
    "PDL": 0,
    "NUM_STAGES": 2,
    "NUM_WARPS": 4,
}
SHARED = 232_448


def case_of(text, layout="nt", out=()):
    (case,) = build(shapes=[text], layouts=[layout], dtypes_out=out)
    return case


def problem_of(M, N, K, layout="nt"):
    return Problem(
        M=M,
        N=N,
        K=K,
        dtype_in="bfloat16",
        dtype_out="bfloat16",
        a_strides=(K, 1) if layout[0] == "n" else (1, M),
        b_strides=(N, 1) if layout[1] == "n" else (1, K),
        c_strides=(N, 1),
        capability=(9, 0),
    )


class Fake:
    """A GPU whose candidates are numbered stages; each has a status or a speed-up by number."""

    gpu = "fake"

    def __init__(self, **fates):
        self.fates = {int(name[1:]): fate for name, fate in fates.items()}
        self.timed = []

    def capturing(self):
        return False

    def candidates(self, case, kernels):
        return [
            search.Candidate("skinny", {**SKINNY, "NUM_STAGES": n}, {"NUM_STAGES": n})
            for n in self.fates
        ]

    def compile(self, case, tried):
        return [
            search.Outcome(c, "spills", "8 bytes") if self.fate(c) == "spills" else None
            for c in tried
        ]

    def prepare(self, case):
        return "pipelined BLOCK_M=64", self

    def fate(self, candidate):
        return self.fates[candidate.config["NUM_STAGES"]]

    def verify(self, candidate):
        return "the worst error is 3 times its bound" if self.fate(candidate) == "wrong" else ""

    def time(self, candidate):
        fate = self.fate(candidate)
        self.timed.append(candidate.config["NUM_STAGES"])
        if fate == "fails":
            raise RuntimeError("out of shared memory\nand more")
        return 1 / fate, fate


def test_the_fastest_right_candidate_wins():
    machine = Fake(n2=1.1, n3="wrong", n4=1.3, n5="spills", n6="fails", n7=0.9)
    found = search.tune_case(case_of("16x512x512"), ["skinny"], machine)
    assert found.best.candidate.config["NUM_STAGES"] == 4
    assert found.best.speedup == 1.3
    status = {o.candidate.config["NUM_STAGES"]: (o.status, o.reason) for o in found.outcomes}
    assert status[3] == ("wrong", "the worst error is 3 times its bound")
    assert status[5] == ("spills", "8 bytes")
    assert status[6] == ("failed", "out of shared memory")
    assert machine.timed[:4] == [2, 4, 6, 7], "what is wrong or spills is never timed"
    assert sorted(machine.timed[4:]) == [2] * 3 + [4] * 3, "what seems faster is timed again"


def test_of_many_candidates_that_are_no_faster_none_wins_by_luck():
    """Each timing is off by a percent: of a hundred, one is then 1.02 times as fast at first."""

    class Noisy(Fake):
        draw = random.Random(5)

        def time(self, candidate):
            ms, speedup = super().time(candidate)
            return ms, speedup * self.draw.gauss(1, 0.01)

    equal = {f"n{n}": 1.0 for n in range(100)}
    wins = [search.tune_case(case_of("16x512x512"), [], Noisy(**equal)).best for _ in range(20)]
    assert sum(best is not None for best in wins) <= 1
    found = [search.tune_case(case_of("16x512x512"), [], Noisy(**equal, n200=1.05)).best
             for _ in range(20)]  # fmt: skip
    assert [best.candidate.config["NUM_STAGES"] for best in found] == [200] * 20
    assert all(best.speedup < 1.06 for best in found)


def test_a_finalist_that_goes_wrong_when_it_is_tried_again_is_none():
    class Once(Fake):
        def verify(self, candidate):
            return "elements differ" if self.timed.count(4) > 1 else ""

    found = search.tune_case(case_of("16x512x512"), [], Once(n4=1.3))
    assert found.best is None
    assert (found.outcomes[0].status, found.outcomes[0].reason) == ("wrong", "elements differ")


@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.009])
def test_the_present_choice_stays_where_nothing_beats_it(speedup):
    found = search.tune_case(case_of("16x512x512"), ["skinny"], Fake(n2=speedup))
    assert found.best is None
    assert user_table.rows_of(found) == {"kernels": {}, "prefer": []}


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("1x512x512", 1, 16), ("16x512x512", 1, 16), ("17x512x512", 17, 64), ("128x512x512", 65, 128),
     ("129x512x512", 129, 256), ("8192x8200x512", 4097, 8192), ("9000x9000x512", 8193, None)],
)  # fmt: skip
def test_few_rows_share_a_bucket(text, least, most):
    found = search.tune_case(case_of(text), ["skinny"], Fake(n2=2.0))
    (row,) = user_table.rows_of(found)["prefer"]
    assert (row["when"]["M_min"], row["when"].get("M_max")) == (least, most)
    N = int(text.split("x")[1])
    assert row["when"]["N_min"] == row["when"]["N_max"] == N


def test_a_tall_problem_is_described_as_its_transpose():
    found = search.tune_case(case_of("512x16x256", "nn"), ["skinny"], Fake(n2=2.0))
    rows = user_table.rows_of(found)
    for row in (*rows["prefer"], *rows["kernels"]["skinny"]):
        assert row["when"]["M_max"] == 16
        assert row["when"]["N_max"] == 512
        assert row["when"]["layout"] == "tt"
    found = search.tune_case(case_of("512x16x256", out=["float32"]), ["skinny"], Fake(n2=2.0))
    assert user_table.rows_of(found)["prefer"][0]["when"]["dtype_out"] == "float32"


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A folder of the user's own, and a GPU that is a H200 by name."""
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpus, "gpu_here", lambda capability=None: ("nvidia-h200", SHARED, 132))
    plans.forget()
    yield tmp_path
    monkeypatch.undo()
    plans.forget()


@pytest.mark.parametrize("shape", [(16, 512, 512), (512, 16, 512)])
def test_what_is_found_is_what_plans_choose(own_folder, shape):
    M, N, K = shape
    problem = problem_of(M, N, K)
    shipped = dispatch.find("triton", "skinny").plan(problem)
    found = search.tune_case(case_of(f"{M}x{N}x{K}"), ["skinny"], Fake(n2=1.5))
    path = tables.user_path("nvidia-h200")
    assert path.parent == own_folder
    user_table.write_table(
        path, user_table.merge(user_table.read_table(path), user_table.rows_of(found))
    )
    plans.forget()
    assert dispatch.choose(problem, "triton").name == "skinny"
    plan = dispatch.find("triton", "skinny").plan(problem)
    assert (plan["BLOCK_K"], plan["NUM_STAGES"]) == (512, 2)
    assert plan != shipped
    assert plan["SPLITS"] == 1, "K has one step"
    assert plan["SWAP"] == (M < N)
    other = problem_of(M * 2, N * 2, K)
    assert dispatch.find("triton", "skinny").plan(other)["BLOCK_K"] != 512


def test_new_rows_replace_old_ones_of_the_same_conditions(tmp_path):
    path = tmp_path / "t.json"
    table = user_table.read_table(path)
    for stages in (2, 3):
        found = search.tune_case(case_of("16x512x512"), [], Fake(**{f"n{stages}": 2.0}))
        table = user_table.merge(table, user_table.rows_of(found))
    found = search.tune_case(case_of("16x1024x512"), [], Fake(n4=2.0))
    user_table.write_table(path, user_table.merge(table, user_table.rows_of(found)))
    rows = user_table.read_table(path)["kernels"]["skinny"]
    assert [row["config"]["NUM_STAGES"] for row in rows] == [4, 3]
    assert len(user_table.read_table(path)["prefer"]) == 2


BROKEN = {
    "no JSON": "{",
    "an unknown rung": json.dumps({"kernels": {"fast": []}}),
    "a missing setting": json.dumps({"kernels": {"skinny": [{"config": {"BLOCK_M": 16}}]}}),
    "a number in words": json.dumps(
        {"kernels": {"skinny": [{"config": {**SKINNY, "BLOCK_M": "16"}}]}}
    ),
    "an unknown condition": json.dumps(
        {"kernels": {"skinny": [{"when": {"O_max": 1}, "config": SKINNY}]}}
    ),
    "an unknown preference": json.dumps({"prefer": [{"kernel": "fast"}]}),
    "a list": "[]",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_table_is_passed_over_with_a_warning_and_never_written_over(
    own_folder, broken, caplog
):
    path = tables.user_path("nvidia-h200")
    problem = problem_of(16, 512, 512)
    shipped = dispatch.find("triton", "skinny").plan(problem)
    path.write_text(BROKEN[broken])
    plans.forget()
    assert dispatch.find("triton", "skinny").plan(problem) == shipped
    assert "is passed over" in caplog.text
    with pytest.raises(ResultsError, match="is no table of configurations"):
        user_table.read_table(path)


def test_a_table_with_the_settings_names_of_an_older_version_is_read_with_a_warning(
    own_folder, caplog
):
    old = {("EARLY" if name == "PDL" else name): value for name, value in SKINNY.items()}
    table = {"kernels": {"skinny": [{"config": {**old, "AHEAD": 2, "BLOCK_K": 512}}]}}
    tables.user_path("nvidia-h200").write_text(json.dumps(table))
    plans.forget()
    plan = dispatch.find("triton", "skinny").plan(problem_of(16, 512, 4096))
    assert (plan["PDL"], plan["L2_PREFETCH"], plan["BLOCK_K"]) == (0, 2, 512)
    assert "AHEAD as L2_PREFETCH, EARLY as PDL" in caplog.text


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"cannot write .*TCGEMM_CACHE_DIR"):
        user_table.write_table(tmp_path / "file" / "t.json", {"kernels": {}, "prefer": []})


@pytest.mark.parametrize("kernel", plans.RUNGS)
@pytest.mark.parametrize("shape", [(1, 4096, 512), (64, 2112, 7168), (128, 96, 64), (300, 8, 31),
                                   (256, 256, 16384), (4096, 2112, 7168)], ids=str)  # fmt: skip
def test_candidates_fit_and_can_be_tables_rows(kernel, shape):
    problem = problem_of(*shape)
    turned = kernel in plans.DIVIDING and problem.M > problem.N
    problem = problem.transposed() if turned else problem
    found = plans.candidates(kernel, problem, SHARED, 132)
    assert bool(found) == (kernel != "skinny" or min(shape) <= 128)
    assert len(found) < 80
    tables.check({"kernels": {kernel: [{"config": c} for c in found]}, "prefer": []})
    for config in found:
        assert plans.shared_bytes(kernel, config, "bfloat16") <= SHARED
        plan = plans.divide(kernel, config, problem, 132, turned)
        assert plan.get("SPLITS", 1) >= 1


def test_only_rungs_with_candidates_are_tuned():
    with pytest.raises(ValueError, match="naive is not tuned"):
        plans.candidates("naive", problem_of(16, 16, 16), SHARED, 132)


def test_every_candidate_is_compiled_and_the_failing_one_found():
    tried = [search.Candidate("skinny", {"NUM_STAGES": n}, {}) for n in range(7)]
    good = SimpleNamespace(spill_bytes=0, serialized=False)
    built = {3: replace_with(good, spill_bytes=16), 5: replace_with(good, serialized=True)}

    def compile_rungs(requests):
        if 2 in requests:
            raise RuntimeError("Traceback\nptxas: too many registers")
        return [built.get(request, good) for request in requests]

    for jobs in (1, 3, 16):
        answers = this_gpu.compile_in_threads(compile_rungs, range(7), tried, jobs)
        assert [a and a.status for a in answers] == [
            None, None, "failed", "spills", None, "spills", None,
        ]  # fmt: skip
        assert answers[2].reason == "ptxas: too many registers"


def replace_with(namespace, **changes):
    return SimpleNamespace(**{**vars(namespace), **changes})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), OperandError, "--shape MxNxK"),
        (("--shape", "16x16"), OperandError, "malformed shape"),
        (("--suite", "fast"), UnknownNameError, "llm"),
        (("--shape", "16x16x16", "--kernel", "naive"), UnknownNameError, "split_k"),
        (("--kernel", "naive"), OperandError, "--shape MxNxK"),
        (("--kernel", "foo"), UnknownNameError, "unknown kernel 'foo'"),
        (("--backend", "cublas"), UnknownNameError, "'cublas' is not tuned: choose from triton"),
        (("--backend", "cudaa"), UnknownNameError, "unknown backend 'cudaa'"),
        (("--shape", "16x16x16", "--layout", "xx"), UnknownNameError, "tt"),
        (("--shape", "16x16x16", "--dtype", "int8"), OperandError, "float16 and bfloat16"),
    ],
)
def test_bad_input_is_answered_with_what_would_do(arguments, error, message, monkeypatch):
    monkeypatch.setattr(vocabulary, "_more_may_be_known", lambda: False)  # as in a new process
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert isinstance(result.exception, error), result.output
    assert message in str(result.exception)


def test_the_help_of_suites_lists_those_that_there_are():
    output = CliRunner().invoke(app, ["tune", "--help"], env={"COLUMNS": "200"}).output
    assert f"All problems of a suite: {either(NAMES)}." in output


def test_without_a_gpu_nothing_is_tuned(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["tune", "--shape", "16x16x16"])
    assert isinstance(result.exception, UnsupportedError)
    assert "measures on a GPU" in str(result.exception)


def test_the_command_prints_a_table_and_writes_rows(own_folder, monkeypatch):
    machine = Fake(n2=1.25, n3="wrong")
    machine.gpu = "nvidia-h200"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "ThisGpu", lambda budget, jobs, backend: machine)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["tune", "--shape", "16x512x512", "--layout", "nt"])
    assert result.exit_code == 0, result.output
    assert "1.250" in result.output
    assert "1 wrong" in result.output
    assert "1 of 1 problems have a faster choice" in result.output
    assert user_table.read_table(tables.user_path("nvidia-h200"))["kernels"]["skinny"]
    result = CliRunner().invoke(app, ["tune", "--shape", "16x512x512", "--json"])
    (one,) = json.loads(result.stdout)
    assert [c["status"] for c in one["candidates"]] == ["ok", "wrong"]


@pytest.mark.parametrize("columns", [60, 80])
def test_the_command_fits_its_terminal_and_says_what_it_does(own_folder, monkeypatch, columns):
    machine = Fake(n2=1.25, n3="wrong")
    machine.gpu = "nvidia-h200"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "ThisGpu", lambda budget, jobs, backend: machine)
    monkeypatch.setattr(waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(waiting, "EVERY_S", 0.002)
    monkeypatch.setenv("COLUMNS", str(columns))
    result = CliRunner().invoke(app, ["tune", "--shape", "16x512x512", "--layout", "nt"])
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    (one,) = [line for line in result.stdout.splitlines() if "best found:" in line]
    assert all(f"{name}=" in one for name in SKINNY)
    assert "tuning 16x512x512 bfloat16 nt (1 of 1), 0 s" in result.stderr


def test_a_found_row_speaks_of_its_bucket_alone(own_folder):
    case = replace(case_of("64x512x512"))
    found = search.tune_case(case, [], Fake(n2=2.0))
    user_table.write_table(tables.user_path("nvidia-h200"), user_table.rows_of(found))
    plans.forget()
    chosen = {
        M: dispatch.find("triton", "skinny").plan(problem_of(M, 512, 512)) for M in (16, 17, 64, 65)
    }
    assert [M for M, plan in chosen.items() if plan["BLOCK_K"] == 512] == [17, 64]


@pytest.mark.parametrize(
    ("tile", "warps", "count"), [((128, 256), 8, 128), ((128, 128), 4, 128), ((256, 256), 8, 256)]
)
def test_sums_in_registers_are_counted_by_the_thread(tile, warps, count):
    config = {"BLOCK_M": tile[0], "BLOCK_N": tile[1], "NUM_WARPS": warps}
    assert planner.accumulators(config) == count


def test_a_tile_that_no_thread_can_hold_is_not_tried(monkeypatch):
    problem = problem_of(4096, 4096, 4096)
    every = plans.candidates("descriptor", problem, SHARED, 132)
    assert {planner.accumulators(c) for c in every} >= {64, 128}
    monkeypatch.setattr(planner, "MOST_ACCUMULATORS", 64)
    few = plans.candidates("descriptor", problem, SHARED, 132)
    assert few == [c for c in every if planner.accumulators(c) <= 64]


@pytest.fixture
def asked(monkeypatch, tmp_path):
    monkeypatch.setenv(first_call.VARIABLE, "1")
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path))
    yield tmp_path / "configs-fake.json"
    plans.forget()


def test_a_bucket_is_tuned_once_and_kept_on_disk(asked):
    machine = Fake(n2=1.5)
    assert first_call.once(problem_of(3, 512, 512), machine)
    table = json.loads(asked.read_text())
    assert table["kernels"]["skinny"][0]["config"]["NUM_STAGES"] == 2
    assert [row["kernel"] for row in table["prefer"]] == ["skinny"]
    for M in (3, 16, 1):
        assert not first_call.once(problem_of(M, 512, 512), machine), "the bucket has its row"
    assert machine.timed == [2] * (1 + search.AGAIN)
    assert first_call.once(problem_of(17, 512, 512), machine), "another bucket"
    assert len(json.loads(asked.read_text())["prefer"]) == 2


def test_a_present_choice_that_stays_is_kept_too(asked):
    machine = Fake(n2=0.5)
    assert first_call.once(problem_of(16, 512, 512), machine)
    (row,) = json.loads(asked.read_text())["prefer"]
    assert row["kernel"] == "pipelined"
    assert not first_call.once(problem_of(16, 512, 512), machine)


def test_a_problem_is_not_tuned_unasked_nor_where_tables_do_not_speak_of_it(asked, monkeypatch):
    plain = problem_of(16, 512, 512)
    others = [
        replace(plain, dtype_in="int8", dtype_out="int32", compute="int32"),
        replace(plain, bias=True),
        replace(plain, batch=2, batch_strides=(0, 0, 16 * 512)),
        replace(plain, a_strides=(600, 1)),
        replace(plain, device="cpu"),
    ]
    assert not any(first_call.once(other, Fake(n2=2.0)) for other in others)
    monkeypatch.setenv(first_call.VARIABLE, "0")
    assert not first_call.once(plain, Fake(n2=2.0))
    assert not asked.exists()


def test_tuning_in_a_graph_capture_is_an_error_that_says_what_to_warm_up(asked):
    machine = Fake(n2=2.0)
    machine.capturing = lambda: True
    with pytest.raises(UnsupportedError, match=r"before the capture.*--shape 16x512x512"):
        first_call.once(problem_of(16, 512, 512), machine)
    machine.capturing = lambda: False
    first_call.once(problem_of(16, 512, 512), machine)
    machine.capturing = lambda: True
    assert not first_call.once(problem_of(16, 512, 512), machine), "it is warm"


def test_a_call_that_waited_for_another_thread_to_tune_chooses_anew(asked, monkeypatch):
    """It may have chosen before the other one was done."""
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(Fake):
        def prepare(self, case):
            begun.set()
            assert goes_on.wait(30)
            return super().prepare(case)

    machine, problem = Slow(n2=1.5), problem_of(3, 512, 511)
    monkeypatch.setattr(first_call, "ThisGpu", lambda *asked: machine)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(first_call.before_choice, problem, "triton", None)
        assert begun.wait(30)
        second = pool.submit(first_call.before_choice, problem, "triton", None)
        goes_on.set()
        assert (first.result(), second.result()) == (True, True)
    assert machine.timed == [2] * (1 + search.AGAIN), "tuned once"
    assert not first_call.before_choice(problem_of(3, 512, 511), "triton", "skinny")
    assert not first_call.before_choice(problem_of(3, 512, 511), "cuda", None)


def test_what_a_thread_read_before_tables_changed_is_not_kept(tmp_path, monkeypatch):
    """Another thread writes the table and has all forgotten while this one reads the old file."""
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpus, "gpu_of", lambda problem: ("fake", SHARED, 132))
    problem, path = problem_of(3, 512, 512), tmp_path / "configs-fake.json"
    path.write_text(json.dumps({"kernels": {}, "prefer": []}))
    plans.forget()
    new = {"kernels": {"skinny": [{"when": {}, "config": SKINNY}]}, "prefer": [
        {"when": {}, "kernel": "naive"}
    ]}  # fmt: skip
    read, late = tables.read, [new]

    def read_and_changed(file):
        found = read(file)
        if late:
            path.write_text(json.dumps(late.pop()))
            plans.forget()
        return found

    monkeypatch.setattr(tables, "read", read_and_changed)
    skinny = dispatch.find("triton", "skinny")
    triton = import_module("tcgemm.triton_kernels")
    try:
        before = skinny.plan(problem)
        assert not late
        assert skinny.plan(problem)["BLOCK_K"] == SKINNY["BLOCK_K"] != before["BLOCK_K"]
        late.append({"kernels": {}, "prefer": []})
        plans.forget()
        assert triton.choose(problem, ["naive", "skinny"]) == "naive"
        assert triton.choose(problem, ["naive", "skinny"]) == "skinny"
    finally:
        plans.forget()


def test_a_call_has_its_problem_tuned_first(asked, monkeypatch):
    import torch

    import tcgemm

    seen = []
    monkeypatch.setattr(first_call, "once", seen.append)
    a = torch.randn(48, 40).half()
    tcgemm.matmul(a, a.mT, backend="triton")
    assert {(p.M, p.N, p.K, p.layout) for p in seen} == {(48, 48, 40, "nt")}
    seen.clear()
    tcgemm.matmul(a, a.mT, backend="triton", kernel="naive")
    assert not seen, "a named kernel takes its own table"
    tcgemm.matmul(a[:9], a.mT, backend="cublas")
    assert not seen, "only Triton's choice is tuned"
    monkeypatch.setenv(first_call.VARIABLE, "0")
    tcgemm.matmul(a[:8], a.mT, backend="triton")
    assert not seen, "nobody asked"


def test_what_is_installed_sees_each_problem_before_a_kernel_is_chosen(monkeypatch):
    import torch

    import tcgemm

    seen = []
    assert launch.BEFORE_CHOICE is hooks.BEFORE_CHOICE
    monkeypatch.setattr(
        launch, "BEFORE_CHOICE", [*hooks.BEFORE_CHOICE, lambda *asked: seen.append(asked)]
    )
    a, out = torch.randn(5, 7, 3).half(), torch.empty(5, 7, 7).half()
    for _ in range(2):  # the second call runs what the first one made
        tcgemm.matmul(a, a.mT, backend="cublas", out=out)
    tcgemm.matmul(a[0], a[0].mT, backend="cublas", kernel="torch_cpu", out=out[0])
    assert [(p.batch, p.M, p.N, p.K, *rest) for p, *rest in seen] == [
        (5, 7, 7, 3, "cublas", None),
        (1, 7, 7, 3, "cublas", "torch_cpu"),
    ]


@pytest.mark.parametrize("changes", [False, True])
def test_what_was_chosen_before_stays_unless_an_installed_function_changes_it(monkeypatch, changes):
    import torch

    import tcgemm
    from tcgemm import dispatch, repacking

    chosen = []
    choose = dispatch.choose
    monkeypatch.setattr(dispatch, "choose", lambda *asked: chosen.append(asked) or choose(*asked))
    monkeypatch.setattr(
        repacking, "worth", lambda problem, backend, choose: choose(problem) and None
    )
    monkeypatch.setattr(launch, "BEFORE_CHOICE", [lambda *asked: changes, lambda *asked: False])
    a = torch.randn(13 + changes, 3).half()
    tcgemm.matmul(a, a.mT, backend="cublas")
    assert len(chosen) == 1 + changes


def test_what_an_installed_function_raises_ends_the_call(monkeypatch):
    import torch

    import tcgemm

    def refuse(problem, backend, kernel):
        raise UnsupportedError("not now")

    monkeypatch.setattr(launch, "BEFORE_CHOICE", [refuse])
    a = torch.randn(11, 3).half()
    with pytest.raises(UnsupportedError, match="not now"):
        tcgemm.matmul(a, a.mT, backend="cublas")


def test_rows_that_two_runs_keep_at_once_are_all_kept(tmp_path):
    path = tmp_path / "configs-test.json"

    def keep(number):
        when = {"M_min": number, "M_max": number}
        user_table.keep(path, {"kernels": {}, "prefer": [{"when": when, "kernel": "skinny"}]})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(keep, range(1, 41)))
    kept = {row["when"]["M_min"] for row in user_table.read_table(path)["prefer"]}
    assert kept == set(range(1, 41))


def test_a_run_keeps_what_another_wrote_since_it_began(tmp_path):
    path = tmp_path / "configs-test.json"
    row = {"when": {"M_min": 1, "M_max": 1}, "kernel": "skinny"}
    user_table.read_table(path)
    user_table.keep(path, {"kernels": {}, "prefer": [row]})
    user_table.keep(path, {"kernels": {}, "prefer": [{**row, "when": {"M_min": 2, "M_max": 2}}]})
    assert len(user_table.read_table(path)["prefer"]) == 2
