"""``tcgemm bench --steady``: one kernel alone for seconds, at the power where it settles.

The other timings are of bursts so short that the board keeps its clock. A kernel that runs for
seconds meets the power cap, and what counts then is the energy of an operation. Contenders run in
turns, each alone for its time; rows are kept in ``steady.csv`` of a results folder. Imports torch
only where it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ResultsError
from .appended import Appended
from .case import CASE_COLUMNS, Case, case_of_row
from .store import cell
from .telemetry import Telemetry, device_handle

if TYPE_CHECKING:
    from .launches import Ring

STEADY = "steady.csv"

LATER = ("compute", "data", "seed")
COLUMNS = (
    *("run", "backend", "kernel", "dtype_in", "dtype_out", "layout", "M", "N", "K", "turn"),
    *("seconds", "launches", "tflops", "sm_clock_mhz", "power_w", "mj_per_tflop", "throttle"),
    *LATER,
)
"""Described in docs/measuring.md."""

TURNS = 3
BURST_S = 0.02
"""Of launches between two looks at the clock: the gap between bursts is some 10 us."""


class Meter:
    """What NVML says of a GPU: energy in all, and clock and power while something runs."""

    def __init__(self, uuid: str | None = None) -> None:
        self._uuid, self._device = uuid, device_handle(uuid)

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded; None where NVML does not say."""
        if self._device is None:
            return None
        nvml, handle = self._device
        with suppress(nvml.NVMLError):
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        return None

    def watching(self) -> Telemetry:
        """A context that samples clock and power."""
        return Telemetry(self._uuid)


def measure(
    contenders: Mapping[str, Callable[[], None]],
    flop: int,
    *,
    seconds: float,
    meter: Any,
    synchronize: Callable[[], None],
    turns: int = TURNS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Any]]:
    """Each contender alone for so many seconds, in turns: a row for each of its turns.

    Args:
        contenders: name -> a function that launches once.
        flop: of a launch.
        seconds: of a turn.
        meter: as ``Meter``.
        synchronize: waits for the GPU.
        turns: of each; every second one in the reverse order.
        clock: seconds.

    Returns:
        Rows with the columns from ``turn`` on, and ``name``. What NVML does not say is None.
    """
    rows = []
    for turn in range(1, turns + 1):
        names = list(contenders)
        for name in names if turn % 2 else reversed(names):
            row = _alone(contenders[name], flop, seconds, meter, synchronize, clock)
            rows.append({"name": name, "turn": turn, **row})
    return rows


def _alone(
    launch: Callable[[], None],
    flop: int,
    seconds: float,
    meter: Any,
    synchronize: Callable[[], None],
    clock: Callable[[], float],
) -> dict[str, Any]:
    launch()
    synchronize()
    began = clock()
    for _ in range(3):
        launch()
    synchronize()
    burst = max(1, round(BURST_S / max((clock() - began) / 3, 1e-7)))
    launches = 0
    with meter.watching() as watched:
        before, began = meter.energy_j(), clock()
        while (took := clock() - began) < seconds:
            for _ in range(burst):
                launch()
            synchronize()
            launches += burst
        after = meter.energy_j()
    tflop = launches * flop / 1e12
    power = watched.power_w
    if before is not None and after is not None and after > before:
        power = (after - before) / took  # of the whole turn, where samples are of moments
    return {
        "seconds": took,
        "launches": launches,
        "tflops": tflop / took,
        "sm_clock_mhz": watched.sm_clock_mhz,
        "power_w": power,
        "mj_per_tflop": None if power is None else 1e3 * power * took / tflop,
        "throttle": "; ".join(watched.throttle_reasons),
    }


