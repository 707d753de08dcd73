"""A fork waits for first calls that are under way, so that its child has whole modules and locks.

A first call imports, builds and loads. A thread that is in the midst of that does not exist in a
forked child, but the locks of its imports do, and Python's own cannot be freed there. Repeated
calls hold nothing that a fork has to wait for.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

_changed = threading.Condition(threading.RLock())
_own = threading.local()
_under_way = 0
"""First calls, of all threads; ``_own.count`` of this one."""
_forking = 0
"""Threads that wait to fork: no other first call begins before they have."""


@contextmanager
def first_call() -> Iterator[None]:
    """Held by a thread while it may import or build."""
    global _under_way
    count = getattr(_own, "count", 0)
    with _changed:
        if not count:
            _changed.wait_for(lambda: not _forking)
        _under_way += 1
    _own.count = count + 1
    try:
        yield
    finally:
        _own.count -= 1
        with _changed:
            _under_way -= 1
            _changed.notify_all()


_waiting = 0
"""``uncollected`` blocks, of all threads; ``_own.waits`` of this one."""
_thresholds: tuple[int, int, int] = gc.get_threshold()
"""Of the collector, before the first of them began."""


def _wait(blocks: int) -> None:
    """So many more, or fewer, blocks during which no garbage is collected.

    The threshold says so, and not gc.disable(): that one is the caller's own, of any thread.
    """
    global _waiting, _thresholds
    with _changed:
        if not _waiting and blocks:
            _thresholds = gc.get_threshold()
            gc.set_threshold(0)
        _waiting += blocks
        if not _waiting and blocks and gc.get_threshold()[0] == 0:  # else somebody has set it since
            gc.set_threshold(*_thresholds)
    _own.waits = getattr(_own, "waits", 0) + blocks


@contextmanager
def uncollected() -> Iterator[None]:
    """A first call that imports or chooses: Python's collector of garbage waits meanwhile.

    What is made then stays, or is no garbage that counts. Behind torch's import, which makes
    170,000 objects, a few thousand more have them all looked at, which takes as long as half of
    our own imports.
    """
    with first_call():
        _wait(1)
        try:
            yield
        finally:
            _wait(-1)


@contextmanager
def collected() -> Iterator[None]:
    """The collector works again, within ``uncollected``, for what may take long: a compilation."""
    blocks = getattr(_own, "waits", 0)
    _wait(-blocks)
    try:
        yield
    finally:
        _wait(blocks)


_held: list[AbstractContextManager[bool]] = []


def hold_across(lock: AbstractContextManager[bool]) -> None:
    """Hold a reentrant lock while a process forks, so that nobody is within it.

    It is taken after the wait for first calls: one of these may need it to end.
    """
    _held.append(lock)


def _before() -> None:
    global _forking
    _changed.acquire()
    _forking += 1
    # A thread that forks within a first call of its own does not wait for itself.
    _changed.wait_for(lambda: _under_way == getattr(_own, "count", 0))
    for lock in _held:
        lock.__enter__()


def _release() -> None:
    for lock in reversed(_held):
        lock.__exit__(None, None, None)


def _after_in_parent() -> None:
    global _forking
    _release()
    _forking -= 1
    _changed.notify_all()
    _changed.release()


def _after_in_child() -> None:
    global _changed, _under_way, _forking
    _release()
    _changed = threading.Condition(threading.RLock())
    _under_way, _forking = getattr(_own, "count", 0), 0


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
