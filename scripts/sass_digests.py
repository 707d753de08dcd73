"""Compares the machine code of CUDA builds in two trees, instruction by instruction, by digest.

    python scripts/sass_digests.py BEFORE [--builds CSV] [--only PATTERN] > digests.csv

BEFORE is a checkout of another commit (``git worktree add``); the other tree is this one. A build
is a row of CSV, docs/lab/house_sass.csv unless told: kernel, target, defines. A digest is of the
instructions of all its kernels, without addresses, encodings and symbols, so that it is the same
wherever a source lies. Needs nvcc and cuobjdump, no GPU; a build takes 5 to 60 seconds a tree. Rows
are printed as they are made. A build that BEFORE has no source for has no digest there.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tcgemm.cuda_ref.build import toolchain

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "docs/lab/house_sass.csv"
FIELDS = ("kernel", "target", "defines", "instances", "instructions", "before", "after")


def main() -> None:
    """Compile and compare what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--builds", type=Path, default=BUILDS)
    parser.add_argument("--only", default="", help="a regular expression: kernel target defines")
    args = parser.parse_args()
    table = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    table.writeheader()
    for row in csv.DictReader(args.builds.open()):
        build = row["kernel"], row["target"], row["defines"]
        if re.search(args.only, " ".join(build)):
            _, _, before = digest(args.before, *build)
            instances, instructions, after = digest(ROOT, *build)
            values = (*build, instances, instructions, before, after)
            table.writerow(dict(zip(FIELDS, values, strict=True)))
            sys.stdout.flush()


def digest(tree: Path, kernel: str, target: str, defines: str) -> tuple[int, int, str]:
    """The kernels of a build, their instructions, and the digest of those; zeros where the tree
    has no such source.

    Raises CalledProcessError where nvcc or cuobjdump fails.
    """
    nvcc, cuobjdump = toolchain.find_nvcc(), toolchain.find_cuobjdump()
    if nvcc is None or cuobjdump is None:
        sys.exit("scripts/sass_digests.py: needs nvcc and cuobjdump: tcgemm doctor says more")
    root = tree / "cuda_ref"
    source = next(root.rglob(f"{kernel}.cu"), None)
    if source is None:
        return 0, 0, ""
    folders = [*toolchain.source_folders(root), *toolchain.include_folders(nvcc[0])]
    macros = [f"-DTCGEMM_{each}" for each in defines.split()]
    with tempfile.TemporaryDirectory() as scratch:
        cubin = Path(scratch) / "kernel.cubin"
        flags = [*toolchain.nvcc_flags(target), *(f"-I{path}" for path in folders), *macros]
        subprocess.run([nvcc[0], *flags, "-cubin", "-o", cubin, source], check=True)
        command = [cuobjdump[0], "-sass", cubin]
        sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kernels = sorted(map("\n".join, instructions_of(sass)))
    made = hashlib.sha256("\n\n".join(kernels).encode()).hexdigest()[:24]
    return len(kernels), sum(each.count("\n") + 1 for each in kernels), made


def instructions_of(sass: str) -> Iterator[list[str]]:
    """The instructions of each kernel, as cuobjdump writes them, without address and encoding."""
    for function in sass.split("Function : ")[1:]:
        yield re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?;)", function, re.M)


if __name__ == "__main__":
    main()
