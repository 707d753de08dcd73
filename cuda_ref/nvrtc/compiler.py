"""NVRTC: a rung's kernel for one case, compiled to machine code, and the constants of its source.

The sources are compiled as they are. What NVRTC lacks of C++'s library is given to it as headers in
memory (HEADERS), what it lacks of CUDA's host functions is declared and never defined
(DECLARED), and the launcher at the end of the file is left out.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from ctypes.util import find_library as find_system_library
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..build import store
from ..build.toolchain import (
    nvcc_flags,
    source,
    source_files,
    source_folders,
    text_of,
    wheel_folders,
)

BELOW = "nvrtc"
"""The store's folder of what NVRTC made."""

_LAUNCHER = "\nint tcgemm_launch("
_STANDARD = Path(__file__).parent / "standard.hpp"

HEADERS = (
    "algorithm", "array", "atomic", "cstdint", "cstring", "pthread.h", "stddef.h", "stdint.h",
    "stdlib.h", "type_traits", "utility",
)  # fmt: skip
"""Headers of C++'s library that the sources include: one file, standard.hpp, stands for all."""

DECLARED = (
    "cudaDeviceGetAttribute", "cudaFuncGetAttributes", "cudaFuncSetAttribute", "cudaGetDevice",
    "cudaGetDriverEntryPointByVersion", "cudaGetLastError", "cudaGraphKernelNodeGetParams",
    "cudaGraphNodeGetType", "cudaLaunchKernelEx", "cudaStreamGetCaptureInfo",
    "cudaStreamIsCapturing",
)  # fmt: skip
"""Functions of CUDA's runtime that host code of the shared headers names."""


@dataclass(frozen=True)
class Compiled:
    """One kernel's machine code."""

    cubin: bytes
    symbol: str
    """The kernel's name in it."""
    constants: Mapping[str, int]


@cache
def find_library() -> Path | None:
    """libnvrtc: in NVIDIA's wheels, which torch's CUDA build brings, else the system's."""
    for folder in wheel_folders():
        for path in sorted((folder / "lib").glob("libnvrtc.so.*")):
            return path
    found = find_system_library("nvrtc")
    return Path(found) if found else None


@cache
def find_headers() -> Path | None:
    """The folder of CUDA's headers: Triton's wheel has them, else NVIDIA's wheels may."""
    triton = importlib.util.find_spec("triton")
    places = [Path(triton.origin).parent / "backends/nvidia"] if triton and triton.origin else []
    places += wheel_folders()
    found = (place / "include" for place in places)
    return next((path for path in found if (path / "cuda_fp16.h").is_file()), None)


def compile_kernel(
    name: str, expression: str, constants: Sequence[str], sm: str, defines: Sequence[str] = ()
) -> Compiled:
    """A rung's kernel for one case, from the store or from NVRTC.

    Args:
        expression: the kernel with its template arguments, as C++ of the source.
        constants: names of the source's integer constants whose values are wanted.
        sm: the target, e.g. "sm_90a".
        defines: the flags of a rung that is built by case (fusion.case).

    Raises RuntimeError where NVRTC or the headers are missing, or with what NVRTC said.
    """
    library, headers = find_library(), find_headers()
    if library is None or headers is None:
        missing = "libnvrtc (torch's CUDA build brings it: pip install nvidia-cuda-nvrtc)"
        missing = missing if library is None else "cuda_fp16.h (the Triton wheel has it)"
        raise RuntimeError(f"{missing} was not found, and NVRTC's way of {name} needs it")
    options = [*_options(sm, headers), *defines]
    version = _version(library)
    parts = [path.read_bytes() for path in (*source_files(source(name)), _STANDARD)]
    key = store.key_of(
        *parts, expression, *constants, *options, version, Path(__file__).read_bytes()
    )
    file = f"{name}_{key}.json"

    def make(scratch: Path) -> Path:
        made = _compile(library, name, expression, constants, options)
        path = scratch / file
        path.write_text(
            json.dumps(
                {
                    "cubin": base64.b85encode(made.cubin).decode(),
                    "symbol": made.symbol,
                    "constants": dict(made.constants),
                }
            )
        )
        return path

    facts = {"kernel": name, "target": sm, "case": expression, "compilers": [version]}
    path = store.obtain(BELOW, file, make, facts)
    stored = json.loads(path.read_text())
    return Compiled(base64.b85decode(stored["cubin"]), stored["symbol"], stored["constants"])


