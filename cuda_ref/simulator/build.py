"""From a .cu file to a shared library that runs it here: g++ is the only need."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
CSRC = _HERE.parent / "csrc"
INCLUDE = _HERE / "include"
_SOURCES = ("engine.cpp", "tensor.cpp", "hopper.cpp")
_DYNAMIC_BYTES = 227 * 1024

_COMMON = (
    "-std=c++17",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",  # two libraries of one kernel keep their own variables
    "-fno-extern-tls-init",
    "-fno-exceptions",
    "-DTCGEMM_SIMULATOR",
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
    "-Wno-psabi",
)
# A kernel is compiled for a run of a second: -O1 takes two thirds of -O2's time.
_KERNEL = "-O1"
# g++ calls a hook for each load and store, and our runtime provides the hooks. What merges, splits
# or widens accesses, or makes two instructions of one, is off: an access in the source is one here.
_OBSERVED = (
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize",
    "-fno-store-merging",
    "-fno-tree-loop-distribute-patterns",
    "-fno-thread-jumps",
    "-fno-split-paths",
    "-fno-unswitch-loops",
    "-fno-ivopts",
)


def cache_folder() -> Path:
    """Where libraries are kept: ``simulator/`` in the folder of compiled rungs."""
    from ..build import cache_folder as rungs

    folder = rungs() / "simulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def compiler() -> str:
    """The C++ compiler: CXX where it is set and is g++, else g++ on PATH."""
    for candidate in (os.environ.get("CXX"), "g++"):
        found = shutil.which(candidate) if candidate else None
        if found is None:
            continue
        version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if "Free Software Foundation" in version:
            return found
    raise RuntimeError(
        "the simulator compiles CUDA kernels with g++, and there is none on PATH: "
        "install it (Debian and Ubuntu: apt-get install g++)"
    )


@cache
def _compiler_version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True).stdout


@cache
def _machine_flags() -> tuple[str, ...]:
    """Half conversions and fused multiply-adds in hardware, where the processor has them."""
    if platform.machine() != "x86_64":
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = set(re.findall(r"\w+", text.partition("flags")[2].partition("\n")[0]))
    wanted = {"avx2", "fma", "f16c", "bmi2"}
    return ("-mavx2", "-mfma", "-mf16c", "-mbmi2") if wanted <= flags else ()


@cache
def _poison_flags() -> tuple[str, ...]:
    """Local variables that nobody has set hold huge negative numbers, where g++ can do so (12 on).

    An accumulator that is added to before it is set is a wrong result then, as on a GPU, and not
    the zero that a fresh stack holds.
    """
    version = re.search(r"(\d+)\.\d+\.\d+", _compiler_version())
    able = version is not None and int(version[1]) >= 12
    return ("-ftrivial-auto-var-init=pattern",) if able else ()


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:24]


def _folder_bytes(*folders: Path) -> bytes:
    files = sorted(f for folder in folders for f in folder.iterdir() if f.suffix in _TEXT)
    return b"\0".join(f.name.encode() + b"\0" + f.read_bytes() for f in files)


_TEXT = {".hpp", ".h", ".cpp", ".cuh"}


def _run(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"g++ took more than 300 s over {what}") from None
    if done.returncode != 0:
        telling = re.compile(r"error|undefined reference|No such file")
        lines = [line for line in done.stderr.splitlines() if telling.search(line)]
        lines = lines or [done.stderr]
        raise RuntimeError(
            f"g++ cannot compile {what} for the simulator:\n  "
            + "\n  ".join(lines[:8])
            + f"\ncommand: {' '.join(command)}"
        )


def _publish(made: Path, final: Path) -> None:
    """A finished file appears whole or not at all; two builders of one file do no harm."""
    os.replace(made, final)


@contextmanager
def _building(final: Path) -> Iterator[bool]:
    """Whether the file is missing, for the only thread and process that builds it now."""
    from ..build import exclusive

    with lock_of(final.name):
        if final.exists():
            yield False
            return
        with exclusive(final.with_suffix(".lock")):
            yield not final.exists()


_locks: dict[str, threading.Lock] = {}
_locks_guard = threading.Lock()


def lock_of(key: str) -> threading.Lock:
    """One lock per key in this process."""
    with _locks_guard:
        return _locks.setdefault(key, threading.Lock())


def _object(source: Path, observed: bool, headers: str, folder: Path) -> Path:
    flags = (
        *_COMMON, *_machine_flags(), "-O3", f"-I{INCLUDE}", f"-I{CSRC}",
        *(("-DTCGEMM_OBSERVE",) if observed else ()),
    )  # fmt: skip
    key = _hash(source.read_bytes(), headers, _compiler_version(), *flags)
    final = folder / f"{source.stem}-{key}.o"
    with _building(final) as missing:
        if missing:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / "made.o"
                _run([compiler(), *flags, "-c", str(source), "-o", str(made)], source.name)
                _publish(made, final)
    return final


def _standard_headers(flags: Sequence[str], folder: Path) -> Path:
    """A header of all standard headers that simulator.hpp includes, with g++'s precompiled form.

    Reading them takes most of a small kernel's time. g++ takes the precompiled form where the flags
    are those that made it, macros aside, and else the header itself.
    """
    includes = re.findall(r"^#include <.+>$", (INCLUDE / "simulator.hpp").read_text(), re.MULTILINE)
    vectors = ["#include <immintrin.h>"] if _machine_flags() else []
    text = "\n".join([*includes, *vectors, ""])
    kept = [flag for flag in flags if not flag.startswith(("-I", "-D"))]
    header = folder / f"standard-{_hash(text, _compiler_version(), *kept)}.hpp"
    final = header.with_suffix(".hpp.gch")
    with _building(final) as missing:
        if missing:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                here, made = Path(scratch) / header.name, Path(scratch) / "made.gch"
                here.write_text(text)
                what = "the standard headers"
                _run([compiler(), *kept, "-x", "c++-header", str(here), "-o", str(made)], what)
                _publish(here, header)
                _publish(made, final)
    return header


def _thread_locals(file: Path) -> list[tuple[str, int, int, bool]]:
    """(name, offset, bytes, defined) of the thread-local variables in an object or library."""
    listing = subprocess.run(
        ["readelf", "-sW", str(file)], capture_output=True, text=True, check=True
    ).stdout
    return [
        (fields[7], int(fields[1], 16), int(fields[2], 0), fields[6] != "UND")
        for fields in map(str.split, listing.splitlines())
        if len(fields) == 8 and fields[3] == "TLS"
    ]


def _dynamic_names(object_file: Path) -> set[str]:
    """The names under which a kernel reaches dynamic shared memory: undefined thread-locals."""
    return {name for name, _, _, defined in _thread_locals(object_file) if not defined}


@cache
def shared_symbols(library: Path) -> tuple[int, tuple[int, ...]]:
    """Bytes of the largest kernel's static shared memory, and the offsets of g++'s guards.

    A library holds one kernel in several instances (types, layouts), each with arrays of its own;
    a launch runs one of them.
    """
    arrays: dict[str, int] = {}
    guards = []
    for name, offset, size, _ in _thread_locals(library):
        if name.startswith("_ZGV"):
            guards.append(offset)
        elif name.startswith("_ZZ"):
            function = name[3 : name.rindex("E") + 1]
            arrays[function] = arrays.get(function, 0) + size
    return max(arrays.values(), default=0), tuple(sorted(set(guards)))


def _dynamic_source(names: set[str]) -> str:
    lines = ['.section .tbss,"awT",@nobits', ".balign 1024"]
    for name in sorted(names | {"tcgemm_dynamic_shared"}):
        lines += [f".globl {name}", f".hidden {name}", f".type {name},@object", f"{name}:"]
    return "\n".join([*lines, f".zero {_DYNAMIC_BYTES}", '.section .note.GNU-stack,"",@progbits\n'])


def library(source: Path, observed: bool, defines: Sequence[str] = ()) -> Path:
    """The shared library of one .cu file, built where the cache does not hold it.

    ``observed`` builds it with a hook in front of every load and store, for checks and counts;
    ``defines`` are further flags.
    Raises RuntimeError where g++ is missing or refuses the file.
    """
    source = source.resolve()
    folder = cache_folder()
    headers = _hash(_folder_bytes(INCLUDE, _HERE / "src", CSRC))
    flags = (
        *_COMMON, *_machine_flags(), _KERNEL, f"-I{INCLUDE}", f"-I{source.parent}", f"-I{CSRC}",
        *((*_OBSERVED, *_poison_flags()) if observed else ()), *defines,
    )  # fmt: skip
    beside = b"" if source.parent == CSRC else _folder_bytes(source.parent)
    key = _hash(source.read_bytes(), beside, headers, _compiler_version(), str(source), *flags)
    final = folder / f"{source.stem}-{'observed' if observed else 'plain'}-{key}.so"
    with _building(final) as missing:
        if missing:
            _build(source, observed, headers, flags, folder, final)
    return final


def _build(
    source: Path, observed: bool, headers: str, flags: Sequence[str], folder: Path, final: Path
) -> None:
    names = (*_SOURCES, "observe.cpp") if observed else _SOURCES
    with tempfile.TemporaryDirectory(dir=folder) as scratch, ThreadPoolExecutor() as pool:
        runtime = [
            pool.submit(_object, _HERE / "src" / name, observed, headers, folder) for name in names
        ]
        made = Path(scratch) / "kernel.o"
        before = ["-include", str(_standard_headers(flags, folder)), "-x", "c++"]
        _run([compiler(), *flags, *before, "-c", str(source), "-o", str(made)], source.name)
        objects = [str(made), *(str(job.result()) for job in runtime)]
        assembler = Path(scratch) / "dynamic.s"
        assembler.write_text(_dynamic_source(_dynamic_names(made)))
        so = Path(scratch) / "made.so"
        _run(
            [compiler(), "-shared", "-fPIC", "-Wl,-Bsymbolic,--no-undefined", *objects,
             str(assembler), "-lpthread", "-o", str(so)],
            f"{source.name} (linking)",
        )  # fmt: skip
        _publish(so, final)
