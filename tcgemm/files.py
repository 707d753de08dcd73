"""Files that several processes write, and that are never left half written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: what was there stays until the new text is on the disk.

    Raises OSError, with ``filename`` set to ``path``, and leaves nothing behind.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that a file stands for; the file is made where it is missing, and stays.

    The lock ends with its process: a killed one blocks nobody. Where the file system has no locks
    the block runs without one.
    """
    while True:
        with path.open("a") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if not stands_at(file.fileno(), path):  # replaced while this waited: lock the new one
                continue
            yield
            return


def stands_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that the path names now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _mode(path: Path) -> int:
    """The permissions that the file has, or that a new one would get."""
    try:
        return path.stat().st_mode & 0o7777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
