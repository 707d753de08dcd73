"""The second pass of a divided K: its machine code asks for all that it adds before it adds."""

from __future__ import annotations

import re
import subprocess

import compiling
import pytest
from tcgemm.cuda_ref.build import toolchain

COMPILED = """
import sys
from tcgemm.problem import Problem
from tcgemm.triton_kernels import _PLANS
from tcgemm.triton_kernels.inspection.specialisations import _on
problem = Problem.stored(226, 32, 3936, "bfloat16", "bfloat16", "nt", capability=(9, 0))
kernel, grid, args, constants = _on(problem, "skinny", _PLANS["skinny"].ROW["plan"](problem))[1]
open(sys.argv[1], "wb").write(kernel.warmup(*args, grid=grid, **constants).asm["cubin"])
"""


@pytest.mark.skipif(toolchain.find_cuobjdump() is None, reason="needs cuobjdump")
def test_it_asks_for_eight_parts_before_it_adds_the_first(tmp_path):
    cubin = tmp_path / "add.cubin"
    done = compiling.run("-c", COMPILED, str(cubin))
    assert done.returncode == 0, done.stderr
    tool = str(toolchain.find_cuobjdump()[0])
    text = subprocess.run([tool, "-sass", str(cubin)], capture_output=True, text=True).stdout
    opcodes = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*([A-Z]+)", text, re.M)
    assert opcodes[: opcodes.index("FADD")].count("LDG") == 8
