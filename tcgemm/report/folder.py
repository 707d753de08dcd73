"""One results folder, read and derived: what every page and figure is made from."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from .. import gpus
from ..bench import store
from ..errors import ResultsError
from .compiled import read_compiled, with_rates
from .counts import read_counts
from .derive import Gpu, derive, plain
from .rows import check_depth, check_row, printable, printable_facts

CPU_NAME = "CPU"
"""What a folder without a GPU is called."""


@dataclass(frozen=True)
class Folder:
    """Results of one GPU, or of a checked run on the CPU."""

    path: Path
    name: str
    """The GPU's name; ``CPU`` where there was none."""
    slug: str
    gpu: Gpu | None
    """Data-sheet figures, None inside where unknown; None for the CPU."""
    table: pd.DataFrame
    """``derive`` of every stored row."""
    runs: dict[str, dict[str, Any]]
    """Run id -> environment, in file order."""
    counts: dict[str, list[dict[str, Any]]] | None = None
    """What the simulator counted, where the folder holds that."""
    compiled: pd.DataFrame | None = None
    """What the compilers made of each rung, with its rate, where the folder holds that."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What was made of it so far, by name: its own page, that of all folders and its README
        show the same."""
        return {}

    @cached_property
    def plain(self) -> pd.DataFrame:
        """The rows of ``table`` that the ladders are compared on: see ``derive.plain``."""
        return plain(self.table)


def load(path: Path) -> Folder:
    """Read one folder. Raises ResultsError where it cannot be used, with the remedy."""
    rows, runs = store.read(path), store.read_environment(path)
    check_depth(path / store.ENVIRONMENT, runs)
    for number, row in enumerate(rows, start=2):
        check_row(path / store.RESULTS, number, row)
    rows = [{name: printable(cell) for name, cell in row.items()} for row in rows]
    runs = printable_facts(runs)
    used = [runs[run] for run in dict.fromkeys(row["run"] for row in rows) if run in runs]
    used = used or list(runs.values())
    if not used:
        raise ResultsError(
            f"{path / store.ENVIRONMENT} says nothing of the runs in {store.RESULTS}, so nobody "
            f"knows which GPU they ran on: measure again with 'tcgemm bench --out DIR'"
        )
    names = list(dict.fromkeys(str(facts.get("gpu") or "") for facts in used))
    if len(names) > 1:
        these = " and ".join(name or "no GPU" for name in names)
        raise ResultsError(
            f"{path} mixes runs of {these}: keep one folder a GPU, and measure the other again "
            "with 'tcgemm bench --out DIR'"
        )
    counts = read_counts(path)
    frame = pd.DataFrame(rows, columns=list(store.COLUMNS), dtype=str)
    if not names[0]:
        table = derive(frame, None, (), _specialists(runs, None))
        return Folder(path, CPU_NAME, "cpu", None, table, runs, counts)
    gpu: Gpu = gpus.lookup(names[0])
    compiled = read_compiled(path)
    ladders = [] if compiled is None else zip(compiled["backend"], compiled["kernel"], strict=True)
    table = derive(frame, gpu, ladders, _specialists(runs, compiled))
    rated = None if compiled is None else with_rates(compiled, table, frame)
    return Folder(path, gpu.name, gpu.slug, gpu, table, runs, counts, rated)


def _specialists(
    runs: dict[str, dict[str, Any]], compiled: pd.DataFrame | None
) -> set[tuple[str, str]]:
    """(backend, kernel) of those that are no rungs of a ladder, as the runs and compilers say."""
    found: set[tuple[str, str]] = set()
    for facts in runs.values():
        named = facts.get("specialists")
        for name in named if isinstance(named, list) else []:
            backend, _, kernel = str(name).partition("/")
            found.add((backend, kernel))
    if compiled is not None and "kind" in compiled:
        of = compiled[compiled["kind"].eq("shape")]
        found |= set(zip(of["backend"], of["kernel"], strict=True))
    return found


MOST_VALUES = 4
"""Values of a fact that a report lists."""


def facts(folder: Folder) -> list[tuple[str, str]]:
    """The environment as (fact, value) pairs; a fact that differs between runs lists each value,
    or the first and the last of more than MOST_VALUES."""
    used = [r for r in dict.fromkeys(folder.table["run"]) if r in folder.runs] or list(folder.runs)
    found: dict[str, list[str]] = {}
    for run in sorted(used, key=list(folder.runs).index):
        for name, value in _flat(folder.runs[run]):
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return [("runs", str(len(used)))] + [(name, _listed(v)) for name, v in found.items()]


def _listed(values: list[str]) -> str:
    if len(values) <= MOST_VALUES:
        return "; ".join(values)
    others = f"{len(values) - 2} others, in {store.ENVIRONMENT}"
    return f"{values[0]}; ... ({others}); {values[-1]}"


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            flat += _flat(value, f"{name}: ")
        elif isinstance(value, list):
            written = shlex.join(value) if key == "command" else ", ".join(map(str, value))
            flat.append((name, written or "none"))
        else:
            text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            flat.append((name, "not recorded" if value in (None, "") else text))
    return flat
