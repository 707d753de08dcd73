"""What the compiler makes of a rung, with nvcc alone: no torch, no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .toolchain import (
    CSRC,
    NO_NVCC,
    find_cuobjdump,
    find_nvcc,
    include_folders,
    nvcc_flags,
)


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel function in the machine code: an instance of the rung's template."""

    symbol: str
    """The mangled name."""
    registers: int
    """Per thread."""
    spill_bytes: int
    """Stored to and loaded from local memory, per thread."""
    static_shared_bytes: int
    """Per block; dynamic shared memory is asked for at the launch and not seen here."""
    sass: Mapping[str, int]
    """Machine instructions by opcode without its modifiers: HMMA, LDGSTS, LDSM, ..."""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """A rung compiled to machine code for one target."""

    name: str
    target: str
    seconds: float
    kernels: tuple[KernelReport, ...]

    @property
    def registers(self) -> int:
        """The most that any instance takes, per thread."""
        return max(kernel.registers for kernel in self.kernels)

    @property
    def spill_bytes(self) -> int:
        """The most that any instance spills, per thread."""
        return max(kernel.spill_bytes for kernel in self.kernels)

    @property
    def static_shared_bytes(self) -> int:
        """The most that any instance takes, per block."""
        return max(kernel.static_shared_bytes for kernel in self.kernels)

    @property
    def sass(self) -> Counter[str]:
        """Machine instructions of all instances together."""
        total: Counter[str] = Counter()
        for kernel in self.kernels:
            total.update(kernel.sass)
        return total


def compile_only(name: str, target: str, defines: tuple[str, ...] = ()) -> CompileReport:
    """Compiles a rung for a target, e.g. ``sm_80`` or ``sm_90a``, and reads the machine code.

    ``defines`` are further flags, e.g. those of fusion.case.

    Raises RuntimeError where nvcc or cuobjdump is missing or nvcc fails; the message ends with what
    nvcc said.
    """
    nvcc, cuobjdump = find_nvcc(), find_cuobjdump()
    if nvcc is None:
        raise RuntimeError(NO_NVCC)
    if cuobjdump is None:
        raise RuntimeError(
            "cuobjdump was not found on PATH, in CUDA_HOME or in the Triton wheel: "
            "pip install triton"
        )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / f"{name}.cubin"
        includes = [f"-I{path}" for path in include_folders(nvcc[0])]
        flags = [*nvcc_flags(target), *includes, *defines, "-Xptxas=-v", "-cubin", "-o", str(cubin)]
        started = time.perf_counter()
        built = _run([str(nvcc[0]), *flags, str(CSRC / f"{name}.cu")])
        seconds = time.perf_counter() - started
        if built.returncode:
            raise RuntimeError(f"nvcc could not compile {name}.cu for {target}:\n{built.stderr}")
        sass = _run([str(cuobjdump[0]), "-sass", str(cubin)])
        if sass.returncode:
            raise RuntimeError(f"cuobjdump could not read {name} for {target}:\n{sass.stderr}")
    counts = _instructions(sass.stdout)
    kernels = tuple(
        KernelReport(symbol, registers, spills, shared, counts.get(symbol, {}))
        for symbol, registers, spills, shared in _resources(built.stderr)
    )
    return CompileReport(name, target, seconds, kernels)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _resources(text: str) -> list[tuple[str, int, int, int]]:
    """(symbol, registers, spilled bytes, static shared bytes) from what ptxas -v says."""
    found = []
    symbol, spills = "", 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            symbol = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found.append((symbol, int(match[1]), spills, int(shared[1]) if shared else 0))
    return found


_OPCODE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


def _instructions(text: str) -> dict[str, Counter[str]]:
    """Instructions by opcode for each function of a disassembly.

    Reads of nothing (``@!PT LDS RZ``, which the compiler puts before a cp.async) are no loads.
    """
    counts: dict[str, Counter[str]] = {}
    for line in text.splitlines():
        if "Function : " in line:
            current = counts.setdefault(line.split()[-1], Counter())
        elif "@!PT" not in line and (match := _OPCODE.match(line)):
            current[match[1]] += 1
    return counts
