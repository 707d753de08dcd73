"""Names, slugs and the consistency of the table of peaks."""

import subprocess
import sys

import pytest

from tcgemm import gpus


@pytest.mark.parametrize(
    ("driver_name", "slug", "float16"),
    [
        ("NVIDIA H200", "nvidia-h200", 989.4),
        ("NVIDIA H200 NVL", "nvidia-h200-nvl", 835.5),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm", 989.4),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie", 756.0),
        ("NVIDIA H100 NVL", "nvidia-h100-nvl", 835.5),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-40gb-sxm", 312.0),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-80gb-sxm", 312.0),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-80gb-pcie", 312.0),
        ("A100-PCIE-40GB", "nvidia-a100-40gb-pcie", 312.0),
        ("Tesla T4", "nvidia-t4", 65.0),
        ("Tesla V100-SXM2-16GB", "nvidia-v100-sxm2", 125.0),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090", 165.2),
        ("NVIDIA B200", "nvidia-b200", 2250.0),
        ("Orin", "nvidia-jetson-agx-orin", 42.5),
    ],
)
def test_driver_names_find_their_row(driver_name, slug, float16):
    gpu = gpus.lookup(driver_name)
    assert (gpu.slug, gpu.peak_tflops["float16"]) == (slug, float16)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA H200 MIG 1g.18gb", "NVIDIA A10G", "Some Board 9000", ""],
)
def test_an_unknown_gpu_has_a_slug_and_no_figures(name):
    gpu = gpus.lookup(name)
    assert gpu.slug == gpus.slug(name)
    assert gpu.slug.replace("-", "").isalnum()
    assert set(gpu.peak_tflops) == set(gpus.DTYPES)
    assert set(gpu.peak_tflops.values()) == {None}
    assert (gpu.bandwidth_gb_s, gpu.sms, gpu.source, gpu.l2_bytes) == (None,) * 4
    assert gpu.ceiling_tflops("float16", 3000) is None


def test_slugs_names_and_aliases_are_unique():
    keys = [key for gpu in gpus.GPUS for key in {*gpu.aliases, gpus._key(gpu.name)}]
    assert len(keys) == len(set(keys))
    assert len({gpu.slug for gpu in gpus.GPUS}) == len(gpus.GPUS)


@pytest.mark.parametrize("gpu", gpus.GPUS, ids=lambda gpu: gpu.slug)
def test_a_row_is_complete_and_found_by_its_slug(gpu):
    assert gpus.lookup(gpu.slug) is gpu
    assert gpus.lookup(gpu.name) is gpu
    assert gpu.source
    assert gpu.sms
    assert gpu.bandwidth_gb_s
    assert gpu.l2_bytes
    assert gpu.peak_tflops["float16"] is not None


# Dense multiply-add operations a clock and SM, from the architecture whitepapers: a figure that
# was copied with sparsity would be twice that.
PER_CLOCK_AND_SM = {
    "t4": 1024, "v100": 1024, "a100": 2048, "l4": 1024, "a10": 1024, "l40s": 1024,
    "geforce-rtx-3090": 512, "geforce-rtx-4090": 512, "h100": 4096, "h200": 4096, "b200": 8192,
    "geforce-rtx-5090": 512, "jetson-agx-orin": 2048,
}  # fmt: skip


@pytest.mark.parametrize("gpu", gpus.GPUS, ids=lambda gpu: gpu.slug)
def test_peaks_are_dense(gpu):
    known = gpu.slug.removeprefix("nvidia-")
    rate = next(v for k, v in sorted(PER_CLOCK_AND_SM.items(), reverse=True) if known.startswith(k))
    assert gpu.peak_tflops["float16"] == pytest.approx(
        rate * gpu.sms * gpu.clock_mhz / 1e6, rel=0.02
    )


def test_the_ceiling_follows_the_clock_upwards_only():
    gpu = gpus.lookup("NVIDIA H200")
    assert gpu.ceiling_tflops("bfloat16") == 989.4
    assert gpu.ceiling_tflops("bfloat16", 1400) == 989.4
    assert gpu.ceiling_tflops("bfloat16", 1980) == pytest.approx(1070.5, rel=1e-3)


def test_importing_the_table_costs_no_torch():
    code = "import sys, tcgemm.gpus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla T4", (7, 5)), ("Tesla V100-SXM2-32GB", (7, 0)), ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA A10", (8, 6)), ("NVIDIA L4", (8, 9)), ("NVIDIA GeForce RTX 4090", (8, 9)),
        ("NVIDIA H100 PCIe", (9, 0)), ("NVIDIA H200", (9, 0)), ("NVIDIA H200 NVL", (9, 0)),
        ("NVIDIA B200", (10, 0)), ("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA H300", None),
    ],
)  # fmt: skip
def test_compute_capabilities_are_those_that_nvidia_lists(name, expected):
    assert gpus.capability(gpus.lookup(name)) == expected
