"""Where the compilers are, and with which flags they are called.

Nothing here imports torch, so that a machine without a GPU can ask as well.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .store import Status, key_of, status_of

ROOT = Path(__file__).parent.parent
"""The folder of all sources: rungs/ and shapes/, one .cu file a rung, and csrc/, their headers."""

CSRC = ROOT / "csrc"

WHEELS = ("nvcc", "crt", "runtime", "cccl")
"""The parts of a toolkit that nvcc needs, as wheels nvidia-cuda-...; and nvidia-nvvm."""

NO_NVCC = (
    "nvcc was not found in CUDA_HOME, on PATH or in the pip wheels: install the CUDA toolkit and "
    "set CUDA_HOME, or, all of one version, which is the one that torch is built with, run pip "
    "install "
    + " ".join(f"'nvidia-cuda-{part}==13.0.*'" for part in WHEELS)
    + " 'nvidia-nvvm==13.0.*'"
)


def find_nvcc() -> tuple[Path, str] | None:
    """(path, where it was found) of nvcc, from CUDA_HOME, PATH, the pip wheels, /usr/local/cuda."""
    return _find_tool("nvcc")


def find_cuobjdump() -> tuple[Path, str] | None:
    """(path, where it was found) of cuobjdump; Triton's wheel carries one as well."""
    return _find_disassembler("cuobjdump")


def find_nvdisasm() -> tuple[Path, str] | None:
    """(path, where it was found) of nvdisasm; Triton's wheel carries one as well."""
    return _find_disassembler("nvdisasm")


def _find_disassembler(name: str) -> tuple[Path, str] | None:
    found = _find_tool(name)
    if found:
        return found
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        path = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / name
        if path.is_file():
            return path, "the Triton wheel"
    return None


def find_cxx(path: str | None = None) -> Path | None:
    """The host's C++ compiler: $CXX, c++ or g++, on PATH or on another list of folders."""
    for name in (os.environ.get("CXX", ""), "c++", "g++"):
        found = shutil.which(name, path=path) if name else None
        if found:
            return Path(found)
    return None


CONSULTED = (
    "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CC", "CXX", "CPATH",
    "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
)  # fmt: skip
"""Variables of the environment that nvcc, g++ or torch's builder read beside their arguments."""


def consulted_variables() -> list[str]:
    """``NAME=value`` of those of CONSULTED that are set."""
    return [f"{name}={os.environ[name]}" for name in CONSULTED if name in os.environ]


LOOKED_UP = ("PATH", "CUDA_HOME", "CUDA_PATH", "CC", "CXX")
"""Variables of the environment that say where compilers are."""


def compiler_versions(find: Callable[[], Sequence[Path | None]]) -> list[str]:
    """The versions of the compilers that ``find`` finds, which is asked once, and again where a
    variable of LOOKED_UP or one of the files has changed: it looks into some fifty places."""
    asked = find, *map(os.environ.get, LOOKED_UP)
    found, before, versions = _compilers.get(asked, ([], [], []))
    if not found or [status_of(path) for path in found] != before:
        every = find()
        found = [path for path in every if path is not None]
        before = [status_of(path) for path in found]
        versions = [compiler_version(path) for path in found]
        if len(found) == len(every):  # else one may be installed yet
            _compilers[asked] = found, before, versions
    return versions


_compilers: dict[Any, tuple[list[Path], list[Status | None], list[str]]] = {}


def compiler_version(path: Path) -> str:
    """What a compiler says to ``--version``: its release, its build and who made it.

    Empty where it cannot be run. Asked once, and again where the file has changed.
    """
    try:
        status = path.stat()
    except OSError:
        return ""
    return _version(path, status.st_mtime_ns, status.st_size)


@cache
def _version(path: Path, mtime_ns: int, size: int) -> str:
    try:
        return subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ""


def _find_tool(tool: str) -> tuple[Path, str] | None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home and (Path(home) / "bin" / tool).is_file():
            return Path(home) / "bin" / tool, variable
    on_path = shutil.which(tool)
    if on_path:
        return Path(on_path), "PATH"
    for folder in wheel_folders():
        path = folder / "bin" / tool
        if path.is_file():
            return path, "the pip wheels"
    path = Path("/usr/local/cuda/bin") / tool
    return (path, "/usr/local/cuda") if path.is_file() else None


def wheel_folders() -> list[Path]:
    """The folders of NVIDIA's wheels: nvidia/cu13 since CUDA 13, nvidia/cuda_nvcc, ... before."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    roots = [Path(location) for location in spec.submodule_search_locations]
    return sorted(folder for root in roots for folder in root.glob("c*") if folder.is_dir())


def cuda_home(nvcc: Path) -> Path:
    """The toolkit that an nvcc belongs to: the folder that holds include/cuda_runtime.h.

    nvcc may be a link or a script that calls the real one, so where the folder above its own does
    not do, nvcc itself is asked.
    """
    for path in (nvcc, nvcc.resolve()):
        if _is_home(path.parent.parent):
            return path.parent.parent
    command = [str(nvcc), "--dryrun", "-x", "cu", "-E", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    return Path(top[1]).resolve() if top else nvcc.resolve().parent.parent


def _is_home(folder: Path) -> bool:
    return (folder / "include" / "cuda_runtime.h").is_file()


def include_folders(nvcc: Path) -> list[Path]:
    """Folders that an nvcc from the older wheels, where each has its own, must be told of."""
    if _is_home(cuda_home(nvcc)):
        return []
    return [folder / "include" for folder in wheel_folders() if (folder / "include").is_dir()]


def sm_of(capability: tuple[int, int]) -> str:
    """The target of a compute capability: (9, 0) is sm_90a, which alone has wgmma."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


