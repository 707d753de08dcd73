"""What ``tcgemm doctor`` looks at: one check a part, each with the line that mends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata

from .. import extras


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine. ``state`` is ok, limited (works, but less) or missing."""

    what: str
    state: str
    found: str
    cure: str = ""


def checks() -> list[Check]:
    """Every check, in the order in which one depends on another. A check never raises."""
    parts: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("Python", _python),
        ("torch", _torch),
        ("GPU", _gpu),
        ("triton", _triton),
        ("CUDA compiler", _nvcc),
        ("host compiler", _host_compiler),
        ("kernel cache", _cache),
        ("extras", _extras),
    )
    results = []
    for what, part in parts:
        try:
            results.append(part())
        except Exception as error:  # a doctor reports what it meets, whatever that is
            results.append(Check(what, "missing", f"{type(error).__name__}: {error}", _INSTALL))
    return results


_INSTALL = "pip install tcgemm again in a fresh environment: README.md, Install"


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", "ok", f"{version} ({sys.executable})")


def _torch() -> Check:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Check("torch", "ok", f"{torch.__version__}, {build}")


def _gpu() -> Check:
    import torch

    if torch.version.hip:
        found = f"torch is built for AMD's GPUs ({torch.version.hip})"
        return Check("GPU", "missing", found, "an NVIDIA GPU, and torch's CUDA build")
    if torch.cuda.is_available():
        names = [
            "{} (sm_{}{})".format(
                torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i)
            )
            for i in range(torch.cuda.device_count())
        ]
        return Check("GPU", "ok", ", ".join(names))
    without = "none: kernels are checked on the CPU, and nothing is timed"
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        return Check(
            "GPU",
            "limited",
            "there is a driver, but torch is a CPU build",
            "pip install torch (a CUDA build) in this environment",
        )
    if shutil.which("nvidia-smi"):
        return Check("GPU", "limited", without, "nvidia-smi says whether the driver works")
    return Check("GPU", "limited", without, "an NVIDIA GPU with its driver")


def _triton() -> Check:
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        if sys.platform != "linux":
            where = f"none: Triton's wheels are for Linux, and this is {sys.platform}"
            return Check("triton", "limited", where, "backend='cuda' and 'cublas' work without it")
        return Check("triton", "missing", "none", "pip install triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Check(
            "triton", "limited", f"{version}, interpreter forced on", "unset TRITON_INTERPRET"
        )
    return Check("triton", "ok", version)


def _nvcc() -> Check:
    found = import_module("tcgemm.cuda_ref.build.toolchain").find_nvcc()
    if found is None:
        nothing = "no nvcc in CUDA_HOME, on PATH or among the wheels"
        state, instead = _without_compiler()
        return Check("CUDA compiler", state, nothing + instead, extras.install_line("nvcc"))
    path, where = found
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    release = output.partition("release ")[2].partition(",")[0]
    return Check("CUDA compiler", "ok", f"nvcc {release} from {where} ({path})")


def _without_compiler() -> tuple[str, str]:
    """The state without nvcc or g++, and what is done instead."""
    compile_ = import_module("tcgemm.cuda_ref.nvrtc.compiler")
    if compile_.find_library() is None or compile_.find_headers() is None:
        return "missing", ""
    return (
        "limited",
        "; on a GPU NVRTC compiles the ladder instead, and WMMA rungs for all but plain 16 bits",
    )


def _host_compiler() -> Check:
    path = import_module("tcgemm.cuda_ref.build.toolchain").find_cxx()
    if path is None:
        state, instead = _without_compiler()
        cure = "apt install g++ (or your system's)"
        return Check("host compiler", state, f"no g++{instead}", cure)
    output = subprocess.run([path, "-dumpversion"], capture_output=True, text=True, check=True)
    return Check("host compiler", "ok", f"{path.name} {output.stdout.strip()} ({path})")


def _cache() -> Check:
    store = import_module("tcgemm.cuda_ref.build.store")
    try:
        folder = store.folder()
    except RuntimeError as error:
        cure = f"set {store.VARIABLE} to a folder that only you can write"
        return Check("kernel cache", "missing", str(error), cure)
    with tempfile.TemporaryFile(dir=folder):
        return Check("kernel cache", "ok", str(folder))


def _extras() -> Check:
    left_out = {extra: extras.missing(extra) for extra in extras.EXTRAS}
    here = [extra for extra, packages in left_out.items() if not packages]
    lacking = {extra: packages for extra, packages in left_out.items() if packages}
    found = ", ".join(here) or "none"
    if not lacking:
        return Check("extras", "ok", found)
    what = ", ".join(f"{extra} (lacks {' and '.join(of)})" for extra, of in lacking.items())
    return Check("extras", "limited", f"{found}; not {what}", extras.install_line(*lacking))
