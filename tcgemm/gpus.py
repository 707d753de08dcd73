"""What a GPU could do at best: name -> slug, dense peak rates, bandwidth, L2, each from its data
sheet. Dense numbers only: a rate with sparsity is never shown. Imports no torch.

Peaks are those with float32 accumulation (int32 for int8), because that is what every kernel here
does; on GeForce boards float16 accumulation is twice as fast and not comparable. Where a data
sheet prints only the rate with 2:4 sparsity, half of it stands here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from .errors import UnknownNameError

DTYPES = ("float16", "bfloat16", "float32", "tf32", "float64", "int8", "fp8")
"""Keys of ``Gpu.peak_tflops``. float32 is the CUDA cores' rate, float64 the tensor cores'."""

UNITS = {"uint8": "int8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
"""dtype of operands -> the key of its peak, where that is another word."""

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One board. What is unknown is None, never a guess."""

    name: str
    """As in the data sheet; for an unknown GPU, as the driver gives it."""
    slug: str
    """Folder name of its results, e.g. nvidia-h200."""
    peak_tflops: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(DTYPES))
    """Dense peak in 10^12 operations a second (a multiply-add is two), by dtype; None where the
    GPU has no such unit or nothing is known."""
    bandwidth_gb_s: float | None = None
    """Memory bandwidth in 10^9 bytes a second."""
    l2_bytes: int | None = None
    """Size of the L2, for the models. This is its only place: a test compares it with what the
    driver said of the GPUs that have a report."""
    sms: int | None = None
    capability: tuple[int, int] | None = None
    """Compute capability (CUDA GPUs, NVIDIA developer site)."""
    clock_mhz: float | None = None
    """SM clock at which the float16 peak holds. Some boards run above it."""
    source: str | None = None
    """Where the figures come from."""
    aliases: tuple[str, ...] = ()
    """Driver names of the same board, as ``_key`` writes them."""

    def peak(self, dtype: str, compute: str = "") -> float | None:
        """The dense peak of products of that dtype, summed as ``compute`` (problem.COMPUTES) says.

        tf32x3 makes three products of one, so a third of the tf32 peak is left.
        """
        if dtype == "float32" and compute in ("tf32", "tf32x3"):
            tf32 = self.peak_tflops.get("tf32")
            return tf32 if compute == "tf32" or tf32 is None else tf32 / 3
        return self.peak_tflops.get(UNITS.get(dtype, dtype))

    def ridge(self, dtype: str, compute: str = "") -> float | None:
        """FLOP per byte of memory above which arithmetic, and not memory, bounds a kernel."""
        peak = self.peak(dtype, compute)
        return 1e3 * peak / self.bandwidth_gb_s if peak and self.bandwidth_gb_s else None

    def ceiling_tflops(
        self, dtype: str, sm_clock_mhz: float | None = None, compute: str = ""
    ) -> float | None:
        """The dense peak, or the peak at the clock that was measured where that is higher."""
        peak = self.peak(dtype, compute)
        if peak is None or not sm_clock_mhz or not self.clock_mhz:
            return peak
        return peak * max(1.0, sm_clock_mhz / self.clock_mhz)


def _gpu(
    name: str,
    capability: tuple[int, int],
    peaks: tuple[float | None, ...],
    bandwidth_gb_s: float,
    l2_mib: float,
    sms: int,
    clock_mhz: float,
    source: str,
    *aliases: str,
) -> Gpu:
    return Gpu(
        name=name,
        slug=slug(name),
        peak_tflops=dict(zip(DTYPES, peaks, strict=True)),
        bandwidth_gb_s=bandwidth_gb_s,
        l2_bytes=int(l2_mib * MIB),
        sms=sms,
        capability=capability,
        clock_mhz=clock_mhz,
        source=source,
        aliases=aliases,
    )


def slug(name: str) -> str:
    """A folder name made from a GPU's name: "NVIDIA H200" -> "nvidia-h200"."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return words or "unknown-gpu"


def _key(name: str) -> str:
    """The name without the words that drivers add or drop: vendor and product line."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    return " ".join(w for w in words if w not in ("nvidia", "tesla", "geforce"))


A100 = (312.0, 312.0, 19.5, 156.0, 19.5, 624.0, None)
H100 = (989.4, 989.4, 66.9, 494.7, 66.9, 1978.9, 1978.9)
H100_NVL = (835.5, 835.5, 60.0, 417.5, 60.0, 1670.5, 1670.5)
A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet; L2 and SMs: A100 architecture whitepaper"
H100_SHEET = "NVIDIA H100 Tensor Core GPU architecture whitepaper, table of dense rates"
H100_NVL_SHEET = "NVIDIA H100 NVL datasheet, half of the sparse rates"
H200_SHEET = "NVIDIA H200 Tensor Core GPU datasheet, half of the sparse rates"

