"""Which GPU a process of pytest-xdist begins with, and what those are given that a test forks."""

import os
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import ranks
import torch
import workers


def test_each_process_begins_with_another_gpu_and_sees_all():
    seen = [workers.gpus_of(f"gw{i}", 3) for i in range(4)]
    assert seen == ["0,1,2", "1,2,0", "2,0,1", "0,1,2"]


def test_what_was_asked_for_stays(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workers.begin_with_different_gpus()
    assert workers.os.environ["CUDA_VISIBLE_DEVICES"] == "1,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    workers.begin_with_different_gpus()
    assert workers.os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def what_a_fork_finds(connection):
    server = Path(f"/proc/{os.getppid()}/status").read_text()
    found = {
        "threads of the server": int(server.split("Threads:")[1].split()[0]),
        "missing": [name for name in workers.PRELOADED if name not in sys.modules],
        "environment": dict(os.environ),
        "threads of torch": torch.get_num_threads(),
        # Python's own, or ignored, as in a process that is started in the background; no test's.
        "SIGINT": signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN),
        "folder": os.getcwd(),
    }
    connection.send(found)


def test_a_fork_is_given_nothing_of_the_test_that_came_first(tmp_path, monkeypatch):
    server = type(forkserver._forkserver)()  # one that this test is the first to use
    for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(server, name))
    folder = os.getcwd()
    monkeypatch.setenv("OF_ONE_TEST", "1")
    monkeypatch.setenv("TRITON_INTERPRET", "of one test")
    monkeypatch.chdir(tmp_path)
    context = workers.forked()
    assert os.environ["TRITON_INTERPRET"] == "of one test"
    monkeypatch.chdir(folder)
    here, there = context.Pipe()
    process = context.Process(target=what_a_fork_finds, args=(there,))
    process.start()
    there.close()
    assert here.poll(60)
    found = here.recv()
    process.join(20)
    server._stop()
    environment = found.pop("environment")
    assert environment.items() >= workers.ENVIRONMENT.items()
    assert "OF_ONE_TEST" not in environment
    assert found == {
        "threads of the server": 1,  # of others a fork would have the locks alone
        "missing": [],
        "threads of torch": 1,
        "SIGINT": True,
        "folder": folder,
    }


def fails_in_its_own_way(rank, how):
    if how == "dies":
        os._exit(rank)
    if how == "hangs" and rank == 1:
        time.sleep(1000)
    assert how != "fails"


def test_a_rank_that_fails_says_where_and_fails_no_later_test():
    pair = ranks.Ranks(2, seconds=2)
    pids = [process.pid for process in pair._processes]
    pair(fails_in_its_own_way, "is right")
    assert pids == [process.pid for process in pair._processes]
    for how, said in {
        "hangs": "rank 1 says nothing(.|\n)*in fails_in_its_own_way",
        "dies": "rank 1: its process died",
        "fails": "rank 1: Traceback(.|\n)*AssertionError",
    }.items():
        with pytest.raises(AssertionError, match=said):
            pair(fails_in_its_own_way, how)
        pair(fails_in_its_own_way, "is right")
    pair.close()
