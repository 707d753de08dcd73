"""The store of compiled things under abuse: a right product or a sentence, never a signal.

What is built here is a C library of one line; CUDA's and the simulator's builds take the same way.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from disks import entries, obtain, own_store  # noqa: F401
from tcgemm.cuda_ref.build import store
from tcgemm.cuda_ref.simulator import build as simulator

CXX = shutil.which("g++")
needs_cxx = pytest.mark.skipif(CXX is None, reason="needs g++")


def as_another_process():
    store._seen_intact.clear()


# --- Damage

USE_A_LIBRARY = """
import ctypes, subprocess, sys
from tcgemm.cuda_ref.build import store

def library(value):
    def make(scratch):
        (scratch / "a.c").write_text(f"int answer() {{ return {value}; }}")
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", scratch / "a.so", scratch / "a.c"]
        subprocess.run(command, check=True)
        return scratch / "a.so"
    return store.obtain(store.SIMULATOR, f"of-{value}.so", make, {})

for value in (1, 2):
    assert ctypes.CDLL(str(library(value))).answer() == value
"""


def exchange(first, second):
    third = first.with_name("third")
    first.rename(third)
    second.rename(first)
    third.rename(second)


DAMAGES = {
    "truncated": lambda path: os.truncate(path, 4096),
    "empty": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a byte flipped": lambda path: path.write_bytes(
        path.read_bytes()[:5000] + bytes([path.read_bytes()[5000] ^ 1]) + path.read_bytes()[5001:]
    ),
    "two files exchanged": lambda path: exchange(path, path.with_name("of-2.so")),
    "two entries exchanged": lambda path: (
        exchange(path, path.with_name("of-2.so")),
        exchange(path.with_name("of-1.so.json"), path.with_name("of-2.so.json")),
    ),
    "no record": lambda path: path.with_name("of-1.so.json").unlink(),
    "a record that is no object": lambda path: path.with_name("of-1.so.json").write_text("[1]"),
    "a folder in its place": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.fixture(scope="module")
def two_libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(USE_A_LIBRARY, folder)
    return folder


def run(program, cache, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, store.VARIABLE: str(cache), **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


@needs_cxx
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_promise_21_a_damaged_library_is_built_again_before_it_is_opened(
    two_libraries, cache, damage
):
    shutil.copytree(two_libraries, cache)
    whole = entries(cache)
    damage(cache / store.SIMULATOR / "of-1.so")
    done = run(USE_A_LIBRARY, cache)
    assert "is corrupt: it is built again" in done.stderr
    assert entries(cache) == whole
    assert run(USE_A_LIBRARY, cache).stderr == "", "what was healed stays healed"


@pytest.mark.parametrize("suffix", [".so", ".o", ".hpp", ".gch"])
def test_promise_21_each_file_of_the_simulator_is_built_again(monkeypatch, cache, caplog, suffix):
    def compile(command, what, scratch):
        if "-o" in command:  # else objcopy, which changes a file in its place
            Path(command[command.index("-o") + 1]).write_text(what)

    monkeypatch.setattr(simulator, "_run", compile)
    monkeypatch.setattr(simulator, "_dynamic_names", lambda object_file: set())
    monkeypatch.setattr(simulator, "_has_variables", lambda object_file: False)
    source = cache.parent / "kernel.cu"
    source.write_text("")
    simulator.library(source, True)
    whole = {path: path.read_bytes() for path in cache.rglob("*") if path.suffix == suffix}
    assert whole
    for path in cache.rglob("*"):
        if path.suffix == suffix:
            path.write_bytes(b"")
        elif path.suffix in (".so", ".o"):
            path.unlink()  # so that both are made anew, from the damaged files
    as_another_process()
    simulator.library(source, True)
    assert caplog.text.count("is corrupt: it is built again") == len(whole)
    assert {path: path.read_bytes() for path in whole} == whole


def test_a_file_is_read_once_a_process_and_again_when_it_changed(cache, monkeypatch):
    read = []
    digest = store._digest
    monkeypatch.setattr(store, "_digest", lambda path: read.append(path.name) or digest(path))
    path = obtain()
    read.clear()
    for _ in range(3):
        obtain()
    assert read == ["answer.so"]
    path.write_text("else")
    obtain()
    assert path.read_text() == "made"


# --- Builders that are killed, and many at once

HANGS = """
import sys, time
from tcgemm.cuda_ref.build import store
def make(scratch):
    (scratch / "half").write_bytes(bytes(1 << 20))
    print("at work", flush=True)
    time.sleep(60)
