"""CSV files of fixed columns that runs append to, beside results.csv. Imports no torch."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ResultsError
from ..files import locked, write_whole
from .store import cell, whole_lines


@dataclass(frozen=True, slots=True)
class Appended:
    """A kind of file. Several processes may append to one at a time; a last line that a killed one
    left unfinished is no row, and is removed by the next.

    Raises ResultsError, with the remedy, where a file is something else or cannot be written.
    """

    name: str
    columns: tuple[str, ...]
    command: str
    """What writes it."""
    later: tuple[str, ...] = ()
    """The last of the columns, which older files lack: their rows have empty cells there."""

    def read(self, folder: Path) -> list[dict[str, str]]:
        """The rows of the folder's file, every cell as text; none where there is no such file."""
        path = folder / self.name
        try:
            return self._rows(path, path.read_bytes()) if path.is_file() else []
        except OSError as error:
            raise ResultsError(f"{path} cannot be read ({error.strerror})") from None

    def append(self, folder: Path, rows: Sequence[Mapping[str, object]]) -> Path:
        """Add rows; a missing column or None is an empty cell."""
        path = folder / self.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(path):
                held = path.read_bytes()
                before = self._rows(path, held)
                whole = whole_lines(held)
                if whole and self._header(whole) != list(self.columns):
                    write_whole(path, self._text([self.columns]) + self._lines(before))
                elif len(whole) < len(held):
                    os.truncate(path, len(whole))
                with path.open("a", encoding="utf-8", newline="") as file:
                    file.write(("" if whole else self._text([self.columns])) + self._lines(rows))
        except OSError as error:
            raise ResultsError(
                f"{path} cannot be written ({error.strerror}): choose another folder with --out"
            ) from None
        return path

    def _rows(self, path: Path, held: bytes) -> list[dict[str, str]]:
        try:
            lines = list(csv.reader(io.StringIO(whole_lines(held).decode(), newline="")))
        except (UnicodeDecodeError, csv.Error) as error:
            raise ResultsError(f"{path}: not a CSV file: {error}") from None
        if not lines:
            return []
        header = lines[0]
        if header not in (list(self.columns), list(self.columns[: -len(self.later) or None])):
            raise ResultsError(
                f"{path} has other columns than this version writes: move it away and run "
                f"'{self.command}' again"
            )
        for number, line in enumerate(lines[1:], start=2):
            if len(line) != len(header):
                raise ResultsError(
                    f"{path}: line {number} has another number of cells than the header: remove it"
                )
        empty = dict.fromkeys(self.columns, "")
        return [empty | dict(zip(header, line, strict=True)) for line in lines[1:]]

    def _header(self, whole: bytes) -> list[str]:
        return next(csv.reader(io.StringIO(whole.decode(), newline="")))

    def _lines(self, rows: Sequence[Mapping[str, object]]) -> str:
        return self._text([[cell(row.get(name)) for name in self.columns] for row in rows])

    def _text(self, lines: Sequence[Sequence[str]]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()
