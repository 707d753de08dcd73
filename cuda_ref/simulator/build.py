"""From a .cu file to a shared library that runs it here: g++ is the only need."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from ..build import store
from ..build.store import key_of
from ..build.store import lock_of as lock_of
from ..build.toolchain import compiler_version, consulted_variables, source_folders
from . import headers
from .clusters import in_clusters
from .headers import INCLUDE, RUNTIME

_SOURCES = (
    "fibers.cpp", "cluster.cpp", "collectives.cpp", "copies.cpp", "operands.cpp", "findings.cpp",
    "processes.cpp", "run.cpp", "tensor.cpp", "hopper.cpp", "bulk_stores.cpp", "wgmma.cpp",
)  # fmt: skip
_OBSERVING = (
    "observe.cpp", "timeline.cpp", "addresses.cpp", "clocks.cpp", "races.cpp", "requests.cpp",
    "accesses.cpp", "l2.cpp", "hooks.cpp",
)  # fmt: skip
_DYNAMIC_BYTES = 227 * 1024

_COMMON = (
    "-std=c++17",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-gnu-unique",  # two libraries of one kernel keep their own variables
    "-fno-extern-tls-init",
    "-fno-exceptions",
    "-fstack-clash-protection",  # who needs more stack than there is meets the page below it
    "-DTCGEMM_SIMULATOR",
    "-U_FORTIFY_SOURCE",  # Ubuntu sets it, and memcpy has another name then, which nobody watches
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
    "-Wno-psabi",
)
_MEMORY_FUNCTIONS = ("memcpy", "memmove", "memset")
"""What g++ does not instrument: an observed kernel calls ours (src/hooks.cpp) in their place."""
# A kernel is compiled for a run of a second. These passes take two thirds of -O1's time, which
# takes two thirds of -O2's, and what they make runs up to a tenth longer than -O1's.
_KERNEL = (
    *("-Og", "-ftree-sra", "-ftree-dse", "-fdse", "-finline-functions-called-once"),
    # Registers by one region and by priority, and blocks as they come: a tenth less time.
    *("-fira-region=one", "-fira-algorithm=priority"),
    *("-fno-guess-branch-probability", "-fno-cprop-registers"),
)
# g++ calls a hook for each load and store, and our runtime provides the hooks. What merges, splits
# or widens accesses, or makes two instructions of one, is off: an access in the source is one here.
_OBSERVED = (
    "-fsanitize=thread",
    *(f"-fno-builtin-{name}" for name in _MEMORY_FUNCTIONS),
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


def _made_by() -> str:
    """All that a build depends on besides files and flags: the compiler and what it reads."""
    return "\n".join([compiler_version(Path(compiler())), *consulted_variables()])


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
    version = re.search(r"(\d+)\.\d+\.\d+", compiler_version(Path(compiler())))
    able = version is not None and int(version[1]) >= 12
    return ("-ftrivial-auto-var-init=pattern",) if able else ()


def _includes() -> list[str]:
    return [f"-I{folder}" for folder in source_folders()]


def _run(command: Sequence[str], what: str, scratch: Path) -> None:
    # Temporary files lie in the scratch folder as well: nothing stays of a killed compiler.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=300, env=environment
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"g++ took more than 300 s over {what}") from None
    if done.returncode != 0:
        telling = re.compile(r"error|undefined reference|No such file|No space left|quota exceeded")
        lines = [line for line in done.stderr.splitlines() if telling.search(line)]
        lines = lines or [done.stderr]
        raise RuntimeError(
            f"g++ cannot compile {what} for the simulator:\n  "
            + "\n  ".join(lines[:8])
            + f"\ncommand: {' '.join(command)}"
        )


def _object(source: Path, observed: bool) -> Path:
    flags = (
        *_COMMON, *_machine_flags(), "-O2", f"-I{INCLUDE}", *_includes(),
        *(("-DTCGEMM_OBSERVE",) if observed else ()),
    )  # fmt: skip
    key = key_of(source.read_bytes(), headers.digest_of(source), _made_by(), *flags)

    def make(scratch: Path) -> Path:
        made = scratch / "made.o"
        before = ["-include", str(_standard_headers(flags))]
        _run(
            [compiler(), *flags, *before, "-c", str(source), "-o", str(made)], source.name, scratch
        )
        return made

    return store.obtain(store.SIMULATOR, f"{source.stem}-{key}.o", make, _facts(source, flags))


def fork_server() -> Path:
    """The program src/fork_server.cpp."""
    source = RUNTIME / "fork_server.cpp"
    flags = ("-std=c++17", "-O1", "-fno-exceptions")
    key = key_of(source.read_bytes(), headers.digest_of(source), _made_by(), *flags)

    def make(scratch: Path) -> Path:
        made = scratch / "made"
        command = [compiler(), *flags, str(source), "-ldl", "-o", str(made)]
        _run(command, source.name, scratch)
        return made

    return store.obtain(store.SIMULATOR, f"{source.stem}-{key}", make, _facts(source, flags))


def _facts(source: Path, flags: Sequence[str]) -> dict[str, object]:
    """What a record says of an entry, for people to read."""
    return {"source": str(source), "compiler": compiler_version(Path(compiler())), "flags": flags}


def _standard_headers(flags: Sequence[str]) -> Path:
    """A header of all standard headers that simulator.hpp includes, with g++'s precompiled form.

    Reading them takes most of a small kernel's time, and half of that of a file of the runtime. g++
    takes the precompiled form where the flags are those that made it, macros aside, and else the
    header itself.
    """
    includes = re.findall(r"^#include <.+>$", (INCLUDE / "simulator.hpp").read_text(), re.MULTILINE)
    vectors = ["#include <immintrin.h>"] if _machine_flags() else []
    text = "\n".join([*includes, *vectors, ""])
    kept = [flag for flag in flags if not flag.startswith(("-I", "-D"))]
    name = f"standard-{key_of(text, _made_by(), *kept)}.hpp"
    facts = _facts(Path(name), kept)

    def written(scratch: Path) -> Path:
        (scratch / name).write_text(text)
        return scratch / name

    def precompiled(scratch: Path) -> Path:
        made, what = scratch / "made.gch", "the standard headers"
        command = [compiler(), *kept, "-x", "c++-header", str(written(scratch)), "-o", str(made)]
        _run(command, what, scratch)
        return made

    header = store.obtain(store.SIMULATOR, name, written, facts)
    store.obtain(store.SIMULATOR, f"{name}.gch", precompiled, facts)
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


def _owner(array: str) -> str:
    """The function that a variable is declared in: of _ZZ6kernelPfE4TILE 6kernelPf."""
    for end in re.finditer(r"E(?=(\d+))", array):
        rest = array[end.end() + len(end[1]) :]
        if re.fullmatch(r"(_\d+|__\d+_)?", rest[int(end[1]) :]) and len(rest) >= int(end[1]):
            return array[len("_ZZ") : end.start()]
    return array


@cache
def shared_symbols(library: Path) -> tuple[dict[str, int], tuple[int, ...]]:
    """Bytes of static shared memory by function, and the offsets of g++'s guards.

    A library holds one kernel in several instances (types, layouts), each with arrays of its own;
    a launch runs one of them.
    """
    arrays: dict[str, int] = {}
    guards = []
    for name, offset, size, _ in _thread_locals(library):
        if name.startswith("_ZGV"):
            guards.append(offset)
        elif name.startswith("_ZZ"):
            arrays[_owner(name)] = arrays.get(_owner(name), 0) + size
    return arrays, tuple(sorted(set(guards)))


@cache
def function_at(library: Path, address: int) -> str:
    """The mangled name, less its _Z, of the function that begins there; empty where none does."""
    command = ["readelf", "-sW", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^ *\d+: 0*{address:x} .* FUNC .* _Z(\S+)$", listing, re.MULTILINE)
    return found[1] if found else ""


def _has_variables(object_file: Path) -> bool:
    """Whether the kernel's file has global variables that can be written."""
    command = ["readelf", "-SsW", str(object_file)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = re.findall(r"^ *\[ *(\d+)\] (\.(?:data|bss)\S*)", listing, re.MULTILINE)
    written = {number for number, name in sections if not name.startswith(".data.rel.ro")}
    return any(
        fields[3] == "OBJECT"
        and fields[6] in written
        and not fields[7].startswith(("_ZGV", "_ZSt"))
        for fields in map(str.split, listing.splitlines())
        if len(fields) == 8
    )


def _dynamic_source(names: set[str], has_variables: bool) -> str:
    lines = [".section .rodata", ".globl tcgemm_has_variables", ".hidden tcgemm_has_variables"]
    lines += [f"tcgemm_has_variables: .byte {int(has_variables)}", ".balign 4"]
    lines += [f".{how} tcgemm_declared_cluster" for how in ("weak", "hidden")]
    lines += ["tcgemm_declared_cluster: .long 1"]  # where the kernel's file has none
    lines += ['.section .tbss,"awT",@nobits', ".balign 1024"]
    for name in sorted(names | {"tcgemm_dynamic_shared"}):
        lines += [f".globl {name}", f".hidden {name}", f".type {name},@object", f"{name}:"]
    return "\n".join([*lines, f".zero {_DYNAMIC_BYTES}", '.section .note.GNU-stack,"",@progbits\n'])


def library(source: Path, observed: bool, defines: Sequence[str] = ()) -> Path:
    """The shared library of one .cu file, built where the cache does not hold it.

    ``observed`` builds it with a hook in front of every load and store, for checks and counts;
    ``defines`` are further flags.
    Raises RuntimeError where g++ is missing or refuses the file, or the store cannot be used.
    """
    source = source.resolve()
    flags = (
        *_COMMON, *_machine_flags(), *_KERNEL, f"-I{INCLUDE}", f"-I{source.parent}", *_includes(),
        *((*_OBSERVED, *_poison_flags()) if observed else ()), *defines,
    )  # fmt: skip
    runtime = _runtime_digest(observed)
    made_from = (source.read_bytes(), headers.digest_of(source), runtime)
    key = key_of(*made_from, _made_by(), str(source), *flags)
    name = f"{_short(source.stem)}-{'observed' if observed else 'plain'}-{key}.so"

    def make(scratch: Path) -> Path:
        return _build(source, observed, flags, scratch)

    return store.obtain(store.SIMULATOR, name, make, _facts(source, flags))


def _short(stem: str) -> str:
    """The beginning of a file's name: a folder's entry has at most 255 bytes, key and all."""
    return stem.encode()[:120].decode(errors="ignore")


def _runtime(observed: bool) -> tuple[str, ...]:
    """The source files of the simulator that a kernel is linked with."""
    return (*_SOURCES, *_OBSERVING) if observed else _SOURCES


@cache
def _runtime_digest(observed: bool) -> str:
    files = [RUNTIME / name for name in _runtime(observed)]
    return key_of(
        *(part for file in files for part in (file.read_bytes(), headers.digest_of(file)))
    )


def _build(source: Path, observed: bool, flags: Sequence[str], scratch: Path) -> Path:
    with ThreadPoolExecutor() as pool:
        files = [RUNTIME / name for name in _runtime(observed)]
        runtime = [pool.submit(_object, file, observed) for file in files]
        made = scratch / "kernel.o"
        before = ["-include", str(_standard_headers(flags)), "-x", "c++"]
        ours = [file for file in headers.included(source) or () if file.parent != INCLUDE]
        compiled = in_clusters(source, ours, scratch)
        command = [compiler(), *flags, *before, "-c", str(compiled), "-o", str(made)]
        _run(command, source.name, scratch)
        objects = [str(made), *(str(job.result()) for job in runtime)]
    if observed:
        renamed = [f"--redefine-sym={name}=tcgemm_{name}" for name in _MEMORY_FUNCTIONS]
        _run(["objcopy", *renamed, str(made)], source.name, scratch)
    assembler = scratch / "dynamic.s"
    assembler.write_text(_dynamic_source(_dynamic_names(made), _has_variables(made)))
    so = scratch / "made.so"
    _run(
        [compiler(), "-shared", "-fPIC", "-Wl,-Bsymbolic,--no-undefined", *objects,
         str(assembler), "-lpthread", "-o", str(so)],
        f"{source.name} (linking)",
        scratch,
    )  # fmt: skip
    return so
