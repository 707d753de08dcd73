"""The order in which a first report stands soon: what a call gets unasked comes first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from .. import dispatch
from ..choosing.sums import as_summed
from ..errors import ResultsError, TcgemmError
from .case_bench import BASELINE
from .contender import UNASKED
from .worker import Unit

COMPILED_LAST = ("cuda",)
"""Backends whose kernels take seconds to build: measured behind the others, which take one."""


def unasked_first(units: Sequence[Unit], device: str) -> tuple[list[Unit], int]:
    """The units in another order, numbered anew, and how many of them a first report needs.

    First, of each case, the baseline and the kernel that each backend chooses for it unasked:
    that answers whom to take, and by how much. Of these, the backends of COMPILED_LAST come behind
    the others, so that their kernels are built meanwhile. Then all the rest, case by case.
    """
    first = [unit for unit in units if _is_unasked(unit, device)]
    first.sort(key=lambda unit: unit.backend in COMPILED_LAST)
    taken = {unit.index for unit in first}
    ordered = [*first, *(unit for unit in units if unit.index not in taken)]
    return [replace(unit, index=index) for index, unit in enumerate(ordered)], len(first)


def _is_unasked(unit: Unit, device: str) -> bool:
    if unit.kernel == UNASKED:
        return True
    if unit.backend == BASELINE[0]:
        return device != "cuda" or unit.kernel == BASELINE[1]
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    try:
        problem = unit.case.problem(capability=capability, device=device)
        chosen = dispatch.choose(as_summed(problem, unit.backend), unit.backend)
    except TcgemmError:
        return False
    return chosen.name == unit.kernel


def last_report(folder: Path) -> str:
    """``tcgemm report`` of the folder, now that it is whole; returns what it says of its page.

    Raises ResultsError with what it says where it fails.
    """
    command = [sys.executable, "-m", "tcgemm", "report", str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ResultsError(done.stderr.strip().removeprefix("tcgemm: "))
    return done.stdout.strip().splitlines()[-1]


def start_report(folder: Path) -> subprocess.Popen[bytes]:
    """``tcgemm report`` of the folder in a process of its own, which yields to the measurement."""
    command = [sys.executable, "-m", "tcgemm", "report", str(folder)]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.nice(10) and None,
    )
