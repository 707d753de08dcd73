"""Warm-up: what Triton does once a process before its first kernel, beside our own start.

To know whether its cache on disk holds a kernel Triton hashes its own library, some 400 MB, once a
process; its driver asks for the linker's folders and, where no process before did, compiles a
module in C. Neither needs Python's lock for long. So both begin when Triton has been imported, and
run while the rung is imported, the plan made and the operands described; a first launch waits for
them. Triton keeps both results itself: nothing of Triton is replaced, and other kernels of the
process find them as well.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

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
    for work in (_hash, _driver):
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
    """Fill the memory of ``triton_key``, which is kept for the process."""
    importlib.import_module("triton.runtime.cache").triton_key()


def _driver() -> object:
    """Triton's driver with its compiled module; asks the GPU nothing, so that a capture may be
    under way."""
    drivers = importlib.import_module("triton.runtime.driver").driver
    return drivers.active
