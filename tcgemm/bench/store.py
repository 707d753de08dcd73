"""The results store: ``results.csv`` (one row a kernel and case) and ``environment.json`` (one
entry a run). Measured facts only; everything derived is the report's. Imports no torch.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ResultsError
from ..files import locked, stands_at, write_whole
from .renamed import kernel_now

COLUMNS: dict[str, str] = {
    "run": "id of the run in environment.json",
    "suite": "the suite that named the case, or 'shape' for one given by hand",
    "backend": "triton, cuda, cublas, ...",
    "kernel": "the rung",
    "chosen": "yes where matmul takes this rung of its backend unasked, no where another; or none",
    "config": "how it ran: the plan's settings, e.g. BLOCK_M=128 BLOCK_N=256",
    "dtype_in": "dtype of A and B",
    "dtype_out": "dtype of C",
    "compute": "how the products are summed: float32, tf32x3, int32, ...",
    "fused": "what else the launch does: bias, an epilogue, residual (beta = 1), in words; or none",
    "mma_shape": "the WMMA shape that was asked for by name; or none",
    "layout": "nn nt tn tt: A then B, t is stored transposed",
    "M": "rows of C",
    "N": "columns of C",
    "K": "inner dimension",
    "status": "ok, wrong, failed, timeout or unsupported",
    "reason": "a sentence where status is not ok",
    "error_ratio": "worst error over its bound, against float64; above 1 is wrong",
    "exact_errors": "elements that differ in the exact-integer check; above 0 is wrong",
    "compile_s": "seconds of the kernel's first call in the run: compilation, loading, tuning",
    "ms_p20": "milliseconds a launch, 20th percentile; empty where nothing was timed",
    "ms_p50": "the median",
    "ms_p80": "80th percentile",
    "ratio_p20": "cuBLAS time over this time, pair by pair; above 1 is faster than cuBLAS",
    "ratio_p50": "the median of pairs",
    "ratio_p80": "80th percentile",
    "rounds": "pairs measured",
    "timer": "graph (CUDA-graph replays), events (CUDA events around launches) or none",
    "cache": "cold (buffers rotate over at least twice the L2) or warm",
    "data": "what A and B held: normal, uniform, ints or zeros",
    "seed": "seed of the operands",
    "sm_clock_mhz": "SM clock while it ran, median",
    "power_w": "board power while it ran beside cuBLAS: the median of NVML's instantaneous "
    "readings, which pass the limit for moments",
    "among": "of products under 100 us, among what they were timed: alone (launches of nothing but "
    "itself), graph or stream (a foreign kernel after each, its own time taken off); or none",
    "batch": "products in one call, each M x N x K; 1 of all but batches",
}
"""The schema of results.csv: column -> meaning, in file order."""

LATER = {"among": "", "batch": "1"}
"""Columns that older files lack -> what their rows have there."""

STATUSES = ("ok", "wrong", "failed", "timeout", "unsupported")
"""What the column status may hold."""

RESULTS = "results.csv"
ENVIRONMENT = "environment.json"
SIMULATED = "simulated.json"
"""Counts of the simulator, beside the results: ``tcgemm simulate ladder --out DIR``."""

log = logging.getLogger(__name__)

Row = Mapping[str, object]
"""Column -> value; a missing column or None is an empty cell."""


def read(folder: str | Path) -> list[dict[str, str]]:
    """The rows of ``folder``/results.csv in file order, every cell as text, kernels by the names
    that they have now (see renamed.py).

    A last line that a crash cut short is left out, with a warning in the log.

    Raises:
        ResultsError: no such file, or its columns are not those of COLUMNS.
    """
    rows = _stored(Path(folder))
    for row in rows:
        row["kernel"] = kernel_now(row)
    return rows


def _stored(folder: Path) -> list[dict[str, str]]:
    """The rows of ``read``, kernels by the names that they had."""
    path = folder / RESULTS
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ResultsError(
            f"{path}: no such file; `tcgemm bench --out {folder}` writes it"
        ) from None
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None
    whole = whole_lines(text)
    if len(whole) < len(text):
        log.warning("%s: the last line is incomplete (a run was killed?) and left out", path)
    try:
        lines = list(csv.reader(io.StringIO(whole.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultsError(f"{path}: not a CSV file: {error}") from None
    if not lines:
        return []
    header = lines[0]
    _check_header(path, header)
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise ResultsError(
                f"{path}: line {number} has {len(line)} cells and the header {len(header)}: "
                "remove that line"
            )
    rows = [dict(zip(header, line, strict=True)) for line in lines[1:]]
    older = {name: LATER.get(name, "") for name in COLUMNS}
    return rows if len(header) == len(older) else [older | row for row in rows]


def folder_of(slug: str) -> Path | None:
    """The folder with results of a GPU: below ``reports/`` here, else the package's own, or None.

    A wheel carries the committed results as ``tcgemm/reports``; a checkout has them beside it.
    """
    package = Path(__file__).parents[1]
    places = (Path("reports"), package / "reports", package.parent / "reports")
    return next((place / slug for place in places if (place / slug / RESULTS).is_file()), None)


def read_environment(folder: str | Path) -> dict[str, dict[str, Any]]:
    """``folder``/environment.json: run id -> facts; empty where there is no such file.

    Raises ResultsError where it is not what a run wrote.
    """
    path = Path(folder) / ENVIRONMENT
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise ResultsError(f"{path}: it is nested too deep to be what a run wrote") from None
    if not isinstance(runs, dict) or not all(isinstance(facts, dict) for facts in runs.values()):
        raise ResultsError(f"{path}: not an object of runs")
    return runs


class Store:
    """A results folder, open for one run: rows are appended and flushed one by one.

    Args:
        folder: created where it is missing.
        run: id of the run, the key of its facts.
        environment: its facts; ``gpu_slug`` among them says whose results these are.

    Raises:
        ResultsError: the folder cannot be written, holds something else, results of another
            schema, or those of another GPU. Nothing has been written then.
    """

    def __init__(self, folder: str | Path, run: str, environment: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.run = run
        self._facts = dict(environment)
        check_folder(self.folder, str(environment.get("gpu_slug")))
        self._path = self.folder / RESULTS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self._path):
                self._mend()
                self._write_environment()
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def append(self, row: Row) -> None:
        """Write one row, whole or not at all.

        Raises:
            ValueError: a column that does not exist.
            ResultsError: the row cannot be written, on a full disk for example.
        """
        if unknown := set(row) - set(COLUMNS):
            raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
        line = io.StringIO()
        cells = [self.run if name == "run" else cell(row.get(name)) for name in COLUMNS]
        csv.writer(line, lineterminator="\n").writerow(cells)
        try:
            with locked(self._path):
                if not stands_at(self._file.fileno(), self._path):  # moved away, or replaced
                    self._file.close()
                    self._mend()
                self._write(line.getvalue().encode())
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def update(self, **facts: Any) -> None:
        """Add facts to the run's entry in environment.json; entries of other runs stay.

        Raises ResultsError where that cannot be written.
        """
        self._facts.update(facts)
        try:
            with locked(self._path):
                self._write_environment()
        except OSError as error:
            raise _unwritable(self.folder / ENVIRONMENT, error) from None

    def close(self) -> None:
        self._file.close()

    def _mend(self) -> None:
        """Open the file, with the header and the columns of today, and without the line that a
        killed run left unfinished; the lock is held."""
        text = self._path.read_bytes()
        whole = whole_lines(text)
        if len(whole) < len(text):
            log.warning("%s: its last line is incomplete and is removed", self._path)
            os.truncate(self._path, len(whole))
        stored = _stored(self.folder)
        if whole and _first_line(whole) != list(COLUMNS):
            file = io.StringIO()
            rows = csv.writer(file, lineterminator="\n")
            rows.writerows([list(COLUMNS), *(list(row.values()) for row in stored)])
            write_whole(self._path, file.getvalue())
        self._file = self._path.open("ab", buffering=0)
        if not whole:
            self._write((",".join(COLUMNS) + "\n").encode())

    def _write(self, text: bytes) -> None:
        """Append the text, whole or not at all; the lock is held."""
        before = os.fstat(self._file.fileno()).st_size
        try:
            while text:
                text = text[self._file.write(text) or 0 :]
        except OSError:
            os.ftruncate(self._file.fileno(), before)
            raise

    def _write_environment(self) -> None:
        """Put the run's facts beside those that are in the file now; the lock is held."""
        runs = read_environment(self.folder)
        runs[self.run] = self._facts
        write_whole(self.folder / ENVIRONMENT, json.dumps(runs, indent=2) + "\n")


