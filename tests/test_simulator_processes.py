"""The process that forks for the simulator: one process has its own, and no kernel notices it."""

from __future__ import annotations

import os
import signal
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")
fork_server = import_module("tcgemm.cuda_ref.simulator.fork_server")

FAULTS = Path(__file__).parent / "faults"


def multiply(source=FAULTS / "correct.cu"):
    """A product of which it is known that it is right."""
    a = torch.arange(-50, 50).reshape(10, 10).half()
    c = torch.zeros(10, 10, dtype=torch.float16)
    report = simulator.simulate(source, a, torch.eye(10).half(), c)
    assert report.ok, report.findings
    assert torch.equal(c, a)


def has_ended(pid):
    """Whether a process that this one did not start ends within some seconds."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_server_forks_for_one_run_after_the_other():
    multiply()
    before = {server.pid for server in fork_server._idle}
    multiply()
    multiply()
    assert {server.pid for server in fork_server._idle} == before


def test_a_server_that_was_killed_is_replaced():
    multiply()
    before = list(fork_server._idle)
    for server in before:
        os.kill(server.pid, signal.SIGKILL)
    multiply()
    assert not set(before[-1:]) & set(fork_server._idle)
    for server in before[:-1]:  # each is found out by a run of its own
        fork_server._idle.remove(server)
        fork_server._all.remove(server)
        server.end()


def test_a_kernel_that_crashes_or_hangs_ends_no_server():
    multiply()
    before = {server.pid for server in fork_server._idle}
    a = torch.ones(40, 40).half()
    for name, timeout in (("crashes", 60), ("hangs", 0.3)):
        report = simulator.simulate(FAULTS / f"{name}.cu", a, a, a.clone(), timeout_s=timeout)
        assert report.findings[0].fatal
    assert {server.pid for server in fork_server._idle} == before


def test_threads_run_at_the_same_time_each_with_a_server_of_its_own():
    """Of two libraries: one library runs one request after the other."""
    a = torch.ones(40, 40).half()
    hangs = threading.Thread(
        target=simulator.simulate, args=(FAULTS / "hangs.cu", a, a, a.clone()),
        kwargs={"timeout_s": 3},
    )  # fmt: skip
    multiply()
    simulator.simulate(FAULTS / "hangs.cu", a, a, a.clone(), timeout_s=0.1)  # is built
    hangs.start()
    multiply()
    assert hangs.is_alive()
    hangs.join()


def test_a_server_and_its_run_end_with_their_caller():
    """A child of this process is killed in the middle of a run."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        multiply()
        os.write(there, b"%d " % fork_server._idle[0].pid)
        a = torch.ones(40, 40).half()
        simulator.simulate(FAULTS / "hangs.cu", a, a, a.clone(), timeout_s=60)
        os._exit(0)
    server = int(os.read(here, 100))
    children = Path(f"/proc/{server}/task/{server}/children")
    while not (running := children.read_text().split()):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert has_ended(server)
    assert has_ended(running[0])
    os.close(here)
    os.close(there)


def test_a_forked_child_has_servers_of_its_own():
    multiply()
    before = {server.pid for server in fork_server._idle}
    child = os.fork()
    if child == 0:
        try:
            assert not fork_server._idle
            assert not fork_server._all
            multiply()
            assert not before & {server.pid for server in fork_server._idle}
            fork_server._end_all()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    multiply()
    assert {server.pid for server in fork_server._idle} == before


SPEAKS = """#include "host/gemm.cuh"
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
int tcgemm_launch(const tcgemm::Gemm&, cudaStream_t) {
  char folder[1000];
  std::printf("%s in %s\\n", std::getenv("TCGEMM_TEST_SPEAKS"), getcwd(folder, sizeof(folder)));
  std::fflush(stdout);
  std::fprintf(stderr, "an error\\n");
  return 0;
}
"""


@pytest.mark.parametrize("told", [False, True], ids=["server", "this process"])
def test_a_kernel_s_process_has_the_caller_s_variables_folder_and_output(
    tmp_path, monkeypatch, capfd, told
):
    """As they are at the call: a server was started before."""
    multiply()
    source = tmp_path / "speaks.cu"
    source.write_text(SPEAKS)
    monkeypatch.setenv("TCGEMM_TEST_SPEAKS", "two words")
    monkeypatch.chdir(tmp_path)
    a = torch.ones(4, 4).half()
    simulator.simulate(source, a, a, a.clone(), told=told)
    assert capfd.readouterr() == (f"two words in {tmp_path}\n", "an error\n")


def test_inputs_are_not_written_and_of_c_elements_alone():
    a, all_of_c = torch.ones(8, 8).half(), torch.full((8, 20), 5.0).half()
    simulator.simulate(FAULTS / "writes_input.cu", a, a, all_of_c[:, 3:11])
    assert bool((a == 1).all())
    assert bool((all_of_c[:, 3:11] != 5).all())
    assert bool((all_of_c[:, :3] == 5).all())
    assert bool((all_of_c[:, 11:] == 5).all())
