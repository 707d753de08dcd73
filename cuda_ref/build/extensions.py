"""Rungs compiled for a GPU on first use, and kept.

``library(name, capability)`` returns a rung's library, opened. It comes from the store (store.py),
or is compiled by ``torch.utils.cpp_extension.load_inline`` and put there. Its name carries a hash
of everything that went into it.

The binding, which reads torch's headers for longer than a small rung takes, depends on no rung: its
object is an entry of the store too, compiled once and linked into every library.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..handle import open_library
from . import store
from .store import lock_of
from .toolchain import (
    LINES,
    NO_NVCC,
    ROOT,
    compiler_versions,
    consulted_variables,
    cuda_home,
    digest_of,
    find_cxx,
    find_nvcc,
    include_folders,
    nvcc_flags,
    sm_of,
    source,
    source_folders,
    wheel_folders,
)

logger = logging.getLogger(__name__)

BINDING = "csrc/host/binding.cpp"

_BINDING_ALONE = f"""#include "{BINDING.removeprefix("csrc/")}"
// For the loader, which wants a launcher: a rung's own takes the place of this one.
__attribute__((weak)) int tcgemm_launch(const tcgemm::Gemm&, cudaStream_t) {{
  return cudaErrorNotSupported;
}}
"""

_CXX_FLAGS = (
    "-O1", "-fvisibility=hidden",
    "-pipe",  # no temporary files that a killed compiler leaves
)  # fmt: skip

_libraries: dict[str, ctypes.CDLL] = {}
_opened: dict[Path, ctypes.CDLL] = {}
"""What was opened to see whether it opens."""


def library(name: str, capability: tuple[int, int], defines: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The rung's library for GPUs of that compute capability, built with further flags.

    Threads that ask for one rung at once wait for one build; different rungs build side by side.

    Raises RuntimeError, with the remedy, where a compiler is missing or fails.
    """
    symbol = f"{name}_{cache_key(name, capability, defines=defines)}"
    with lock_of(f"library {symbol}"):
        if symbol not in _libraries:
            path = _load(name, symbol, capability, defines)
            _libraries[symbol] = _opened.pop(path, None) or open_library(str(path))
        return _libraries[symbol]


def is_built(name: str, capability: tuple[int, int], defines: tuple[str, ...] = ()) -> bool:
    """Whether the store has the rung's library; nothing is built or opened."""
    symbol = f"{name}_{cache_key(name, capability, defines=defines)}"
    wanted = store.wanted_folder()
    return wanted is not None and (wanted / store.EXTENSIONS / f"{symbol}.so").is_file()


def build_ahead(name: str, capability: tuple[int, int], defines: tuple[str, ...] = ()) -> int:
    """Have the store hold the rung's library; 1 where it was built now, else 0."""
    built = 0

    def counting(*asked: Any) -> Path:
        nonlocal built
        built = 1
        return _build(*asked)

    symbol = f"{name}_{cache_key(name, capability, defines=defines)}"
    _load(name, symbol, capability, defines, counting)
    return built


def cache_key(
    name: str,
    capability: tuple[int, int],
    root: Path = ROOT,
    defines: tuple[str, ...] = (),
) -> str:
    """24 hexadecimal digits of all that a rung's library depends on.

    The text of its source, of all files that it includes and of the binding; flags, target and the
    variables of the environment that compilers read; the versions of nvcc, of the host's compilers,
    of torch and of torch's CUDA; the machine's architecture.
    """
    return store.key_of(
        digest_of(source(name, root), root),
        binding_key(root),
        *_flags(capability),
        *defines,
    )


def binding_key(root: Path = ROOT) -> str:
    """The same of the binding's object, which knows no rung, no target and no define."""
    return store.key_of(
        _BINDING_ALONE,
        digest_of(root / BINDING, root),
        *_CXX_FLAGS,
        *consulted_variables(),
        *_compilers(),
        torch.__version__,
        str(torch.version.cuda),
        platform.machine(),
    )


def _flags(capability: tuple[int, int]) -> list[str]:
    """nvcc's flags for a library: it has no places in the source, with which it would be three times
    as long, and its first call would wait longer. NVCC_APPEND_FLAGS=-lineinfo puts them in, for a
    profiler or compute-sanitizer."""
    return [flag for flag in nvcc_flags(sm_of(capability)) if flag != LINES]


def _compilers() -> list[str]:
    """The versions of the compilers that a build takes here."""
    return compiler_versions(_found_compilers)


def _found_compilers() -> tuple[Path | None, ...]:
    """nvcc, its host's compiler, torch's."""
    nvcc, path = find_nvcc(), _path_with_scripts()
    host = shutil.which(os.environ.get("CC") or "gcc", path=path)
    return nvcc[0] if nvcc else None, Path(host) if host else None, find_cxx(path)


def _load(
    name: str,
    symbol: str,
    capability: tuple[int, int],
    defines: tuple[str, ...] = (),
    build: Callable[..., Path] | None = None,
) -> Path:
    """The path of the rung's library, from the store or from a build."""

    def make(scratch: Path) -> Path:
        return (build or _build)(name, symbol, capability, scratch, defines)

    facts = {
        "kernel": name,
        "target": sm_of(capability),
        "defines": list(defines),
        "compilers": _compilers(),
        "torch": torch.__version__,
    }
    # What is built just now needs no opening: load_inline has done so in the scratch folder.
    return store.obtain(store.EXTENSIONS, f"{symbol}.so", make, facts, _opens)


