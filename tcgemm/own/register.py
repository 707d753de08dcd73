"""Files that a command names become kernels of the backend ``own``. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import OperandError
from . import VARIABLE, paths
from .facts import LANGUAGES, facts_of


def is_file(name: str) -> bool:
    """Whether a kernel's name is a path: of one's own .cu or .py file."""
    return name.endswith(tuple(LANGUAGES))


def names(kernels: Sequence[str]) -> list[str]:
    """The names of kernels, with "own/NAME" for each that is the path of a file.

    Raises OperandError where a file is missing or says what cannot be read, and where two files
    have one name.
    """
    return [_name(kernel) if is_file(kernel) else kernel for kernel in kernels]


def _name(kernel: str) -> str:
    path = facts_of(Path(kernel)).path.resolve()
    if os.pathsep in str(path):
        raise OperandError(f"{path}: the path must not hold {os.pathsep!r}, which parts paths")
    known = paths()
    if known.get(path.stem, path) != path:
        raise OperandError(
            f"{path} and {known[path.stem]} have one name: rename one of them, since results are "
            "kept by it"
        )
    known[path.stem] = path
    os.environ[VARIABLE] = os.pathsep.join(map(str, known.values()))
    from .. import dispatch

    dispatch.BACKENDS["own"] = "tcgemm.own"
    dispatch.ladder.cache_clear()
    return f"own/{path.stem}"
