"""What Triton makes of a rung, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STAGES = ("ttgir", "ptx", "sass")
"""The texts that ``inspect`` can give."""


def inspect(name: str, plan: Mapping[str, int], problem: Any, texts: bool) -> dict[str, Any]:
    """See ``triton_kernels.inspect``; ``plan`` is how the rung runs the problem."""
    from importlib.metadata import version

    from .compile_only import Request, compile_rungs
    from .source import source_file, source_lines

    capability = problem.capability or (9, 0)
    request = Request(
        kernel=name,
        plan=plan,
        dtype_in=problem.dtype_in,
        dtype_out=problem.dtype_out,
        layout=problem.layout,
        capability=capability,
        M=problem.M,
        N=problem.N,
        K=problem.K,
        compute="" if problem.plain else problem.compute,
        epilogue=problem.epilogue,
        bias=problem.bias,
        c_in=problem.beta != 0,
        aux=problem.aux,
        scales=problem.scales,
        batch=problem.batch if problem.batch > 1 else 0,
    )
    (compiled,) = compile_rungs([request], assembly=texts, fresh=True)
    own, whole = source_lines(name)
    return {
        "compiler": f"Triton {version('triton')}",
        "target": "sm_{}{}".format(*capability),
        "source": str(source_file(name)),
        "instances": 1,
        "instances built": 1,
        "registers": compiled.registers,
        "spilled bytes": compiled.spill_bytes,
        "shared bytes": compiled.shared_bytes,
        "serialized": compiled.serialized,
        "seconds": round(compiled.seconds, 2),
        "lines": own,
        "lines with what is shared": whole,
        "counts": {opcode: count for opcode, count in compiled.counts.items() if count},
        "texts": dict(compiled.assembly),
    }
