"""What Triton makes of the kernels that a user's .py file launches, without a GPU.

The file's own ``run(a, b, c)`` is called on operands without memory, in a child process in which a
launch compiles its kernel and starts nothing. So what is shown is what that call would launch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from .compile_only import OPCODES, _arch, _counts, _Driver, _read


def inspect_file(path: Path, problem: Any, texts: bool) -> dict[str, Any]:
    """As ``inspect`` of a rung; the sum over all kernels that the file launches for one product.

    Raises RuntimeError where it does not run on operands without memory, or launches nothing.
    """
    from importlib.metadata import version

    from .source import lines_of_code

    capability = problem.capability or (9, 0)
    task = {
        "path": str(path),
        "dtypes": [problem.dtype_in, problem.dtype_out],
        "sizes": [problem.M, problem.N, problem.K],
        "layout": problem.layout,
        "capability": capability,
        "texts": texts,
    }
    program = f"import importlib; importlib.import_module({__name__!r}).answer()"
    child = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(task),
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_ALWAYS_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        said = child.stderr.strip().splitlines() or ["it ended without a word"]
        raise RuntimeError(
            f"{path.name} was run on operands without memory, to see what it launches, and "
            f"stopped: {said[-1]}"
        )
    found = json.loads(child.stdout.splitlines()[-1])
    counts: dict[str, int] = {}
    for kernel in found:
        for opcode, count in kernel["counts"].items():
            counts[opcode] = counts.get(opcode, 0) + count
    own = lines_of_code(path)
    return {
        "compiler": f"Triton {version('triton')}",
        "target": "sm_{}{}".format(*capability),
        "source": str(path),
        "instances": len(found),
        "instances built": len(found),
        "registers": max(kernel["registers"] for kernel in found),
        "spilled bytes": max(kernel["spill_bytes"] for kernel in found),
        "shared bytes": max(kernel["shared_bytes"] for kernel in found),
        "serialized": any(kernel["serialized"] for kernel in found),
        "seconds": round(sum(kernel["seconds"] for kernel in found), 2),
        "lines": own,
        "lines with what is shared": own,
        "counts": {opcode: count for opcode, count in counts.items() if count},
        "texts": {
            stage: text if stage == "lined" else "\n".join(k["assembly"][stage] for k in found)
            for stage, text in found[0]["assembly"].items()
        },
    }


def answer() -> None:
    """The child: the task as JSON on stdin, what it compiled as one line of JSON on stdout."""
    import time

    import torch
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    task = json.load(sys.stdin)
    driver.set_active(_Driver(tuple(task["capability"])))
    launched = []
    compile_and_launch = JITFunction.run

    def compile_alone(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        began = time.perf_counter()
        built = compile_and_launch(self, *args, grid=grid, warmup=True, **options)
        if built not in [kernel for kernel, _ in launched]:
            launched.append((built, time.perf_counter() - began))
        return built

    def tune(self: Any, *args: Any, **options: Any) -> Any:
        if len(self.configs) > 1:
            raise RuntimeError(
                f"{len(self.configs)} configurations are tuned among, which takes a GPU: leave "
                "one of them to be shown"
            )
        return choose(self, *args, **options)

    choose = Autotuner.run
    JITFunction.run, Autotuner.run = compile_alone, tune
    M, N, K = task["sizes"]
    dtypes = [getattr(torch, name) for name in task["dtypes"]]

    def operand(rows: int, columns: int, dtype: torch.dtype, letter: str) -> torch.Tensor:
        if letter == "n":
            return torch.empty(rows, columns, dtype=dtype, device="meta")
        return torch.empty(columns, rows, dtype=dtype, device="meta").mT

    path = Path(task["path"])
    spec = spec_from_file_location(f"tcgemm_own_{path.stem}", path)
    module = module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    letters = task["layout"].ljust(3, "n")
    module.run(
        operand(M, K, dtypes[0], letters[0]),
        operand(K, N, dtypes[0], letters[1]),
        operand(M, N, dtypes[1], letters[2]),
    )
    if not launched:
        raise RuntimeError("its run(a, b, c) launches no Triton kernel")
    found = [_read(built, seconds, task["texts"]) for built, seconds in launched]
    cubins = [(_arch(built), built.asm["cubin"]) for built, _ in launched]
    for kernel, counts in zip(found, _counts(cubins), strict=True):
        kernel["counts"] = {**dict.fromkeys(OPCODES, 0), **counts}
    print("\n" + json.dumps(found))
