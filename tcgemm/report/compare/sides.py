"""What is compared: a results folder, a run within one, or the results that a commit holds."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bench import store
from ...errors import ResultsError
from ..rows import check_depth, check_row, printable, printable_facts

REPORTS = Path("reports")
"""Where runs and committed results are looked for."""

RUN_ID = re.compile(r"\d{8}T\d{2,6}")
"""How the id of a run begins."""


@dataclass(frozen=True)
class Side:
    """One of the two: rows in file order, and the facts of their runs."""

    name: str
    rows: list[dict[str, str]]
    runs: dict[str, dict[str, Any]]

    def facts(self, name: str) -> list[str]:
        """The values of a fact of the runs that have rows, each once."""
        used = dict.fromkeys(row["run"] for row in self.rows)
        values = [self.runs[run].get(name) for run in used if run in self.runs]
        return list(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def side(text: str, folder: Path | None = None) -> Side:
    """What the text names: a folder with results.csv, a run's id or its beginning, or a commit.

    Args:
        text: as the user wrote it.
        folder: where runs and committed results are looked for; by default every one below
            ``reports/``.

    Raises ResultsError where it is nothing of these, or several.
    """
    path = Path(text)
    if (path / store.RESULTS).is_file():
        return _read(path, text)
    if path.is_dir():
        raise ResultsError(f"{text} holds no {store.RESULTS}: name a folder that bench wrote")
    if RUN_ID.match(text):
        return _run(text, folder)
    return _committed(text, folder)


def _read(path: Path, name: str) -> Side:
    rows, runs = store.read(path), store.read_environment(path)
    check_depth(path / store.ENVIRONMENT, runs)
    for number, row in enumerate(rows, start=2):
        check_row(path / store.RESULTS, number, row)
    rows = [{column: printable(cell) for column, cell in row.items()} for row in rows]
    return Side(printable(name), rows, printable_facts(runs))


def _run(text: str, folder: Path | None) -> Side:
    """The rows of the one run whose id begins with the text."""
    folders = [folder] if folder else [p.parent for p in sorted(REPORTS.glob(f"*/{store.RESULTS}"))]
    found = {}
    for each in folders:
        held = _read(each, str(each))
        for run in dict.fromkeys(row["run"] for row in held.rows):
            if run.startswith(text):
                of = [row for row in held.rows if row["run"] == run]
                found[run] = Side(run, of, held.runs)
    if len(found) == 1:
        return next(iter(found.values()))
    where = ", ".join(map(str, folders)) or f"{REPORTS}/"
    if found:
        raise ResultsError(f"{text} begins the ids of {', '.join(sorted(found))}: write one out")
    raise ResultsError(f"no run {text} in {where}: environment.json holds the ids, --in a folder")


def _committed(text: str, folder: Path | None) -> Side:
    """The results that a commit holds below reports/."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    root = _git("rev-parse", "--show-toplevel")
    if commit is None or root is None:
        raise ResultsError(
            f"{text!r} is no folder with {store.RESULTS}, no id of a run, and no commit of a "
            "checkout here"
        )
    listed = _git("ls-tree", "-r", "--name-only", commit.strip(), cwd=root.strip()) or ""
    held = [name for name in listed.splitlines() if name.endswith(f"/{store.RESULTS}")]
    if folder is not None:
        try:
            wanted = folder.resolve().relative_to(Path(root.strip()).resolve())
        except ValueError:
            raise ResultsError(f"{folder} is outside of the checkout {root.strip()}") from None
        held = [name for name in held if Path(name).parent == wanted]
    if len(held) != 1:
        what = "several results" if held else f"no {store.RESULTS}"
        these = f" ({', '.join(str(Path(name).parent) for name in held)})" if held else ""
        raise ResultsError(f"{text} holds {what}{these}: name a folder with --in")
    with tempfile.TemporaryDirectory(prefix="tcgemm-") as scratch:
        for name in (held[0], str(Path(held[0]).with_name(store.ENVIRONMENT))):
            content = _git("show", f"{commit.strip()}:{name}", cwd=root.strip())
            if content is not None:
                (Path(scratch) / Path(name).name).write_text(content, encoding="utf-8")
        try:
            found = _read(Path(scratch), text)
        except ResultsError as error:
            said = str(error).replace(scratch, f"{text}:{Path(held[0]).parent}")
            raise ResultsError(said) from None
    return Side(
        f"{text} ({commit[:10]})" if text not in commit else text[:10], found.rows, found.runs
    )


def _git(*arguments: str, cwd: str | None = None) -> str | None:
    """What git says; None where there is no git, or it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=60, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


def check_comparable(a: Side, b: Side) -> None:
    """Raise ResultsError where the two are not of one GPU, or were not timed on any."""
    for each in (a, b):
        if not each.rows:
            raise ResultsError(f"{each.name} holds no row: run 'tcgemm bench' first")
        if not each.facts("gpu"):
            raise ResultsError(
                f"{each.name} was not timed on a GPU, so there is nothing to compare"
            )
    of_a, of_b = a.facts("gpu"), b.facts("gpu")
    if of_a != of_b or len(of_a) > 1:
        raise ResultsError(
            f"{a.name} is of {' and '.join(of_a)} and {b.name} of {' and '.join(of_b)}: only runs "
            "of one GPU can be compared; 'tcgemm report A B' shows GPUs side by side"
        )


def differences(a: Side, b: Side) -> list[str]:
    """What else differs between the two, so far as it bears on a ratio to cuBLAS."""
    said = []
    for name in ("cublas", "torch", "driver", "triton", "nvcc", "power_limit_w"):
        of_a, of_b = a.facts(name), b.facts(name)
        if of_a and of_b and of_a != of_b:
            why = ": every change is relative to another cuBLAS" if name == "cublas" else ""
            said.append(f"{name.replace('_', ' ')} differs: {_these(of_a)} and {_these(of_b)}{why}")
    return said


def _these(values: Sequence[str]) -> str:
    return ", ".join(values)
