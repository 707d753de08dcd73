"""The build cache and the search for compilers; compiling is stood in for by a small file."""

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tcgemm.cuda_ref.build import extensions, store, toolchain

from tcgemm import cuda_ref

CAPABILITY = (9, 0)
OPENS = extensions._opens
NAMES = ("naive", "tiled", "wmma")


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources that a test may change."""
    for folder in toolchain.source_folders():
        shutil.copytree(folder, tmp_path / "cuda_ref" / folder.name)
    return tmp_path / "cuda_ref"


def test_the_key_is_stable(sources):
    assert extensions.cache_key("naive", CAPABILITY, sources) == extensions.cache_key(
        "naive", CAPABILITY
    )


@pytest.mark.parametrize(
    "name",
    [
        "rungs/naive.cu",
        "csrc/tile/order.cuh",
        "csrc/host/gemm.cuh",
        "csrc/host/binding.cpp",
    ],
)
def test_the_key_changes_with_each_source(sources, name):
    before = extensions.cache_key("naive", CAPABILITY, sources)
    (sources / name).write_text((sources / name).read_text() + "\n")
    assert extensions.cache_key("naive", CAPABILITY, sources) != before


def test_sources_that_did_not_change_are_read_once_a_process(sources, monkeypatch):
    before = extensions.cache_key("naive", CAPABILITY, sources)
    read = []
    for name in ("read_bytes", "read_text"):
        whole = getattr(Path, name)
        monkeypatch.setattr(
            Path, name, lambda path, *how, whole=whole, **more: read.append(path)
            or whole(path, *how, **more)
        )  # fmt: skip
    assert extensions.cache_key("naive", CAPABILITY, sources) == before
    assert not read
    with (sources / "csrc/tile/order.cuh").open("a") as text:
        text.write("// another\n")
    assert extensions.cache_key("naive", CAPABILITY, sources) != before
    assert sources / "csrc/tile/order.cuh" in read


def test_the_key_ignores_the_sources_of_other_rungs(sources):
    before = extensions.cache_key("naive", CAPABILITY, sources)
    for name in ("rungs/tiled.cu", "csrc/tile/fragment.cuh"):
        (sources / name).write_text("")
    assert extensions.cache_key("naive", CAPABILITY, sources) == before


def test_the_key_changes_with_target_torch_and_flags(monkeypatch):
    keys = {extensions.cache_key("naive", CAPABILITY), extensions.cache_key("naive", (8, 0))}
    monkeypatch.setattr(extensions.torch, "__version__", "0.0")
    keys.add(extensions.cache_key("naive", CAPABILITY))
    monkeypatch.setattr(extensions, "nvcc_flags", lambda sm: ["-O0"])
    keys.add(extensions.cache_key("naive", CAPABILITY))
    assert len(keys) == 4


@pytest.mark.parametrize("which", ["nvcc", "c++"])
def test_the_key_changes_with_the_compilers_versions(monkeypatch, tmp_path, which):
    compiler = tool(tmp_path, which)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    for variable in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    keys = set()
    for release in ("13.0", "13.1 "):
        compiler.write_text(f"#!/bin/sh\necho release {release}\n")
        keys.add(extensions.cache_key("naive", CAPABILITY))
    assert len(keys) == 2


def test_compilers_are_looked_for_once_and_again_where_one_has_changed(monkeypatch, tmp_path):
    for variable in ("CUDA_HOME", "CUDA_PATH", "CXX", "CC"):
        monkeypatch.delenv(variable, raising=False)
    compilers = [tool(tmp_path / name, name) for name in ("nvcc", "gcc")]
    looked = []

    def find():
        looked.append(1)
        return [path if path.exists() else None for path in compilers]

    def versions():
        del looked[:]
        return len(toolchain.compiler_versions(find)), len(looked)

    assert [versions() for _ in range(2)] == [(2, 1), (2, 0)]
    compilers[1].write_text("#!/bin/sh\necho another\n")
    assert [versions() for _ in range(2)] == [(2, 1), (2, 0)]
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [versions() for _ in range(2)] == [(2, 1), (2, 0)]
    compilers[0].unlink()
    assert [versions() for _ in range(2)] == [(1, 1), (1, 1)], "it may be installed yet"
    compilers[0].write_text("#!/bin/sh\n")
    assert versions() == (2, 1)


def test_a_library_has_no_places_in_the_source_and_an_inspection_has(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(extensions, "require_toolchain", lambda: tmp_path / "nvcc")
    monkeypatch.setattr(extensions, "_binding", lambda nvcc: tool(tmp_path, "binding.o"))
    monkeypatch.setattr(
        extensions, "_load_inline", lambda *given, **how: asked.extend(how["cuda_flags"])
    )
    extensions._build("naive", "naive_1", CAPABILITY, tmp_path, ("-DSOME",))
    assert "-DSOME" in asked
    assert {*toolchain.nvcc_flags("sm_90a")} - {*asked} == {toolchain.LINES}


def test_a_library_that_was_opened_to_see_whether_it_opens_is_taken(builder, monkeypatch):
    opened = []
    monkeypatch.setattr(extensions, "_libraries", {})
    monkeypatch.setattr(extensions, "open_library", lambda path: opened.append(path) or path)
    extensions._load("naive", f"naive_{extensions.cache_key('naive', CAPABILITY)}", CAPABILITY)
    monkeypatch.setattr(extensions, "_opens", OPENS)
    path = extensions.library("naive", CAPABILITY)
    assert opened == [path]
    assert extensions.library("naive", CAPABILITY) is path
    assert not extensions._opened


@pytest.mark.parametrize("variable", ["NVCC_APPEND_FLAGS", "CPATH"])
def test_the_key_changes_with_flags_of_the_environment(monkeypatch, variable):
    before = extensions.cache_key("naive", CAPABILITY)
    monkeypatch.setenv(variable, "/elsewhere")
    assert extensions.cache_key("naive", CAPABILITY) != before


class Builder:
    """Stands in for the compiler and the dynamic linker."""

    def __init__(self, monkeypatch, folder):
        self.builds, self.opened = [], []
        monkeypatch.setenv(store.VARIABLE, str(folder))
        monkeypatch.setattr(extensions, "_build", self.build)
        monkeypatch.setattr(extensions, "_opens", lambda path: self.opened.append(path) or True)

    def build(self, name, symbol, capability, scratch, defines=()):
        self.builds.append(symbol)
        time.sleep(0.05)
        (scratch / "library").write_bytes(b"code of " + symbol.encode())
        return scratch / "library"


@pytest.fixture
def builder(monkeypatch, tmp_path):
    return Builder(monkeypatch, tmp_path / "cache")


def test_the_second_start_builds_nothing(builder):
    extensions._load("naive", "naive_1", CAPABILITY)
    extensions._load("naive", "naive_1", CAPABILITY)
    assert builder.builds == ["naive_1"]


@pytest.mark.parametrize("suffix", [".so", ".so.json"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 64])
def test_promise_21_a_corrupt_entry_is_rebuilt(builder, tmp_path, caplog, suffix, damage):
    extensions._load("naive", "naive_1", CAPABILITY)
    store._seen_intact.clear()  # as in another process
    (tmp_path / "cache" / "extensions" / f"naive_1{suffix}").write_bytes(damage)
    extensions._load("naive", "naive_1", CAPABILITY)
    assert builder.builds == ["naive_1", "naive_1"]
    assert "corrupt" in caplog.text


def test_promise_19_threads_that_ask_at_once_build_once(builder):
    threads = [
        threading.Thread(target=extensions._load, args=("naive", "naive_1", CAPABILITY))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.builds == ["naive_1"]


def test_promise_19_different_rungs_are_built_at_the_same_time(builder, monkeypatch):
    together = threading.Barrier(3, timeout=10)

    def build(*asked):
        together.wait()  # broken where one build waits for the end of another
        return builder.build(*asked)

    monkeypatch.setattr(extensions, "_build", build)
    monkeypatch.setattr(extensions, "_libraries", {})
    monkeypatch.setattr(extensions, "open_library", lambda path: Path(path).stem)
    monkeypatch.setattr(extensions, "cache_key", lambda name, capability, defines: 1)
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda name: extensions.library(name, CAPABILITY), NAMES))
    assert opened == [f"{name}_1" for name in NAMES]
    assert sorted(builder.builds) == sorted(opened)


def test_builds_at_the_same_time_leave_the_environment_as_it_was(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/one:/two")
    monkeypatch.delenv("PYTORCH_NVCC", raising=False)
    nvcc = tool(tmp_path / "toolkit")
    first, second = extensions._environment(nvcc), extensions._environment(nvcc)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["PYTORCH_NVCC"] == str(nvcc), "the second build is still under way"
    second.__exit__(None, None, None)
    assert os.environ["PATH"] == "/one:/two"
    assert "PYTORCH_NVCC" not in os.environ


def tool(folder, name="nvcc"):
    path = folder / "bin" / name
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch):
    """A machine with no toolkit at all."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain, "wheel_folders", list)
    is_file = Path.is_file
    monkeypatch.setattr(
        Path, "is_file", lambda path: not str(path).startswith("/usr/local/cuda") and is_file(path)
    )