LINES = "-lineinfo"
"""The flag by which machine code says where in the source it comes from, and that is the same code
otherwise. Two thirds of a library would be that."""


def nvcc_flags(sm: str) -> list[str]:
    """Flags of every rung for one target, e.g. ``sm_90a``.

    torch passes -D__CUDA_NO_HALF_OPERATORS__ and friends, which would take the arithmetic of
    half and bfloat16 away: they are undone. Host symbols stay hidden, since every rung's library
    defines the same tcgemm_launch.
    """
    number = sm.removeprefix("sm_")
    return [
        "-O3",
        "-std=c++17",
        f"-gencode=arch=compute_{number},code={sm}",
        f"-DTCGEMM_SM={re.sub('[a-z]', '', number)}",
        LINES,
        "-U__CUDA_NO_HALF_OPERATORS__",
        "-U__CUDA_NO_HALF_CONVERSIONS__",
        "-U__CUDA_NO_HALF2_OPERATORS__",
        "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
        "-Xcompiler=-fvisibility=hidden",
    ]


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def source_folders(root: Path = ROOT) -> list[Path]:
    """The folders that the compilers search for what a rung includes."""
    return [root / "csrc", root / "rungs", root / "shapes"]


OWN: dict[str, Path] = {}
"""Name -> .cu file of a kernel that is no rung, but built and inspected as one."""


def source(name: str, root: Path = ROOT) -> Path:
    """The .cu file of a rung, of overlap/, beside rungs/, or of OWN. LookupError where none has the
    name."""
    return OWN[name] if name in OWN else _source(name, root)


@cache
def _source(name: str, root: Path) -> Path:
    for folder in ("rungs", "shapes", "overlap", ""):
        path = root / folder / f"{name}.cu"
        if path.is_file():
            return path
    raise LookupError(f"no rung {name!r}: there is no {name}.cu in rungs/ or shapes/")


def content_of(path: Path) -> bytes:
    """A source's bytes, read once, and again where the file has changed."""
    return _content(path, status_of(path))


@cache
def _content(path: Path, status: Status | None) -> bytes:
    return path.read_bytes()


def text_of(path: Path) -> str:
    """A source, whatever bytes it has: a compiler says what is wrong with them."""
    return path.read_text(errors="replace")


_files: dict[tuple[Path, Path], tuple[list[Path], list[str], list[Status | None]]] = {}
"""By name too, which a look at the disk takes sooner."""


def source_files(path: Path, root: Path = ROOT) -> list[Path]:
    """A .cu file and every file of ``root`` that it includes, directly or not; looked for once,
    and again where one of them has changed."""
    return [*_looked_for(path, root)[0]]


def _looked_for(path: Path, root: Path) -> tuple[list[Path], list[Status | None]]:
    """The files, and the status that each of them has now, or had before it was read."""
    found, names, before = _files.get((path, root), ([path], [], []))
    if not names or [*map(status_of, names)] != before:
        found, before = _included(path, root)
        _files[path, root] = found, [*map(str, found)], before
    return found, before


_digests: dict[tuple[Path, Path], tuple[list[Status | None], str]] = {}


def digest_of(path: Path, root: Path = ROOT) -> str:
    """Of the names and bytes of a .cu file and of all that it includes; worked out once, and again
    where one of them has changed."""
    files, statuses = _looked_for(path, root)
    before, digest = _digests.get((path, root), (None, ""))
    if statuses != before:
        digest = key_of(*(part for file in files for part in (file.name, content_of(file))))
        # What is saved while it is read has another status the next time.
        _digests[path, root] = statuses, digest
    return digest


def _included(path: Path, root: Path) -> tuple[list[Path], list[Status | None]]:
    """The files, and the status of each from before it was read: what is saved meanwhile is looked
    at the next time."""
    found, statuses = [path], []
    for file in found:
        statuses.append(status_of(file))
        for include in _INCLUDE.findall(text_of(file)):
            for folder in (file.parent, *source_folders(root)):
                other = folder / include
                if other.is_file():
                    if other not in found:
                        found.append(other)
                    break
    return found, statuses


_CASE = (
    "IN|OUT|COMPUTE|SQUARE|PLAIN|FUSES|BLOCK_M|BLOCK_N|NUM_STAGES|CHUNK_BUFFERS|PINGPONG|SHARES_A|"
    "CLUSTER_M|CLUSTER_N|DIVIDES|ACROSS"
)


@cache
def built_by_case(path: Path) -> frozenset[str]:
    """The macros by which a .cu file, with what it includes, is compiled for one case at a time.

    None where it is compiled whole.
    """
    text = "".join(text_of(file) for file in source_files(path))
    return frozenset(re.findall(rf"TCGEMM_(?:{_CASE})\b", text))


_CONSTANT = re.compile(r"^constexpr int ([A-Z][A-Z0-9_]*) = (\d+);", re.MULTILINE)


@cache
def activations() -> dict[str, int]:
    """The enumerators of tcgemm::Activation with their values; "" for the first, which is none.

    csrc/tile/activations.cuh is where an activation is added: its name and what it does.
    """
    text = (CSRC / "tile" / "activations.cuh").read_text()
    written = re.search(r"^enum class Activation : int32_t \{ none, ([a-z_, ]+) \};$", text, re.M)
    if written is None:
        raise RuntimeError("csrc/tile/activations.cuh has no enum class Activation { none, ... }")
    return {name: value for value, name in enumerate(["", *written[1].split(", ")])}


def constants(name: str) -> dict[str, int]:
    """The rung's ``constexpr int NAME = number;``, in the order of its source."""
    return {key: int(value) for key, value in _CONSTANT.findall(text_of(source(name)))}
