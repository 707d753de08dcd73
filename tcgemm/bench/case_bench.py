"""One case on one device: each kernel verified, then timed, then what was timed verified.

A kernel is right before it is timed, so a wrong one never has a time; the outputs of the very
launches that were timed are checked once more, and what the kernel may only read is compared, bit
for bit, with what it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .. import accuracy, dispatch, gpus
from ..choosing.sums import as_summed
from ..problem import EPILOGUES, Fusion
from .case import Case
from .contender import Contender, Set, asked_of, contender
from .environment import gpu_uuid
from .launches import Launches, Ring, followed, rotating_operands
from .telemetry import Telemetry
from .timing import (
    GRAPH_BELOW_MS,
    CaptureError,
    Timing,
    measure,
    measure_among,
    why_impossible,
)

BASELINE = ("cublas", "cublas")
"""Backend and kernel that every ratio is taken against."""

AT_ITS_BEST = "cublas_best"
"""The fastest of the baseline's candidates."""

LOOSELY_BOUND = ("float16", "fast")
"""Ways to sum whose bound is so wide for a long K that it does not see a dropped last k, in float16
not even zeros: what was timed is held to exact integers there, besides."""

TIMERS = {"graph": "CUDA-graph replays", "events": "launches between events"}


class WrongError(Exception):
    """The kernel is wrong; the text is a sentence that says how."""


