"""Launches kept between calls: what is recorded once, what changes, and what is forgotten."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

launcher = import_module("tcgemm.triton_kernels.launcher")


def wrap_handle_tensordesc(last_step, signature, described):
    """As Triton's: descriptors among the arguments become what the last step takes."""

    def inner(*args):
        expanded = [("map", arg[1]) if isinstance(arg, tuple) else arg for arg in args]
        EXPANSIONS.append(args)
        return last_step(*expanded)

    launcher = last_step

    def outer(*args):
        return inner(*args) if launcher else None

    return outer


EXPANSIONS: list[tuple] = []
LAUNCHED: list[tuple] = []


class Launcher:
    """As Triton's: adds what the kernel's metadata say before its last step."""

    def __init__(self):
        self.launch = wrap_handle_tensordesc(lambda *a: LAUNCHED.append(a), {}, None)

    def __call__(self, x, y, z, stream, function, *args):
        self.launch(x, y, z, stream, function, "scratch", *args)


class Kernel:
    arg_names = ("a", "M", "GROUP_M")

    def __init__(self, run):
        self.compiled = SimpleNamespace(
            run=run,
            function=7,
            packed_metadata="packed",
            metadata=SimpleNamespace(tensordesc_meta=None),
            src=SimpleNamespace(signature={}),
        )
        self.long_way: list[tuple] = []

    def warmup(self, *args, grid, **constants):
        return self.compiled

    def __getitem__(self, grid):
        return lambda *args, **constants: self.long_way.append((grid, args, constants))


@pytest.fixture(autouse=True)
def _empty():
    EXPANSIONS.clear()
    LAUNCHED.clear()
    launcher._kept.clear()


def test_a_launch_is_expanded_once_and_takes_the_stream_of_each_call():
    kernel = Kernel(Launcher())
    launch = launcher.prepare(kernel, (4,), (("desc", 5), 64), {"GROUP_M": 8, "num_warps": 4})
    assert not LAUNCHED, "preparing launches nothing"
    launch(11)
    launch(12)
    assert [call[3] for call in LAUNCHED] == [11, 12]
    hooks = (None, None, None)
    assert LAUNCHED[0] == (4, 1, 1, 11, 7, "scratch", "packed", *hooks, ("map", 5), 64, 8)
    assert len(EXPANSIONS) == 1


def test_the_launcher_itself_is_left_as_it_was():
    own = Launcher()
    before = own.launch
    launcher.prepare(Kernel(own), (1, 2), (("desc", 5), 64), {"GROUP_M": 8})
    assert own.launch is before


def test_an_unknown_launcher_is_launched_the_long_way():
    kernel = Kernel(SimpleNamespace())
    launcher.prepare(kernel, (4,), (1, 64), {"GROUP_M": 8})(11)
    assert kernel.long_way == [((4,), (1, 64), {"GROUP_M": 8})]


def test_the_oldest_launch_is_forgotten_first():
    for number in range(launcher.KEPT + 1):
        launcher.keep(number, lambda stream: None)
    assert launcher.kept(0) is None
    assert launcher.kept(1) is not None
    assert len(launcher._kept) == launcher.KEPT


def test_this_triton_has_the_launcher_that_is_recorded():
    """Should Triton change it, launches take the long way: this is where one learns of it."""
    code = (
        "import inspect, triton\n"
        "from triton.backends.nvidia import driver\n"
        "last = print\n"
        "made = driver.wrap_handle_tensordesc(last, {'a': 'tensordesc<fp16[64,64]>'}, None)\n"
        "assert inspect.getclosurevars(made).nonlocals['launcher'] is last\n"
        "source = inspect.getsource(driver.CudaLauncher.__call__)\n"
        "assert 'self.launch(gridX, gridY, gridZ, stream, function' in source\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
