"""What a new kernel costs: two files, for Triton its name in the ladder too. A copy of the project
with them finds it everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

KERNEL = '''
"""C = A @ B by torch: stands in for a kernel."""

def run(a, b, c, BLOCK_M):
    assert BLOCK_M == 48
    c.copy_(a.float() @ b.float())
'''

PLAN = """
from ..planning.dtypes import PLAIN

ROW = {
    "name": "brought_along",
    "adds": "nothing: it shows what a new kernel costs",
    "pairs": PLAIN,
    "devices": ("cpu",),
    "plan": lambda problem: {"BLOCK_M": 48},
}
"""

NAME = """    "rungs.brought_along",
    "shapes.skinny","""

LIBRARY = """
import sys, torch, tcgemm
from tcgemm import dispatch
a, b = torch.randn(32, 24).half(), torch.randn(24, 40).half()
c = tcgemm.matmul(a, b, backend="triton", kernel="brought_along")
assert torch.allclose(c, a @ b, atol=1e-1)
frame = tcgemm.kernels()
assert "brought_along" in set(frame.kernel)
plan = dispatch.plan(dispatch.problem_of(a, b, c), "triton")
assert str(plan) == "triton/brought_along BLOCK_M=48"
try:
    tcgemm.matmul(a, b, backend="triton", kernel="unheard_of")
except tcgemm.TcgemmError as error:
    assert "brought_along" in str(error)
"""

AS_MAIN = """
if __name__ == "__main__":
    from typer.testing import CliRunner
    from tcgemm.cli import app
    *bench, results = sys.argv[1:]
    for words in (["bench", *bench, "--out", results], ["report", results]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
"""

SPECIALIST = """
from ..planning.rows import row

ORDER = 300

def cost(problem, sms):
    return 0.01 * sms if problem.M == 9 else None

ROW = row("brought_along", "nothing: it shows what a new kernel costs", (9, 0),
    refuse=lambda problem: f"M={problem.M} is 34" if problem.M == 34 else None)
"""

CUDA_LIBRARY = """
from tcgemm import dispatch
from tcgemm.problem import Problem

def problem(M, **changes):  # so wide that costs decide
    return Problem(M, 2048, 512, "bfloat16", "bfloat16", (512, 1), (2048, 1), (2048, 1), **changes)

assert dispatch.choose(problem(9), "cuda").name == "brought_along"
for other in (problem(32), problem(34), problem(9, capability=(8, 0))):
    assert dispatch.choose(other, "cuda").name not in ("brought_along", "naive")
row = dispatch.find("cuda", "brought_along")
assert dict(row.plan(problem(9))) == {"BLOCK_M": 48}
assert row.why_not(problem(34)) == "M=34 is 34"
assert dispatch.ladder("cuda")[-1] is row
from tcgemm.cuda_ref import choose
accepting = [row.name for row in dispatch.ladder("cuda") if row.why_not(problem(9)) is None]
assert choose(problem(9), accepting) == "brought_along"
assert choose(problem(9), accepting[:-1]) in accepting[:-1]
"""


def copy_of_the_project(tmp_path):
    """The mapped packages, laid out as a wheel installs them, with the bytecode that is here: each
    program would compile it anew."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "tcgemm", site / "tcgemm")
    for folder in ("triton_kernels", "cuda_ref"):
        shutil.copytree(ROOT / folder, site / "tcgemm" / folder)
    return site


def run(site, tmp_path, *arguments):
    result = subprocess.run(
        [sys.executable, "-c", *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_two_files_make_a_cuda_specialist_with_plan_and_cost(tmp_path):
    site = copy_of_the_project(tmp_path)
    shapes = site / "tcgemm" / "cuda_ref" / "shapes"
    (shapes / "brought_along.py").write_text(SPECIALIST)
    (shapes / "brought_along.cu").write_text("constexpr int BLOCK_M = 48;\n")
    run(site, tmp_path, CUDA_LIBRARY)


def with_a_triton_kernel(tmp_path):
    """A copy of the project with two files more, and their name in the list of rungs."""
    site = copy_of_the_project(tmp_path)
    package = site / "tcgemm" / "triton_kernels"
    (package / "rungs" / "brought_along.py").write_text(KERNEL)
    (package / "rungs" / "brought_along_plan.py").write_text(PLAN)
    order = (package / "__init__.py").read_text()
    assert order.count('    "shapes.skinny",') == 1
    (package / "__init__.py").write_text(order.replace('    "shapes.skinny",', NAME))
    return site


def test_two_files_and_a_name_make_a_triton_kernel(tmp_path):
    run(with_a_triton_kernel(tmp_path), tmp_path, LIBRARY)


@pytest.mark.exhaustive  # test_own_kernel.py has a user's kernel benched and reported
def test_it_is_benched_and_reported(tmp_path):
    results = str(tmp_path / "results")
    case = ["--backend", "triton", "--kernel", "brought_along", "--shape", "32x40x24"]
    run(with_a_triton_kernel(tmp_path), tmp_path, LIBRARY + AS_MAIN, *case, results)
    rows = (tmp_path / "results" / "results.csv").read_text()
    assert "brought_along,yes,BLOCK_M=48" in rows
    assert ",ok," in rows
    assert "brought_along" in (tmp_path / "results" / "index.html").read_text()
