"""Warm-up: what Triton does once a process before its first kernel, beside our own start.

To know whether its cache on disk holds a kernel Triton hashes its own library, some 460 MB, once a
process: 0.4 s of a processor. The key that it gets is kept in a file of ours beside the size and
time of every file that it was made from, and while these are the same Triton is given it. Its
driver asks for the linker's folders and, where no process before did, compiles a module in C; and
ptxas is asked for its version. None needs Python's lock for long. So they begin when Triton has
been imported, and run while the rung is imported, the plan made and the operands described; a first
launch waits for them. Other kernels of the process find their answers as well.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Thread

from ..planning.tables import FOLDER_VARIABLE

_under_way: list[Thread] = []

CACHE_VARIABLE = "TRITON_CACHE_DIR"

logger = logging.getLogger(__name__)


def usable_cache() -> None:
    """Give Triton a folder to keep what it compiles in, where it cannot write its own.

    Triton ends in a traceback where neither $TRITON_CACHE_DIR nor ~/.triton can be made. The folder
    that takes its place is this process's own, and goes with it.
    """
    folder = os.environ.get(CACHE_VARIABLE) or os.path.join(
        os.environ.get("TRITON_HOME") or os.path.expanduser("~"), ".triton", "cache"
    )
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        instead = tempfile.mkdtemp(prefix="tcgemm-triton-")
        atexit.register(_remove, instead, os.getpid())
        os.environ[CACHE_VARIABLE] = instead
        logger.warning(
            "Triton cannot write its cache %s (%s): what it compiles is kept for this process "
            "only, in %s; set %s to a folder that can be written",
            folder,
            error.strerror,
            instead,
            CACHE_VARIABLE,
        )


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, which its parent may outlive
        shutil.rmtree(folder, ignore_errors=True)


def begin() -> None:
    """Begin; returns at once."""
    for work in (_hash, _driver, _assembler):
        thread = Thread(target=_quietly, args=(work,), name=f"tcgemm{work.__name__}", daemon=True)
        thread.start()
        _under_way.append(thread)


def wait() -> None:
    """Wait for the end of what ``begin`` began; nothing to do from then on."""
    while _under_way:
        _under_way[-1].join()
        with suppress(IndexError):  # another thread was faster
            _under_way.pop()


def _quietly(work: Callable[[], object]) -> None:
    # What fails here fails in the launch again, and says so.
    with suppress(Exception):
        work()


def _hash() -> None:
    """Have ``triton_key`` know its answer: the one kept of the same files, else by hashing them."""
    cache = importlib.import_module("triton.runtime.cache")
    stamp, file = _stamp(Path(cache.__file__).parents[1]), _key_file()
    key = _kept(file, stamp)
    if key is None:
        _keep(file, stamp, cache.triton_key())
    elif not cache.triton_key.cache_info().currsize:  # nobody has hashed meanwhile
        cache.triton_key = lru_cache(lambda: key)
        cache.triton_key()


def _stamp(triton: Path) -> str:
    """A digest of name, size and time of all files that Triton hashes, and of more."""
    folders = (triton / name for name in ("_C", "backends", "compiler", "language", "runtime"))
    found = (path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc")
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(found)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _key_file() -> Path:
    folder = os.environ.get(FOLDER_VARIABLE) or os.path.expanduser("~/.cache/tcgemm")
    return Path(folder) / "triton-key.json"


def _kept(file: Path, stamp: str) -> str | None:
    """The key that was kept of files with this stamp."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(file.read_text())
        if found["stamp"] == stamp:
            return str(found["key"])
    return None


def _keep(file: Path, stamp: str, key: str) -> None:
    """Whole or not at all: another process may read meanwhile."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as writing:
            json.dump({"stamp": stamp, "key": key}, writing)
        os.replace(writing.name, file)


def _driver() -> object:
    """Triton's driver with its compiled module; asks the GPU nothing, so that a capture may be
    under way."""
    drivers = importlib.import_module("triton.runtime.driver").driver
    return drivers.active


def _assembler() -> None:
    """Ask for ptxas's version, a process of its own, which is part of each kernel's key."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    compiler = importlib.import_module("triton.backends.nvidia.compiler")
    compiler.get_ptxas_version(10 * major + minor)