def _opens(path: Path) -> bool:
    try:
        _opened[path] = open_library(str(path))
    except (OSError, AttributeError) as error:
        logger.warning("the cached kernel %s does not load: %s", path, error)
        return False
    return True


def _build(
    name: str,
    symbol: str,
    capability: tuple[int, int],
    scratch: Path,
    defines: tuple[str, ...] = (),
) -> Path:
    """Compiles a rung's library in a folder of its own."""
    nvcc = require_toolchain()
    try:
        shutil.copyfile(_binding(nvcc), scratch / "binding.o")
        return _load_inline(
            nvcc, symbol, scratch, cuda=f'#include "{source(name).name}"',
            # Temporary files in the build's own folder, where a killed compiler may leave them.
            cuda_flags=["-objtemp", *_flags(capability), *defines],
            folders=[source(name).parent], objects=["binding.o"],
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        raise RuntimeError(
            f"compiling CUDA kernel {name!r} for {sm_of(capability)} with {nvcc} failed: {error}"
        ) from error


def _binding(nvcc: Path) -> Path:
    """The path of the binding's object, from the store or from a build."""

    def make(scratch: Path) -> Path:
        # Where no architecture is named, load_inline asks the GPU for one, and there may be none.
        _load_inline(nvcc, symbol, scratch, cpp=_BINDING_ALONE, cuda_flags=["-arch=all"])
        return scratch / "main.o"  # load_inline's name for what it makes of its C++ source

    symbol = f"binding_{binding_key()}"
    facts = {"compilers": _compilers(), "torch": torch.__version__}
    return store.obtain(store.EXTENSIONS, f"{symbol}.o", make, facts)


def _load_inline(
    nvcc: Path,
    symbol: str,
    scratch: Path,
    *,
    cpp: str = "",
    cuda: str = "",
    cuda_flags: Sequence[str] = (),
    folders: Sequence[Path] = (),
    objects: Sequence[str] = (),
) -> Path:
    """A library of these sources and of objects in ``scratch``, compiled there and loaded."""
    with _environment(nvcc) as cpp_extension:
        built = cpp_extension.load_inline(
            symbol,
            cpp_sources=[cpp],
            cuda_sources=[cuda] if cuda else None,
            extra_cflags=list(_CXX_FLAGS),
            extra_cuda_cflags=list(cuda_flags),
            extra_include_paths=[
                *map(str, folders),
                *map(str, source_folders()),
                *map(str, include_folders(nvcc)),
            ],
            extra_ldflags=[*objects, *_link_flags(nvcc, scratch)],
            build_directory=str(scratch),
            with_cuda=True,
            is_python_module=False,
            no_implicit_headers=True,
        )
    return Path(built)


def require_toolchain() -> Path:
    """The path of nvcc, once it, a C++ compiler and ninja are found; else RuntimeError."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError(NO_NVCC)
    if find_cxx() is None:
        raise RuntimeError(
            "no C++ compiler was found ($CXX, c++ or g++), and nvcc needs one: "
            "install g++, e.g. apt-get install g++"
        )
    if shutil.which("ninja", path=_path_with_scripts()) is None:
        raise RuntimeError("ninja was not found, and torch compiles with it: pip install ninja")
    return nvcc[0]


def _path_with_scripts() -> str:
    """PATH with the scripts of this interpreter first, where pip puts ninja."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


_builds_under_way: list[Path] = []
_before_builds: dict[str, str | None] = {}


@contextlib.contextmanager
def _environment(nvcc: Path) -> Iterator[Any]:
    """torch's extension module, made to use this nvcc and to find ninja.

    Several threads may build at once: the first sets the process's environment, the last puts it
    back as it was.
    """
    from torch.utils import cpp_extension

    with lock_of("environment of builds"):
        if not _builds_under_way:
            _before_builds.update(
                PATH=os.environ.get("PATH"),
                PYTORCH_NVCC=os.environ.get("PYTORCH_NVCC"),
                CUDA_HOME=cpp_extension.CUDA_HOME,
            )
            cpp_extension.CUDA_HOME = str(cuda_home(nvcc))
            os.environ["PATH"] = _path_with_scripts()
            os.environ["PYTORCH_NVCC"] = str(nvcc)
        _builds_under_way.append(nvcc)
    try:
        yield cpp_extension
    finally:
        with lock_of("environment of builds"):
            _builds_under_way.remove(nvcc)
            if not _builds_under_way:
                cpp_extension.CUDA_HOME = _before_builds["CUDA_HOME"]
                for name in ("PATH", "PYTORCH_NVCC"):
                    before = _before_builds[name]
                    if before is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = before


def _link_flags(nvcc: Path, folder: Path) -> list[str]:
    """Flags to find libcudart.so, which the wheels hold only as libcudart.so.13."""
    home = cuda_home(nvcc)
    if any((home / lib / "libcudart.so").exists() for lib in ("lib64", "lib")):
        return []
    for wheel in wheel_folders():
        for runtime in sorted((wheel / "lib").glob("libcudart.so.*")):
            (folder / "libcudart.so").symlink_to(runtime)
            return [f"-L{folder}"]
    return []
