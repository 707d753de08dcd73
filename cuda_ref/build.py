"""Rungs compiled on first use, one at a time, and kept.

``operators(name, capability)`` returns a rung's torch operators. Their library comes from the
cache, or is compiled by ``torch.utils.cpp_extension.load_inline`` and put there. The cache is
``$TCGEMM_CACHE_DIR`` or ``~/.cache/tcgemm``; a library's name carries a hash of everything that
went into it, so an entry is never out of date, only unused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .toolchain import (
    CSRC,
    NO_NVCC,
    cuda_home,
    find_cxx,
    find_nvcc,
    include_folders,
    nvcc_flags,
    sm_of,
    source_files,
    wheel_folders,
)

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "TCGEMM_CACHE_DIR"

_operators: dict[str, Operators] = {}
_lock = threading.RLock()


class Operators(NamedTuple):
    """The two ways to call a rung."""

    plain: Callable[..., None]
    """``plain(a, b, c)``: the product alone."""
    fused: Callable[..., None]
    """``fused(a, b, c, c_in, bias, scale_a, scale_b, *fusion.numbers(...), config)``."""


def operators(name: str, capability: tuple[int, int], defines: tuple[str, ...] = ()) -> Operators:
    """The rung's operators for GPUs of that compute capability, built with further flags.

    Raises RuntimeError, with the remedy, where a compiler is missing or fails.
    """
    symbol = f"{name}_{cache_key(name, capability, defines=defines)}"
    with _lock:
        if symbol not in _operators:
            _load(name, symbol, capability, defines)
            packet = getattr(torch.ops.tcgemm_cuda, symbol)
            _operators[symbol] = Operators(packet.default, packet.fused)
        return _operators[symbol]


def cache_key(
    name: str,
    capability: tuple[int, int],
    folder: Path = CSRC,
    defines: tuple[str, ...] = (),
) -> str:
    """16 hexadecimal digits of all that a rung's library depends on.

    The text of its source, of all files that it includes and of the binding; flags and target;
    the versions of torch and of torch's CUDA; the machine's architecture.
    """
    digest = hashlib.sha256()
    for path in [*source_files(name, folder), folder / "binding.cpp"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    facts = [*nvcc_flags(sm_of(capability)), *defines, torch.__version__, str(torch.version.cuda)]
    digest.update("\0".join([*facts, platform.machine()]).encode())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """The folder that compiled rungs are kept in; made where it is missing.

    Where it cannot be written, a folder of this user's below the system's temporary one takes its
    place, with a logged warning.
    """
    wanted = _wanted_folder()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError as error:
        instead = Path(tempfile.gettempdir()) / f"tcgemm-{os.getuid()}"
        logger.warning(
            "cannot write the cache %s (%s): compiled kernels go to %s; set %s to choose a folder",
            wanted,
            error.strerror,
            instead,
            CACHE_VARIABLE,
        )
        instead.mkdir(mode=0o700, exist_ok=True)
        if instead.stat().st_uid != os.getuid():
            raise RuntimeError(
                f"{instead} belongs to another user: set {CACHE_VARIABLE} to a folder of yours"
            ) from error
        return instead


def _wanted_folder() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "tcgemm")


def _load(
    name: str, symbol: str, capability: tuple[int, int], defines: tuple[str, ...] = ()
) -> None:
    library = _wanted_folder() / f"{symbol}.so"
    if _intact(library) and _opens(library):
        return
    library = cache_folder() / f"{symbol}.so"
    with exclusive(library.with_suffix(".lock")):
        if library.exists():
            # Another process may have finished it while this one waited.
            if _intact(library) and _opens(library):
                return
            logger.warning("the cached kernel %s is corrupt: it is compiled again", library)
        _build(name, symbol, capability, library, defines)


def _intact(library: Path) -> bool:
    """True where the library is there and is what its record says was built."""
    try:
        record = json.loads(library.with_suffix(".json").read_text())
        return bool(record["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _opens(library: Path) -> bool:
    try:
        torch.ops.load_library(library)
    except OSError as error:
        logger.warning("the cached kernel %s does not load: %s", library, error)
        return False
    return True


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds a lock that ends with its process: a killed builder blocks nobody."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("no lock on %s (%s): two processes may compile at once", path, error)
        yield


def _build(
    name: str,
    symbol: str,
    capability: tuple[int, int],
    library: Path,
    defines: tuple[str, ...] = (),
) -> None:
    nvcc = require_toolchain()
    # A fresh folder for each build: torch's own lock file, if its builder is killed, stays behind
    # in a folder that nobody looks into again. The lock held here makes the others' leavings ours.
    for left in library.parent.glob(f"{symbol}.build-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{symbol}.build-", dir=library.parent))
    started = time.perf_counter()
    try:
        with _environment(nvcc) as cpp_extension:
            built = cpp_extension.load_inline(
                symbol,
                cpp_sources=['#include "binding.cpp"'],
                cuda_sources=[f'#include "{name}.cu"'],
                extra_cflags=["-O1", "-fvisibility=hidden", f"-DTCGEMM_OPERATOR={symbol}"],
                extra_cuda_cflags=[*nvcc_flags(sm_of(capability)), *defines],
                extra_include_paths=[str(CSRC), *map(str, include_folders(nvcc))],
                extra_ldflags=_link_flags(nvcc, folder),
                build_directory=str(folder),
                with_cuda=True,
                is_python_module=False,
                no_implicit_headers=True,
            )
        seconds = time.perf_counter() - started
        record = {
            "kernel": name,
            "target": sm_of(capability),
            "defines": list(defines),
            "nvcc": str(nvcc),
            "torch": torch.__version__,
            "seconds": round(seconds, 2),
            "sha256": hashlib.sha256(Path(built).read_bytes()).hexdigest(),
        }
        written = folder / "record.json"
        written.write_text(json.dumps(record, indent=1))
        os.replace(built, library)
        os.replace(written, library.with_suffix(".json"))
        logger.info("compiled %s for %s in %.1f s", name, sm_of(capability), seconds)
    except (RuntimeError, OSError) as error:
        raise RuntimeError(
            f"compiling CUDA kernel {name!r} for {sm_of(capability)} with {nvcc} failed: {error}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


@contextlib.contextmanager
def _environment(nvcc: Path) -> Iterator[Any]:
    """torch's extension module, made to use this nvcc and to find ninja."""
    from torch.utils import cpp_extension

    home, path = cpp_extension.CUDA_HOME, os.environ.get("PATH", "")
    nvcc_before = os.environ.get("PYTORCH_NVCC")
    cpp_extension.CUDA_HOME = str(cuda_home(nvcc))
    os.environ["PATH"] = _path_with_scripts()
    os.environ["PYTORCH_NVCC"] = str(nvcc)
    try:
        yield cpp_extension
    finally:
        cpp_extension.CUDA_HOME = home
        os.environ["PATH"] = path
        if nvcc_before is None:
            del os.environ["PYTORCH_NVCC"]
        else:
            os.environ["PYTORCH_NVCC"] = nvcc_before


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
