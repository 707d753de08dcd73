"""Compiles the kernel of copies for sm_90 and prints what came of it, as one line of JSON."""

import json
import sys
from importlib import import_module

import tcgemm.triton_kernels.inspection.compile_only as compile_only
import torch


def main() -> None:
    from triton.runtime import driver

    driver.set_active(compile_only._Driver((9, 0)))
    copies = import_module("tcgemm.triton_kernels.host.copies")
    x = torch.empty(8, 129, dtype=torch.int16, device="meta")
    copy = torch.empty(8, 192, dtype=torch.int16, device="meta")
    constants = {"ROWS": copies.ROWS, "WORDS": copies.WORDS, "num_warps": copies.WARPS}
    built = copies.kernel.warmup(x, copy, 8, 129, 129, 1, 192, grid=(1,), **constants)
    counts = compile_only._counts([(compile_only._arch(built), built.asm["cubin"])])[0]
    made = {**compile_only._read(built, 0.0, False), "counts": dict(counts)}
    sys.stdout.write("\n" + json.dumps({**made, "ptx": built.asm["ptx"]}) + "\n")


main()