def _options(sm: str, headers: Path) -> list[str]:
    number = next(flag for flag in nvcc_flags(sm) if flag.startswith("-DTCGEMM_SM"))
    return [
        f"--gpu-architecture={sm}", "-std=c++17", "-default-device", "-w", number,
        *(f"-I{folder}" for folder in (*source_folders(), headers)),
    ]  # fmt: skip


@cache
def _open(path: Path) -> ctypes.CDLL:
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # which NVRTC opens by name
    nvrtc = ctypes.CDLL(str(path))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


@cache
def _version(path: Path) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _open(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value} {path.stat().st_size}"


def _compile(
    library: Path, name: str, expression: str, constants: Sequence[str], options: Sequence[str]
) -> Compiled:
    nvrtc = _open(library)
    wanted = f"tcgemm_constants<{', '.join(f'static_cast<int>({each})' for each in constants)}>"
    headers = dict.fromkeys(HEADERS, f'#include "{_STANDARD.name}"\n')
    headers[_STANDARD.name] = _STANDARD.read_text()
    headers |= _adapted(name)
    program = ctypes.c_void_p()

    def check(code: int) -> None:
        if code:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            why = log.value.decode(errors="replace").strip()
            said = nvrtc.nvrtcGetErrorString(code).decode()
            raise RuntimeError(f"NVRTC could not compile {name}.cu: {said}: {why}")

    check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), _text_of(name).encode(), f"{name}.cu".encode(), len(headers),
            _strings(headers.values()), _strings(headers),
        )
    )  # fmt: skip
    try:
        for each in (expression, wanted):
            check(nvrtc.nvrtcAddNameExpression(program, each.encode()))
        check(nvrtc.nvrtcCompileProgram(program, len(options), _strings(options)))
        size = ctypes.c_size_t()
        check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
        names = []
        for each in (expression, wanted):
            lowered = ctypes.c_char_p()
            check(nvrtc.nvrtcGetLoweredName(program, each.encode(), ctypes.byref(lowered)))
            names.append((lowered.value or b"").decode())
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    values = map(int, re.findall(r"Li(\d+)E", names[1]))
    return Compiled(cubin.raw, names[0], dict(zip(constants, values, strict=True)))


def _text_of(name: str) -> str:
    """The source without its launcher, between what is declared and what tells its constants."""
    text = text_of(source(name))
    end = text.rindex(_LAUNCHER)
    declared = "".join(f"template <class... A> cudaError_t {each}(A...);\n" for each in DECLARED)
    return (
        f"#include <cuda.h>\n#include <driver_types.h>\n{declared}#line 1\n{text[:end]}\n"
        "template <int... VALUES> __global__ void tcgemm_constants() {}\n"
    )


_MADE_ONCE = re.compile(r"\bstatic ((?:const )?auto&? \w+ = (?:\*new\b|\[))")


def _adapted(name: str) -> dict[str, str]:
    """The included files that NVRTC would refuse, as it takes them: a static of a host function
    that is made at its first call is made at each. Name, as it is included -> text."""
    found = {}
    for path in source_files(source(name))[1:]:
        text, times = _MADE_ONCE.subn(r"\1", text_of(path))
        folders = [folder for folder in source_folders() if folder in path.parents]
        if times and folders:
            found[str(path.relative_to(folders[0]))] = text
    return found


def _strings(texts: object) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]  # type: ignore[attr-defined]
    return (ctypes.c_char_p * len(encoded))(*encoded)
