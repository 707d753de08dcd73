"""The current GPU as a machine to tune: compilers in threads, the project's oracle and timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...bench.case import Case
from ...errors import TcgemmError
from .backends import part_of
from .search import Bench, Candidate, Outcome

if TYPE_CHECKING:
    from ...problem import Plan


class ThisGpu:
    """The current GPU, with the project's own oracle and timer."""

    def __init__(self, budget_s: float, jobs: int, backend: str = "triton") -> None:
        import torch

        self._backend = backend
        plans = part_of(backend, "plans")
        self.gpu, self._shared, self._processors = plans.gpu_here()
        self._capability = torch.cuda.get_device_capability()
        self._budget_s, self._jobs = budget_s, jobs

    def capturing(self) -> bool:
        import torch

        return torch.cuda.is_current_stream_capturing()

    def candidates(self, case: Case, kernels: Sequence[str]) -> list[Candidate]:
        from ... import dispatch

        of = part_of(self._backend, "candidates").candidates
        plans = part_of(self._backend, "plans")
        problem = case.product(capability=self._capability)
        found = []
        for kernel in kernels:
            if dispatch.find(self._backend, kernel).why_not(problem) is not None:
                continue
            transposed = kernel in plans.DIVIDING and problem.M > problem.N
            seen = problem.transposed() if transposed else problem
            for config in of(kernel, seen, self._shared, self._processors):
                plan = plans.divide(kernel, config, seen, self._processors, transposed)
                found.append(Candidate(kernel, config, plan))
        return found

    def compile(self, case: Case, candidates: Sequence[Candidate]) -> list[Outcome | None]:
        # CUDA's are built where they are called: one build a rung, of one_wave one a setting.
        if self._backend != "triton":
            return [None] * len(candidates)
        compile_only = part_of(self._backend, "compile_only")
        requests = [
            compile_only.Request(
                c.kernel, c.plan, case.dtype_in, case.dtype_out, case.layout, self._capability,
                case.M, case.N, case.K,
            )
            for c in candidates
        ]  # fmt: skip
        return compile_in_threads(compile_only.compile_rungs, requests, candidates, self._jobs)

    def prepare(self, case: Case) -> tuple[str, Bench]:
        from ... import dispatch
        from ...problem import Plan

        # What runs once a table of the user's own speaks of the problem.
        problem = case.product(capability=self._capability)
        row, _ = dispatch.by_models(problem, self._backend)
        plan = Plan(self._backend, row.name, row.plan(problem))
        return f"{plan.kernel} {plan.settings}", _Operands(case, plan, self._budget_s)


def compile_in_threads(
    compile_rungs: Callable[[Sequence[Any]], list[Any]],
    requests: Sequence[Any],
    candidates: Sequence[Candidate],
    jobs: int,
) -> list[Outcome | None]:
    """Compile in ``jobs`` threads, each a child process at a time: why each is dropped, or None."""
    from concurrent.futures import ThreadPoolExecutor

    def group(indices: Sequence[int]) -> list[tuple[int, Outcome | None]]:
        try:
            built = compile_rungs([requests[i] for i in indices])
        except RuntimeError as error:
            if len(indices) > 1:  # one of them fails: find out which
                return [answer for i in indices for answer in group([i])]
            (i,) = indices
            lines = str(error).strip().splitlines() or [""]
            return [(i, Outcome(candidates[i], "failed", lines[-1][:200]))]
        return [(i, _why_dropped(candidates[i], b)) for i, b in zip(indices, built, strict=True)]

    groups = [range(start, len(requests), jobs) for start in range(min(jobs, len(requests)))]
    answers: dict[int, Outcome | None] = {}
    with ThreadPoolExecutor(jobs) as threads:
        for part in threads.map(group, groups):
            answers.update(part)
    return [answers[i] for i in range(len(requests))]


def _why_dropped(candidate: Candidate, built: Any) -> Outcome | None:
    if built.spill_bytes:
        return Outcome(candidate, "spills", f"{built.spill_bytes} bytes a thread")
    if built.serialized:
        return Outcome(candidate, "spills", "ptxas serialises its tensor-core instructions")
    return None


class _Operands:
    """A problem on the GPU: the oracle, the buffers to rotate over, the present choice's timer."""

    def __init__(self, case: Case, present: Plan, budget_s: float) -> None:
        from ... import accuracy, dispatch
        from ...bench.launches import Launches, rotating_operands

        self._oracle = accuracy.Oracle(
            case.M, case.N, case.K, case.dtype_in, case.dtype_out, case.layout, "cuda"
        )
        self._sets, _, self._ring = rotating_operands(case)
        self._budget_s, self._backend = budget_s, present.backend
        self._present = Launches(
            self._bound(dispatch.load(present.backend, present.kernel), present.config), self._ring
        )

    def _bound(self, run: Callable[..., None], plan: Mapping[str, Any]) -> list[Callable[[], None]]:
        return [partial(run, *abc, **plan) for abc in self._sets]

    def verify(self, candidate: Candidate) -> str:
        from ... import dispatch

        run = dispatch.load(self._backend, candidate.kernel)
        verdict = self._oracle.check(lambda a, b, c: run(a, b, c, **candidate.plan))
        return "" if verdict.ok else verdict.reason

    def time(self, candidate: Candidate) -> tuple[float, float]:
        from ... import dispatch
        from ...bench.launches import Launches
        from ...bench.timing import measure

        run = dispatch.load(self._backend, candidate.kernel)
        mine = Launches(self._bound(run, candidate.plan), self._ring)
        timing = measure(mine, self._present, budget_s=self._budget_s)
        if timing.ratio_p50 is None:
            raise TcgemmError(f"{candidate} has no time beside the present choice")
        return timing.ms_p50, timing.ratio_p50
