"""A sign of life on stderr while a command works: a moving line on a terminal, lines in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

FIRST_S = 2.0
"""Seconds for which nothing is shown: most work is over by then."""

EVERY_S = 5.0
"""Seconds between two lines where stderr is no terminal."""


class Waiting:
    """A context in which what goes on is shown with its seconds, once it takes longer than FIRST_S.

    Args:
        what: in a few words, what is being done; ``update`` replaces them.
        file: where it is shown, by default stderr.
    """

    def __init__(self, what: str, *, file: TextIO | None = None) -> None:
        self._what, self._file = what, file or sys.stderr
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._began = time.monotonic()

    def update(self, what: str) -> None:
        """Say what is being done from now on."""
        self._what = what

    def __enter__(self) -> Waiting:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _line(self) -> str:
        return f"{self._what}, {time.monotonic() - self._began:.0f} s"

    def _show(self) -> None:
        if self._over.wait(FIRST_S):
            return
        if not self._file.isatty():
            while True:
                print(self._line(), file=self._file, flush=True)
                if self._over.wait(EVERY_S):
                    return
        from rich.console import Console

        with Console(file=self._file).status(self._line()) as status:
            while not self._over.wait(0.25):
                status.update(self._line())
