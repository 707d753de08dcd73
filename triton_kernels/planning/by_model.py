"""Planners of kernels on CUDA cores, by a model of their time alone. Imports no triton."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import gpus
from .planner import Config, Planner

Model = Callable[[Config, Any, int], float]
"""Microseconds of a configuration, for a problem as it is computed, on so many SMs."""


def fastest_of(
    configs: Iterable[Config], model: Model, problem: Any, processors: int
) -> tuple[float, Config]:
    """(microseconds, configuration) by the model, for a problem as it is computed."""
    times = ((model(each, problem, processors), each) for each in configs)
    return min(times, key=lambda found: found[0])


class PlannerByModel(Planner):
    """No table has its rows: a plan is the fastest of its configurations by the model."""

    has_table = False

    def fastest(self, problem: Any, processors: int) -> tuple[float, Config]:
        """As ``fastest_of``, of the kernel's own configurations and model."""
        raise NotImplementedError

    def pays(self, problem: Any) -> bool:
        """Only where it is settled, or its time is less than another kernel's; see ``own_us``."""
        return False

    def copies(self, problem: Any) -> Config:
        """Operands are read as they lie."""
        return {}

    def rows(self, rows: list[dict[str, Any]], problem: Any, limit: int) -> list[dict[str, Any]]:
        """The fastest configuration by the model."""
        return [{"config": self.fastest(problem, gpus.sms_of(problem))[1]}]

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        pdl = problem.device != "cpu" and (problem.capability or (9, 0)) >= (9, 0)
        return {"SWAP": int(transposed), **config, "PDL": int(pdl)}

    def unaligned_us(self, problem: Any) -> float | None:
        seen = problem.transposed() if self.transposes(problem) else problem
        return self.fastest(seen, gpus.sms_of(problem))[0]
