"""A new kernel is its file, its row and its name: a copy of the project with them finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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

COMMAND = "import sys; from tcgemm.cli import main; sys.argv[0] = 'tcgemm'; main()"


def test_a_file_a_row_and_a_name(tmp_path):
    # The mapped packages, laid out as a wheel installs them.
    site = tmp_path / "site"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tcgemm", site / "tcgemm", ignore=skip)
    for folder in ("triton_kernels", "cuda_ref"):
        shutil.copytree(ROOT / folder, site / "tcgemm" / folder, ignore=skip)
    package = site / "tcgemm" / "triton_kernels"
    (package / "rungs" / "brought_along.py").write_text(KERNEL)
    (package / "rungs" / "brought_along_plan.py").write_text(PLAN)
    order = (package / "__init__.py").read_text()
    assert order.count('    "shapes.skinny",') == 1
    (package / "__init__.py").write_text(order.replace('    "shapes.skinny",', NAME))
    results = str(tmp_path / "results")

    def python(*arguments: str) -> None:
        result = subprocess.run(
            [sys.executable, "-c", *arguments],
            env=os.environ | {"PYTHONPATH": str(site)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    python(LIBRARY)
    case = ["--backend", "triton", "--kernel", "brought_along", "--shape", "32x40x24"]
    python(COMMAND, "bench", *case, "--out", results)
    rows = (tmp_path / "results" / "results.csv").read_text()
    assert "brought_along,yes,BLOCK_M=48" in rows
    assert ",ok," in rows
    python(COMMAND, "report", results)
    assert "brought_along" in (tmp_path / "results" / "index.html").read_text()