store.obtain(store.SIMULATOR, sys.argv[1], make, {})
"""


def killed_builder(cache, name):
    builder = subprocess.Popen(
        [sys.executable, "-c", HANGS, name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, store.VARIABLE: str(cache)},
    )
    assert builder.stdout.readline() == "at work\n"
    return builder


def test_promise_19_a_killed_builder_blocks_nobody_and_leaves_nothing(cache):
    same, other = killed_builder(cache, "answer.so"), killed_builder(cache, "other.so")
    waiter = threading.Thread(target=obtain)
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive(), "a living builder is waited for"
    other.send_signal(signal.SIGKILL)
    other.wait()
    same.send_signal(signal.SIGKILL)
    same.wait()
    waiter.join(10)
    assert not waiter.is_alive()
    assert entries(cache) == ["answer.so", "answer.so.json"]


def test_what_a_living_builder_works_in_is_not_swept(cache):
    builder = killed_builder(cache, "other.so")
    obtain()
    assert any(name.startswith("other.so.build-") for name in entries(cache))
    builder.kill()
    builder.wait()


def test_a_kill_between_record_and_file_is_no_damage(cache, caplog):
    path = obtain()
    path.unlink()
    obtain()
    (cache / store.SIMULATOR / "never.so.json").write_text("{}")
    obtain("other.so")
    assert "corrupt" not in caplog.text
    assert entries(cache) == ["answer.so", "answer.so.json", "other.so", "other.so.json"]


def test_promise_19_eight_builders_at_once_build_once(cache, tmp_path):
    program = textwrap.dedent(
        f"""
        import os, time
        from tcgemm.cuda_ref.build import store
        def make(scratch):
            with open({str(tmp_path / "builds")!r}, "a") as log:
                log.write("one\\n")
            time.sleep(0.2)
            (scratch / "made").write_text("made")
            return scratch / "made"
        print(store.obtain(store.SIMULATOR, "answer.so", make, {{}}).read_text())
        """
    )
    environment = {**os.environ, store.VARIABLE: str(cache)}
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    assert [builder.communicate(timeout=60)[0] for builder in builders] == ["made\n"] * 8
    assert (tmp_path / "builds").read_text() == "one\n"
    assert entries(cache) == ["answer.so", "answer.so.json"]


def test_threads_build_different_entries_at_the_same_time(cache):
    together = threading.Barrier(3, timeout=10)

    def make(scratch):
        together.wait()  # broken where one build waits for the end of another
        (scratch / "made").write_text("made")
        return scratch / "made"

    threads = [
        threading.Thread(target=store.obtain, args=(store.SIMULATOR, name, make, {}))
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entries(cache) == ["a", "a.json", "b", "b.json", "c", "c.json"]


def test_a_build_that_fails_leaves_nothing_and_says_why(cache):
    def make(scratch):
        (scratch / "half").write_text("half")
        raise RuntimeError("g++ cannot compile it")

    with pytest.raises(RuntimeError, match=r"g\+\+ cannot compile it"):
        store.obtain(store.SIMULATOR, "answer.so", make, {})
    assert entries(cache) == []


# --- Forks


def test_promise_26_a_forked_child_shares_no_lock_with_a_build_under_way(cache):
    """The child can build what its parent builds, and the parent's lock survives the child."""
    at_work, go_on = threading.Event(), threading.Event()

    def make(scratch):
        at_work.set()
        go_on.wait(20)
        (scratch / "made").write_text("made")
        return scratch / "made"

    builder = threading.Thread(target=store.obtain, args=(store.SIMULATOR, "a", make, {}))
    builder.start()
    at_work.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that hangs ends by a signal
        assert not store._locks
        assert not store._descriptors
        ok = obtain("b").read_text() == "made" and obtain("a").read_text() == "made"
        os._exit(0 if ok else 1)
    time.sleep(0.2)
    assert (cache / store.SIMULATOR / "a.lock").exists(), "the child took the parent's lock away"
    assert not (cache / store.SIMULATOR / "a").exists()
    go_on.set()
    builder.join()
    assert os.waitpid(child, 0)[1] == 0


@needs_cxx
def test_a_library_that_the_loader_refuses_is_a_sentence_and_then_built_again(cache):
    from tcgemm.cuda_ref import simulator as whole

    path = obtain("no-elf.so", "no library")
    with pytest.raises(whole.SimulationError, match=r"cannot be loaded.*builds it again"):
        whole._entry(path)
    log = []
    obtain("no-elf.so", log=log)
    assert log == ["no-elf.so"]
    with pytest.raises(OSError, match="no-elf"):
        ctypes.CDLL(str(path))
