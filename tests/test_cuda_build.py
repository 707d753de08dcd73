"""The build cache and the search for compilers; compiling is stood in for by a small file."""

import json
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
from tcgemm.cuda_ref import build, toolchain

from tcgemm import cuda_ref

CAPABILITY = (9, 0)


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources that a test may change."""
    for folder in toolchain.source_folders():
        shutil.copytree(folder, tmp_path / "cuda_ref" / folder.name)
    return tmp_path / "cuda_ref"


def test_the_key_is_stable(sources):
    assert build.cache_key("naive", CAPABILITY, sources) == build.cache_key("naive", CAPABILITY)


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
    before = build.cache_key("naive", CAPABILITY, sources)
    (sources / name).write_text((sources / name).read_text() + "\n")
    assert build.cache_key("naive", CAPABILITY, sources) != before


def test_the_key_ignores_the_sources_of_other_rungs(sources):
    before = build.cache_key("naive", CAPABILITY, sources)
    for name in ("rungs/tiled.cu", "csrc/tile/fragment.cuh"):
        (sources / name).write_text("")
    assert build.cache_key("naive", CAPABILITY, sources) == before


def test_the_key_changes_with_target_torch_and_flags(monkeypatch):
    keys = {build.cache_key("naive", CAPABILITY), build.cache_key("naive", (8, 0))}
    monkeypatch.setattr(build.torch, "__version__", "0.0")
    keys.add(build.cache_key("naive", CAPABILITY))
    monkeypatch.setattr(build, "nvcc_flags", lambda sm: ["-O0"])
    keys.add(build.cache_key("naive", CAPABILITY))
    assert len(keys) == 4


class Builder:
    """Stands in for the compiler and the dynamic linker."""

    def __init__(self, monkeypatch, folder):
        self.builds, self.opened = [], []
        monkeypatch.setenv(build.CACHE_VARIABLE, str(folder))
        monkeypatch.setattr(build, "_build", self.build)
        monkeypatch.setattr(build, "_opens", lambda path: self.opened.append(path) or True)

    def build(self, name, symbol, capability, library, defines=()):
        self.builds.append(symbol)
        time.sleep(0.05)
        library.write_bytes(b"code of " + symbol.encode())
        digest = build.hashlib.sha256(library.read_bytes()).hexdigest()
        library.with_suffix(".json").write_text(json.dumps({"sha256": digest}))


@pytest.fixture
def builder(monkeypatch, tmp_path):
    return Builder(monkeypatch, tmp_path / "cache")


def test_the_second_start_builds_nothing(builder):
    build._load("naive", "naive_1", CAPABILITY)
    build._load("naive", "naive_1", CAPABILITY)
    assert builder.builds == ["naive_1"]


@pytest.mark.parametrize("suffix", [".so", ".json"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 64])
def test_promise_21_a_corrupt_entry_is_rebuilt(builder, tmp_path, caplog, suffix, damage):
    build._load("naive", "naive_1", CAPABILITY)
    (tmp_path / "cache" / "naive_1").with_suffix(suffix).write_bytes(damage)
    build._load("naive", "naive_1", CAPABILITY)
    assert builder.builds == ["naive_1", "naive_1"]
    assert "corrupt" in caplog.text


def test_promise_19_threads_that_ask_at_once_build_once(builder):
    threads = [
        threading.Thread(target=build._load, args=("naive", "naive_1", CAPABILITY))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.builds == ["naive_1"]


def test_promise_19_the_lock_of_a_killed_builder_blocks_nobody(builder, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from tcgemm.cuda_ref import build
        with build.exclusive(Path(sys.argv[1])):
            print("held", flush=True)
            time.sleep(60)
        """
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(folder / "naive_1.lock")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    waiter = threading.Thread(target=build._load, args=("naive", "naive_1", CAPABILITY))
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive(), "a living builder is waited for"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    waiter.join(10)
    assert not waiter.is_alive()
    assert builder.builds == ["naive_1"]


def test_promise_21_an_unwritable_cache_falls_back_with_a_warning(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    assert build.cache_folder() == tmp_path / f"tcgemm-{os.getuid()}"
    assert "cannot write the cache" in caplog.text
    assert build.CACHE_VARIABLE in caplog.text


def test_the_cache_is_in_the_home_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv(build.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / ".cache" / "tcgemm"


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
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    with pytest.raises(RuntimeError, match="pip install 'nvidia-cuda-nvcc=="):
        build.require_toolchain()
    monkeypatch.setattr(build, "find_nvcc", lambda: (tmp_path / "nvcc", "PATH"))
    monkeypatch.setattr(build, "find_cxx", lambda: None)
    with pytest.raises(RuntimeError, match=r"install g\+\+"):
        build.require_toolchain()
    monkeypatch.setattr(build, "find_cxx", lambda: tmp_path / "g++")
    monkeypatch.setattr(build, "_path_with_scripts", lambda: "")
    with pytest.raises(RuntimeError, match="pip install ninja"):
        build.require_toolchain()


def test_loading_without_a_gpu_says_so_where_nothing_simulates_the_rung(monkeypatch):
    monkeypatch.setattr(build.torch.cuda, "is_available", lambda: False)
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