class CaseBench:
    """One case: operands, references, rotating buffers and the baseline, made on first need.

    Args:
        case: what is measured.
        device: "cuda", or "cpu", where nothing is timed.
        seed: of the operands.
        budget_s: seconds of timing for each kernel.
        compiled: what has been compiled in this run, by kernel, settings and types; added to.
    """

    def __init__(
        self, case: Case, device: str, seed: int, budget_s: float, compiled: set[tuple[str, ...]]
    ) -> None:
        self.case = case
        self._device, self._seed, self._budget_s = device, seed, budget_s
        self._compiled = compiled
        self._made: dict[str, Any] = {}

    def measure(self, backend: str, kernel: str) -> tuple[list[dict[str, Any]], list[str]]:
        """The columns that measuring gives, and the throttle reasons seen; never raises.

        The first row says what became of the kernel; rows of a short product timed among other
        kernels follow it.
        """
        others: list[dict[str, Any]] = []
        row: dict[str, Any] = {
            "status": "failed",
            "reason": "",
            "timer": "none",
            "data": self.case.data,
            "seed": self._seed,
        }
        throttle: list[str] = []
        try:
            throttle = self._fill(backend, kernel, row, others)
        except WrongError as error:
            row |= {"status": "wrong", "reason": str(error)}
        except Exception as error:
            row["status"] = "failed"
            row["reason"] = f"{type(error).__name__}: {error}"[:500]
        if row["status"] in ("failed", "wrong"):
            # It may have written anywhere, into the operands too, which are made anew for the next
            # kernel; what cannot be made stays so.
            self._made = {k: v for k, v in self._made.items() if isinstance(v, Exception)}
            others = []
        return [row, *({**row, "compile_s": None, **other} for other in others)], throttle

    def _fill(
        self, backend: str, kernel: str, row: dict[str, Any], others: list[dict[str, Any]]
    ) -> list[str]:
        fusion = self._once("what is fused", self._fusion)
        oracle = self._once("operands", self._oracle)
        copies = self._once("copies of the operands", self._copies)
        fusion = asked_of(backend, fusion)
        problem = dispatch.problem_of(oracle.a, oracle.b, oracle.output(), fusion)
        mine = contender(backend, kernel, problem, oracle.a, oracle.b, fusion)
        if isinstance(mine, str):
            row |= {"status": "unsupported", "reason": mine}
            return []
        plan = mine.plan
        row["config"], row["kernel"] = plan.settings, plan.kernel
        asked = as_summed(problem, backend)
        chosen = mine.kernel is None or dispatch.choose(asked, backend).name == plan.kernel
        row["chosen"] = "yes" if chosen else "no"

        calls: list[float] = []

        def timed_call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
            began = time.perf_counter()
            mine.run(a, b, c, fusion)
            self._synchronize()
            calls.append(time.perf_counter() - began)

        verdict = oracle.check(timed_call)
        case = self.case
        key = (
            backend, plan.kernel, plan.settings, case.dtype_in, case.dtype_out, case.compute,
            case.fused, case.mma_shape,
        )  # fmt: skip
        if key not in self._compiled:
            # The second call is the kernel alone, compiled: the rest of the first was preparation.
            self._compiled.add(key)
            row["compile_s"] = mine.loading_s + max(0.0, calls[0] - calls[1])
        row |= {"error_ratio": verdict.error_ratio, "exact_errors": verdict.exact_errors}
        copies.check()
        if not verdict.ok:
            raise WrongError(verdict.reason)
        if self._device != "cuda":
            row["status"] = "ok"
            return []
        return self._time(mine, row, others)

    def _time(
        self, mine: Contender, row: dict[str, Any], others: list[dict[str, Any]]
    ) -> list[str]:
        buffers, cache, ring = self._once("buffers", self._buffers)
        copies = self._once("copies of the buffers", lambda: _Copies(_named(buffers)))
        baseline = self._baseline()
        if (mine.backend, mine.kernel) == BASELINE and baseline is not None:
            launches = baseline
        else:
            launches = _launches(mine, buffers, ring)
        with Telemetry(gpu_uuid()) as telemetry:
            timing = measure(launches, baseline, budget_s=self._budget_s)
        copies.check()
        self._check_timed(launches, buffers)
        short = launches.estimate() < GRAPH_BELOW_MS
        if short and baseline is not None:
            others += self._time_among(launches, baseline, buffers, ring)
        copies.check()
        case = self.case
        ceiling = gpus.lookup(torch.cuda.get_device_name()).ceiling_tflops(
            case.dtype_in, telemetry.sm_clock_mhz, case.compute
        )
        if reason := why_impossible(case.flop, timing.ms_p50, ceiling):
            row |= {"status": "failed", "reason": reason}
            return telemetry.throttle_reasons
        row |= {
            "status": "ok",
            **_columns(timing),
            "among": "alone" if short else None,
            "cache": cache,
            "sm_clock_mhz": telemetry.sm_clock_mhz,
            "power_w": telemetry.power_w,
        }
        return telemetry.throttle_reasons

    def _time_among(
        self, contender: Launches, baseline: Launches, buffers: list[Set], ring: Ring
    ) -> list[dict[str, Any]]:
        """The columns of the kernel timed among others: in a graph, and in a stream."""
        outputs = [c for _, _, c, _ in buffers]

        def foreign() -> Launches:
            return Launches([partial(c.mul_, 1) for c in outputs], ring)

        def behind_the_baseline() -> Launches:
            return Launches(followed(baseline.calls, outputs), ring)

        theirs = self._once("the baseline among others", behind_the_baseline)
        alone = self._once("the foreign kernel", foreign)
        is_baseline = contender is baseline
        mine = theirs if is_baseline else Launches(followed(contender.calls, outputs), ring)
        rows = []
        for among, timer in (("graph", "graph"), ("stream", "events")):
            try:
                timing = measure_among(mine, theirs, alone, timer, budget_s=self._budget_s / 2)
            except CaptureError:
                continue
            if timing is not None:
                rows.append({**_columns(timing), "among": among})
        self._check_timed(mine, buffers)
        return rows

    def _check_timed(self, contender: Launches, buffers: list[Set]) -> None:
        """Run once more what was timed, on poisoned outputs, and check what its last launch left.

        Raises WrongError where that is not the product.
        """
        a, b, c, fusion = buffers[-1]
        reference = self._once(
            "the reference of what was timed",
            lambda: accuracy.reference_of(a, b, c.dtype, fusion),
        )
        for timer in contender.timers:
            for _, _, each, _ in buffers:
                each.copy_(accuracy.poisoned((), each.dtype, each.device).expand_as(each))
            contender.run_again(timer)
            ratio = reference.error_ratio(c)
            if not ratio <= 1:
                how = (
                    "has elements that are not finite or never written"
                    if math.isinf(ratio)
                    else f"has a worst error of {ratio:.3g} times its bound"
                )
                raise _wrong_when_timed(how, timer)
        if self.case.compute in LOOSELY_BOUND:
            self._check_timed_exactly(contender, a, b, c)

    def _check_timed_exactly(
        self, contender: Launches, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> None:
        """The same on the integers of the exact check, in the place of the last A and B."""
        oracle = self._once("operands", self._oracle)
        before = a.clone(), b.clone()
        try:
            a.copy_(oracle.integer_a)
            b.copy_(oracle.integer_b)
            for timer in contender.timers:
                contender.run_again(timer)
                if errors := oracle.exact_errors(c):
                    raise _wrong_when_timed(f"differs on exact integers ({errors})", timer)
        finally:
            a.copy_(before[0])
            b.copy_(before[1])

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

    def _oracle(self) -> accuracy.Oracle:
        case, fusion = self.case, self._once("what is fused", self._fusion)
        of = (
            case.M, case.N, case.K, case.dtype_in, case.dtype_out, case.layout,
            self._device, self._seed, case.compute, fusion, case.data,
        )  # fmt: skip
        return accuracy.BatchOracle(case.batch, *of) if case.batch > 1 else accuracy.Oracle(*of)

    def _copies(self) -> _Copies:
        oracle = self._once("operands", self._oracle)
        fusion = self._once("what is fused", self._fusion)
        integers = [("A", oracle.integer_a), ("B", oracle.integer_b)]
        return _Copies([("A", oracle.a), ("B", oracle.b), *integers, *_terms(fusion)])

    def _fusion(self) -> Fusion:
        """What the case asks beyond the product, on fresh normal data."""
        case = self.case
        generator = torch.Generator(self._device).manual_seed(self._seed + 1_000_003)
        dtype = accuracy.as_dtype(case.dtype_out)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=self._device).to(dtype)

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

    def _buffers(self) -> tuple[list[Set], str, Ring]:
        operands, cache, ring = rotating_operands(self.case, self._seed)
        fusion = self._once("what is fused", self._fusion)
        fusions = (
            fusion if fusion.c is None else replace(fusion, c=fusion.c.clone()) for _ in operands
        )
        return [(*abc, each) for abc, each in zip(operands, fusions, strict=True)], cache, ring

    def _baseline(self) -> Launches | None:
        """cuBLAS on the same buffers; None where it refuses or fails."""

        def make() -> Launches:
            buffers, _, ring = self._once("buffers", self._buffers)
            a, b, c, fusion = buffers[0]
            problem = dispatch.problem_of(a, b, c, asked_of(BASELINE[0], fusion))
            baseline = contender(*BASELINE, problem, a, b, fusion)
            if isinstance(baseline, str):
                raise RuntimeError(baseline)
            launches = _launches(baseline, buffers, ring)
            launches.estimate()
            return launches

        try:
            made: Launches = self._once("the baseline", make)
        except RuntimeError:
            return None
        return made

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def _wrong_when_timed(how: str, timer: str) -> WrongError:
    return WrongError(
        f"it is right when called for the first time, and C {how} after the "
        f"{TIMERS.get(timer, timer)} that were timed"
    )


