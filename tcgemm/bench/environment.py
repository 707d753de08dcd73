"""The facts a result depends on: board, driver, libraries, compiler, clocks, flags, commit.

Every fact is None where it cannot be found out; collecting them never fails.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .. import __version__, gpus
from .telemetry import device_handle, throttle_names

CPU_SLUG = "cpu"
"""The slug of a machine without a GPU."""


def gpu_uuid() -> str | None:
    """UUID of the current GPU, by which NVML knows it."""
    if not torch.cuda.is_available():
        return None
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def slug() -> str:
    """Folder name for this machine's results: that of its GPU, or "cpu"."""
    if not torch.cuda.is_available():
        return CPU_SLUG
    return gpus.lookup(torch.cuda.get_device_name()).slug


def run_id() -> str:
    """A new id: the time in UTC and four random digits."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ-") + os.urandom(2).hex()


def collect(command: Sequence[str] = ()) -> dict[str, Any]:
    """All facts, ready for JSON."""
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["tcgemm", *command[1:]] if command else [],  # also as python -m tcgemm
        "commit": _commit(),
        "tcgemm": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "cublas": _try(_cublas),
        "nvcc": _try(_nvcc),
        "gpu_slug": slug(),
        "gpu": None,
        "precision": precision_flags(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "sms": properties.multi_processor_count,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "memory_bytes": properties.total_memory,
        }
        facts |= _board()
    return facts


def set_precision() -> None:
    """Ask cuBLAS for what the other kernels do: float32 accumulation, split-K sums included."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def precision_flags() -> dict[str, Any]:
    """How torch's matmul may round, as it is set now."""
    flags = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    return {"float32_matmul_precision": torch.get_float32_matmul_precision()} | {
        name: _try(lambda name=name: _plain(getattr(flags, name)))  # type: ignore[misc]
        for name in names
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | str) else str(value)


def _board() -> dict[str, Any]:
    device = device_handle(gpu_uuid())
    if device is None:
        return {}
    nvml, handle = device

    def clock(query: str, kind: int) -> int | None:
        return _try(lambda: getattr(nvml, query)(handle, kind))

    driver = _try(nvml.nvmlSystemGetDriverVersion)
    power_mw = _try(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    throttle = _try(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return {
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "clocks_mhz": {
            "sm": clock("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory": clock("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "sm_max": clock("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_max": clock("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        },
        "power_limit_w": power_mw / 1e3 if power_mw is not None else None,
        "throttle_reasons": throttle_names(throttle) if throttle is not None else None,
    }


def _cublas() -> str | None:
    """Version of the cuBLAS that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if re.search(r"/libcublas\.so[.0-9]*$", path):
            library, value = ctypes.CDLL(path), ctypes.c_int()
            numbers = []
            for part in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
                if library.cublasGetProperty(part, ctypes.byref(value)):
                    return None
                numbers.append(str(value.value))
            return ".".join(numbers)
    return None


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    places = [str(Path(home, "bin"))] if home else []
    nvcc = shutil.which("nvcc", path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    if nvcc is None:
        for distribution in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
            if version := _version(distribution):
                return f"{version} (wheel)"
        return None
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=20).stdout
    match = re.search(r"V([0-9.]+)", output)
    return match.group(1) if match else None


def _commit() -> str | None:
    """The commit of the checkout that tcgemm is imported from, with a + where it is changed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout.strip()  # fmt: skip

    commit = _try(lambda: git("rev-parse", "HEAD"))
    changed = _try(lambda: git("status", "--porcelain", "--untracked-files=no"))
    return commit + ("+" if changed else "") if commit else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _try(fact: Callable[[], Any]) -> Any:
    try:
        return fact()
    except Exception:
        return None
