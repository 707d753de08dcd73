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
    constants = {"WORDS": copies.WORDS[0], "WORDS_2": copies.WORDS[1], "PART": copies.PART}
    of_x = (x, copy, 8, 129, 129, 1, 192)
    second = of_x if "both" in sys.argv else (None, None, 0, 0, 0, 0, 0)
    built = copies.kernel.warmup(*of_x, *second, 4, grid=(1,), num_warps=copies.WARPS, **constants)
    counts = compile_only._counts([(compile_only._arch(built), built.asm["cubin"])])[0]
    made = {**compile_only._read(built, 0.0, False), "counts": dict(counts)}
    sys.stdout.write("\n" + json.dumps({**made, "ptx": built.asm["ptx"]}) + "\n")


main()
