"""Promise 26 of docs/contract.md: a fork at any time, from any thread, leaves a child that calls.

The fork comes while another thread is inside of a call, with the locks that a call takes held by a
thread that does not exist in the child.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module

import pytest
import torch

import tcgemm
from tcgemm import dispatch, forks, launch_cache

KERNELS = (
    ("triton", "naive"),
    ("triton", "pipelined"),
    ("cuda", "naive"),
    ("cuda", "wmma_any"),
)
SECONDS = 30
"""A child that hangs is killed by its own alarm, and the test says so."""


def call(backend, kernel, device="cpu"):
    a = torch.ones(33, 40, dtype=torch.float16, device=device)
    return tcgemm.matmul(a, a.T, backend=backend, kernel=kernel)


def status_of_child(work):
    """The wait status of a forked process that does some work: 0 where it ends well."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            work()
            os._exit(0)
        except BaseException as error:
            print(f"the child: {error!r}", flush=True)
        os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="no CUDA context survives a fork")
@pytest.mark.parametrize(("backend", "kernel"), KERNELS)
def test_promise_26_a_child_forked_during_a_call_can_call(backend, kernel):
    expected = call(backend, kernel)
    done = threading.Event()

    def keep_calling():
        while not done.is_set():
            call(backend, kernel)

    def child_calls():
        assert torch.equal(call(backend, kernel), expected)

    callers = [threading.Thread(target=keep_calling) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(3):
            time.sleep(0.02)
            assert status_of_child(child_calls) == 0, "the child hung (14) or failed"
    finally:
        done.set()
        for caller in callers:
            caller.join()


def test_promise_26_a_child_forked_while_threads_count_under_the_override():
    a = torch.ones(4, 4)
    done = threading.Event()

    def count():
        with tcgemm.override_aten("cublas"):
            a @ a
        tcgemm.stats()

    def keep_counting():
        while not done.is_set():
            count()

    counters = [threading.Thread(target=keep_counting) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    for counter in counters:
        counter.start()
    try:
        for _ in range(30):
            assert status_of_child(count) == 0, "the child hung (14) or failed"
    finally:
        done.set()
        sys.setswitchinterval(before)
        for counter in counters:
            counter.join()


FIRST_CALL = """
import os, signal, sys, threading, time, torch, tcgemm

def call():
    a = torch.ones(33, 40, dtype=torch.float16)
    return tcgemm.matmul(a, a.T, backend=sys.argv[1], kernel="naive")

caller = threading.Thread(target=call)
caller.start()
time.sleep(float(sys.argv[2]))
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if bool((call() == 40).all()) else 3)
status = os.waitpid(child, 0)[1]
caller.join()
sys.exit(status and 1)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="no CUDA context survives a fork")
@pytest.mark.spread(2, "backend", "delay")
@pytest.mark.parametrize("delay", ["0.02", "0.2"])
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_promise_26_a_fork_waits_for_a_first_call(backend, delay):
    """Its imports and builds are another thread's: the child must not find their locks held."""
    command = [sys.executable, "-c", FIRST_CALL, backend, delay]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]


WAITING = """
import os, sys, threading, time, torch, tcgemm
from tcgemm import cublas, forks

inside = threading.Event()

def first_call():
    with forks.first_call():
        inside.set()
        time.sleep(0.5)  # the fork waits by now
        with cublas._mode("tf32"):
            pass

caller = threading.Thread(target=first_call, daemon=True)
caller.start()
inside.wait(10)
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_promise_26_a_fork_that_waits_holds_no_lock_that_a_first_call_needs():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr[-500:]


def test_promise_26_a_fork_leaves_the_child_the_users_settings_of_torch():
    """Not those that another thread's call has set for its own length."""
    cublas = import_module("tcgemm.cublas")
    before = torch.get_float32_matmul_precision()
    inside, go_on = threading.Event(), threading.Event()

    def within_a_call():
        with cublas._mode("tf32"):
            inside.set()
            go_on.wait(10)

    def child_looks():
        assert torch.get_float32_matmul_precision() == before

    caller = threading.Thread(target=within_a_call)
    caller.start()
    inside.wait(10)
    threading.Timer(0.2, go_on.set).start()
    assert status_of_child(child_looks) == 0
    caller.join()


def collects():
    return gc.isenabled() and gc.get_threshold()[0] > 0


def test_garbage_is_collected_again_for_what_may_take_long():
    before = gc.get_threshold()
    assert collects()
    with forks.uncollected():
        assert not collects()
        with forks.collected():
            assert gc.get_threshold() == before
            with forks.uncollected(), forks.uncollected():
                assert not collects()
            assert collects()
        assert not collects()
        with pytest.raises(ValueError, match="here"), forks.collected():
            raise ValueError("here")
        assert not collects()
    assert gc.get_threshold() == before
    with forks.collected():
        assert collects()


def test_a_caller_s_own_word_on_garbage_stays():
    """Before, and of another thread meanwhile: what it switches off stays off, and what it keeps
    and restores is what it was."""
    before = gc.get_threshold()
    gc.disable()
    try:
        with forks.uncollected(), forks.collected():
            assert not gc.isenabled(), "the caller wants none"
    finally:
        gc.enable()
    with forks.uncollected():
        assert gc.isenabled(), "a thread that keeps and restores it leaves it on"
        gc.disable()
    assert not gc.isenabled()
    gc.enable()
    with forks.uncollected():
        gc.set_threshold(500, 7, 7)
    assert gc.get_threshold() == (500, 7, 7)
    gc.set_threshold(*before)


def test_threads_wait_for_the_last_of_them():
    before, inside, go_on = gc.get_threshold(), threading.Event(), threading.Event()

    def first():
        with forks.uncollected():
            inside.set()
            go_on.wait(10)

    caller = threading.Thread(target=first)
    caller.start()
    inside.wait(10)
    with forks.uncollected():
        pass
    assert not collects(), "the other thread is in the midst of it"
    go_on.set()
    caller.join()
    assert gc.get_threshold() == before


def test_a_kernel_is_bound_while_garbage_is_collected(monkeypatch):
    seen = {}

    def bind(self, *passed, **plan):
        seen["bind"] = collects()
        return lambda *tensors: None

    def choose(*asked):
        seen["choose"] = collects()
        return real(*asked)

    real = dispatch.choose
    monkeypatch.setattr(dispatch, "choose", choose)
    rung = type("Rung", (), {"bind": bind})()
    monkeypatch.setattr(dispatch, "load", lambda backend, kernel: rung)
    launch_cache.forget()
    call("cuda", None)
    launch_cache.forget()
    assert seen == {"choose": False, "bind": True}
    assert gc.isenabled()
