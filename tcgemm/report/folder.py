"""One results folder, read and derived: what every page and figure is made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import ResultsError
from .derive import Gpu, derive

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

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None


def load(path: Path) -> Folder:
    """Read one folder. Raises ResultsError where it cannot be used, with the remedy."""
    from ..gpus import lookup

    rows, runs = _read(path)
    used = [runs[run] for run in dict.fromkeys(rows["run"]) if run in runs] or list(runs.values())
    names = list(dict.fromkeys(str(run.get("gpu") or "") for run in used))
    if len(names) > 1:
        these = " and ".join(name or "no GPU" for name in names)
        raise ResultsError(
            f"{path} mixes runs of {these}: keep one folder a GPU, and run "
            "'tcgemm bench --out DIR' again for the other"
        )
    if not names or not names[0]:
        return Folder(path, CPU_NAME, "cpu", None, derive(rows, None), runs)
    gpu: Gpu = lookup(names[0])
    return Folder(path, gpu.name, gpu.slug, gpu, derive(rows, gpu), runs)


def _read(path: Path) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    from ..bench.store import COLUMNS

    results = path / "results.csv"
    if not results.is_file():
        raise ResultsError(f"no {results}: make one with 'tcgemm bench --out {path}'")
    rows = pd.read_csv(results, dtype=str, keep_default_na=False)
    if list(rows.columns) != list(COLUMNS):
        raise ResultsError(f"{results} has another schema: run 'tcgemm bench' into a new folder")
    try:
        runs = json.loads((path / "environment.json").read_text())["runs"]
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError(f"{path / 'environment.json'} cannot be read: {error}") from None
    return rows, runs


def facts(folder: Folder) -> list[tuple[str, str]]:
    """The environment as (fact, value) pairs; a fact that differs between runs lists each value."""
    used = [r for r in dict.fromkeys(folder.table["run"]) if r in folder.runs] or list(folder.runs)
    found: dict[str, list[str]] = {}
    for run in sorted(used, key=list(folder.runs).index):
        for name, value in _flat(folder.runs[run]):
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return [("runs", str(len(used)))] + [(name, "; ".join(v)) for name, v in found.items()]


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            flat += _flat(value, f"{name}: ")
        elif isinstance(value, list):
            flat.append((name, ", ".join(map(str, value)) or "none"))
        else:
            text = {None: "not recorded", True: "yes", False: "no"}.get(value, str(value))
            flat.append((name, text if text != "" else "not recorded"))
    return flat
