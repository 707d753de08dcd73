"""``tcgemm bench --several``: its suite, its rounds and its rows, without ranks.

tests/test_dist.py runs its cases over gloo.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tcgemm.bench.several import cases, pairing, run
from tcgemm.cli import app
from tcgemm.errors import OperandError, ResultsError, TcgemmError, ToolchainError


def test_the_suite_is_of_forty_layers():
    found = cases.suite(4)
    assert len(found) == 40
    assert {case.M for case in found} == {512, 2048, 4096, 8192, 16384}
    down = next(c for c in found if c.layer == "down" and c.model == "Llama 70B" and c.M == 512)
    assert (down.op, down.N, down.K, down.local) == (
        "reduce_scatter", 8192, 28672, (512, 8192, 7168),
    )  # fmt: skip
    up = next(c for c in found if c.layer == "up" and c.model == "Llama 8B" and c.M == 512)
    assert (up.op, up.local) == ("all_gather", (512, 7168, 4096))
    assert len(cases.suite(2, ["bfloat16", "float16"])) == 80


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(OperandError, match="N is 7, which does not divide by 2 ranks"):
        cases.suite(2, shapes=["8x7x8"])
    with pytest.raises(OperandError, match="unknown dtype 'half'"):
        cases.suite(2, ["half"])
    with pytest.raises(OperandError, match="does not multiply two matrices of float8_e5m2"):
        cases.suite(2, ["float8_e5m2"])
    assert {case.M for case in cases.suite(2, rows=[64])} == {64}
    assert [case.op for case in cases.suite(2, shapes=["7x8x8"])] == [
        "all_gather",
        "reduce_scatter",
    ]


class Clock:
    """Contenders whose times are a list each, and the order in which they ran."""

    def __init__(self, **times):
        self.times, self.order = {name: iter(of) for name, of in times.items()}, []

    def samplers(self):
        def sampler(name):
            def sample():
                self.order.append(name)
                return next(self.times[name])

            return sample

        return {name: sampler(name) for name in self.times}


@pytest.mark.parametrize("rank", [0, 1])
def test_what_does_not_compile_on_one_rank_is_told_to_all(rank, monkeypatch):
    ended, told = [], []

    class Built:
        def __init__(self, units, device): ...
        def wait(self, timeout_s): ...
        def end(self):
            ended.append(rank)

    def prepare(languages, dtypes, stamped):
        raise ToolchainError("nvcc is not there")

    def broadcast(values, group):
        told.append(list(values))
        values[0] = "nvcc is not there"

    monkeypatch.setattr(run, "Ahead", Built)
    monkeypatch.setattr(run.engine, "engine", lambda: SimpleNamespace(prepare=prepare))
    monkeypatch.setattr(run.dist, "broadcast_object_list", broadcast)
    ranks = SimpleNamespace(rank=rank, group=None)
    with pytest.raises(TcgemmError, match="nvcc is not there"):
        run.compile_ahead(ranks, ("cuda",), cases.suite(2, rows=(512,)), timeline=False)
    assert (ended, told) == (([0], [["nvcc is not there"]]) if rank == 0 else ([], [[""]]))


def test_local_products_are_compiled_ahead_once_in_each_language():
    suite = cases.suite(2, rows=(512,))
    units = run.local_products([*suite, suite[0]], ("triton", "cuda"))
    assert len(units) == 16
    assert {unit.backend for unit in units} == {"triton", "cuda"}
    (gathers,) = {unit.case for unit in units if unit.index == 0}
    assert (gathers.M, gathers.N, gathers.K, gathers.layout) == (512, 6144 // 2, 4096, "nt")


def test_contenders_run_in_turns_and_the_slowest_rank_counts():
    clock = Clock(nccl=[2.0, 4.0, 3.0], mine=[1.0, 2.0, 1.0], cublas=[0.5, 0.5, 0.5])
    asked = []

    def slowest(numbers):
        asked.append(numbers)
        return [2 * ms for ms in numbers]  # another rank takes twice as long

    times = pairing.take_rounds(clock.samplers(), 3, slowest)
    assert len(asked) == 1  # one call of all ranks
    assert times == {"nccl": [4, 8, 6], "mine": [2, 4, 2], "cublas": [1, 1, 1]}
    assert clock.order == ["nccl", "mine", "cublas", "nccl", "cublas", "mine",
                           "cublas", "nccl", "mine"]  # fmt: skip


def test_figures_by_hand():
    times = {"mine": [2.0, 2.0, 4.0], "nccl": [3.0, 4.0, 4.0], "cublas": [1.0, 1.5, 1.0]}
    found = pairing.figures(times, "mine", 0.5, "cublas", "nccl", "torch")
    assert (found["ms_p50"], found["gemm_ms"], found["nccl_ms"]) == (2.0, 1.0, 4.0)
    assert found["ratio_nccl"] == 1.5  # of 1.5, 2 and 1, round by round
    assert found["torch_fused_ms"] is found["ratio_torch"] is None
    assert found["of_limit"] == 0.5  # the product is the longer part
    assert pairing.figures(times, "mine", 1.6, "cublas", "nccl", "torch")["of_limit"] == 0.8


def test_the_number_of_rounds_fits_the_budget():
    assert pairing.how_many([1.0, 1.0], 0.4) == 100
    assert pairing.how_many([1000.0], 0.1) == pairing.LEAST
    assert pairing.how_many([0.01], 1e6) == pairing.MOST


def test_rows_are_kept_and_other_columns_refused(tmp_path):
    row = {"run": "r", "world": 2, "op": "all_gather", "M": 8, "ms_p50": 1.25, "reason": "a\nb"}
    cases.append(tmp_path, [row])
    cases.append(tmp_path, [row])
    first, second = cases.read(tmp_path)
    assert first == second
    assert (first["ms_p50"], first["reason"], first["of_limit"]) == ("1.25", "a b", "")
    with (tmp_path / cases.SEVERAL).open("a") as file:
        file.write("1,2\n")
    with pytest.raises(ResultsError, match="line 4 has another number of cells"):
        cases.read(tmp_path)
    (tmp_path / cases.SEVERAL).write_text("a,b\n1,2\n")
    with pytest.raises(ResultsError, match="other columns"):
        cases.append(tmp_path, [row])
    assert cases.read_stamps(tmp_path) == []


def test_a_line_cut_short_is_no_row_and_does_not_spoil_the_next(tmp_path):
    row = {"run": "r", "world": 2, "op": "all_gather", "M": 8, "seed": 123}
    path = cases.append(tmp_path, [row, row])
    path.write_bytes(path.read_bytes()[:-2])
    assert len(cases.read(tmp_path)) == 1, "a seed of 12 was never drawn"
    cases.append(tmp_path, [row])
    assert [each["seed"] for each in cases.read(tmp_path)] == ["123", "123"]


def test_without_torchrun_it_says_how(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    result = CliRunner().invoke(app, ["bench", "--several"])
    assert isinstance(result.exception, OperandError)
    assert "torchrun --nproc-per-node GPUS -m tcgemm bench --several" in str(result.exception)


@pytest.mark.exhaustive
def test_the_command_over_two_gloo_ranks(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m",
               "tcgemm", "bench", "--several", "--out", str(tmp_path)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = cases.read(tmp_path)
    planned = [row for row in rows if row["contender"] == "planned"]
    assert len(planned) == 4
    for row in planned:
        assert (row["status"], row["world"], row["exact_errors"], row["ms_p50"]) == (
            "ok", "2", "0", "",
        )  # fmt: skip
    again = subprocess.run([*command, "--resume"], capture_output=True, env=environment)
    assert again.returncode == 0
    assert cases.read(tmp_path) == rows
    other = subprocess.run([*command, "--resume", "--seed", "1"], capture_output=True,
                           env=environment)  # fmt: skip
    assert other.returncode == 0
    assert len(cases.read(tmp_path)) == 2 * len(rows), "of another seed there was none"


@pytest.mark.gpu
def test_the_command_over_two_gpus(tmp_path):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m",
               "tcgemm", "bench", "--several", "--shape", "4096x4096x4096", "--out",
               str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for row in cases.read(tmp_path):
        assert row["status"] in ("ok", "unsupported"), row
        if row["status"] == "ok":
            assert 0 < float(row["of_limit"]) < 1.05
            assert float(row["ratio_nccl"]) > 0.9