@dataclass(frozen=True, slots=True)
class Alone:
    """A kernel on operands that take turns: each call of this launches it once, on the next."""

    name: str
    case: Case
    calls: Sequence[Callable[[], Any]]
    sets: Sequence[tuple[Any, Any, Any]]
    """A, B and C of each call; C is shared with the other contenders."""
    ring: Ring

    def __call__(self) -> None:
        self.calls[self.ring.turn()]()

    def check(self, synchronize: Callable[[], None]) -> None:
        """Run every call on a poisoned C. Raises ResultsError where the last result is wrong."""
        from .. import accuracy
        from ..problem import Fusion

        for _, _, c in self.sets:
            c.copy_(accuracy.poisoned((), c.dtype, c.device).expand_as(c))
        for call in self.calls:
            call()
        synchronize()
        ratio = accuracy.error_ratio(*self.sets[-1], Fusion(compute=self.case.compute))
        if not ratio <= 1:
            raise ResultsError(f"{self.name} is wrong on {self.case}: {ratio:.3g} of the bound")


def contenders(
    case: Case,
    backends: Sequence[str],
    kernel: str | None = None,
    *,
    seed: int = 0,
    synchronize: Callable[[], None],
) -> dict[str, Alone]:
    """cuBLAS, and the kernel that each backend chooses for a case, or the one of that name.

    "backend/kernel" -> the kernel on operands made from the seed. Each has been seen to be right.
    Raises UnsupportedError where a kernel refuses, ResultsError where it is wrong.
    """
    from .. import dispatch
    from ..problem import Fusion
    from .launches import repeated_calls, rotating_operands

    sets, _, ring = rotating_operands(case, seed)
    asked = Fusion(compute=case.compute)
    problem = dispatch.problem_of(*sets[0], asked)
    rows = [dispatch.find("cublas", "cublas")]
    rows += [dispatch.choose(problem, name, kernel) for name in backends if name != "cublas"]
    found: dict[str, Alone] = {}
    for row in rows:
        calls = repeated_calls(row.backend, row.name, [(*operands, asked) for operands in sets])
        alone = Alone(row.full_name, case, calls, sets, ring)
        alone.check(synchronize)
        found[row.full_name] = alone
    return found


def rows_of(
    case: Case, run: str, measured: Sequence[Mapping[str, Any]], seed: int = 0
) -> list[dict[str, Any]]:
    """``measure``'s rows with the case, the run and the seed in them, as the file has them."""
    rows = []
    for each in measured:
        backend, _, kernel = each["name"].partition("/")
        facts = {"run": run, "backend": backend, "kernel": kernel, "seed": seed, **each}
        facts |= {name: getattr(case, name) for name in CASE_COLUMNS if name in COLUMNS}
        rows.append({name: cell(facts[name]) for name in COLUMNS})
    return rows


_FILE = Appended(STEADY, COLUMNS, "tcgemm bench --steady", LATER)
read, append = _FILE.read, _FILE.append


HEADER = ["product", "kernel", "TFLOPS", "MHz", "W", "mJ per TFLOP", "turns of s"]


def table(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A line for each product and kernel of its last run: HEADER, means over the turns."""
    last = {_case_of(row): row["run"] for row in rows}
    groups: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        if row["run"] == last[_case_of(row)]:
            groups.setdefault((_case_of(row), row["backend"], row["kernel"]), []).append(row)
    made = []
    for (product, backend, kernel), turns in groups.items():
        means = []
        for name in ("tflops", "sm_clock_mhz", "power_w", "mj_per_tflop"):
            known = [float(row[name]) for row in turns if row[name]]
            means.append(f"{sum(known) / len(known):.0f}" if known else "-")
        of = f"{len(turns)} x {float(turns[0]['seconds']):.1f}"
        made.append([product, f"{backend}/{kernel}", *means, of])
    return made


def _case_of(row: Mapping[str, str]) -> str:
    return str(case_of_row({**row, "fused": "", "mma_shape": ""}))


def lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """What ``tcgemm bench --steady`` prints of a run."""
    return [
        f"{product}  {kernel}: {tflops} TFLOPS at {mhz} MHz and {watts} W, {energy} mJ per TFLOP"
        for product, kernel, tflops, mhz, watts, energy, _ in table(rows)
    ]
