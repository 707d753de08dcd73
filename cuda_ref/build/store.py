"""The one store of compiled things: rungs for a GPU, the simulator's libraries, objects, headers.

An entry is a file and beside it, as ``<file>.json``, its record: the file's SHA-256 and what it
was made from. The file's name carries a key of all that went into it (``key_of``), so an entry is
never out of date, only unused. ``obtain`` is the only way in and out:

- A file counts only where its record says that it is whole and its own; a damaged one is built
  again with a warning, before anything maps it into memory.
- One builder at a time makes an entry, among threads and processes; different entries are built at
  the same time. The lock ends with its process, so a killed builder blocks nobody.
- A builder works in a scratch folder beside the entry. The record is moved into place first and
  the file last, each atomically, so that a kill at any time leaves an entry that is missing.
- Every build first removes what killed builders left behind.

The store lies in ``$TCGEMM_CACHE_DIR`` or ``~/.cache/tcgemm``. What lies in it runs with the user's
rights, so a folder that others may write is refused; see SECURITY.md. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

VARIABLE = "TCGEMM_CACHE_DIR"
"""Environment variable that names the store's folder."""

EXTENSIONS, SIMULATOR = "extensions", "simulator"
"""The store's two folders: rungs for GPUs, and all that the simulator compiles."""

_SCRATCH, _LOCK, _RECORD = ".build-", ".lock", ".json"


def key_of(*parts: str | bytes) -> str:
    """24 hexadecimal digits that change with every part and with their order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()[:24]


def obtain(
    below: str,
    name: str,
    make: Callable[[Path], Path],
    facts: Mapping[str, Any],
    accept: Callable[[Path], bool] = lambda path: True,
) -> Path:
    """The path of an entry, built where the store does not hold it whole.

    Args:
        below: EXTENSIONS or SIMULATOR.
        name: the entry's file name, which carries the key of all that it depends on.
        make: ``make(scratch)`` builds the entry in that empty folder and returns the file's path.
        facts: what the entry was made from, kept in its record for people to read.
        accept: whether a whole entry can be used here; one that cannot is built again.

    Raises RuntimeError, with the remedy, where the folder cannot be used or is full; what ``make``
    raises goes through.
    """
    wanted = wanted_folder()
    if wanted is not None and os.path.isdir(wanted / below):
        # An entry that is there can be used where nothing can be written.
        for each in (wanted, wanted / below):
            refuse_open_to_others(each, each.stat())
        path = wanted / below / name
        if _intact(path) and accept(path):
            return path
    path = folder(below) / name
    if _intact(path) and accept(path):
        return path
    with (
        lock_of(str(path)),
        _disk_errors_in_words(path),
        exclusive(path.with_name(name + _LOCK)) as held,
    ):
        if path.exists():
            # Another builder may have finished it while this one waited.
            if _intact(path) and accept(path):
                return path
            logger.warning("the cached file %s is corrupt: it is built again", path)
        if held:
            _sweep(path)
        discard(path)
        _build(path, make, facts)
    return path


def discard(path: Path) -> None:
    """Removes an entry, so that the next call builds it."""
    for each in (path, _record_of(path)):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        each.unlink(missing_ok=True)


def _build(path: Path, make: Callable[[Path], Path], facts: Mapping[str, Any]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=path.name + _SCRATCH, dir=path.parent))
    try:
        started = time.perf_counter()
        made = make(scratch)
        seconds = round(time.perf_counter() - started, 2)
        record = {"name": path.name, "sha256": _digest(made), "seconds": seconds, **facts}
        written = scratch / ("record" + _RECORD)
        written.write_text(json.dumps(record, indent=1))
        os.replace(written, _record_of(path))
        os.replace(made, path)
        logger.info("built %s in %.1f s", path.name, seconds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _disk_errors_in_words(path: Path) -> Iterator[None]:
    """A full disk or an unwritable folder as a RuntimeError with the remedy, be it Python or a
    compiler that ran into it."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in str(error):
                raise RuntimeError(
                    f"{path.parent} has no room for {path.name} ({os.strerror(number)}): "
                    f"free some there, or set {VARIABLE} to a folder on another disk"
                ) from error
        if isinstance(error, OSError) and str(error.filename or path).startswith(str(path.parent)):
            raise RuntimeError(
                f"{path.name} cannot be kept in {path.parent} ({error.strerror}): "
                f"set {VARIABLE} to a folder that can be written"
            ) from error
        raise


# --- Whether an entry is what was built

Status = tuple[int, ...]
"""A file's inode, size and times, or a folder's: another where its content has changed."""