# Compute capability, peaks in the order of DTYPES, GB/s, MiB of L2, SMs, MHz at the float16 peak,
# source, driver names.
GPUS: tuple[Gpu, ...] = (
    _gpu(
        "NVIDIA T4", (7, 5), (65.0, None, 8.1, None, None, 130.0, None), 320, 4, 40, 1590,
        "NVIDIA T4 datasheet; L2 and SMs: Turing architecture whitepaper", "t4",
    ),
    _gpu(
        "NVIDIA V100 SXM2", (7, 0), (125.0, None, 15.7, None, None, None, None), 900, 6, 80, 1530,
        "NVIDIA V100 datasheet; L2 and SMs: Volta architecture whitepaper",
        "v100 sxm2 16gb", "v100 sxm2 32gb", "v100 sxm3 32gb",
    ),
    _gpu(
        "NVIDIA V100 PCIe", (7, 0), (112.0, None, 14.0, None, None, None, None), 900, 6, 80, 1370,
        "NVIDIA V100 datasheet; L2 and SMs: Volta architecture whitepaper",
        "v100 pcie 16gb", "v100 pcie 32gb",
    ),
    _gpu(
        "NVIDIA A100 40GB SXM", (8, 0), A100, 1555, 40, 108, 1410, A100_SHEET, "a100 sxm4 40gb",
    ),
    _gpu(
        "NVIDIA A100 80GB SXM", (8, 0), A100, 2039, 40, 108, 1410, A100_SHEET, "a100 sxm4 80gb",
    ),
    _gpu(
        "NVIDIA A100 40GB PCIe", (8, 0), A100, 1555, 40, 108, 1410, A100_SHEET,
        "a100 pcie 40gb", "a100 40gb pcie",
    ),
    _gpu(
        "NVIDIA A100 80GB PCIe", (8, 0), A100, 1935, 40, 108, 1410, A100_SHEET,
        "a100 80gb pcie", "a100 pcie 80gb",
    ),
    _gpu(
        "NVIDIA L4", (8, 9), (121.0, 121.0, 30.3, 60.0, None, 242.5, 242.5), 300, 48, 58, 2040,
        "NVIDIA L4 datasheet, half of the sparse rates; L2: Ada architecture whitepaper", "l4",
    ),
    _gpu(
        "NVIDIA A10", (8, 6), (125.0, 125.0, 31.2, 62.5, None, 250.0, None), 600, 6, 72, 1695,
        "NVIDIA A10 datasheet; L2: Ampere GA102 architecture whitepaper", "a10",
    ),
    _gpu(
        "NVIDIA L40S", (8, 9),
        (362.05, 362.05, 91.6, 183.0, None, 733.0, 733.0), 864, 96, 142, 2520,
        "NVIDIA L40S datasheet; L2: Ada architecture whitepaper", "l40s",
    ),
    _gpu(
        "NVIDIA GeForce RTX 3090", (8, 6),
        (71.0, 71.0, 35.6, 35.6, None, 284.0, None), 936, 6, 82, 1695,
        "NVIDIA Ampere GA102 architecture whitepaper, float32 accumulation", "rtx 3090",
    ),
    _gpu(
        "NVIDIA GeForce RTX 4090", (8, 9),
        (165.2, 165.2, 82.6, 82.6, None, 660.6, 330.3), 1008, 72, 128, 2520,
        "NVIDIA Ada architecture whitepaper, float32 accumulation", "rtx 4090",
    ),
    _gpu(
        "NVIDIA H100 SXM", (9, 0), H100, 3352, 50, 132, 1830, H100_SHEET, "h100 80gb hbm3",
    ),
    _gpu(
        "NVIDIA H100 PCIe", (9, 0),
        (756.0, 756.0, 51.2, 378.0, 51.2, 1513.0, 1513.0), 2000, 50, 114, 1620,
        H100_SHEET, "h100 pcie",
    ),
    _gpu(
        "NVIDIA H100 NVL", (9, 0), H100_NVL, 3938, 50, 132, 1545, H100_NVL_SHEET, "h100 nvl",
    ),
    _gpu(
        "NVIDIA H200", (9, 0),
        H100, 4800, 60, 132, 1830, f"{H200_SHEET}; L2: as the driver gives it",
        "h200",
    ),
    _gpu(
        "NVIDIA H200 NVL", (9, 0), H100_NVL, 4800, 50, 132, 1545, H200_SHEET, "h200 nvl",
    ),
    _gpu(
        "NVIDIA B200", (10, 0),
        (2250.0, 2250.0, 75.0, 1125.0, 37.0, 4500.0, 4500.0), 7700, 126, 148, 1856,
        "NVIDIA Blackwell datasheet, one GPU of the HGX B200, half of the sparse rates", "b200",
    ),
    _gpu(
        "NVIDIA GeForce RTX 5090", (12, 0),
        (209.5, 209.5, 104.8, 104.8, None, 838.0, 419.0), 1792, 96, 170, 2407,
        "NVIDIA RTX Blackwell architecture whitepaper, float32 accumulation", "rtx 5090",
    ),
    _gpu(
        "NVIDIA Jetson AGX Orin", (8, 7),
        (42.5, 42.5, 5.3, 21.25, None, 85.0, None), 204.8, 4, 16, 1300,
        "NVIDIA Jetson AGX Orin technical brief: half of the sparse int8 rate; float16 half, tf32 "
        "a quarter of dense int8 as in the Ampere tensor core",
        "orin", "jetson agx orin", "jetson agx orin developer kit",
    ),
)  # fmt: skip


