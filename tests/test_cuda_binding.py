"""The binding to torch is compiled once and linked into every rung's library.

torch's own load_inline builds here, without CUDA: in nvcc's place stands a script that hands its
source to g++, and stand-ins take the place of CUDA's headers and libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from tcgemm.cuda_ref.build import extensions, toolchain
from test_cuda_build import sources  # noqa: F401
from test_cuda_handle import HEADERS

CXX = shutil.which("g++")

NVCC = f"""#!{sys.executable}
import os, sys
if "--version" in sys.argv:
    sys.exit(print("release 13.0"))
rest, kept = sys.argv[1:], []
while rest:
    each = rest.pop(0)
    if each in ("-o", "-isystem"):
        kept += [each, rest.pop(0)]
    elif each == "-c" or each[:2] in ("-D", "-I"):
        kept.append(each)
    elif each.endswith(".cu"):
        kept += ["-x", "c++", each]
os.execv({CXX!r}, ["g++", "-fPIC", "-fvisibility=hidden", *kept])
"""

LOGGED = f'#!/bin/sh\necho "$*" >> LOG\nexec {CXX} "$@"\n'

RUNG = """
#include "host/gemm.cuh"
int tcgemm_launch(const tcgemm::Gemm&, cudaStream_t) { return ANSWER; }
"""

PROGRAM = """
import ctypes, shutil, sys
from pathlib import Path
from tcgemm.cuda_ref import handle
from tcgemm.cuda_ref.build import extensions, store, toolchain
toolchain.OWN["probe"] = Path(sys.argv[1])
kind = ctypes.addressof(handle.Gemm())
for step in sys.argv[2:]:
    if step == "empty":
        shutil.rmtree(store.wanted_folder())
        continue
    library = extensions.library("probe", (9, 0), (f"-DANSWER={step}",))
    assert library.tcgemm_start(kind, None, None, None, None) == int(step)
"""


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """A function that starts PROGRAM with a rung, and what the C++ compiler was asked."""
    if CXX is None:
        pytest.skip("needs g++, and there is none here")
    home, log = tmp_path / "toolkit", tmp_path / "log"
    for name, text in HEADERS.items():
        # Torch's stand-ins lie where the compiler looks before it looks into torch's own folder.
        path = (tmp_path / "before" if name.startswith("c10") else home / "include") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    for name, text in (("nvcc", NVCC), ("c++", LOGGED.replace("LOG", str(log)))):
        path = home / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (home / "lib64").mkdir()
    for name in ("c10_cuda", "torch_cuda", "cudart"):
        made = home / "lib64" / f"lib{name}.so"
        command = [CXX, "-shared", "-x", "c++", os.devnull, "-o", made, f"-Wl,-soname,{made}"]
        subprocess.run(command, check=True)
    rung = tmp_path / "probe.cu"
    rung.write_text(RUNG)
    for variable in ("CUDA_HOME", "CUDA_PATH", "CXX", "CC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CPATH", str(tmp_path / "before"))
    monkeypatch.setenv("LIBRARY_PATH", str(home / "lib64"))
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path / "a cache"))

    def start(*steps):
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(rung), *steps])

    return start, lambda: log.read_text().splitlines()


def count(lines):
    """How often the binding was compiled, and linked."""
    compiled = [line for line in lines if "-DTORCH_EXTENSION_NAME=binding_" in line]
    linked = [line for line in lines if "-shared" in line and " binding.o " in line]
    return len(compiled), len(linked)


def test_one_binding_serves_all_libraries_and_processes(builds):
    start, asked = builds
    at_once = [start("41"), start("42")]
    assert [each.wait() for each in at_once] == [0, 0]
    assert count(asked()) == (1, 2)


@pytest.mark.exhaustive
def test_the_binding_survives_an_emptied_store(builds):
    start, asked = builds
    assert start("43", "empty", "44").wait() == 0
    assert count(asked()) == (2, 2)


def test_the_binding_s_key_changes_with_what_it_is_made_of(sources, monkeypatch):  # noqa: F811
    keys = [extensions.binding_key(sources)]
    for file in ("rungs/naive.cu", "csrc/tile/fragment.cuh"):
        (sources / file).write_text("")
        keys.append(extensions.binding_key(sources))
    assert len(set(keys)) == 1, "it knows no rung"
    for file in ("csrc/host/binding.cpp", "csrc/host/gemm.cuh", "csrc/tile/activations.cuh"):
        with (sources / file).open("a") as text:
            text.write("// another\n")
        keys.append(extensions.binding_key(sources))
    for what, value in (("_CXX_FLAGS", ("-O0",)), ("_compilers", lambda: ["another"])):
        monkeypatch.setattr(extensions, what, value)
        keys.append(extensions.binding_key(sources))
    monkeypatch.setattr(extensions.torch, "__version__", "0.0")
    keys.append(extensions.binding_key(sources))
    monkeypatch.setenv("CPATH", "/elsewhere")
    keys.append(extensions.binding_key(sources))
    assert len(set(keys)) == len(keys) - 2


def test_a_library_s_key_changes_with_its_binding(sources, monkeypatch):  # noqa: F811
    before = extensions.cache_key("naive", (9, 0), sources)
    monkeypatch.setattr(extensions, "_BINDING_ALONE", "// another")
    assert extensions.cache_key("naive", (9, 0), sources) != before
    assert toolchain.source("naive", sources).is_file()