def status_of(path: str | Path) -> Status | None:
    """None where there is nothing of that name."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


_seen_intact: dict[Path, Status | None] = {}


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + _RECORD)


def _intact(path: Path) -> bool:
    """Whether the file is there and is what its record says was built under its name.

    A process reads a file's content once, and again where its inode, size or times have changed.
    """
    try:
        now = status_of(path)
        if now is None or _seen_intact.get(path) != now:
            record = json.loads(_record_of(path).read_text())
            if record["name"] != path.name or record["sha256"] != _digest(path):
                return False
            _seen_intact[path] = now
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- Locks

_locks: dict[str, threading.Lock] = {}
_descriptors: set[int] = set()


def lock_of(key: str) -> threading.Lock:
    """One lock per key in this process; a forked child has locks of its own, all of them free."""
    return _locks.setdefault(key, threading.Lock())


def _after_fork_in_child() -> None:
    # The threads that held these locks do not exist here. A file's lock belongs to the parent as
    # long as any process has its descriptor open: the child closes its copies and unlocks nothing.
    _locks.clear()
    while _descriptors:
        with contextlib.suppress(OSError):
            os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def exclusive(path: Path, wait: bool = True) -> Iterator[bool]:
    """Locks a file that exists only while somebody holds or wants it.

    Yields whether the lock is held: not where the file system has no locks, which is logged, nor
    where another builder has it and ``wait`` is false.
    """
    descriptor, held = _lock(path, wait)
    try:
        yield held
    finally:
        if held:
            # Removed while it is held: who waits for this file sees that it is no longer the one
            # of that name. Unlocked by hand, since a forked child may have a copy open.
            path.unlink(missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        _close(descriptor)


def _lock(path: Path, wait: bool) -> tuple[int, bool]:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _descriptors.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return descriptor, False
        except OSError as error:
            if wait:
                logger.warning("no lock on %s (%s): two may build it at once", path, error)
            return descriptor, False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor, True
        _close(descriptor)


def _close(descriptor: int) -> None:
    _descriptors.discard(descriptor)
    os.close(descriptor)


def _sweep(building: Path) -> None:
    """Removes what killed builders left in a folder. The caller holds the lock of ``building``."""
    left = {building.name}
    for path in building.parent.iterdir():
        if _SCRATCH in path.name:
            left.add(path.name.partition(_SCRATCH)[0])
        elif path.suffix == _LOCK or (path.suffix == _RECORD and not path.with_suffix("").exists()):
            left.add(path.stem)
    for name in left:
        if name == building.name:
            _remove_leftovers(building)
            continue
        with exclusive(building.with_name(name + _LOCK), wait=False) as held:
            if held:  # else a living builder is at work on it
                _remove_leftovers(building.with_name(name))


def _remove_leftovers(path: Path) -> None:
    for scratch in path.parent.glob(f"{path.name}{_SCRATCH}*"):
        shutil.rmtree(scratch, ignore_errors=True)
    if not path.exists():
        _record_of(path).unlink(missing_ok=True)


# --- The folder

_warned: set[Path | None] = set()


def wanted_folder() -> Path | None:
    """``$TCGEMM_CACHE_DIR`` or ``~/.cache/tcgemm``; None where the user has no home folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    try:
        return Path.home() / ".cache" / "tcgemm"
    except RuntimeError:
        return None


def folder(below: str = "") -> Path:
    """The store's folder, or one below it; made where it is missing, for this user alone.

    Where it cannot be written, a folder of this user's below the system's temporary one takes its
    place, with a warning that is logged once.

    Raises RuntimeError, with the remedy, where others may write the folder, or where neither can
    be used.
    """
    wanted = wanted_folder()
    reason = "there is no home folder"
    if wanted is not None:
        try:
            return _writable(wanted, below)
        except OSError as error:
            reason = error.strerror or str(error)
    instead = Path(tempfile.gettempdir()) / f"tcgemm-{os.getuid()}"
    if wanted not in _warned:
        _warned.add(wanted)
        logger.warning(
            "cannot write the cache %s (%s): what is compiled goes to %s; "
            "set %s to choose a folder",
            wanted or "~/.cache/tcgemm",
            reason,
            instead,
            VARIABLE,
        )
    try:
        return _temporary(instead, below)
    except OSError as error:
        raise RuntimeError(
            f"neither {wanted or '~/.cache/tcgemm'} ({reason}) nor {instead} ({error.strerror}) "
            f"can be written: set {VARIABLE} to a folder of yours"
        ) from error


def _temporary(path: Path, below: str) -> Path:
    """A folder in the temporary one, where anybody may have put something of that name before."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise RuntimeError(
            f"{path} is a link or a file, not a folder: remove it, or set {VARIABLE} to a folder "
            "of yours"
        )
    # What is this user's own in a temporary folder, others cannot exchange for a link.
    refuse_open_to_others(path, found)
    return _writable(path, below)


def _writable(path: Path, below: str) -> Path:
    for each in (path, path / below):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_open_to_others(each, each.stat())
    if not os.access(path / below, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if os.statvfs(path / below).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    return path / below


def refuse_open_to_others(path: Path, status: os.stat_result) -> None:
    """Raises RuntimeError, with the remedy, where another user may write a folder of that status.

    What lies in the store is loaded and run: this user and root are trusted, nobody else.
    """
    if status.st_uid not in (os.getuid(), 0):
        raise RuntimeError(
            f"the cache {path} belongs to user {status.st_uid}, and this is user {os.getuid()}: "
            f"what is compiled there would run with your rights. Set {VARIABLE} to a folder of "
            "yours"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(
            f"others may write the cache {path} (mode {stat.S_IMODE(status.st_mode):04o}), and "
            "what is compiled there runs with your rights: empty it and run "
            f"'chmod go-w {path}', or set {VARIABLE} to a folder of yours"
        )