def check_folder(folder: str | Path, gpu_slug: str | None = None) -> None:
    """Raise ResultsError, with the remedy, where results of that GPU cannot go into the folder.

    Without a GPU's slug those of any may.
    """
    folder = Path(folder)
    try:
        standing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not standing.is_dir():
            raise ResultsError(f"{standing} is a file: --out takes a folder")
        names = {path.name for path in folder.iterdir()} if standing == folder else set()
    except OSError as error:
        raise _unwritable(folder, error) from None
    if names and not names & {RESULTS, ENVIRONMENT}:
        raise ResultsError(
            f"{folder} holds other files and no {RESULTS}: choose a new or empty folder with --out"
        )
    if RESULTS in names:
        read(folder)
    slugs = {str(facts.get("gpu_slug")) for facts in read_environment(folder).values()}
    if others := slugs - {gpu_slug} if gpu_slug else set():
        raise ResultsError(
            f"{folder} holds results of {', '.join(sorted(others))} and this is {gpu_slug}: "
            "choose another folder with --out"
        )
    if not os.access(standing, os.W_OK | os.X_OK):
        raise ResultsError(f"{folder} cannot be written: choose another folder with --out")
    for name in names & {RESULTS, ENVIRONMENT}:
        if not os.access(folder / name, os.W_OK):
            raise ResultsError(f"{folder / name} cannot be written: choose another --out")


def cell(value: object) -> str:
    """A value as one cell: no line breaks, floats with six significant digits, None empty."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())


def whole_lines(text: bytes) -> bytes:
    """The text without a last line that has no end."""
    return text[: text.rfind(b"\n") + 1]


def _first_line(text: bytes) -> list[str]:
    return next(csv.reader(io.StringIO(text.decode(), newline="")))


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in header and name not in LATER]
    if not missing and header == [name for name in COLUMNS if name in header]:
        return
    extra = [name for name in header if name not in COLUMNS]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    parts += [f"unknown {', '.join(extra)}"] if extra else []
    raise ResultsError(
        f"{path}: the columns are of another schema: {'; '.join(parts) or 'another order'}. "
        "Measure again into a new folder with --out"
    )


def _unwritable(folder: Path, error: OSError) -> ResultsError:
    return ResultsError(
        f"{folder} cannot be written ({error.strerror}): make room or permission there, or choose "
        "another folder with --out"
    )