@cache
def lookup(name: str) -> Gpu:
    """The GPU of a torch or NVML device name, e.g. "NVIDIA A100-SXM4-80GB", or of a slug.

    A name that is not in the table gives a Gpu with a slug made from the name and no figures: a
    board that is nearly the same (an RTX 3090 Ti, a MIG slice) has other peaks.
    """
    key = _key(name)
    for gpu in GPUS:
        if key in gpu.aliases or key == _key(gpu.name):
            return gpu
    return Gpu(name=name, slug=slug(name))


def find(name: str) -> Gpu:
    """The GPU that a user names: "NVIDIA H200", "h200", "rtx-4090", "RTX 4090", "rtx4090", "a100".

    Case, spaces and hyphens make no difference. Where the words fit several boards (a100), the
    first of the table is meant.

    Raises UnknownNameError, listing the slugs that exist.
    """
    board = lookup(name)
    if board.source is not None:
        return board
    words = _key(name).split()
    for gpu in GPUS if words else ():
        slug_words = gpu.slug.split("-")
        runs = {
            "".join(slug_words[first:last])
            for first in range(len(slug_words))
            for last in range(first + 1, len(slug_words) + 1)
        }
        if set(words) <= set(slug_words) or "".join(words) in runs:
            return gpu
    slugs = ", ".join(gpu.slug for gpu in GPUS)
    raise UnknownNameError(f"unknown GPU {name!r}: choose from {slugs}")


def capability(gpu: Gpu) -> tuple[int, int] | None:
    """Compute capability of a GPU of the table; None for one that is not."""
    return gpu.capability


def kin(slug: str, has: Callable[[str], bool], same_peaks: bool = False) -> str:
    """Slug of the board whose figures are taken for a board's: its own, where it has some; "" where
    none has.

    Of other boards with figures those of the same compute capability count, and of these the one
    with most nearly as many SMs.

    Args:
        slug: of the board.
        has: whether the board of a slug has figures.
        same_peaks: whether peak rates have to be the same too, as those of an H100 SXM and an H200
            are: one processor and module, with other memory. Of Hopper that tells SXM from PCIe and
            NVL. An A100 has the same rates in SXM and PCIe: figures of its links would need more.
    """
    if has(slug):
        return slug
    board = lookup(slug)
    known = [
        other for other in GPUS
        if board.capability is not None
        and other.capability == board.capability
        and has(other.slug)
        and (not same_peaks or other.peak_tflops == board.peak_tflops)
    ]  # fmt: skip
    nearest = min(known, key=lambda other: abs((other.sms or 0) - (board.sms or 0)), default=None)
    return nearest.slug if nearest else ""


SM_LIMITS = {
    (7, 0): (96, 2048),
    (7, 5): (64, 1024),
    (8, 0): (164, 2048),
    (8, 6): (100, 1536),
    (8, 7): (164, 1536),
    (8, 9): (100, 1536),
    (9, 0): (228, 2048),
    (10, 0): (228, 2048),
    (12, 0): (100, 1536),
}
"""Compute capability -> KiB of shared memory and threads of an SM (CUDA C++ programming guide,
technical specifications per compute capability)."""


def sm_limits(gpu: Gpu) -> tuple[int, int]:
    """KiB of shared memory and threads of an SM; of an unknown GPU those of Hopper."""
    return SM_LIMITS.get(gpu.capability or (9, 0), SM_LIMITS[9, 0])
