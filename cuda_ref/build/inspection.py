"""What the compiler makes of a rung, with nvcc alone: no torch, no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..planning.ladder import by_name
from .toolchain import (
    NO_NVCC,
    find_cuobjdump,
    find_nvcc,
    find_nvdisasm,
    include_folders,
    nvcc_flags,
    source,
    source_files,
    source_folders,
    text_of,
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
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The instance as ptx, as sass and, with the places in the source, as ``lined`` (its sass) and
    ``files`` (the ptx's numbers of files), where that was asked for."""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """A rung compiled to machine code for one target."""

    name: str
    target: str
    seconds: float
    kernels: tuple[KernelReport, ...]
    serialized: bool = False
    """ptxas took the overlap out of some wgmma and said so (C7510, C7511, ...)."""

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


def compile_only(
    name: str, target: str, defines: tuple[str, ...] = (), *, texts: bool = False
) -> CompileReport:
    """Compiles a rung for a target, e.g. ``sm_80`` or ``sm_90a``, and reads the machine code.

    ``defines`` are further flags, e.g. those of fusion.case; ``texts`` keeps what was read.

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
        includes = [f"-I{path}" for path in (*source_folders(), *include_folders(nvcc[0]))]
        flags = [*nvcc_flags(target), *includes, *defines, "-Xptxas=-v", "-cubin", "-o", str(cubin)]
        if texts:
            flags += ["-keep", "-keep-dir", folder]
        started = time.perf_counter()
        built = _run([str(nvcc[0]), *flags, str(source(name))])
        seconds = time.perf_counter() - started
        if built.returncode:
            raise RuntimeError(f"nvcc could not compile {name}.cu for {target}:\n{built.stderr}")
        sass = _run([str(cuobjdump[0]), "-sass", str(cubin)])
        if sass.returncode:
            raise RuntimeError(f"cuobjdump could not read {name} for {target}:\n{sass.stderr}")
        kept = _texts(Path(folder) / f"{name}.ptx", cubin, sass.stdout) if texts else {}
    counts = _instructions(sass.stdout)
    kernels = tuple(
        KernelReport(
            symbol,
            registers,
            spills,
            shared,
            counts.get(symbol, {}),
            {stage: of[symbol] for stage, of in kept.items() if symbol in of},
        )
        for symbol, registers, spills, shared in _resources(built.stderr)
    )
    return CompileReport(name, target, seconds, kernels, "serialize" in built.stderr)


def compiler() -> str:
    """``nvcc`` and its version, as it says itself; raises RuntimeError where there is none."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError(NO_NVCC)
    said = re.search(r"release ([\d.]+)", _run([str(nvcc[0]), "--version"]).stdout)
    return f"nvcc {said[1]}" if said else "nvcc"


def _texts(ptx: Path, cubin: Path, sass: str) -> dict[str, dict[str, str]]:
    """Stage -> symbol -> text."""
    text = ptx.read_text()
    kept = {"ptx": _entries(text), "sass": _functions(sass)}
    nvdisasm = find_nvdisasm()
    if nvdisasm is not None:
        lined = _run([str(nvdisasm[0]), "-gi", "-c", "-ndf", str(cubin)]).stdout
        parts = re.split(r"^\.text\.(\S+):\n", lined, flags=re.MULTILINE)
        kept["lined"] = dict(zip(parts[1::2], parts[2::2], strict=True))
        files = "\n".join(re.findall(r"^\s*\.file\s.*", text, re.MULTILINE))
        kept["files"] = dict.fromkeys(kept["ptx"], files)
    return kept


def _functions(sass: str) -> dict[str, str]:
    """The part of a disassembly that each function is."""
    parts = re.split(r"^\s*Function : (\S+)\n", sass, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _entries(ptx: str) -> dict[str, str]:
    """The part of a ptx file that each kernel is, from ``.entry`` to its closing brace."""
    found = re.finditer(r"^[^\n]*\.entry (\w+)\([\s\S]*?^\}", ptx, re.MULTILINE)
    return {match[1]: match[0] + "\n" for match in found}


def instances(
    name: str, kernels: tuple[KernelReport, ...], problem: Any, plan: Mapping[str, Any]
) -> list[KernelReport]:
    """Those instances of the rung's template that may run the problem by a plan, of all that were
    compiled.

    The names of the template's parameters come from the source, their values from the symbols: what
    is known of types, layout, tile and fusion picks among them. All that are left are given; all
    instances of the rung where the symbols cannot be read.
    """
    names = _parameters(text_of(source(name)))
    wanted = _wanted(name, problem, plan)
    own, fitting = [], []
    for kernel, values in zip(kernels, _arguments([k.symbol for k in kernels], name), strict=True):
        if values is None:
            continue
        own.append(kernel)
        given = dict(zip(names, values, strict=False))
        if all(test(given[key]) for key, test in wanted.items() if key in given):
            fitting.append(kernel)
    return fitting or own or list(kernels)


_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
}


def _wanted(name: str, problem: Any, plan: Mapping[str, Any]) -> dict[str, Callable[[str], bool]]:
    """What each template parameter has to be for the problem, by the parameter's name."""

    def is_type(dtype: str) -> Callable[[str], bool]:
        word = _TYPES.get(dtype)
        return lambda value: word is None or value == word

    def is_flag(flag: bool) -> Callable[[str], bool]:
        return lambda value: value == str(flag).lower()

    def is_major(k: bool) -> Callable[[str], bool]:
        return lambda value: value.endswith("0" if k else "1")

    plain = problem.plain and problem.batch == 1
    a_t, b_t = problem.layout[0] == "t", problem.layout[1] == "t"
    k_major = {"A": not a_t, "B": b_t}
    tests = {
        "In": is_type(problem.dtype_in),
        "Out": is_type(problem.dtype_out),
        "A_T": is_flag(a_t),
        "B_T": is_flag(b_t),
        "FUSED": is_flag(not plain),
        "Extra": lambda value: value.endswith("Plain") == plain,
        **{key: is_major(value) for key, value in k_major.items()},
    }
    rung = by_name().get(name)
    if rung is not None and hasattr(rung, "instance"):
        tests |= rung.instance(problem, plan)
    return tests


def _parameters(source: str) -> list[str]:
    """The names of the template parameters of a source's first ``__global__`` function."""
    head = re.search(r"template <([^<>]*)>\s*__global__", source)
    return [part.split()[-1] for part in head[1].split(",")] if head else []


def _arguments(symbols: list[str], name: str) -> list[list[str] | None]:
    """The template arguments in each symbol, or None where it is no instance of the rung."""
    command = shutil.which("c++filt") or shutil.which("cu++filt")
    if command is None:
        return [None] * len(symbols)
    lines = _run([command, *symbols]).stdout.splitlines()
    found: list[list[str] | None] = []
    for line in lines:
        line = line.replace("(anonymous namespace)::", "")
        match = re.search(rf"\b{name}(?:_kernel)?<", line)
        found.append(_split(line[match.end() :]) if match else None)
    return found if len(found) == len(symbols) else [None] * len(symbols)


def _split(text: str) -> list[str]:
    """``bool, X<int, 3>>(...)`` -> ["bool", "X<int, 3>"]."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "<") - (letter == ">")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def source_lines(name: str) -> tuple[int, int]:
    """Lines of code, without blank ones and comments: of the .cu, and with what it includes."""
    counts = []
    for path in source_files(source(name)):
        text = re.sub(r"/\*[\s\S]*?\*/", "", text_of(path))
        counts.append(sum(bool(line.split("//")[0].strip()) for line in text.splitlines()))
    return counts[0], sum(counts)


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
