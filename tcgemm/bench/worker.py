"""The process that does the work: verifies, then times, kernel by kernel, and sends rows back.

It may hang, crash or lose its GPU context at any launch of a kernel; the parent (``run``) watches,
writes the row that says so, and starts another worker with what is left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from .. import accuracy, dispatch, gpus
from ..problem import EPILOGUES, Fusion
from .cases import Case
from .environment import gpu_uuid, set_precision
from .telemetry import Telemetry
from .timing import Launches, measure, rotating_operands, why_impossible

BASELINE = ("cublas", "cublas")
"""Backend and kernel that every ratio is taken against."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One kernel on one case: what becomes one row."""

    index: int
    case: Case
    backend: str
    kernel: str

    @property
    def full_name(self) -> str:
        return f"{self.backend}/{self.kernel}"


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told."""

    units: tuple[Unit, ...]
    """In the order of their cases: the operands of a case are made once."""
    backends: dict[str, str]
    """The table ``dispatch.BACKENDS`` of the parent."""
    device: str
    seed: int
    budget_s: float
    log: str
    """File that takes the worker's standard output and error."""


def work(connection: Connection, job: Job) -> None:
    """Entry of the worker process.

    Sends ("ready",), then for each unit ("begin", index) and ("row", index, columns, throttle
    reasons), and at last ("done",).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    descriptor = os.open(job.log, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    dispatch.BACKENDS.update(job.backends)
    set_precision()
    connection.send(("ready",))
    bench: _CaseBench | None = None
    compiled: set[tuple[str, ...]] = set()
    for unit in job.units:
        connection.send(("begin", unit.index))
        if bench is None or bench.case != unit.case:
            bench = None
            _release_memory(job.device)
            bench = _CaseBench(unit.case, job, compiled)
        row, throttle = bench.measure(unit)
        connection.send(("row", unit.index, row, throttle))
        if row["status"] == "failed" and not _healthy(job.device):
            os._exit(1)  # the context is lost: another process goes on
    connection.send(("done",))


class _CaseBench:
    """One case: operands, references, rotating buffers and the baseline, made on first need."""

    def __init__(self, case: Case, job: Job, compiled: set[tuple[str, ...]]) -> None:
        self.case = case
        self._job = job
        self._compiled = compiled
        self._made: dict[str, Any] = {}

    def measure(self, unit: Unit) -> tuple[dict[str, Any], list[str]]:
        """The columns that measuring gives, and the throttle reasons seen; never raises."""
        row: dict[str, Any] = {
            "status": "failed",
            "reason": "",
            "timer": "none",
            "data": "normal",
            "seed": self._job.seed,
        }
        throttle: list[str] = []
        try:
            throttle = self._fill(unit, row)
        except Exception as error:
            row["status"] = "failed"
            row["reason"] = f"{type(error).__name__}: {error}"[:500]
        if row["status"] in ("failed", "wrong"):
            # It may have written anywhere, into the operands too; what cannot be made stays so.
            self._made = {k: v for k, v in self._made.items() if isinstance(v, Exception)}
        return row, throttle

    def _fill(self, unit: Unit, row: dict[str, Any]) -> list[str]:
        fusion = self._once("what is fused", self._fusion)
        oracle = self._once("operands", self._oracle)
        kernel = dispatch.find(unit.backend, unit.kernel)
        fusion = _asked_of(kernel, fusion)
        problem = dispatch.problem_of(oracle.a, oracle.b, oracle.output(), fusion)
        if reason := kernel.why_not(problem):
            row |= {"status": "unsupported", "reason": reason}
            return []
        plan = dispatch.Plan(unit.backend, unit.kernel, kernel.plan(problem))
        row["config"] = plan.settings
        row["chosen"] = "yes" if dispatch.choose(problem, unit.backend) is kernel else "no"

        calls: list[float] = []
        loading = time.perf_counter()
        launch = dispatch.load(unit.backend, unit.kernel)
        loading = time.perf_counter() - loading

        def timed_call(a: Any, b: Any, c: Any) -> None:
            began = time.perf_counter()
            _bind(kernel, launch, a, b, c, fusion)()
            self._synchronize()
            calls.append(time.perf_counter() - began)

        verdict = oracle.check(timed_call)
        case = self.case
        key = (
            unit.full_name, plan.settings, case.dtype_in, case.dtype_out, case.compute, case.fused,
            case.mma_shape,
        )  # fmt: skip
        if key not in self._compiled:
            # The second call is the kernel alone, compiled: the rest of the first was preparation.
            self._compiled.add(key)
            row["compile_s"] = loading + max(0.0, calls[0] - calls[1])
        row |= {"error_ratio": verdict.error_ratio, "exact_errors": verdict.exact_errors}
        if not verdict.ok:
            row |= {"status": "wrong", "reason": verdict.reason}
            return []
        if self._job.device != "cuda":
            row["status"] = "ok"
            return []
        return self._time(unit, kernel, launch, row)

    def _time(
        self, unit: Unit, kernel: Any, launch: Callable[..., None], row: dict[str, Any]
    ) -> list[str]:
        buffers, cache, ring = self._once("buffers", self._buffers)
        baseline = self._baseline()
        if (unit.backend, unit.kernel) == BASELINE and baseline is not None:
            contender = baseline
        else:
            contender = Launches([_bind(kernel, launch, *each) for each in buffers], ring)
        with Telemetry(gpu_uuid()) as telemetry:
            timing = measure(contender, baseline, budget_s=self._job.budget_s)
        case = self.case
        ceiling = gpus.lookup(torch.cuda.get_device_name()).ceiling_tflops(
            case.dtype_in, telemetry.sm_clock_mhz, case.compute
        )
        flop = 2 * case.M * case.N * case.K
        if reason := why_impossible(flop, timing.ms_p50, ceiling):
            row |= {"status": "failed", "reason": reason}
            return telemetry.throttle_reasons
        row |= {
            "status": "ok",
            "ms_p20": timing.ms_p20,
            "ms_p50": timing.ms_p50,
            "ms_p80": timing.ms_p80,
            "ratio_p20": timing.ratio_p20,
            "ratio_p50": timing.ratio_p50,
            "ratio_p80": timing.ratio_p80,
            "rounds": timing.rounds,
            "timer": timing.timer,
            "cache": cache,
            "sm_clock_mhz": telemetry.sm_clock_mhz,
            "power_w": telemetry.power_w,
        }
        return telemetry.throttle_reasons

    def _once(self, what: str, make: Callable[[], Any]) -> Any:
        """The value of ``make``, made once; its failure is remembered, not repeated."""
        if what not in self._made:
            try:
                self._made[what] = make()
            except Exception as error:
                self._made[what] = RuntimeError(f"cannot make {what}: {error}"[:400])
        value = self._made[what]
        if isinstance(value, Exception):
            raise value
        return value

    def _oracle(self) -> Any:
        case, fusion = self.case, self._once("what is fused", self._fusion)
        return accuracy.Oracle(
            case.M, case.N, case.K, case.dtype_in, case.dtype_out, case.layout,
            self._job.device, self._job.seed, case.compute, fusion,
        )  # fmt: skip

    def _fusion(self) -> Fusion:
        """What the case asks beyond the product, on fresh normal data."""
        case, device = self.case, self._job.device
        generator = torch.Generator(device).manual_seed(self._job.seed + 1_000_003)
        dtype = accuracy.as_dtype(case.dtype_out)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        words = case.fused.split()
        residual = "residual" in words
        return Fusion(
            beta=float(residual),
            c=normal(case.M, case.N) if residual else None,
            bias=normal(case.N) if "bias" in words else None,
            epilogue=next((word for word in words if word in EPILOGUES), ""),
            compute=case.compute,
            mma_shape=case.mma_shape,
        )

    def _buffers(self) -> Any:
        operands, cache, ring = rotating_operands(self.case, self._job.seed)
        fusion = self._once("what is fused", self._fusion)
        fusions = (
            fusion if fusion.c is None else replace(fusion, c=fusion.c.clone()) for _ in operands
        )
        return [(*abc, each) for abc, each in zip(operands, fusions, strict=True)], cache, ring

    def _baseline(self) -> Any:
        """cuBLAS on the same buffers; None where it refuses or fails."""

        def make() -> Any:
            buffers, _, ring = self._once("buffers", self._buffers)
            kernel = dispatch.find(*BASELINE)
            launch = dispatch.load(*BASELINE)
            launches = Launches([_bind(kernel, launch, *each) for each in buffers], ring)
            launches.estimate()
            return launches

        try:
            return self._once("the baseline", make)
        except RuntimeError:
            return None

    def _synchronize(self) -> None:
        if self._job.device == "cuda":
            torch.cuda.synchronize()


def _asked_of(kernel: Any, fusion: Fusion) -> Fusion:
    """What is asked of the kernel; the baseline chooses its instructions itself."""
    return replace(fusion, mma_shape="") if kernel.backend == BASELINE[0] else fusion


def _bind(
    kernel: Any, launch: Callable[..., None], a: Any, b: Any, c: Any, fusion: Fusion
) -> Callable[[], None]:
    """The launch on these operands, planned for them: nothing but the launch is left to time."""
    fusion = _asked_of(kernel, fusion)
    problem = dispatch.problem_of(a, b, c, fusion)
    more = {} if problem.plain else {"fusion": fusion}
    return partial(launch, a, b, c, **more, **kernel.plan(problem))


def _release_memory(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()


def _healthy(device: str) -> bool:
    """Whether this process can still use its device."""
    if device != "cuda":
        return True
    try:
        return float(torch.ones(8, device="cuda").sum()) == 8
    except RuntimeError:
        return False
