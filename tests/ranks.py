"""Processes that are the ranks of a gloo group, made once for a test file and used by its tests.

Each is forked from a process that has imported torch (workers.py): a rank costs milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import workers

SECONDS = 60
"""After which a rank that says nothing fails the test."""
AFTER_A_FAILURE = 5
"""Seconds for what the other ranks have to say once one of them has failed."""


def serve(connection, rank, world, folder, backend):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "nccl":
        from tcgemm.bench.several.command import NO_MULTICAST

        os.environ.update(NO_MULTICAST)
        torch.cuda.set_device(rank)
    if world:
        where = f"file://{folder}/meet"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=world)
    while True:
        task = connection.recv()
        if task is None:
            os._exit(0)  # gloo's threads may outlive the interpreter's end, which then aborts
        function, arguments = task
        try:
            function(rank, *arguments)
            connection.send((True, ""))
        except BaseException:
            connection.send((False, traceback.format_exc()))


class Ranks:
    """``world`` processes, each a rank of one group."""

    def __init__(self, world, backend="gloo", seconds=SECONDS):
        context = workers.forked()
        self.world, self._folder = world, tempfile.TemporaryDirectory()
        self._seconds = seconds
        self._ends, self._processes = [], []
        before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS",)}
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            for rank in range(world):
                here, there = context.Pipe()
                process = context.Process(
                    target=serve, args=(there, rank, world, self._folder.name, backend), daemon=True
                )
                process.start()
                there.close()
                self._ends.append(here)
                self._processes.append(process)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def __call__(self, function, *arguments):
        """Run ``function(rank, *arguments)`` on all ranks at once; fail where it fails on one."""
        for end in self._ends:
            end.send((function, arguments))
        found, waiting, left = (
            {},
            dict(zip(self._ends, range(self.world), strict=True)),
            self._seconds,
        )
        while waiting:
            ready = wait(list(waiting), left)
            if not ready:
                break
            for end in ready:
                ok, found[waiting.pop(end)] = end.recv()
                left = left if ok else min(left, AFTER_A_FAILURE)
        failed = [f"rank {rank}: {text}" for rank, text in found.items() if text]
        silent = [f"rank {rank} says nothing" for rank in waiting.values()]
        assert not failed + silent, "\n".join(failed + silent)

    def close(self):
        for end, process in zip(self._ends, self._processes, strict=True):
            with contextlib.suppress(OSError):
                end.send(None)
            process.join(2)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()
        assert not Path(self._folder.name).exists()


@pytest.fixture(scope="module", name="pair")
def two_ranks():
    """Two ranks for all tests of a file."""
    made = Ranks(2)
    yield made
    made.close()
