"""A program: counts the kernels that Triton compiles for a drawn suite on an H200, by function.

    python triton_specialisations.py SEED COUNT

Writes a line of JSON: function -> how many specialisations. A process of its own, since kernels are
interpreted where tests run.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from importlib import import_module

from tcgemm import dispatch, repacking
from tcgemm.bench.drawn import drawn_cases


def main() -> None:
    seed, count = map(int, sys.argv[1:])
    found = import_module("tcgemm.triton_kernels.inspection.specialisations")
    seen = defaultdict(set)
    for case in drawn_cases(seed, count):
        problem = case.product(capability=(9, 0))
        copied = repacking.worth(problem, "triton")
        problem = problem if copied is None else copied.problem
        row = dispatch.choose(problem, "triton")
        for one in found.specialisations(row.name, row.plan(problem), problem):
            seen[one.kernel].add(one.key)
    print(json.dumps({kernel: len(keys) for kernel, keys in seen.items()}))


if __name__ == "__main__":
    main()
