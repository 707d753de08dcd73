"""How many kernels Triton compiles for shapes that nobody chose: each costs a first call 0.4 s."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import compiling
import pytest
import torch

_units = import_module("tcgemm.triton_kernels.host.units")
units, unit_of_stride = _units.units, _units.unit_of_stride

MOST = {
    "skinny.kernel": 110, "thin.kernel": 100, "pipelined.kernel": 32, "warp_specialized.kernel": 92,
    "split_k_partials.add_kernel": 44, "split_k.kernel": 40, "descriptor.kernel": 8,
    "persistent.kernel": 14, "fused.kernel": 8, "matrix_parts.add_kernel": 8,
}  # fmt: skip
"""For 500 drawn shapes, of which 359 kernels were compiled when sizes made more of them. Rows of 16
bytes and odd ones of few tiles go to the first and the fifth, which made 264 of them 325; the first
knows rows of 8 elements since, and has two stages for a single step: 340. Its model takes tiles
that no table has, and few steps have four stages: 370. Large tiles of a long K have an order of
their own: 371. These had become 374 when parts of K came to know nothing of C, which made them 371,
and 3,149 for the 17,898 products of ``tcgemm warm``, where there were 3,229. ``thin`` took rows
from ``skinny``, and is told of no stride but whether it is 1: 356. Some of these went back: 360. A
C in odd rows is ``warp_specialized``'s, which takes products from ``pipelined`` by that: 365. Where
each of its programs has one tile there are other stages, and four of few steps: 388."""


def child(*command):
    done = compiling.run(*command)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_500_drawn_shapes_share_few_kernels():
    program = Path(__file__).with_name("triton_specialisations.py")
    found = child(str(program), "7", "500")
    assert {name: n for name, n in found.items() if n > MOST.get(name, 0)} == {}
    assert sum(found.values()) > 100, "the shapes are of every kind"


NEW_SHAPE = """
import json, sys
from importlib import import_module
from tcgemm import dispatch
from tcgemm.problem import Problem
compile_all = import_module("tcgemm.triton_kernels.inspection.specialisations").compile_all
made = []
for shape in ((16, 4096, 8192), (16, 4096, 8192), (16, 11008, 4096), (9, 4000, 4096)):
    problem = Problem.stored(*shape, "bfloat16", "bfloat16", "nt", capability=(9, 0))
    plan = dict(BLOCK_M=64, BLOCK_N=16, BLOCK_K=128, SPLITS=len(made) + 2, SWAP=1, PDL=1,
                NUM_STAGES=4, NUM_WARPS=4)
    made.append(compile_all("skinny", plan, problem))
print(json.dumps(made))
"""


def test_a_new_shape_finds_its_kernels_compiled(monkeypatch, tmp_path):
    """Other sizes, and other parts of K, are the same two kernels; sizes that fill no tile are two
    others, of which the one that adds is the same."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert child("-c", NEW_SHAPE) == [2, 0, 0, 1]


@pytest.mark.parametrize(
    ("shape", "layout", "known"),
    [
        ((128, 256, 64), "nn", (128, 128, 64)),
        ((4096, 4096, 4112), "nt", (128, 128, 16)),
        ((100, 4096, 4096), "nt", (1, 16, 64)),
        ((112, 4096, 4096), "nt", (1, 16, 64)),
        ((112, 4096, 4096), "tt", (16, 16, 64)),
        ((128, 4099, 4099), "nt", (1, 1, 1)),
        ((256, 256, 80), "tn", (128, 128, 1)),
    ],
)
def test_a_kernel_knows_little_of_the_sizes(shape, layout, known):
    M, N, K = shape
    a = torch.empty(M, K) if layout[0] == "n" else torch.empty(K, M).mT
    b = torch.empty(K, N) if layout[1] == "n" else torch.empty(N, K).mT
    found = units(a, b, torch.empty(M, N), 128, 128, 64)
    assert tuple(found.values()) == known
    assert all(size % unit == 0 for size, unit in zip(shape, known, strict=True))


@pytest.mark.parametrize(("size", "known"), [(104, 8), (112, 16), (100, 1), (128, 128)])
def test_skinny_knows_of_rows_of_16_bytes(size, known):
    a, b = torch.empty(100, size), torch.empty(size, 100)
    assert units(a, b, torch.empty(100, 100), 64, 64, 128, 8)["UNIT_K"] == known
    assert unit_of_stride(a.stride(0)) == (8 if known == 8 else 1)
    assert unit_of_stride(1) == unit_of_stride(None) == 1


PARTS = """
import json, sys
from dataclasses import replace
from importlib import import_module
from tcgemm.problem import Problem
found = import_module("tcgemm.triton_kernels.inspection.specialisations").specialisations
plan = dict(BLOCK_M=64, BLOCK_N=16, BLOCK_K=128, SPLITS=int(sys.argv[1]), SWAP=1, PDL=1,
            NUM_STAGES=4, NUM_WARPS=4)
kernels = set()
for out in ("bfloat16", "float32"):
    rows = Problem.stored(16, 4000, 4096, "bfloat16", out, "nt", capability=(9, 0))
    for problem in (rows, replace(rows, c_strides=(1, 16))):
        kernels.add(found("skinny", plan, problem)[0].key)
print(json.dumps(len(kernels)))
"""


@pytest.mark.parametrize(("parts", "kernels"), [(1, 4), (3, 1)])
def test_parts_of_k_are_one_kernel_for_all_types_and_layouts_of_c(parts, kernels):
    assert child("-c", PARTS, str(parts)) == kernels


DRAWN_TYPES = """
import json, random
from collections import defaultdict
from importlib import import_module
from tcgemm import dispatch
from tcgemm.problem import Problem
found = import_module("tcgemm.triton_kernels.inspection.specialisations").specialisations
import_module("tcgemm.triton_kernels").plan_for((9, 0), "nvidia-h200", 132)
draw, keys = random.Random(5), defaultdict(set)
for number in range(400):
    name = ("short_k", "thin")[number % 2]
    M, N, K = (int(2 ** draw.uniform(0, 14)) for _ in range(3))
    M, K = (M, 1 + K % 64) if name == "short_k" else (1 + M % 16, K)
    M, N = (M, N) if draw.random() < 0.5 else (N, M)
    dtype, layout = draw.choice(("float32", "float64")), draw.choice(("nn", "nt", "tn", "tt"))
    asked = Problem.stored(M, N, K, dtype, dtype, layout, device="cuda", capability=(9, 0))
    for one in found(name, dispatch.find("triton", name).plan(asked), asked):
        keys[name].add(one.key)
print(json.dumps({name: len(of) for name, of in keys.items()}))
"""


def test_drawn_shapes_of_float32_and_float64_share_few_kernels():
    """200 products of either kernel, as many of both types, in all layouts."""
    found = child("-c", DRAWN_TYPES)
    assert found["short_k"] <= 70
    assert found["thin"] <= 145