def _columns(timing: Timing) -> dict[str, Any]:
    """The columns of a row that a timing gives."""
    return {
        "ms_p20": timing.ms_p20,
        "ms_p50": timing.ms_p50,
        "ms_p80": timing.ms_p80,
        "ratio_p20": timing.ratio_p20,
        "ratio_p50": timing.ratio_p50,
        "ratio_p80": timing.ratio_p80,
        "rounds": timing.rounds,
        "timer": timing.timer,
    }


class _Copies:
    """What the operands were, to see afterwards whether a kernel has changed them."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._pairs = [(name, t, t.clone()) for name, t in named]

    def check(self) -> None:
        """Raise WrongError where an element is not, bit for bit, what it was."""
        changed = [(_bits(now) != _bits(then)).any() for _, now, then in self._pairs]
        if not bool(torch.stack(changed).any()):
            return
        counts: dict[str, int] = {}
        for name, now, then in self._pairs:
            count = int((_bits(now) != _bits(then)).sum())
            counts[name] = counts.get(name, 0) + count
        said = [f"{n} element{'s' if n > 1 else ''} of {name}" for name, n in counts.items() if n]
        raise WrongError(f"it changed {' and '.join(said)}, which a kernel may only read")


def _bits(t: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as integers, so that NaN equals itself and -0 differs from 0."""
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.itemsize])


def _terms(fusion: Fusion) -> list[tuple[str, torch.Tensor]]:
    """The tensors of what is fused, by their names in ``gemm``; C is the one that is read."""
    named = {
        "the C that is read": fusion.c,
        "bias": fusion.bias,
        "scale_a": fusion.scale_a,
        "scale_b": fusion.scale_b,
    }
    return [(name, t) for name, t in named.items() if t is not None]


def _named(buffers: list[Set]) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of the sets that is only read; those that sets share, once."""
    every = [
        (name, t)
        for a, b, _, fusion in buffers
        for name, t in (("A", a), ("B", b), *_terms(fusion))
    ]
    return list({id(t): (name, t) for name, t in every}.values())


def _launches(mine: Contender, buffers: list[Set], ring: Ring) -> Launches:
    sets = [(a, b, c, asked_of(mine.backend, fusion)) for a, b, c, fusion in buffers]
    return Launches(mine.calls(sets), ring)
