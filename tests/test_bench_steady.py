"""``tcgemm bench --steady``: a fake GPU, whose clock, NVML and kernels are a few numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from tcgemm.bench import steady
from tcgemm.bench.case import Case
from tcgemm.bench.launches import Ring
from tcgemm.cli import app
from tcgemm.errors import ResultsError

CASE = Case("shape", 4096, 2048, 1024, "bfloat16", "bfloat16", "nt", "by hand")
FLOP = 2 * 4096 * 2048 * 1024


class Board:
    """Time passes in ``synchronize`` alone, and each kernel has its time and its watts."""

    def __init__(self, **kernels):
        self.now, self.joules, self.owed, self.order = 0.0, 100.0, [], []
        self.kernels = kernels

    def launcher(self, name):
        def launch():
            self.owed.append(self.kernels[name])
            if not self.order or self.order[-1] != name:
                self.order.append(name)

        return launch

    def synchronize(self):
        for us, watts in self.owed:
            self.now += us / 1e6
            self.joules += us / 1e6 * watts
        self.owed.clear()

    def energy_j(self):
        return self.joules

    def watching(self):
        return Watched()


class Watched:
    sm_clock_mhz, power_w, throttle_reasons = 1500.0, 650.0, ["software power cap"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def measured(board, seconds=0.5, meter=None):
    launchers = {name: board.launcher(name) for name in board.kernels}
    return steady.measure(
        launchers, FLOP, seconds=seconds, meter=meter or board, synchronize=board.synchronize,
        clock=lambda: board.now,
    )  # fmt: skip


def test_rates_power_and_energy_are_of_the_whole_turn():
    board = Board(**{"cublas/cublas": (50.0, 700.0), "cuda/rung": (40.0, 600.0)})
    rows = measured(board)
    assert [(row["name"], row["turn"]) for row in rows] == [
        ("cublas/cublas", 1), ("cuda/rung", 1), ("cuda/rung", 2), ("cublas/cublas", 2),
        ("cublas/cublas", 3), ("cuda/rung", 3),
    ]  # fmt: skip
    for row in rows:
        us, watts = board.kernels[row["name"]]
        assert 0.5 <= row["seconds"] < 0.5 + 2 * steady.BURST_S
        assert row["launches"] == pytest.approx(row["seconds"] / us * 1e6, rel=1e-6)
        assert row["tflops"] == pytest.approx(FLOP / us / 1e6, rel=1e-6)
        assert row["power_w"] == pytest.approx(watts)
        assert row["mj_per_tflop"] == pytest.approx(1e3 * watts * us * 1e-6 / (FLOP / 1e12))
        assert (row["sm_clock_mhz"], row["throttle"]) == (1500, "software power cap")


@pytest.mark.parametrize("energy", [None, 5.0])
def test_without_a_count_of_energy_power_is_what_was_sampled(energy):
    board = Board(kernel=(50.0, 700.0))
    meter = SimpleNamespace(energy_j=lambda: energy, watching=Watched)
    assert {row["power_w"] for row in measured(board, meter=meter)} == {650.0}


def test_without_nvml_rates_are_left():
    silent = SimpleNamespace(sm_clock_mhz=None, power_w=None, throttle_reasons=[])
    watching = type("Silent", (Watched,), vars(silent))
    meter = SimpleNamespace(energy_j=lambda: None, watching=watching)
    (row, *_) = steady.rows_of(CASE, "r1", measured(Board(k=(50.0, 1.0)), meter=meter))
    assert (row["power_w"], row["mj_per_tflop"], row["throttle"]) == ("", "", "")
    assert float(row["tflops"]) > 0


def test_nvml_s_energy_is_in_joules(monkeypatch):
    class NVMLError(Exception):
        pass

    def total(handle):
        if handle == "old":
            raise NVMLError
        return 12_500

    nvml = SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetTotalEnergyConsumption=total)
    for found, joules in (((nvml, "new"), 12.5), ((nvml, "old"), None), (None, None)):
        monkeypatch.setattr(steady, "device_handle", lambda uuid, found=found: found)
        assert steady.Meter("x").energy_j() == joules


def test_rows_are_appended_and_shown_by_their_last_run(tmp_path):
    board = Board(**{"cublas/cublas": (50.0, 700.0), "cuda/rung": (40.0, 600.0)})
    for run in ("r1", "r2"):
        steady.append(tmp_path, steady.rows_of(CASE, run, measured(board)))
    rows = steady.read(tmp_path)
    assert len(rows) == 12
    shown = steady.table(rows)
    assert [len(line) for line in shown] == [len(steady.HEADER)] * 2
    assert shown[1][:2] == ["4096x2048x1024 bfloat16 nt", "cuda/rung"]
    energy = f"{600 * 40e-3 / FLOP * 1e12:.0f}"
    assert shown[1][2:6] == [f"{FLOP / 40e6:.0f}", "1500", "600", energy]
    assert shown[1][6] == "3 x 0.5"
    assert "TFLOPS at 1500 MHz and 600 W" in steady.lines(rows)[1]


def test_a_file_with_other_columns_is_left_alone(tmp_path):
    (tmp_path / steady.STEADY).write_text("a,b\n1,2\n")
    with pytest.raises(ResultsError, match="other columns"):
        steady.append(tmp_path, [])
    assert (tmp_path / steady.STEADY).read_text() == "a,b\n1,2\n"


def test_other_data_and_other_sums_are_other_products(tmp_path):
    """Their rates are never averaged into one line, nor taken for those of normal data."""
    board = Board(**{"cuda/rung": (40.0, 600.0)})
    for change in ({}, {"data": "zeros"}, {"dtype_out": "float32"}):
        rows = steady.rows_of(replace(CASE, **change), "r1", measured(board), seed=5)
        steady.append(tmp_path, rows)
    rows = steady.read(tmp_path)
    assert {row["seed"] for row in rows} == {"5"}
    assert [line[0] for line in steady.table(rows)] == [
        "4096x2048x1024 bfloat16 nt",
        "4096x2048x1024 bfloat16 nt data=zeros",
        "4096x2048x1024 bfloat16 -> float32 nt",
    ]
    assert {line[-1] for line in steady.table(rows)} == {"3 x 0.5"}


def test_a_file_of_before_and_a_line_cut_short_go_on(tmp_path):
    board = Board(**{"cuda/rung": (40.0, 600.0)})
    steady.append(tmp_path, steady.rows_of(CASE, "r1", measured(board)))
    path = tmp_path / steady.STEADY
    old = [line.rsplit(",", 3)[0] for line in path.read_text().splitlines()]
    path.write_text("\n".join([*old, "r2,cuda,ru"]))
    assert len(steady.read(tmp_path)) == 3
    steady.append(tmp_path, steady.rows_of(CASE, "r3", measured(board)))
    rows = steady.read(tmp_path)
    assert [row["run"] for row in rows] == ["r1"] * 3 + ["r3"] * 3
    assert [row["data"] for row in rows] == [""] * 3 + ["normal"] * 3
    assert len(steady.table(rows)) == 1, "the older rows are of normal data"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ResultsError, match="not a CSV file"):
        steady.read(tmp_path)


def test_a_kernel_that_writes_nothing_is_not_right_by_what_cublas_left(monkeypatch):
    """All contenders share C, in which the first has put the right product."""
    case = Case("shape", 8, 8, 8, "float32", "float32", "nn", "by hand", compute="ieee")
    a, b, c = torch.eye(8), torch.ones(8, 8), torch.empty(8, 8)
    ring = Ring(1)

    def alone(call):
        return steady.Alone("a/kernel", case, [call], [(a, b, c)], ring)

    right = alone(lambda: torch.mm(a, b, out=c))
    right.check(lambda: None)
    right()
    assert torch.equal(c, b)
    with pytest.raises(ResultsError, match="a/kernel is wrong on 8x8x8"):
        alone(lambda: None).check(lambda: None)
    with pytest.raises(ResultsError, match="wrong"):  # tf32's bound would let it pass
        alone(lambda: torch.mm(a, b * (1 + 2**-12), out=c)).check(lambda: None)


def test_every_column_is_described():
    from pathlib import Path

    text = (Path(__file__).parent.parent / "docs" / "measuring.md").read_text()
    for column in steady.COLUMNS:
        assert f"`{column}`" in text, column


def test_the_report_shows_them(tmp_path):
    from tcgemm.report import sections

    board = Board(**{"cuda/rung": (40.0, 600.0)})
    steady.append(tmp_path, steady.rows_of(CASE, "r1", measured(board)))
    section = sections._steady(SimpleNamespace(path=tmp_path))
    assert section.rows[0][1] == "cuda/rung"
    assert sections._steady(SimpleNamespace(path=tmp_path / "none")).rows == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--suite", "fused"), "plain single products"),
        (("--kernel", "a", "--kernel", "b"), "takes one"),
    ],
)
def test_a_mistake_is_named(arguments, says):
    result = CliRunner().invoke(app, ["bench", "--steady", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code != 0
    assert says in result.output