def test_nvcc_is_looked_for_in_order(bare, monkeypatch, tmp_path):
    assert toolchain.find_nvcc() is None
    in_wheel = tool(tmp_path / "nvidia" / "cu13")
    monkeypatch.setattr(toolchain, "wheel_folders", lambda: [tmp_path / "nvidia" / "cu13"])
    assert toolchain.find_nvcc() == (in_wheel, "the pip wheels")
    on_path = tool(tmp_path / "toolkit")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert toolchain.find_nvcc() == (on_path, "PATH")
    at_home = tool(tmp_path / "home")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert toolchain.find_nvcc() == (at_home, "CUDA_HOME")


def test_a_cuda_home_without_nvcc_is_passed_over(bare, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolchain.find_nvcc() is None


def test_the_toolkit_of_a_script_that_calls_nvcc_is_found(tmp_path):
    (tmp_path / "toolkit" / "include").mkdir(parents=True)
    (tmp_path / "toolkit" / "include" / "cuda_runtime.h").write_text("")
    script = tool(tmp_path / "local")
    script.write_text(f"#!/bin/sh\necho '#$ TOP={tmp_path}/toolkit/bin/..' >&2\n")
    (tmp_path / "toolkit" / "bin").mkdir()
    assert toolchain.cuda_home(script) == tmp_path / "toolkit"


def test_no_nvcc_no_cxx_and_no_ninja_each_name_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(extensions, "find_nvcc", lambda: None)
    with pytest.raises(RuntimeError, match="pip install 'nvidia-cuda-nvcc=="):
        extensions.require_toolchain()
    monkeypatch.setattr(extensions, "find_nvcc", lambda: (tmp_path / "nvcc", "PATH"))
    monkeypatch.setattr(extensions, "find_cxx", lambda path=None: None)
    with pytest.raises(RuntimeError, match=r"install g\+\+"):
        extensions.require_toolchain()
    monkeypatch.setattr(extensions, "find_cxx", lambda path=None: tmp_path / "g++")
    monkeypatch.setattr(extensions, "_path_with_scripts", lambda: "")
    with pytest.raises(RuntimeError, match="pip install ninja"):
        extensions.require_toolchain()


def test_loading_without_a_gpu_says_so_where_nothing_simulates_the_rung(monkeypatch):
    monkeypatch.setattr(extensions.torch.cuda, "is_available", lambda: False)
    row = {"name": "only_there", "devices": ("cuda",)}
    monkeypatch.setattr(cuda_ref, "KERNELS", (*cuda_ref.KERNELS, row))
    with pytest.raises(RuntimeError, match="'only_there' needs an NVIDIA GPU"):
        cuda_ref.load("only_there")
    assert callable(cuda_ref.load("naive"))


def test_an_unknown_rung_lists_those_that_exist():
    with pytest.raises(LookupError, match=r"wmma_4.*naive, tiled, wmma"):
        cuda_ref.load("wmma_4")


@pytest.mark.parametrize(
    ("capability", "sm"), [((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((12, 0), "sm_120")]
)
def test_the_target_of_a_capability(capability, sm):
    assert toolchain.sm_of(capability) == sm
    number = sm.removeprefix("sm_")
    flags = toolchain.nvcc_flags(sm)
    assert f"-gencode=arch=compute_{number},code={sm}" in flags
    assert f"-DTCGEMM_SM={number.removesuffix('a')}" in flags


def test_importing_the_ladder_imports_no_extension_machinery():
    program = "import sys, tcgemm.cuda_ref; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
